//! Signatures for GRUB, made by GnuPG 2.2.40 (`gpg --quick-gen-key NAME rsa2048 sign never`, `gpg --digest-algo SHA512 --detach-sign`).

use copal::signature::openpgp::{is_signed, keys};
use proptest::prelude::*;

const FILE: &[u8] = include_bytes!("openpgp/grub.cfg");
const KEY: &[u8] = include_bytes!("openpgp/rsa2048.gpg");
const LONG_KEY: &[u8] = include_bytes!("openpgp/rsa4096.gpg");
const SHA512: &[u8] = include_bytes!("openpgp/sha512.sig");
const SHA256: &[u8] = include_bytes!("openpgp/sha256.sig");

#[test]
fn signatures_of_gnupg_are_verified() {
    let (key, long) = (keys(KEY).unwrap(), keys(LONG_KEY).unwrap());
    let both = keys(&[KEY, LONG_KEY].concat()).unwrap();
    for (signature, by, other) in [(SHA512, &key, &long), (SHA256, &long, &key)] {
        assert_eq!(is_signed(by, FILE, signature), Ok(true));
        assert_eq!(is_signed(&both, FILE, signature), Ok(true));
        assert_eq!(is_signed(other, FILE, signature), Ok(false), "another key");
        assert_eq!(is_signed(by, &[FILE, b"\n"].concat(), signature), Ok(false), "another file");
    }
    assert_eq!(is_signed(&both, FILE, &[SHA512, SHA256].concat()), Ok(true));
}

#[test]
fn what_grub_does_not_know_is_no_signature() {
    let key = keys(KEY).unwrap();
    for (what, signature) in [
        ("SHA-384", &include_bytes!("openpgp/sha384.sig")[..]),
        ("of text", include_bytes!("openpgp/text.sig")),
    ] {
        assert_eq!(is_signed(&key, FILE, signature), Ok(false), "{what}");
    }
    assert!(keys(include_bytes!("openpgp/ed25519.gpg")).unwrap_err().contains("no RSA key"));
    assert!(keys(SHA512).unwrap_err().contains("no RSA key"));
    assert_eq!(is_signed(&key, FILE, KEY), Ok(false), "a signature of a name");
    for nothing in [&[][..], b"its signature\n", b"-----BEGIN PGP SIGNATURE-----\n"] {
        assert!(keys(nothing).is_err() && is_signed(&key, FILE, nothing).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn damage_makes_no_signature_and_no_harm(damage in prop::collection::vec((0..SHA512.len(), 1..=255u8), 1..4), len in 0..=SHA512.len()) {
        let mut bytes = SHA512.to_vec();
        for (at, change) in damage {
            bytes[at] ^= change;
        }
        bytes.truncate(len);
        let found = is_signed(&keys(KEY).unwrap(), FILE, &bytes);
        // No digest covers the part of 12 bytes that is not hashed, the two first bytes of the digest, and the length of the number in bits.
        if found == Ok(true) {
            let free = SHA512.len() - 256 - 2 - 2 - 12..SHA512.len() - 256;
            prop_assert!(bytes.iter().zip(SHA512).enumerate().all(|(at, (a, b))| a == b || free.contains(&at)));
            prop_assert_eq!(bytes.len(), SHA512.len());
        }
        let mut key = KEY.to_vec();
        key.truncate(len);
        drop(keys(&key));
    }
}
