//! Progress: what stage a job is in and how far it has come.

/// A part of a job that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Reading or decoding the image before anything is written.
    Check,
    /// Writing the image.
    Write,
    /// Reading the medium back.
    Verify,
}

/// Where progress goes. Called from several threads.
pub trait Progress: Sync {
    /// A stage begins; `total` is its amount of work in bytes where it is known.
    fn begin(&self, stage: Stage, total: Option<u64>);
    /// `bytes` more of the current stage are done.
    fn advance(&self, bytes: u64);
    /// The current stage has succeeded.
    fn finish(&self);
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: Stage, _: Option<u64>) {}
    fn advance(&self, _: u64) {}
    fn finish(&self) {}
}
