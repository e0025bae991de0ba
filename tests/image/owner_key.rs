//! Keys of owners, and what is encrypted for them: made and decrypted by openssl.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use copal::signature::{PublicKey, public_key};

use crate::support::*;

const MESSAGE: &[u8; 64] = b"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A private key in `name.key`, by `openssl genpkey`.
fn private(bench: &Bench, name: &str, kind: &[&str]) -> String {
    let key = text(&bench.at(&format!("{name}.key"))).to_owned();
    run("openssl", &[&["genpkey", "-quiet", "-out", &key][..], kind].concat(), None);
    key
}

fn rsa(bench: &Bench, bits: &str) -> String {
    private(bench, bits, &["-algorithm", "RSA", "-pkeyopt", &format!("rsa_keygen_bits:{bits}")])
}

/// The public key, in all forms.
fn public(bench: &Bench, key: &str) -> [String; 3] {
    let out = bench.at("public");
    let out = text(&out);
    let made = |args: &[&str]| {
        run("openssl", &[args, &["-out", out]].concat(), None);
        std::fs::read_to_string(out).unwrap()
    };
    [
        made(&["pkey", "-in", key, "-pubout"]),
        made(&["rsa", "-in", key, "-RSAPublicKey_out"]),
        made(&["req", "-x509", "-batch", "-days", "1", "-subj", "/CN=an owner", "-key", key]),
    ]
}

/// As docs/secure-boot.md tells the owner.
fn decrypted(bench: &Bench, key: &str, encrypted: &[u8]) -> Vec<u8> {
    let (from, to) = (bench.write("recovery.enc", encrypted), bench.at("decrypted"));
    let how = ["-pkeyopt", "rsa_padding_mode:oaep", "-pkeyopt", "rsa_oaep_md:sha256"];
    let files = ["pkeyutl", "-decrypt", "-inkey", key, "-in", text(&from), "-out", text(&to)];
    run("openssl", &[&files[..], &how].concat(), None);
    std::fs::read(to).unwrap()
}

#[test]
fn the_owner_of_a_key_decrypts_what_was_encrypted_for_it() {
    let bench = Bench::new();
    for bits in ["2048", "2056", "3072", "4096"] {
        let key = rsa(&bench, bits);
        let forms = public(&bench, &key);
        let keys: Vec<PublicKey> = forms.iter().map(|text| public_key(text).unwrap()).collect();
        assert!(keys.iter().all(|key| *key == keys[0]), "{bits}");
        // What is around it, and how its lines end, does not count.
        let around = format!("my key\n{}\r\nits end\n", forms[0].replace('\n', "\r\n"));
        assert_eq!(public_key(&around), Ok(keys[0].clone()));
        for seed in [[0; 32], [0xff; 32], *b"a seed of thirty-two bytes, here"] {
            let encrypted = keys[0].encrypt(b"", MESSAGE, &seed).unwrap();
            assert_eq!(encrypted.len() * 8, bits.parse::<usize>().unwrap().next_multiple_of(8));
            assert_eq!(decrypted(&bench, &key, &encrypted), MESSAGE, "{bits}");
        }
        let most = keys[0].signature_len() - 66;
        assert_eq!(
            decrypted(&bench, &key, &keys[0].encrypt(b"", &vec![7; most], &[1; 32]).unwrap()).len(),
            most
        );
        assert_eq!(keys[0].encrypt(b"", &vec![7; most + 1], &[1; 32]), None);
    }
}

#[test]
fn what_is_not_one_public_rsa_key_is_refused() {
    let bench = Bench::new();
    let key = rsa(&bench, "2048");
    let [good, pkcs1, certificate] = public(&bench, &key);
    let refused = |text: &str, words: &str| match public_key(text) {
        Err(why) => assert!(why.contains(words), "{why}: {text}"),
        Ok(_) => panic!("{words}: accepted: {text}"),
    };
    refused("", "not a key in PEM");
    refused("ssh-rsa AAAAB3NzaC1yc2E= owner", "not a key in PEM");
    refused(&std::fs::read_to_string(&key).unwrap(), "private key");
    refused(&format!("{good}{}", std::fs::read_to_string(&key).unwrap()), "private key");
    run("openssl", &["rsa", "-in", &key, "-traditional", "-out", text(&bench.at("old.key"))], None);
    refused(&std::fs::read_to_string(bench.at("old.key")).unwrap(), "private key");
    refused(&format!("{good}{certificate}"), "more than one");
    refused(&good[..good.len() / 2], "a line -----END");
    refused("-----BEGIN PUBLIC KEY", "no end");
    refused(&good.replace("END PUBLIC KEY", "END CERTIFICATE"), "name of its first");
    refused(&good.replacen("MII", "M!I", 1), "not base64");
    refused(&good.replace("PUBLIC KEY", "CERTIFICATE"), "X.509");
    refused(&good.replace("PUBLIC KEY", "RSA PUBLIC KEY"), "not an RSA key");
    refused(&pkcs1.replace("RSA PUBLIC KEY", "PUBLIC KEY"), "not an RSA key");
    refused(&good.replace("PUBLIC KEY", "CERTIFICATE REQUEST"), "neither");
    for (name, kind) in [
        ("ec", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"][..]),
        ("ed25519", &["-algorithm", "ED25519"]),
        // For signatures only.
        ("pss", &["-algorithm", "RSA-PSS", "-pkeyopt", "rsa_keygen_bits:2048"]),
    ] {
        let key = private(&bench, name, kind);
        let out = bench.at("public");
        run("openssl", &["pkey", "-in", &key, "-pubout", "-out", text(&out)], None);
        refused(&std::fs::read_to_string(&out).unwrap(), "not an RSA key");
        run("openssl", &["req", "-x509", "-batch", "-subj", "/CN=x", "-key", &key, "-out", text(&out)], None);
        refused(&std::fs::read_to_string(&out).unwrap(), "X.509");
    }
    for bits in ["1024", "2040", "4104"] {
        refused(&public(&bench, &rsa(&bench, bits))[0], "2048 to 4096 bits");
    }
    // RSAPublicKey ends with its exponent, 65537.
    let body: String = pkcs1.lines().filter(|line| !line.starts_with('-')).collect();
    let der = STANDARD.decode(body).unwrap();
    assert!(der.ends_with(&[2, 3, 1, 0, 1]));
    let with = |last: u8, at: usize| {
        let mut der = der.clone();
        let at = der.len() - at;
        der[at] = last;
        format!("-----BEGIN RSA PUBLIC KEY-----\n{}\n-----END RSA PUBLIC KEY-----\n", STANDARD.encode(der))
    };
    public_key(&with(3, 1)).unwrap();
    refused(&with(2, 1), "impossible exponent");
    // An even modulus, and a negative number.
    refused(&with(0x10, 6), "even modulus");
    refused(&with(0x81, 3), "not an RSA key");
}
