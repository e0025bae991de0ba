//! Image archives, good ones and others.

use std::path::PathBuf;
use std::process::Command;

use copal::engine::archive::{self, Archive, Content, Layout, Requested};
use copal::error::{Code, Error};
use serde_json::{Value, json};

use crate::calls::{Bench, fails, says};
use crate::kit::alone::{in_own_process, is_alone};
use crate::kit::image_archive::{Made, Node, digest, elf, pack, tar_of};
use crate::kit::needs::{needs, test_name, tools};
use crate::kit::stub_engine::Then;

fn image() -> Made {
    Made::new(vec![
        tar_of(&[("a", 0o644, &[1; 5000]), ("b/c", 0o600, b"x")]),
        tar_of(&[(".wh.a", 0o644, b""), ("d", 0o644, b"y")]),
    ])
}

fn inspect(path: &std::path::Path) -> Result<Archive, Error> {
    archive::inspect(&archive::open(path)?, u64::MAX, &[])
}

pub fn look(bytes: &[u8]) -> Result<Archive, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.tar");
    std::fs::write(&path, bytes).unwrap();
    inspect(&path)
}

pub fn bad(bytes: &[u8], words: &[&str]) {
    let words = [&["image.tar is not an image archive"], words].concat();
    fails(look(bytes), Code::ImageArchiveInvalid, &words);
}

#[test]
fn what_an_archive_holds() {
    let image = image();
    let found = look(&image.archive(&["a:1"])).unwrap();
    assert_eq!((found.tags.as_slice(), found.layers), (["a:1".to_owned()].as_slice(), 2));
    // Two blocks, one, none, one, and something for each of the four.
    assert_eq!(found.unpacked, 4 * 4096 + 4 * 256);
    assert_eq!(found.entries, 4);
    assert_eq!(found.layout, Layout::Docker);
    assert_eq!(found.size, image.archive(&["a:1"]).len() as u64);
    assert!(look(&image.archive(&[])).unwrap().tags.is_empty());

    let packed = pack(&image.oci(true, &[]));
    let from_oci = look(&packed).unwrap();
    let expected = Archive {
        tags: vec!["r.example/a:1".to_owned()],
        layout: Layout::Oci,
        size: from_oci.size,
        ..found.clone()
    };
    assert_eq!(from_oci, expected);
    let same = |found: Archive| assert_eq!(Archive { size: expected.size, ..found }, expected);
    same(look(&pack(&image.oci(false, &[]))).unwrap());
    let info = r#"{"DockerRootDir":"/x","DriverStatus":[["driver-type","io.containerd.snapshotter.v1"]]}"#;
    let other = Bench::new(|s| s.fault("info", 0, says(&[info], Then::End)));
    other.engine.check_loadable(&from_oci).unwrap();
    let moby = Bench::new(|s| s);
    moby.engine.check_loadable(&found).unwrap();
    fails(moby.engine.check_loadable(&from_oci), Code::ImageArchiveInvalid, &["index.json"]);
    let attestation = json!({ "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:00",
                              "annotations": { "vnd.docker.reference.type": "attestation-manifest" } });
    same(look(&pack(&image.oci(false, &[attestation]))).unwrap());
    // Newer engines write both; `manifest.json` is what they read.
    let both = [image.members(&["a:1"]), image.oci(false, &[])].concat();
    let of_both = look(&pack(&both)).unwrap();
    assert_eq!(Archive { size: found.size, ..of_both }, found);
    // Damage of what they do not read is damage of the archive all the same.
    let documents = [r#""layers":[{"#, r#""manifests":[{"#].map(|words| {
        let has = |text: &[u8]| text.windows(words.len()).any(|window| window == words.as_bytes());
        both.iter().position(|(name, text)| name.starts_with("blobs/") && has(text)).unwrap()
    });
    for at in documents {
        let mut damaged = both.clone();
        damaged[at].1.push(b' ');
        bad(&pack(&damaged), &["blobs/sha256/", "is damaged"]);
    }
    let mut damaged = both.clone();
    damaged.last_mut().unwrap().1 = b"{\"manifests\": 1}".to_vec();
    bad(&pack(&damaged), &["index.json"]);
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

/// The same length, another content.
fn damage(text: &mut [u8]) {
    let at = text.windows(5).position(|w| w == b"linux" || w == b"sha25").unwrap();
    text[at] = b'S';
}

