# Boots the medium or the disk that U-Boot found this script on. U-Boot's own boot command has set devtype, devnum and
# distro_bootpart, and looks at USB media before disks.
#
# Files of an installed disk's boot partition; without any of them, root A boots and nothing is counted:
#
#   resinOS_uEnv.txt  resin_root_part (hexadecimal partition number), upgrade_available
#   extra_uEnv.txt    whatever the owner sets: os_bc_lim, extra_os_cmdline, custom_fdt_file, custom_fdt_required, custom_fdt_ignored
#   bootcount.env     bootcount, written here while an upgrade is available
#
# A count over the limit means the other root, whether or not an upgrade is available. Both are hexadecimal.
#
# custom_fdt_file is a device tree below boot/ of the root that boots. Without that file, the board boots with QEMU's own tree,
# as boards do that have a default; with custom_fdt_required=1 it does not boot, as others. custom_fdt_ignored is a root for which QEMU's tree is
# taken whatever is there, without a word.

setenv board_from "${devtype} ${devnum}"
setenv board_args "rw console=ttyAMA0 panic=5 apparmor=0 selinux=0 quiet"
setenv board_root
setenv board_label

if part number ${board_from} flash-rootA board_root; then
    setenv board_label flash-rootA
    setenv board_args "${board_args} flasher"
    echo "copal-board: flasher of ${board_from}"
else
    setexpr board_root_a ${distro_bootpart} + 1
    setexpr board_root_b ${distro_bootpart} + 2
    setenv resin_root_part ${board_root_a}
    setenv upgrade_available 0
    setenv bootcount 0
    setenv os_bc_lim 3
    setenv extra_os_cmdline
    setenv custom_fdt_file
    setenv custom_fdt_required
    setenv custom_fdt_ignored
    for file in resinOS_uEnv.txt extra_uEnv.txt bootcount.env; do
        if test -e ${board_from}:${distro_bootpart} ${file}; then
            if load ${board_from}:${distro_bootpart} ${loadaddr} ${file}; then
                env import -t ${loadaddr} ${filesize}
            fi
        fi
    done

    # A file may have emptied them.
    if test -z "${bootcount}"; then setenv bootcount 0; fi
    if test -z "${os_bc_lim}"; then setenv os_bc_lim 3; fi
    setenv board_root ${resin_root_part}

    if test "${upgrade_available}" = 1; then
        setexpr bootcount ${bootcount} + 1
        env export -t ${loadaddr} bootcount
        # The length is that of `bootcount=N`, its newline and a NUL.
        if fatwrite ${board_from}:${distro_bootpart} ${loadaddr} bootcount.env 0xd; then
            echo "copal-board: count ${bootcount} written"
        else
            echo "copal-board: count ${bootcount} could not be written"
        fi
    fi
    if itest ${bootcount} -gt ${os_bc_lim}; then
        if test "${resin_root_part}" = "${board_root_a}"; then
            setenv board_root ${board_root_b}
        else
            setenv board_root ${board_root_a}
        fi
        echo "copal-board: count over ${os_bc_lim}, root ${board_root} instead of ${resin_root_part}"
    fi
    if test "${board_root}" = "${board_root_a}"; then setenv board_label resin-rootA; fi
    if test "${board_root}" = "${board_root_b}"; then setenv board_label resin-rootB; fi
    echo "copal-board: root ${board_root}, count ${bootcount}, upgrade_available ${upgrade_available}"
fi

# At ${loadaddr} it has 2 MiB, up to the kernel.
setenv board_tree ${fdtcontroladdr}
if test "${custom_fdt_ignored}" = "${board_root}"; then setenv custom_fdt_file; fi
if test -n "${custom_fdt_file}"; then
    if load ${board_from}:${board_root} ${loadaddr} boot/${custom_fdt_file} && fdt addr ${loadaddr}; then
        setenv board_tree ${loadaddr}
        echo "copal-board: device tree ${custom_fdt_file} of root ${board_root}"
    elif test "${custom_fdt_required}" = 1; then
        setenv board_tree
        echo "copal-board: no device tree ${custom_fdt_file} in root ${board_root}, which does not boot without it"
    else
        echo "copal-board: no device tree ${custom_fdt_file} in root ${board_root}, the default one instead"
    fi
fi

# By the file system's label: programs of the OS look for it there.
setenv bootargs "root=LABEL=${board_label} ${board_args} ${extra_os_cmdline}"
if test -n "${board_tree}" && load ${board_from}:${board_root} ${kernel_addr_r} boot/Image; then
    if load ${board_from}:${board_root} ${ramdisk_addr_r} boot/initramfs.cpio; then
        booti ${kernel_addr_r} ${ramdisk_addr_r}:${filesize} ${board_tree}
    fi
fi

# A system that cannot be loaded is a boot that failed.
echo "copal-board: root ${board_root} cannot be loaded, starting again"
sleep 5
reset
