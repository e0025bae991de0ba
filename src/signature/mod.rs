//! RSA signatures, and the certificates with the keys that made them; and what is encrypted for the owner of such a key.
//!
//! Only public keys: none is secret, so that nothing has to take the same time for all values. RSA PKCS#1 v1.5 (RFC 8017, 8.2.2) is what the
//! firmware, GRUB and the signer of balenaOS images use. A crate for it (`rsa`) adds four times as much code, most of it for private keys.

mod certificate;
mod der;
mod kernel;
mod number;
mod oaep;
pub mod openpgp;
mod pem;

pub use certificate::{Certificate, MAX_BYTES};
pub use kernel::is_trusted;
pub use pem::public_key;

/// In bits. Shorter ones can be broken, longer ones are made by no signer.
const MODULUS_BITS: std::ops::RangeInclusive<usize> = 2048..=4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// Big-endian, without leading zeroes.
    modulus: Vec<u8>,
    exponent: u64,
}

impl PublicKey {
    /// From big-endian numbers.
    pub(crate) fn new(modulus: &[u8], exponent: &[u8]) -> Result<Self, &'static str> {
        let modulus = number::without_zeroes(modulus);
        let bits = number::bits(modulus);
        if !MODULUS_BITS.contains(&bits) {
            return Err("its RSA key does not have 2048 to 4096 bits");
        }
        let exponent = number::without_zeroes(exponent);
        let mut bytes = [0; 8];
        let place = bytes.len().checked_sub(exponent.len()).and_then(|from| bytes.get_mut(from..));
        place.ok_or("the exponent of its RSA key has more than 64 bits")?.copy_from_slice(exponent);
        let exponent = u64::from_be_bytes(bytes);
        if exponent < 3 || exponent.is_multiple_of(2) || modulus.last().is_none_or(|b| b.is_multiple_of(2)) {
            return Err("its RSA key has an even modulus or an impossible exponent");
        }
        Ok(PublicKey { modulus: modulus.to_owned(), exponent })
    }

    /// Whether `signature` is that of this key over `payload`, which is padded as type 1 and nothing else: without the name of a digest.
    #[must_use]
    pub fn has_signed(&self, payload: &[u8], signature: &[u8]) -> bool {
        signature.len() == self.modulus.len()
            && number::power(signature, self.exponent, &self.modulus)
                .zip(padded(payload, self.modulus.len()))
                .is_some_and(|(found, expected)| found == expected)
    }

    /// The public operation. `None` for a number that is not below the modulus.
    fn power(&self, number: &[u8]) -> Option<Vec<u8>> {
        number::power(number, self.exponent, &self.modulus)
    }

    /// The length of every signature, in bytes.
    #[must_use]
    pub fn signature_len(&self) -> usize {
        self.modulus.len()
    }
}

/// `00 01 FF … FF 00 PAYLOAD`, with at least eight `FF`. Compared as a whole, it leaves a forger no place to fill.
fn padded(payload: &[u8], len: usize) -> Option<Vec<u8>> {
    let filler = len.checked_sub(payload.len() + 3).filter(|filler| *filler >= 8)?;
    Some([&[0, 1], vec![0xFF; filler].as_slice(), &[0], payload].concat())
}
