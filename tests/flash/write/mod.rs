//! The write engine on a medium in memory that can do everything a bad disk does.
#![allow(clippy::cast_possible_truncation)]

mod faults;
mod lies;
mod medium;
mod promise;
mod real;

use copal::disk::partition::{Table, TableKind};
use copal::disk::select::ImageSize;
use copal::disk::select::{Target, TargetKind};
use copal::error::Result;
use copal::flash::plan::{Plan, Step};
use copal::flash::write::{Outcome, execute};
use copal::image::chunks::{Piece, Source};
use copal::image::digest::{CHUNK, CHUNK_LEN, chunk_digest};
use copal::image::{Format, Inspection, StoredImage};
use copal::progress::Silent;
use copal::sys::block::Medium;
use medium::Disk;

/// An image in memory.
pub struct Bytes<'a> {
    image: &'a [u8],
    at: usize,
    /// Tell holes (whole chunks of zeroes) as such.
    sparse: bool,
}

impl<'a> Bytes<'a> {
    pub fn new(image: &'a [u8], sparse: bool) -> Self {
        Bytes { image, at: 0, sparse }
    }
}

impl Source for Bytes<'_> {
    fn next(&mut self, buf: &mut [u8]) -> Result<Piece> {
        let rest = &self.image[self.at..];
        if rest.is_empty() {
            return Ok(Piece::End);
        }
        let zero =
            rest.chunks(CHUNK_LEN).take_while(|c| c.iter().all(|b| *b == 0)).map(<[u8]>::len).sum::<usize>();
        if self.sparse && zero > 0 {
            self.at += zero;
            return Ok(Piece::Zero(zero as u64));
        }
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        self.at += n;
        Ok(Piece::Data(n))
    }
}

/// Everything about one flash that a test may change.
#[derive(Clone)]
pub struct Job {
    pub image: Vec<u8>,
    /// Length of the backup GPT at the end of the image.
    pub backup: usize,
    /// Digests known before, as for a compressed image.
    pub digested: bool,
    pub sparse: bool,
    pub size_known: bool,
}

impl Job {
    pub fn new(image: Vec<u8>) -> Self {
        Job { image, backup: 33 * 512, digested: false, sparse: true, size_known: true }
    }

    pub fn plan(&self, disk: &Disk) -> Plan {
        self.plan_for(disk, disk.len())
    }

    pub fn plan_for(&self, disk: &dyn Medium, len: u64) -> Plan {
        let size = self.image.len() as u64;
        let backup = (self.backup > 0).then(|| size - self.backup as u64..size);
        let partitions = Vec::new();
        let table = Table { kind: TableKind::Gpt, sector_size: 512, partitions, backup, areas: Vec::new() };
        let digests = self.digested.then(|| self.image.chunks(CHUNK_LEN).map(chunk_digest).collect());
        let seen = Inspection {
            size: if self.size_known {
                ImageSize::Exact(size)
            } else {
                ImageSize::AtLeast(size.min(2 * CHUNK))
            },
            table: Some(table),
            digests,
            data: None,
            sha256: None,
            signed: None,
        };
        let stored = StoredImage { path: "/image".into(), format: Format::Raw, stored_size: size };
        let target = Target {
            name: "/dev/disk".into(),
            node: "/dev/disk".into(),
            kind: TargetKind::Block,
            dev: None,
            size: len,
            block_size: disk.block_size() as u32,
            by_id: None,
            model: None,
            serial: None,
        };
        let mut plan = Plan::new(stored, seen, target, Some(disk)).unwrap();
        // These images are noise.
        plan.steps.retain(|step| *step != Step::CheckTable);
        plan
    }

    pub fn run(&self, disk: &Disk) -> Result<Outcome> {
        self.run_plan(&self.plan(disk), disk)
    }

    pub fn run_plan(&self, plan: &Plan, disk: &dyn Medium) -> Result<Outcome> {
        let image: &'static [u8] = Box::leak(self.image.clone().into_boxed_slice());
        let sparse = self.sparse;
        let open = move || Ok(Box::new(Bytes::new(image, sparse)) as Box<dyn Source>);
        execute(plan, &open, disk, &Silent)
    }
}

/// An image of `len` bytes: a boot sector, a GPT header, data, zero runs of all lengths, a backup GPT.
pub fn image(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut data = vec![0u8; len];
    let mut at = 0;
    while at < len {
        let n = rng.usize(1..=3 * CHUNK_LEN / 2).min(len - at);
        if rng.bool() {
            rng.fill(&mut data[at..at + n]);
        }
        at += n;
    }
    if len >= 4 * CHUNK_LEN {
        data[2 * CHUNK_LEN..3 * CHUNK_LEN].fill(0);
    }
    data[510..512].copy_from_slice(&[0x55, 0xaa]);
    data[512..520].copy_from_slice(b"EFI PART");
    data[len - 512..len - 504].copy_from_slice(b"EFI PART");
    data
}
