use std::sync::atomic::{AtomicU64, Ordering};

use super::write::Open;
use crate::disk::io::Io;
use crate::error::{Code, Error, Result};
use crate::image::chunks::{Extent, pass, workers};
use crate::image::digest::{CHUNK, CHUNK_LEN, is_zero};
use crate::progress::{Progress, Stage};
use crate::sys::buffer::Buffer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    pub size: u64,
    pub first_difference: Option<u64>,
    pub differing_chunks: u64,
}

/// Compares the whole image with the medium, past the page cache where it can be bypassed.
pub fn compare(
    open: Open<'_>,
    size: Option<u64>,
    io: &Io<'_>,
    progress: &dyn Progress,
) -> Result<Comparison> {
    let first = AtomicU64::new(u64::MAX);
    let differing = AtomicU64::new(0);
    progress.begin(Stage::Verify, size);
    // Writes of other programs may be in the cache only; clean pages may differ from the medium.
    if let Err(e) = io.flush().and_then(|()| io.drop_cache()) {
        tracing::debug!("{e}");
    }

    let capacity = io.size()?;
    let check = |seen: &mut Buffer, offset: u64, len: u64, want: Option<&[u8]>| -> Result<()> {
        let seen = io.read_any(seen, offset, len)?;
        let bad = match want {
            Some(want) if seen == want => None,
            Some(want) => seen.iter().zip(want).position(|(a, b)| a != b),
            None if is_zero(seen) => None,
            None => seen.iter().position(|b| *b != 0),
        };
        if let Some(i) = bad {
            first.fetch_min(offset + i as u64, Ordering::Relaxed);
            differing.fetch_add(1, Ordering::Relaxed);
        }
        progress.advance(len);
        Ok(())
    };
    let size = pass(
        &mut *open()?,
        workers(),
        &mut |extent| if extent.end() <= capacity { Ok(()) } else { Err(too_short(io, capacity)) },
        &|| Buffer::zeroed(CHUNK_LEN),
        &|seen, extent| match extent {
            Extent::Data { offset, bytes } => check(seen, *offset, bytes.len() as u64, Some(bytes)),
            Extent::Zero { offset, len } => {
                let end = offset + len;
                let mut at = *offset;
                while at < end {
                    let n = CHUNK.min(end - at);
                    check(seen, at, n, None)?;
                    at += n;
                }
                Ok(())
            }
        },
    )?;
    progress.finish();
    let first = first.into_inner();
    let first_difference = (first != u64::MAX).then_some(first);
    Ok(Comparison { size, first_difference, differing_chunks: differing.into_inner() })
}

fn too_short(io: &Io<'_>, size: u64) -> Error {
    let name = io.name().display();
    Error::new(Code::TargetDiffers, format!("{name} has {size} bytes, and the image has more")).object(name)
}
