//! Commands with their authorization, and the sessions that they need.

use super::command::{self, Code, HEADER, Handle, In, NO_SESSIONS, Out, PASSWORD, SESSIONS};
use super::crypto;
use super::device::{self, SaltKey, Tpm};
use super::session::Session;
use crate::error::{Error, Result};
use crate::signature::PublicKey;
use crate::sys::limits::wipe;

const HMAC_SESSION: u8 = 0;
const POLICY_SESSION: u8 = 1;

/// Fixed to this TPM and its parent, made by the TPM, used with its authorization and without a counter of failures; it decrypts for the TPM only.
const STORAGE_KEY: u32 = 0x0003_0472;
const RSA_BITS: u16 = 2048;
const AES_BITS: u16 = 128;
const EXPONENT: [u8; 3] = [1, 0, 1];

/// How a command is authorized.
pub(super) enum By<'a> {
    /// Nothing has to be.
    Nothing,
    /// A password in the clear; empty for a hierarchy that has none.
    Password(&'a [u8]),
    /// A password that the TPM can check without seeing it, and an encrypted first parameter.
    Session(&'a mut Session, &'a [u8]),
    /// The policy of this session; the answer's first parameter is encrypted by the other one, if there is one.
    Policy(u32, Option<&'a mut Session>),
}

impl Tpm {
    /// The handle, if `returns_handle`, and the parameters of the answer.
    pub(super) fn call(
        &mut self,
        code: Code,
        handles: &[Handle],
        by: By<'_>,
        parameters: Out,
        returns_handle: bool,
    ) -> Result<(u32, Vec<u8>)> {
        let mut parameters = parameters.0;
        let malformed = || damaged(code);
        let mut auth = Out::default();
        let mut session = None;
        match by {
            By::Nothing => {}
            By::Password(password) => auth = password_area(password),
            By::Session(own, password) => {
                own.encrypt(&mut parameters, password).ok_or_else(malformed)?;
                auth = own.authorize(code, handles, &parameters, password, Session::DECRYPT);
                session = Some((own, password, Session::DECRYPT, false));
            }
            By::Policy(policy, other) => {
                auth = Out::default().u32(policy).sized(&[]).u8(Session::CONTINUE).sized(&[]);
                if let Some(other) = other {
                    let own = other.authorize(code, handles, &parameters, &[], Session::ENCRYPT);
                    auth = auth.bytes(&own.0);
                    session = Some((other, &[][..], Session::ENCRYPT, true));
                }
            }
        }
        let mut body = handles.iter().fold(Out::default(), |out, handle| out.u32(handle.number));
        let has_sessions = !auth.0.is_empty();
        if has_sessions {
            body = body.u32(u32::try_from(auth.0.len()).unwrap_or(u32::MAX)).bytes(&auth.0);
        }
        let mut body = body.bytes(&parameters);
        // What is secret in it is not encrypted without a session.
        wipe(&mut parameters);
        let tag = if has_sessions { SESSIONS } else { NO_SESSIONS };
        let size = u32::try_from(HEADER + body.0.len()).unwrap_or(u32::MAX);
        let capacity = Vec::with_capacity(HEADER + body.0.len());
        let mut command = Out(capacity).u16(tag).u32(size).u32(code.0).bytes(&body.0);
        wipe(&mut body.0);
        let answer = self.transmit(code, &command.0);
        wipe(&mut command.0);
        let answer = Wiped(answer?);
        let mut rest = In(&answer.0);
        let handle = if returns_handle { rest.u32().ok_or_else(malformed)? } else { 0 };
        if !has_sessions {
            return Ok((handle, rest.0.to_vec()));
        }
        let len = rest.u32().and_then(|len| usize::try_from(len).ok()).ok_or_else(malformed)?;
        let mut answered = rest.bytes(len).ok_or_else(malformed)?.to_vec();
        if let Some((session, password, attributes, is_second)) = session {
            if is_second {
                // That of the policy: nonce, attributes, and no code.
                rest.sized().and_then(|_| rest.u8()).and_then(|_| rest.sized()).ok_or_else(malformed)?;
            }
            session.check(code, &answered, &mut rest, password, attributes).ok_or_else(|| forged(code))?;
            if attributes & Session::ENCRYPT != 0 {
                session.decrypt(&mut answered).ok_or_else(malformed)?;
            }
        }
        Ok((handle, answered))
    }
}

/// The passphrase may be in it.
struct Wiped(Vec<u8>);

impl Drop for Wiped {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

fn password_area(password: &[u8]) -> Out {
    Out::default().u32(PASSWORD).sized(&[]).u8(Session::CONTINUE).sized(password)
}

pub(super) fn damaged(code: Code) -> Error {
    device::failed(code).because(std::io::Error::other("its answer is damaged"))
}

fn forged(code: Code) -> Error {
    device::failed(code).because(std::io::Error::other("its answer does not belong to the session"))
}

fn create_key(tpm: &mut Tpm) -> Result<SaltKey> {
    let public = Out::default()
        .u16(command::RSA)
        .u16(command::SHA256)
        .u32(STORAGE_KEY)
        .sized(&[])
        .u16(command::AES)
        .u16(AES_BITS)
        .u16(command::CFB)
        .u16(command::NOTHING)
        .u16(RSA_BITS)
        .u32(0)
        .sized(&[]);
    let sensitive = Out::default().sized(&[]).sized(&[]);
    let parameters = Out::default().sized(&sensitive.0).sized(&public.0).sized(&[]).u32(0);
    let (handle, answer) =
        tpm.call(command::CREATE_PRIMARY, &[command::NULL.into()], By::Password(&[]), parameters, true)?;
    let key =
        In(&answer).sized().and_then(modulus).and_then(|modulus| PublicKey::new(modulus, &EXPONENT).ok());
    match key {
        Some(public) => Ok(SaltKey { handle, public }),
        None => {
            tpm.give_up(handle);
            Err(damaged(command::CREATE_PRIMARY))
        }
    }
}

/// In the public part of a key with the parameters above.
fn modulus(public: &[u8]) -> Option<&[u8]> {
    let mut fields = In(public);
    // Type, digest, attributes, policy; cipher with length and mode, scheme, length, exponent.
    fields.bytes(8)?;
    fields.sized()?;
    fields.bytes(14)?;
    fields.sized()
}

fn salted(tpm: &mut Tpm, primary: u32, key: &PublicKey) -> Result<Option<Session>> {
    let (mut salt, mut seed, mut caller) = ([0; 32], [0; 32], [0; 32]);
    crypto::random(&mut salt)?;
    crypto::random(&mut seed)?;
    crypto::random(&mut caller)?;
    // With the label of part 1, B.10.4.
    let Some(encrypted) = key.encrypt(b"SECRET\0", &salt, &seed) else {
        wipe(&mut salt);
        return Ok(None);
    };
    let parameters = Out::default()
        .sized(&caller)
        .sized(&encrypted)
        .u8(HMAC_SESSION)
        .u16(command::AES)
        .u16(AES_BITS)
        .u16(command::CFB)
        .u16(command::SHA256);
    let handles = [primary.into(), command::NULL.into()];
    let started = tpm.call(command::START_AUTH_SESSION, &handles, By::Nothing, parameters, true);
    let session = started.and_then(|(handle, answer)| match In(&answer).sized() {
        Some(nonce) => Ok(Session::new(handle, &salt, caller, nonce.to_vec())),
        None => {
            tpm.give_up(handle);
            Err(damaged(command::START_AUTH_SESSION))
        }
    });
    wipe(&mut salt);
    tpm.unless_lacking(session)
}

/// A session that policies are met in; nothing of it is secret.
fn start_policy(tpm: &mut Tpm) -> Result<u32> {
    let mut caller = [0; 32];
    crypto::random(&mut caller)?;
    let parameters = Out::default()
        .sized(&caller)
        .sized(&[])
        .u8(POLICY_SESSION)
        .u16(command::NOTHING)
        .u16(command::SHA256);
    let handles = [command::NULL.into(), command::NULL.into()];
    Ok(tpm.call(command::START_AUTH_SESSION, &handles, By::Nothing, parameters, true)?.0)
}

impl Tpm {
    /// With a salt that only this TPM can read. `None` for a TPM that cannot do it.
    pub(super) fn start_session(&mut self) -> Result<Option<Session>> {
        if self.key.is_none() {
            // Of the hierarchy that is another one after each start; the key leaves nothing.
            let made = create_key(self);
            self.key = self.unless_lacking(made)?;
        }
        match &self.key {
            Some(SaltKey { handle, public }) => {
                let (handle, public) = (*handle, public.clone());
                salted(self, handle, &public)
            }
            None => Ok(None),
        }
    }

    /// `None` where the TPM cannot do it. All else is an error: a TPM that is only busy must not get the passphrase in the clear.
    fn unless_lacking<T>(&self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Err(e) if self.lacks_it() => {
                tracing::debug!("{}", e.message());
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    /// For a policy that is to be met.
    pub(super) fn start_policy(&mut self) -> Result<u32> {
        start_policy(self)
    }

    /// [`flush`](Self::flush), where the rest has succeeded or failed already.
    pub(super) fn give_up(&mut self, handle: u32) {
        if let Err(e) = self.flush(handle) {
            tracing::debug!("{}", e.message());
        }
    }

    /// Gives up a key or a session.
    pub(super) fn flush(&mut self, handle: u32) -> Result<()> {
        self.call(command::FLUSH_CONTEXT, &[], By::Nothing, Out::default().u32(handle), false).map(drop)
    }
}
