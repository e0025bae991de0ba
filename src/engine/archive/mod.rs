//! Checks image archives before the first change: the format of `docker save`, and the layout of the Open Container Initiative (OCI) in a
//! tar; plain, or compressed with gzip, xz, zstd or bzip2.
//!
//! One pass from front to back. Every layer is unpacked in memory, so that damage is found before the engine's store is emptied. The check
//! needs at most 24 MiB for any archive: the updater runs beside applications, on devices with 256 MiB.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::os_release::OsRelease;
use crate::error::{Code, Error, Result};
use crate::image;
use crate::image::chunks::{Piece, Source};
use crate::image::digest::Digest256;
use crate::progress::{Progress, Silent, Stage};
use crate::sys::buffer::part;
use crate::sys::signal;

mod elf;
mod layer;
mod manifest;
mod tar;

pub use elf::Machine;
pub(super) use manifest::MAX_LAYERS;

use layer::Layer;
use tar::{MemberKind, Tar};

/// Largest window (dictionary) of xz and zstd, in bytes, as `xz -6` and `zstd -19` use it. With the next size, 16 MiB, the check would need
/// more than 24 MiB.
const MAX_WINDOW_BYTES: u64 = 8 << 20;

/// Limit of a JSON document, in bytes. Those of a host OS have some kilobytes.
const MAX_DOCUMENT_BYTES: u64 = 256 << 10;

/// Limit of all documents and names together, in bytes.
const MAX_KEPT_BYTES: usize = 1 << 20;

const PIECE_BYTES: usize = 128 << 10;

/// Four for each of at most 125 layers, and some more.
const MAX_MEMBERS: usize = 4096;

/// In characters: an archive chooses the names and values in it.
const MAX_REASON_CHARS: usize = 400;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// What the engine calls the image: the SHA-256 of its configuration.
    pub id: Digest256,
    pub tags: Vec<String>,
    /// Bytes without compression. The engine unpacks the whole archive.
    pub size: u64,
    /// Bytes of the unpacked layers: files in whole blocks of 4 KiB, a block for each folder, and what the engine stores for each.
    pub unpacked: u64,
    /// Files, directories and links of all layers: each takes an inode of the slot.
    pub entries: u64,
    pub layers: usize,
    pub layout: Layout,
    pub content: Content,
    /// The `os-release` of the image; `None` where it has none, or only a link to an unusual place.
    pub release: Option<OsRelease>,
    /// The requested files that remain after all layers, including files whose fate only the engine can determine.
    pub leaves: BTreeSet<PathBuf>,
    /// Of each requested file, in the order of the request, where contents were requested.
    pub contents: Vec<Requested>,
}

/// The content of a file after all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requested {
    Content(Vec<u8>),
    Missing,
    /// Only the engine can determine it: a link, or a delta.
    Unclear,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// With a `manifest.json`; every engine loads it.
    Docker,
    /// With an `index.json` only; engines with containerd's image store load it.
    Oci,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Image {
        /// Whether it has a `/boot/init`; true also where only the engine can determine it.
        init: bool,
        /// The machine of its programs, where it is known. Its configuration may name another machine: `docker import` writes the build host's.
        machine: Option<Machine>,
    },
    /// A delta: balenaEngine makes an image of it and another image.
    Delta {
        /// The ID of the other image; `None` if it is not a digest.
        base: Option<Digest256>,
        /// The ID of the new image, if the delta has it.
        target: Option<Digest256>,
    },
}

/// [`inspect`] of the whole archive, with the contents of `files`, of which at most `most` bytes are held in memory.
pub fn read_files(path: &Path, files: &[PathBuf], most: u64) -> Result<Archive> {
    let image = open(path)?;
    let limit = Limit { left_to_keep: Cell::new(Some(most)), ..Limit::new(u64::MAX, image.format) };
    inspect_within(&image, &limit, files, &Silent)
}

/// Reads the whole archive, and looks for `files`, paths below the image's root. Stops when more than `most` bytes would be read, of the
/// archive and of compressed layers, counted without their compression.
pub fn inspect(image: &image::Image, most: u64, files: &[PathBuf]) -> Result<Archive> {
    inspect_within(image, &Limit::new(most, image.format), files, &Silent)
}

