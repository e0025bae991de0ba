//! The way to the TPM: one command, one answer.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::command::{Code as Command, HEADER};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::signature::PublicKey;
use crate::sys::buffer::part;
use crate::sys::crash_point::crash_point;
use crate::sys::limits::{self, wipe};

/// With the kernel's resource manager, which gives every program a TPM of its own.
const NODE: &str = "/dev/tpmrm0";

/// The largest answer that Linux hands on.
const MAX_ANSWER: usize = 4096;

/// A TPM makes an RSA key in up to a minute.
const TIMEOUT: Duration = Duration::from_secs(120);

/// For a TPM that is busy with itself.
const RETRIES: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// An open TPM.
#[derive(Debug)]
pub struct Tpm {
    file: File,
    timeout: Duration,
    /// A key of the TPM, for secrets that are sent to it: making one takes long. `None` before it was tried, or for a TPM without.
    pub(super) key: Option<SaltKey>,
    /// The code of the last answer, if that was a refusal.
    refused: Option<u32>,
}

#[derive(Debug)]
pub(super) struct SaltKey {
    pub(super) handle: u32,
    pub(super) public: PublicKey,
}

impl Drop for Tpm {
    fn drop(&mut self) {
        if let Some(key) = self.key.take()
            && let Err(e) = self.flush(key.handle)
        {
            tracing::debug!("{}", e.message());
        }
    }
}

impl Tpm {
    /// `None` where there is none. From now on this process dumps no core: it may get the passphrase.
    pub fn open(paths: &Paths) -> Result<Option<Tpm>> {
        limits::forbid_core_dumps();
        let node = paths.at(NODE);
        let mut options = OpenOptions::new();
        match options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(&node) {
            Ok(file) => Ok(Some(Tpm::over(file, TIMEOUT))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => {
                let node = node.display();
                Err(Error::new(Code::TpmFailed, format!("cannot open {node}")).object(node).because(e))
            }
        }
    }

    /// A TPM at the other end of an open file, which does not block; an answer takes at most `timeout`.
    #[must_use]
    pub fn over(file: File, timeout: Duration) -> Tpm {
        Tpm { file, timeout, key: None, refused: None }
    }

    /// Whether the last command was refused because this TPM does not have it, or not with these algorithms.
    pub(super) fn lacks_it(&self) -> bool {
        // Part 2, 6.6: whether a parameter, a handle or a session is meant does not count.
        let plain = self.refused.map(|code| if code & FORMAT_1 != 0 { code & 0xbf } else { code });
        plain.is_some_and(|code| LACKING.contains(&code))
    }

    /// Whether the last command was refused because a PCR was extended since the policy of its session was met.
    pub(super) fn saw_another_pcr(&self) -> bool {
        self.refused == Some(PCR_CHANGED)
    }

    /// The answer without its header, whose code was 0.
    pub(super) fn transmit(&mut self, code: Command, command: &[u8]) -> Result<Vec<u8>> {
        let begun = Instant::now();
        self.refused = None;
        loop {
            let (answered, answer) = self.exchange(command).map_err(|e| failed(code).because(e))?;
            match answered {
                0 => return Ok(answer),
                RETRY | YIELDED | TESTING | NV_RATE | NV_UNAVAILABLE if begun.elapsed() < RETRIES => {
                    std::thread::sleep(PAUSE);
                }
                other => {
                    self.refused = Some(other);
                    return Err(refused(code, other));
                }
            }
        }
    }

    fn exchange(&mut self, command: &[u8]) -> io::Result<(u32, Vec<u8>)> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "its answer is damaged");
        crash_point!(std::path::Path::new(NODE), "tpm");
        if self.file.write(command)? != command.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let end = Instant::now() + self.timeout;
        let mut answer = Vec::new();
        let mut buffer = [0; MAX_ANSWER];
        let size = loop {
            self.wait(end)?;
            let n = match self.file.read(&mut buffer) {
                Ok(0) => return Err(damaged()),
                Ok(n) => n,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    continue;
                }
                Err(e) => return Err(e),
            };
            answer.extend(part(&buffer, ..n)?);
            let size = answer.get(2..6).and_then(|size| size.try_into().ok()).map(u32::from_be_bytes);
            let size = size.and_then(|size| usize::try_from(size).ok());
            match size {
                Some(size) if !(HEADER..=MAX_ANSWER).contains(&size) || answer.len() > size => {
                    return Err(damaged());
                }
                Some(size) if answer.len() == size => break size,
                _ => {}
            }
        };
        let code = answer.get(6..HEADER).and_then(|code| code.try_into().ok()).map(u32::from_be_bytes);
        let code = code.ok_or_else(damaged)?;
        wipe(&mut buffer);
        let rest = part(&answer, HEADER..size)?.to_vec();
        wipe(&mut answer);
        Ok((code, rest))
    }

    fn wait(&self, end: Instant) -> io::Result<()> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer")),
                Ok(_) => return Ok(()),
                Err(nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

const RETRY: u32 = 0x922;
const YIELDED: u32 = 0x908;
const TESTING: u32 = 0x90a;
/// The TPM spares its memory; it is ready again by itself.
const NV_RATE: u32 = 0x920;
const NV_UNAVAILABLE: u32 = 0x923;

/// `TPM_RC_PCR_CHANGED`: another program, or the kernel, has extended any PCR meanwhile.
const PCR_CHANGED: u32 = 0x128;

/// Part 2, 6.6: codes with this bit name a parameter, a handle or a session in others.
const FORMAT_1: u32 = 0x80;

/// `ASYMMETRIC`, `HASH`, `VALUE`, `KEY_SIZE`, `MGF`, `MODE`, `TYPE`, `KDF`, `SCHEME`, `SYMMETRIC`, `CURVE`, `COMMAND_CODE`.
const LACKING: [u32; 12] = [0x81, 0x83, 0x84, 0x87, 0x88, 0x89, 0x8a, 0x8c, 0x92, 0x96, 0xa6, 0x143];

/// The answer of a TPM without free space for an index.
pub(super) const NV_SPACE: u32 = 0x14b;

fn words(code: u32) -> &'static str {
    let plain = if code & FORMAT_1 != 0 { code & 0xbf } else { code };
    match plain {
        0x101 => "the TPM is in failure mode: switch the device off and on",
        NV_SPACE => "it has no free space for another index",
        0x14c => "the index exists already",
        0x149 | 0x12f => "it does not allow that",
        0x921 => "it is in lockout",
        0x8b => "there is no such index",
        0x8e | 0xa2 => "the authorization is wrong",
        0x9d => "the policy is not met: firmware, keys or programs are others than those it was made for",
        _ => "it refuses",
    }
}

fn refused(command: Command, code: u32) -> Error {
    failed(command).because(io::Error::other(format!("{} (0x{code:x})", words(code))))
}

pub(super) fn failed(command: Command) -> Error {
    Error::new(Code::TpmFailed, format!("the TPM failed in {}", command.1)).object("TPM")
}
