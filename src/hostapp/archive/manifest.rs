//! What an archive says it holds, and whether that is so.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Archive, Check, Layout, Members};

/// One image in `manifest.json` (moby, image/tarexport).
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

/// The image's configuration (OCI image specification, config.md), as far as it concerns the layers.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    architecture: String,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Option<Vec<String>>,
}

/// `index.json`, or an index below it (OCI image specification, image-index.md).
#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// An image's manifest (OCI image specification, manifest.md).
#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

/// Where builders say by which name an image is to be loaded, the fuller first.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// Indexes within indexes.
const DEPTH: usize = 4;

pub(super) fn understand(members: &Members) -> Check<Archive> {
    // Where both are, engines read this one.
    if members.documents.contains_key("manifest.json") {
        let mut entries: Vec<Entry> = parse(members, "manifest.json")?;
        let images = entries.len();
        return match (entries.pop(), images) {
            (Some(entry), 1) => image(
                members,
                &entry.config,
                &entry.layers.unwrap_or_default(),
                entry.repo_tags.unwrap_or_default(),
                Layout::Docker,
            ),
            _ => Err(format!("it holds {images} images, not one")),
        };
    }
    if members.documents.contains_key("index.json") {
        let mut found = Vec::new();
        collect(members, "index.json", DEPTH, &mut found)?;
        let images = found.len();
        return match (found.pop(), images) {
            (Some(descriptor), 1) => {
                let manifest: Manifest = parse(members, &blob(&descriptor.digest)?)?;
                let layers: Check<Vec<String>> = manifest.layers.iter().map(|l| blob(&l.digest)).collect();
                let tag = NAMES.iter().find_map(|n| descriptor.annotations.get(*n)).cloned();
                image(
                    members,
                    &blob(&manifest.config.digest)?,
                    &layers?,
                    tag.into_iter().collect(),
                    Layout::Oci,
                )
            }
            _ => Err(format!("it holds {images} images, not one")),
        };
    }
    Err("it has neither a manifest.json nor an index.json".to_owned())
}

/// The images of an index and of those in it.
fn collect(members: &Members, name: &str, depth: usize, found: &mut Vec<Descriptor>) -> Check<()> {
    let index: Index = parse(members, name)?;
    for mut descriptor in index.manifests {
        if descriptor.annotations.contains_key("vnd.docker.reference.type") {
            continue; // Beside an image: how it was built.
        }
        if !descriptor.media_type.contains("index") && !descriptor.media_type.contains("manifest.list") {
            found.push(descriptor);
            continue;
        }
        let depth = depth.checked_sub(1).ok_or("its indexes lead too deep")?;
        let before = found.len();
        collect(members, &blob(&descriptor.digest)?, depth, found)?;
        for below in found.iter_mut().skip(before) {
            below.annotations.append(&mut descriptor.annotations);
        }
    }
    Ok(())
}

/// Checks the one image there is.
fn image(
    members: &Members,
    config: &str,
    layers: &[String],
    tags: Vec<String>,
    layout: Layout,
) -> Check<Archive> {
    if tags.len() > 1 {
        return Err(format!("its image has more than one name: {}", tags.join(", ")));
    }
    let config: Config = parse(members, config)?;
    let ids = config.rootfs.diff_ids.unwrap_or_default();
    if layers.is_empty() || ids.len() != layers.len() {
        return Err(format!("it has {} layers, and its image is made of {}", layers.len(), ids.len()));
    }
    let mut unpacked = 0u64;
    for (name, id) in layers.iter().zip(&ids) {
        let layer = members.layer(name)?;
        if layer.id != *id {
            return Err(format!("the layer {name:?} is damaged: it is {}, not {id}", layer.id));
        }
        unpacked = unpacked.saturating_add(layer.unpacked);
    }
    Ok(Archive { tags, images: 1, unpacked, layers: layers.len(), architecture: config.architecture, layout })
}

/// Where a layout keeps what has this digest.
fn blob(digest: &str) -> Check<String> {
    match digest.split_once(':') {
        Some((algorithm, hex))
            if [algorithm, hex].iter().all(|p| p.bytes().all(|b| b.is_ascii_alphanumeric())) =>
        {
            Ok(format!("blobs/{algorithm}/{hex}"))
        }
        _ => Err(format!("{digest:?} is no digest")),
    }
}

fn parse<T: DeserializeOwned>(members: &Members, name: &str) -> Check<T> {
    serde_json::from_slice(members.document(name)?).map_err(|e| format!("{name}: {e}"))
}