fn inspect_within(
    image: &image::Image,
    limit: &Limit,
    files: &[PathBuf],
    progress: &dyn Progress,
) -> Result<Archive> {
    let path = &image.path;
    let (source, fault) = Unpacked::open(image, progress)?;
    let checked = Members::read(source, limit, files).and_then(|members| manifest::understand(&members));
    checked.map_err(|why| {
        if let Some(signal) = signal::came() {
            let what = format!("the check of {} was ended by {signal}", path.display());
            return Error::new(Code::Interrupted, what).object(path.display());
        }
        limit
            .as_error(path)
            .or_else(|| fault.as_error(path))
            .unwrap_or_else(|| invalid(path).because(in_short(why)))
    })
}

/// Opens an archive. The same open file is inspected and then loaded.
pub fn open(path: &Path) -> Result<image::Image> {
    Ok(image::Image::open(path)?.with_window(MAX_WINDOW_BYTES))
}

/// Reads a whole archive; `None` if the file does not begin as one.
pub fn describe(path: &Path, progress: &dyn Progress) -> Result<Option<(image::StoredImage, Archive)>> {
    let image = open(path)?;
    let (mut source, _) = Unpacked::open(&image, &Silent)?;
    if !matches!(Tar::new(&mut source).next(), Ok(Some(_))) {
        return Ok(None);
    }
    progress.begin(Stage::Check, (image.format == image::Format::Raw).then_some(image.stored_size));
    let archive = inspect_within(&image, &Limit::new(u64::MAX, image.format), &[], progress)?;
    progress.finish();
    Ok(Some(((&image).into(), archive)))
}

fn invalid(path: &Path) -> Error {
    let what = format!("{} is not an image archive that can be loaded", path.display());
    Error::new(Code::ImageArchiveInvalid, what).object(path.display())
}

/// The error says why it is invalid.
type Check<T> = Result<T, String>;

/// Cuts a `why` that names or values of the archive make too long.
fn in_short(mut why: String) -> String {
    if let Some((end, _)) = why.char_indices().nth(MAX_REASON_CHARS) {
        why.truncate(end);
        why.push('…');
    }
    why
}

struct Limit {
    most: u64,
    outside: image::Format,
    left: Cell<u64>,
    is_exceeded: Cell<bool>,
    /// Bytes of requested files; `None` where no content is requested.
    left_to_keep: Cell<Option<u64>>,
}

impl Limit {
    fn new(most: u64, outside: image::Format) -> Limit {
        let (left, is_exceeded, left_to_keep) = (Cell::new(most), Cell::new(false), Cell::new(None));
        Limit { most, outside, left, is_exceeded, left_to_keep }
    }

    /// The content of a requested file of `size` bytes, where it is requested.
    fn keep(&self, size: u64, content: &mut dyn Read) -> io::Result<Option<Vec<u8>>> {
        let Some(left) = self.left_to_keep.get() else { return Ok(None) };
        let left = left
            .checked_sub(size)
            .ok_or_else(|| io::Error::other("its files are too large to be examined"))?;
        self.left_to_keep.set(Some(left));
        let mut kept = Vec::new();
        content.take(size).read_to_end(&mut kept)?;
        Ok(Some(kept))
    }

    fn of<R>(&self, inner: R) -> Limited<'_, R> {
        Limited { inner, limit: self, bytes: 0 }
    }

    fn as_error(&self, path: &Path) -> Option<Error> {
        let what = format!("{} unpacks to more than {} MiB", path.display(), self.most >> 20);
        self.is_exceeded.get().then(|| Error::new(Code::SlotFull, what).object(path.display()))
    }
}

struct Limited<'a, R> {
    inner: R,
    limit: &'a Limit,
    bytes: u64,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if signal::came().is_some() {
            return Err(io::Error::other("a signal ends the check"));
        }
        let n = self.inner.read(buf)?;
        self.bytes += n as u64;
        match self.limit.left.get().checked_sub(n as u64) {
            Some(left) if !self.limit.is_exceeded.get() => self.limit.left.set(left),
            _ => {
                self.limit.is_exceeded.set(true);
                return Err(io::Error::other("it is too large"));
            }
        }
        Ok(n)
    }
}

