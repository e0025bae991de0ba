//! Signatures of images, made by openssl.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use copal::config::paths::Paths;
use copal::error::Code;
use copal::image::digest::Digest256;
use copal::image::{Checks, Signer};
use copal::signature::{Certificate, is_trusted};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::kit::needs::{needs, tools};
use crate::support::*;

/// A key with its certificate.
struct Key {
    key: PathBuf,
    certificate: PathBuf,
}

/// `kind`: as for `openssl req -newkey`.
fn key(bench: &Bench, name: &str, kind: &[&str]) -> Key {
    let (key, certificate) = (bench.at(&format!("{name}.key")), bench.at(&format!("{name}.crt")));
    let subject = format!("/O=balenaOS/CN={name}");
    let files = ["-keyout", text(&key), "-out", text(&certificate)];
    let request = ["req", "-x509", "-nodes", "-batch", "-days", "1", "-subj", &subject, "-newkey"];
    run("openssl", &[&request[..], kind, &files].concat(), None);
    Key { key, certificate }
}

fn rsa(bench: &Bench, name: &str, bits: &str) -> Key {
    key(bench, name, &[&format!("rsa:{bits}")])
}

/// As the build of balenaOS signs: the bare digest, padded.
fn sign(bench: &Bench, key: &Key, payload: &[u8], options: &[&str]) -> Vec<u8> {
    let (from, to) = (bench.write("payload", payload), bench.at("signed"));
    let sign = ["pkeyutl", "-sign", "-inkey", text(&key.key), "-in", text(&from), "-out", text(&to)];
    run("openssl", &[&sign[..], options].concat(), None);
    std::fs::read(to).unwrap()
}

fn signer(key: &Key) -> Checks {
    Checks { signer: Some(Signer::named(&key.certificate).unwrap()), ..Checks::default() }
}