#[test]
fn a_damaged_configuration_or_manifest_is_noticed() {
    let image = image();
    let config = format!("{}.json", digest(&image.config));
    for (name, digest_is_known) in [
        (config.clone(), true),
        (format!("blobs/sha256/{}", digest(&image.config)), true),
        (format!("sha256:{}", digest(&image.config)), true),
        // No digest: there is nothing to compare with.
        ("config.json".to_owned(), false),
        (format!("{}.json", &digest(&image.config)[..63]), false),
    ] {
        let mut members = image.members(&["a:1"]);
        members[0].0.clone_from(&name);
        let manifest = String::from_utf8(members.last().unwrap().1.clone()).unwrap();
        members.last_mut().unwrap().1 = manifest.replace(&config, &name).into_bytes();
        look(&pack(&members)).unwrap();
        let text = &mut members[0].1;
        let at = text.windows(5).position(|w| w == b"linux").unwrap();
        text[at..at + 5].copy_from_slice(b"linuX");
        if digest_is_known {
            bad(&pack(&members), &[&name, "is damaged", "its SHA-256 is"]);
        } else {
            look(&pack(&members)).unwrap();
        }
    }

    // The last ones are the configuration, the manifest, an index and the index of all.
    let members = image.oci(true, &[]);
    let (first, last) = (members.len() - 4, members.len() - 1);
    for at in first..last {
        let mut damaged = members.clone();
        damage(&mut damaged[at].1);
        bad(&pack(&damaged), &[&members[at].0, "is damaged", "its SHA-256 is"]);
    }
    let with_index = |change: &dyn Fn(&mut Value)| {
        let mut other = members.clone();
        let mut index: Value = serde_json::from_slice(&other[last].1).unwrap();
        change(&mut index["manifests"][0]);
        other[last].1 = index.to_string().into_bytes();
        pack(&other)
    };
    look(&with_index(&|_| {})).unwrap();
    bad(&with_index(&|d| d["size"] = json!(7)), &["is damaged", "bytes, not 7"]);
    for odd in ["sha256:00", "sha512:00", "../x"] {
        bad(&with_index(&|d| d["digest"] = json!(odd)), &[odd, "is no SHA-256 digest"]);
    }
}

