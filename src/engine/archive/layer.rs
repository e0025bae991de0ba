//! A layer of an image: a tar, in some archives compressed with gzip or bzip2.

use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use bzip2::read::MultiBzDecoder;
use flate2::read::MultiGzDecoder;
use sha2::{Digest as _, Sha256};

use super::elf::{HEAD, Machine};
use super::tar::{MemberKind, Tar};
use super::{Limit, read_up_to};
use crate::image::Format;
use crate::image::digest::Digest256;
use crate::sys::buffer::part;

/// Block size of the other slot's ext4.
const BLOCK_BYTES: u64 = 4096;
/// Bytes that the engine stores for each file (tar-split), and the file's share of its folder.
const OVERHEAD_BYTES: u64 = 256;

/// The first program that the kernel starts.
const INIT: &str = "boot/init";

/// Where an OS says its version (os-release(5)); the first counts, which may be a link to the second.
const RELEASES: [&str; 2] = ["etc/os-release", "usr/lib/os-release"];

/// No more is kept. That of balenaOS has 500 bytes.
const MAX_RELEASE_BYTES: u64 = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layer {
    /// SHA-256 of the uncompressed tar: the identity of the layer.
    pub(super) digest: Digest256,
    pub(super) unpacked: u64, // bytes
    /// Files, directories and links, but for further names of a file.
    pub(super) entries: u64,
    pub(super) init: Effect,
    /// On each requested file, in the order of the request.
    pub(super) files: Vec<Effect>,
    /// Of each requested file, if it is to be kept; `None` also for a hard link.
    pub(super) contents: Vec<Option<Vec<u8>>>,
    pub(super) programs: Programs,
    pub(super) releases: Releases,
}

/// Effect on each of [`RELEASES`], and its content, where that was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Releases([(Effect, Vec<u8>); RELEASES.len()]);

impl Releases {
    pub(super) fn none() -> Releases {
        Releases([const { (Effect::Untouched, Vec::new()) }; RELEASES.len()])
    }

    fn add(&mut self, member: &[&str], kind: MemberKind, content: &mut dyn Read) -> io::Result<()> {
        for ((effect, kept), place) in self.0.iter_mut().zip(RELEASES) {
            let place = names(Path::new(place));
            let before = *effect;
            effect.add(member, &place, kind, None);
            if member == place || *effect != before {
                kept.clear();
            }
            if member == place && kind == MemberKind::File {
                content.take(MAX_RELEASE_BYTES).read_to_end(kept)?;
            }
        }
        Ok(())
    }

    /// What is left after `upper`, a layer above.
    pub(super) fn below(self, upper: Releases) -> Releases {
        let mut both = self.0.into_iter().zip(upper.0);
        Releases(std::array::from_fn(|_| match both.next() {
            Some((lower, (Effect::Untouched, _))) => lower,
            Some((_, upper)) => upper,
            None => (Effect::Untouched, Vec::new()),
        }))
    }

    pub(super) fn content(&self) -> Option<&[u8]> {
        let files =
            self.0.iter().filter(|(effect, kept)| matches!(effect, Effect::File(_)) && !kept.is_empty());
        files.map(|(_, kept)| kept.as_slice()).next()
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|(_, kept)| kept.len()).sum()
    }
}

/// The effect of a layer on a file of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Untouched,
    /// Removed, or replaced by a folder.
    Gone,
    /// A file, and its machine if it is a program.
    File(Option<Machine>),
    /// Only the engine can determine it: a link leads to it, or programs differ about it.
    Unclear,
}

impl Effect {
    /// What is left of the file after `upper`, a layer above.
    pub(super) fn below(self, upper: Effect) -> Effect {
        if upper == Effect::Untouched { self } else { upper }
    }

    /// The effect of a layer's member on the file at `file`, if it has one.
    fn by(member: &[&str], file: &[&str], kind: MemberKind, machine: Option<Machine>) -> Option<Effect> {
        if !file.starts_with(member) || member.is_empty() {
            return None;
        }
        let is_itself = member.len() == file.len();
        match kind {
            MemberKind::File | MemberKind::HardLink if is_itself => Some(Effect::File(machine)),
            MemberKind::Folder if !is_itself => None,
            MemberKind::File | MemberKind::HardLink | MemberKind::Folder => Some(Effect::Gone),
            _ => Some(Effect::Unclear),
        }
    }

    /// Whether the member hides the file of the layers below (OCI image specification, layer.md, "Whiteouts").
    fn is_hidden_by(member: &[&str], file: &[&str]) -> bool {
        let Some((last, folder)) = member.split_last() else { return false };
        let hidden = file.get(folder.len()).filter(|_| file.starts_with(folder));
        hidden.is_some_and(|name| *last == OPAQUE || last.strip_prefix(WHITEOUT) == Some(name))
    }