fn certificate(path: &Path) -> Certificate {
    Certificate::first_of(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_signed_image_is_accepted_as_every_format() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.disk("os.img");
    let digest = Digest256::of(&std::fs::read(&path).unwrap());
    for bits in ["2048", "2056", "3072", "4096"] {
        let key = rsa(&bench, bits, bits);
        let signature = sign(&bench, &key, &digest.0, &[]);
        assert_eq!(signature.len() * 8, bits.parse::<usize>().unwrap());
        bench.write("os.img.sig", &signature);
        let packed = [("os.img.gz", "gzip -1"), ("os.img.zst", "zstd"), ("os.img.bz2", "bzip2")];
        let packed = packed.into_iter().filter(|_| bits == "2048");
        for (name, command) in std::iter::once(("os.img", "")).chain(packed) {
            let file = if command.is_empty() { path.clone() } else { bench.pack(&path, name, command) };
            // Also where the caller would rather not read it as a whole first.
            let checks = Checks { single_pass: true, ..signer(&key) };
            let found = look_with(&file, &checks).unwrap();
            assert_eq!(found.sha256, Some(digest), "{bits} {name}");
            let signed = found.signed.unwrap();
            assert_eq!(signed.certificate, key.certificate);
            let known = run(
                "openssl",
                &["x509", "-noout", "-ext", "subjectKeyIdentifier", "-in", text(&key.certificate)],
                None,
            );
            assert_eq!(signed.key, known.lines().nth(1).unwrap().trim().replace(':', "").to_lowercase());
        }
    }
    // Nothing is required of it otherwise.
    assert_eq!(look(&path).unwrap().signed, None);
}

#[test]
fn what_the_key_has_not_signed_is_refused() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.disk("os.img");
    let digest = Digest256::of(&std::fs::read(&path).unwrap()).0;
    let (own, other) = (rsa(&bench, "own", "2048"), rsa(&bench, "other", "2048"));
    let checks = signer(&own);
    let sig = bench.at("os.img.sig");
    refused(look_with(&path, &checks), Code::SignatureMissing, &path, &[text(&sig)]);
    let good = sign(&bench, &own, &digest, &[]);
    bench.write("os.img.sig", &good);
    look_with(&path, &checks).unwrap();

    let mut flipped: Vec<(&str, Vec<u8>)> = Vec::new();
    for at in [0, 1, 100, 255] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        flipped.push(("a bit", bytes));
    }
    // The key's own operation on a whole block.
    let raw = |block: &[u8]| {
        let (from, to) = (bench.write("block", block), bench.at("raw"));
        let argv = ["pkeyutl", "-decrypt", "-inkey", text(&own.key), "-in", text(&from), "-out", text(&to)];
        run("openssl", &[&argv[..], &["-pkeyopt", "rsa_padding_mode:none"]].concat(), None);
        std::fs::read(to).unwrap()
    };
    let block = |kind: u8, filler: usize, rest: &[u8]| {
        let mut block = [&[0, kind], vec![0xFF; filler].as_slice(), &[0], rest].concat();
        // Behind the digest, where a reader who does not look lets a forger write.
        block.resize(256, 0x5A);
        raw(&block)
    };
    let with_name = {
        let file = bench.write("digest", &digest);
        let out = bench.at("with-name");
        let argv = ["pkeyutl", "-sign", "-inkey", text(&own.key), "-in", text(&file), "-out", text(&out)];
        run("openssl", &[&argv[..], &["-pkeyopt", "digest:sha256"]].concat(), None);
        std::fs::read(out).unwrap()
    };
    let mut longer = good.clone();
    longer.push(0);
    let leading = [&[0], good.as_slice()].concat();
    let cases = [
        ("nothing", vec![]),
        ("truncated", good[..255].to_vec()),
        ("one byte more", longer),
        ("a zero in front", leading),
        ("zeroes", vec![0; 256]),
        ("above the modulus", vec![0xFF; 256]),
        ("another key", sign(&bench, &other, &digest, &[])),
        ("another image", sign(&bench, &own, &Digest256::of(b"x").0, &[])),
        ("with the name of the digest", with_name),
        (
            "PSS",
            sign(&bench, &own, &digest, &["-pkeyopt", "digest:sha256", "-pkeyopt", "rsa_padding_mode:pss"]),
        ),
        ("the right padding", block(1, 221, &digest)),
        ("filler of encryption", block(2, 221, &digest)),
        ("short filler", block(1, 8, &digest)),
        ("no filler", block(1, 0, &digest)),
        ("one byte of filler too few", block(1, 220, &digest)),
        ("a digest with a tail", block(1, 213, &[&digest[..], b"followed"].concat())),
        ("a large file", vec![1; 1 << 20]),
    ];
    for (name, bytes) in cases.into_iter().chain(flipped) {
        bench.write("os.img.sig", &bytes);
        let looked = look_with(&path, &checks);
        match name {
            "the right padding" => assert!(looked.unwrap().signed.is_some()),
            _ => {
                let Err(e) = looked else { panic!("{name} is accepted") };
                assert_eq!(e.code(), Code::SignatureInvalid, "{name}: {e}");
                assert!(e.message().contains(text(&sig)), "{name}: {e}");
            }
        }
    }
}

#[test]
fn certificates_of_other_keys_and_damaged_ones_are_refused() {
    let bench = Bench::new();
    let good = rsa(&bench, "good", "2048");
    let pem = std::fs::read_to_string(&good.certificate).unwrap();
    let der = bench.at("good.der");
    run("openssl", &["x509", "-in", text(&good.certificate), "-outform", "der", "-out", text(&der)], None);
    let der = std::fs::read(der).unwrap();
    let expected = certificate(&good.certificate);
    // The first one counts, whatever is around it.
    let second = std::fs::read_to_string(rsa(&bench, "second", "2048").certificate).unwrap();
    for same in [der.clone(), format!("a text\r\n{}\n{second}", pem.replace('\n', "\r\n")).into_bytes()] {
        assert_eq!(Certificate::first_of(&same).as_ref(), Ok(&expected));
    }
    for kind in [&["rsa:1024"][..], &["ed25519"], &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]] {
        let other = key(&bench, "other", kind);
        refused(Signer::named(&other.certificate), Code::CertificateInvalid, &other.certificate, &["RSA"]);
    }
    for end in (0..der.len()).step_by(7) {
        assert!(Certificate::first_of(&der[..end]).is_err(), "{end}");
    }
    assert!(Certificate::first_of(&[der.as_slice(), b"more"].concat()).is_err());
    for (text, word) in
        [("", "X.509"), ("-----BEGIN CERTIFICATE-----\nAAAA", "no end"), ("not a certificate", "X.509")]
    {
        let file = bench.write("bad.crt", text.as_bytes());
        refused(Signer::named(&file), Code::CertificateInvalid, &file, &[word]);
    }
    refused(
        Signer::named(&bench.at("none")),
        Code::CertificateInvalid,
        &bench.at("none"),
        &["does not exist"],
    );
    let large = bench.write("large.crt", pem.repeat(100).as_bytes());
    refused(Signer::named(&large), Code::CertificateInvalid, &large, &["more than"]);
}

