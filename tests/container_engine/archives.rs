//! Image archives, good ones and others.

use std::path::PathBuf;
use std::process::Command;

use copal::error::{Code, Error};
use copal::hostapp::archive::{Archive, Layout, inspect};
use serde_json::json;

use crate::calls::{Bench, fails, says};
use crate::image_archive::{Made, digest, gzip, pack, tar_of};
use crate::stub_engine::Then;

fn image() -> Made {
    Made::new(vec![
        tar_of(&[("a", 0o644, &[1; 5000]), ("b/c", 0o600, b"x")]),
        tar_of(&[(".wh.a", 0o644, b""), ("d", 0o644, b"y")]),
    ])
}

fn look(bytes: &[u8]) -> Result<Archive, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.tar");
    std::fs::write(&path, bytes).unwrap();
    inspect(&path)
}

fn bad(bytes: &[u8], words: &[&str]) {
    let words = [&["image.tar is no image archive"], words].concat();
    fails(look(bytes), Code::ImageArchiveInvalid, &words);
}

/// The same image in the layout of the OCI; `also` are further entries of its index.
fn oci(image: &Made, packed: bool, also: &[serde_json::Value]) -> Vec<(String, Vec<u8>)> {
    let mut members = vec![("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())];
    let mut put = |kind: &str, bytes: Vec<u8>| {
        let hex = digest(&bytes);
        let part = json!({ "mediaType": kind, "size": bytes.len(), "digest": format!("sha256:{hex}") });
        members.push((format!("blobs/sha256/{hex}"), bytes));
        part
    };
    let layers: Vec<_> = image
        .layers
        .iter()
        .map(|l| put("application/vnd.oci.image.layer.v1.tar", if packed { gzip(l) } else { l.clone() }))
        .collect();
    let config = put("application/vnd.oci.image.config.v1+json", image.config.clone());
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

#[test]
fn what_an_archive_holds() {
    let image = image();
    let found = look(&image.archive(&["a:1"])).unwrap();
    assert_eq!((found.tags.as_slice(), found.images, found.layers), (["a:1".to_owned()].as_slice(), 1, 2));
    // Two blocks, one, none, one, and something for each of the four.
    assert_eq!(found.unpacked, 4 * 4096 + 4 * 256);
    assert_eq!(found.layout, Layout::Docker);
    assert!(!found.architecture.is_empty());
    assert!(look(&image.archive(&[])).unwrap().tags.is_empty());

    let packed = pack(&oci(&image, true, &[]));
    let from_oci = look(&packed).unwrap();
    let expected = Archive { tags: vec!["r.example/a:1".to_owned()], layout: Layout::Oci, ..found.clone() };
    assert_eq!(from_oci, expected);
    assert_eq!(look(&pack(&oci(&image, false, &[]))).unwrap(), expected);
    let info = r#"{"DockerRootDir":"/x","DriverStatus":[["driver-type","io.containerd.snapshotter.v1"]]}"#;
    let other = Bench::new(|s| s.fault("info", 0, says(&[info], Then::End)));
    other.engine.check_loadable(&from_oci).unwrap();
    let moby = Bench::new(|s| s);
    moby.engine.check_loadable(&found).unwrap();
    fails(moby.engine.check_loadable(&from_oci), Code::ImageArchiveInvalid, &["index.json"]);
    let attestation = json!({ "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:00",
                              "annotations": { "vnd.docker.reference.type": "attestation-manifest" } });
    assert_eq!(look(&pack(&oci(&image, false, &[attestation]))).unwrap(), expected);
    // Newer engines write both; `manifest.json` is what they read.
    let both = [image.members(&["a:1"]), oci(&image, false, &[])].concat();
    assert_eq!(look(&pack(&both)).unwrap(), found);
    // A layer that is there twice is a link in what older engines write.
    let twice = Made::new(vec![image.layers[0].clone(), image.layers[0].clone()]);
    let manifest =
        json!([{ "Config": "c.json", "RepoTags": null, "Layers": ["x/layer.tar", "y/layer.tar"] }])
            .to_string();
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |name: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, name, content).unwrap();
    };
    add("c.json", &twice.config);
    add("x/layer.tar", &twice.layers[0]);
    add("manifest.json", manifest.as_bytes());
    let mut link = tar::Header::new_gnu();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_size(0);
    tar.append_link(&mut link, "y/layer.tar", "../x/layer.tar").unwrap();
    assert_eq!(look(&tar.into_inner().unwrap()).unwrap().layers, 2);
}

#[test]
fn every_compression_is_understood_and_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let plain: PathBuf = dir.path().join("image.tar");
    let image = image();
    image.save(&plain, &["a:1"]);
    let whole = std::fs::metadata(&plain).unwrap().len();
    let found = inspect(&plain).unwrap();
    for program in ["gzip", "xz", "zstd"] {
        let packed = dir.path().join(program);
        let output = Command::new(program).arg("-c").arg(&plain).output().unwrap();
        std::fs::write(&packed, &output.stdout).unwrap();
        assert_eq!(inspect(&packed).unwrap(), found, "{program}");
        let bench = Bench::new(|s| s);
        bench.engine.load(&packed, &mut |_| {}).unwrap();
        let upload = bench.stub.uploads().remove(0);
        match program {
            // moby reads it everywhere.
            "gzip" => assert_eq!(upload.size, output.stdout.len() as u64),
            _ => assert_eq!(upload.size, whole, "{program}"),
        }
        for cut in [output.stdout.len() / 2, output.stdout.len() - 1] {
            std::fs::write(&packed, &output.stdout[..cut]).unwrap();
            fails(inspect(&packed), Code::ImageArchiveInvalid, &[program]);
            if program != "gzip" {
                fails(
                    Bench::new(|s| s).engine.load(&packed, &mut |_| {}),
                    Code::ImageArchiveInvalid,
                    &[program],
                );
            }
        }
    }
}

