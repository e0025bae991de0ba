//! RSAES-OAEP of RFC 8017, 7.1.1, with SHA-256 and MGF1 with SHA-256.

use sha2::{Digest as _, Sha256};

use super::PublicKey;
use crate::sys::limits::wipe;

const HASH: usize = 32;

impl PublicKey {
    /// What only the owner of the private key can read. `None` for a message that is too long. `seed`: random.
    #[must_use]
    pub fn encrypt(&self, label: &[u8], message: &[u8], seed: &[u8; HASH]) -> Option<Vec<u8>> {
        let len = self.modulus.len();
        let zeroes = len.checked_sub(2 * HASH + 2 + message.len())?;
        let mut block = Vec::with_capacity(len);
        block.push(0);
        block.extend(seed);
        block.extend(Sha256::digest(label));
        block.extend(std::iter::repeat_n(0, zeroes));
        block.push(1);
        block.extend(message);
        let (seed, data) = block.get_mut(1..)?.split_at_mut_checked(HASH)?;
        mask(data, seed);
        mask(seed, data);
        let encrypted = self.power(&block);
        // Seed and message can be computed of it.
        wipe(&mut block);
        encrypted
    }
}

/// With MGF1 (RFC 8017, B.2.1).
fn mask(data: &mut [u8], seed: &[u8]) {
    for (chunk, count) in data.chunks_mut(HASH).zip(0u32..) {
        let mask = Sha256::new().chain_update(seed).chain_update(count.to_be_bytes()).finalize();
        chunk.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
}
