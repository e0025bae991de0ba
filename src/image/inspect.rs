use std::path::Path;

use super::bmap_check::BmapCheck;
use super::companions::Companions;
use super::pass::{heed_signals, stored_sha256, whole};
use super::sparse::Sparse;
use super::{BOOT_LABEL, Checks, Format, Image, Inspection};
use crate::disk::partition::{Analysis, Flaw, Table, analyse};
use crate::disk::select::ImageSize;
use crate::error::{Code, Error, Result};
use crate::image::chunks::{Extent, Piece};
use crate::image::digest::{CHUNK, CHUNK_LEN, Digest256};
use crate::progress::{Progress, Stage};
use crate::sys::buffer::Buffer;

/// With `single_pass`, how much of the image is decoded to find the boot partition's label. It is the first partition of
/// most balenaOS images; boards with many bootloader partitions (Jetson) have up to 448 MiB before it.
const BEGINNING: u64 = 512 << 20;

/// Headers that lie before what refers to them cost another pass over a compressed image.
const MORE_PASSES: u32 = 4;

/// Checks integrity, companion files, partition table and boot partition.
///
/// A raw image is read as a whole only where it has companions or the caller asks for a digest. A compressed one always
/// is, except with [`Checks::single_pass`]: then only its beginning is decoded, a block map's ranges are not compared, and
/// the size comes from the table. An expected digest or a signature always takes a whole pass.
pub fn inspect(image: &Image, checks: &Checks, progress: &dyn Progress) -> Result<Inspection> {
    let companions = Companions::of(image)?;
    let digest = checks.need_sha256();
    if image.format == Format::Raw {
        let mut read = |offset: u64, buf: &mut [u8]| image.read_stored(offset, buf);
        let found = analyse(&mut read, Some(image.stored_size));
        let table = judge(image, found, checks)?;
        let mut inspection = Inspection {
            size: ImageSize::Exact(image.stored_size),
            table,
            digests: None,
            sha256: None,
            signed: None,
        };
        if digest || companions.bmap.is_some() || companions.sha256.is_some() {
            progress.begin(Stage::Check, Some(image.stored_size));
            let whole = full_pass(image, checks, &companions, progress, None)?;
            progress.finish();
            (inspection.digests, inspection.sha256, inspection.signed) =
                (whole.digests, whole.sha256, whole.signed);
        }
        return Ok(inspection);
    }
    let single = checks.single_pass && !digest;
    let passes = u64::from(companions.sha256.is_some()) + u64::from(!single);
    if passes > 0 {
        progress.begin(Stage::Check, Some(image.stored_size.saturating_mul(passes)));
    }
    if let Some((path, expected)) = &companions.sha256 {
        compare(image, stored_sha256(image, progress)?, *expected, Some(path))?;
    }
    let inspection = if single {
        beginning(image, checks, &companions)?
    } else {
        compressed(image, checks, &companions, progress)?
    };
    if passes > 0 {
        progress.finish();
    }
    Ok(inspection)
}

/// Size and partition table of a raw image from its headers, without checks. A compressed image shows neither before it is
/// decoded.
#[must_use]
pub(crate) fn glance(image: &Image) -> (Option<u64>, Option<Table>) {
    if image.format != Format::Raw {
        return (None, None);
    }
    let found = analyse(&mut |offset, buf| image.read_stored(offset, buf), Some(image.stored_size));
    (Some(image.stored_size), found.ok().map(|f| f.table))
}

fn compressed(
    image: &Image,
    checks: &Checks,
    companions: &Companions,
    progress: &dyn Progress,
) -> Result<Inspection> {
    let mut headers = Headers::new();
    let mut inspection = full_pass(image, checks, companions, progress, Some(&mut headers))?;
    if let ImageSize::Exact(size) = inspection.size {
        headers.ended(size);
    }
    for _ in 0..MORE_PASSES {
        if headers.settled {
            break;
        }
        tracing::debug!("another pass over {} for its headers", image.path.display());
        let last = headers.sparse.last_requested().unwrap_or(0);
        headers.walk(image, |headers, position| headers.settled || position > last)?;
    }
    let found = if headers.settled { headers.result } else { Err(Flaw::Pending) };
    inspection.table = judge(image, found, checks)?;
    Ok(inspection)
}

