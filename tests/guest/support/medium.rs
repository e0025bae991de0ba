//! What a flasher medium and the image that it carries consist of.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::fat::{self, Node};
use super::host::tool;
use super::system::{System, fat_image, gpt_image};

const MIB: usize = 1 << 20;

/// Bytes that are nowhere the same, and nowhere those of erased flash for long.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

/// An empty file of that size.
pub(crate) fn empty(path: PathBuf, mib: usize) -> PathBuf {
    std::fs::File::create(&path).unwrap().set_len((mib * MIB) as u64).unwrap();
    path
}

/// A disk in use before: every byte 0xA5, but for a GPT with two partitions.
pub(crate) fn used_disk(path: PathBuf, mib: usize) -> PathBuf {
    std::fs::write(&path, vec![0xA5; mib * MIB]).unwrap();
    let disk = path.to_str().unwrap();
    tool(&["sgdisk", "-Z", disk]);
    tool(&["sgdisk", "-n", "1:2M:+3M", "-c", "1:resin-boot", "-n", "2:7M:+3M", "-c", "2:old", disk]);
    path
}

/// An operating system's image: a GPT with `resin-boot` (vfat), `resin-rootA` (ext4), `resin-state` (anything).
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
    /// Where its boot partition lies.
    pub(crate) boot: Range<usize>,
}

impl Image {
    /// With so many MiB of data that cannot be compressed.
    pub(crate) fn new(dir: &Path, mib: usize) -> Self {
        let boot = dir.join("resin-boot");
        fat_image(
            &boot,
            "resin-boot",
            16,
            &[
                ("EFI/BOOT/grub.cfg", b"menuentry external\n"),
                ("system-connections/old", b"an old connection\n"),
                ("splash/balena-logo.png", b"the image's logo"),
                ("vmlinuz", &noise(1, 100_000)),
            ],
        );
        Self::around(dir, &boot, mib)
    }

    /// Around a boot partition.
    pub(crate) fn around(dir: &Path, boot: &Path, mib: usize) -> Self {
        let (tree, root, state) = (dir.join("tree"), dir.join("resin-rootA"), dir.join("resin-state"));
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("hostapp"), noise(2, mib * MIB)).unwrap();
        tool(&[
            "mke2fs",
            "-q",
            "-F",
            "-t",
            "ext4",
            "-L",
            "resin-rootA",
            "-d",
            tree.to_str().unwrap(),
            root.to_str().unwrap(),
            &format!("{}M", mib + mib / 4 + 2),
        ]);
        std::fs::write(&state, noise(3, MIB)).unwrap();
        let path = dir.join("balena.img");
        gpt_image(&path, &[("resin-boot", boot), ("resin-rootA", &root), ("resin-state", &state)], 1);
        let size = usize::try_from(std::fs::metadata(boot).unwrap().len()).unwrap();
        Self { bytes: std::fs::read(&path).unwrap(), path, boot: MIB..MIB + size }
    }

    /// Fails unless everything on a disk of this machine is the image's, the boot partition excepted; gives what is on the
    /// disk.
    pub(crate) fn assert_on(&self, disk: &Path) -> Installed {
        let disk = std::fs::read(disk).unwrap();
        let (image, boot) = (&self.bytes, self.boot.clone());
        assert!(disk[..boot.start] == image[..boot.start], "the partition table differs");
        assert!(
            disk[boot.end..image.len()] == image[boot.end..],
            "something behind the boot partition differs"
        );
        Installed { behind: disk[image.len()..].to_vec(), boot: disk[boot].to_vec() }
    }
}

/// What is on an installed disk, besides the image.
pub(crate) struct Installed {
    /// The boot partition.
    pub(crate) boot: Vec<u8>,
    /// Everything that the image does not reach.
    pub(crate) behind: Vec<u8>,
}

impl Installed {
    /// The files of the boot partition, in order.
    pub(crate) fn files(&self) -> Vec<String> {
        let nodes = fat::read(&self.boot).nodes.into_iter();
        nodes.filter(|(_, node)| matches!(node, Node::File(_))).map(|(path, _)| path).collect()
    }

