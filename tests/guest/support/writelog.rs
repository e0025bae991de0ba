//! What QEMU's `blklogwrites` recorded: every write and every flush of a disk, in order. From it come the contents a disk
//! may have when its power goes at any moment.
//!
//! The format is that of the kernel's dm-log-writes: Documentation/admin-guide/device-mapper/log-writes.rst.

use std::path::Path;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

/// One request of the guest.
pub(crate) struct Request {
    /// Byte offset on the disk.
    pub(crate) at: u64,
    /// What was written.
    pub(crate) data: Vec<u8>,
    /// Everything before this request is on the medium.
    pub(crate) flush: bool,
    /// This request itself is on the medium when it has ended.
    pub(crate) fua: bool,
    pub(crate) discard: bool,
}

fn number(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().unwrap())
}

/// Reads a whole log. Panics on anything that is not one.
pub(crate) fn read(path: &Path) -> Vec<Request> {
    let data = std::fs::read(path).unwrap();
    // QEMU begins it with the first request.
    if data.is_empty() {
        return Vec::new();
    }
    assert_eq!(number(&data, 0), MAGIC, "{} is no write log", path.display());
    let entries = number(&data, 16);
    let sector = u64::from(u32::from_le_bytes(data[24..28].try_into().unwrap()));
    let round = |n: usize| n.next_multiple_of(usize::try_from(sector).unwrap());
    let mut at = round(28);
    (0..entries)
        .map(|_| {
            let flags = number(&data, at + 16);
            let discard = flags & DISCARD != 0;
            let length = number(&data, at + 8) * sector;
            let start = number(&data, at) * sector;
            let kept = if discard { 0 } else { usize::try_from(length).unwrap() };
            at = round(at + 32);
            let content = data[at..at + kept].to_vec();
            at = round(at + kept);
            Request { at: start, data: content, flush: flags & FLUSH != 0, fua: flags & FUA != 0, discard }
        })
        .collect()
}

impl Request {
    /// Puts this request's data onto a copy of the disk. A discard changes nothing: a disk may keep what it holds.
    pub(crate) fn apply(&self, disk: &mut [u8]) {
        let at = usize::try_from(self.at).unwrap();
        disk[at..at + self.data.len()].copy_from_slice(&self.data);
    }

    /// The same request for a disk that has only the first and last `end` bytes of this one of `size` bytes, without the data that goes elsewhere.
    pub(crate) fn in_ends(&self, size: u64, end: u64) -> Request {
        let at = if self.at < end { self.at } else { (self.at + 2 * end).saturating_sub(size) };
        let kept = !self.discard && (self.at < end || self.at >= size - end);
        let data = if kept { self.data.clone() } else { Vec::new() };
        assert!(
            !kept || self.at >= end || self.at + data.len() as u64 <= end,
            "a write across the end of what is kept"
        );
        Request { at: if kept { at } else { 0 }, data, ..*self }
    }

    /// Puts those sectors onto a copy of the disk that `keep` says are on it; all of them where the request itself sees to that.
    pub(crate) fn apply_sectors(&self, disk: &mut [u8], mut keep: impl FnMut(usize) -> bool) {
        if self.fua {
            self.apply(disk);
        } else if !self.discard {
            for (s, sector) in self.data.chunks(512).enumerate() {
                if keep(s) {
                    let at = usize::try_from(self.at).unwrap() + s * 512;
                    disk[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
    }
}

/// The disk as it may be when the power goes right after `requests[..n]` were made: everything up to the last flush among
/// them, and of the writes after it those for which `keep` says so, sector by sector.
///
/// `keep(request, sector)` is asked with the index of the request and of the 512-byte sector in it.
pub(crate) fn after_a_cut(
    before: &[u8],
    requests: &[Request],
    n: usize,
    mut keep: impl FnMut(usize, usize) -> bool,
) -> Vec<u8> {
    let mut disk = before.to_vec();
    // A flush covers what came before it, not the data it carries.
    let safe = requests[..n].iter().rposition(|r| r.flush).unwrap_or(0);
    for (i, request) in requests[..n].iter().enumerate() {
        if i < safe {
            request.apply(&mut disk);
        } else {
            request.apply_sectors(&mut disk, |s| keep(i, s));
        }
    }
    disk
}

/// How a disk treats the writes that no flush has covered yet.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Loss {
    All,
    None,
    /// Only this one of them is there.
    Only(usize),
    /// Only this one is missing.
    Without(usize),
    /// Each sector by chance.
    Random(u64),
    /// Of this one only so many sectors are there.
    Torn(usize, usize),
}

impl Loss {
    pub(crate) fn keeps(self, request: usize, sector: usize) -> bool {
        match self {
            Loss::All => false,
            Loss::None => true,
            Loss::Only(n) => request == n,
            Loss::Without(n) => request != n,
            Loss::Torn(n, sectors) => request != n || sector < sectors,
            Loss::Random(seed) => {
                let mixed = seed ^ (request as u64) << 20 ^ sector as u64;
                fastrand::Rng::with_seed(mixed).bool()
            }
        }
    }
}
