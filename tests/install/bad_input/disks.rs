//! The target, its failures, `config.json`, the boot partition, the board's programs, in the order of the table.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Case, Make};
use crate::kit::storage_daemon::Daemon;
use crate::rig::{Disk, Rig, image, tool};

/// Offsets of files count in 64 bits.
const MIB: u64 = 1 << 20;

pub const SITUATIONS: &[(&str, &[Make])] = &[
    ("sector size of the image is not the disk's", &[|c| disk(c, &["-P", "-b", "4096"])]),
    (
        "image larger than the target",
        &[|c| {
            OpenOptions::new().write(true).open(&c.rig.disk.file).unwrap().set_len(16 * MIB).unwrap();
            disk(c, &["-P"]);
        }],
    ),
    ("target read-only", &[|c| disk(c, &["-P", "-r"])]),
    ("target mounted", &[mounted]),
    ("target in use as swap", &[swapped]),
    ("target held", &[held]),
    ("only the installation medium there", &[only_the_medium]),
    ("target vanishes while it is written", &[pulled]),
    ("input/output error of the target", &[bad_sector]),
    ("target does not keep what is written", &[forgetful]),
    (
        "`config.json` is not JSON",
        &[
            |c| config_json(c, b"{\"deviceType\": \n  x}"),
            |c| config_json(c, b""),
            |c| config_json(c, b"{} {}"),
        ],
    ),
    ("`config.json` is not an object", &[|c| config_json(c, b"[1, 2]"), |c| config_json(c, b"\"text\"")]),
    ("NUL bytes in `config.json`", &[|c| config_json(c, &[0; 512]), |c| config_json(c, b"{}\n\0\0\0")]),
    (
        "`config.json` of 10 MB",
        &[|c| config_json(c, format!("{{\"x\": \"{}\"}}", "y".repeat(10_000_000)).as_bytes())],
    ),
    (
        "device tree that the bootloader needs, and that is not on the medium",
        &[|c| {
            c.rig.put("etc/copal/update.conf", "DEVICE_TREE_REQUIRED=1\n");
            c.rig.boot("extra_uEnv.txt", "custom_fdt_file=own.dtb\n");
            c.object = "own.dtb".into();
        }],
    ),
    (
        "boot files larger than the boot partition",
        &[|c| {
            c.rig.boot("splash/huge.png", &"x".repeat(9 << 20));
            c.object = "/mnt/boot".into();
        }],
    ),
    (
        "boot partition full",
        &[|c| {
            // Fits an empty partition, but not beside what the image has in it.
            c.rig.boot("splash/huge.png", &"x".repeat(7 << 20));
            c.object = "/tmp/internal_boot".into();
        }],
    ),
    (
        "`resin-init-board` fails",
        &[|c| program(c, "resin-init-board", "#!/bin/sh\necho no such board >&2\nexit 7\n")],
    ),
    (
        "`resin-init-flasher-board` fails",
        &[
            |c| program(c, "resin-init-flasher-board", "echo no interpreter is named here\nexit 5\n"),
            |c| program(c, "resin-init-flasher-board", "#!/bin/sh\nkill -9 $$\n"),
        ],
    ),
    (
        "board program silent for minutes, with a limit",
        &[|c| {
            // That it is warned about, and otherwise waited for, is in tests/install/programs.
            program(c, "resin-init-flasher-board", "#!/bin/sh\nsleep 1000\n");
            c.env.push(("COPAL_BOARD_PROGRAM_TIMEOUT", "1"));
        }],
    ),
    (
        "not root",
        &[|c| {
            c.wrapper = ["setpriv", "--reuid=65534", "--clear-groups"].map(str::to_owned).to_vec();
            c.object = "root".into();
        }],
    ),
];

/// The internal disk with other options.
fn disk(c: &mut Case, options: &[&str]) {
    c.rig.disk = Disk::over(&c.rig.disk.file, options);
    c.rig.conf(&[]);
    c.object = c.rig.disk.node.clone();
}

fn mounted(c: &mut Case) {
    let node = c.rig.disk.node.clone();
    tool(&["mke2fs", "-q", "-F", "-t", "ext4", &node]);
    // In the mount namespace of the program; read-only, so that mounting writes nothing.
    let script = "mount -o ro \"$0\" /var && exec \"$@\"";
    c.wrapper = ["sh", "-c", script, &node].map(str::to_owned).to_vec();
    c.object = format!("{node} is mounted at /var");
}

fn swapped(c: &mut Case) {
    let node = c.rig.disk.node.clone();
    // The kernel writes to it when memory is short. So little of the disk is swap, and the rest is compared.
    c.skipped = 1 << 20;
    tool(&["mkswap", &node, &(c.skipped >> 10).to_string()]);
    tool(&["swapon", "-p", "0", &node]);
    c.afterwards(&["swapoff", &node]);
    c.object = node;
}

fn held(c: &mut Case) {
    let node = c.rig.disk.node.clone();
    let upper = tool(&["losetup", "-f", "--show", &node]).trim().to_owned();
    c.afterwards(&["losetup", "-d", &upper]);
    c.object = format!("{node} is held by {}", upper.strip_prefix("/dev/").unwrap());
}

