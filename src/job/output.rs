//! The output file of a job's process. It is no pipe: the process writes without a service, and a later service can read. The file is in
//! memory, so the parts that were read are freed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{Whence, lseek};

/// Bytes that are freed at once, and bytes that are kept.
const CHUNK_BYTES: u64 = 64 << 10;

/// No verb writes a longer line. The rest of a longer line is dropped.
const MAX_LINE_BYTES: usize = 1 << 20;

pub(crate) struct Output {
    file: File,
    read: u64,
    freed: u64,
    rest: Vec<u8>,
}

pub(super) fn make(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    // O_APPEND: no other writer or reader changes where the process writes.
    OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)
}

impl Output {
    /// From the first byte that is not freed.
    pub(crate) fn open(path: &Path) -> io::Result<Output> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        // Not every file system supports holes. A file without data (ENXIO) is read from its start, as the job may write its first line at this moment.
        let read = lseek(&file, 0, Whence::SeekData).ok().and_then(|at| u64::try_from(at).ok()).unwrap_or(0);
        Ok(Output { file, read, freed: read, rest: Vec::new() })
    }

    pub(crate) fn lines(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut buffer = vec![0; 16 << 10];
        loop {
            let n = self.file.read_at(&mut buffer, self.read)?;
            if n == 0 {
                break;
            }
            // A partly freed page reads as zeros.
            for byte in buffer.iter().take(n).copied().filter(|&b| b != 0) {
                if byte == b'\n' {
                    lines.push(String::from_utf8_lossy(&self.rest).into_owned());
                    self.rest = Vec::new();
                } else if self.rest.len() < MAX_LINE_BYTES {
                    self.rest.push(byte);
                }
            }
            self.read = self.read.saturating_add(u64::try_from(n).unwrap_or(0));
        }
        Ok(lines)
    }

    /// Frees the parts that were read. Keeps the end, because a later service needs the last lines.
    pub(super) fn free_read(&mut self) {
        let keep = self.read.saturating_sub(CHUNK_BYTES);
        if keep < self.freed.saturating_add(CHUNK_BYTES) {
            return;
        }
        self.freed = keep;
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        if let Err(e) = fallocate(&self.file, flags, 0, i64::try_from(keep).unwrap_or(0)) {
            tracing::debug!("a job's output is kept: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn lines_come_once_and_space_is_freed() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("out");
        let mut writer = make(&path).unwrap();
        let mut output = Output::open(&path).unwrap();
        assert_eq!(output.lines().unwrap(), Vec::<String>::new());
        writer.write_all(b"a\nb").unwrap();
        assert_eq!(output.lines().unwrap(), ["a"]);
        writer.write_all(b"c\n").unwrap();
        assert_eq!(output.lines().unwrap(), ["bc"]);

        let line = format!("{}\n", "x".repeat(99));
        for _ in 0..100 {
            writer.write_all(line.repeat(100).as_bytes()).unwrap();
            assert_eq!(output.lines().unwrap().len(), 100);
            output.free_read();
        }
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!(meta.len(), 5 + 1_000_000);
        assert!(meta.blocks() * 512 <= 4 * CHUNK_BYTES, "{}", meta.blocks());

        // A later reader gets the last lines, the first of them perhaps cut.
        writer.write_all(b"last\n").unwrap();
        let mut later = Output::open(&path).unwrap();
        let lines = later.lines().unwrap();
        assert_eq!(lines.last().unwrap(), "last");
        assert!((500..2000).contains(&lines.len()), "{}", lines.len());
        assert!(lines[1..lines.len() - 1].iter().all(|l| *l == line.trim_end()));
    }
}
