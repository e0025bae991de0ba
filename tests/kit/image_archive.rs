//! Images made by hand: archives as `docker save` writes them, and the parts of them for a registry.
#![allow(dead_code)] // no test program uses all of it

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A file of an image: name, mode, content.
pub type Node<'a> = (&'a str, u32, &'a [u8]);

pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// A tar of plain files.
pub fn tar_of(nodes: &[Node<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, mode, content) in nodes {
        let mut header = tar::Header::new_gnu();
        header.set_mode(*mode);
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, name, *content).unwrap();
    }
    tar.into_inner().unwrap()
}

/// The beginning of a program for a machine.
pub fn elf(machine: u16) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0".to_vec();
    bytes.extend_from_slice(&machine.to_le_bytes());
    bytes.resize(64, 0);
    bytes
}

/// An image of some layers.
pub struct Made {
    pub config: Vec<u8>,
    /// Each layer as a tar.
    pub layers: Vec<Vec<u8>>,
}

impl Made {
    pub fn new(layers: Vec<Vec<u8>>) -> Made {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let ids: Vec<String> = layers.iter().map(|l| format!("sha256:{}", digest(l))).collect();
        let config = json!({
            "architecture": architecture, "os": "linux", "config": { "Env": ["PATH=/bin"] },
            "rootfs": { "type": "layers", "diff_ids": ids },
        });
        Made { config: config.to_string().into_bytes(), layers }
    }

    /// A host OS in small: a shell, a kernel, hooks that are this shell script, and `filler` bytes that cannot be compressed.
    pub fn host_os(hooks: &str, filler: usize) -> Made {
        let busybox = std::fs::read("/bin/busybox").expect("busybox-static");
        let hooks = format!("#!/bin/sh\n{hooks}\n");
        let base = tar_of(&[
            ("bin/sh", 0o755, &busybox),
            ("bin/busybox", 0o755, &busybox),
            ("bin/hostapp-update-hooks", 0o755, hooks.as_bytes()),
            ("boot/vmlinuz", 0o644, b"kernel"),
        ]);
        let mut random = vec![0; filler];
        fastrand::Rng::with_seed(1).fill(&mut random);
        Made::new(vec![base, tar_of(&[("usr/filler", 0o644, &random)])])
    }

    /// A delta, as balenaEngine makes it: to be applied to the image with the ID `base`; the configuration `target` is what comes of it.
    pub fn delta(base: &str, target: &str) -> Made {
        let mut made = Made::new(vec![tar_of(&[("delta", 0o600, b"rs")])]);
        let mut config: Value = serde_json::from_slice(&made.config).unwrap();
        let labels = json!({ "io.resin.delta.base": base, "io.resin.delta.config": target });
        config["config"] = json!({ "Labels": labels });
        made.config = config.to_string().into_bytes();
        made
    }

    pub fn id(&self) -> String {
        format!("sha256:{}", digest(&self.config))
    }

    /// The members of an archive, `manifest.json` last, as `docker save` writes it.
    pub fn members(&self, tags: &[&str]) -> Vec<(String, Vec<u8>)> {
        let config = format!("{}.json", digest(&self.config));
        let mut members = vec![(config.clone(), self.config.clone())];
        let mut layers = Vec::new();
        for layer in &self.layers {
            let name = format!("{}/layer.tar", digest(layer));
            layers.push(name.clone());
            members.push((name, layer.clone()));
        }
        let manifest = json!([{ "Config": config, "RepoTags": tags, "Layers": layers }]);
        members.push(("manifest.json".to_owned(), manifest.to_string().into_bytes()));
        members
    }

    pub fn archive(&self, tags: &[&str]) -> Vec<u8> {
        pack(&self.members(tags))
    }

    pub fn save(&self, path: &Path, tags: &[&str]) {
        std::fs::write(path, self.archive(tags)).unwrap();
    }

    /// The members of an archive in the layout of the OCI; `also` are further entries of its index.
    pub fn oci(&self, packed: bool, also: &[Value]) -> Vec<(String, Vec<u8>)> {
        let mut members = vec![("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())];
        let mut put = |kind: &str, bytes: Vec<u8>| {
            let hex = digest(&bytes);
            let part = json!({ "mediaType": kind, "size": bytes.len(), "digest": format!("sha256:{hex}") });
            members.push((format!("blobs/sha256/{hex}"), bytes));
            part
        };
        let layers: Vec<_> = self
            .layers
            .iter()
            .map(|l| put("application/vnd.oci.image.layer.v1.tar", if packed { gzip(l) } else { l.clone() }))
            .collect();
        let config = put("application/vnd.oci.self.config.v1+json", self.config.clone());
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers }).to_string();
        let one = put("application/vnd.oci.image.manifest.v1+json", manifest.into_bytes());
        let below = json!({ "schemaVersion": 2, "manifests": [one] }).to_string();
        let mut entry = put("application/vnd.oci.image.index.v1+json", below.into_bytes());
        entry["annotations"] =
            json!({ "io.containerd.image.name": "r.example/a:1", "org.opencontainers.image.ref.name": "1" });
        let all: Vec<_> = std::iter::once(entry).chain(also.iter().cloned()).collect();
        members.push((
            "index.json".to_owned(),
            json!({ "schemaVersion": 2, "manifests": all }).to_string().into_bytes(),
        ));
        members
    }

    /// The manifest for a registry, and the blobs that it names: config first, then the layers, packed.
    pub fn for_registry(&self) -> (Value, Vec<Vec<u8>>) {
        let mut blobs = vec![self.config.clone()];
        blobs.extend(self.layers.iter().map(|l| gzip(l)));
        let part = |kind: &str, blob: &[u8]| json!({ "mediaType": format!("application/vnd.docker.{kind}"), "size": blob.len(), "digest": format!("sha256:{}", digest(blob)) });
        let layers: Vec<Value> = blobs[1..].iter().map(|b| part("image.rootfs.diff.tar.gzip", b)).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": part("container.image.v1+json", &blobs[0]),
            "layers": layers,
        });
        (manifest, blobs)
    }
}

pub fn pack(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let nodes: Vec<Node<'_>> = members.iter().map(|(n, b)| (n.as_str(), 0o644, b.as_slice())).collect();
    tar_of(&nodes)
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}
