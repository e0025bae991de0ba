use std::fmt;

/// The fields of a GUID; in memory the first three are little-endian (UEFI specification 2.10, appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guid(u32, u16, u16, [u8; 8]);

impl Guid {
    /// Of `SecureBoot`, `SetupMode`, `PK`, `KEK`, and of the boot menu.
    pub const GLOBAL: Guid =
        Guid(0x8be4_df61, 0x93ca, 0x11d2, [0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c]);
    /// Of `db` and `dbx`.
    pub const DATABASE: Guid =
        Guid(0xd719_b2cb, 0x3d3a, 0x4596, [0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f]);
    /// Lists of SHA-256 hashes.
    pub const SHA256: Guid =
        Guid(0xc1c4_1626, 0x504c, 0x4092, [0xac, 0xa9, 0x41, 0xf9, 0x36, 0x93, 0x43, 0x28]);
    /// Lists of certificates.
    pub const X509: Guid =
        Guid(0xa5c0_59a1, 0x94e4, 0x4aa7, [0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72]);
    /// Of signed variables.
    pub const PKCS7: Guid =
        Guid(0x4aaf_d29d, 0x68df, 0x49ee, [0x8a, 0xa9, 0x34, 0x7d, 0x37, 0x56, 0x65, 0xa7]);

    #[must_use]
    pub fn bytes(self) -> [u8; 16] {
        let Guid(a, b, c, d) = self;
        let mut out = [0; 16];
        let parts = a.to_le_bytes().into_iter().chain(b.to_le_bytes()).chain(c.to_le_bytes()).chain(d);
        out.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
        out
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Guid(a, b, c, [d0, d1, rest @ ..]) = self;
        write!(f, "{a:08x}-{b:04x}-{c:04x}-{d0:02x}{d1:02x}-")?;
        rest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes() {
        assert_eq!(Guid::DATABASE.to_string(), "d719b2cb-3d3a-4596-a3bc-dad00e67656f");
        let bytes = Guid::DATABASE.bytes();
        assert_eq!(bytes[..8], [0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45]);
        assert_eq!(bytes[8..], [0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f]);
    }
}
