//! Layers that belong to no image: a load or a pull that was broken off by a power cut leaves them.
//!
//! moby flushes its record of a layer to the medium, but not the files of the layer. After a power cut it takes a layer that it has a
//! record of for complete, and a new image with the same layer gets files that are cut short. It removes a layer only with the last image
//! that has it (layer/layer_store.go), so that one without an image stays for ever. Such layers get an image here: an archive that
//! names them and has no contents, which moby takes where it has all layers (image/tarexport/load.go). They go with that image.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use bollard::query_parameters::ImportImageOptionsBuilder;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};

use super::{Engine, REMOVAL};
use crate::error::{Code, Error, Result};
use crate::sys::file::read_text;

/// Most layers of an image, as moby limits them (layer/layer.go). A longer chain is a circle of damaged records.
const MOST: usize = 128;

/// A file of a record is one digest.
const LARGEST: u64 = 4096;

/// Bytes of a block of a tar.
const BLOCK: usize = 512;

impl Engine {
    /// Removes the layers that no image has from the store of this engine, which is mounted at `store`. Its images must have been removed.
    ///
    /// # Errors
    /// Some are left.
    pub fn remove_lost_layers(&self, store: &Path) -> Result<()> {
        let failed =
            || Error::new(Code::EngineFailed, "cannot remove layers that an earlier update has left");
        let what = "cannot ask the container engine how it keeps layers";
        let driver = self.soon(self.docker.info()).map_err(|e| e.during(what))?.driver.unwrap_or_default();
        let records = store.join("image").join(driver).join("layerdb/sha256");
        let chains = chains(&records).map_err(|e| failed().object(records.display()).because(e))?;
        if chains.is_empty() {
            return Ok(());
        }
        tracing::warn!("an earlier update was broken off and has left layers; removing them");
        for chain in &chains {
            let options = ImportImageOptionsBuilder::new().quiet(true).build();
            let archive = stream::iter([Ok::<_, io::Error>(Bytes::from(archive(chain)))]);
            let loaded = self.within(REMOVAL, async {
                let mut answers = self.docker.import_image_stream(options, archive, None);
                while let Some(answer) = answers.next().await {
                    answer?;
                }
                Ok(())
            });
            loaded.map_err(|e| e.during("cannot remove layers that an earlier update has left"))?;
        }
        self.remove_images()?;
        match chains_left(&records) {
            0 => Ok(()),
            left => Err(failed().object(records.display()).because(format!("{left} are still there"))),
        }
    }
}

fn chains_left(records: &Path) -> usize {
    chains(records).map_or(0, |chains| chains.len())
}

/// The layers in `records`, as chains of their digests (`diff`) from the lowest one up. A layer is in each chain that ends above it.
fn chains(records: &Path) -> io::Result<Vec<Vec<String>>> {
    let mut names = BTreeSet::new();
    match fs::read_dir(records) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
        Ok(entries) => {
            for entry in entries {
                names.insert(entry?.file_name().to_string_lossy().into_owned());
            }
        }
    }
    let parent = |name: &str| {
        let text = read_text(&records.join(name).join("parent"), LARGEST).ok()?;
        Some(text.trim().strip_prefix("sha256:")?.to_owned())
    };
    let parents: BTreeSet<String> = names.iter().filter_map(|name| parent(name)).collect();
    let mut chains = Vec::new();
    for top in names.iter().filter(|name| !parents.contains(*name)) {
        let mut chain = Vec::new();
        let mut next = Some(top.clone());
        while let Some(name) = next.filter(|_| chain.len() < MOST) {
            match read_text(&records.join(&name).join("diff"), LARGEST) {
                Ok(diff) => chain.push(diff.trim().to_owned()),
                // moby does not know a layer whose record it cannot read (layer/filestore.go).
                Err(_) => chain.clear(),
            }
            if chain.is_empty() {
                break;
            }
            next = parent(&name);
        }
        chain.reverse();
        chains.extend((!chain.is_empty()).then_some(chain));
    }
    Ok(chains)
}

