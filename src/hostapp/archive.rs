//! Image archives, checked before anything is changed: what `docker save` writes, and the layout of the Open Container
//! Initiative (OCI) in a tar; plain, or compressed with gzip, xz or zstd.
//!
//! One pass from front to back. Every layer is unpacked in memory, bit by bit, so that one that is damaged is found here and
//! not by the engine, whose store has been emptied by then.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Code, Error, Result};
use crate::flasher::chunks::{Piece, Source};
use crate::flasher::digest::CHUNK_LEN;
use crate::flasher::image;

mod layer;
mod manifest;

use layer::Layer;

/// Largest JSON document that is looked at, and most of them together, in bytes. Those of a host OS have some kilobytes.
const DOCUMENT: u64 = 1 << 20;
const DOCUMENTS: u64 = 8 << 20;

/// Most members of an archive: three for each of at most 128 layers (overlay2), and some more.
const MEMBERS: usize = 4096;

/// What an image archive holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// The names its image has: one or none.
    pub tags: Vec<String>,
    /// How many images; 1.
    pub images: usize,
    /// Bytes that its layers need once they are unpacked: files rounded up to whole blocks of 4 KiB, a block for each folder,
    /// and what the engine remembers of each.
    pub unpacked: u64,
    /// How many layers the image has.
    pub layers: usize,
    /// For which processors it was made, as Go calls them (`amd64`, `arm64`, …); empty if it does not say.
    pub architecture: String,
    /// How it is laid out.
    pub layout: Layout,
}

/// How an archive says what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// By a `manifest.json`; every engine loads it.
    Docker,
    /// By an `index.json` alone; only engines with containerd's image store load it.
    Oci,
}

/// Reads the archive at `path` from end to end and checks it. Changes nothing. Needs a few MiB, and the window of the
/// compression.
///
/// # Errors
/// [`ImageArchiveInvalid`](Code::ImageArchiveInvalid): it is no archive of exactly one image with at most one name, or it is
/// damaged; those of opening it ([`image::Image::open`]).
pub fn inspect(path: &Path) -> Result<Archive> {
    let (source, fault) = Unpacked::open(&image::Image::open(path)?)?;
    let checked = Members::read(source).and_then(|members| manifest::understand(&members));
    checked.map_err(|why| fault.as_error(path).unwrap_or_else(|| invalid(path).because(why)))
}

fn invalid(path: &Path) -> Error {
    let what = format!("{} is no image archive that can be loaded", path.display());
    Error::new(Code::ImageArchiveInvalid, what).object(path.display())
}

/// Why it is not valid.
type Check<T> = Result<T, String>;

/// The error of the file itself, which does not fit through [`io::Error`].
#[derive(Clone, Default)]
pub(super) struct Fault(Arc<Mutex<Option<Error>>>);

impl Fault {
    /// What there is to be said of the archive `path`, if reading it failed.
    pub(super) fn as_error(&self, path: &Path) -> Option<Error> {
        let error = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(match error.code() {
            Code::ImageDamaged | Code::ImageChanged => invalid(path).because(error.message()),
            _ => error,
        })
    }
}

/// The unpacked archive, to be read.
pub(super) struct Unpacked {
    source: Box<dyn Source>,
    piece: Vec<u8>,
    at: usize,
    end: usize,
    zeroes: u64,
    over: bool,
    fault: Fault,
}

impl Unpacked {
    /// From its start.
    pub(super) fn open(file: &image::Image) -> Result<(Unpacked, Fault)> {
        let fault = Fault::default();
        let (source, piece) = (file.source()?, vec![0; CHUNK_LEN]);
        let reader = Unpacked { source, piece, at: 0, end: 0, zeroes: 0, over: false, fault: fault.clone() };
        Ok((reader, fault))
    }
}