    /// A file of the boot partition.
    pub(crate) fn file(&self, path: &str) -> Vec<u8> {
        let tree = fat::read(&self.boot);
        assert!(tree.shared.is_empty() && tree.lost == 0, "a damaged FAT: {:?}", tree.shared);
        match tree.nodes.get(path) {
            Some(Node::File(Ok(data))) => data.clone(),
            other => panic!("{path}: {other:?}, of {:?}", tree.nodes.keys()),
        }
    }

    /// The same as text.
    pub(crate) fn text(&self, path: &str) -> String {
        String::from_utf8(self.file(path)).unwrap()
    }

    /// The receipt.
    pub(crate) fn receipt(&self) -> serde_json::Value {
        serde_json::from_str(&self.text("flash-receipt.json")).unwrap()
    }
}

/// How long a step took, by a receipt's timeline.
pub(crate) fn seconds(receipt: &serde_json::Value, step: &str) -> f64 {
    let timeline = receipt["timeline"].as_array().unwrap();
    let found = timeline.iter().find(|s| s["step"] == step);
    found.unwrap_or_else(|| panic!("no step {step}: {timeline:?}"))["seconds"].as_f64().unwrap()
}

const MNT_BOOT: &str = "[Unit]
DefaultDependencies=no
Conflicts=umount.target
Before=umount.target
[Mount]
What=/dev/disk/by-label/flash-boot
Where=/mnt/boot
Type=vfat
Options=ro
";

const MNT_BOOTTMP: &str = "[Unit]
DefaultDependencies=no
Conflicts=umount.target
Before=umount.target
[Mount]
What=tmpfs
Where=/mnt/boottmp
Type=tmpfs
Options=mode=1777,nosuid,nodev,size=5m
";

const TEMP_CONF: &str = "[Unit]
DefaultDependencies=no
Requires=mnt-boot.mount mnt-boottmp.mount
After=mnt-boot.mount mnt-boottmp.mount
Conflicts=umount.target
Before=umount.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/cp -v /mnt/boot/config.json /mnt/boottmp/config.json
";

/// A board's configuration.
pub(crate) const CONF: &str = "/etc/resin-init-flasher.conf";

/// The unit of the flasher.
pub(crate) const UNIT: &str = "resin-init-flasher.service";

impl System {
    /// The programs, mounts, units and image of a flasher medium, and its configuration with these lines. Nothing starts
    /// [`UNIT`].
    pub(crate) fn flasher(self, image: &Image, conf: &str) -> Self {
        let units = "/etc/systemd/system";
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(UNIT);
        self.copal()
            .link("copal", "/usr/bin/resin-init-flasher")
            .file(&unit, &format!("{units}/{UNIT}"))
            .text(&format!("{units}/mnt-boot.mount"), MNT_BOOT)
            .text(&format!("{units}/mnt-boottmp.mount"), MNT_BOOTTMP)
            .unit("temp-conf.service", TEMP_CONF)
            .file(&image.path, "/opt/balena.img")
            .text(CONF, &format!("BALENA_IMAGE=balena.img\n{conf}\n"))
    }

    /// Starts [`UNIT`] with everything else.
    pub(crate) fn flashing(self) -> Self {
        self.link(&format!("../{UNIT}"), &format!("/etc/systemd/system/multi-user.target.wants/{UNIT}"))
    }

    /// Writes the medium: its boot partition with these files, and this system.
    pub(crate) fn medium(&self, dir: &Path, mib: u64, files: &[(&str, &[u8])]) -> PathBuf {
        let (boot, root, medium) = (dir.join("flash-boot"), dir.join("flash-rootA"), dir.join("medium"));
        fat_image(&boot, "flash-boot", 16, &[files, &[("balena-image-flasher", b"")]].concat());
        self.ext4(&root, "flash-rootA", mib);
        gpt_image(&medium, &[("flash-boot", &boot), ("flash-rootA", &root)], 1);
        medium
    }
}
