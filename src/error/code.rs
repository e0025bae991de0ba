//! The table of codes: what each one means, and what to do about it.

use std::fmt;

macro_rules! codes {
    ($($(#[doc = $cause:literal])+ $variant:ident = $code:literal, $remedy:literal;)*) => {
        /// Stable error codes, in kebab-case where they are printed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[doc = $cause])+ $variant,)*
        }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &[Code] = &[$(Code::$variant,)*];

            /// The code as printed.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $code,)* }
            }

            /// The code that is printed so.
            #[must_use]
            pub fn named(word: &str) -> Option<Code> {
                Code::ALL.iter().copied().find(|c| c.as_str() == word)
            }

            /// When it is given. For the documentation: no program says it, so it is in none.
            #[must_use]
            pub const fn cause(self) -> &'static str {
                match self { $(Code::$variant => concat!($($cause),+),)* }
            }

            /// What the owner of the device can do, unless the error at hand knows better.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Code::$variant => $remedy,)* }
            }
        }
    };
}

// Cause, name, remedy. `docs/errors.md` is made of it: `UPDATE_DOCS=1 cargo test --test docs`.
codes! {
    /// The command line has an argument that is not known, misses one that is needed, or has a wrong value.
    Usage = "usage", "run `copal help`";
    /// The name is known, but not what copal can do: its file is a shell file to be sourced. Nothing was done.
    NotInThisBuild = "not-in-this-build", "source the shell file of this name, or use a newer release of copal";
    /// This user may not open the disk or the file that is named. A disk needs root; a plain file as target does not.
    NotRoot = "not-root", "run as root, or as a user who may open what is named here";
    /// Another program holds the device or the lock that the job needs.
    Busy = "busy", "wait for the other program that holds the device, or stop it";
    /// The operating system failed at a file, folder or device for a reason that has no code of its own; the message has its
    /// words.
    Io = "io", "look at the kernel log for the device named here";
    /// A result, a receipt or a log could not be written to where it was to go.
    OutputFailed = "output-failed", "make room where the output goes, or send it elsewhere";
    /// The board's configuration file does not exist, or is not a regular file.
    ConfMissing = "conf-missing", "name the file with --conf, or install it where the board's recipe puts it";
    /// A line of the configuration is not `KEY=value`, or a quotation does not end; the message has line and column.
    ConfSyntax = "conf-syntax", "write the line as KEY=value, with the value quoted where it has blanks";
    /// A value of the configuration has `$VAR`, `$(…)` or backticks; the message has line and column.
    ConfExpansion = "conf-expansion", "write the literal value: nothing is expanded or executed";
    /// A value of the configuration is not what its key needs, or keys that belong together are not all there.
    ConfInvalid = "conf-invalid", "correct the named key in the board's recipe";
    /// There is no config.json where the device's configuration is looked for.
    ConfigJsonMissing = "config-json-missing", "put config.json on the medium's boot partition, or set CONFIG_PATH";
    /// config.json is not one JSON object, or is far larger than any; the message has line and column.
    ConfigJsonInvalid = "config-json-invalid", "download config.json again for this device";
    /// Neither the configuration nor config.json nor the command line says which disk to flash.
    NoTargetPattern = "no-target-pattern", "set INTERNAL_DEVICE_KERNEL in the conf, or name the disk with --target";
    /// A pattern for the target cannot be understood.
    TargetPattern = "target-pattern", "correct the pattern; brace lists {a,b} and the wildcards * ? [] are understood";
    /// No disk that may be flashed matches the patterns; the message lists every disk with the reason against it.
    NoTarget = "no-target", "attach the internal disk, or correct INTERNAL_DEVICE_KERNEL";
    /// The target that was named does not exist, or is neither a disk nor a plain file.
    TargetMissing = "target-missing", "name an existing block device or a plain file below an existing folder";
    /// The target is a block device that is no whole disk: a partition, a volume, an eMMC boot partition, an optical drive.
    TargetNotDisk = "target-not-disk", "name the whole disk, not a partition of it or anything else";
    /// The target is a reader without a medium: its size is zero.
    TargetNoMedium = "target-no-medium", "insert a medium";
    /// The target is the disk that holds the running system, or a part of it.
    TargetIsMedium = "target-is-medium", "name another disk: this one holds the running system";
    /// The target is the image file itself, under this or another name.
    TargetIsImage = "target-is-image", "name another target: this one is the image itself";
    /// The uncompressed image is larger than the target.
    TargetTooSmall = "target-too-small", "use a larger disk or a smaller image";
    /// The kernel says that the target cannot be written.
    TargetReadOnly = "target-read-only", "lift the write protection";
    /// A file system of the target is mounted.
    TargetMounted = "target-mounted", "unmount it first";
    /// The target or a partition of it is in use as swap.
    TargetSwap = "target-swap", "run `swapoff` on it first";
    /// Something is stacked on the target or on one of its partitions: LVM, device-mapper, RAID, a loop device, btrfs.
    TargetHeld = "target-held", "deactivate what is stacked on it (LVM, device-mapper, RAID) first";
    /// The target is a member of an MD array; writing to it would damage the array.
    TargetRaidMember = "target-raid-member", "name the array (md/…), or wipe the member with `mdadm --zero-superblock`";
    /// Between the check and the opening, the device behind the name became another one; or a plain file was replaced, renamed
    /// or removed while it was written.
    TargetChanged = "target-changed", "look at cabling and power of a disk, or at what else writes a plain file: what was checked is not what was written";
    /// The target went away during the job.
    TargetVanished = "target-vanished", "look at cabling, power and the kernel log";
    /// The device that a bootloader is to go to does not exist, or is neither a disk nor raw flash.
    FlashDeviceMissing = "flash-device-missing", "name a device that `copal bootloader show` lists, or a disk";
    /// The device that a bootloader is to go to is of a kind that copal does not write, such as NAND.
    FlashDeviceUnsupported = "flash-device-unsupported", "let the board's own program write it";
    /// An erase block where the bootloader would go is marked bad.
    FlashDeviceBad = "flash-device-bad", "put the bootloader elsewhere, or replace the chip";
    /// The bootloader has more than 64 MiB.
    LoaderTooLarge = "loader-too-large", "name the bootloader alone, not an image of a disk";
    /// The bootloader would not end within the device.
    SpanOutsideDevice = "span-outside-device", "correct block size and blocks to skip, or use a smaller bootloader";
    /// The bootloader would overwrite the partition table.
    SpanOverTable = "span-over-table", "correct block size and blocks to skip";
    /// The bootloader would overwrite a partition that carries a file system or is in use.
    SpanOverFileSystem = "span-over-file-system", "correct block size and blocks to skip, or the layout of the disk";
    /// The bootloader was written and verified, but the eMMC boot partition could not be protected again.
    LeftWritable = "left-writable", "run `copal bootloader protect`";
    /// The configuration is used, and /mnt/boot is mounted from another disk than the one the system runs from: an older
    /// flasher on the internal disk has the same label.
    MediumBootElsewhere = "medium-boot-elsewhere", "mount the medium's own boot partition at /mnt/boot, or name config.json by CONFIG_PATH";
    /// The image, the archive of an update or the bootloader does not exist where it is looked for.
    ImageMissing = "image-missing", "name a file that exists";
    /// Several files have the image's name; the message lists them.
    ImageAmbiguous = "image-ambiguous", "remove all but one, or name the file with --image";
    /// The image was found below /tmp, and it, its `.bmap`, its `.sha256` or a folder on the way there belongs to another user
    /// than root, may be written by others, or has a second name. An image that is named with --image is not checked so.
    ImageUntrusted = "image-untrusted", "remove it if you do not know it; otherwise chown root, chmod go-w, or name it with --image";
    /// The image is a folder, a pipe or a device; or, where it was found below /tmp, a link.
    ImageNotRegular = "image-not-regular", "name a regular file";
    /// The image has no bytes.
    ImageEmpty = "image-empty", "fetch the image again";
    /// The compressed image does not decode to its end, fails its own checksum, or goes on after it.
    ImageDamaged = "image-damaged", "fetch the image again: it is truncated, damaged, or has bytes after its end";
    /// The image gave other bytes when it was read again.
    ImageChanged = "image-changed", "do not change the image while it is being flashed, and check the medium it is read from";
    /// The compressed image needs more memory to decode than is granted.
    WindowTooLarge = "window-too-large", "compress again with a smaller window: at most 64 MiB for an image (zstd --long=26, xz -9), 8 MiB for the archive of an update (zstd -19, xz -6)";
    /// The image is compressed in a way that is known but not supported.
    UnsupportedCompression = "unsupported-compression", "use gzip, xz, zstd, bzip2, or no compression";
    /// The `.bmap` beside the image is not a block map of version 1 or 2, contradicts itself, or has more than 1 MiB.
    BmapInvalid = "bmap-invalid", "make the .bmap again with bmaptool, or remove it: the image is flashed without it, too";
    /// The `.bmap` beside the image speaks of other contents: size, a checksum, or a gap that is not zero.
    BmapMismatch = "bmap-mismatch", "fetch image and .bmap again: they do not belong together";
    /// The `.sha256` beside the image has no digest for it.
    ChecksumFileInvalid = "checksum-file-invalid", "make the .sha256 again with sha256sum, or remove it";
    /// The image does not have the SHA-256 that `.sha256` or `--sha256` wants.
    ImageDigestMismatch = "image-digest-mismatch", "fetch the image again";
    /// The image has neither a GPT nor an MBR.
    NoPartitionTable = "no-partition-table", "use a whole-disk image; --force-raw writes anything";
    /// The image's partition table contradicts itself, its checksum, or the image's size.
    PartitionTableInvalid = "partition-table-invalid", "make the image again; --force-raw writes anything";
    /// No partition of the image has a file system labelled `resin-boot`.
    NoBootPartition = "no-boot-partition", "use a balenaOS image; --force-raw writes anything";
    /// The image's partition table counts in sectors of another size than the target's.
    SectorSizeMismatch = "sector-size-mismatch", "use an image made for this disk's logical block size";
    /// The target could not be read, at the offset that the message names.
    TargetReadFailed = "target-read-failed", "look at the kernel log; the disk may be failing";
    /// The target could not be written, at the offset that the message names.
    TargetWriteFailed = "target-write-failed", "look at the kernel log; the disk may be failing";
    /// The target did not confirm that what was written is on the medium.
    TargetFlushFailed = "target-flush-failed", "look at the kernel log; the disk may be failing";
    /// What was read back is not what was written, also after writing it again.
    VerifyMismatch = "verify-mismatch", "replace the disk: it does not keep what is written to it";
    /// `copal verify` found a difference between image and target; the message has the first offset.
    TargetDiffers = "target-differs", "flash the image to this target";
    /// A program of the board (`resin-init-board`, `resin-init-flasher-board`) cannot be run, or failed; the message has its
    /// end and its last words.
    BoardProgramFailed = "board-program-failed", "look at the program's lines in the log, and mend it in the board's recipe";
    /// A secure-boot plug-in of the board cannot be used, gave up, or failed in a function that has to succeed.
    PluginFailed = "plugin-failed", "look at the plug-in's lines in the log, and mend it in the board's recipe";
    /// config.json or a secure-boot plug-in asks for an encrypted installation. The disk was not written.
    EncryptionNotInThisBuild = "encryption-not-in-this-build", "use the script that this program replaces for encrypted installations";
    /// The installation is complete, but the device could be neither powered off nor rebooted.
    EndingFailed = "ending-failed", "switch the device off and on by hand: it is installed";
    /// The disk that was just written does not show exactly one partition labelled `resin-boot` within 30 seconds; the
    /// message lists what there is.
    BootPartitionNotFound = "boot-partition-not-found", "look at the kernel log for the disk named here, and at the image's partitions";
    /// A signal asked the program to end. An installation that had begun to write makes the disk unbootable; an update
    /// leaves the running system selected; of hooks, no further one runs.
    Interrupted = "interrupted", "run the installation again: the disk was made unbootable";
    /// The internal boot partition could not be mounted, or something else is in its place.
    BootMountFailed = "boot-mount-failed", "look at the kernel log, and at what is mounted at /tmp/internal_boot";
    /// The internal boot partition could not be unmounted within ten seconds, or the drive did not confirm that everything is
    /// on the medium.
    BootUnmountFailed = "boot-unmount-failed", "end the programs named here, which still use the internal boot partition";
    /// What is to be copied does not fit the internal boot partition, together with the second copy that a file needs while
    /// it is replaced; the message has what is needed and what is free.
    BootPartitionFull = "boot-partition-full", "remove large files from the medium's boot partition, or use an image with a larger one";
    /// A path or a symbolic link leads out of the medium's or the internal boot partition.
    BootPathEscapes = "boot-path-escapes", "correct the path or the link named here: nothing may lead out of a boot partition";
    /// A name cannot be on the internal boot partition: FAT does not allow it, or it differs from another one by nothing but
    /// case, or it is a folder there and a file here.
    BootNameInvalid = "boot-name-invalid", "rename the file on the medium's boot partition";
    /// A file could not be read from the medium, written to the internal boot partition, or was not the same when it was read
    /// back.
    BootCopyFailed = "boot-copy-failed", "look at the kernel log for the devices named here";
    /// What is mounted at /mnt/sysroot/active or /mnt/sysroot/inactive is not one of the two root partitions, or nothing is;
    /// the message says which and why.
    SlotUnknown = "slot-unknown", "run `copal doctor`, and look at what is mounted at /mnt/sysroot/active and /mnt/sysroot/inactive";
    /// /mnt/sysroot/active and /mnt/sysroot/inactive are the same device: an update would erase the running system. Nothing
    /// was written.
    SlotSame = "slot-same", "restart the device: the other root partition is not mounted where it should be";
    /// The file that tells the bootloader which root to boot cannot be understood or has no such entry.
    BootStateInvalid = "boot-state-invalid", "run `copal doctor`; the file named here says which root boots";
    /// The file that tells the bootloader which root to boot could not be written, or did not keep what was written.
    BootStateUnwritable = "boot-state-unwritable", "look at the kernel log for the boot partition: nothing else may be changed until this file can be";
    /// A small file on the state partition, or below /run/copal, could not be written or removed.
    StateUnwritable = "state-unwritable", "make room on the state partition, and look at the kernel log for it";
    /// A small file of an update, on the state partition or below /run/copal, is damaged. Nothing was guessed from it.
    StateInvalid = "state-invalid", "remove the file named here once no update runs and the device is known to be well";
    /// A file on the data partition could not be written or removed.
    DataUnwritable = "data-unwritable", "make room on the data partition, and look at the kernel log for it";
    /// A hook of an update ended with a failure; the message names it and how it ended.
    HookFailed = "hook-failed", "look at the hook's lines in the log, and mend it in the release it is part of";
    /// On an encrypted device the signed loader, or the signature of the configuration, is neither on the boot partition nor
    /// among the release's boot files. The bootloader was not told to boot the release.
    SecureLoaderMissing = "secure-loader-missing", "build the release with signed boot files: an encrypted device starts no others";
    /// A release has no readable folder `/resin-boot`, or, on an encrypted device, a loader without its variant for secure
    /// boot. Nothing was changed.
    BootFilesInvalid = "boot-files-invalid", "use a release whose folder /resin-boot is complete";
    /// Nobody answers on the socket of the container engine for host apps, or it speaks no version of the API that copal
    /// knows.
    EngineUnreachable = "engine-unreachable", "start balena-host.service, and look at its log";
    /// The container engine refused or failed; the message has its own words.
    EngineFailed = "engine-failed", "look at the log of balena-host.service";
    /// The file given to an update is no image archive, has several images, or ends too early.
    ImageArchiveInvalid = "image-archive-invalid", "fetch the archive again: it is no image as `docker save` writes it";
    /// The image of an update is no host OS: it has no `/boot/init`, with which a host OS starts.
    ImageNotHostOs = "image-not-host-os", "name an image of the host OS";
    /// The programs in the archive of an update are for processors of another family than the device has. Nothing was changed.
    ImageWrongArchitecture = "image-wrong-architecture", "use the release that is made for this device type";
    /// The archive of an update is a delta, and the running slot does not have the image that it builds upon. Nothing was changed.
    DeltaBaseMissing = "delta-base-missing", "install the whole release, or a delta that was made for the release that is running";
    /// The registry or the engine has no image of that name.
    ImageUnknown = "image-unknown", "correct the image reference, or the tag in it";
    /// The registry wants credentials, or does not accept those that were sent.
    RegistryRefused = "registry-refused", "log in to the registry, or correct the credentials in config.json of the engine's client";
    /// The registry could not be reached, or the connection was lost and attempts to go on were in vain.
    RegistryUnreachable = "registry-unreachable", "look at the network, and run the update again";
    /// The other root partition, the data partition or the boot partition has no room for what is to be installed; the
    /// message has the sizes.
    SlotFull = "slot-full", "use a smaller image, or make room where the message says";
    /// The state of the device allows no update now: the running system is on trial, or a rollback is under way. Nothing was
    /// written.
    UpdateRefused = "update-refused", "wait for the verdict on the running system, or run `copal update --force`";
    /// A verdict by hand does not fit the phase that the device is in; the message says what is under way. Nothing was
    /// written.
    RollbackRefused = "rollback-refused", "see `copal status`: what was asked for fits another phase";
    /// A required health check of the running system failed; the message has its reason.
    HealthCheckFailed = "health-check-failed", "look at the log of the check named here, and mend what it found in the release";
    /// `rollback-stop` would leave a system selected that may not boot, or stop half a rollback. Nothing was written.
    StopRefused = "stop-refused", "reboot, and let the rollback come to its end; `--force` stops it all the same";
    /// The previous OS is older than 2.30.0, which nothing can go back to.
    PreviousTooOld = "previous-too-old", "nothing is to be done: an update from such a system is kept without health checks";
    /// `copal doctor` found something that would stop a flash, an update or a rollback.
    ProblemsFound = "problems-found", "see the lines above, each with its remedy";
    /// An update failed on the way; the message says what boots next.
    UpdateFailed = "update-failed", "run the update again: the running system is selected as before";
    /// The service was asked to flash, or for the plan of it, and the running system is no flasher medium.
    NotAFlasher = "not-a-flasher", "boot the device from a flasher medium, or run `copal flash` by hand";
    /// The service cannot connect to the system bus, or another program has its name there.
    BusUnreachable = "bus-unreachable", "start dbus.service, and look at its log";
    /// The process that did the work of a job has ended without saying what came of it: it was killed, or ran out of memory.
    JobLost = "job-lost", "look at the log of copal.service, then at `copal status`, and run it again";
    /// The daemon took the update, or may have taken it, and its result cannot be had: the daemon or the bus has gone and
    /// does not come back.
    DaemonLost = "daemon-lost", "run `copal status`, and look at the log of copal.service: the update may still be running";
    /// The device was to reboot, and neither systemd, nor the kernel, nor sysrq did it; what was done before is complete.
    RebootFailed = "reboot-failed", "restart the device by hand: the message says what each way to do so came to";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
