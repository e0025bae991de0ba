use std::path::Path;

use super::bmap_check::BmapCheck;
use super::companions::Companions;
use super::headers::{Headers, MORE_PASSES};
use super::pass::{stored_sha256, whole};
use super::{BOOT_LABEL, Checks, Format, Image, Inspection};
use crate::disk::partition::{Analysis, Flaw, Table, analyse};
use crate::disk::select::ImageSize;
use crate::error::{Code, Error, Result};
use crate::image::chunks::Extent;
use crate::image::digest::{CHUNK, Digest256};
use crate::progress::{Progress, Stage};

/// With `single_pass`, how much of the image is decoded to find the boot partition's label. It is the first partition of
/// most balenaOS images; boards with many bootloader partitions (Jetson) have up to 448 MiB before it.
const BEGINNING: u64 = 512 << 20;

/// Checks integrity, companion files, partition table and boot partition.
///
/// A raw image is read as a whole only where it has companions or the caller asks for a digest. A compressed one always
/// is, except with [`Checks::single_pass`]: then only its beginning is decoded, a block map's ranges are not compared, and
/// the size comes from the table. An expected digest or a signature always takes a whole pass.
pub fn inspect(image: &Image, checks: &Checks, progress: &dyn Progress) -> Result<Inspection> {
    let companions = Companions::of(image)?;
    let digest = checks.need_sha256();
    if image.format == Format::Raw {
        let table = judge(image, analyse_raw(image), checks)?;
        let mut inspection = Inspection {
            size: ImageSize::Exact(image.stored_size),
            table,
            digests: None,
            data: None,
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
    (Some(image.stored_size), analyse_raw(image).ok().map(|f| f.table))
}

fn compressed(
    image: &Image,
    checks: &Checks,
    companions: &Companions,
    progress: &dyn Progress,
) -> Result<Inspection> {
    let (found, mut inspection) = decoded(image, checks, companions, progress)?;
    inspection.table = judge(image, found, checks)?;
    Ok(inspection)
}

/// Decodes the whole of a compressed image.
fn decoded(
    image: &Image,
    checks: &Checks,
    companions: &Companions,
    progress: &dyn Progress,
) -> Result<(Result<Analysis, Flaw>, Inspection)> {
    let mut headers = table_headers();
    let inspection = full_pass(image, checks, companions, progress, Some(&mut headers))?;
    if let ImageSize::Exact(size) = inspection.size {
        headers.ended(size);
    }
    headers.finish(image)?;
    Ok((headers.result, inspection))
}

/// Reads the whole image, whatever its table is.
pub(super) fn describe(
    image: &Image,
    checks: &Checks,
    companions: &Companions,
    progress: &dyn Progress,
) -> Result<(Result<Analysis, Flaw>, Inspection)> {
    let raw = image.format == Format::Raw;
    let stored = companions.sha256.as_ref().filter(|_| !raw);
    let passes = 1 + u64::from(stored.is_some());
    progress.begin(Stage::Check, Some(image.stored_size.saturating_mul(passes)));
    if let Some((path, expected)) = stored {
        compare(image, stored_sha256(image, progress)?, *expected, Some(path))?;
    }
    let described = if raw {
        (analyse_raw(image), full_pass(image, checks, companions, progress, None)?)
    } else {
        decoded(image, checks, companions, progress)?
    };
    progress.finish();
    Ok(described)
}

fn analyse_raw(image: &Image) -> Result<Analysis, Flaw> {
    analyse(&mut |offset, buf| image.read_stored(offset, buf), Some(image.stored_size))
}

fn full_pass(
    image: &Image,
    checks: &Checks,
    companions: &Companions,
    progress: &dyn Progress,
    mut headers: Option<&mut TableHeaders>,
) -> Result<Inspection> {
    let raw = image.format == Format::Raw;
    let checksum_requested = checks.need_sha256();
    let mut map = companions.bmap.as_ref().map(|(path, bmap)| BmapCheck::new(bmap, path, &image.path));
    let mut stopped_at = None;
    let whole = whole(image, checksum_requested || companions.sha256.is_some(), progress, &mut |extent| {
        refuse_too_large(image, checks, extent)?;
        if let Some(headers) = &mut headers
            && headers.see(extent)?
        {
            refuse_early(headers, image, checks)?;
        }
        if let (Some(most), Some(headers)) = (checks.after_table, &headers)
            && headers.result.as_ref().is_ok_and(|found| extent.end() > found.end().saturating_add(most))
        {
            stopped_at = Some(extent.end());
            return Err(Error::new(Code::ImageDamaged, "it goes on after the end of its partition table"));
        }
        map.as_mut().map_or(Ok(()), |map| map.see(extent))
    });
    if let Some(end) = stopped_at {
        let size = ImageSize::AtLeast(end);
        return Ok(Inspection { size, table: None, digests: None, data: None, sha256: None, signed: None });
    }
    let whole = whole?;
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
        data: Some(whole.data),
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
    let mut headers = table_headers();
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
        data: None,
        sha256: None,
        signed: None,
    })
}

type TableHeaders = Headers<'static, Analysis>;

fn table_headers() -> TableHeaders {
    Headers::new(Box::new(|read_at, size| {
        let found = analyse(read_at, size);
        let settled = match &found {
            Ok(found) => found.complete,
            Err(flaw) => !matches!(flaw, Flaw::Pending),
        };
        (found, settled)
    }))
}

fn refuse_early(headers: &mut TableHeaders, image: &Image, checks: &Checks) -> Result<()> {
    if checks.force_raw {
        return Ok(());
    }
    match &headers.result {
        Err(Flaw::Pending) => Ok(()),
        Err(_) => {
            let flaw = std::mem::replace(&mut headers.result, Err(Flaw::Pending));
            judge(image, flaw, checks).map(drop)
        }
        Ok(found) if found.labelled => boot_partition(image, &found.table),
        Ok(_) => Ok(()),
    }
}

fn judge(image: &Image, found: Result<Analysis, Flaw>, checks: &Checks) -> Result<Option<Table>> {
    match found {
        Err(Flaw::Read(e)) => Err(flawed(Flaw::Read(e), &image.path)),
        Err(flaw) => {
            let error = flawed(flaw, &image.path);
            if !checks.force_raw {
                return Err(match foreign_format(image) {
                    Some(what) => {
                        let path = image.path.display();
                        error.and_also(&format!("{path} is a disk of a virtual machine ({what})")).with_hint(
                            "convert it first: `qemu-img convert -O raw IMAGE OS.img`; --force-raw writes it as it is",
                        )
                    }
                    None => error,
                });
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

/// The format of a virtual machine's disk by its first bytes: QEMU's `docs/interop/qcow2.txt`, VMware's sparse extents, and dynamic disks of VHD and
/// VHDX, as `qemu-img` knows them.
fn foreign_format(image: &Image) -> Option<&'static str> {
    let mut head = [0; 8];
    image.read_stored(0, &mut head).ok()?;
    match &head {
        [b'Q', b'F', b'I', 0xfb, ..] => Some("qcow2"),
        [b'K', b'D', b'M', b'V', ..] => Some("vmdk"),
        b"conectix" => Some("vhd"),
        b"vhdxfile" => Some("vhdx"),
        _ => None,
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

pub(crate) fn flawed(flaw: Flaw, path: &Path) -> Error {
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
