//! Digests of policies, computed without a TPM (part 3, 23.7 and 23.6).

use super::command::{POLICY_OR, POLICY_PCR};
use super::{command, crypto};

pub type Digest = [u8; 32];

/// PCRs 0, 2, 3 and 7 of the SHA-256 bank: a count, the bank, and a bit for each PCR in three bytes.
pub(super) fn selection() -> command::Out {
    command::Out::default().u32(1).u16(command::SHA256).u8(3).bytes(&[0x8d, 0, 0])
}

/// Of a policy that is met by these values of PCRs 0, 2, 3 and 7.
#[must_use]
pub fn pcr(values: &[[u8; 32]; 4]) -> Digest {
    let values = crypto::sha256(&[values.as_flattened()]);
    crypto::sha256(&[&[0; 32], &POLICY_PCR.0.to_be_bytes(), &selection().0, &values])
}

/// Of a policy that is met by each of these, of which there are two to eight. One stands for itself.
#[must_use]
pub fn any(branches: &[Digest]) -> Digest {
    match branches {
        [one] => *one,
        several => crypto::sha256(&[&[0; 32], &POLICY_OR.0.to_be_bytes(), several.as_flattened()]),
    }
}
