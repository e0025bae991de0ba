//! A device that can be set back to where it was within milliseconds.
//!
//! A disk in memory with a boot partition, two roots and a state partition, mounted in a namespace of its own; below it the
//! running system, a second view of the same disk from the other root, and a release. A container engine that only pretends
//! runs in there, in a process of its own, so that its hooks can be ended like everything else.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::statvfs::statvfs;

use super::shim::{self, Held, Traced, Watched};
use super::system::{HOOK, VOLUME, boot_file, boot_files, make_system, put};
use super::tree::Tree;
use crate::kit::process::{self, stdout, until};
pub use crate::kit::process::{copy_of_copal, tool};
use crate::kit::stub_engine::Script;

/// How the bootloader of the device is told what to boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Uboot,
    Grub,
    Balena,
}

impl Backend {
    /// The hook that tells it.
    pub const fn hook(self) -> &'static str {
        match self {
            Backend::Uboot => "99-resin-uboot",
            Backend::Grub => "99-resin-grub",
            Backend::Balena => "99-balena-bootloader",
        }
    }
}

/// Of each partition, in MiB.
const PARTITION: u64 = 16;

/// Where the third one begins: 1 MiB, and two before it.
const ROOT_B: u64 = (1 + 2 * PARTITION) << 20;

/// Everything on the device that lasts, and `/run`.
pub const AREAS: [&str; 5] = ["mnt/boot", "mnt/state", "mnt/sysroot/inactive", "mnt/data", "run/copal"];

/// Where hooks of the release can be told to fail.
pub const PLACES: [&str; 7] =
    ["before.d/here", "0-first", "1-next", "81-later", "99-z", "999-last", "after.d/here"];

const SOCKET: &str = "run/balena-host.sock";

/// More than a device takes, for each of some that are made at once. Containers often have 64 MiB of memory for files.
const ROOM: u64 = 256 << 20;

struct Disk {
    node: String,
}

impl Disk {
    fn new(dir: &Path) -> Disk {
        let file = dir.join("disk.raw");
        fs::File::create(&file).unwrap().set_len(80 << 20).unwrap();
        let path = file.to_str().unwrap();
        let labels = ["resin-boot", "resin-rootA", "resin-rootB", "resin-state"];
        let mut table = vec!["sgdisk".to_owned()];
        for (i, label) in labels.iter().enumerate() {
            let n = i + 1;
            table.extend(["-n".into(), format!("{n}:0:+{PARTITION}M"), "-c".into(), format!("{n}:{label}")]);
        }
        table.push(path.to_owned());
        tool(&table.iter().map(String::as_str).collect::<Vec<_>>());
        let disk = Disk { node: tool(&["losetup", "-f", "--show", "-P", path]).trim().to_owned() };
        // The kernel may have no partition parsers.
        let _there = Command::new("partx").args(["-a", &disk.node]).output();
        for (i, label) in labels.iter().enumerate() {
            let part = format!("{}p{}", disk.node, i + 1);
            until("a partition", || Path::new(&part).exists());
            tool(&["mke2fs", "-q", "-F", "-t", "ext4", "-L", label, &part]);
        }
        disk
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _gone = Command::new("partx").args(["-d", &self.node]).output();
        let _gone = Command::new("losetup").args(["-d", &self.node]).output();
    }
}

/// Starts the namespace, mounts everything, and stays.
const START: &str = r#"set -e
r=$1; n=$2; self=$3
mount --bind $r $r
mount --bind $self $r/engine
mount --rbind /dev $r/dev
mount --rbind /sys $r/sys
mount -t proc proc $r/proc
if [ "$4" = efi ]; then mount -t tmpfs tmpfs $r/sys/firmware; mkdir $r/sys/firmware/efi; fi
for t in run tmp mnt/data; do mount -t tmpfs tmpfs $r/$t; done
mount -t ext4 ${n}p1 $r/mnt/boot
mount -t ext4 ${n}p2 $r/mnt/sysroot/active
mount -t ext4 ${n}p3 $r/mnt/sysroot/inactive
mount -t ext4 ${n}p4 $r/mnt/state
for v in other image/root; do
  if [ $v = other ]; then mount --bind $r $r/$v; fi
  for d in dev sys proc run tmp; do mount --rbind $r/$d $r/$v/$d; done
