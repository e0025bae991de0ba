//! A device of its own: a root file system with the host's programs, a disk with two slots, and a container engine.
//!
//! Everything of it lives in its own mount and PID namespaces, where `reboot(2)` ends the namespace only. A process in there
//! stands for the system's first one; commands are run beside it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::image::Release;
use crate::kit::needs;
pub use crate::kit::process::{copy_of_copal, stderr, stdout, tool, until, wait};

/// Whether this machine has what these updates are of, an engine among it; says so where it has not.
pub fn can_run(test: &str) -> bool {
    needs::can_run(test)
        && ["dockerd", "docker-registry", "runc"].iter().all(|program| needs::has(test, program))
}

/// Longer than anything here takes, on a machine that has much else to do.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(300);

/// Whether somebody listens there. Nobody does who is met by his own connection: that may be given the very port it asks for.
fn listens(port: u16) -> bool {
    let there = std::net::TcpStream::connect(("127.0.0.1", port));
    there.is_ok_and(|s| s.local_addr().unwrap().port() != port)
}

struct Disk {
    node: String,
}

impl Disk {
    /// Partitions as images have them: boot, the two roots, state, data; all ext4, which every kernel can mount.
    fn new(dir: &Path) -> Disk {
        let file = dir.join("disk.raw");
        fs::File::create(&file).unwrap().set_len(800 << 20).unwrap();
        let path = file.to_str().unwrap();
        let mut table = vec!["sgdisk".to_owned()];
        let sizes = [16, 200, 200, 16, 200];
        let labels = ["resin-boot", "resin-rootA", "resin-rootB", "resin-state", "resin-data"];
        for (i, (size, label)) in sizes.iter().zip(labels).enumerate() {
            let n = i + 1;
            table.extend(["-n".into(), format!("{n}:0:+{size}M"), "-c".into(), format!("{n}:{label}")]);
        }
        table.push(path.to_owned());
        tool(&table.iter().map(String::as_str).collect::<Vec<_>>());
        let disk = Disk { node: tool(&["losetup", "-f", "--show", "-P", path]).trim().to_owned() };
        // The kernel may have no partition parsers.
        drop(Command::new("partx").args(["-a", &disk.node]).output());
        for (i, label) in labels.iter().enumerate() {
            let part = disk.part(i + 1);
            until("a partition", || Path::new(&part).exists());
            tool(&["mke2fs", "-q", "-F", "-t", "ext4", "-L", label, &part]);
        }
        disk
    }

    fn part(&self, number: usize) -> String {
        format!("{}p{number}", self.node)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("partx").args(["-d", &self.node]).output());
        drop(Command::new("losetup").args(["-d", &self.node]).output());
    }
}

/// The folders that make the device's `/usr`: the machine's, and those in which engine and registry are unpacked.
fn usr() -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = vec![Path::new("/usr").to_owned()];
    for program in ["dockerd", "docker-registry", "runc"] {
        let found = std::env::split_paths(&path).find(|folder| folder.join(program).exists());
        let usr =
            found.as_deref().and_then(Path::parent).filter(|usr| usr.is_absolute() && *usr != Path::new("/"));
        if let Some(usr) = usr.filter(|usr| !usr.starts_with("/usr") && !all.iter().any(|a| a == usr)) {
            all.push(usr.to_owned());
        }
    }
    let all: Vec<_> = all.iter().map(|usr| usr.display().to_string()).collect();
    all.join(":")
}

/// Starts the namespaces, mounts everything, and stays.
const START: &str = r#"set -e
r=$1; d=$2; n=$3; usr=$4; shift 4
mount --bind $r $r
mount -t overlay overlay -o lowerdir=$usr,upperdir=$d/upper,workdir=$d/work $r/usr
mount --rbind /dev $r/dev
mount --rbind /sys $r/sys
mount -t proc proc $r/proc
if [ -e $r/proc/sysrq-trigger ]; then mount --bind /dev/null $r/proc/sysrq-trigger; fi
for t in tmp run var; do mount -t tmpfs tmpfs $r/$t; done
mkdir -p $r/var/lib $r/var/log; ln -s ../run $r/var/run
mount -t ext4 ${n}p1 $r/mnt/boot
mount -t ext4 ${n}p2 $r/mnt/sysroot/active
mount -t ext4 ${n}p3 $r/mnt/sysroot/inactive
mount -t ext4 ${n}p4 $r/mnt/state
mount -t ext4 ${n}p5 $r/mnt/data
mkdir -p $r/old $r/mnt/data/resin-data
cd $r; pivot_root . old; umount -l /old
exec env -i PATH=/usr/bin:/usr/sbin chroot . sh -c 'touch /run/up; while :; do sleep 1000; done'
"#;

/// The device.
pub struct Rig {
    pub dir: tempfile::TempDir,
    holder: Child,
    first: u32,
    engine: Option<Child>,
    disk: Disk,
}