#[test]
fn the_certificate_of_a_medium_is_one_of_the_kernels() {
    let bench = Bench::new();
    let key = rsa(&bench, "kmod", "2048");
    let id = certificate(&key.certificate).key_id;
    let place = bench.at("root/mnt/boot/balena-keys/kmod.crt");
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::create_dir_all(bench.at("root/proc")).unwrap();
    std::fs::copy(&key.certificate, &place).unwrap();
    let paths = Paths::new(bench.at("root"));
    refused(Signer::of_medium(&paths), Code::CertificateUntrusted, &place, &["cannot be read"]);

    let line = |flags: &str, kind: &str, text: &str| {
        format!("0b2e3c1d {flags}     1 perm 1f030000     0     0 {kind} {text}: X509.rsa {} []\n", &id[32..])
    };
    let other = line(
        "I------",
        "asymmetri",
        "Build time autogenerated kernel key: 6ccece7e4c6c0d1f6149f3dd27dfcc5cbb419ea1",
    );
    let own = line("I------", "asymmetri", &format!("balenaOS kernel modules: {id}"));
    for (keys, trusted) in [
        (other.clone() + &own, true),
        (own.clone(), true),
        (String::new(), false),
        (other.clone(), false),
        // Twice is one too many: which of them counts?
        (own.clone() + &own, false),
        (line("IR-----", "asymmetri", &format!("balenaOS: {id}")), false),
        (line("--D----", "asymmetri", &format!("balenaOS: {id}")), false),
        (line("I------", "user", &format!("balenaOS: {id}")), false),
        (line("I------", "asymmetri", &format!("another maker: {id}")), false),
        (line("I------", "asymmetri", &format!("balenaOS: {}", id.to_uppercase())), false),
        (line("I------", "asymmetri", &format!("balenaOS: {}", &id[1..])), false),
        // What a user may name a key.
        (line("I------", "user", &format!("asymmetri I------ balenaOS: {id}")), false),
        (line("I------", "asymmetri", &format!("balenaOS:{id}x {id}0")), false),
    ] {
        assert_eq!(is_trusted(&keys, &id), trusted, "{keys}");
        std::fs::write(bench.at("root/proc/keys"), &keys).unwrap();
        match trusted {
            true => drop(Signer::of_medium(&paths).unwrap()),
            false => refused(Signer::of_medium(&paths), Code::CertificateUntrusted, &place, &[&id]),
        }
    }
}

/// A DER value.
fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
    let length = match contents.len() {
        short @ ..0x80 => vec![u8::try_from(short).unwrap()],
        long @ ..0x100 => vec![0x81, u8::try_from(long).unwrap()],
        long => [&[0x82], u16::try_from(long).unwrap().to_be_bytes().as_slice()].concat(),
    };
    [&[tag], length.as_slice(), contents].concat()
}

/// A certificate with this key, and nothing in the fields that do not count.
fn made_up(modulus: &[u8], exponent: &[u8]) -> Vec<u8> {
    let numbers = [der(2, modulus), der(2, exponent)].concat();
    let algorithm = der(0x30, b"\x06\x09\x2A\x86\x48\x86\xF7\x0D\x01\x01\x01\x05\x00");
    let key = der(0x30, &[algorithm, der(3, &[&[0], der(0x30, &numbers).as_slice()].concat())].concat());
    let fields = [&der(2, &[1])[..], &der(0x30, &[]).repeat(4), &key].concat();
    der(0x30, &der(0x30, &fields))
}

