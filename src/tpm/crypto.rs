//! The cryptography of sessions: HMAC, the derivation of keys, and AES in CFB mode.

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt as _, KeyInit as _};
use sha2::{Digest, Sha256};

use crate::error::{Code, Error, Result};
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

/// Random bytes of the kernel.
pub(super) fn random(bytes: &mut [u8]) -> Result<()> {
    random::fill(bytes)
        .map_err(|e| Error::new(Code::TpmFailed, "the kernel has no random numbers").object("TPM").because(e))
}
