//! What an archive declares, and whether that is true.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::layer::{Effect, Programs, Releases};
use super::{Archive, Check, Content, Layout, Members, Requested};
use crate::config::os_release::OsRelease;
use crate::error::counted;
use crate::image::digest::Digest256;

/// In `manifest.json` (moby, image/tarexport).
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ManifestEntry {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

/// Of an image (OCI image specification, config.md), with the fields that matter here.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    config: Option<Settings>,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Settings {
    #[serde(default, rename = "Labels")]
    labels: Option<Labels>,
}

/// Labels of a delta of balenaEngine (distribution/pull_v2.go, image/tarexport/load.go).
#[derive(Default, Deserialize)]
struct Labels {
    #[serde(default, rename = "io.resin.delta.base")]
    base: Option<String>,
    #[serde(default, rename = "io.resin.delta.config")]
    target: Option<String>,
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
    size: Option<u64>,
    #[serde(default)]
    annotations: Option<Names>,
}

/// Where builders put the name of an image.
#[derive(Default, Deserialize)]
struct Names {
    #[serde(default, rename = "io.containerd.image.name")]
    full: Option<String>,
    #[serde(default, rename = "org.opencontainers.image.ref.name")]
    short: Option<String>,
    /// Such an entry is not an image. It describes how an image was built.
    #[serde(default, rename = "vnd.docker.reference.type")]
    about: Option<String>,
}

/// Of an image (OCI image specification, manifest.md).
#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

/// The engine registers no more (moby, `layer/layer_store.go`, `maxLayerDepth`).
pub(in crate::engine) const MAX_LAYERS: usize = 125;

const MAX_INDEXES: usize = 16;

pub(super) fn understand(members: &Members) -> Check<Archive> {
    members.are_whole()?;
    // Engines prefer it to an index.json.
    if members.items.contains_key("manifest.json") {
        if members.items.contains_key("index.json") {
            parse::<Index>("index.json", members.document("index.json")?)?;
        }
        let entries: Vec<ManifestEntry> = parse("manifest.json", members.document("manifest.json")?)?;
        let ManifestEntry { config, repo_tags, layers } = the_one(entries)?;
        let text = members.document(&config)?;
        let (layers, tags) = (layers.unwrap_or_default(), repo_tags.unwrap_or_default());
        let id = Digest256::of(text);
        return image(members, id, parse(&config, text)?, &layers, tags, Layout::Docker);
    }
    if members.items.contains_key("index.json") {
        let mut images = Vec::new();
        let index = parse("index.json", members.document("index.json")?)?;
        collect(members, index, &Names::default(), &mut 1, &mut images)?;
        let (found, names) = the_one(images)?;
        let manifest: Manifest = found.parse(members)?;
        let layers: Check<Vec<String>> = manifest.layers.iter().map(Descriptor::path).collect();
        let tags = names.full.or(names.short).into_iter().collect();
        let config = manifest.config.parse(members)?;
        let id = sha256(&manifest.config.digest).ok_or("its configuration has no SHA-256 digest")?;
        return image(members, id, config, &layers?, tags, Layout::Oci);
    }
    Err("it has neither a manifest.json nor an index.json".to_owned())
}

fn the_one<T>(mut images: Vec<T>) -> Check<T> {
    match (images.pop(), images.is_empty()) {
        (Some(image), true) => Ok(image),
        (Some(_), false) => Err("it holds several images, not one".to_owned()),
        (None, _) => Err("it holds no image".to_owned()),
    }
}

/// The images of an index and of indexes in it, at most two: more than one is refused.
fn collect(
    members: &Members,
    index: Index,
    above: &Names,
    indexes: &mut usize,
    images: &mut Vec<(Descriptor, Names)>,
) -> Check<()> {
    for mut descriptor in index.manifests {
        let Names { full, short, about } = descriptor.annotations.take().unwrap_or_default();
        if about.is_some() {
            continue;
        }
        let names = Names { full: above.full.clone().or(full), short: above.short.clone().or(short), about };
        if !descriptor.media_type.contains("index") && !descriptor.media_type.contains("manifest.list") {
            images.push((descriptor, names));
        } else {
            *indexes += 1;
            if *indexes > MAX_INDEXES {
                return Err(format!("it has more than {MAX_INDEXES} indexes"));
            }
            collect(members, descriptor.parse(members)?, &names, indexes, images)?;
        }
        if images.len() > 1 {
            break;
        }
    }
    Ok(())
}

