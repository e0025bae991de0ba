//! X.509 certificates (RFC 5280), as far as their public key: in PEM (RFC 7468), or DER.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

use super::PublicKey;
use super::der::{Der, INTEGER, Key, SEQUENCE};

/// A file of some certificates. One has 1 to 2 KiB.
pub const MAX_BYTES: u64 = 64 << 10;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// `[0] EXPLICIT`: the version.
const VERSION: u8 = 0xA0;

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

    pub(super) fn of_der(der: &[u8]) -> Result<Certificate, &'static str> {
        let (key, bits) = public_key(der).ok_or("it is not an X.509 certificate with an RSA key")?;
        let key_id = Sha1::digest(bits).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Certificate { key: key?, key_id })
    }
}

/// The key, and its bits.
fn public_key(der: &[u8]) -> Option<Key<'_>> {
    let mut certificate = Der::of(der)?;
    let mut signed = certificate.value(SEQUENCE)?;
    if signed.begins_with(VERSION) {
        signed.value(VERSION)?;
    }
    signed.value(INTEGER)?;
    // Its algorithm, the issuer, the dates, the subject.
    for _ in 0..4 {
        signed.value(SEQUENCE)?;
    }
    signed.value(SEQUENCE)?.public_key()
}