/// A number of so many bits, odd, with the zero in front that a positive number may need.
fn modulus(bits: usize) -> Vec<u8> {
    let mut number = vec![0xA7; bits.div_ceil(8)];
    number[0] = 1 << ((bits - 1) % 8);
    if number[0] == 0x80 { [&[0], number.as_slice()].concat() } else { number }
}

/// Besides those of `a_signed_image_is_accepted_as_every_format`.
#[test]
fn keys_of_any_size_and_exponent_agree_with_openssl() {
    let bench = Bench::new();
    let digest = Digest256::of(b"an image").0;
    for (bits, exponent) in [
        ("2048", "3"),
        ("2048", "65537"),
        ("2048", "4294967297"),
        ("2049", "3"),
        ("3072", "3"),
        ("4096", "3"),
    ] {
        let what = format!("{bits} bits, exponent {exponent}");
        let public = format!("rsa_keygen_pubexp:{exponent}");
        let key = key(&bench, "key", &[&format!("rsa:{bits}"), "-pkeyopt", &public]);
        let signature = sign(&bench, &key, &digest, &[]);
        let Certificate { key, .. } = certificate(&key.certificate);
        assert_eq!(signature.len(), bits.parse::<usize>().unwrap().div_ceil(8), "{what}");
        assert_eq!(signature.len(), key.signature_len(), "{what}");
        assert!(key.has_signed(&digest, &signature), "{what}");
        assert!(!key.has_signed(&Digest256::of(b"another").0, &signature), "{what}");
    }
}

#[test]
fn only_possible_keys_are_taken() {
    let common = [1, 0, 1];
    for bits in [2048, 2049, 2056, 3000, 4095, 4096] {
        let key = Certificate::first_of(&made_up(&modulus(bits), &common)).unwrap().key;
        assert_eq!(key.signature_len(), bits.div_ceil(8), "{bits}");
    }
    for bits in [1, 512, 1024, 2040, 2047, 4097, 8192, 65536] {
        let e = Certificate::first_of(&made_up(&modulus(bits), &common)).unwrap_err();
        assert!(e.contains("2048 to 4096 bits"), "{bits}: {e}");
    }
    let good = modulus(2048);
    for exponent in [&[3][..], &[0, 0xFF, 0xFF], &[0x7F; 8], &[&[0][..], &[0xFF; 8]].concat()] {
        assert!(Certificate::first_of(&made_up(&good, exponent)).is_ok(), "{exponent:x?}");
    }
    let mut even = good.clone();
    even[256] ^= 1;
    for (modulus, exponent) in [
        (&even[..], &common[..]),
        // A negative number.
        (&good[1..], &common),
        (&[], &common),
        (&good, &[]),
        (&good, &[0]),
        (&good, &[1]),
        (&good, &[2]),
        (&good, &[1, 0, 0]),
        (&good, &[0xFF, 0xFF]),
        (&good, &[1; 9]),
    ] {
        assert!(Certificate::first_of(&made_up(modulus, exponent)).is_err(), "{modulus:x?} {exponent:x?}");
    }
    // The name of another algorithm, for keys of the same form.
    let bench = Bench::new();
    let pss = key(&bench, "pss", &["rsa-pss", "-pkeyopt", "rsa_keygen_bits:2048"]);
    refused(Signer::named(&pss.certificate), Code::CertificateInvalid, &pss.certificate, &["RSA"]);
}

/// What a forger starts from.
struct Genuine {
    der: Vec<u8>,
    pem: Vec<u8>,
    certificate: Certificate,
    digest: [u8; 32],
    signature: Vec<u8>,
}

/// Of exponent 3: the fastest, and the easiest to forge.
fn genuine() -> &'static Genuine {
    static GENUINE: OnceLock<Genuine> = OnceLock::new();
    GENUINE.get_or_init(|| {
        let bench = Bench::new();
        let key = key(&bench, "genuine", &["rsa:2048", "-pkeyopt", "rsa_keygen_pubexp:3"]);
        let digest = Digest256::of(b"an image").0;
        let out = bench.at("der");
        run("openssl", &["x509", "-in", text(&key.certificate), "-outform", "der", "-out", text(&out)], None);
        Genuine {
            der: std::fs::read(out).unwrap(),
            pem: std::fs::read(&key.certificate).unwrap(),
            certificate: certificate(&key.certificate),
            digest,
            signature: sign(&bench, &key, &digest, &[]),
        }
    })
}