/// An archive of an image with these layers, in the layout of `docker save`, without their contents.
fn archive(layers: &[String]) -> Vec<u8> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = serde_json::json!({
        "architecture": architecture,
        "os": "linux",
        "rootfs": { "type": "layers", "diff_ids": layers },
    });
    let names: Vec<String> = (0..layers.len()).map(|n| format!("{n}.tar")).collect();
    let manifest = serde_json::json!([{ "Config": "config.json", "RepoTags": null, "Layers": names }]);
    let mut tar = Vec::new();
    for (name, content) in [("config.json", config), ("manifest.json", manifest)] {
        member(&mut tar, name, content.to_string().as_bytes());
    }
    tar.resize(tar.len() + 2 * BLOCK, 0);
    tar
}

/// Appends a file (POSIX.1-1988, "ustar").
fn member(tar: &mut Vec<u8>, name: &str, content: &[u8]) {
    let size = format!("{:011o}\0", content.len());
    let fields: [(usize, &[u8]); 8] = [
        (0, name.as_bytes()),
        (100, b"0000644\0"),
        (108, b"0000000\0"),
        (116, b"0000000\0"),
        (124, size.as_bytes()),
        (136, b"00000000000\0"),
        (156, b"0"),
        (257, b"ustar\x0000"),
    ];
    let mut header = [0; BLOCK];
    // The checksum counts itself as blanks.
    for (at, bytes) in fields.into_iter().chain([(148, b"        ".as_slice())]) {
        for (to, from) in header.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    }
    let sum = format!("{:06o}\0 ", header.iter().map(|b| u32::from(*b)).sum::<u32>());
    for (to, from) in header.iter_mut().skip(148).zip(sum.bytes()) {
        *to = from;
    }
    tar.extend(header);
    tar.extend(content);
    tar.resize(tar.len().next_multiple_of(BLOCK), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(records: &Path, name: &str, parent: Option<&str>) {
        let folder = records.join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("diff"), format!("sha256:diff-{name}")).unwrap();
        if let Some(parent) = parent {
            fs::write(folder.join("parent"), format!("sha256:{parent}")).unwrap();
        }
    }

    #[test]
    fn each_layer_is_in_a_chain_from_the_lowest_one_up() {
        let dir = tempfile::tempdir().unwrap();
        let records = dir.path().join("sha256");
        assert_eq!(chains(&records).unwrap(), Vec::<Vec<String>>::new());
        for (name, parent) in [("a", None), ("b", Some("a")), ("c", Some("b")), ("d", Some("a")), ("e", None)]
        {
            record(&records, name, parent);
        }
        let expected = [vec!["a", "b", "c"], vec!["a", "d"], vec!["e"]];
        let expected =
            expected.map(|chain| chain.iter().map(|n| format!("sha256:diff-{n}")).collect::<Vec<_>>());
        assert_eq!(chains(&records).unwrap(), expected);
        // Without its record the engine does not know `b`, nor what is above it.
        fs::remove_file(records.join("b/diff")).unwrap();
        assert_eq!(chains(&records).unwrap(), [expected[1].clone(), expected[2].clone()]);
    }

    #[test]
    fn a_circle_of_records_ends() {
        let dir = tempfile::tempdir().unwrap();
        for (name, parent) in [("a", "b"), ("b", "a"), ("top", "a")] {
            record(dir.path(), name, Some(parent));
        }
        assert_eq!(chains(dir.path()).unwrap()[0].len(), MOST);
    }

    #[test]
    fn the_archive_is_a_tar_with_two_documents() {
        let bytes = archive(&["sha256:one".to_owned(), "sha256:two".to_owned()]);
        let mut tar = tar::Archive::new(bytes.as_slice());
        let mut found = Vec::new();
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let document: serde_json::Value = serde_json::from_reader(&mut entry).unwrap();
            found.push((entry.path().unwrap().display().to_string(), document));
        }
        assert_eq!(found[0].0, "config.json");
        assert_eq!(found[0].1["rootfs"]["diff_ids"], serde_json::json!(["sha256:one", "sha256:two"]));
        assert_eq!(found[1].0, "manifest.json");
        assert_eq!(found[1].1[0]["Layers"], serde_json::json!(["0.tar", "1.tar"]));
    }
}
