//! efitools and openssl of the part `secure` of `qemu/prepare.sh`, with their own libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::needs::not_run;
use crate::kit::prepared::part;

pub(crate) struct Tools {
    tree: PathBuf,
    dir: tempfile::TempDir,
}

impl Tools {
    pub(crate) fn new(test: &str) -> Option<Tools> {
        match part("secure") {
            Ok(tree) => Some(Tools { tree, dir: tempfile::tempdir().unwrap() }),
            Err(why) => {
                not_run(test, &why);
                None
            }
        }
    }

    pub(crate) fn tree(&self) -> &Path {
        &self.tree
    }

    pub(crate) fn at(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.at(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn get(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.at(name)).unwrap()
    }

    pub(crate) fn run(&self, program: &str, words: &[&str]) {
        let libraries = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"]
            .map(|at| self.tree.join(at).display().to_string())
            .join(":");
        let config = self.put("openssl.cnf", b"[req]\ndistinguished_name = name\n[name]\n");
        let out = Command::new(self.tree.join("lib64/ld-linux-x86-64.so.2"))
            .args(["--library-path", &libraries])
            .arg(self.tree.join("usr/bin").join(program))
            .args(words)
            .env("OPENSSL_CONF", config)
            .env("OPENSSL_MODULES", self.tree.join("usr/lib/x86_64-linux-gnu/ossl-modules"))
            .output()
            .unwrap();
        assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// A key, its certificate in PEM and in DER, by the names NAME.key, NAME.crt, NAME.der.
    pub(crate) fn key(&self, name: &str) {
        let at = |end: &str| self.at(&format!("{name}.{end}"));
        let subject = format!("/CN={name}");
        let request = ["req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-sha256", "-subj", &subject];
        self.run("openssl", &[&request[..], &["-keyout", &at("key"), "-out", &at("crt")]].concat());
        self.run("openssl", &["x509", "-in", &at("crt"), "-outform", "DER", "-out", &at("der")]);
    }
}
