use std::fmt;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::open::unreadable;
use super::stored::Watch;
use super::{Format, Image};
use crate::error::{Code, Error, Result};
use crate::image::chunks::{Extent, pass, workers};
use crate::image::digest::{CHUNK, Digest256, chunk_digest, is_zero, root, zero_chunk};
use crate::progress::{Progress, Stage};
use crate::sys::signal;

pub(super) static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

pub(super) struct Whole {
    pub(super) size: u64,
    pub(super) digests: Vec<Digest256>,
    pub(super) sha256: Option<Digest256>,
    /// Bytes in blocks that are not all zeroes.
    pub(super) data: u64,
}

struct Meter<'a> {
    progress: &'a dyn Progress,
    watch: Option<Arc<Watch>>,
    reported: u64,
    reported_at: Instant,
}

impl Meter<'_> {
    fn see(&mut self, extent: &Extent<'_>) {
        let done = match (&self.watch, extent) {
            (Some(watch), _) => watch.position(),
            (None, extent) => extent.end(),
        };
        let (new, took) = (done.saturating_sub(self.reported), self.reported_at.elapsed());
        // A few stored bytes make many zeroes: the time of the rest does not follow from them.
        if matches!(extent, Extent::Zero { .. })
            || matches!(extent, Extent::Data { bytes, .. } if is_zero(bytes))
        {
            self.progress.advance_zeroes(new, took);
        } else {
            self.progress.advance(new);
        }
        (self.reported, self.reported_at) = (done, Instant::now());
    }
}

/// A hole of a file consists of whole blocks of its file system, which hardly has smaller ones.
const DATA_BLOCK: usize = 4096;

/// Reads the whole image and digests its chunks on several threads. `observe` sees every piece in order.
pub(super) fn whole(
    image: &Image,
    sha256: bool,
    progress: &dyn Progress,
    observe: &mut (dyn FnMut(&Extent<'_>) -> Result<()> + Send),
) -> Result<Whole> {
    let (mut source, watch) = image.watched_source()?;
    let mut meter = Meter { progress, watch, reported: 0, reported_at: Instant::now() };
    let mut hash = sha256.then(Sha256::new);
    let digests = Mutex::new(Vec::new());
    let data = AtomicU64::new(0);
    let size = pass(
        source.as_mut(),
        workers(),
        &mut |extent| {
            heed_signals(image)?;
            observe(extent)?;
            if let Some(hash) = &mut hash {
                match extent {
                    Extent::Data { bytes, .. } => hash.update(bytes),
                    Extent::Zero { len, .. } => zeroes(*len, |z| hash.update(z)),
                }
            }
            meter.see(extent);
            Ok(())
        },
        &|| (),
        &|(), extent| {
            note(&digests, extent);
            if let Extent::Data { bytes, .. } = extent {
                let blocks = bytes.chunks(DATA_BLOCK).filter(|block| !is_zero(block));
                data.fetch_add(blocks.map(|block| block.len() as u64).sum(), Ordering::Relaxed);
            }
            Ok(())
        },
    )?;
    let digests = digests.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Whole { size, digests, sha256: hash.map(|h| Digest256(h.finalize().into())), data: data.into_inner() })
}

pub(super) fn heed_signals(image: &Image) -> Result<()> {
    let path = image.path.display();
    heed(format_args!("while {path} was checked")).map_err(|e| e.object(path))
}

/// An error if a signal came while it was held back. `doing` says within what, as in "while the image was checked".
pub(crate) fn heed(doing: impl fmt::Display) -> Result<()> {
    match signal::came() {
        None => Ok(()),
        Some(signal) => Err(Error::new(Code::Interrupted, format!("interrupted by {signal} {doing}"))),
    }
}

pub(super) fn zeroes(mut len: u64, mut to: impl FnMut(&[u8])) {
    while len > 0 {
        let n = usize::try_from(len).unwrap_or(usize::MAX).min(ZEROES.len());
        to(ZEROES.split_at(n).0);
        len -= n as u64;
    }
}

/// How many of the image's bytes are zeroes, about: by its digests, or by samples of a raw image, most of which was not read yet.
pub(crate) fn estimate_zeroes(image: &Image, digests: Option<&[Digest256]>) -> u64 {
    /// Together 16 MiB: a fraction of a second on a stick, and right to about five percent.
    const SAMPLES: u64 = 128;
    const SAMPLE_BYTES: usize = 128 << 10;
    if let Some(digests) = digests {
        return digests.iter().filter(|digest| **digest == zero_chunk()).count() as u64 * CHUNK;
    }
    let step = image.stored_size / SAMPLES;
    if image.format != Format::Raw || step < 8 * SAMPLE_BYTES as u64 {
        return 0;
    }
    let mut sample = vec![0; SAMPLE_BYTES];
    let is_empty = |i: &u64| image.read_stored(i * step, &mut sample).is_ok() && is_zero(&sample);
    (0..SAMPLES).filter(is_empty).count() as u64 * step
}

fn note(digests: &Mutex<Vec<Digest256>>, extent: &Extent<'_>) {
    // The digest of the extent's last chunk; the chunks before it are whole and zero.
    let (end, last) = match extent {
        Extent::Data { offset, bytes } => (offset + bytes.len() as u64, chunk_digest(bytes)),
        Extent::Zero { offset, len } => {
            let tail = usize::try_from(len % CHUNK).unwrap_or(0);
            let last = if tail == 0 { zero_chunk() } else { chunk_digest(&vec![0; tail]) };
            (offset + len, last)
        }
    };
    let Some(index) = end.div_ceil(CHUNK).checked_sub(1).and_then(|i| usize::try_from(i).ok()) else {
        return;
    };
    let mut all = digests.lock().unwrap_or_else(PoisonError::into_inner);
    if all.len() <= index {
        // Gaps are zeroes, or other threads fill them in.
        all.resize(index + 1, zero_chunk());
    }
    if let Some(place) = all.get_mut(index) {
        *place = last;
    }
}

pub(super) fn stored_sha256(image: &Image, progress: &dyn Progress) -> Result<Digest256> {
    let mut stored = image.stored()?;
    let mut hash = Sha256::new();
    loop {
        heed_signals(image)?;
        let bytes = stored.fill_buf().map_err(|e| unreadable(&image.path, e))?;
        let n = bytes.len();
        if n == 0 {
            image.refuse_changed()?;
            return Ok(Digest256(hash.finalize().into()));
        }
        hash.update(bytes);
        stored.consume(n);
        progress.advance(n as u64);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct FileDigest {
    pub size: u64,
    pub chunks: Digest256,
    /// Where it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest256>,
}

/// Reads the uncompressed image. Neither its content nor companion files are checked.
pub fn digest_file(path: impl Into<PathBuf>, sha256: bool, progress: &dyn Progress) -> Result<FileDigest> {
    let image = Image::open(path)?;
    progress.begin(Stage::Check, Some(image.stored_size));
    let whole = whole(&image, sha256, progress, &mut |_| Ok(()))?;
    progress.finish();
    Ok(FileDigest { size: whole.size, chunks: root(&whole.digests), sha256: whole.sha256 })
}
