//! Chunk digests, as receipts, `copal digest` and the verification use them.
//!
//! An image is cut into chunks of [`CHUNK`] bytes, the last one shorter. The *chunk digest* of an image is the SHA-256
//! over the concatenated SHA-256 digests of its chunks. Several threads can compute it, and a chunk that differs is found
//! without reading the rest.

use std::sync::OnceLock;

use sha2::{Digest, Sha256};

/// Bytes of a chunk. Part of the definition of the chunk digest.
pub const CHUNK: u64 = 1 << 20;

pub const CHUNK_LEN: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest256(pub [u8; 32]);

impl Digest256 {
    #[must_use]
    pub fn of(data: &[u8]) -> Self {
        Digest256(Sha256::digest(data).into())
    }

    #[must_use]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    #[must_use]
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != 64 {
            return None;
        }
        let mut out = [0u8; 32];
        for (o, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            let [hi, lo] = pair else { return None };
            let digit = |b: &u8| char::from(*b).to_digit(16).and_then(|d| u8::try_from(d).ok());
            *o = digit(hi)? << 4 | digit(lo)?;
        }
        Some(Digest256(out))
    }
}

impl std::fmt::Display for Digest256 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl std::fmt::Debug for Digest256 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl serde::Serialize for Digest256 {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[must_use]
pub(crate) fn is_zero(data: &[u8]) -> bool {
    // All bytes of a slice are equal if it equals itself shifted by one; `memcmp` compares at memory speed on every target.
    match data {
        [] => true,
        [first, rest @ ..] => *first == 0 && data.get(..rest.len()) == Some(rest),
    }
}

#[must_use]
pub fn chunk_digest(data: &[u8]) -> Digest256 {
    if data.len() == CHUNK_LEN && is_zero(data) { zero_chunk() } else { Digest256::of(data) }
}

#[must_use]
pub(crate) fn zero_chunk() -> Digest256 {
    static ZERO: OnceLock<Digest256> = OnceLock::new();
    *ZERO.get_or_init(|| Digest256::of(&vec![0; CHUNK_LEN]))
}

#[must_use]
pub fn root(chunks: &[Digest256]) -> Digest256 {
    let mut hash = Sha256::new();
    for c in chunks {
        hash.update(c.0);
    }
    Digest256(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_digests() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest256::of(b"abc").to_string(), abc);
        assert_eq!(Digest256::from_hex(abc), Some(Digest256::of(b"abc")));
        assert_eq!(Digest256::from_hex("zz"), None);
        assert_eq!(Digest256::from_hex(&format!("+{}", &abc[1..])), None);
        assert_eq!(
            zero_chunk().to_string(),
            "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58"
        );
        assert_eq!(chunk_digest(&[0; 5]), Digest256::of(&[0; 5]));
    }

    #[test]
    fn zeroes_are_recognised_at_any_length_and_place() {
        for len in [0usize, 1, 2, 7, 4096, 4097] {
            let mut data = vec![0u8; len];
            assert!(is_zero(&data));
            for i in 0..len.min(9) {
                for at in [i, len - 1 - i] {
                    data[at] = 1;
                    assert!(!is_zero(&data), "{len} {at}");
                    data[at] = 0;
                }
            }
        }
        assert!(!is_zero(&[7; 64]));
    }
}