impl Read for Unpacked {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at == self.end && self.zeroes == 0 && !self.over {
            match self.source.next(&mut self.piece) {
                Ok(Piece::Data(n)) => (self.at, self.end) = (0, n),
                Ok(Piece::Zero(n)) => self.zeroes = n,
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
        let mut rest = self.piece.get(self.at..self.end).unwrap_or_default();
        let n = rest.read(buf)?;
        self.at += n;
        Ok(n)
    }
}

/// What is in an archive, by its names.
#[derive(Default)]
struct Members {
    /// Everything that looks like JSON.
    documents: BTreeMap<String, Vec<u8>>,
    /// Everything else that is a file and a tar.
    layers: BTreeMap<String, Layer>,
    /// What is a file, and neither.
    others: BTreeMap<String, String>,
    /// Links, by which older engines save a layer that is there twice.
    links: BTreeMap<String, String>,
}

impl Members {
    fn read(source: impl Read) -> Check<Members> {
        let mut members = Members::default();
        let mut archive = tar::Archive::new(source);
        let entries = archive.entries().map_err(|e| e.to_string())?;
        let (mut count, mut held) = (0, 0u64);
        for entry in entries {
            let mut entry = entry.map_err(|e| e.to_string())?;
            count += 1;
            if count > MEMBERS {
                return Err(format!("it has more than {MEMBERS} members"));
            }
            let name = plain(&entry.path().map_err(|e| e.to_string())?)?;
            let kind = entry.header().entry_type();
            if kind.is_symlink() || kind.is_hard_link() {
                let target = entry.link_name().map_err(|e| e.to_string())?.ok_or("a link leads nowhere")?;
                let folder = Path::new(&name).parent().filter(|_| kind.is_symlink()).unwrap_or(Path::new(""));
                members.links.insert(
                    name.clone(),
                    resolve(folder, &target).ok_or_else(|| format!("{name} leads out of it"))?,
                );
            } else if kind.is_file() {
                let mut head = [0; 1];
                let n = read_up_to(&mut entry, &mut head).map_err(|e| format!("{name}: {e}"))?;
                let size = entry.size();
                let first = head.first().filter(|_| n == 1).copied().unwrap_or(0);
                let mut content = head.take(n as u64).chain(&mut entry);
                // A tar that begins with such a letter is told from JSON by who names it.
                if b"{[".contains(&first) && size <= DOCUMENT {
                    held = size.saturating_add(held);
                    if held > DOCUMENTS {
                        return Err(format!("its JSON documents have more than {DOCUMENTS} bytes"));
                    }
                    let mut text = Vec::new();
                    content.read_to_end(&mut text).map_err(|e| format!("{name}: {e}"))?;
                    members.documents.insert(name, text);
                } else {
                    match layer::measure(&mut content) {
                        Ok(layer) => {
                            members.layers.insert(name, layer);
                        }
                        Err(why) => {
                            members.others.insert(name, why);
                        }
                    }
                    // Also what a reader did not want: the archive has to be whole.
                    io::copy(&mut content, &mut io::sink()).map_err(|e| e.to_string())?;
                }
            } else if !kind.is_dir() && !kind.is_pax_global_extensions() {
                return Err(format!("{name} is neither a file nor a folder"));
            }
        }
        if count == 0 {
            return Err("it holds nothing".to_owned());
        }
        // Behind the end of the tar only zeroes are to be expected; damage there is found by reading on.
        let mut rest = archive.into_inner();
        io::copy(&mut rest, &mut io::sink()).map_err(|e| e.to_string())?;
        Ok(members)
    }

    fn follow<'a>(&'a self, name: &'a str) -> &'a str {
        self.links.get(name).map_or(name, String::as_str)
    }

    /// The JSON document of this name.
    fn document(&self, name: &str) -> Check<&[u8]> {
        let found = self.documents.get(self.follow(name)).map(Vec::as_slice);
        found.ok_or_else(|| format!("it names {name:?}, which it does not hold"))
    }

    /// The layer of this name.
    fn layer(&self, name: &str) -> Check<Layer> {
        let place = self.follow(name);
        let damaged = |why: &String| format!("the layer {name:?} is damaged: {why}");
        if let Some(layer) = self.layers.get(place) {
            return Ok(layer.clone());
        }
        match (self.documents.get(place), self.others.get(place)) {
            (Some(text), _) => layer::measure(&mut text.as_slice()).map_err(|why| damaged(&why)),
            (None, Some(why)) => Err(damaged(why)),
            (None, None) => Err(format!("the layer {name:?} is missing")),
        }
    }
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

/// A member's name without `./`; one that leads out of the archive is refused.
fn plain(path: &Path) -> Check<String> {
    resolve(Path::new(""), path).ok_or_else(|| format!("{} leads out of it", path.display()))
}

/// Where `target` leads from `folder`, if that is inside.
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
