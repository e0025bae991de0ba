//! The encoding of keys and certificates (X.690), as far as RSA keys need it.

use super::PublicKey;

pub(super) const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;

/// `rsaEncryption`, 1.2.840.113549.1.1.1 (RFC 8017, appendix C).
const RSA: [u8; 9] = [0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x01];

/// A key, and its bits.
pub(super) type Key<'a> = (Result<PublicKey, &'static str>, &'a [u8]);

/// What is left to be read.
pub(super) struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The contents of a file that is one sequence.
    pub(super) fn of(file: &'a [u8]) -> Option<Der<'a>> {
        let mut file = Der(file);
        file.value(SEQUENCE).filter(|_| file.0.is_empty())
    }

    pub(super) fn begins_with(&self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }

    /// The contents of the next value, which must have this tag. Of an indefinite length, or of one that is not as short as it can be: none.
    pub(super) fn value(&mut self, tag: u8) -> Option<Der<'a>> {
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

    /// From the contents of `SubjectPublicKeyInfo` (RFC 5280, 4.1.2.7).
    pub(super) fn public_key(mut self) -> Option<Key<'a>> {
        if self.value(SEQUENCE)?.value(OBJECT)?.0 != RSA {
            return None;
        }
        let (0, bits) = self.value(BIT_STRING)?.0.split_first()? else { return None };
        Some((Der(bits).value(SEQUENCE)?.rsa_key()?, bits))
    }

    /// From the contents of `RSAPublicKey` (RFC 8017, A.1.1).
    pub(super) fn rsa_key(mut self) -> Option<Result<PublicKey, &'static str>> {
        let (modulus, exponent) = (self.number()?, self.number()?);
        Some(PublicKey::new(modulus, exponent))
    }
}
