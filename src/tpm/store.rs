//! The passphrase of an encrypted disk in the TPM: an index that can be read in the states of the firmware that its policy names.
//!
//! Index, size and attributes are a contract with the initramfs of every release (meta-balena, `os-helpers-tpm2`).

use std::fmt;
use std::ops::RangeInclusive;

use super::call::{self, By};
use super::command::{self, Handle, In, Out};
use super::crypto;
use super::device::{self, Tpm};
use super::policy::{self, Digest};
use super::session::Session;
use crate::error::{Code, Error, Result};
use crate::measurements::{SELECTED, Values};
use crate::sys::limits;

/// The index that the initramfs reads.
pub const INDEX: u32 = 0x0150_0000;

/// A second one with the same, only while the other is replaced.
pub const SPARE: u32 = 0x0150_0001;

/// Handles that a [test](Tpm::test_space) of the memory may use. They never hold the passphrase.
const TESTS: RangeInclusive<u32> = 0x0150_0002..=0x0150_0009;

const PASSPHRASE_BYTES: usize = 32;

/// A passphrase, in one place of the memory; wiped when it is dropped.
pub struct Secret(Box<[u8; PASSPHRASE_BYTES]>);

impl Secret {
    fn empty() -> Secret {
        let secret = Secret(Box::new([0; PASSPHRASE_BYTES]));
        limits::keep_in_memory(&*secret.0);
        secret
    }

    #[must_use]
    pub fn bytes(&self) -> &[u8; PASSPHRASE_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        limits::wipe(&mut *self.0);
    }
}

impl From<&[u8; PASSPHRASE_BYTES]> for Secret {
    fn from(bytes: &[u8; PASSPHRASE_BYTES]) -> Secret {
        let mut secret = Secret::empty();
        secret.0.copy_from_slice(bytes);
        secret
    }
}

/// `TPMA_NV`: written with its own password or by policy, read by policy.
const ATTRIBUTES: u32 = 0x4 | 0x8 | 0x8_0000;
const WRITTEN: u32 = 0x2000_0000;

/// A policy does not hold any more once any PCR was extended; no system extends them all the time.
const POLICY_TRIES: u32 = 8;

/// Of `TPM2_GetCapability`.
const CAPABILITY_PCRS: u32 = 5;
const CAPABILITY_PROPERTIES: u32 = 6;
const PERMANENT: u32 = 0x200;
const OWNER_AUTH_SET: u32 = 1;
const IN_LOCKOUT: u32 = 1 << 9;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Public {
    pub attributes: u32,
    pub policy: Vec<u8>,
    pub size: u16,
    name: Vec<u8>,
}

impl Public {
    /// Whether copal made it, as far as its attributes and its size show.
    fn is_own(&self) -> bool {
        self.attributes & !WRITTEN == ATTRIBUTES && usize::from(self.size) == PASSPHRASE_BYTES
    }

    /// Whether something was written to it, of the length of a passphrase.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.attributes & WRITTEN != 0 && usize::from(self.size) == PASSPHRASE_BYTES
    }

    /// Whether the passphrase is there, and can be read by this policy and by nothing else.
    #[must_use]
    pub fn holds(&self, policy: &Digest) -> bool {
        self.attributes == ATTRIBUTES | WRITTEN
            && self.policy == policy
            && usize::from(self.size) == PASSPHRASE_BYTES
    }
}

impl Tpm {
    /// Refuses a TPM that cannot keep a passphrase. Changes nothing.
    pub fn check(&mut self) -> Result<()> {
        let unusable = |why: &str| {
            Error::new(Code::TpmUnusable, format!("the TPM cannot keep the passphrase: {why}")).object("TPM")
        };
        let state = self.property(PERMANENT)?;
        if state & IN_LOCKOUT != 0 {
            return Err(unusable("it is in lockout, after too many wrong passwords")
                .with_hint("wait until the lockout ends, or clear the TPM in the firmware's setup"));
        }
        if state & OWNER_AUTH_SET != 0 {
            return Err(
                unusable("its owner has set a password").with_hint("clear the TPM in the firmware's setup")
            );
        }
        if !self.has_sha256()? {
            return Err(unusable("its SHA-256 bank does not have PCRs 0, 2, 3 and 7")
                .with_hint("switch SHA-256 on for the TPM in the firmware's setup"));
        }
        Ok(())
    }