done
mount --rbind $r/mnt $r/image/root/mnt
for d in boot state data; do mount --bind $r/mnt/$d $r/other/mnt/$d; done
mount --bind $r/mnt/sysroot/inactive $r/other/mnt/sysroot/active
mount --bind $r/mnt/sysroot/active $r/other/mnt/sysroot/inactive
: > $r/run/up
# Until whoever has the other end of the pipe is gone.
exec chroot $r /bin/busybox cat
"#;

/// Which system's programs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// On root A, where updates begin.
    Running,
    /// On root B, after a reboot to the new release.
    Rebooted,
}

pub struct Rig {
    pub backend: Backend,
    dir: tempfile::TempDir,
    holder: Child,
    watched: Watched,
    pristine: Tree,
    /// What is in the two systems' own folders.
    systems: BTreeSet<PathBuf>,
    _disk: Disk,
}

impl Rig {
    /// A healthy device on slot A, and a release with hooks at `places` that can be told to fail.
    pub fn new(backend: Backend, places: &[&str]) -> Rig {
        let memory = Path::new("/dev/shm");
        let is_roomy = statvfs(memory).is_ok_and(|v| v.blocks_available() * v.fragment_size() >= ROOM);
        let place = if is_roomy { memory } else { Path::new(env!("CARGO_TARGET_TMPDIR")) };
        let dir = tempfile::Builder::new().prefix("copal-kills-").tempdir_in(place).unwrap();
        let root = dir.path().join("root");
        let copal = dir.path().join("copal");
        // A debug build is mostly names, which only take memory.
        let stripped = Command::new("strip").arg("-o").arg(&copal).arg(env!("CARGO_BIN_EXE_copal")).status();
        if !stripped.is_ok_and(|s| s.success()) {
            copy_of_copal(&copal);
        }
        make_system(&root, &copal, backend, "old");
        let new = root.join("image/root");
        make_system(&new, &copal, backend, "new");
        for name in places {
            put(&new.join("etc/hostapp-update-hooks.d").join(name), HOOK, 0o755);
        }
        for (name, text) in VOLUME {
            put(&root.join("image/boot").join(name), text, 0o755);
        }
        fs::create_dir(root.join("other")).unwrap();
        put(&root.join("engine"), "", 0o755);
        let mut script = Script::new("/mnt/sysroot/inactive/balena");
        script.boot = "/image/boot".into();
        script.hooks = ["chroot", "/image/root", "/usr/bin/hostapp-update-hooks"].map(str::to_owned).to_vec();
        put(&root.join("script.json"), serde_json::to_string(&script).unwrap(), 0o644);

        let disk = Disk::new(dir.path());
        let efi = if backend == Backend::Grub { "efi" } else { "" };
        let holder = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", START, "sh"])
            .arg(&root)
            .arg(&disk.node)
            .arg(std::env::current_exe().unwrap())
            .arg(efi)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut rig = Rig {
            backend,
            dir,
            holder,
            watched: Watched::default(),
            pristine: Tree::default(),
            systems: BTreeSet::new(),
            _disk: disk,
        };
        until("the namespace", || rig.at("run/up").exists());
        rig.watch();
        rig.furnish();
        rig.pristine = rig.tree();
        rig.systems = rig.in_systems();
        rig
    }

    fn watch(&mut self) {
        let mut devices = BTreeSet::new();
        for area in ["mnt/boot", "mnt/state", "mnt/sysroot/inactive", "mnt/sysroot/active", "mnt/data", "run"]
        {
            devices.insert(fs::metadata(self.at(area)).unwrap().dev());
        }
        self.watched = Watched { devices };
    }

    /// What a device has that was never updated.
    fn furnish(&self) {
        let boot = self.at("mnt/boot");
        for (name, in_old) in boot_files() {
            if in_old {
                put(&boot.join(name), boot_file(name, "old"), 0o644);
            }
        }
        put(&boot.join("config.json"), "{\"uuid\":\"7\"}\n", 0o644);
        put(&boot.join("device-type.json"), "{}\n", 0o644);
        match self.backend {
            Backend::Uboot => {
                let text = "# kept\nresin_root_part=2\nupgrade_available=0\nfdtfile=a.dtb\n";
                put(&boot.join("resinOS_uEnv.txt"), text, 0o644);
                // From before; not over any limit.
                put(&boot.join("bootcount.env"), "bootcount=1\n\0", 0o644);
            }
            Backend::Grub => put(&boot.join("EFI/BOOT/grubenv"), block("2"), 0o644),
            Backend::Balena => put(&boot.join("bootenv"), block("A"), 0o644),
        }
        put(&self.at("mnt/sysroot/active/counter"), "4\n", 0o644);
        put(&self.at("mnt/sysroot/inactive/counter"), "3\n", 0o644);
        fs::create_dir_all(self.at("mnt/sysroot/inactive/balena")).unwrap();
        self.archive();
    }

