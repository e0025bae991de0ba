//! Removes layers without an image, which a power cut during a load or a pull leaves.
//!
//! moby flushes its record of a layer, but not the layer's files. (balenaEngine flushes both, unless `overlay2.sync_diffs=false` is set or
//! the kernel makes it unpack layers in its slow way.) After a power cut moby takes a layer with a record for complete, and a new image with
//! the same layer gets truncated files. It removes a layer with the last image or container that has it (layer/layer_store.go); a layer
//! without any stays. copal loads an archive that names such layers without contents, which moby accepts where it has all of them
//! (image/tarexport/load.go), and removes that image with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use bollard::query_parameters::ImportImageOptionsBuilder;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};

use super::clean::{WORK_CHECKS, WORK_INTERVAL};
use super::failure::{Failure, Why};
use super::{Engine, REMOVAL};
use crate::error::{Code, Error, Result, counted};
use crate::sys::file::read_text;

/// Layers of an image (moby, `maxLayerDepth` in layer/layer_store.go). A longer chain is a circle of damaged records.
const MAX_LAYERS: usize = 125;

/// In bytes: a record's file is one digest.
const MAX_RECORD_BYTES: u64 = 4096;

const TAR_BLOCK_BYTES: usize = 512;

impl Engine {
    /// `store`: the mounted store of this engine. All images must have been removed.
    pub fn remove_lost_layers(&self, store: &Path) -> Result<()> {
        let what = "cannot remove layers that no image has";
        let driver = self.soon(self.docker.info()).map_err(|e| e.during(what))?.driver.unwrap_or_default();
        let folder = store.join("image").join(driver).join("layerdb/sha256");
        let unreadable = |e| Error::new(Code::EngineFailed, what).object(folder.display()).because(e);
        let mut records = Records::read(&folder).map_err(unreadable)?;
        if records.names == 0 {
            return Ok(());
        }
        tracing::warn!("the engine has {} that no image has; removing them", counted(records.names, "layer"));
        for look in 0.. {
            let chains = records.chains();
            let given = self.give_images(&chains);
            self.remove_images()?;
            records = Records::read(&folder).map_err(unreadable)?;
            match given {
                _ if records.names == 0 => break,
                Err(e) => return Err(e.during(what)),
                // An engine whose load was cancelled holds its layers until it has unpacked the one that it is at; then it gives up, or it
                // makes an image of them.
                Ok(()) if look < WORK_CHECKS && !records.chains().is_empty() => {
                    if look == 0 {
                        tracing::info!("the engine still uses {} of them; waiting for it", records.names);
                    }
                    let paused = async {
                        tokio::time::sleep(WORK_INTERVAL).await;
                        Ok(())
                    };
                    self.long(paused).map_err(|e| e.during(what))?;
                }
                Ok(()) => return Err(unreadable(io::Error::other(format!("{} are left", records.names)))),
            }
        }
        Ok(())
    }

    /// Of its failures the first one.
    fn give_images(&self, chains: &[Vec<String>]) -> Result<(), Failure> {
        let mut given = Ok(());
        for chain in chains {
            if let Err(e) = self.give_an_image(chain) {
                let hopeless = matches!(e.why, Why::Lost | Why::Silent);
                given = given.and(Err(e));
                if hopeless {
                    break;
                }
            }
        }
        given
    }

    fn give_an_image(&self, chain: &[String]) -> Result<(), Failure> {
        let options = ImportImageOptionsBuilder::new().quiet(true).build();
        let archive = stream::iter([Ok::<_, io::Error>(Bytes::from(archive(chain)))]);
        let loaded = self.within(REMOVAL, async {
            let mut answers = self.docker.import_image_stream(options, archive, None);
            while let Some(answer) = answers.next().await {
                answer?;
            }
            Ok(())
        });
        match loaded {
            Err(e) if e.is_loose_end() => Ok(()),
            loaded => loaded,
        }
    }
}

struct Records {
    names: usize,
    /// The digest (`diff`) of each readable record, and the name of the layer below it.
    layers: BTreeMap<String, (String, Option<String>)>,
}

