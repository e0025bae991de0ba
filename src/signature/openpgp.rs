//! OpenPGP signatures of files by RSA keys, as far as GRUB knows them (RFC 4880, 4.2, 5.2.3 and 5.5.2): of its configuration, and of the kernel.

use sha2::{Digest, Sha256, Sha512};

use super::PublicKey;

/// Far above any; a key with many names has some KiB.
pub const MAX_BYTES: usize = 64 << 10;

/// Tags of packets.
const SIGNATURE: u8 = 2;
const KEYS: [u8; 2] = [6, 14];

const VERSION: u8 = 4;
/// RSA for both uses, and for signatures alone.
const RSA: [u8; 2] = [1, 3];
/// Of a file as it is, without changed ends of lines.
const OF_FILE: u8 = 0;
const SHA256: u8 = 8;
const SHA512: u8 = 10;

/// What precedes a digest in PKCS#1 v1.5 (RFC 8017, 9.2, note 1).
const NAME_OF_SHA256: [u8; 19] = [
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05, 0x00,
    0x04, 0x20,
];
const NAME_OF_SHA512: [u8; 19] = [
    0x30, 0x51, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x03, 0x05, 0x00,
    0x04, 0x40,
];

/// The RSA keys of a file, subkeys too.
pub fn keys(file: &[u8]) -> Result<Vec<PublicKey>, &'static str> {
    let mut found = Vec::new();
    for (tag, body) in packets(file)? {
        if KEYS.contains(&tag) {
            found.extend(key(body)?);
        }
    }
    if found.is_empty() { Err("it has no RSA key of OpenPGP") } else { Ok(found) }
}

/// Whether a signature of this file is by one of these keys.
pub fn is_signed(keys: &[PublicKey], file: &[u8], signatures: &[u8]) -> Result<bool, &'static str> {
    let mut found = packets(signatures)?.into_iter().filter(|(tag, _)| *tag == SIGNATURE).peekable();
    if found.peek().is_none() {
        return Err("it has no signature of OpenPGP");
    }
    Ok(found.any(|(_, body)| {
        signed(body, file).is_some_and(|(payload, signature)| {
            keys.iter().any(|key| {
                let len = key.signature_len();
                // Numbers are without leading zeroes there.
                let zeroes = len.checked_sub(signature.len());
                zeroes.is_some_and(|zeroes| key.has_signed(&payload, &[&vec![0; zeroes], signature].concat()))
            })
        })
    }))
}

/// The packets of a file: tag and body.
fn packets(file: &[u8]) -> Result<Vec<(u8, &[u8])>, &'static str> {
    if file.len() > MAX_BYTES {
        return Err("it is too large for a file of OpenPGP");
    }
    let mut rest = Bytes(file);
    let mut found = Vec::new();
    while !rest.0.is_empty() {
        found.push(packet(&mut rest).ok_or("it is no file of OpenPGP, or damaged")?);
    }
    Ok(found)
}

fn packet<'a>(rest: &mut Bytes<'a>) -> Option<(u8, &'a [u8])> {
    let head = rest.u8()?;
    let (tag, len) = match (head & 0x80, head & 0x40) {
        (0, _) => return None,
        (_, 0) => {
            let len = match head & 3 {
                0 => usize::from(rest.u8()?),
                1 => usize::from(rest.u16()?),
                2 => rest.u32()?,
                _ => return None,
            };
            (head >> 2 & 0x0f, len)
        }
        _ => {
            let len = match rest.u8()? {
                first @ 0..=191 => usize::from(first),
                first @ 192..=223 => ((usize::from(first) - 192) << 8) + usize::from(rest.u8()?) + 192,
                255 => rest.u32()?,
                _ => return None,
            };
            (head & 0x3f, len)
        }
    };
    Some((tag, rest.take(len)?))
}

/// `None`: a key of another kind.
fn key(body: &[u8]) -> Result<Option<PublicKey>, &'static str> {
    let mut rest = Bytes(body);
    let damaged = "a key of it is damaged";
    let (version, _made, kind) =
        (rest.u8().ok_or(damaged)?, rest.u32().ok_or(damaged)?, rest.u8().ok_or(damaged)?);
    if version != VERSION || !RSA.contains(&kind) {
        return Ok(None);
    }
    let (modulus, exponent) = (rest.number().ok_or(damaged)?, rest.number().ok_or(damaged)?);
    PublicKey::new(modulus, exponent).map(Some)
}

/// What a signature is over, with the name of its digest, and the signature. `None`: one of another kind, or damaged.
fn signed<'a>(body: &'a [u8], file: &[u8]) -> Option<(Vec<u8>, &'a [u8])> {
    let mut rest = Bytes(body);
    let head = rest.take(4)?;
    let [VERSION, OF_FILE, kind, digest] = *head else { return None };
    if !RSA.contains(&kind) {
        return None;
    }
    let hashed = usize::from(rest.u16()?);
    rest.take(hashed)?;
    let covered = body.get(..head.len() + 2 + hashed)?;
    let unhashed = usize::from(rest.u16()?);
    rest.take(unhashed)?;
    // The first two bytes of the digest, for a quick refusal.
    rest.u16()?;
    let signature = rest.number()?;
    let len = u32::try_from(covered.len()).ok()?.to_be_bytes();
    let parts = [file, covered, &[VERSION, 0xff], &len];
    let payload = match digest {
        SHA256 => [&NAME_OF_SHA256[..], &digest_of::<Sha256>(&parts)].concat(),
        SHA512 => [&NAME_OF_SHA512[..], &digest_of::<Sha512>(&parts)].concat(),
        _ => return None,
    };
    Some((payload, signature))
}

fn digest_of<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
    parts.iter().fold(D::new(), D::chain_update).finalize().to_vec()
}

/// What is left to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<usize> {
        usize::try_from(u32::from_be_bytes(self.take(4)?.try_into().ok()?)).ok()
    }

    /// A number after its length in bits.
    fn number(&mut self) -> Option<&'a [u8]> {
        let bits = usize::from(self.u16()?);
        self.take(bits.div_ceil(8))
    }
}
