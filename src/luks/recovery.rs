//! The recovery passphrase: a second one of each encrypted partition, which only the owner can read.

use std::fmt;

use super::passphrase::Passphrase;
use crate::error::{Code, Error, Result};
use crate::signature::PublicKey;
use crate::sys::limits::{self, wipe};
use crate::sys::random;

/// Its key slot.
pub(crate) const SLOT: u8 = 1;
/// What the device itself unlocks with is in one of these: the first one, or, after a recovery, one of the last, which an owner who adds keys does not get.
pub(crate) const DEVICE_SLOTS: [u8; 5] = [0, 28, 29, 30, 31];

/// The recovery passphrase, encrypted for its owner, on the partition that is not encrypted.
pub(crate) const FILE: &str = "recovery.enc";

const DIGITS: usize = 64;

/// As its text: lower-case hex digits. Wiped when it is dropped.
pub(crate) struct Recovery(Box<[u8; DIGITS]>);

impl Recovery {
    fn empty() -> Recovery {
        let recovery = Recovery(Box::new([0; DIGITS]));
        limits::keep_in_memory(&*recovery.0);
        recovery
    }

    /// A new one, of 256 random bits.
    pub(crate) fn random() -> Result<Recovery> {
        let mut recovery = Recovery::empty();
        // Each digit is one of sixteen, with the same probability.
        let random = random::fill(&mut *recovery.0);
        random.map_err(|e| Error::new(Code::Io, "the kernel gives no random numbers").because(e))?;
        for byte in recovery.0.iter_mut() {
            *byte = match *byte & 0xf {
                digit @ 0..=9 => b'0' + digit,
                digit => b'a' - 10 + digit,
            };
        }
        Ok(recovery)
    }

    /// From what an owner has typed or decrypted: space around it does not count, nor the case of letters.
    pub(crate) fn of_text(text: &[u8]) -> Result<Recovery> {
        let text = text.trim_ascii();
        if text.len() != DIGITS || !text.iter().all(u8::is_ascii_hexdigit) {
            return Err(wrong("it does not have 64 hex digits"));
        }
        let mut recovery = Recovery::empty();
        recovery.0.iter_mut().zip(text).for_each(|(to, from)| *to = from.to_ascii_lowercase());
        Ok(recovery)
    }

    /// For cryptsetup.
    pub(crate) fn passphrase(&self) -> Result<Passphrase> {
        Passphrase::of_bytes(&*self.0)
    }

    /// What [`FILE`] has in it.
    pub(crate) fn encrypted_for(&self, key: &PublicKey) -> Result<Vec<u8>> {
        let error = || Error::new(Code::Io, "cannot encrypt the recovery passphrase for its owner");
        let mut seed = [0; 32];
        random::fill(&mut seed).map_err(|e| error().because(e))?;
        let encrypted = key.encrypt(b"", &*self.0, &seed).ok_or_else(error);
        wipe(&mut seed);
        encrypted
    }
}

pub(crate) fn wrong(why: &str) -> Error {
    Error::new(Code::RecoveryPassphraseWrong, format!("this is not the recovery passphrase: {why}"))
}

impl fmt::Debug for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a recovery passphrase")
    }
}

impl Drop for Recovery {
    fn drop(&mut self) {
        wipe(&mut *self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn an_owner_may_type_it_in_any_case() {
        let new = Recovery::random().unwrap();
        let text = String::from_utf8(new.0.to_vec()).unwrap();
        assert_ne!(Recovery::random().unwrap().0, new.0);
        for typed in [text.clone(), text.to_uppercase(), format!(" {text}\r\n")] {
            let mut read = String::new();
            let recovery = Recovery::of_text(typed.as_bytes()).unwrap();
            recovery.passphrase().unwrap().input().unwrap().read_to_string(&mut read).unwrap();
            assert_eq!(read, text);
        }
        for typed in ["", &text[1..], &format!("{text}0"), &format!("{}g", &text[1..])] {
            let e = Recovery::of_text(typed.as_bytes()).unwrap_err();
            assert_eq!(e.code(), Code::RecoveryPassphraseWrong, "{typed}");
            assert!(typed.is_empty() || !e.to_string().contains(typed), "{e}");
        }
    }
}
