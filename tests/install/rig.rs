//! A system of its own for the flasher: a root folder with the host's programs, a medium's `/mnt/boot`, and a loop device as
//! internal disk.
//!
//! It runs as PID 1 of its own PID namespace, where `reboot(2)` ends that namespace only, without a way to sysrq. The
//! kernel may have no partition parsers: `partx` tells it what the table says, as soon as there is one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub use crate::kit::needs::can_run;
pub use crate::kit::process::tool;

pub const MIB: usize = 1 << 20;

/// Tells the kernel of a partition that is in no table.
const BLKPG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kit/blkpg.py");

/// Longer than any run here takes; a hang fails with its output so far.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(100);

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("install-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The image: a GPT with a boot partition of 8 MiB (ext4, which every kernel can mount, with files of an older date), and a
/// root partition.
pub fn image() -> &'static Path {
    static IMAGE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let make = || {
        let dir = folder();
        let image = image_in(dir.path(), |_| ());
        (dir, image)
    };
    &IMAGE.get_or_init(make).1
}

/// The image, made in `dir`. `more` may add to `boot/` and `root/` there.
pub fn image_in(dir: &Path, more: impl Fn(&Path)) -> PathBuf {
    let at = |name: &str| dir.join(name);
    for folder in ["boot/EFI/BOOT", "boot/system-connections", "boot/splash", "root/etc"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    fs::write(at("boot/EFI/BOOT/grub.cfg"), "menuentry external\n").unwrap();
    fs::write(at("boot/system-connections/old"), "old connection\n").unwrap();
    fs::write(at("boot/splash/balena-logo.png"), "old logo").unwrap();
    fs::write(at("boot/kernel"), "kernel of the image").unwrap();
    more(dir);
    let image = at("balena.img");
    let text = |p: &Path| p.to_str().unwrap().to_owned();
    fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
    let (boot, root) = (["-n", "1:1M:+8M", "-c", "1:resin-boot"], ["-n", "2:0:+16M", "-c", "2:resin-rootA"]);
    tool(&[&["sgdisk"], &boot[..], &root[..], &[&text(&image)]].concat());
    for (label, from, size, offset) in
        [("resin-boot", at("boot"), "8M", MIB), ("resin-rootA", at("root"), "16M", 9 * MIB)]
    {
        let part = at(label);
        tool(&["mke2fs", "-q", "-t", "ext4", "-L", label, "-d", &text(&from), &text(&part), size]);
        tool(&[
            "dd",
            "status=none",
            "conv=notrunc",
            "bs=1M",
            &format!("if={}", text(&part)),
            &format!("of={}", text(&image)),
            &format!("seek={}", offset / MIB),
        ]);
    }
    image
}

/// The internal disk.
pub struct Disk {
    pub node: String,
    pub file: PathBuf,
}

impl Disk {
    fn new(dir: &Path) -> Disk {
        let file = dir.join("disk.raw");
        fs::write(&file, vec![0xA5; 48 << 20]).unwrap();
        Disk::over(&file, &["-P"])
    }

    pub fn over(file: &Path, options: &[&str]) -> Disk {
        let argv = [&["losetup", "-f", "--show"], options, &[file.to_str().unwrap()]].concat();
        Disk { node: tool(&argv).trim().to_owned(), file: file.to_owned() }
    }

    pub fn name(&self) -> &str {
        self.node.strip_prefix("/dev/").unwrap()
    }

    /// The first MiB, and where the image's backup GPT would be.
    pub fn boot_bytes(&self) -> Vec<u8> {
        let all = fs::read(&self.file).unwrap();
        [&all[..MIB], &all[(32 << 20) - 33 * 512..32 << 20]].concat()
    }

    /// A file of the boot partition, read by another tool.
    pub fn boot_file(&self, path: &str) -> Option<Vec<u8>> {
        self.read(MIB..9 * MIB, path)
    }

    /// A file of the root partition.
    pub fn root_text(&self, path: &str) -> Option<String> {
        self.read(9 * MIB..25 * MIB, path).map(|b| String::from_utf8(b).unwrap())
    }

    fn read(&self, partition: std::ops::Range<usize>, path: &str) -> Option<Vec<u8>> {
        let part = self.file.with_extension("part");
        let all = fs::read(&self.file).unwrap();
        fs::write(&part, &all[partition]).unwrap();
        // The journal of a partition that was just unmounted is empty; debugfs reads what is there.
        let out = Command::new("debugfs").args(["-R", &format!("cat {path}")]).arg(&part).output().unwrap();
        let missing = String::from_utf8_lossy(&out.stderr).contains("File not found");
        (!missing).then_some(out.stdout)
    }

    pub fn boot_text(&self, path: &str) -> Option<String> {
        self.boot_file(path).map(|b| String::from_utf8(b).unwrap())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ignored = Command::new("partx").args(["-d", &self.node]).output();
        let _ignored = Command::new("losetup").args(["-d", &self.node]).output();
    }
}

/// The system.
pub struct Rig {
    dir: tempfile::TempDir,
    pub disk: Disk,
}

impl Rig {
    /// With a configuration for the internal disk, a `config.json`, and all the boot files a medium can have.
    pub fn new() -> Rig {
        let dir = folder();
        let disk = Disk::new(dir.path());
        let rig = Rig { dir, disk };
        let folders =
            ["dev", "sys", "proc", "tmp", "mnt/boot", "mnt/boottmp", "run", "etc", "opt", "usr", "var"];
        for name in folders {
            fs::create_dir_all(rig.root().join(name)).unwrap();
        }
        for (link, to) in
            [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")]
        {
            std::os::unix::fs::symlink(to, rig.root().join(link)).unwrap();
        }
        for name in ["upper", "work"] {
            fs::create_dir_all(rig.dir.path().join(name)).unwrap();
        }
        fs::hard_link(image(), rig.root().join("opt/balena.img"))
            .or_else(|_| fs::copy(image(), rig.root().join("opt/balena.img")).map(drop))
            .unwrap();
        let copal = Path::new(env!("CARGO_BIN_EXE_copal"));
        fs::hard_link(copal, rig.root().join("copal"))
            .or_else(|_| fs::copy(copal, rig.root().join("copal")).map(drop))
            .unwrap();
        std::os::unix::fs::symlink("copal", rig.root().join("resin-init-flasher")).unwrap();
        rig.conf(&[
            "INTERNAL_DEVICE_BOOTLOADER_CONFIG=grub.cfg_internal",
            "INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH=/EFI/BOOT/grub.cfg",
        ]);
        rig.boot("grub.cfg_internal", "menuentry internal\n");
        rig.boot("balena-image-flasher", "");
        rig.boot("splash/balena-logo.png", "new logo");
        rig.boot("system-connections/cellular", "new connection\n");
        rig.boot("config.json", "{}\n");
        rig.put("mnt/boottmp/config.json", CONFIG_JSON);
        rig
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub fn put(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A place beside the system, on the same file system.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file of the medium's boot partition.
    pub fn boot(&self, path: &str, text: &str) {
        self.put(&format!("mnt/boot/{path}"), text);
    }

    /// The board's configuration: the disk, the image, and `lines`.
    pub fn conf(&self, lines: &[&str]) {
        let text = format!(
            "INTERNAL_DEVICE_KERNEL={}\nBALENA_IMAGE=balena.img\n{}\n",
            self.disk.name(),
            lines.join("\n")
        );
        self.put("etc/resin-init-flasher.conf", &text);
    }

    /// An executable below `/usr`.
    pub fn program(&self, path: &str, text: &str) {
        let path = self.dir.path().join("upper").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs `argv` in the system to its end.
    pub fn run(&self, argv: &[&str]) -> Output {
        self.run_with(argv, &[])
    }

    pub fn run_with(&self, argv: &[&str], env: &[(&str, &str)]) -> Output {
        self.wait(self.start(argv, env), None)
    }

    /// Runs `argv` until it has made a file.
    pub fn run_until(&self, argv: &[&str], file: &str) -> Output {
        self.wait(self.start(argv, &[]), Some(&self.root().join(file)))
    }

    /// Runs `argv`, of which the flasher is a child, and sends that `signal` as soon as the disk has a boot sector.
    pub fn run_and_end(&self, argv: &[&str], signal: &str) -> Output {
        // Held open, it has the kernel refuse the new table, and the flasher try again: time enough to hit it there.
        tool(&["python3", BLKPG, "add", &self.disk.node, "9", "69632", "2048"]);
        let held = fs::File::open(format!("{}p9", self.disk.node)).unwrap();
        let child = self.start(argv, &[]);
        let end = Instant::now() + INSTALL_TIMEOUT;
        let mut sector = [0xA5; 512];
        // What was there before, then nothing, then the image's.
        while (sector == [0xA5; 512] || sector == [0; 512]) && Instant::now() < end {
            let disk = fs::File::open(&self.disk.file).unwrap();
            std::os::unix::fs::FileExt::read_exact_at(&disk, &mut sector, 0).unwrap();
        }
        let first = tool(&["pgrep", "-P", &child.id().to_string()]);
        tool(&["pkill", &format!("-{signal}"), "-P", first.trim()]);
        drop(held);
        self.wait(child, None)
    }

    /// Waits for its end, or for a file.
    pub fn wait(&self, mut child: Child, until: Option<&Path>) -> Output {
        let end = Instant::now() + INSTALL_TIMEOUT;
        while child.try_wait().unwrap().is_none() {
            // As the kernel would by itself, where it has a parser.
            let _ignored = Command::new("partx").args(["-a", &self.disk.node]).output();
            std::thread::sleep(Duration::from_millis(50));
            let off = until.is_some_and(Path::exists);
            if off || Instant::now() > end {
                let _ignored = child.kill();
                let out = child.wait_with_output().unwrap();
                assert!(off, "it did not end: {}", String::from_utf8_lossy(&out.stderr));
                return out;
            }
        }
        child.wait_with_output().unwrap()
    }

    pub fn start(&self, argv: &[&str], env: &[(&str, &str)]) -> Child {
        // The root is a mount of its own; /proc is that of the new namespace; nothing leads to the machine's sysrq, screen and keyboards.
        let script = "set -e; r=$1; d=$2; shift 2; mount --bind $r $r; \
            mount -t overlay overlay -o lowerdir=/usr,upperdir=$d/upper,workdir=$d/work $r/usr; \
            mount --rbind /dev $r/dev; mount --rbind /sys $r/sys; mount -t proc proc $r/proc; \
            for f in proc/sysrq-trigger dev/tty1; do if [ -e $r/$f ]; then mount --bind /dev/null $r/$f; fi; done; \
            if [ -d $r/sys/class/input ]; then mount -t tmpfs tmpfs $r/sys/class/input; fi; mount -t tmpfs tmpfs $r/tmp; \
            exec chroot $r \"$@\"";
        let mut unshare = Command::new("unshare");
        unshare.args([
            "-m",
            "-p",
            "-f",
            "--kill-child",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
        ]);
        unshare.arg(self.root()).arg(self.dir.path()).args(argv);
        unshare.env_remove("COPAL_LOG").env_remove("CONFIG_PATH").envs(env.iter().copied());
        unshare.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// What the owner has configured.
pub const CONFIG_JSON: &str = concat!(
    "{\"deviceType\": \"generic-amd64\", \"big\": 12345678901234567890.10, ",
    "\"installer\": {\"secureboot\": false}, \"wifi\": {\"x\": [1, 2.0]}}\n"
);