fn full_pass(
    image: &Image,
    checks: &Checks,
    companions: &Companions,
    progress: &dyn Progress,
    mut headers: Option<&mut Headers>,
) -> Result<Inspection> {
    let raw = image.format == Format::Raw;
    let checksum_requested = checks.need_sha256();
    let mut map = companions.bmap.as_ref().map(|(path, bmap)| BmapCheck::new(bmap, path, &image.path));
    let whole = whole(image, checksum_requested || companions.sha256.is_some(), progress, &mut |extent| {
        refuse_too_large(image, checks, extent)?;
        if let Some(headers) = &mut headers
            && headers.see(extent)
        {
            headers.refuse_early(image, checks)?;
        }
        map.as_mut().map_or(Ok(()), |map| map.see(extent))
    })?;
    refuse_empty(image, Some(whole.size))?;
    if let Some(map) = map {
        map.finish(whole.size)?;
    }
    if let (true, Some(digest), Some((path, expected))) = (raw, whole.sha256, &companions.sha256) {
        compare(image, digest, *expected, Some(path))?;
    }
    if let (Some(digest), Some(expected)) = (whole.sha256, checks.expect_sha256) {
        compare(image, digest, expected, None)?;
    }
    let signed = match (whole.sha256, &checks.signer) {
        (Some(digest), Some(signer)) => Some(signer.check(image, digest)?),
        _ => None,
    };
    Ok(Inspection {
        size: ImageSize::Exact(whole.size),
        table: None,
        digests: Some(whole.digests),
        sha256: whole.sha256,
        signed,
    })
}

fn refuse_empty(image: &Image, size: Option<u64>) -> Result<()> {
    if size != Some(0) {
        return Ok(());
    }
    let path = image.path.display();
    Err(Error::new(Code::ImageEmpty, format!("image {path} has no content")).object(path))
}

fn refuse_too_large(image: &Image, checks: &Checks, extent: &Extent<'_>) -> Result<()> {
    match checks.at_most {
        Some(most) if extent.end() > most => {
            let path = image.path.display();
            let message = format!("image {path} has more than the {most} bytes of the target");
            Err(Error::new(Code::TargetTooSmall, message).object(path))
        }
        _ => Ok(()),
    }
}

fn beginning(image: &Image, checks: &Checks, companions: &Companions) -> Result<Inspection> {
    let mut headers = Headers::new();
    headers.walk(image, |headers, position| {
        let enough = match &headers.result {
            Ok(found) => found.labelled || has_boot(&found.table),
            Err(_) => headers.settled,
        };
        // An image of less than one chunk ends before that; then its size is known.
        (enough && position >= CHUNK) || position >= BEGINNING
    })?;
    let path = image.path.display();
    tracing::warn!("only the beginning of {path} was checked: later damage is found only during the write");
    if let Some((map, _)) = &companions.bmap {
        tracing::warn!("{} was not compared with the image", map.display());
    }
    if headers.result.as_ref().is_ok_and(|found| !has_boot(&found.table)) {
        tracing::warn!("no partition labelled {BOOT_LABEL} was found there");
    }
    refuse_empty(image, headers.sparse.size())?;
    let least = headers.result.as_ref().map_or(0, |found| found.span);
    let size = headers.sparse.size().map_or(ImageSize::AtLeast(least), ImageSize::Exact);
    Ok(Inspection {
        size,
        table: judge(image, headers.result, checks)?,
        digests: None,
        sha256: None,
        signed: None,
    })
}

struct Headers {
    sparse: Sparse,
    result: Result<Analysis, Flaw>,
    settled: bool,
}

impl Headers {
    fn new() -> Self {
        let mut headers = Headers { sparse: Sparse::default(), result: Err(Flaw::Pending), settled: false };
        headers.run();
        headers
    }

    fn run(&mut self) {
        let size = self.sparse.size();
        self.result = analyse(&mut |offset, buf| self.sparse.read_at(offset, buf), size);
        self.settled = match &self.result {
            Ok(found) => found.complete,
            Err(flaw) => !matches!(flaw, Flaw::Pending),
        };
    }

    fn see(&mut self, extent: &Extent<'_>) -> bool {
        let mut news = false;
        while !self.settled && self.sparse.take(extent) {
            self.run();
            news = true;
        }
        news
    }

    fn ended(&mut self, size: u64) {
        self.sparse.ended(size);
        self.run();
    }

    fn refuse_early(&mut self, image: &Image, checks: &Checks) -> Result<()> {
        if checks.force_raw {
            return Ok(());
        }
        match &self.result {
            Err(Flaw::Pending) => Ok(()),
            Err(_) => {
                let flaw = std::mem::replace(&mut self.result, Err(Flaw::Pending));
                judge(image, flaw, checks).map(drop)
            }
            Ok(found) if found.labelled => boot_partition(image, &found.table),
            Ok(_) => Ok(()),
        }
    }