fn layer(nodes: &[Node<'_>]) -> Vec<u8> {
    tar_of(nodes)
}

/// A layer with one member that is not a file.
fn link(name: &str, kind: tar::EntryType, target: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    match kind {
        tar::EntryType::Directory => tar.append_data(&mut header, name, &[][..]).unwrap(),
        _ => tar.append_link(&mut header, name, target).unwrap(),
    }
    tar.into_inner().unwrap()
}

#[test]
fn an_image_has_boot_init_or_not() {
    use tar::EntryType::{Directory, Link, Symlink};
    let there = |layers: Vec<Vec<u8>>| match look(&Made::new(layers).archive(&["a:1"])).unwrap().content {
        Content::Image { init, .. } => init,
        Content::Delta { .. } => panic!("it is no delta"),
    };
    let init = || layer(&[("./boot/init", 0o755, b"#!/bin/sh\n")]);
    let one = |name: &str| layer(&[(name, 0o644, b"")]);
    assert!(there(vec![init()]));
    assert!(there(vec![one("boot/x"), init(), one("boot/y")]));
    assert!(there(vec![link("boot", Directory, ""), init(), link("boot", Directory, "")]));
    assert!(there(vec![link("boot/init", Link, "sbin/mobynit")]));
    // A fact that only the engine knows does not refuse.
    assert!(there(vec![link("boot/init", Symlink, "mobynit")]));
    assert!(there(vec![link("boot", Symlink, "usr/boot"), one("usr/boot/init")]));

    assert!(!there(vec![one("boot/vmlinuz"), one("sbin/init"), one("init"), one("boot/init/x")]));
    assert!(!there(vec![link("boot/init", Directory, "")]));
    // Removed by a later layer: the file, its folder, or what the folder had before.
    for whiteout in ["boot/.wh.init", ".wh.boot", "boot/.wh..wh..opq", ".wh..wh..opq"] {
        assert!(!there(vec![init(), one(whiteout)]), "{whiteout}");
        assert!(there(vec![init(), one(whiteout), init()]), "{whiteout}");
        let replaced = [(whiteout, 0o644, &b""[..]), ("boot/init", 0o755, b"x")];
        assert!(there(vec![init(), layer(&replaced)]), "{whiteout}");
    }
    assert!(!there(vec![init(), one("boot")]));
    assert!(!there(vec![init(), link("boot/init", Directory, "")]));
}

#[test]
fn the_contents_that_all_layers_leave_are_read() {
    use tar::EntryType::{Directory, Link, Symlink};
    let asked: Vec<PathBuf> = ["boot/kernel", "boot/kernel.sig"].map(Into::into).into();
    let read = |bytes: &[u8], most: u64| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.tar");
        std::fs::write(&path, bytes).unwrap();
        archive::read_files(&path, &asked, most).map(|archive| archive.contents)
    };
    let of = |layers: Vec<Vec<u8>>| read(&Made::new(layers).archive(&["a:1"]), 100).unwrap();
    let kernel = |content: &[u8]| layer(&[("boot/kernel", 0o644, content)]);
    let content = |content: &[u8]| Requested::Content(content.to_vec());
    assert_eq!(of(vec![kernel(b"old"), kernel(b"new")]), [content(b"new"), Requested::Missing]);
    let both = layer(&[("boot/kernel", 0o644, b"1"), ("boot/kernel.sig", 0o644, b"")]);
    assert_eq!(of(vec![both, layer(&[("boot/other", 0o644, b"2")])]), [content(b"1"), content(b"")]);
    let gone = layer(&[("boot/.wh.kernel", 0o644, b"")]);
    assert_eq!(of(vec![kernel(b"old"), gone.clone()])[0], Requested::Missing);
    assert_eq!(of(vec![kernel(b"old"), gone, kernel(b"new")])[0], content(b"new"));
    assert_eq!(of(vec![kernel(b"old"), link("boot/kernel", Directory, "")])[0], Requested::Missing);
    for kind in [Link, Symlink] {
        let of_link = of(vec![kernel(b"old"), link("boot/kernel", kind, "other")]);
        assert_eq!(of_link[0], Requested::Unclear, "only the engine knows");
    }
    let made = Made::new(vec![kernel(&[7; 60]), kernel(&[8; 60])]).archive(&["a:1"]);
    assert_eq!(read(&made, 120).unwrap()[0], content(&[8; 60]));
    fails(read(&made, 119), Code::ImageArchiveInvalid, &["too large to be examined"]);
    let target = json!({ "rootfs": { "diff_ids": ["sha256:1"] } }).to_string();
    let delta = read(&Made::delta("os:1", &target).archive(&["a:1"]), 100).unwrap();
    assert_eq!(delta, [Requested::Unclear, Requested::Unclear]);
}

