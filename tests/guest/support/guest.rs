//! How a guest is described.

use std::fs::File;
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cpio::Archive;
use super::host;
use super::machine::{self, Outcome};
use crate::kit::emulated_tpm;

use super::monitor::Monitor;
use super::turn;

/// Where a disk is plugged in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Disk {
    /// `/dev/nvme0n1`
    Nvme,
    /// `/dev/vda`
    Virtio,
    /// `/dev/sda`, a stick
    Usb,
    /// `/dev/mmcblk0` with `boot0` and `boot1` of that many bytes (a multiple of 128 KiB, or 0). Its image holds
    /// `boot0`, `boot1`, then the rest, whose size must be a power of two. One such disk or card in a guest.
    Emmc { boot: u64 },
    /// `/dev/mmcblk0`. The size of its image must be a power of two.
    SdCard,
}

impl Disk {
    fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Nvme => &["nvme"],
            Self::Virtio => &["virtio_blk"],
            Self::Usb => &["xhci_pci", "usb_storage", "sd_mod"],
            Self::Emmc { .. } | Self::SdCard => &["sdhci_pci", "mmc_block"],
        }
    }
}

struct Drive {
    disk: Disk,
    path: PathBuf,
    serial: String,
    log: Option<PathBuf>,
    options: String,
}

/// A virtual machine to be run once. [`Guest::run`] boots it and waits for its end.
pub(crate) struct Guest {
    qemu: PathBuf,
    kernel: PathBuf,
    small: PathBuf,
    /// Whether it boots a disk.
    system: bool,
    modules: Vec<String>,
    drives: Vec<Drive>,
    pflash: Option<(PathBuf, Option<PathBuf>)>,
    files: Vec<(PathBuf, u32, Vec<u8>)>,
    script: Option<String>,
    append: String,
    memory: u32,
    cut_at: Option<String>,
    screen: bool,
    /// The folder with the state of its TPM.
    tpm: Option<PathBuf>,
}

/// The firmware, which takes the end of the 4 GiB; the NOR flash lies right below it.
const FIRMWARE: &str = "usr/share/seabios/bios-256k.bin";

/// Measures nothing: a test with a TPM says what the firmware has measured.
const SILENT_FIRMWARE: &str = "qboot.rom";

impl Guest {
    /// A guest that boots into a few tools in memory, runs [`Guest::script`], and switches itself off.
    ///
    /// None where this machine has no guests, and for a test that is left to `./dev prove`; then it has been said for that test.
    pub(crate) fn small(test: &str) -> Option<Self> {
        if !turn::runs(test) {
            return None;
        }
        let parts = || Ok::<_, String>((host::part("qemu")?, host::part("kernel")?, host::part("small")?));
        match parts() {
            Ok((qemu, kernel, small)) => Some(Self {
                qemu,
                kernel,
                small,
                system: false,
                modules: Vec::new(),
                drives: Vec::new(),
                pflash: None,
                files: Vec::new(),
                script: None,
                append: String::new(),
                memory: 512,
                cut_at: None,
                screen: false,
                tpm: None,
            }),
            Err(why) => {
                host::not_run(test, &why);
                None
            }
        }
    }

    /// A small guest with [`Guest::pflash`], which takes a module of our own.
    pub(crate) fn with_nor(test: &str, path: &Path) -> Option<Self> {
        let guest = Self::small(test)?;
        let releases = std::fs::read_dir(guest.small.join("lib/modules")).unwrap();
        if releases.map(|r| r.unwrap().path()).any(|r| r.join("extra/nor_flash.ko").is_file()) {
            return Some(guest.pflash(path));
        }
        let why = std::fs::read_to_string(host::prepared().join("kernel/lacks"));
        host::not_run(
            test,
            why.as_deref().map_or("no module for the NOR flash: see qemu/prepare.sh", str::trim),
        );
        None
    }

    /// A guest that boots the system on one of its disks: `root` is `LABEL=…`, `PARTLABEL=…`, `UUID=…` or a device.
    /// See [`super::System`] for such a disk. It ends when [`Guest::script`] has ended, or when something in it switches off.
    pub(crate) fn system(test: &str, root: &str) -> Option<Self> {
        let guest = Self::small(test)?.append(&format!("root={root}")).memory(1024);
        if let Err(why) = host::part("system") {
            host::not_run(test, &why);
            return None;
        }
        Some(Self { system: true, ..guest })
    }

    /// A module to be loaded before the script, with its parameters. Those of the disks are loaded anyway.
    pub(crate) fn module(mut self, line: &str) -> Self {
        self.modules.push(line.to_owned());
        self
    }

    /// A module that is not in the small userland, for a system guest, by its path among the kernel's. It needs no other.
    pub(crate) fn other_module(self, path: &str) -> Self {
        let release = std::fs::read_to_string(self.kernel.join("release")).unwrap();
        let from = self.kernel.join("lib/modules").join(release.trim()).join(path);
        let to = format!("/test/{}", Path::new(path).file_name().unwrap().to_str().unwrap());
        // modprobe does not know it.
        let first = std::fs::read_to_string(self.small.join("system-init")).unwrap();
        let known = "modprobe ext4\n";
        assert!(first.contains(known));
        self.file(&from, &to).init(&first.replace(known, &format!("{known}insmod {to}\n")))
    }

