//! A session: what is secret crosses the bus encrypted, and answers cannot be exchanged on the way (part 1, 17.6 to 19).

use super::command::{Code, Handle, In, Out};
use super::crypto;
use crate::error::Result;
use crate::sys::limits::wipe;

pub(super) struct Session {
    pub(super) handle: u32,
    key: [u8; 32],
    /// What each side has added last, so that no command is like another.
    caller: [u8; 32],
    tpm: Vec<u8>,
}

impl Drop for Session {
    fn drop(&mut self) {
        wipe(&mut self.key);
    }
}

impl Session {
    pub(super) const CONTINUE: u8 = 1;
    pub(super) const DECRYPT: u8 = 0x20;
    pub(super) const ENCRYPT: u8 = 0x40;

    /// From what both sides have sent, and the salt that only the TPM could read.
    pub(super) fn new(handle: u32, salt: &[u8; 32], caller: [u8; 32], tpm: Vec<u8>) -> Session {
        Session { handle, key: crypto::derive(salt, "ATH", &tpm, &caller, 256), caller, tpm }
    }

    /// Before each command.
    pub(super) fn renew(&mut self) -> Result<()> {
        crypto::random(&mut self.caller)
    }

    fn secret(&self, password: &[u8], newer: &[u8], older: &[u8]) -> [u8; 32] {
        let mut key = [&self.key[..], password].concat();
        let secret = crypto::derive(&key, "CFB", newer, older, 256);
        wipe(&mut key);
        secret
    }

    /// The first parameter of a command, which has a length of two bytes.
    pub(super) fn encrypt(&self, parameters: &mut [u8], password: &[u8]) -> Option<()> {
        let mut secret = self.secret(password, &self.caller, &self.tpm);
        crypto::cfb(&secret, first_parameter(parameters)?, true);
        wipe(&mut secret);
        Some(())
    }

    /// The first parameter of an answer that was checked; of a session without authorization.
    pub(super) fn decrypt(&self, parameters: &mut [u8]) -> Option<()> {
        let mut secret = self.secret(&[], &self.tpm, &self.caller);
        crypto::cfb(&secret, first_parameter(parameters)?, false);
        wipe(&mut secret);
        Some(())
    }

    fn code(
        &self,
        password: &[u8],
        digest: &[u8; 32],
        newer: &[u8],
        older: &[u8],
        attributes: u8,
    ) -> [u8; 32] {
        let mut key = [&self.key[..], password].concat();
        let code = crypto::hmac(&key, &[digest, newer, older, &[attributes]]);
        wipe(&mut key);
        code
    }

    /// Its part of a command's authorization area.
    pub(super) fn authorize(
        &self,
        code: Code,
        handles: &[Handle],
        parameters: &[u8],
        password: &[u8],
        attribute: u8,
    ) -> Out {
        let digest = command_digest(code, handles, parameters);
        let attributes = Self::CONTINUE | attribute;
        let proof = self.code(password, &digest, &self.caller, &self.tpm, attributes);
        Out::default().u32(self.handle).sized(&self.caller).u8(attributes).sized(&proof)
    }

    /// Whether an answer comes from the TPM that the session is with.
    pub(super) fn check(
        &mut self,
        code: Code,
        parameters: &[u8],
        area: &mut In<'_>,
        password: &[u8],
        attribute: u8,
    ) -> Option<()> {
        let nonce = area.sized()?.to_vec();
        let attributes = area.u8()?;
        let found = area.sized()?;
        let digest = crypto::sha256(&[&0u32.to_be_bytes(), &code.0.to_be_bytes(), parameters]);
        let expected = self.code(password, &digest, &nonce, &self.caller, attributes);
        self.tpm = nonce;
        (found == expected && attributes & attribute == attribute && area.0.is_empty()).then_some(())
    }
}

fn first_parameter(parameters: &mut [u8]) -> Option<&mut [u8]> {
    let (len, rest) = parameters.split_at_mut_checked(2)?;
    let len = u16::from_be_bytes([*len.first()?, *len.get(1)?]);
    rest.get_mut(..len.into())
}

/// The digest of a command that its authorization covers.
pub(super) fn command_digest(code: Code, handles: &[Handle], parameters: &[u8]) -> [u8; 32] {
    let names: Vec<&[u8]> = handles.iter().map(|handle| handle.name.as_slice()).collect();
    crypto::sha256(&[&[&code.0.to_be_bytes()[..]], names.as_slice(), &[parameters]].concat())
}
