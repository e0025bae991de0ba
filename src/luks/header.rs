//! The header of LUKS.

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
}