/// The error of the file itself, which does not fit through [`io::Error`].
#[derive(Clone, Default)]
pub(super) struct Fault(Arc<Mutex<Option<Error>>>);

impl Fault {
    pub(super) fn as_error(&self, path: &Path) -> Option<Error> {
        let error = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(match error.code() {
            Code::ImageDamaged => invalid(path).because(error),
            _ => error,
        })
    }
}

pub(super) struct Unpacked<'a> {
    progress: &'a dyn Progress,
    source: Box<dyn Source>,
    piece: Vec<u8>,
    at: usize,
    end: usize,
    zeroes: u64,
    over: bool,
    fault: Fault,
}

impl<'a> Unpacked<'a> {
    /// `progress` gets the bytes without compression.
    pub(super) fn open(file: &image::Image, progress: &'a dyn Progress) -> Result<(Unpacked<'a>, Fault)> {
        let fault = Fault::default();
        let (source, piece) = (file.source()?, vec![0; PIECE_BYTES]);
        let (over, shared) = (false, fault.clone());
        Ok((Unpacked { progress, source, piece, at: 0, end: 0, zeroes: 0, over, fault: shared }, fault))
    }
}

impl Read for Unpacked<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at == self.end && self.zeroes == 0 && !self.over {
            match self.source.next(&mut self.piece) {
                Ok(Piece::Data(n)) => {
                    self.progress.advance(n as u64);
                    (self.at, self.end) = (0, n);
                }
                Ok(Piece::Zero(n)) => {
                    self.progress.advance(n);
                    self.zeroes = n;
                }
                Ok(Piece::End) => self.over = true,
                Err(e) => {
                    *self.fault.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                    return Err(io::Error::other("it cannot be read"));
                }
            }
        }
        if self.zeroes > 0 {
            let n = buf.len().min(usize::try_from(self.zeroes).unwrap_or(usize::MAX));
            buf.iter_mut().take(n).for_each(|b| *b = 0);
            self.zeroes -= n as u64;
            return Ok(n);
        }
        let mut rest = part(&self.piece, self.at..self.end)?;
        let n = rest.read(buf)?;
        self.at += n;
        Ok(n)
    }
}

enum Item {
    Document(Vec<u8>),
    Layer(Layer),
    /// Neither document nor layer; why it is not a layer.
    Other(String),
    /// Older engines link a layer that occurs twice. The target.
    Link(String),
}

#[derive(Default)]
struct Members {
    items: BTreeMap<String, Item>,
    kept: usize,
    size: u64,
    /// What to look for in the layers.
    files: Vec<PathBuf>,
    /// With contents.
    keeps: bool,
}

impl Members {
    fn read(source: Unpacked<'_>, limit: &Limit, files: &[PathBuf]) -> Check<Members> {
        let mut members = Members {
            files: files.to_owned(),
            keeps: limit.left_to_keep.get().is_some(),
            ..Members::default()
        };
        let mut source = limit.of(source);
        let mut archive = Tar::new(&mut source);
        let mut count = 0;
        while let Some(member) = archive.next().map_err(|e| e.to_string())? {
            count += 1;
            if count > MAX_MEMBERS {
                return Err(format!("it has more than {MAX_MEMBERS} members"));
            }
            let name = plain(&member.name)?;
            let item = match member.kind {
                MemberKind::Symlink | MemberKind::HardLink => {
                    let folder = Path::new(&name).parent().filter(|_| member.kind == MemberKind::Symlink);
                    let target = resolve(folder.unwrap_or(Path::new("")), &member.target);
                    Item::Link(target.ok_or_else(|| format!("{name} leads out of it"))?)
                }
                MemberKind::File => {
                    Item::read(&mut archive, member.size, limit, files).map_err(|e| format!("{name}: {e}"))?
                }
                MemberKind::Folder => continue,
                MemberKind::Other => return Err(format!("{name} is neither a file nor a folder")),
            };
            members.keep(name, item)?;
        }
        if count == 0 {
            return Err("it holds nothing".to_owned());
        }
        // Only zeros follow the end of the tar; reading them finds damage of the compression.
        io::copy(&mut source, &mut io::sink()).map_err(|e| e.to_string())?;
        members.size = source.bytes;
        Ok(members)
    }

