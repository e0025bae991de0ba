//! An owner who accepts only signed images.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::kit::needs::needs;
use crate::kit::process::tool;
use crate::rig::{Rig, can_run};
use crate::{STARTED, assert_image, assert_ok, schema, stderr};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A key whose certificate is on the medium, and its signature beside the image. Where the certificate is, and the key's number.
fn sign(rig: &Rig) -> (PathBuf, String) {
    let (key, digest, signed) =
        (rig.beside("key"), rig.beside("digest"), rig.root().join("opt/balena.img.sig"));
    let certificate = rig.root().join("mnt/boot/balena-keys/kmod.crt");
    std::fs::create_dir_all(certificate.parent().unwrap()).unwrap();
    let request =
        ["openssl", "req", "-x509", "-nodes", "-batch", "-newkey", "rsa:2048", "-subj", "/O=balenaOS"];
    tool(&[&request[..], &["-keyout", text(&key), "-out", text(&certificate)]].concat());
    let image = rig.root().join("opt/balena.img");
    tool(&["openssl", "dgst", "-sha256", "-binary", "-out", text(&digest), text(&image)]);
    tool(&["openssl", "pkeyutl", "-sign", "-inkey", text(&key), "-in", text(&digest), "-out", text(&signed)]);
    let id = tool(&["openssl", "x509", "-noout", "-ext", "subjectKeyIdentifier", "-in", text(&certificate)]);
    (certificate, id.lines().nth(1).unwrap().trim().replace(':', "").to_lowercase())
}

/// Runs `copal flash` where the kernel has these keys.
fn flash(rig: &Rig, keys: &str, more: &str) -> std::process::Output {
    rig.put("etc/keys", keys);
    let script = format!("mount --bind /etc/keys /proc/keys; exec /copal flash --no-power-off -v {more}");
    rig.run(&["sh", "-c", &script])
}

#[test]
fn an_owner_may_accept_only_signed_images() {
    needs!(can_run);
    let rig = Rig::new();
    let (certificate, id) = sign(&rig);
    let known = format!("0b2e3c1d I------ 1 perm 1f030000 0 0 asymmetri balenaOS: {id}: X509.rsa []\n");
    rig.put("mnt/boottmp/config.json", r#"{"installer": {"verify": true}}"#);
    let refused = |keys: &str, more: &str, code: &str, word: &str| {
        let out = flash(&rig, keys, more);
        let said = stderr(&out);
        assert_eq!(out.status.code(), Some(3), "{said}");
        assert!(said.contains(&format!("[{code}]")) && said.contains(word), "{said}");
        assert!(!said.contains(STARTED) && rig.disk.boot_bytes().iter().all(|b| *b == 0xA5), "{said}");
    };
    refused("", "", "certificate-untrusted", "/mnt/boot/balena-keys/kmod.crt");
    let plan = flash(&rig, &known, "--plan");
    assert_ok(&plan);
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(plan.contains(&format!("signed by /mnt/boot/balena-keys/kmod.crt, key {id}\n")), "{plan}");

    let signature = rig.root().join("opt/balena.img.sig");
    let good = std::fs::read(&signature).unwrap();
    std::fs::write(&signature, [&good[..255], &[good[255] ^ 1]].concat()).unwrap();
    refused(&known, "", "signature-invalid", "/opt/balena.img.sig");
    std::fs::remove_file(&signature).unwrap();
    refused(&known, "", "signature-missing", "/opt/balena.img.sig");
    // The operator's certificate is trusted because it is named, and the image alone is not the owner's installation.
    std::fs::copy(&certificate, rig.root().join("etc/other.crt")).unwrap();
    refused("", "--image-only --verify-signature /etc/other.crt", "signature-missing", "/opt/balena.img.sig");
    refused("", "--verify-signature /etc/none.crt", "certificate-invalid", "/etc/none.crt");

    std::fs::write(&signature, &good).unwrap();
    let out = flash(&rig, &known, "");
    assert_ok(&out);
    assert_image(&rig);
    let receipt: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(schema::complaints(&receipt), "");
    assert_eq!(receipt["image"]["signed"]["key"], id.as_str());
    let out = flash(&rig, "", "--image-only --verify-signature /etc/other.crt");
    assert_ok(&out);
    let receipt: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(receipt["image"]["signed"]["certificate"], "/etc/other.crt");
}
