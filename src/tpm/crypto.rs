//! The cryptography of sessions: HMAC, the derivation of keys, AES in CFB mode, and the encryption for a key of the TPM.

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt as _, KeyInit as _};
use sha2::{Digest, Sha256};

use crate::error::{Code, Error, Result};
use crate::signature::PublicKey;
use crate::sys::random;

const BLOCK: usize = 64;
const AES_BLOCK: usize = 16;

pub(super) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    parts.iter().fold(Sha256::new(), Digest::chain_update).finalize().into()
}

/// RFC 2104.
pub(super) fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let short = if key.len() > BLOCK { sha256(&[key]).to_vec() } else { key.to_vec() };
    let pad =
        |with: u8| -> Vec<u8> { (0..BLOCK).map(|i| short.get(i).copied().unwrap_or(0) ^ with).collect() };
    let inner = sha256(&[&[pad(0x36).as_slice()], parts].concat());
    sha256(&[&pad(0x5c), &inner])
}

/// KDFa of part 1, 11.4.10.2, for at most 256 bits: the only block has the number 1.
pub(super) fn derive(key: &[u8], label: &str, one: &[u8], two: &[u8], bits: u32) -> [u8; 32] {
    hmac(key, &[&1u32.to_be_bytes(), label.as_bytes(), &[0], one, two, &bits.to_be_bytes()])
}

/// AES-128 in CFB mode, in place. Its key and first block are the two halves of `secret`.
pub(super) fn cfb(secret: &[u8; 32], data: &mut [u8], encrypts: bool) {
    let (key, first) = secret.split_at(AES_BLOCK);
    let (Ok(key), Ok(first)) = (<[u8; AES_BLOCK]>::try_from(key), <[u8; AES_BLOCK]>::try_from(first)) else {
        return;
    };
    let cipher = Aes128::new(&key.into());
    let mut before = first;
    for chunk in data.chunks_mut(AES_BLOCK) {
        let mut mask = before.into();
        cipher.encrypt_block(&mut mask);
        for ((byte, mask), next) in chunk.iter_mut().zip(mask).zip(&mut before) {
            // The text that is encrypted goes into the next block.
            let text = *byte;
            *byte ^= mask;
            *next = if encrypts { *byte } else { text };
        }
    }
}

/// RSAES-OAEP of RFC 8017, 7.1, with SHA-256 and the label that the TPM wants for a secret (part 1, B.10.4).
pub(super) fn encrypt_for(key: &PublicKey, secret: &[u8; 32], seed: &[u8; 32]) -> Option<Vec<u8>> {
    let len = key.signature_len();
    let zeroes = len.checked_sub(2 * 32 + 2 + secret.len())?;
    let mut block = [&sha256(&[b"SECRET\0"])[..], &vec![0; zeroes], &[1], secret].concat();
    mask(&mut block, seed);
    let mut seed = *seed;
    mask(&mut seed, &block);
    key.power(&[&[0][..], &seed, &block].concat())
}

/// With MGF1.
fn mask(data: &mut [u8], seed: &[u8]) {
    for (chunk, count) in data.chunks_mut(32).zip(0u32..) {
        let mask = sha256(&[seed, &count.to_be_bytes()]);
        chunk.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
}

/// Random bytes of the kernel.
pub(super) fn random(bytes: &mut [u8]) -> Result<()> {
    random::fill(bytes)
        .map_err(|e| Error::new(Code::TpmFailed, "the kernel has no random numbers").object("TPM").because(e))
}