impl Rig {
    /// A device on slot A, which was installed as its 4th, whose hooks set the bootloader back as all releases' do.
    pub fn new() -> Rig {
        let dir = tempfile::Builder::new().prefix("update-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let root = dir.path().join("root");
        let folders = [
            "dev",
            "sys",
            "proc",
            "tmp",
            "mnt/boot",
            "mnt/state",
            "mnt/data",
            "mnt/sysroot/active",
            "mnt/sysroot/inactive",
            "run",
            "etc",
            "usr",
            "var",
            "root",
        ];
        for name in folders {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), root.join(name)).unwrap();
        }
        for name in ["upper/bin", "work"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
        fs::write(root.join("etc/group"), "root:x:0:\n").unwrap();
        fs::write(root.join("etc/resolv.conf"), "").unwrap();
        let copal = dir.path().join("upper/bin/copal");
        copy_of_copal(&copal);
        symlink("copal", dir.path().join("upper/bin/hostapp-update")).unwrap();
        let disk = Disk::new(dir.path());
        let holder = Command::new("unshare")
            .args(["-m", "-p", "-f", "--kill-child", "--propagation", "private", "sh", "-c", START, "sh"])
            .args([&root, dir.path(), Path::new(&disk.node), Path::new(&usr())])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let id = holder.id();
        let children = format!("/proc/{id}/task/{id}/children");
        let mut first = 0;
        until("the namespaces", || {
            let text = fs::read_to_string(&children).unwrap_or_default();
            first = text.split_whitespace().next().and_then(|t| t.parse().ok()).unwrap_or(0);
            first != 0 && Path::new(&format!("/proc/{first}/root/run/up")).exists()
        });
        let rig = Rig { dir, holder, first, engine: None, disk };
        rig.put("mnt/sysroot/active/counter", "4\n");
        rig.put("mnt/boot/resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=0\n");
        rig.program("hostapp-update-hooks", CURRENT_HOOKS);
        rig.program("runc-here", RUNC);
        rig.put("mnt/boot/kernel", "old\n");
        rig
    }

