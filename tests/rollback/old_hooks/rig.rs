//! A device with an old system in the slot that is not running, in namespaces of its own.
//!
//! As on a device, its mounts are shared: what is mounted below them shows up in every other copy, such as those that services
//! have. One such copy is watched, too.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use copal::config::paths::Paths;
use copal::rollback::chroot;
use copal::sys::log;

pub use crate::kit::process::{stderr, stdout, until, wait};

/// Starts the namespaces, mounts everything, and stays.
const START: &str = r#"set -e
r=$1; d=$2
mount --bind $r $r
mount -t overlay overlay -o lowerdir=/usr,upperdir=$d/upper,workdir=$d/work $r/usr
mount --rbind /dev $r/dev
mount --rbind /sys $r/sys
mount -t proc proc $r/proc
if [ -e $r/proc/sysrq-trigger ]; then mount --bind /dev/null $r/proc/sysrq-trigger; fi
for t in tmp run var; do mount -t tmpfs tmpfs $r/$t; done
for p in boot state data sysroot/active sysroot/inactive; do mount --bind $d/parts/$p $r/mnt/$p; done
cd $r; pivot_root . old; umount -l /old
exec env -i PATH=/usr/bin:/usr/sbin chroot . sh -c '
    mount --make-rshared /
    unshare -m --propagation slave sh -c "touch /run/watched; while :; do sleep 1000; done" &
    echo $! > /run/watcher
    touch /run/up
    while :; do sleep 1000; done'
"#;

/// Mounts the root of a slot where the engine keeps its layers, as mobynit does; read-only where a test wants that, as newer ones
/// do.
const INIT: &str = r#"#!/bin/sh
set -e
test "$1" = -sysroot
top=$2/balena/overlay2/top
mkdir -p "$top/merged"
echo "mounting $2" >&2
if [ -e "$2/read-only" ]; then
    mount -t overlay overlay -o "lowerdir=$top/diff:$top/low" "$top/merged"
else
    mount -t overlay overlay -o "lowerdir=$top/low,upperdir=$top/diff,workdir=$top/work" "$top/merged"
fi
printf %s "$top/merged"
"#;

/// The runner of the old release. It takes down what it sees.
const RUNNER: &str = r#"#!/bin/sh
echo "[old][INFO] begins"
env | sort > /mnt/state/seen-env
cat /proc/self/mountinfo > /mnt/state/seen-mounts
pwd > /mnt/state/seen-folder
cat > /mnt/state/seen-input
for folder in /tmp /var/cache; do echo probe > $folder/probe && echo $folder >> /mnt/state/seen-writable; done
if [ -e /mnt/data/hook.sh ]; then . /mnt/data/hook.sh; fi
echo "[old][WARN] has run"
"#;

/// Folders of the old root.
const FOLDERS: [&str; 14] = [
    "bin",
    "dev",
    "run",
    "proc",
    "sys",
    "mnt/boot",
    "mnt/state",
    "mnt/data",
    "mnt/sysroot/active",
    "mnt/sysroot/inactive",
    "tmp",
    "var/cache",
    "usr/bin",
    "etc",
];

/// Where the old root is mounted.
pub const MERGED: &str = "/mnt/sysroot/inactive/balena/overlay2/top/merged";

pub struct Rig {
    dir: tempfile::TempDir,
    holder: Child,
    first: u32,
    mounts: String,
    watched: String,
}

impl Rig {
    pub fn new() -> Rig {
        Rig::made(|_| ())
    }

