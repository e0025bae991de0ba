use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::plan::Plan;
use super::write::Outcome;
use crate::disk::select::Target;
use crate::image::digest::Digest256;
use crate::image::{Format, Signed};
use crate::sys::path_text;

/// Raised when a field changes its meaning or is removed.
const RECEIPT_VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImageRecord {
    /// Without its folder.
    pub name: String,
    pub format: Format,
    pub stored_size: u64,
    pub size: u64,
    /// SHA-256 over the list of SHA-256 digests of its chunks of 1 MiB.
    pub chunk_digest: Digest256,
    pub sha256: Option<Digest256>,
    /// Where a signature was required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signed: Option<Signed>,
}

/// `written`, `zeroed` and `skipped` add up to the image's size, unless chunks were rewritten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bytes {
    pub written: u64,
    /// By the device itself, or by writing zeroes.
    pub zeroed: u64,
    /// Not written, because the target already had them.
    pub skipped: u64,
    /// Read back from the medium, and correct.
    pub verified: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timing {
    pub seconds: f64,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Retries {
    /// Chunks that differed on read-back and were written again.
    pub rewritten_chunks: u64,
    pub io: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Receipt {
    pub version: u32,
    pub copal: String,
    /// RFC 3339, UTC, by the device's clock.
    pub started: String,
    pub finished: String,
    pub image: ImageRecord,
    pub target: Target,
    pub bytes: Bytes,
    /// Time to read the image before the write; `None` where it was not read as a whole.
    pub check: Option<Timing>,
    /// Time to clear, write, zero and flush.
    pub write: Timing,
    /// Time to read back, and for the last steps.
    pub verify: Timing,
    pub direct_io: bool,
    pub retries: Retries,
    /// Whether the kernel has read the new partition table; null for files.
    pub partition_table_reread: Option<bool>,
}

impl Receipt {
    /// `checked`: how long the check of the image took; `started`: the start of the run; `reread`: whether the kernel has read the new table.
    #[must_use]
    pub fn new(
        plan: &Plan,
        outcome: &Outcome,
        checked: Option<Duration>,
        started: SystemTime,
        reread: Option<bool>,
    ) -> Self {
        let time = |t| humantime::format_rfc3339_seconds(t).to_string();
        let name = plan.image.stored.path.file_name().unwrap_or(plan.image.stored.path.as_os_str());
        let size = outcome.size;
        Receipt {
            version: RECEIPT_VERSION,
            copal: crate::version::COPAL.to_owned(),
            started: time(started),
            finished: time(SystemTime::now()),
            image: ImageRecord {
                name: path_text::text(Path::new(name)),
                format: plan.image.stored.format,
                stored_size: plan.image.stored.stored_size,
                size,
                chunk_digest: outcome.chunk_digest,
                sha256: plan.image.sha256,
                signed: plan.image.signed.clone(),
            },
            target: plan.target.clone(),
            bytes: Bytes {
                written: outcome.written,
                zeroed: outcome.zeroed,
                skipped: outcome.skipped,
                verified: outcome.verified,
            },
            check: checked.map(|time| Timing::new(size, time)),
            write: Timing::new(size, outcome.write_time),
            verify: Timing::new(size, outcome.verify_time),
            direct_io: outcome.direct_io,
            retries: Retries { rewritten_chunks: outcome.rewritten_chunks, io: outcome.io_retries },
            partition_table_reread: reread,
        }
    }
}