    /// A path of the device, as the test sees it.
    pub fn at(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.first)).join(path)
    }

    pub fn put(&self, path: &str, text: impl AsRef<[u8]>) {
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

    pub fn link(&self, path: &str) -> String {
        fs::read_link(self.at(path)).unwrap_or_else(|e| panic!("{path}: {e}")).to_str().unwrap().to_owned()
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A program of the running system.
    pub fn program(&self, name: &str, text: &str) {
        let path = self.at("usr/bin").join(name);
        // A link with an absolute target leads from here to the machine's own file.
        drop(fs::remove_file(&path));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A command in the device.
    pub fn command(&self, argv: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.first.to_string(), "-m", "-p", "-r", "-w", "--"]).args(argv);
        command.env_clear().env("PATH", "/usr/bin:/usr/sbin").env("HOME", "/root").env("COPAL_LOG", "info");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn start(&self, argv: &[&str]) -> Child {
        self.command(argv).spawn().unwrap()
    }

    /// Runs a command in the device to its end.
    pub fn run(&self, argv: &[&str]) -> Output {
        wait(self.start(argv))
    }

    /// The same, which must succeed; its standard output.
    pub fn ok(&self, argv: &[&str]) -> String {
        let out = self.run(argv);
        assert!(out.status.success(), "{argv:?}: {}{}", stdout(&out), stderr(&out));
        stdout(&out)
    }

    /// With the engine, and a release in `/mnt/data/os.tar`.
    pub fn ready() -> Rig {
        let mut rig = Rig::new();
        rig.engine();
        fs::copy(release(), rig.at("mnt/data/os.tar")).unwrap();
        rig
    }

    /// `hostapp-update` with that release.
    pub fn update(&self, more: &[&str]) -> Output {
        self.run(&[&["hostapp-update", "-f", "/mnt/data/os.tar"], more].concat())
    }

    /// What a hook does besides: `before`, `forward`, `flipped` (when it has selected the slot) or `after`.
    pub fn hook(&self, at: &str, text: &str) {
        self.put(&format!("mnt/data/{at}.sh"), text);
    }

    pub fn no_hook(&self, at: &str) {
        fs::remove_file(self.at(&format!("mnt/data/{at}.sh"))).unwrap();
    }

    /// Nothing is selected but slot A, and nothing says that an update is under way.
    pub fn assert_back(&self, why: &str) {
        assert_eq!(self.selected(), ("2".into(), "0".into()), "{why}");
        for name in ["health", "altboot"] {
            assert!(!self.has(&format!("mnt/state/rollback-{name}-breadcrumb")), "{why}");
        }
        assert!(!self.has("run/copal/marker"), "{why}");
        self.assert_tidy(why);
    }

    /// Reads its table of mounts, at once.
    pub fn mounts(&self) -> impl Fn() -> String + use<> {
        let table = format!("/proc/{}/mountinfo", self.first);
        move || fs::read_to_string(&table).unwrap()
    }

    /// Nothing is mounted that was not mounted before.
    pub fn assert_tidy(&self, why: &str) {
        let mounts = self.ok(&["cat", "/proc/self/mountinfo"]);
        assert!(!mounts.contains("/balena/tmp "), "{why}: {mounts}");
        assert!(!mounts.contains("/merged "), "{why}: {mounts}");
    }

    /// Starts the engine, with its data in the slot.
    pub fn engine(&mut self) {
        let log = fs::File::create(self.dir.path().join("engine.log")).unwrap();
        fs::create_dir_all(self.at("mnt/sysroot/inactive/balena")).unwrap();
        let mut command = self.command(&[
            "dockerd",
            "--data-root=/mnt/sysroot/inactive/balena",
            "--exec-root=/run/engine",
            "--pidfile=/run/engine.pid",
            "--host=unix:///var/run/balena-host.sock",
            "--storage-driver=overlay2",
            "--add-runtime=bare=/usr/sbin/runc",
            "--add-runtime=here=/usr/bin/runc-here",
            "--default-runtime=here",
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
        ]);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.engine = Some(command.spawn().unwrap());
        let began = Instant::now();
        // It says why it has ended, and there is nothing to wait for.
        while !self.docker(&["version"]).status.success() {
            let ended = self.engine.as_mut().unwrap().try_wait().unwrap();
            let log = || fs::read_to_string(self.dir.path().join("engine.log")).unwrap_or_default();
            assert!(
                ended.is_none() && began.elapsed() < UPDATE_TIMEOUT,
                "dockerd does not start ({ended:?}): {}",
                log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the engine, if there is one; its store stays.
    pub fn stop_engine(&mut self) {
        if let Some(mut engine) = self.engine.take() {
            drop(self.run(&["sh", "-c", "kill $(cat /run/engine.pid)"]));
            let end = Instant::now() + Duration::from_secs(20);
            while engine.try_wait().unwrap().is_none() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(50));
            }
            drop(engine.kill());
            drop(engine.wait());
        }
    }

    /// Kills it, as a crash would: what runs in its containers goes on.
    pub fn crash_engine(&mut self) {
        let mut engine = self.engine.take().unwrap();
        self.ok(&["sh", "-c", "kill -KILL $(cat /run/engine.pid)"]);
        drop(engine.wait());
    }

    pub fn docker(&self, args: &[&str]) -> Output {
        self.run(&[&["docker", "-H", "unix:///var/run/balena-host.sock"], args].concat())
    }

    /// A registry on the loopback interface, with the release in it, and what the release is called there.
    pub fn registry(&self) -> (Child, String) {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        self.put(
            "run/registry.yml",
            format!(
                "version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: /run/registry\nhttp:\n  addr: 127.0.0.1:{free}\n"
            ),
        );
        let registry = self.start(&["docker-registry", "serve", "/run/registry.yml"]);
        until("the registry", || listens(free));
        let name = format!("127.0.0.1:{free}/os");
        for args in [
            &["load", "-i", "/mnt/data/os.tar"][..],
            &["tag", "registry/os:2", &name],
            &["push", &name],
            &["rmi", "registry/os:2", &name],
        ] {
            let out = self.docker(args);
            assert!(out.status.success(), "{args:?}: {}", stderr(&out));
        }
        (registry, name)
    }

    /// What hooks said, in their order.
    pub fn said(&self) -> String {
        fs::read_to_string(self.at("mnt/data/said")).unwrap_or_default()
    }

    /// What the bootloader would boot: partition and whether it is on trial.
    pub fn selected(&self) -> (String, String) {
        let text = self.text("mnt/boot/resinOS_uEnv.txt");
        let value = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)).unwrap_or("").to_owned();
        (value("resin_root_part="), value("upgrade_available="))
    }

    /// Whether its first process has ended, and with it every other.
    pub fn has_ended(&self) -> bool {
        !Path::new(&format!("/proc/{}/root/run/up", self.first)).exists()
    }

    /// A file of the boot partition, when nobody has it mounted any more.
    pub fn boot_file(&self, name: &str) -> String {
        tool(&["debugfs", "-R", &format!("cat {name}"), &self.disk.part(1)])
    }
}

/// The archive of a release.
pub fn release() -> &'static Path {
    static RELEASE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let make = || {
        let dir =
            tempfile::Builder::new().prefix("release-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("os.tar");
        Release::new().archive("registry/os:2", &path);
        (dir, path)
    };
    &RELEASE.get_or_init(make).1
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop_engine();
        // With the first process of the namespace goes every other.
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}

/// runc, without the capability that this machine may not have: it may be a container itself.
pub const RUNC: &str = "#!/bin/sh
for word; do if [ \"$last\" = --bundle ]; then bundle=$word; fi; last=$word; done
if [ -n \"$bundle\" ]; then sed -i 's/\"CAP_SYS_RESOURCE\",//g' \"$bundle/config.json\"; fi
exec runc \"$@\"
";

/// What the running release does when an update has to be undone.
const CURRENT_HOOKS: &str = "#!/bin/sh
echo \"current $DURING_UPDATE\" >> /mnt/data/said
rm -f /mnt/boot/*bootcount.env*
printf 'resin_root_part=2\\nupgrade_available=0\\n' > /mnt/boot/resinOS_uEnv.txt
echo old > /mnt/boot/kernel
";
