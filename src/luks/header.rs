//! The header of LUKS.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// As far as it is read here.
pub const BYTES: usize = 208;

const MAGIC: &[u8] = b"LUKS\xba\xbe";
/// In both versions (LUKS2 On-Disk Format Specification, 2.1; LUKS1, figure 1).
const UUID_AT: usize = 168;
const UUID_BYTES: usize = 40;

/// The UUID in the first bytes of a partition; `None` where they are something else than a header of LUKS.
#[must_use]
pub fn uuid(start: &[u8]) -> Option<String> {
    let field = start.get(UUID_AT..UUID_AT + UUID_BYTES).filter(|_| start.starts_with(MAGIC))?;
    let text = std::str::from_utf8(field.split(|byte| *byte == 0).next()?).ok()?;
    // It becomes a part of a name.
    let is_uuid = text.len() == 36 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uuid.then(|| text.to_owned())
}

/// The LUKS headers of a partition, judged by their checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Headers {
    /// No LUKS header, as with plain dm-crypt.
    None,
    /// LUKS1 has a single header without a checksum.
    Luks1,
    /// The sequence IDs of the primary and the secondary header of LUKS2; `None`: damaged.
    Luks2 { primary: Option<u64>, secondary: Option<u64> },
}

/// LUKS2 On-Disk Format Specification, 2.1: magic of the secondary header, size of the binary header, and possible offsets of the secondary header.
const SECONDARY_MAGIC: &[u8] = b"SKUL\xba\xbe";
const BINARY: usize = 4096;
const SIZES: [u64; 9] = [1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22];
const VERSION_AT: usize = 6;
const SIZE_AT: usize = 8;
const NUMBER_AT: usize = 16;
const OFFSET_AT: usize = 256;
const SUM_AT: usize = 448;
const SUM_BYTES: usize = 64;

impl Headers {
    /// Call this before cryptsetup, which silently repairs a damaged header from the other one.
    pub fn read(node: &Path) -> io::Result<Headers> {
        let file = File::open(node)?;
        let mut start = [0; BYTES];
        file.read_exact_at(&mut start, 0)?;
        if start.starts_with(MAGIC) && number::<2>(&start, VERSION_AT) == Some([0, 1]) {
            return Ok(Headers::Luks1);
        }
        let mut primary = None;
        let mut places: Vec<u64> = SIZES.into();
        if let Some((size, number)) = whole(&file, 0, MAGIC)? {
            primary = Some(number);
            places = vec![size];
        }
        let mut secondary = None;
        for place in places {
            if let Some((_, number)) = whole(&file, place, SECONDARY_MAGIC)? {
                secondary = Some(number);
                break;
            }
        }
        if primary.is_none() && secondary.is_none() && !start.starts_with(MAGIC) {
            return Ok(Headers::None);
        }
        Ok(Headers::Luks2 { primary, secondary })
    }
}

/// Size and number of the header at `place`, if its checksum is right.
fn whole(file: &File, place: u64, magic: &[u8]) -> io::Result<Option<(u64, u64)>> {
    let mut binary = vec![0; BINARY];
    match file.read_exact_at(&mut binary, place) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let number = |at| number(&binary, at).map(u64::from_be_bytes);
    let (Some(size), Some(count), Some(offset)) = (number(SIZE_AT), number(NUMBER_AT), number(OFFSET_AT))
    else {
        return Ok(None);
    };
    if !binary.starts_with(magic) || offset != place || !SIZES.contains(&size) {
        return Ok(None);
    }
    let mut area = vec![0; usize::try_from(size).unwrap_or(BINARY)];
    match file.read_exact_at(&mut area, place) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let Some(sum) = area.get_mut(SUM_AT..SUM_AT + SUM_BYTES) else { return Ok(None) };
    let expected = sum.to_vec();
    sum.fill(0);
    // The checksum of a header that cryptsetup has made is SHA-256.
    Ok(expected.starts_with(&Sha256::digest(&area)).then_some((size, count)))
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_from_a_header_and_from_nothing_else() {
        const UUID: &str = "2a4c0b51-1881-53ec-b06e-b7bf1ea64014";
        let mut start = [0; BYTES];
        start[..6].copy_from_slice(MAGIC);
        start[UUID_AT..][..36].copy_from_slice(UUID.as_bytes());
        assert_eq!(uuid(&start).as_deref(), Some(UUID));
        for (at, byte) in [(0, b'l'), (UUID_AT, 0), (UUID_AT, b'/'), (UUID_AT, 0xff), (UUID_AT + 36, b'0')] {
            let mut other = start;
            other[at] = byte;
            assert_eq!(uuid(&other), None, "{at}");
        }
        assert_eq!(uuid(&start[..BYTES - 1]), None);
    }

    /// A header of LUKS2 as the specification has it, without a key.
    fn second(magic: &[u8], place: u64, size: u64, number: u64) -> Vec<u8> {
        let mut area = vec![0; usize::try_from(size).unwrap()];
        area[..6].copy_from_slice(magic);
        area[VERSION_AT..][..2].copy_from_slice(&[0, 2]);
        area[SIZE_AT..][..8].copy_from_slice(&size.to_be_bytes());
        area[NUMBER_AT..][..8].copy_from_slice(&number.to_be_bytes());
        area[72..78].copy_from_slice(b"sha256");
        area[OFFSET_AT..][..8].copy_from_slice(&place.to_be_bytes());
        area[BINARY..][..2].copy_from_slice(b"{}");
        let sum = Sha256::digest(&area);
        area[SUM_AT..][..32].copy_from_slice(&sum);
        area
    }

    #[test]
    fn both_headers_are_judged_by_their_checksums() {
        let dir = tempfile::tempdir().unwrap();
        let node = dir.path().join("partition");
        let read = |bytes: &[u8]| {
            std::fs::write(&node, bytes).unwrap();
            Headers::read(&node)
        };
        for size in [1 << 14, 1 << 22] {
            let first = second(MAGIC, 0, size, 7);
            let copy = second(SECONDARY_MAGIC, size, size, 7);
            let whole = [first, copy, vec![0; 4096]].concat();
            assert_eq!(read(&whole).unwrap(), Headers::Luks2 { primary: Some(7), secondary: Some(7) });
            let mut damaged = whole.clone();
            damaged[BINARY] = b'[';
            assert_eq!(read(&damaged).unwrap(), Headers::Luks2 { primary: None, secondary: Some(7) });
            let mut damaged = whole.clone();
            damaged[usize::try_from(size).unwrap() + 20] ^= 1;
            assert_eq!(read(&damaged).unwrap(), Headers::Luks2 { primary: Some(7), secondary: None });
            assert_eq!(
                read(&whole[..usize::try_from(size).unwrap()]).unwrap(),
                Headers::Luks2 { primary: Some(7), secondary: None }
            );
        }
        let older = [second(MAGIC, 0, 1 << 14, 8), second(SECONDARY_MAGIC, 1 << 14, 1 << 14, 7)].concat();
        assert_eq!(read(&older).unwrap(), Headers::Luks2 { primary: Some(8), secondary: Some(7) });
        let mut first = [0; 4096];
        first[..8].copy_from_slice(b"LUKS\xba\xbe\0\x01");
        assert_eq!(read(&first).unwrap(), Headers::Luks1);
        assert_eq!(read(&[0; 8192]).unwrap(), Headers::None);
        assert!(read(b"short").is_err());
    }
}