    /// An image archive that can be read; what is in it is the engine's affair.
    fn archive(&self) {
        let dir = self.dir.path().join("archive");
        let name = |file: &str| tool(&["sha256sum", file]).split(' ').next().unwrap().to_owned();
        let at = |file: &str| dir.join(file).to_str().unwrap().to_owned();
        put(&dir.join("layer/boot/init"), "a layer", 0o644);
        tool(&["tar", "-C", &at("layer"), "-cf", &at("layer.tar"), "."]);
        let layers = serde_json::json!([format!("sha256:{}", name(&at("layer.tar")))]);
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux", "config": {}, "rootfs": { "type": "layers", "diff_ids": layers },
        });
        put(&dir.join("config"), config.to_string(), 0o644);
        let config = format!("{}.json", name(&at("config")));
        fs::rename(at("config"), at(&config)).unwrap();
        let manifest = serde_json::json!([{ "Config": config, "RepoTags": ["hostapp:latest"], "Layers": ["layer.tar"] }]);
        put(&dir.join("manifest.json"), manifest.to_string(), 0o644);
        let to = self.at("mnt/data/os.tar");
        tool(&["tar", "-C", &at(""), "-cf", to.to_str().unwrap(), &config, "layer.tar", "manifest.json"]);
    }

    /// A path of the device, as the test sees it.
    pub fn at(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(path)
    }

    /// Everything that lasts, as it is.
    pub fn tree(&self) -> Tree {
        Tree::of(&self.at(""), &AREAS)
    }

    pub fn pristine(&self) -> &Tree {
        &self.pristine
    }

    /// Sets everything back to what it was then, and takes away what is mounted since.
    pub fn restore(&self, tree: &Tree) {
        self.unmount_new();
        tree.restore(&self.at(""), &AREAS);
    }

    /// Has the release's hook at this place fail.
    pub fn fail_at(&self, place: &str) {
        put(&self.at("mnt/data/fail").join(place), "", 0o644);
    }

    /// No hook fails any more.
    pub fn mend(&self) {
        let _none = fs::remove_dir_all(self.at("mnt/data/fail"));
        let _none = fs::remove_file(self.at("mnt/data/failed"));
    }

    /// Where something is mounted on the slot.
    pub fn mounted(&self) -> Vec<String> {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.holder.id())).unwrap();
        let points = table.lines().filter_map(|l| l.split(' ').nth(4));
        points.filter(|p| p.starts_with("/mnt/sysroot/inactive/")).map(str::to_owned).collect()
    }

    /// Takes that away.
    pub fn unmount_new(&self) {
        for point in self.mounted().iter().rev() {
            let mut words = self.enter(View::Running);
            words.extend(["busybox", "umount", "-l", point].map(str::to_owned));
            tool(&words.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }

    /// What a power cut takes away.
    pub fn reboot(&self) {
        self.unmount_new();
        let run = self.at("run/copal");
        if run.exists() {
            fs::remove_dir_all(run).unwrap();
        }
    }

    /// A program of the device, with the engine beside it, killed after the change number `kill_after` if that is given.
    pub fn run(&self, view: View, argv: &[&str], kill_after: Option<usize>) -> (Traced, String) {
        self.run_each(view, argv, kill_after, &mut |_| {})
    }

    /// The same, with a look at the device after each change.
    pub fn run_each(
        &self,
        view: View,
        argv: &[&str],
        kill_after: Option<usize>,
        each: &mut dyn FnMut(&str),
    ) -> (Traced, String) {
        let engine = self.engine();
        let mut all = self.enter(view);
        all.extend(argv.iter().map(|s| (*s).to_owned()));
        let words: Vec<&str> = all.iter().map(String::as_str).collect();
        let log = self.dir.path().join("said");
        let file = fs::File::create(&log).unwrap();
        let held = Held::new(&words, |command| {
            set(command).env("COPAL_LOG", "info").stdout(file.try_clone().unwrap()).stderr(file);
        });
        let traced = shim::run(held, Some(engine), &self.watched, kill_after, each);
        (traced, fs::read_to_string(log).unwrap())
    }

    /// The same without looking at what it does: its exit status.
    pub fn run_freely(&self, view: View, argv: &[&str]) -> (Option<i32>, String) {
        let mut engine = self.engine();
        let mut all = self.enter(view);
        all.extend(argv.iter().map(|s| (*s).to_owned()));
        let mut command = Command::new(&all[0]);
        set(command.args(&all[1..])).env("COPAL_LOG", "info").stdin(Stdio::null());
        let out = process::wait(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        engine.kill().unwrap();
        engine.wait().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        (out.status.code(), said)
    }

    /// The files of these paths on root B, as a power cut now would leave them: nothing but what has reached the disk, with the journal
    /// replayed, and links followed. By tools that know nothing of mounts.
    pub fn after_a_cut<const N: usize>(&self, paths: [&str; N]) -> [Option<String>; N] {
        let (disk, root) = (self.dir.path().join("disk.raw"), self.dir.path().join("rootB.raw"));
        let mut from = fs::File::open(disk).unwrap();
        from.seek(SeekFrom::Start(ROOT_B)).unwrap();
        let mut to = fs::File::create(&root).unwrap();
        io::copy(&mut from.take(PARTITION << 20), &mut to).unwrap();
        let root = root.to_str().unwrap();
        // 1: it was repaired, which here is the replay.
        let checked = Command::new("e2fsck").args(["-fy", root]).output().unwrap();
        assert!(matches!(checked.status.code(), Some(0 | 1)), "{}", stdout(&checked));
        paths.map(|path| {
            let out = Command::new("debugfs").args(["-R", &format!("cat {path}"), root]).output().unwrap();
            Some(stdout(&out)).filter(|text| !text.is_empty())
        })
    }

    fn in_systems(&self) -> BTreeSet<PathBuf> {
        let folders = ["root", "root/image/root"].map(|f| self.dir.path().join(f)).into_iter();
        folders.flat_map(|f| fs::read_dir(f).unwrap()).map(|e| e.unwrap().path()).collect()
    }

    /// Nobody has left anything where he was working.
    pub fn assert_tidy(&self) {
        let found = self.in_systems();
        let new: Vec<_> = found.difference(&self.systems).take(4).collect();
        assert!(new.is_empty(), "programs of the device have left {new:?}");
    }

    /// What the engine has said that ran last: nothing, unless something went wrong in it.
    pub fn engine_log(&self) -> String {
        fs::read_to_string(self.dir.path().join("engine.log")).unwrap_or_default()
    }

    fn enter(&self, view: View) -> Vec<String> {
        let holder = self.holder.id().to_string();
        let mut words = ["nsenter", "-t", &holder, "-m", "-r", "-w", "--"].map(str::to_owned).to_vec();
        if view == View::Rebooted {
            words.extend(["chroot", "/other"].map(str::to_owned));
        }
        words
    }

    fn engine(&self) -> Child {
        let socket = self.at(SOCKET);
        let _old = fs::remove_file(&socket);
        let mut command = Command::new("nsenter");
        command.args(self.enter(View::Running).iter().skip(1));
        command.args(["/engine", "--exact", ENGINE, "--nocapture"]);
        let log = fs::File::create(self.dir.path().join("engine.log")).unwrap();
        let child = set(&mut command)
            .env("COPAL_TEST_ENGINE", "/script.json")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        until("the engine", || socket.exists());
        child
    }
}

fn set(command: &mut Command) -> &mut Command {
    // Built to measure coverage, each program leaves megabytes where it is: thousands of times, in memory that the disk needs.
    command
        .env_clear()
        .env("LLVM_PROFILE_FILE", "/dev/null")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
}

/// The test in which this program is the engine that [`Rig`] starts in the device.
const ENGINE: &str = "kills::always_read::the_device_tree_of_the_slot_is_there_after_every_change";

/// Serves as the engine where it is told to, until it is killed; whether it was.
pub fn served() -> bool {
    let Some(script) = std::env::var_os("COPAL_TEST_ENGINE") else { return false };
    let script = serde_json::from_slice(&fs::read(script).unwrap()).unwrap();
    crate::kit::stub_engine::run(&Path::new("/").join(SOCKET), script);
    true
}

/// An environment block with a selection.
fn block(root: &str) -> Vec<u8> {
    let mut text = format!(
        "# GRUB Environment Block\nresin_root_part={root}\nkept=yes\nbootcount=0\nupgrade_available=0\n"
    );
    text.push_str(&"#".repeat(1024 - text.len()));
    text.into_bytes()
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _gone = self.holder.kill();
        let _reaped = self.holder.wait();
    }
}
