//! Asks the device mapper: which kinds of mapping the kernel has, and what a mapping is made of. Contents of tables, which can have keys in
//! them, are never read.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::errno::Errno;

use super::block::major_minor;

/// Bytes of `struct dm_ioctl` (`linux/dm-ioctl.h`) before the data of the answer.
const HEADER: usize = 312;

/// For header and answer: a kernel has some twenty kinds, a mapping one or two parts.
const BUFFER: usize = 16 << 10;

const NAME: usize = 48;
const NAME_BYTES: usize = 128;

/// The kernel has not written all of the answer.
const BUFFER_FULL: u32 = 1 << 8;

#[allow(unsafe_code)]
mod ioctl {
    use super::{BUFFER, HEADER};

    // The size in the number is that of the header; the buffer says its own.
    type Request = [u64; BUFFER / 8];
    nix::ioctl_readwrite_bad!(deps, nix::request_code_readwrite!(0xfd, 11, HEADER), Request);
    nix::ioctl_readwrite_bad!(status, nix::request_code_readwrite!(0xfd, 12, HEADER), Request);
    nix::ioctl_readwrite_bad!(versions, nix::request_code_readwrite!(0xfd, 13, HEADER), Request);
}

#[derive(Debug, Clone, Copy)]
enum Question {
    /// `DM_TABLE_DEPS`
    LowerDevices,
    /// `DM_TABLE_STATUS`, without `DM_STATUS_TABLE_FLAG`: the kinds of its parts, and their state instead of their parameters.
    Parts,
    /// `DM_LIST_VERSIONS`
    Kinds,
}

#[derive(Debug)]
pub(crate) struct DeviceMapper(File);

/// A mapping as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub dev: (u32, u32),
    /// `crypt`, `linear`, …, one for each part.
    pub kinds: Vec<String>,
    pub lower: Vec<(u32, u32)>,
}

impl DeviceMapper {
    /// `control`: `/dev/mapper/control` below the root.
    pub(crate) fn open(control: &Path) -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).open(control).map(DeviceMapper)
    }

    /// Kinds of mapping that are loaded into the kernel or built in.
    pub(crate) fn kinds(&self) -> io::Result<Vec<String>> {
        let answer = self.ask(Question::Kinds, "")?;
        let mut kinds = Vec::new();
        let mut at = answer.data_start();
        loop {
            // `struct dm_target_versions`: the distance to the next one, three numbers, a name.
            kinds.push(answer.text(at + 16, 64));
            match answer.number(at) {
                0 => return Ok(kinds),
                next => at += usize::try_from(next).unwrap_or(BUFFER),
            }
            if at >= BUFFER {
                return Err(io::Error::other("an answer of the device mapper has no end"));
            }
        }
    }

    /// `None` if there is none of that name.
    pub(crate) fn mapping(&self, name: &str) -> io::Result<Option<Mapping>> {
        let parts = match self.ask(Question::Parts, name) {
            Err(e) if e.raw_os_error() == Some(nix::libc::ENXIO) => return Ok(None),
            other => other?,
        };
        let start = parts.data_start();
        let (mut at, mut kinds) = (start, Vec::new());
        for _ in 0..parts.number(20) {
            // `struct dm_target_spec`: start and length of 8 bytes each, a status, the place of the next one, a kind of 16.
            kinds.push(parts.text(at + 24, 16));
            at = start + usize::try_from(parts.number(at + 20)).unwrap_or(BUFFER);
            if at >= BUFFER {
                break;
            }
        }
        let below = self.ask(Question::LowerDevices, name)?;
        // `struct dm_target_deps`: their number, 4 bytes of nothing, 8 for each.
        let start = below.data_start();
        let count = usize::try_from(below.number(start)).unwrap_or(0).min(64);
        let lower = (0..count).map(|i| below.dev(start + 8 + 8 * i)).collect();
        Ok(Some(Mapping { dev: parts.dev(40), kinds, lower }))
    }

    #[allow(unsafe_code)]
    fn ask(&self, question: Question, name: &str) -> io::Result<Answer> {
        if name.len() >= NAME_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut buffer = Box::new([0u64; BUFFER / 8]);
        let mut put = |at: usize, bytes: &[u8]| {
            for (at, byte) in (at..).zip(bytes) {
                if let Some(word) = buffer.get_mut(at / 8) {
                    let mut bytes = word.to_ne_bytes();
                    if let Some(place) = bytes.get_mut(at % 8) {
                        *place = *byte;
                    }
                    *word = u64::from_ne_bytes(bytes);
                }
            }
        };
        // The version of the interface, the length of the buffer, and where the data begins in it.
        for (at, number) in [(0, 4), (12, BUFFER), (16, HEADER)] {
            put(at, &u32::try_from(number).unwrap_or_default().to_ne_bytes());
        }
        put(NAME, name.as_bytes());
        let (fd, request) = (self.0.as_raw_fd(), &raw mut *buffer);
        // SAFETY: the kernel writes at most as many bytes as the buffer says it has, which it does.
        let done = unsafe {
            match question {
                Question::LowerDevices => ioctl::deps(fd, request),
                Question::Parts => ioctl::status(fd, request),
                Question::Kinds => ioctl::versions(fd, request),
            }
        };
        done.map_err(|e: Errno| io::Error::from(e))?;
        let answer = Answer(buffer.iter().flat_map(|word| word.to_ne_bytes()).collect());
        if answer.number(28) & BUFFER_FULL != 0 {
            return Err(io::Error::other("an answer of the device mapper is too long"));
        }
        Ok(answer)
    }
}

struct Answer(Vec<u8>);

impl Answer {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..at + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N])
    }

    fn number(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(at))
    }

    fn dev(&self, at: usize) -> (u32, u32) {
        major_minor(u64::from_ne_bytes(self.bytes(at)))
    }

    fn data_start(&self) -> usize {
        usize::try_from(self.number(16)).unwrap_or(HEADER)
    }

    fn text(&self, at: usize, most: usize) -> String {
        let bytes = self.0.get(at..(at + most).min(self.0.len())).unwrap_or_default();
        String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
    }
}
