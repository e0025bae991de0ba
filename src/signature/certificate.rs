//! X.509 certificates (RFC 5280), as far as their public key: in PEM (RFC 7468), or DER.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

use super::PublicKey;

/// A file of some certificates. One has 1 to 2 KiB.
pub const MAX_BYTES: u64 = 64 << 10;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
/// `[0] EXPLICIT`: the version.
const VERSION: u8 = 0xA0;

/// `rsaEncryption`, 1.2.840.113549.1.1.1 (RFC 8017, appendix C).
const RSA: [u8; 9] = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x01];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub key: PublicKey,
    /// SHA-1 of the key's bits: the usual subject key identifier (RFC 5280, 4.2.1.2), by which the kernel names keys. In lower-case hex.
    pub key_id: String,
}

impl Certificate {
    /// The first certificate of a file. Its dates do not count: the clock of a device that starts for the first time is wrong.
    pub fn first_of(file: &[u8]) -> Result<Certificate, &'static str> {
        let text = std::str::from_utf8(file).ok().filter(|text| text.contains(BEGIN));
        match text {
            None => Self::of_der(file),
            Some(text) => {
                let (_, rest) = text.split_once(BEGIN).ok_or("it has no certificate")?;
                let (body, _) = rest.split_once(END).ok_or("its first certificate has no end")?;
                let body: String = body.split_whitespace().collect();
                Self::of_der(&STANDARD.decode(body).map_err(|_| "its first certificate is not base64")?)
            }
        }
    }

    fn of_der(der: &[u8]) -> Result<Certificate, &'static str> {
        let (key, bits) = public_key(der).ok_or("it is not an X.509 certificate with an RSA key")?;
        let key_id = Sha1::digest(bits).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Certificate { key: key?, key_id })
    }
}

/// The key, and its bits.
fn public_key(der: &[u8]) -> Option<(Result<PublicKey, &'static str>, &[u8])> {
    let mut file = Der(der);
    let mut certificate = file.value(SEQUENCE)?;
    if !file.0.is_empty() {
        return None;
    }
    let mut signed = certificate.value(SEQUENCE)?;
    if signed.0.first() == Some(&VERSION) {
        signed.value(VERSION)?;
    }
    signed.value(INTEGER)?;
    // Its algorithm, the issuer, the dates, the subject.
    for _ in 0..4 {
        signed.value(SEQUENCE)?;
    }
    let mut info = signed.value(SEQUENCE)?;
    if info.value(SEQUENCE)?.value(OBJECT)?.0 != RSA {
        return None;
    }
    let (0, bits) = info.value(BIT_STRING)?.0.split_first()? else { return None };
    let mut numbers = Der(bits).value(SEQUENCE)?;
    let (modulus, exponent) = (numbers.number()?, numbers.number()?);
    Some((PublicKey::new(modulus, exponent), bits))
}

/// What is left to be read.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The contents of the next value, which must have this tag. Of an indefinite length, or of one that is not as short as it can be: none.
    fn value(&mut self, tag: u8) -> Option<Der<'a>> {
        let (first, rest) = self.0.split_first()?;
        let (length, rest) = rest.split_first()?;
        let (length, rest) = match length {
            0..=0x7F => (usize::from(*length), rest),
            0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
                let length = bytes.iter().fold(0, |all, byte| all << 8 | usize::from(*byte));
                (bytes.first() != Some(&0) && length >= 0x80).then_some((length, rest))?
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(length)?;
        if *first != tag {
            return None;
        }
        self.0 = rest;
        Some(Der(contents))
    }

    /// A number that is not negative.
    fn number(&mut self) -> Option<&'a [u8]> {
        self.value(INTEGER).map(|number| number.0).filter(|number| number.first().is_some_and(|b| *b < 0x80))
    }
}
