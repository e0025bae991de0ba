//! `EFI_VARIABLE_AUTHENTICATION_2`: what stands before the contents of `PK`, `KEK`, `db` and `dbx` when they are written (UEFI specification
//! 2.10, 8.2.2 and 32.2.4).

use std::time::SystemTime;

use super::{Fields, Guid};

const TIME: usize = 16;

/// Length, revision and type, then the GUID of the signature's kind.
const CERTIFICATE: usize = 24;

const REVISION: u16 = 0x0200;
const TYPE_GUID: u16 = 0x0ef1;

/// The contents in a `.auth` file, after a well-formed header.
pub fn payload(auth: &[u8]) -> Result<&[u8], &'static str> {
    let mut fields = Fields::of(auth);
    let mut header = || -> Option<(usize, u16, u16, [u8; 16])> {
        fields.bytes(TIME)?;
        Some((fields.len32()?, fields.u16()?, fields.u16()?, fields.array()?))
    };
    let (len, revision, kind, guid) = header().ok_or("it is shorter than its header")?;
    if (revision, kind, guid) != (REVISION, TYPE_GUID, Guid::PKCS7.bytes()) {
        return Err("its header is not that of a signed variable");
    }
    len.checked_sub(CERTIFICATE)
        .and_then(|signature| fields.bytes(signature))
        .ok_or("its signature is longer than the file")?;
    Ok(fields.rest())
}

/// The header of contents without a signature. The firmware takes them in setup mode.
#[must_use]
pub fn unsigned(time: SystemTime) -> Vec<u8> {
    let mut out = efi_time(time).to_vec();
    out.extend(u32::try_from(CERTIFICATE).unwrap_or(0).to_le_bytes());
    out.extend(REVISION.to_le_bytes());
    out.extend(TYPE_GUID.to_le_bytes());
    out.extend(Guid::PKCS7.bytes());
    out
}

/// `EFI_TIME` in UTC. Everything after the seconds has to be zero.
fn efi_time(time: SystemTime) -> [u8; TIME] {
    // Year, month, day, hour, minute, second.
    let text = humantime::format_rfc3339_seconds(time).to_string();
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u16>().unwrap_or(0));
    let mut out = [0; TIME];
    if let Some(place) = out.get_mut(..2) {
        place.copy_from_slice(&numbers.next().unwrap_or(0).to_le_bytes());
    }
    for (place, number) in out.iter_mut().skip(2).zip(numbers.take(5)) {
        *place = u8::try_from(number).unwrap_or(0);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_time_has_its_places() {
        // 2026-11-27T10:47:12Z
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_776_432);
        let expected = [0xea, 0x07, 11, 27, 10, 47, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(efi_time(time), expected);
        let header = unsigned(time);
        assert_eq!(header.len(), 40);
        assert_eq!(payload(&[&header[..], b"lists"].concat()), Ok(&b"lists"[..]));
    }

    #[test]
    fn a_damaged_header_is_noticed() {
        let whole = [&unsigned(SystemTime::UNIX_EPOCH)[..], b"lists"].concat();
        for len in 0..40 {
            assert!(payload(&whole[..len]).is_err(), "{len}");
        }
        for at in 16..40 {
            let mut other = whole.clone();
            other[at] ^= 0x40;
            assert!(payload(&other).is_err(), "{at}");
        }
    }
}