    /// Takes one more member of the layer into account.
    fn add(&mut self, member: &[&str], file: &[&str], kind: MemberKind, machine: Option<Machine>) {
        if let Some(now) = Effect::by(member, file, kind, machine) {
            *self = now;
        } else if *self == Effect::Untouched && Effect::is_hidden_by(member, file) {
            *self = Effect::Gone;
        }
    }
}

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Programs {
    None,
    For(Machine),
    Mixed,
}

impl Programs {
    pub(super) fn and(self, other: Programs) -> Programs {
        match (self, other) {
            (Programs::None, other) => other,
            (found, Programs::None) => found,
            (Programs::For(one), Programs::For(other)) if one.is_akin_to(other) => self,
            _ => Programs::Mixed,
        }
    }
}

/// Unpacks a layer in memory. The error says why it is invalid.
pub(super) fn measure(content: &mut dyn Read, limit: &Limit, files: &[PathBuf]) -> Result<Layer, String> {
    let mut head = [0; 6];
    let n = read_up_to(content, &mut head).map_err(|e| e.to_string())?;
    let mut content = head.take(n as u64).chain(content);
    if head.starts_with(&[0x1f, 0x8b]) {
        return weigh(&mut limit.of(MultiGzDecoder::new(content)), limit, files);
    }
    // Hostile zstd makes its decoder double the window before it fails. Together with the bzip2 decoder that exceeds 24 MiB.
    if head.starts_with(b"BZh") && limit.outside == Format::Zstd {
        return Err("it is compressed with bzip2, and the archive with zstd".to_owned());
    }
    if head.starts_with(b"BZh") {
        return weigh(&mut limit.of(MultiBzDecoder::new(content)), limit, files);
    }
    // For xz moby needs a program that balenaOS lacks; moby 20.10 cannot read zstd.
    if head.starts_with(b"\xfd7zXZ\0") || head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Err("it is not compressed with gzip or bzip2".to_owned());
    }
    weigh(&mut content, limit, files)
}

fn weigh(content: &mut dyn Read, limit: &Limit, files: &[PathBuf]) -> Result<Layer, String> {
    let mut content = Hashed { inner: content, hash: Sha256::new() };
    let mut tar = Tar::new(&mut content);
    let (mut unpacked, mut entries) = (0u64, 0u64);
    let (mut init, mut programs) = (Effect::Untouched, Programs::None);
    let files: Vec<Vec<&str>> = files.iter().map(|file| names(file)).collect();
    let mut effects = vec![Effect::Untouched; files.len()];
    let mut contents = vec![None; files.len()];
    let mut releases = Releases::none();
    let init_path = names(Path::new(INIT));
    while let Some(member) = tar.next().map_err(|e| e.to_string())? {
        let inside = |path: &Path| !path.components().any(|c| c == Component::ParentDir);
        if !inside(&member.name) || member.kind == MemberKind::HardLink && !inside(&member.target) {
            return Err(format!("{} leads out of it", member.name.display()));
        }
        let blocks = match member.kind {
            MemberKind::Folder => BLOCK_BYTES,
            MemberKind::HardLink => 0,
            _ => member.size.next_multiple_of(BLOCK_BYTES),
        };
        unpacked = unpacked.saturating_add(blocks).saturating_add(OVERHEAD_BYTES);
        entries += u64::from(member.kind != MemberKind::HardLink);
        let path = names(&member.name);
        let is_init = path == init_path;
        let is_program = is_init || matches!(*path, ["bin" | "sbin", _] | ["usr", "bin" | "sbin", _]);
        let mut head = [0; HEAD];
        let machine = match member.kind {
            MemberKind::File if is_program => {
                let n = read_up_to(&mut tar, &mut head).map_err(|e| e.to_string())?;
                Machine::of(&head).filter(|_| n == HEAD)
            }
            _ => None,
        };
        if let Some(machine) = machine.filter(|_| !is_init) {
            programs = programs.and(Programs::For(machine));
        }
        init.add(&path, &init_path, member.kind, machine);
        for ((effect, kept), file) in effects.iter_mut().zip(&mut contents).zip(&files) {
            effect.add(&path, file, member.kind, None);
            if path == *file {
                *kept = match member.kind {
                    MemberKind::File => limit.keep(member.size, &mut tar).map_err(|e| e.to_string())?,
                    _ => None,
                };
            }
        }
        releases.add(&path, member.kind, &mut tar).map_err(|e| e.to_string())?;
    }
    // The digest covers the padding after the end of the tar.
    io::copy(&mut content, &mut io::sink()).map_err(|e| e.to_string())?;
    let digest = Digest256(content.hash.finalize().into());
    Ok(Layer { digest, unpacked, entries, init, files: effects, contents, programs, releases })
}

/// The names of a path. Names that are not UTF-8 match nothing.
fn names(path: &Path) -> Vec<&str> {
    let names = path.components().filter_map(|c| match c {
        Component::Normal(name) => Some(name.to_str().unwrap_or("")),
        _ => None,
    });
    names.collect()
}

struct Hashed<'a> {
    inner: &'a mut dyn Read,
    hash: Sha256,
}

impl Read for Hashed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.hash.update(part(buf, ..n)?);
        Ok(n)
    }
}
