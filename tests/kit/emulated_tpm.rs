//! An emulated TPM (swtpm), with its state in a folder.
#![allow(dead_code, unreachable_pub)] // no test program uses all of it

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use copal::tpm::Tpm;

use super::needs::not_run;
use super::prepared::part;

const LIMIT: Duration = Duration::from_secs(60);

pub struct Emulated {
    state: PathBuf,
    // Of the socket, and of the state of a TPM that is not another's.
    dir: tempfile::TempDir,
    process: Child,
    wire: UnixStream,
}

impl Emulated {
    /// A new TPM that was just started.
    pub fn new(test: &str) -> Option<Emulated> {
        if let Err(why) = part("tpm") {
            not_run(test, &why);
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        std::fs::create_dir(&state).unwrap();
        Some(Emulated::at(dir, state))
    }

    /// One whose state is there: that of a guest that has ended, say.
    pub fn of(state: &Path) -> Emulated {
        Emulated::at(tempfile::tempdir().unwrap(), state.to_owned())
    }

    fn at(dir: tempfile::TempDir, state: PathBuf) -> Emulated {
        let (process, wire) = start(&state, dir.path());
        Emulated { state, dir, process, wire }
    }

    /// Switches it off and on.
    pub fn restart(&mut self) {
        self.end();
        (self.process, self.wire) = start(&self.state, self.dir.path());
    }

    fn end(&mut self) {
        drop(self.process.kill());
        self.process.wait().unwrap();
    }

    pub fn tpm(&self) -> Tpm {
        self.wire.set_nonblocking(true).unwrap();
        Tpm::over(File::from(OwnedFd::from(self.wire.try_clone().unwrap())), LIMIT)
    }

    pub fn wire(&self) -> UnixStream {
        self.wire.set_nonblocking(false).unwrap();
        self.wire.try_clone().unwrap()
    }

    /// Sends a command that copal does not have: its code, then all that follows. Gives the answer's code.
    pub fn send(&self, tag: u16, code: u32, rest: &[u8]) -> u32 {
        self.wire.set_nonblocking(false).unwrap();
        let size = u32::try_from(10 + rest.len()).unwrap();
        let command = [&tag.to_be_bytes()[..], &size.to_be_bytes(), &code.to_be_bytes(), rest].concat();
        let mut wire = &self.wire;
        wire.write_all(&command).unwrap();
        let mut answer = [0; 4096];
        let n = wire.read(&mut answer).unwrap();
        assert!(n >= 10);
        u32::from_be_bytes(answer[6..10].try_into().unwrap())
    }

    /// Forgets wrong passwords, and switch-offs after the use of one, which count as such.
    pub fn end_lockout(&self) {
        let rest = [&0x4000_000a_u32.to_be_bytes()[..], &no_password()].concat();
        assert_eq!(self.send(0x8002, 0x139, &rest), 0);
    }

    /// Extends a PCR with a digest of ones.
    pub fn extend(&self, pcr: u32) {
        let rest =
            [&pcr.to_be_bytes()[..], &no_password(), &1u32.to_be_bytes(), &0x000bu16.to_be_bytes(), &[1; 32]]
                .concat();
        assert_eq!(self.send(0x8002, 0x182, &rest), 0);
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.end();
    }
}

/// An authorization by an empty password.
pub fn no_password() -> Vec<u8> {
    [&9u32.to_be_bytes()[..], &0x4000_0009u32.to_be_bytes(), &[0, 0, 0, 0, 0]].concat()
}

/// The program with this state; it ends with the test.
fn program(state: &Path) -> Command {
    let tree = part("tpm").unwrap();
    let libraries =
        ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|at| tree.join(at).display().to_string());
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(tree.join("lib64/ld-linux-x86-64.so.2"))
        .args(["--library-path", &libraries.join(":")])
        .arg(tree.join("usr/bin/swtpm"))
        .args(["socket", "--tpm2", "--tpmstate"])
        .arg(format!("dir={}", state.display()))
        .stdin(Stdio::null());
    command
}

/// That of a virtual machine, which reaches it through this socket and starts it.
pub fn for_qemu(state: &Path, socket: &Path) -> Child {
    let mut command = program(state);
    command
        .args(["--flags", "not-need-init", "--terminate", "--ctrl"])
        .arg(format!("type=unixio,path={}", socket.display()));
    let child = command.spawn().unwrap();
    let begun = Instant::now();
    while !socket.exists() {
        assert!(begun.elapsed() < LIMIT, "the emulated TPM does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

fn start(state: &Path, dir: &Path) -> (Child, UnixStream) {
    let socket = dir.join("socket");
    drop(std::fs::remove_file(&socket));
    let mut command = program(state);
    command.args(["--flags", "not-need-init,startup-clear", "--server"]);
    let process = command.arg(format!("type=unixio,path={}", socket.display())).spawn().unwrap();
    let begun = Instant::now();
    loop {
        match UnixStream::connect(&socket) {
            Ok(wire) => return (process, wire),
            Err(e) => assert!(begun.elapsed() < LIMIT, "the emulated TPM does not start: {e}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