impl Records {
    fn read(folder: &Path) -> io::Result<Records> {
        let mut records = Records { names: 0, layers: BTreeMap::new() };
        let entries = match fs::read_dir(folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(records),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            // The others are layers that moby was removing, `HEX-RANDOM-removing`; it ignores them.
            if name.len() != 64 || !name.bytes().all(|b| b.is_ascii_hexdigit()) {
                continue;
            }
            records.names += 1;
            let digest = |file: &str| read_text(&folder.join(&name).join(file), MAX_RECORD_BYTES);
            let below = match digest("parent") {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                below => below.map(|text| text.trim().strip_prefix("sha256:").map(str::to_owned)),
            };
            // moby ignores a layer whose record it cannot read (layer/filestore.go).
            if let (Ok(diff), Ok(below)) = (digest("diff"), below) {
                records.layers.insert(name, (diff.trim().to_owned(), below));
            }
        }
        Ok(records)
    }

    /// Chains of digests from the lowest layer up. A layer is in each chain that ends above it.
    fn chains(&self) -> Vec<Vec<String>> {
        let known: Vec<_> = self.layers.keys().map(|name| (name, self.chain(name))).collect();
        let known: Vec<_> = known.into_iter().filter_map(|(name, chain)| Some((name, chain?))).collect();
        let lower: BTreeSet<_> =
            known.iter().filter_map(|(name, _)| self.layers.get(*name)?.1.as_ref()).collect();
        known.into_iter().filter(|(name, _)| !lower.contains(name)).map(|(_, chain)| chain).collect()
    }

    /// `None` where a record below it is missing.
    fn chain(&self, name: &str) -> Option<Vec<String>> {
        let mut chain = Vec::new();
        let mut next = Some(name);
        while let Some(name) = next {
            let (diff, below) = self.layers.get(name)?;
            chain.push(diff.clone());
            if chain.len() > MAX_LAYERS {
                return None;
            }
            next = below.as_deref();
        }
        chain.reverse();
        Some(chain)
    }
}

/// An archive of an image with these layers, in the format of `docker save`, without their contents.
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
    tar.resize(tar.len() + 2 * TAR_BLOCK_BYTES, 0);
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
    let mut header = [0; TAR_BLOCK_BYTES];
    // The checksum field counts as blanks.
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
    tar.resize(tar.len().next_multiple_of(TAR_BLOCK_BYTES), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(short: &str) -> String {
        short.repeat(64)
    }

    fn record(folder: &Path, short: &str, below: Option<&str>) {
        let folder = folder.join(name(short));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("diff"), format!("sha256:diff-{short}")).unwrap();
        if let Some(below) = below {
            fs::write(folder.join("parent"), format!("sha256:{}", name(below))).unwrap();
        }
    }

    fn chains(folder: &Path) -> Vec<String> {
        let chains = Records::read(folder).unwrap().chains();
        chains.iter().map(|chain| chain.join(" ").replace("sha256:diff-", "")).collect()
    }

    #[test]
    fn each_layer_is_in_a_chain_from_the_lowest_one_up() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("sha256");
        assert_eq!(chains(&folder), Vec::<String>::new());
        for (layer, below) in [("a", None), ("b", Some("a")), ("c", Some("b")), ("d", Some("a")), ("e", None)]
        {
            record(&folder, layer, below);
        }
        assert_eq!(chains(&folder), ["a b c", "a d", "e"]);
    }

    #[test]
    fn what_the_engine_does_not_know_is_in_no_chain_and_hides_none() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        for (layer, below) in [("a", None), ("b", Some("a")), ("c", Some("b")), ("d", None)] {
            record(folder, layer, below);
        }
        // Without its record the engine ignores `b` and all layers above it.
        fs::remove_file(folder.join(name("b")).join("diff")).unwrap();
        fs::rename(folder.join(name("d")), folder.join(name("d") + "-123-removing")).unwrap();
        assert_eq!(chains(folder), ["a"]);
        assert_eq!(Records::read(folder).unwrap().names, 3);
    }

    #[test]
    fn a_circle_of_records_ends() {
        let dir = tempfile::tempdir().unwrap();
        for (layer, below) in [("a", "b"), ("b", "a"), ("c", "a")] {
            record(dir.path(), layer, Some(below));
        }
        assert_eq!(chains(dir.path()), Vec::<String>::new());
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