/// What is done, where, and with which byte.
type Damage = (u8, Index, u8);

fn damages() -> impl Strategy<Value = Vec<Damage>> {
    // Lengths and tags of DER among them, and letters of base64.
    let byte = prop_oneof![prop::sample::select(&b"\x00\x02\x30\x80\x81\x82\xFF=A-\n"[..]), any::<u8>()];
    prop::collection::vec((0..9_u8, any::<Index>(), byte), 1..4)
}

fn damaged(bytes: &[u8], damages: &[Damage]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (what, at, byte) in damages {
        let at = at.index(bytes.len() + 1);
        match (what, bytes.get_mut(at)) {
            (0, _) => bytes.truncate(at),
            (1, _) => bytes.insert(at, *byte),
            (2, _) => bytes.push(*byte),
            (3, Some(_)) => drop(bytes.remove(at)),
            (4, Some(old)) => *old = *byte,
            (_, Some(old)) => *old ^= 1 << (byte % 8),
            (_, None) => {}
        }
    }
    bytes
}

/// A certificate has the genuine key, or the genuine signature is not that of its key.
fn assert_no_forgery(file: &[u8]) {
    let Genuine { certificate, digest, signature, .. } = genuine();
    if let Ok(found) = Certificate::first_of(file)
        && found.key != certificate.key
    {
        assert_ne!(found.key_id, certificate.key_id);
        assert!(!found.key.has_signed(digest, signature));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn a_damaged_certificate_accepts_nothing(damages in damages()) {
        let Genuine { der, pem, .. } = genuine();
        assert_no_forgery(&damaged(der, &damages));
        assert_no_forgery(&damaged(pem, &damages));
        // The key is in the last 400 bytes before the certificate's own signature.
        let (before, rest) = der.split_at(der.len() - 256 - 400);
        let (near, after) = rest.split_at(400);
        assert_no_forgery(&[before, &damaged(near, &damages), after].concat());
    }

    #[test]
    fn a_changed_bit_of_the_key_makes_another_key(at in 0..256_usize, bit in 0..8_u8) {
        let Genuine { der, certificate, digest, signature, .. } = genuine();
        let mut other = der.clone();
        // The key's bits end with the exponent, a number of one byte; extensions follow.
        let exponent = der.windows(4).position(|bytes| bytes == [2, 1, 3, 0xA3]).unwrap();
        other[exponent - 256 + at] ^= 1 << bit;
        if let Ok(found) = Certificate::first_of(&other) {
            prop_assert_ne!(&found.key, &certificate.key);
            prop_assert_ne!(&found.key_id, &certificate.key_id);
            prop_assert!(!found.key.has_signed(digest, signature));
        } else {
            // Even, or too short.
            prop_assert!((at, bit) == (255, 0) || (at, bit) == (0, 7));
        }
    }

    #[test]
    fn a_damaged_signature_is_none(damages in damages(), payload in prop::collection::vec(any::<u8>(), 0..300)) {
        let Genuine { certificate, digest, signature, .. } = genuine();
        prop_assert!(certificate.key.has_signed(digest, signature));
        let other = damaged(signature, &damages);
        prop_assert_eq!(certificate.key.has_signed(digest, &other), other == *signature);
        prop_assert_eq!(certificate.key.has_signed(&payload, signature), payload == digest);
        prop_assert!(!certificate.key.has_signed(&payload, &payload));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), depth in 0..6_usize) {
        // In as many frames as a certificate has around a key.
        let framed = (0..depth).fold(bytes, |inner, _| der(0x30, &inner));
        prop_assert!(Certificate::first_of(&framed).is_err());
        let pem = format!("-----BEGIN CERTIFICATE-----{}-----END CERTIFICATE-----", String::from_utf8_lossy(&framed));
        prop_assert!(Certificate::first_of(pem.as_bytes()).is_err());
    }
}
