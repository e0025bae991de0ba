//! The disk itself: its old content goes, the kernel gets the new partitions, and the table comes last of all.
//!
//! Until the table is written, only the running kernel knows the partitions: after a power cut there is no system on the disk that firmware
//! could try to start.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::layout::Layout;
use crate::config::paths::Paths;
use crate::disk::io::Io;
use crate::disk::partition::{NewTable, fat_label};
use crate::disk::select::Target;
use crate::error::{Code, Error, Result};
use crate::flash::job::Prepared;
use crate::flash::plan::{Cleared, Plan, Step};
use crate::flash::write;
use crate::install::partitions;
use crate::progress::Silent;
use crate::sys::block::{Access, Device};
use crate::sys::buffer::{Buffer, part};

/// How long udev may keep the disk.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a master boot record, and of the code before its partitions.
const MBR: usize = 512;
const BOOT_CODE: usize = 446;

/// After the disk was closed, udev may read its empty table again, and the kernel drops the new partitions.
const TRIES: u32 = 3;

/// Clears boot sector, table and backup table, and discards the rest. Returns whether the disk takes a discard. A refusal means that the disk
/// is as before.
pub(super) fn clear(prepared: &Prepared, paths: &Paths) -> Result<bool> {
    prepared.refuse_changed_image()?;
    let device = prepared.open_target(paths)?;
    let plan = only_clear(&prepared.plan);
    let cleared = || write::execute(&plan, &|| prepared.source(), &device, &Silent);
    cleared()?;
    let discarded = device.discard().inspect_err(|e| {
        tracing::info!("{} does not discard its old content: {e}", prepared.plan.target.name.display());
    });
    // What a discarded block reads as is not defined.
    cleared().map_err(Error::after_write)?;
    if let Err(e) = device.reread_partitions(BUSY_TIMEOUT) {
        return Err(failed("make the kernel forget the partitions of", &prepared.plan.target).because(e));
    }
    Ok(discarded.is_ok())
}

fn only_clear(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.steps.retain(|step| match step {
        Step::Clear { what, .. } => *what != Cleared::ImageBackupGpt,
        step => matches!(step, Step::ClearSignatures { .. }),
    });
    plan
}

/// Adds the partitions to the kernel. Returns their nodes, in the order of the layout, and open files: as long as one of them is open, the
/// kernel does not read the disk's table.
pub(super) fn add_partitions(
    layout: &Layout,
    target: &Target,
    paths: &Paths,
) -> Result<(Vec<PathBuf>, Vec<File>)> {
    let table = layout.as_table();
    let mut last = None;
    for _ in 0..TRIES {
        partitions::settle(paths);
        let disk = Device::open(&target.node, Access::Read).map_err(|e| failed("open", target).because(e))?;
        for part in &layout.partitions {
            if let Err(e) = disk.add_partition(part.number, &(part.start..part.start + part.size)) {
                // It may be there from the try before.
                tracing::debug!("partition {} of {}: {e}", part.number, target.name.display());
                last = Some(e);
            }
        }
        let found = partitions::find(paths, target, Some(&table))?;
        let nodes: Option<Vec<PathBuf>> = table.partitions.iter().map(|p| found.at(p)).collect();
        if let Some(nodes) = nodes {
            let held: std::io::Result<Vec<File>> = nodes.iter().map(File::open).collect();
            match held {
                Ok(held) => return Ok((nodes, held)),
                Err(e) => last = Some(e),
            }
        }
    }
    let e = failed("make the partitions of", target);
    Err(match last {
        Some(cause) => e.because(cause),
        None => e,
    })
}

/// Writes the table, its first sector last, each piece after the one before it was read back. From the last on, firmware sees a system.
pub(super) fn write_table(prepared: &Prepared, table: &NewTable, sector: u32, paths: &Paths) -> Result<()> {
    let device = prepared.open_target(paths)?;
    let target = &prepared.plan.target;
    let io = Io::new(&device, &target.name);
    let (mbr, rest) = table.primary.split_at(usize::try_from(sector).unwrap_or(512));
    let (header, entries) = rest.split_at(usize::try_from(sector).unwrap_or(512));
    let sector = u64::from(sector);
    // Before them a board may have a loader.
    let partitions = part(mbr, BOOT_CODE..MBR).map_err(Error::internal)?;
    let pieces = [
        (table.backup_start, table.backup.as_slice()),
        (2 * sector, entries),
        (sector, header),
        (BOOT_CODE as u64, partitions),
    ];
    let mut buffer = Buffer::zeroed(0);
    for (offset, bytes) in pieces {
        io.write_any(bytes, offset)?;
        io.flush()?;
        io.drop_cache()?;
        if io.read_any(&mut buffer, offset, bytes.len() as u64)? != bytes {
            let name = target.name.display();
            let message =
                format!("{name} does not keep its new partition table: it differs from byte {offset} on");
            return Err(Error::new(Code::VerifyMismatch, message).object(name));
        }
    }
    if let Err(e) = device.reread_partitions(BUSY_TIMEOUT) {
        let name = target.name.display();
        tracing::warn!("the kernel does not read the new partition table of {name}: {e}");
    }
    Ok(())
}

/// Both places of a FAT label, read back.
pub(super) fn label_boot_partition(node: &Path, label: &str) -> Result<()> {
    let name = node.display();
    let failed = |what: &str| {
        Error::new(Code::EncryptionFailed, format!("cannot give {name} the label {label}: {what}"))
            .object(&name)
            .after_write()
    };
    let device =
        Device::open(node, Access::ExclusiveDisk).map_err(|e| failed("it cannot be opened").because(e))?;
    let io = Io::new(&device, node);
    let mut buffer = Buffer::zeroed(0);
    let mut read_at = |offset: u64, out: &mut [u8]| {
        let read = io.read_any(&mut buffer, offset, out.len() as u64);
        out.copy_from_slice(read.map_err(|e| std::io::Error::other(e.message()))?);
        Ok(())
    };
    let edits = fat_label(&mut read_at, label).map_err(|e| failed("it cannot be read").because(e))?;
    let edits = edits.ok_or_else(|| failed("it has no FAT file system with a label in its root folder"))?;
    for (offset, bytes) in &edits {
        io.write_any(bytes, *offset)?;
    }
    io.flush()?;
    io.drop_cache()?;
    for (offset, bytes) in &edits {
        if io.read_any(&mut buffer, *offset, bytes.len() as u64)? != bytes.as_slice() {
            return Err(failed("it does not keep it"));
        }
    }
    Ok(())
}

fn failed(what: &str, target: &Target) -> Error {
    let name = target.name.display();
    Error::new(Code::EncryptionFailed, format!("cannot {what} {name}")).object(name).after_write()
}