/// The system itself is on the only disk that the patterns name.
fn only_the_medium(c: &mut Case) {
    let (root, file) = (c.rig.root(), c.rig.beside("medium.raw"));
    // The program, which is large before it is stripped, stays in the layer of /usr.
    std::fs::rename(root.join("copal"), c.rig.beside("upper/copal")).unwrap();
    c.remove("resin-init-flasher");
    symlink("usr/copal", root.join("resin-init-flasher")).unwrap();
    File::create(&file).unwrap().set_len(96 * MIB).unwrap();
    let medium = Disk::over(&file, &[]);
    c.rig.conf(&[&format!("INTERNAL_DEVICE_KERNEL={}", medium.name())]);
    let root = root.to_str().unwrap();
    tool(&["mke2fs", "-q", "-F", "-t", "ext4", "-d", root, &medium.node]);
    tool(&["mount", "-o", "ro", &medium.node, root]);
    c.afterwards(&["umount", root]);
    c.object = format!("{} ", medium.node);
    c.others.push(medium);
}

/// An image with 14 MiB of data in its root partition: it takes a while to write.
fn dense(c: &mut Case) {
    let mut bytes = std::fs::read(image()).unwrap();
    fastrand::Rng::with_seed(1).fill(&mut bytes[10 << 20..24 << 20]);
    c.remove("opt/balena.img");
    c.rig.put("opt/balena.img", bytes);
}

/// While the image is being written, the disk loses all its blocks, as a stick that is pulled.
fn pulled(c: &mut Case) {
    dense(c);
    c.wrapper = ["nice", "-n", "19"].map(str::to_owned).to_vec();
    c.object = c.rig.disk.node.clone();
    c.content = c.rig.beside("pulled.raw");
    let content = c.content.clone();
    c.during = Some(Box::new(move |rig, unshare| {
        let flasher = stop_when_writing(rig, unshare);
        std::fs::copy(&rig.disk.file, content).unwrap();
        OpenOptions::new().write(true).open(&rig.disk.file).unwrap().set_len(0).unwrap();
        tool(&["losetup", "-c", &rig.disk.node]);
        kill(flasher, Signal::SIGCONT).unwrap();
    }));
}

/// Waits until data has been written, and stops the program there.
fn stop_when_writing(rig: &Rig, unshare: u32) -> Pid {
    let (disk, end) = (File::open(&rig.disk.file).unwrap(), Instant::now() + Duration::from_secs(60));
    let mut seen = [0xA5; 512];
    while seen == [0xA5; 512] {
        assert!(Instant::now() < end, "nothing is written");
        std::thread::sleep(Duration::from_micros(100));
        disk.read_exact_at(&mut seen, 10 * MIB).unwrap();
    }
    let flasher = child_of(unshare);
    kill(flasher, Signal::SIGSTOP).unwrap();
    // A write that has begun comes to its end first.
    while !all_stopped(flasher) {
        assert!(Instant::now() < end, "it does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
    flasher
}

fn all_stopped(process: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let mut stats = threads.map(|t| std::fs::read_to_string(t.path().join("stat")).unwrap_or_default());
    stats.all(|s| s.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T')))
}

/// The one process that this one has started.
fn child_of(parent: u32) -> Pid {
    let is_child = |stat: &Path| {
        let text = std::fs::read_to_string(stat).ok()?;
        let after_name = text.rsplit_once(") ")?.1;
        (after_name.split(' ').nth(1)? == parent.to_string()).then_some(())
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let mut found = pids.filter(|pid| is_child(&PathBuf::from(format!("/proc/{pid}/stat"))).is_some());
    Pid::from_raw(found.next().expect("a child"))
}

/// Writes to one sector of the root partition's superblock fail.
fn bad_sector(c: &mut Case) {
    let sector = (9 * MIB + 1024) / 512;
    let rules = format!(
        "[inject-error]\nevent = \"none\"\niotype = \"write\"\nsector = \"{sector}\"\nerrno = \"5\"\n"
    );
    let daemon = match Daemon::start(&c.rig.disk.file, &rules) {
        Ok(daemon) => daemon,
        Err(why) => {
            c.not_run = Some(why);
            return;
        }
    };
    let mut disk = Disk::over(&daemon.export, &["-P"]);
    disk.file.clone_from(&c.rig.disk.file);
    c.rig.disk = disk;
    c.rig.conf(&[]);
    c.object = c.rig.disk.node.clone();
    c.below = Some(daemon);
}

/// Somebody else writes a byte of every MiB but the first, again and again: whatever was written is soon another thing.
fn forgetful(c: &mut Case) {
    let disk = OpenOptions::new().write(true).open(&c.rig.disk.file).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            for mib in 1..31 {
                disk.write_all_at(b"!", mib * MIB + 500_000).unwrap();
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    c.undo.push(Box::new(Writer { stop, thread: Some(thread) }));
    c.wrapper = ["nice", "-n", "19"].map(str::to_owned).to_vec();
    c.object = c.rig.disk.node.clone();
}

/// Ends with the situation.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ended = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn config_json(c: &mut Case, bytes: &[u8]) {
    c.rig.put("mnt/boottmp/config.json", bytes);
    c.object = "/mnt/boottmp/config.json".into();
}

fn program(c: &mut Case, name: &str, text: &str) {
    c.rig.program(&format!("bin/{name}"), text);
    c.object = format!("/usr/bin/{name}");
}