    /// A disk over an image file of this machine. `serial`: of at most 20 letters (eMMC and SD cards have none).
    pub(crate) fn disk(mut self, disk: Disk, path: &Path, serial: &str) -> Self {
        self.modules.extend(disk.modules().iter().map(|&m| m.to_owned()));
        self.drives.push(Drive {
            disk,
            path: path.to_owned(),
            serial: serial.to_owned(),
            log: None,
            options: String::new(),
        });
        self
    }

    /// Records every write and flush of the disk named last into a file, for a write log's reader.
    pub(crate) fn logged(mut self, log: &Path) -> Self {
        self.drives.last_mut().expect("a disk comes first").log = Some(log.to_owned());
        self
    }

    /// Logical and physical blocks of 4096 bytes for the disk named last. QEMU cannot do this with eMMC and SD cards.
    pub(crate) fn blocks_of_4096(self) -> Self {
        self.option("logical_block_size=4096,physical_block_size=4096")
    }

    /// More properties for the device of the disk named last, as `physical_block_size=4096`.
    pub(crate) fn option(mut self, option: &str) -> Self {
        let options = &mut self.drives.last_mut().expect("a disk comes first").options;
        options.push(',');
        options.push_str(option);
        self
    }

    /// A parallel NOR flash over a file of this machine, up to 7 MiB in whole erase blocks of 4 KiB: `/dev/mtd0`.
    pub(crate) fn pflash(mut self, path: &Path) -> Self {
        let size = std::fs::metadata(path).unwrap().len();
        let firmware = std::fs::metadata(self.qemu.join(FIRMWARE)).unwrap().len();
        let start = (1u64 << 32) - firmware - size;
        self.pflash = Some((path.to_owned(), None));
        self.module("physmap")
            .module("cfi_probe")
            .module("cfi_cmdset_0001")
            .module(&format!("nor_flash start={start:#x} size={size:#x}"))
            .module("mtdblock")
    }

    /// Records every write to the NOR flash into a file.
    pub(crate) fn pflash_logged(mut self, log: &Path) -> Self {
        self.pflash.as_mut().expect("a flash comes first").1 = Some(log.to_owned());
        self
    }

    /// A file of this machine, with its mode, in the first root file system (a system guest's disk is [`super::System`]'s).
    pub(crate) fn file(mut self, from: &Path, to: &str) -> Self {
        let mode = std::fs::metadata(from).unwrap().permissions().mode() & 0o7777;
        self.files.push((to.into(), mode, std::fs::read(from).unwrap()));
        self
    }

    /// A file with these contents; executable where it starts with `#!`.
    pub(crate) fn text(mut self, to: &str, contents: &str) -> Self {
        let mode = if contents.starts_with("#!") { 0o755 } else { 0o644 };
        self.files.push((to.into(), mode, contents.into()));
        self
    }

    /// The binary under test, as `/usr/bin/copal`.
    pub(crate) fn copal(self) -> Self {
        self.file(&host::copal(), "/usr/bin/copal")
    }

    /// What to run, with bash. Its exit status is [`Outcome::status`]; it stops at the first command that fails.
    pub(crate) fn script(mut self, body: &str) -> Self {
        self.script = Some(format!("#!/bin/bash\nset -eu -o pipefail\n{body}\n"));
        self
    }

    /// A first program (PID 1) instead of the small guest's own. Nothing is mounted, and no module is loaded.
    pub(crate) fn init(self, body: &str) -> Self {
        self.text("/init", body)
    }

    /// More kernel arguments.
    pub(crate) fn append(mut self, words: &str) -> Self {
        self.append.push(' ');
        self.append.push_str(words);
        self
    }

    /// Memory in MiB; 512 where nothing is said.
    pub(crate) fn memory(mut self, mib: u32) -> Self {
        self.memory = mib;
        self
    }

    /// A screen in text mode, and a serial number. Its keyboard is there anyway.
    pub(crate) fn screen(mut self) -> Self {
        self.screen = true;
        self
    }

    /// A TPM 2.0 (`/dev/tpmrm0`) whose PCRs are empty, with its state in this folder, which may be empty.
    pub(crate) fn tpm(mut self, state: &Path) -> Self {
        self.tpm = Some(state.to_owned());
        self
    }

    /// Takes the guest's power as soon as its console has this text.
    pub(crate) fn cut_at(mut self, marker: &str) -> Self {
        self.cut_at = Some(marker.to_owned());
        self
    }

    /// Boots it, waits for its end, and fails with the console's last lines when that takes longer than `limit`
    /// (the time in which other guests are waited for does not count).
    pub(crate) fn run(self, limit: Duration) -> Outcome {
        self.run_watched(limit, |_| ())
    }