    fn walk(&mut self, image: &Image, enough: impl Fn(&Headers, u64) -> bool) -> Result<()> {
        let mut source = image.source()?;
        let mut buffer = Buffer::zeroed(CHUNK_LEN);
        let mut position = 0;
        while !enough(self, position) {
            heed_signals(image)?;
            let (extent, len) = match source.next(&mut buffer)? {
                Piece::End => {
                    self.ended(position);
                    break;
                }
                Piece::Zero(len) => (Extent::Zero { offset: position, len }, len),
                Piece::Data(n) => {
                    let bytes = buffer.get(..n).unwrap_or_default();
                    (Extent::Data { offset: position, bytes }, n as u64)
                }
            };
            self.see(&extent);
            position += len;
        }
        Ok(())
    }
}

fn judge(image: &Image, found: Result<Analysis, Flaw>, checks: &Checks) -> Result<Option<Table>> {
    match found {
        Err(Flaw::Read(e)) => Err(flawed(Flaw::Read(e), &image.path)),
        Err(flaw) => {
            let error = flawed(flaw, &image.path);
            if !checks.force_raw {
                return Err(error);
            }
            tracing::warn!("{}; it is written because the caller forces it", error.message());
            Ok(None)
        }
        // The labels are unknown: the beginning did not contain them. The caller was warned of that.
        Ok(found) if !found.labelled && !has_boot(&found.table) => Ok(Some(found.table)),
        Ok(found) => {
            match boot_partition(image, &found.table) {
                Err(error) if checks.force_raw => {
                    tracing::warn!("{}; it is written because the caller forces it", error.message());
                }
                other => other?,
            }
            Ok(Some(found.table))
        }
    }
}

fn has_boot(table: &Table) -> bool {
    table.partitions.iter().any(|p| p.label.as_deref() == Some(BOOT_LABEL))
}

fn boot_partition(image: &Image, table: &Table) -> Result<()> {
    let count = table.partitions.iter().filter(|p| p.label.as_deref() == Some(BOOT_LABEL)).count();
    if count == 1 {
        return Ok(());
    }
    let list: Vec<String> = table
        .partitions
        .iter()
        .map(|p| match &p.label {
            Some(label) => format!("{} `{label}`", p.index),
            None => format!("{} without label", p.index),
        })
        .collect();
    let path = image.path.display();
    let text = format!(
        "image {path} has {} partition labelled {BOOT_LABEL}: found {}",
        if count == 0 { "no".to_owned() } else { format!("more than one ({count})") },
        list.join(", ")
    );
    Err(Error::new(Code::NoBootPartition, text).object(path))
}

fn compare(image: &Image, found: Digest256, expected: Digest256, by: Option<&Path>) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let path = image.path.display();
    let by = by.map_or("requested".to_owned(), |file| format!("in {}", file.display()));
    let text = format!("image {path} has SHA-256 {found}, not the one {by}, {expected}");
    Err(Error::new(Code::ImageDigestMismatch, text).object(path))
}

/// Compares the table's sector size with the logical block size of the disk at `target`. Not for a plain file, which has no
/// blocks of its own.
pub fn check_sector_size(table: &Table, block_size: u32, target: &Path) -> Result<()> {
    if table.sector_size == block_size {
        return Ok(());
    }
    let (sectors, target) = (table.sector_size, target.display());
    let text = format!(
        "the image's table counts in sectors of {sectors} bytes, {target} has blocks of {block_size}"
    );
    Err(Error::new(Code::SectorSizeMismatch, text).object(target))
}

fn flawed(flaw: Flaw, path: &Path) -> Error {
    let path = path.display();
    let (code, text) = match flaw {
        Flaw::Pending => (
            Code::PartitionTableInvalid,
            format!(
                "the headers of image {path} are spread so widely that {MORE_PASSES} more passes do not find them"
            ),
        ),
        Flaw::Read(e) => {
            return Error::new(Code::Io, format!("cannot read image {path}")).object(path).because(e);
        }
        Flaw::Missing(why) => (Code::NoPartitionTable, format!("image {path} has no partition table: {why}")),
        Flaw::Invalid(why) => {
            (Code::PartitionTableInvalid, format!("the partition table of image {path} is not valid: {why}"))
        }
        Flaw::Cut(why) => (Code::ImageDamaged, format!("image {path} is truncated: {why}")),
    };
    Error::new(code, text).object(path)
}