fn image(
    members: &Members,
    id: Digest256,
    config: Config,
    layers: &[String],
    tags: Vec<String>,
    layout: Layout,
) -> Check<Archive> {
    if tags.len() > 1 {
        return Err(format!("its image has more than one name: {}", tags.join(", ")));
    }
    let ids = config.rootfs.diff_ids.unwrap_or_default();
    if layers.is_empty() || ids.len() != layers.len() {
        let has = counted(layers.len(), "layer");
        return Err(format!("it has {has}, and its image is made of {}", ids.len()));
    }
    if layers.len() > MAX_LAYERS {
        return Err(format!("its image has {} layers, more than {MAX_LAYERS}", layers.len()));
    }
    let (mut unpacked, mut entries) = (0u64, 0u64);
    let (mut init, mut programs) = (Effect::Gone, Programs::None);
    let mut files = vec![(Effect::Gone, None); members.files.len()];
    let mut releases = Releases::none();
    for (name, id) in layers.iter().zip(&ids) {
        let layer = members.layer(name)?;
        let found = format!("sha256:{}", layer.digest);
        if found != *id {
            return Err(format!("the layer {name:?} is damaged: it is {found}, not {id}"));
        }
        unpacked = unpacked.saturating_add(layer.unpacked);
        entries = entries.saturating_add(layer.entries);
        init = init.below(layer.init);
        for ((effect, kept), (upper, content)) in
            files.iter_mut().zip(layer.files.into_iter().zip(layer.contents))
        {
            if upper != Effect::Untouched {
                (*effect, *kept) = (upper, content);
            }
        }
        programs = programs.and(layer.programs);
        releases = releases.below(layer.releases);
    }
    let labels = config.config.and_then(|c| c.labels).unwrap_or_default();
    let content = if labels.base.is_some() || labels.target.is_some() {
        labels.delta(layers.len())?
    } else {
        let machine = match (init, programs) {
            (Effect::File(Some(machine)), _) | (_, Programs::For(machine)) => Some(machine),
            _ => None,
        };
        Content::Image { init: init != Effect::Gone, machine }
    };
    // What a delta leaves is the engine's affair.
    let may_leave = |effect: Effect| effect != Effect::Gone || matches!(content, Content::Delta { .. });
    let named = || members.files.iter().zip(&files);
    let leaves = named().filter(|(_, (effect, _))| may_leave(*effect)).map(|(f, _)| f.clone()).collect();
    let is_delta = matches!(content, Content::Delta { .. });
    let contents = files.into_iter().map(|file| match file {
        _ if is_delta => Requested::Unclear,
        (Effect::Gone, _) => Requested::Missing,
        (Effect::File(_), Some(content)) => Requested::Content(content),
        _ => Requested::Unclear,
    });
    let contents = if members.keeps { contents.collect() } else { Vec::new() };
    let release = releases.content().map(|text| OsRelease::parse(&String::from_utf8_lossy(text)));
    Ok(Archive {
        id,
        tags,
        size: members.size,
        unpacked,
        entries,
        layers: layers.len(),
        layout,
        content,
        release,
        leaves,
        contents,
    })
}

impl Labels {
    fn delta(self, layers: usize) -> Check<Content> {
        if let Some(text) = &self.target {
            let target: Config = parse("the configuration of what the delta makes", text.as_bytes())?;
            let made = target.rootfs.diff_ids.unwrap_or_default().len();
            // The engine takes a layer of the delta for each one of the new image.
            if made > layers {
                return Err(format!("it has {}, and what it makes has {made}", counted(layers, "layer")));
            }
        }
        let base = self.base.as_deref().and_then(sha256);
        // The ID of an image is the digest of its configuration.
        let target = self.target.map(|text| Digest256::of(text.as_bytes()));
        Ok(Content::Delta { base, target })
    }
}

impl Descriptor {
    fn path(&self) -> Check<String> {
        match self.digest.split_once(':') {
            Some((algorithm, hex))
                if [algorithm, hex].iter().all(|p| p.bytes().all(|b| b.is_ascii_alphanumeric())) =>
            {
                Ok(format!("blobs/{algorithm}/{hex}"))
            }
            _ => Err(format!("{:?} is not a digest", self.digest)),
        }
    }

    fn parse<T: DeserializeOwned>(&self, members: &Members) -> Check<T> {
        if sha256(&self.digest).is_none() {
            return Err(format!("{:?} is no SHA-256 digest", self.digest));
        }
        let path = self.path()?;
        let text = members.document(&path)?;
        match self.size {
            Some(size) if size != text.len() as u64 => {
                Err(format!("{path:?} is damaged: it has {} bytes, not {size}", text.len()))
            }
            _ => parse(&path, text),
        }
    }
}

fn sha256(digest: &str) -> Option<Digest256> {
    Digest256::from_hex(digest.strip_prefix("sha256:")?)
}

fn parse<T: DeserializeOwned>(name: &str, text: &[u8]) -> Check<T> {
    serde_json::from_slice(text).map_err(|e| format!("{name}: {e}"))
}