    /// The same, with a function that is called again and again while it runs.
    pub(crate) fn run_watched(self, limit: Duration, mut watch: impl FnMut(&mut Monitor<'_>)) -> Outcome {
        let folder = host::folder();
        let dir = folder.path();
        std::fs::create_dir(dir.join("host")).unwrap();
        if let Some(script) = &self.script {
            let path = dir.join("host/script");
            std::fs::write(&path, script).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let initrd = dir.join("initrd");
        self.archive(&initrd);
        let mut arguments: Vec<String> = [
            "-machine",
            &self.machine(),
            "-accel",
            "tcg",
            "-smp",
            "1",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-vga",
            if self.screen { "std" } else { "none" },
            "-nic",
            "none",
            "-no-reboot",
            "-m",
            &self.memory.to_string(),
            "-kernel",
            &self.kernel.join("vmlinuz").display().to_string(),
            "-initrd",
            &initrd.display().to_string(),
            "-append",
            &format!("console=ttyS0 panic=-1 no_timer_check mitigations=off quiet{}", self.append),
            "-virtfs",
            &format!("local,path={}/host,mount_tag=host,security_model=none", dir.display()),
        ]
        .map(str::to_owned)
        .to_vec();
        if let Some((path, log)) = &self.pflash {
            let firmware = self.qemu.join(FIRMWARE).display().to_string();
            arguments.push("-blockdev".to_owned());
            arguments.push(format!("driver=file,node-name=flash0,read-only=on,filename={firmware}"));
            arguments.extend(blockdev("flash1", path, log.as_deref()));
        }
        for (n, drive) in self.drives.iter().enumerate() {
            arguments.extend(drive.arguments(n));
        }
        if self.screen {
            arguments.extend(["-smbios", "type=1,product=Board,serial=S-42"].map(str::to_owned));
        }
        let tpm = self.tpm.as_ref().map(|state| {
            let socket = dir.join("tpm").display().to_string();
            arguments.extend(["-chardev".to_owned(), format!("socket,id=tpm,path={socket}")]);
            arguments.extend(
                [
                    "-tpmdev",
                    "emulator,id=tpm,chardev=tpm",
                    "-device",
                    "tpm-tis,tpmdev=tpm",
                    "-bios",
                    SILENT_FIRMWARE,
                ]
                .map(str::to_owned),
            );
            emulated_tpm::for_qemu(state, Path::new(&socket))
        });
        let start =
            machine::Start { arguments, folder, limit, cut_at: self.cut_at.as_deref(), watch: &mut watch };
        let outcome = machine::run(&self.qemu, start);
        if let Some(mut tpm) = tpm {
            // It ends with QEMU's connection.
            tpm.wait().unwrap();
        }
        outcome
    }

    fn machine(&self) -> String {
        if self.pflash.is_some() { "pc,pflash0=flash0,pflash1=flash1".to_owned() } else { "pc".to_owned() }
    }

    fn archive(&self, to: &Path) {
        let mut archive = Archive::new(BufWriter::new(File::create(to).unwrap()));
        archive.tree(&self.small);
        archive.file(Path::new("/test/modules"), 0o644, format!("{}\n", self.modules.join("\n")).as_bytes());
        if self.system {
            archive.file(Path::new("/init"), 0o755, &std::fs::read(self.small.join("system-init")).unwrap());
        }
        for (path, mode, data) in &self.files {
            archive.file(path, *mode, data);
        }
        archive.finish();
    }
}

/// The image as a node of that name; every write to it goes into the log.
fn blockdev(node: &str, path: &Path, log: Option<&Path>) -> [String; 2] {
    let path = path.display();
    let node = match log {
        None => format!("driver=raw,node-name={node},discard=unmap,file.driver=file,file.filename={path}"),
        Some(log) => {
            std::fs::write(log, "").unwrap();
            format!(
                "driver=blklogwrites,node-name={node},log-super-update-interval=1,log.driver=file,\
                 log.filename={},file.driver=raw,file.file.driver=file,file.file.filename={path}",
                log.display()
            )
        }
    };
    ["-blockdev".to_owned(), node]
}

impl Drive {
    fn arguments(&self, n: usize) -> Vec<String> {
        let node = format!("disk{n}");
        let mut arguments = blockdev(&node, &self.path, self.log.as_deref()).to_vec();
        let (serial, options) = (&self.serial, &self.options);
        let device = match self.disk {
            Disk::Nvme => format!("nvme,drive={node},serial={serial}{options}"),
            Disk::Virtio => format!("virtio-blk-pci,drive={node},serial={serial}{options}"),
            Disk::Usb => {
                arguments.extend(["-device".to_owned(), format!("qemu-xhci,id=usb{n}")]);
                format!("usb-storage,bus=usb{n}.0,drive={node},serial={serial},removable=on{options}")
            }
            Disk::Emmc { boot } => {
                arguments.extend(["-device".to_owned(), "sdhci-pci".to_owned()]);
                format!("emmc,drive={node},boot-partition-size={boot}{options}")
            }
            Disk::SdCard => {
                arguments.extend(["-device".to_owned(), "sdhci-pci".to_owned()]);
                format!("sd-card,drive={node}{options}")
            }
        };
        arguments.extend(["-device".to_owned(), device]);
        arguments
    }
}