    fn capability(&mut self, capability: u32, property: u32) -> Result<Vec<u8>> {
        let parameters = Out::default().u32(capability).u32(property).u32(1);
        self.call(command::GET_CAPABILITY, &[], By::Nothing, parameters, false).map(|(_, answer)| answer)
    }

    fn property(&mut self, property: u32) -> Result<u32> {
        let answer = self.capability(CAPABILITY_PROPERTIES, property)?;
        let mut fields = In(&answer);
        // Whether there are more, what they are; how many, which, value.
        let value = |fields: &mut In<'_>| {
            Some((fields.u8()?, fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?))
        };
        match value(&mut fields) {
            Some((_, CAPABILITY_PROPERTIES, 1, found, value)) if found == property => Ok(value),
            _ => Err(call::damaged(command::GET_CAPABILITY)),
        }
    }

    fn has_sha256(&mut self) -> Result<bool> {
        let answer = self.capability(CAPABILITY_PCRS, 0)?;
        let mut fields = In(&answer);
        let banks = |fields: &mut In<'_>| -> Option<bool> {
            fields.bytes(5)?;
            let count = fields.u32()?;
            let mut found = false;
            for _ in 0..count.min(16) {
                let bank = fields.u16()?;
                let len = fields.u8()?;
                let selected = fields.bytes(len.into())?;
                // As in `policy::selection`.
                found |=
                    bank == command::SHA256 && selected.first().is_some_and(|first| first & 0x8d == 0x8d);
            }
            Some(found)
        };
        banks(&mut fields).ok_or_else(|| call::damaged(command::GET_CAPABILITY))
    }

    /// The values of the selected PCRs.
    pub fn pcrs(&mut self) -> Result<Values> {
        let mut values = Values::default();
        for (value, pcr) in values.iter_mut().zip(SELECTED) {
            // One at a time: a TPM may answer fewer than were asked for.
            let [first, second, third, _] = (1u32 << pcr).to_le_bytes();
            let selection = Out::default().u32(1).u16(command::SHA256).u8(3).bytes(&[first, second, third]);
            let (_, answer) =
                self.call(command::PCR_READ, &[], By::Nothing, Out(selection.0.clone()), false)?;
            let mut fields = In(&answer);
            let found = |fields: &mut In<'_>| -> Option<[u8; 32]> {
                fields.u32()?;
                if fields.bytes(selection.0.len())? != selection.0 || fields.u32()? != 1 {
                    return None;
                }
                fields.sized()?.try_into().ok()
            };
            *value = found(&mut fields).ok_or_else(|| call::damaged(command::PCR_READ))?;
        }
        Ok(values)
    }

    /// Extends a PCR of the SHA-256 bank.
    pub fn extend(&mut self, pcr: u32, digest: &Digest) -> Result<()> {
        let digests = Out::default().u32(1).u16(command::SHA256).bytes(digest);
        self.call(command::PCR_EXTEND, &[pcr.into()], By::Password(&[]), digests, false).map(drop)
    }

    /// Random bytes of the TPM, mixed with those of the kernel.
    pub fn passphrase(&mut self) -> Result<Secret> {
        let mut secret = Secret::empty();
        crypto::random(&mut *secret.0)?;
        let mut done = 0;
        while done < PASSPHRASE_BYTES {
            let left = u16::try_from(PASSPHRASE_BYTES - done).unwrap_or(0);
            let (_, mut answer) =
                self.call(command::GET_RANDOM, &[], By::Nothing, Out::default().u16(left), false)?;
            let bytes = In(&answer).sized().filter(|bytes| !bytes.is_empty());
            let bytes = bytes.ok_or_else(|| call::damaged(command::GET_RANDOM))?;
            secret.0.iter_mut().skip(done).zip(bytes).for_each(|(to, from)| *to ^= from);
            done += bytes.len();
            limits::wipe(&mut answer);
        }
        Ok(secret)
    }

    /// Tests whether the TPM keeps an index and has space for both indices at once: stores random bytes under a random policy, which no start meets, and
    /// removes them. Indices of other programs are not touched; those of an interrupted test are removed.
    pub fn test_space(&mut self) -> Result<()> {
        let mut handles = Vec::new();
        for handle in TESTS {
            if self.public(handle)?.is_none_or(|public| public.is_own()) {
                handles.push(handle);
            }
        }
        let existing = [self.public(INDEX)?, self.public(SPARE)?].iter().flatten().count();
        let mut tested = Ok(());
        for handle in handles.iter().take(2).skip(existing) {
            let (policy, content) = (self.passphrase()?, self.passphrase()?);
            tested = tested.and_then(|()| self.store(*handle, policy.bytes(), &content).map(drop));
        }
        let removed = handles.iter().map(|handle| self.remove(*handle)).fold(Ok(()), Result::and);
        tested.and(removed)
    }

    /// The public part of an index; `None` if it does not exist.
    pub fn public(&mut self, index: u32) -> Result<Option<Public>> {
        if !self.exists(index)? {
            return Ok(None);
        }
        let (_, answer) =
            self.call(command::NV_READ_PUBLIC, &[index.into()], By::Nothing, Out::default(), false)?;
        public_of(&answer, index).map(Some).ok_or_else(|| call::damaged(command::NV_READ_PUBLIC))
    }

    fn exists(&mut self, index: u32) -> Result<bool> {
        const CAPABILITY_HANDLES: u32 = 1;
        let answer = self.capability(CAPABILITY_HANDLES, index)?;
        let mut fields = In(&answer);
        let first = |fields: &mut In<'_>| -> Option<Option<u32>> {
            fields.bytes(5)?;
            Some(if fields.u32()? == 0 { None } else { Some(fields.u32()?) })
        };
        // The first index from this one on.
        let first = first(&mut fields).ok_or_else(|| call::damaged(command::GET_CAPABILITY))?;
        Ok(first == Some(index))
    }

    /// Removes an index, if it exists.
    pub fn remove(&mut self, index: u32) -> Result<()> {
        match self.public(index)? {
            None => Ok(()),
            Some(public) => {
                let handles = [command::OWNER.into(), Handle { number: index, name: public.name }];
                self.call(command::NV_UNDEFINE_SPACE, &handles, By::Password(&[]), Out::default(), false)
                    .map(drop)
            }
        }
    }

    /// Makes an index with this policy and content; one that exists is removed before. Returns whether what is secret was encrypted on its way.
    pub fn store(&mut self, index: u32, policy: &Digest, secret: &Secret) -> Result<bool> {
        self.remove(index)?;
        let mut session = self.start_session()?;
        let stored = self.define_and_write(index, policy, secret, session.as_mut());
        let encrypted = session.is_some();
        if let Some(session) = session {
            self.give_up(session.handle);
        }
        stored?;
        match self.public(index)? {
            Some(public) if public.holds(policy) => Ok(encrypted),
            _ => Err(device::failed(command::NV_WRITE)
                .because(std::io::Error::other("the index is not as it was defined"))),
        }
    }

    fn define_and_write(
        &mut self,
        index: u32,
        policy: &Digest,
        secret: &Secret,
        session: Option<&mut Session>,
    ) -> Result<()> {
        // Used once, and not kept. The TPM cuts zeroes at the end.
        let mut password = [0; 32];
        crypto::random(&mut password)?;
        if let Some(last) = password.last_mut() {
            *last |= 1;
        }
        let public = public_area(index, ATTRIBUTES, policy);
        let define =
            Out(Vec::with_capacity(password.len() + public.len() + 4)).sized(&password).sized(&public);
        let own = Handle { number: index, name: name_of(&public) };
        // Of that length from the beginning: a longer one would leave a copy. A session encrypts it in its place.
        let write = Out(Vec::with_capacity(PASSPHRASE_BYTES + 4)).sized(secret.bytes()).u16(0);
        let handles = [own.clone(), own];
        let done = match session {
            Some(session) => {
                session.renew()?;
                self.call(
                    command::NV_DEFINE_SPACE,
                    &[command::OWNER.into()],
                    By::Session(session, &[]),
                    define,
                    false,
                )
                .and_then(|_| session.renew())
                .and_then(|()| {
                    self.call(command::NV_WRITE, &handles, By::Session(session, &password), write, false)
                })
            }
            None => self
                .call(command::NV_DEFINE_SPACE, &[command::OWNER.into()], By::Password(&[]), define, false)
                .and_then(|_| self.call(command::NV_WRITE, &handles, By::Password(&password), write, false)),
        };
        limits::wipe(&mut password);
        done.map(drop)
    }

    /// The passphrase, where the PCRs are as one of the branches says. These are those that the index was made with, in their order.
    pub fn unlock(&mut self, index: u32, branches: &[Digest]) -> Result<Secret> {
        let public = self.public(index)?.ok_or_else(|| {
            Error::new(Code::TpmFailed, format!("the TPM has no index 0x{index:x}")).object("TPM")
        })?;
        let mut session = self.start_session()?;
        let mut tries = 1..=POLICY_TRIES;
        let read = loop {
            let policy = self.start_policy();
            let read = policy.and_then(|policy| {
                let read = self.read(index, &public, policy, branches, session.as_mut());
                let again = self.saw_another_pcr();
                self.give_up(policy);
                read.map(Some)
                    .or_else(|e| if again && tries.next() != Some(POLICY_TRIES) { Ok(None) } else { Err(e) })
            });
            if let Some(read) = read.transpose() {
                break read;
            }
        };
        if let Some(session) = session {
            self.give_up(session.handle);
        }
        read
    }

    fn read(
        &mut self,
        index: u32,
        public: &Public,
        policy: u32,
        branches: &[Digest],
        session: Option<&mut Session>,
    ) -> Result<Secret> {
        let pcrs = Out::default().sized(&[]).bytes(&policy::selection().0);
        self.call(command::POLICY_PCR, &[policy.into()], By::Nothing, pcrs, false)?;
        if branches.len() > 1 {
            let count = u32::try_from(branches.len()).unwrap_or(u32::MAX);
            let all = branches.iter().fold(Out::default().u32(count), |out, branch| out.sized(branch));
            self.call(command::POLICY_OR, &[policy.into()], By::Nothing, all, false)?;
        }
        let own = Handle { number: index, name: public.name.clone() };
        let size = u16::try_from(PASSPHRASE_BYTES).unwrap_or(0);
        let parameters = Out::default().u16(size).u16(0);
        let mut second = session;
        if let Some(second) = second.as_deref_mut() {
            second.renew()?;
        }
        let (_, mut answer) =
            self.call(command::NV_READ, &[own.clone(), own], By::Policy(policy, second), parameters, false)?;
        let secret = In(&answer)
            .sized()
            .and_then(|bytes| bytes.try_into().ok())
            .map(|bytes: &[u8; PASSPHRASE_BYTES]| bytes.into());
        limits::wipe(&mut answer);
        secret.ok_or_else(|| call::damaged(command::NV_READ))
    }
}

/// `TPMS_NV_PUBLIC`
fn public_area(index: u32, attributes: u32, policy: &Digest) -> Vec<u8> {
    let size = u16::try_from(PASSPHRASE_BYTES).unwrap_or(0);
    Out::default().u32(index).u16(command::SHA256).u32(attributes).sized(policy).u16(size).0
}

fn name_of(public: &[u8]) -> Vec<u8> {
    [&command::SHA256.to_be_bytes()[..], &crypto::sha256(&[public])].concat()
}

fn public_of(answer: &[u8], index: u32) -> Option<Public> {
    let mut fields = In(answer);
    let area = fields.sized()?;
    let name = fields.sized()?.to_vec();
    let mut public = In(area);
    let (found, digest, attributes) = (public.u32()?, public.u16()?, public.u32()?);
    let (policy, size) = (public.sized()?.to_vec(), public.u16()?);
    // A name that is not computed could be that of another index.
    let is_own =
        found == index && public.0.is_empty() && (digest != command::SHA256 || name == name_of(area));
    is_own.then_some(Public { attributes, policy, size, name })
}
