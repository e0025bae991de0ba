//! What a successful flash did: the receipt of an image that was written. Schema: `docs/receipt.md`. No secrets.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::plan::Plan;
use super::write::Outcome;
use crate::disk::select::Target;
use crate::image::Format;
use crate::image::digest::Digest256;

/// Version of the receipt's JSON form: raised when a field changes its meaning or goes.
pub const VERSION: u32 = 1;

/// What was written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImageRecord {
    /// File name, without its folder.
    pub name: String,
    /// How it was stored.
    pub format: Format,
    /// Bytes as stored.
    pub stored_size: u64,
    /// Bytes on the target.
    pub size: u64,
    /// SHA-256 over the list of SHA-256 digests of its chunks of 1 MiB.
    pub chunk_digest: Digest256,
    /// SHA-256 of the whole, where it was asked for.
    pub sha256: Option<Digest256>,
}

/// Bytes, by what happened to them. `written`, `zeroed` and `skipped` add up to the image's size, unless chunks had to
/// be rewritten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Data written.
    pub written: u64,
    /// Zeroed, by the device itself or by writing.
    pub zeroed: u64,
    /// Left alone because they were there already.
    pub skipped: u64,
    /// Read back from the medium and found right.
    pub verified: u64,
}

/// One part of the run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timing {
    /// Seconds.
    pub seconds: f64,
    /// Bytes of the image per second.
    pub bytes_per_second: u64,
}

impl Timing {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a rate; `as` saturates
    fn new(bytes: u64, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Timing {
            seconds: (seconds * 1000.0).round() / 1000.0,
            bytes_per_second: (bytes as f64 / seconds.max(1e-9)) as u64,
        }
    }
}

/// Things that had to be done twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Retries {
    /// Chunks that differed when they were read back and were written again.
    pub rewritten_chunks: u64,
    /// Operations repeated after an input/output error.
    pub io: u64,
}

/// Record of one successful flash.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Receipt {
    /// [`VERSION`].
    pub version: u32,
    /// Version of copal.
    pub copal: String,
    /// Start, RFC 3339, UTC, by the device's clock.
    pub started: String,
    /// End.
    pub finished: String,
    /// The image.
    pub image: ImageRecord,
    /// The target.
    pub target: Target,
    /// Bytes by what happened to them.
    pub bytes: Bytes,
    /// Clearing, writing, zeroing, flushing.
    pub write: Timing,
    /// Reading back, and the last steps.
    pub verify: Timing,
    /// The page cache was bypassed.
    pub direct_io: bool,
    /// Repetitions.
    pub retries: Retries,
    /// The kernel has taken the new partition table; null for files, which have none for it.
    pub partition_table_reread: Option<bool>,
}

impl Receipt {
    /// The receipt of a run of `plan` that began at `started`; `reread`: whether the kernel knows the new table.
    #[must_use]
    pub fn new(plan: &Plan, outcome: &Outcome, started: SystemTime, reread: Option<bool>) -> Self {
        let time = |t| humantime::format_rfc3339_seconds(t).to_string();
        let name = plan.image.stored.path.file_name().unwrap_or(plan.image.stored.path.as_os_str());
        let size = outcome.size;
        Receipt {
            version: VERSION,
            copal: env!("CARGO_PKG_VERSION").to_owned(),
            started: time(started),
            finished: time(SystemTime::now()),
            image: ImageRecord {
                name: name.to_string_lossy().into_owned(),
                format: plan.image.stored.format,
                stored_size: plan.image.stored.stored_size,
                size,
                chunk_digest: outcome.chunk_digest,
                sha256: plan.image.sha256,
            },
            target: plan.target.clone(),
            bytes: Bytes {
                written: outcome.written,
                zeroed: outcome.zeroed,
                skipped: outcome.skipped,
                verified: outcome.verified,
            },
            write: Timing::new(size, outcome.write_time),
            verify: Timing::new(size, outcome.verify_time),
            direct_io: outcome.direct_io,
            retries: Retries { rewritten_chunks: outcome.rewritten_chunks, io: outcome.io_retries },
            partition_table_reread: reread,
        }
    }
}
