//! A real container engine of a test's own: dockerd with folders, namespaces and socket of its own, so that neither the
//! machine's engine nor its mounts come into touch with it, and nothing of it outlives the test, however that ends.
#![allow(dead_code)] // no test program uses all of it

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// For dockerd to answer, on a machine that is busy.
const START: Duration = Duration::from_secs(300);

/// runc, with those capabilities left out of a container that this machine has not got: it may be a container itself.
const RUNTIME: &str = r#"#!/usr/bin/python3
import json, os, sys
words = sys.argv[1:]
if "create" in words and "--bundle" in words:
    path = os.path.join(words[words.index("--bundle") + 1], "config.json")
    config = json.load(open(path))
    bound = next(int(l.split()[1], 16) for l in open("/proc/self/status") if l.startswith("CapBnd"))
    names = """CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
        NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
        SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
        MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE""".split()
    have = {"CAP_" + n for i, n in enumerate(names) if bound >> i & 1}
    caps = config["process"].get("capabilities", {})
    for kind in caps:
        caps[kind] = [c for c in caps[kind] or [] if c in have]
    json.dump(config, open(path, "w"))
os.execvp("runc", ["runc"] + words)
"#;

/// In a mount and a PID namespace: whatever it starts dies with it, and what it mounts goes.
const INSIDE: &str = r#"
set -e
mount -t tmpfs none /run
mount -t tmpfs none /mnt
mkdir /mnt/below
mount -t tmpfs none /mnt/below
echo seen > /mnt/below/file
exec dockerd --config-file "$1/daemon.json" -H "unix://$2" --data-root "$3" --exec-root /run/engine \
    --pidfile /run/engine.pid --bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false
"#;

/// A running dockerd.
pub struct Dockerd {
    dir: tempfile::TempDir,
    data: PathBuf,
    process: Option<Child>,
}

impl Dockerd {
    /// One with an empty store; its data root is `data`, or in a temporary folder.
    pub fn start(data: Option<&Path>) -> Dockerd {
        let dir = tempfile::Builder::new().prefix("copal-dockerd-").tempdir().unwrap();
        let runtime = dir.path().join("runtime");
        fs::write(&runtime, RUNTIME).unwrap();
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).unwrap();
        let config = serde_json::json!({
            "runtimes": { "bare": { "path": runtime }, "plain": { "path": runtime } },
            "default-runtime": "plain",
        });
        fs::write(dir.path().join("daemon.json"), config.to_string()).unwrap();
        let data = data.map_or_else(|| dir.path().join("data"), Path::to_owned);
        let mut dockerd = Dockerd { dir, data, process: None };
        fs::create_dir_all(dockerd.socket().parent().unwrap()).unwrap();
        dockerd.run();
        dockerd
    }

    /// The folder below which its socket is where `Paths` look for it.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("var/run/balena-host.sock")
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Starts it (again), and waits until it answers.
    pub fn run(&mut self) {
        assert!(self.process.is_none());
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        // Killed with the thread that started it, should that go without a word.
        let process = Command::new("setpriv")
            .args([
                "--pdeathsig",
                "KILL",
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "--pid",
                "--fork",
            ])
            .args(["--kill-child", "--mount-proc", "sh", "-c", INSIDE, "dockerd"])
            .args([self.dir.path(), &self.socket(), &self.data])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
        let began = Instant::now();
        while !self.answers() {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none() && began.elapsed() < START, "dockerd does not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn answers(&self) -> bool {
        use std::io::{Read, Write};
        let ask = || -> std::io::Result<bool> {
            let mut stream = UnixStream::connect(self.socket())?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"GET /_ping HTTP/1.0\r\n\r\n")?;
            let mut head = [0; 12];
            stream.read_exact(&mut head)?;
            Ok(head.ends_with(b"200"))
        };
        ask().unwrap_or(false)
    }

    /// Ends it at once with everything it has started, as a loss of power would. The store stays.
    pub fn kill(&mut self) {
        // With the first process of the namespace all others go, and `unshare` ends when they are gone.
        let signalled = self.signal(Signal::SIGKILL);
        let Some(mut process) = self.process.take() else { return };
        if !signalled {
            let _gone = process.kill();
        }
        let _status = process.wait();
    }

    /// From now on it takes connections, and reads nothing from them.
    pub fn freeze(&self) {
        assert!(self.signal(Signal::SIGSTOP));
    }

    /// Sends a signal to dockerd, the first process of its namespace; false without a dockerd.
    fn signal(&self, signal: Signal) -> bool {
        let Some(process) = &self.process else { return false };
        let children = format!("/proc/{0}/task/{0}/children", process.id());
        let first = fs::read_to_string(children).ok().and_then(|c| c.trim().parse().ok());
        first.is_some_and(|first| nix::sys::signal::kill(Pid::from_raw(first), signal).is_ok())
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        self.kill();
    }
}
