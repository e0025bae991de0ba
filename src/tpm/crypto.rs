//! The cryptography of sessions: HMAC, the derivation of keys, and AES in CFB mode.

use aes::Aes128;
use cfb_mode::cipher::{InnerIvInit as _, KeyInit as _};
use cfb_mode::{Decryptor, Encryptor};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use crate::error::{Code, Error, Result};
use crate::sys::random;

const AES_BLOCK: usize = 16;

pub(super) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    parts.iter().fold(Sha256::new(), Digest::chain_update).finalize().into()
}

/// RFC 2104. What is made of the key is wiped.
pub(super) fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let Ok(mac) = Hmac::<Sha256>::new_from_slice(key) else { return [0; 32] };
    parts.iter().fold(mac, Mac::chain_update).finalize().into_bytes().into()
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
    if encrypts {
        Encryptor::inner_iv_init(cipher, &first.into()).encrypt(data);
    } else {
        Decryptor::inner_iv_init(cipher, &first.into()).decrypt(data);
    }
}

/// Random bytes of the kernel.
pub(super) fn random(bytes: &mut [u8]) -> Result<()> {
    random::fill(bytes)
        .map_err(|e| Error::new(Code::TpmFailed, "the kernel has no random numbers").object("TPM").because(e))
}