#[test]
fn what_cannot_be_loaded_is_refused() {
    let image = image();
    let members = image.members(&["a:1"]);
    let whole = pack(&members);
    bad(&[b'x'; 4096], &[]);
    bad(&[0; 10240], &["nothing"]);
    bad(&tar_of(&[("etc/passwd", 0o644, b"root")]), &["neither a manifest.json nor an index.json"]);
    // Cut anywhere, and damaged anywhere: never taken for good. What matters ends with the last member.
    let end = whole.len() - 1024 - 512;
    for cut in (1..end).step_by(509) {
        bad(&whole[..cut], &[]);
    }
    let content: Vec<usize> = (512..end).step_by(701).collect();
    let mut harmless = 0;
    for at in content {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        harmless += usize::from(look(&damaged).is_ok());
    }
    assert!(
        harmless <= 2,
        "{harmless} damages went unseen: the padding of members is all that may be damaged"
    );

    for (i, (name, _)) in members.iter().enumerate() {
        let mut fewer = members.clone();
        fewer.remove(i);
        let word = if name == "manifest.json" { "neither" } else { name };
        bad(&pack(&fewer), &[word]);
    }
    let manifest = |text: &str| {
        let mut other = members.clone();
        other.last_mut().unwrap().1 = text.as_bytes().to_vec();
        pack(&other)
    };
    bad(&manifest("[]"), &["0 images"]);
    let entry = String::from_utf8(members.last().unwrap().1.clone()).unwrap();
    let entry = entry.trim_start_matches('[').trim_end_matches(']');
    bad(&manifest(&format!("[{entry},{entry}]")), &["2 images"]);
    bad(&manifest("{}"), &["manifest.json"]);
    bad(&manifest("[{\"Config\":"), &["manifest.json"]);
    bad(&manifest(r#"[{"Config":"../../etc/passwd","Layers":[]}]"#), &["../../etc/passwd"]);
    bad(
        &manifest(&entry.replace("a:1", "a:1\",\"b:1").replacen('{', "[{", 1).replace("]}", "]}]")),
        &["a:1, b:1"],
    );
    let other = Made::new(vec![image.layers[0].clone()]);
    let mut wrong = members.clone();
    wrong[0].1.clone_from(&other.config);
    bad(&pack(&wrong), &["2 layers", "made of 1"]);
    bad(&pack(&oci(&image, true, &[json!({ "digest": "sha256:00" })])), &["2 images"]);

    // What leads out, as a member and within a layer.
    let raw = |name: &[u8], kind: tar::EntryType, link: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        if !link.is_empty() {
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        }
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    };
    let file = tar::EntryType::Regular;
    for odd in [
        raw(b"../x", file, "", b"x"),
        raw(b"/etc/x", file, "", b"x"),
        raw(b"x", tar::EntryType::Symlink, "/etc/passwd", b""),
        raw(b"x/y", tar::EntryType::Symlink, "../../y", b""),
        raw(b"x", tar::EntryType::Link, "../y", b""),
    ] {
        bad(&[odd, whole.clone()].concat(), &["leads out"]);
    }
    bad(
        &[raw(b"x", tar::EntryType::Fifo, "", b""), whole.clone()].concat(),
        &["neither a file nor a folder"],
    );
    for odd in [raw(b"a/../../x", file, "", b"x"), raw(b"x", tar::EntryType::Link, "../../etc/passwd", b"")] {
        bad(&Made::new(vec![odd]).archive(&["a:1"]), &["leads out"]);
    }
}

/// Runs in a process of its own: the peak is that of everything the process did.
#[test]
fn a_large_archive_needs_little_memory() {
    if std::env::var_os("COPAL_TEST_ALONE").is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "archives::a_large_archive_needs_little_memory", "--nocapture"]);
        let output = command.env("COPAL_TEST_ALONE", "1").output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (path, layer) = (dir.path().join("image.tar"), dir.path().join("layer.tar"));
    let create = |path: &std::path::Path| tar::Builder::new(std::fs::File::create(path).unwrap());
    let add =
        |tar: &mut tar::Builder<std::fs::File>, name: &str, size: u64, content: &mut dyn std::io::Read| {
            let mut header = tar::Header::new_gnu();
            header.set_size(size);
            tar.append_data(&mut header, name, content).unwrap();
        };
    let mut tar = create(&layer);
    add(&mut tar, "large", 400 << 20, &mut std::io::Read::take(std::io::repeat(7), 400 << 20));
    tar.into_inner().unwrap();
    let sum = Command::new("sha256sum").arg(&layer).output().unwrap().stdout;
    let id = String::from_utf8(sum).unwrap().split_whitespace().next().unwrap().to_owned();
    let config = json!({ "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{id}")] } }).to_string();
    let manifest = json!([{ "Config": "c.json", "RepoTags": ["a:1"], "Layers": ["l"] }]).to_string();
    let mut tar = create(&path);
    add(&mut tar, "c.json", config.len() as u64, &mut config.as_bytes());
    add(&mut tar, "l", std::fs::metadata(&layer).unwrap().len(), &mut std::fs::File::open(&layer).unwrap());
    add(&mut tar, "manifest.json", manifest.len() as u64, &mut manifest.as_bytes());
    tar.into_inner().unwrap();

    assert!(inspect(&path).unwrap().unpacked > 400 << 20);
    let bench = Bench::new(|s| s);
    bench.engine.load(&path, &mut |_| {}).unwrap();
    assert_eq!(bench.stub.uploads()[0].size, std::fs::metadata(&path).unwrap().len());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 32 << 10, "{peak} KiB");
}
