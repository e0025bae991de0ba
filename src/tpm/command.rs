//! Commands and answers as bytes; all numbers are big-endian.

pub(super) const NO_SESSIONS: u16 = 0x8001;
pub(super) const SESSIONS: u16 = 0x8002;

/// Tag, size, code.
pub(super) const HEADER: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Code(pub(super) u32, pub(super) &'static str);

pub(super) const CREATE_PRIMARY: Code = Code(0x131, "CreatePrimary");
pub(super) const FLUSH_CONTEXT: Code = Code(0x165, "FlushContext");
pub(super) const GET_CAPABILITY: Code = Code(0x17a, "GetCapability");
pub(super) const GET_RANDOM: Code = Code(0x17b, "GetRandom");
pub(super) const NV_DEFINE_SPACE: Code = Code(0x12a, "NV_DefineSpace");
pub(super) const NV_READ: Code = Code(0x14e, "NV_Read");
pub(super) const NV_READ_PUBLIC: Code = Code(0x169, "NV_ReadPublic");
pub(super) const NV_UNDEFINE_SPACE: Code = Code(0x122, "NV_UndefineSpace");
pub(super) const NV_WRITE: Code = Code(0x137, "NV_Write");
pub(super) const PCR_EXTEND: Code = Code(0x182, "PCR_Extend");
pub(super) const PCR_READ: Code = Code(0x17e, "PCR_Read");
pub(super) const POLICY_OR: Code = Code(0x171, "PolicyOR");
pub(super) const POLICY_PCR: Code = Code(0x17f, "PolicyPCR");
pub(super) const START_AUTH_SESSION: Code = Code(0x176, "StartAuthSession");

/// Handles that every TPM has.
pub(super) const OWNER: u32 = 0x4000_0001;
pub(super) const NULL: u32 = 0x4000_0007;
pub(super) const PASSWORD: u32 = 0x4000_0009;

/// Algorithms.
pub(super) const RSA: u16 = 0x0001;
pub(super) const AES: u16 = 0x0006;
pub(super) const SHA256: u16 = 0x000b;
pub(super) const NOTHING: u16 = 0x0010;
pub(super) const CFB: u16 = 0x0043;

/// Bytes of a command, or of a part of one.
#[derive(Debug, Default)]
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
    pub(super) fn u8(mut self, n: u8) -> Self {
        self.0.push(n);
        self
    }

    pub(super) fn u16(mut self, n: u16) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }

    pub(super) fn u32(mut self, n: u32) -> Self {
        self.0.extend(n.to_be_bytes());
        self
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// `TPM2B`: a length of two bytes, then the bytes.
    pub(super) fn sized(self, bytes: &[u8]) -> Self {
        self.u16(u16::try_from(bytes.len()).unwrap_or(u16::MAX)).bytes(bytes)
    }
}

/// Reads an answer. Everything ends with `None` at its end.
#[derive(Debug, Clone)]
pub(super) struct In<'a>(pub(super) &'a [u8]);

impl<'a> In<'a> {
    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (found, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(found)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn sized(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.bytes(len.into())
    }
}

/// What a handle is called in the digests of a session: an index has the digest of its public part, others have themselves.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    pub(super) number: u32,
    pub(super) name: Vec<u8>,
}

impl From<u32> for Handle {
    fn from(number: u32) -> Handle {
        Handle { number, name: number.to_be_bytes().to_vec() }
    }
}