    fn keep(&mut self, name: String, item: Item) -> Check<()> {
        self.kept += name.len() + item.len();
        if self.kept > MAX_KEPT_BYTES {
            return Err(format!("its names and JSON documents have more than {} MiB", MAX_KEPT_BYTES >> 20));
        }
        self.items.insert(name, item);
        Ok(())
    }

    fn item(&self, name: &str) -> Option<&Item> {
        match self.items.get(name)? {
            Item::Link(target) => self.items.get(target),
            item => Some(item),
        }
    }

    /// Each document with a digest as its name has it, also one that no other names.
    fn are_whole(&self) -> Check<()> {
        let mut documents = self.items.iter().filter(|(_, item)| matches!(item, Item::Document(_)));
        documents.try_for_each(|(name, _)| self.document(name).map(drop))
    }

    fn document(&self, name: &str) -> Check<&[u8]> {
        let text = match self.item(name) {
            Some(Item::Document(text)) => text,
            Some(Item::Layer(_) | Item::Other(_)) => {
                return Err(format!(
                    "{name:?} is not a JSON document of at most {} KiB",
                    MAX_DOCUMENT_BYTES >> 10
                ));
            }
            Some(Item::Link(_)) | None => return Err(format!("it names {name:?}, which is missing")),
        };
        let found = Digest256::of(text);
        match digest_in(name) {
            Some(expected) if found != expected => {
                Err(format!("{name:?} is damaged: its SHA-256 is {found}"))
            }
            _ => Ok(text),
        }
    }

    fn layer(&self, name: &str) -> Check<Layer> {
        match self.item(name) {
            Some(Item::Layer(layer)) => Ok(layer.clone()),
            // A tar that begins with a bracket.
            Some(Item::Document(text)) => {
                let limit = Limit::new(u64::MAX, image::Format::Raw);
                layer::measure(&mut text.as_slice(), &limit, &self.files)
            }
            Some(Item::Other(why)) => Err(why.clone()),
            Some(Item::Link(_)) | None => return Err(format!("the layer {name:?} is missing")),
        }
        .map_err(|why| format!("the layer {name:?} is damaged: {why}"))
    }
}

impl Item {
    fn read(file: &mut Tar<'_>, size: u64, limit: &Limit, files: &[PathBuf]) -> io::Result<Item> {
        let mut head = [0; 1];
        let n = read_up_to(file, &mut head)?;
        let mut content = head.take(n as u64).chain(file);
        if matches!(head, [b'{' | b'[']) && size <= MAX_DOCUMENT_BYTES {
            let mut text = Vec::new();
            content.read_to_end(&mut text)?;
            return Ok(Item::Document(text));
        }
        Ok(match layer::measure(&mut content, limit, files) {
            Ok(layer) => Item::Layer(layer),
            Err(why) => Item::Other(in_short(why)),
        })
    }

    fn len(&self) -> usize {
        match self {
            Item::Document(text) => text.len(),
            Item::Other(text) | Item::Link(text) => text.len(),
            Item::Layer(layer) => layer.releases.len(),
        }
    }
}

/// The SHA-256 in a member's name: of configurations in `docker save` (`HEX.json`; some build tools write `sha256:HEX`), and of everything
/// in the OCI layout (`blobs/sha256/HEX`).
fn digest_in(name: &str) -> Option<Digest256> {
    let hex = ["blobs/sha256/", "sha256:"].iter().find_map(|p| name.strip_prefix(p));
    Digest256::from_hex(hex.or_else(|| name.strip_suffix(".json"))?)
}

fn read_up_to(from: &mut (impl Read + ?Sized), buf: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while let Some(rest) = buf.get_mut(got..).filter(|r| !r.is_empty()) {
        match from.read(rest)? {
            0 => break,
            n => got += n,
        }
    }
    Ok(got)
}

/// Without `./`; refuses a name that leads out of the archive.
fn plain(path: &Path) -> Check<String> {
    resolve(Path::new(""), path).ok_or_else(|| format!("{} leads out of it", path.display()))
}

/// `target` as seen from `folder`; `None` if it leads out of the archive.
fn resolve(folder: &Path, target: &Path) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.components().chain(target.components()) {
        match part {
            Component::CurDir => {}
            Component::Normal(name) => parts.push(name.to_str()?),
            Component::ParentDir => drop(parts.pop()?),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}