#[test]
fn the_files_that_all_layers_leave_are_known() {
    use tar::EntryType::{Directory, Link, Symlink};
    const TREE: &str = "boot/overlays/own.dtbo";
    let asked: Vec<PathBuf> = ["boot/own.dtb", TREE, "resin-boot/own.dtb"].map(Into::into).into();
    let left = |bytes: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.tar");
        std::fs::write(&path, bytes).unwrap();
        let found = archive::inspect(&archive::open(&path).unwrap(), u64::MAX, &asked).unwrap().leaves;
        found.into_iter().map(|p| p.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let of = |layers: Vec<Vec<u8>>| left(&Made::new(layers).archive(&["a:1"]));
    let one = |name: &str| layer(&[(name, 0o644, b"")]);
    let none: [&str; 0] = [];
    assert_eq!(
        of(vec![one("boot/own.dtb"), one("./resin-boot/own.dtb")]),
        ["boot/own.dtb", "resin-boot/own.dtb"]
    );
    assert_eq!(
        of(vec![one("boot/OWN.dtb"), one("boot/overlays/own"), one("own.dtb"), one(&format!("{TREE}/x"))]),
        none
    );
    assert_eq!(
        of(vec![link("boot/own.dtb", Link, "boot/other"), link("boot/overlays", Directory, "")]),
        ["boot/own.dtb"]
    );
    // What a link leads to, only the engine knows.
    assert_eq!(of(vec![link("boot/own.dtb", Symlink, "other.dtb")]), ["boot/own.dtb"]);
    assert_eq!(of(vec![link("boot/overlays", Symlink, "trees"), one("boot/trees/own.dtbo")]), [TREE]);
    for gone in [
        "boot/overlays/.wh.own.dtbo",
        "boot/overlays/.wh..wh..opq",
        "boot/.wh.overlays",
        "boot/.wh..wh..opq",
        ".wh.boot",
        "boot/overlays",
    ] {
        assert_eq!(of(vec![one(TREE), one(gone)]), none, "{gone}");
        assert_eq!(of(vec![one(TREE), one(gone), one(TREE)]), [TREE], "{gone}");
    }
    for other in ["boot/overlays/.wh.own", "boot/.wh.own.dtbo", "boot/other/.wh..wh..opq", ".wh.own.dtbo"] {
        assert_eq!(of(vec![one(TREE), one(other)]), [TREE], "{other}");
    }
    let target = json!({ "rootfs": { "diff_ids": ["sha256:1"] } }).to_string();
    assert_eq!(left(&Made::delta("os:1", &target).archive(&["a:1"])).len(), asked.len());
}

#[test]
fn what_programs_are_made_for_is_in_their_files() {
    let machine = |layers: Vec<Vec<u8>>| match look(&Made::new(layers).archive(&["a:1"])).unwrap().content {
        Content::Image { machine, .. } => machine.map(|m| m.to_string()),
        Content::Delta { .. } => panic!("it is no delta"),
    };
    let (x86, i386, arm, aarch64) = (elf(62), elf(3), elf(40), elf(183));
    let of = |nodes: &[(&str, &[u8])]| {
        layer(&nodes.iter().map(|(name, content)| (*name, 0o755, *content)).collect::<Vec<_>>())
    };
    assert_eq!(machine(vec![of(&[("boot/init", &aarch64)])]).unwrap(), "ARM, 64 bits");
    // The configuration of each of these says what this machine is.
    assert_eq!(machine(vec![of(&[("./bin/sh", &arm)])]).unwrap(), "ARM, 32 bits");
    assert_eq!(machine(vec![of(&[("usr/sbin/x", &elf(243))])]).unwrap(), "ELF machine 243");
    // What the kernel starts counts; where that is a script, what all others agree upon.
    assert_eq!(machine(vec![of(&[("bin/sh", &x86), ("boot/init", &arm)])]).unwrap(), "ARM, 32 bits");
    let script = ("boot/init", &b"#!/bin/sh and more bytes"[..]);
    assert_eq!(machine(vec![of(&[script, ("bin/sh", &i386), ("bin/x", &x86)])]).unwrap(), "x86, 32 bits");
    assert_eq!(machine(vec![of(&[script, ("bin/sh", &x86)]), of(&[("usr/bin/x", &arm)])]), None);
    assert_eq!(
        machine(vec![of(&[("boot/init", &arm)]), of(&[script, ("bin/sh", &x86)])]).unwrap(),
        "x86, 64 bits"
    );
    // Firmware of other processors and a cut file do not count as programs.
    assert_eq!(machine(vec![of(&[("lib/firmware/dsp.elf", &arm), ("bin/sh", &x86[..19])])]), None);
}

#[test]
fn a_delta_names_its_base() {
    let base = digest(b"the image before");
    let target = json!({ "rootfs": { "diff_ids": [format!("sha256:{base}")] } }).to_string();
    let delta = |base: &str, target: &str| Made::delta(base, target).archive(&["a:1"]);
    match look(&delta(&format!("sha256:{base}"), &target)).unwrap().content {
        Content::Delta { base: Some(found), target: Some(made) } => {
            assert_eq!((found.to_string(), made.to_string()), (base.clone(), digest(target.as_bytes())));
        }
        other => panic!("{other:?}"),
    }
    let content = look(&delta("os:1", &target)).unwrap().content;
    assert!(matches!(content, Content::Delta { base: None, .. }), "{content:?}");
    bad(&delta(&format!("sha256:{base}"), "{"), &["what the delta makes"]);
    let more = json!({ "rootfs": { "diff_ids": ["sha256:1", "sha256:2"] } }).to_string();
    bad(&delta(&format!("sha256:{base}"), &more), &["1 layer,", "has 2"]);
}

#[test]
fn layers_may_be_packed_as_the_engine_reads_them() {
    needs!(tools);
    let image = image();
    for (program, is_read) in [("gzip", true), ("bzip2", true), ("xz", false), ("zstd", false)] {
        let mut members = image.members(&["a:1"]);
        for (_, content) in &mut members[1..3] {
            *content = filter(program, content);
        }
        if is_read {
            assert_eq!(look(&pack(&members)).unwrap().layers, 2, "{program}");
            let cut = members[1].1.len() - 1;
            members[1].1.truncate(cut);
        }
        bad(&pack(&members), &["the layer", "is damaged"]);
    }
    // Several streams one after the other, as `pbzip2` writes them; and a tail that is not a stream.
    let (one, two) = image.layers[0].split_at(700);
    let mut members = image.members(&["a:1"]);
    members[1].1 = [filter("bzip2", one), filter("bzip2", two)].concat();
    look(&pack(&members)).unwrap();
    members[1].1.extend_from_slice(b"more");
    bad(&pack(&members), &["the layer", "is damaged"]);
}

/// What a program makes of `bytes`.
pub fn filter(command: &str, bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut child = Command::new("sh")
        .args(["-c", &format!("{command} -c")])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_owned();
    let writing = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    assert!(output.status.success());
    output.stdout
}

#[test]
fn every_compression_is_understood_and_loaded() {
    needs!(tools);
    let dir = tempfile::tempdir().unwrap();
    let plain: PathBuf = dir.path().join("image.tar");
    let image = image();
    image.save(&plain, &["a:1"]);
    let whole = std::fs::metadata(&plain).unwrap().len();
    let found = inspect(&plain).unwrap();
    for program in ["gzip", "bzip2", "xz", "zstd"] {
        let packed = dir.path().join(program);
        let output = Command::new(program).arg("-c").arg(&plain).output().unwrap();
        std::fs::write(&packed, &output.stdout).unwrap();
        assert_eq!(inspect(&packed).unwrap(), found, "{program}");
        let bench = Bench::new(|s| s);
        bench.engine.load(&archive::open(&packed).unwrap(), &mut |_| {}).unwrap();
        let upload = bench.stub.uploads().remove(0);
        match program {
            // moby reads these everywhere.
            "gzip" | "bzip2" => assert_eq!(upload.size, output.stdout.len() as u64),
            _ => assert_eq!(upload.size, whole, "{program}"),
        }
        for cut in [output.stdout.len() / 2, output.stdout.len() - 1] {
            std::fs::write(&packed, &output.stdout[..cut]).unwrap();
            fails(inspect(&packed), Code::ImageArchiveInvalid, &[program]);
            if !["gzip", "bzip2"].contains(&program) {
                fails(
                    Bench::new(|s| s).engine.load(&archive::open(&packed).unwrap(), &mut |_| {}),
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
    bad(&manifest("[]"), &["holds no image"]);
    let entry = String::from_utf8(members.last().unwrap().1.clone()).unwrap();
    let entry = entry.trim_start_matches('[').trim_end_matches(']');
    bad(&manifest(&format!("[{entry},{entry}]")), &["several images"]);
    bad(&manifest("{}"), &["manifest.json"]);
    bad(&manifest("[{\"Config\":"), &["manifest.json"]);
    bad(&manifest(r#"[{"Config":"../../etc/passwd","Layers":[]}]"#), &["../../etc/passwd"]);
    bad(
        &manifest(&entry.replace("a:1", "a:1\",\"b:1").replacen('{', "[{", 1).replace("]}", "]}]")),
        &["a:1, b:1"],
    );
    let other = Made::new(vec![image.layers[0].clone()]);
    let mut wrong = other.members(&["a:1"]);
    wrong.last_mut().unwrap().1 = members.last().unwrap().1.clone();
    wrong[0].0.clone_from(&members[0].0);
    bad(&pack(&wrong), &[&members[0].0, "is damaged"]);
    wrong[0].0 = "config".to_owned();
    let entry = String::from_utf8(members.last().unwrap().1.clone()).unwrap();
    wrong.last_mut().unwrap().1 = entry.replace(&members[0].0, "config").into_bytes();
    bad(&pack(&wrong), &["2 layers", "made of 1"]);
    bad(&pack(&image.oci(true, &[json!({ "digest": "sha256:00" })])), &["several images"]);

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

/// Runs in a process of its own: the peak covers everything the process did.
#[test]
fn a_large_archive_needs_little_memory() {
    if !is_alone() {
        in_own_process(test_name!(), &[]);
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
    bench.engine.load(&archive::open(&path).unwrap(), &mut |_| {}).unwrap();
    assert_eq!(bench.stub.uploads()[0].size, std::fs::metadata(&path).unwrap().len());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 32 << 10, "{peak} KiB");
}