    /// With something changed before it is mounted: in the folder `root`, or in one of those of `parts`.
    pub fn made(change: impl FnOnce(&Path)) -> Rig {
        let dir = tempfile::Builder::new().prefix("old-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let top = dir.path();
        for folder in ["dev", "sys", "proc", "tmp", "run", "etc", "usr", "var", "old"] {
            fs::create_dir_all(top.join("root").join(folder)).unwrap();
        }
        for part in ["boot", "state", "data", "sysroot/active", "sysroot/inactive"] {
            fs::create_dir_all(top.join("root/mnt").join(part)).unwrap();
            fs::create_dir_all(top.join("parts").join(part)).unwrap();
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), top.join("root").join(name)).unwrap();
        }
        for name in ["upper/bin", "work"] {
            fs::create_dir_all(top.join(name)).unwrap();
        }
        fs::hard_link(std::env::current_exe().unwrap(), top.join("upper/bin/act")).unwrap();
        executable(&top.join("parts/sysroot/active/current/boot/init"), INIT);
        old_system(&top.join("parts/sysroot/inactive/balena/overlay2/top"));
        change(top);
        let holder = Command::new("unshare")
            .args(["-m", "-p", "-f", "--kill-child", "--propagation", "private", "sh", "-c", START, "sh"])
            .args([top.join("root").as_path(), top])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let id = holder.id();
        let children = format!("/proc/{id}/task/{id}/children");
        let mut first = 0;
        until("the namespaces", || {
            let text = fs::read_to_string(&children).unwrap_or_default();
            first = text.split_whitespace().next().and_then(|t| t.parse().ok()).unwrap_or(0);
            let run = format!("/proc/{first}/root/run");
            first != 0 && ["up", "watched"].iter().all(|f| Path::new(&run).join(f).exists())
        });
        let mut rig = Rig { dir, holder, first, mounts: String::new(), watched: String::new() };
        rig.remember();
        rig
    }

    /// From now on, these are the mounts that there should be.
    pub fn remember(&mut self) {
        (self.mounts, self.watched) = (self.mounts(), self.watched());
    }

    /// Of every process that has no namespace of its own.
    pub fn mounts(&self) -> String {
        fs::read_to_string(format!("/proc/{}/mountinfo", self.first)).unwrap()
    }

    fn watched(&self) -> String {
        self.ok(&["sh", "-c", "cat /proc/$(cat /run/watcher)/mountinfo"])
    }

    /// Nothing is mounted that was not mounted before, and nothing is missing.
    pub fn assert_tidy(&self, why: &str) {
        assert_eq!(self.mounts(), self.mounts, "{why}");
        assert_eq!(self.watched(), self.watched, "{why}");
    }

    /// Nobody has the old root any more, in whatever namespace.
    pub fn assert_unused(&self, why: &str) {
        let held = "for p in /proc/[0-9]*; do grep -l overlay2/top/merged $p/mountinfo; done 2>/dev/null";
        let mut left = String::new();
        until("the end of the last namespace", || {
            left = stdout(&self.run(&["sh", "-c", held]));
            left.is_empty()
        });
        assert_eq!(left, "", "{why}");
    }

    /// A path of the device, as the test sees it.
    pub fn at(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.first)).join(path.trim_start_matches('/'))
    }

    pub fn put(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    pub fn has(&self, path: &str) -> bool {
        self.at(path).symlink_metadata().is_ok()
    }

    /// What the old hooks do besides.
    pub fn hook(&self, text: &str) {
        self.put("mnt/data/hook.sh", text);
    }

    /// A folder of the old root's own layer.
    pub fn old(&self, path: &str) -> PathBuf {
        self.dir.path().join("parts/sysroot/inactive/balena/overlay2/top/low").join(path)
    }

    /// A command on the device.
    pub fn command(&self, argv: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.first.to_string(), "-m", "-p", "-r", "-w", "--"]).args(argv);
        command.env_clear().env("PATH", "/usr/bin:/usr/sbin");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, argv: &[&str]) -> Output {
        wait(self.command(argv).spawn().unwrap())
    }

    /// A command that must succeed; its standard output.
    pub fn ok(&self, argv: &[&str]) -> String {
        let out = self.run(argv);
        assert!(out.status.success(), "{argv:?}: {}", stderr(&out));
        stdout(&out)
    }

    /// The program, not started yet.
    pub fn program(&self) -> Command {
        let mut command = self.command(&[
            "act",
            "--exact",
            "old_hooks::ends::a_signal_is_obeyed_when_all_is_undone",
            "--nocapture",
        ]);
        command.env("COPAL_LOG", "debug").env(DEVICE, "1");
        command
    }

    /// Runs the old hooks, which must succeed; the log.
    pub fn succeeds(&self) -> String {
        let log = stderr(&wait(self.program().spawn().unwrap()));
        assert!(log.contains("RESULT ok\n"), "{log}");
        log
    }

    /// Runs the old hooks, which must not succeed; the log, the last line of which is the error.
    pub fn fails(&self) -> String {
        let log = stderr(&wait(self.program().spawn().unwrap()));
        assert!(log.contains("RESULT error "), "{log}");
        log
    }

    /// The program, whose hook waits to be let go.
    pub fn held(&self) -> Child {
        self.hook("touch /mnt/data/held; while [ -e /mnt/data/held ]; do sleep 0.05; done; echo let go");
        let child = self.program().spawn().unwrap();
        until("the hook", || self.has("mnt/data/held"));
        child
    }

    pub fn let_go(&self) {
        fs::remove_file(self.at("mnt/data/held")).unwrap();
    }

    /// The number of the program on the device.
    pub fn pid(&self) -> String {
        self.ok(&["pgrep", "-x", "act"]).trim().to_owned()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // With the first process of the namespace goes every other.
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}

/// The old root in its layer.
fn old_system(top: &Path) {
    for folder in FOLDERS {
        fs::create_dir_all(top.join("low").join(folder)).unwrap();
    }
    for folder in ["diff", "work"] {
        fs::create_dir_all(top.join(folder)).unwrap();
    }
    fs::copy("/bin/busybox", top.join("low/bin/busybox")).unwrap();
    for name in ["sh", "cat", "env", "sort", "touch", "sleep", "mount", "ls", "kill", "mkdir"] {
        symlink("busybox", top.join("low/bin").join(name)).unwrap();
    }
    executable(&top.join("low/usr/bin/hostapp-update-hooks"), RUNNER);
}

pub fn executable(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

const DEVICE: &str = "COPAL_TEST_DEVICE";

/// Whether this program is on the device of a rig.
pub fn is_device() -> bool {
    std::env::var_os(DEVICE).is_some()
}

/// Runs the old hooks of the device that this process is on, and says on standard error what came of it.
pub fn act() {
    log::start(log::Voice::Legacy("rollback-health"));
    let limit = std::env::var("LIMIT_MS").ok().map(|ms| Duration::from_millis(ms.parse().unwrap()));
    let result = chroot::run_old_hooks_within(&Paths::default(), limit.unwrap_or(chroot::RUN_LIMIT));
    match result {
        Ok(()) => eprintln!("RESULT ok"),
        Err(e) => eprintln!("RESULT error {:?} {e}", e.effect()),
    }
}
