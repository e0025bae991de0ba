//! Where each partition of an encrypted disk begins and ends.
//!
//! The numbers are those of `resin-init-flasher` in meta-balena v8.0.2: `get_part_size_by_number` rounds sizes up to `PART_SIZE_ALIGN`. That
//! script sorts the numbers of the image's partitions as text to find the first one; here the smallest start decides.

use std::ops::Range;
use std::path::Path;

use serde::Serialize;

use crate::disk::partition::create::{self, Kind, NewPartition, NewTable};
use crate::disk::partition::{Partition, Table, TableKind};
use crate::disk::select::Target;
use crate::error::{Code, Error, Result};
use crate::image::BOOT_LABEL;
use crate::slot::Slot;

/// `PART_SIZE_ALIGN`
const SIZE_ALIGNMENT: u64 = 4 << 20;

/// `LUKS_HEADER_SIZE`
pub(super) const LUKS_HEADER: u64 = 16 << 20;

/// The largest sector of a LUKS device, the largest block of a disk that can get a table, and the unit in which parts of an image are written.
const PART_ALIGNMENT: u64 = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// In order of number and of place.
    pub partitions: Vec<Part>,
    #[serde(skip)]
    pub sector: u32,
    #[serde(skip)]
    pub disk: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Signed boot files name partitions by number: it never changes.
    pub number: u32,
    pub name: String,
    pub start: u64,
    pub size: u64,
    pub encrypted: bool,
    /// The bytes of the image for this partition. `None`: it gets a new file system.
    #[serde(skip)]
    pub image: Option<Range<u64>>,
}

impl Part {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }
}

impl Layout {
    /// The layout for `image`, whose table is `table`, on `target`. Partition 1 has no name until [`Layout::named`].
    pub fn new(image: &Path, table: &Table, target: &Target, luks: bool) -> Result<Layout> {
        let unfit = |why: String| unfit(image, &why);
        let source = |label| source(table, label).map_err(unfit);
        let boot = source(BOOT_LABEL)?;
        let mut encrypted = vec![(BOOT_LABEL, boot, None)];
        for label in [Slot::A.label(), Slot::B.label(), "resin-state", "resin-data"] {
            let found = source(label)?;
            encrypted.push((label, found, Some(bytes_of(found))));
        }
        let copied = encrypted.iter().filter(|all| all.2.is_some()).map(|(_, found, _)| found.start);
        let first = copied.min().ok_or_else(|| Error::internal("no partition is copied"))?;

        let mut partitions = vec![Part {
            number: 1,
            name: String::new(),
            start: boot.start,
            size: rounded(boot.size),
            encrypted: false,
            image: Some(bytes_of(boot)),
        }];
        let header = if luks { LUKS_HEADER } else { 0 };
        let mut start = first;
        for ((label, found, bytes), number) in encrypted.into_iter().zip(2..) {
            let size = rounded(found.size).saturating_add(header);
            let name = label.to_owned();
            let part = Part { number, name, start, size, encrypted: true, image: bytes };
            start = part.end();
            partitions.push(part);
        }
        let layout = Layout { partitions, sector: target.block_size, disk: target.size };
        layout.check(image, target, first)?;
        Ok(layout)
    }

    fn check(&self, image: &Path, target: &Target, first_encrypted: u64) -> Result<()> {
        let usable =
            create::usable(self.disk, self.sector).map_err(|refusal| unfit(image, &refusal.to_string()))?;
        if let Some(boot) = self.partitions.first() {
            let (start, end, table) = (boot.start, boot.end(), usable.start);
            if start < table {
                let why =
                    format!("would begin at byte {start}, inside the new table, which ends at byte {table}");
                return Err(unfit(image, &format!("partition 1 ({BOOT_LABEL}) {why}")));
            }
            if end > first_encrypted {
                let why = format!(
                    "would end at byte {end}, after the start of partition 2 at byte {first_encrypted}"
                );
                return Err(unfit(image, &format!("partition 1 ({BOOT_LABEL}, rounded up to 4 MiB) {why}")));
            }
        }
        let end = self.partitions.last().map_or(0, Part::end);
        if end > usable.end {
            let backup = usable.start.saturating_sub(u64::from(self.sector));
            let (image, name) = (image.display(), target.name.display());
            let message = format!(
                "an encrypted installation of image {image} needs {} bytes, and {name} has {}",
                end.saturating_add(backup),
                self.disk
            );
            return Err(Error::new(Code::TargetTooSmall, message).object(name));
        }
        // Sizes are the image's, rounded up: this cannot happen.
        let too_long = |part: &&Part| part.image.as_ref().is_some_and(|b| b.end - b.start > part.size);
        if let Some(part) = self.partitions.iter().find(too_long) {
            return Err(unfit(image, &format!("partition {} is smaller than in the image", part.number)));
        }
        Ok(())
    }

    /// Gives partition 1 the label of its file system as its name.
    #[must_use]
    pub fn named(mut self, label: &str) -> Layout {
        if let Some(boot) = self.partitions.first_mut() {
            label.clone_into(&mut boot.name);
        }
        self
    }

    /// The partition table as [`crate::disk::partition`] will read it from the disk.
    #[must_use]
    pub(in crate::install) fn as_table(&self) -> Table {
        // No layout is made for a disk that cannot have them.
        let areas = create::areas(self.disk, self.sector).map(Vec::from).unwrap_or_default();
        Table {
            kind: TableKind::Gpt,
            sector_size: self.sector,
            partitions: self.partitions.iter().map(Part::as_partition).collect(),
            backup: areas.last().cloned(),
            areas,
        }
    }

    /// The partition table, with random identifiers. Refused if partition 1 has no name, or a name that is too long.
    pub fn table(&self) -> Result<NewTable> {
        let failed = |why: String| {
            let message = format!("cannot make the partition table of an encrypted disk: {why}");
            Error::new(Code::ImageLayoutUnfit, message)
        };
        if let Some(part) = self.partitions.iter().find(|part| part.name.is_empty()) {
            // The initramfs finds it by name.
            return Err(failed(format!("partition {} has no name", part.number)));
        }
        let partitions = self.partitions.iter().map(Part::entry).collect::<Result<Vec<_>>>()?;
        create::gpt(self.disk, self.sector, identifier()?, &partitions)
            .map_err(|refusal| failed(refusal.to_string()))
    }
}

impl Part {
    fn as_partition(&self) -> Partition {
        let content = if self.encrypted { "encrypted data" } else { "FAT" };
        Partition {
            index: self.number,
            start: self.start,
            size: self.size,
            name: Some(self.name.clone()).filter(|name| !name.is_empty()),
            label: None,
            file_system: Some(content),
        }
    }

    fn entry(&self) -> Result<NewPartition> {
        let kind = if self.encrypted { Kind::LinuxData } else { Kind::EfiSystem };
        let Part { number, name, start, size, .. } = self.clone();
        Ok(NewPartition { number, start, size, kind, name, id: identifier()? })
    }
}

fn identifier() -> Result<[u8; 16]> {
    create::random_guid().map_err(|e| {
        Error::new(Code::Io, "cannot get a random identifier for the new partition table").because(e)
    })
}

fn unfit(image: &Path, why: &str) -> Error {
    let image = image.display();
    Error::new(Code::ImageLayoutUnfit, format!("image {image} cannot be installed encrypted: {why}"))
        .object(image)
}

/// The only partition of the image with this file-system label. It is aligned.
fn source<'a>(table: &'a Table, label: &str) -> Result<&'a Partition, String> {
    let labelled: Vec<&Partition> =
        table.partitions.iter().filter(|p| p.label.as_deref() == Some(label)).collect();
    let partition = match *labelled {
        [] => return Err(format!("it has no partition labelled {label}")),
        [one] => one,
        _ => {
            let numbers: Vec<String> = labelled.iter().map(|p| p.index.to_string()).collect();
            let numbers = numbers.join(" and ");
            return Err(format!("it has several partitions labelled {label}: numbers {numbers}"));
        }
    };
    for (what, bytes) in [("start", partition.start), ("size", partition.size)] {
        if !bytes.is_multiple_of(PART_ALIGNMENT) {
            let index = partition.index;
            return Err(format!(
                "the {what} of its partition {index} ({label}), {bytes} bytes, is not a multiple of {PART_ALIGNMENT}"
            ));
        }
    }
    Ok(partition)
}

fn bytes_of(partition: &Partition) -> Range<u64> {
    partition.start..partition.start.saturating_add(partition.size)
}

/// A size that cannot be rounded up fits no disk.
fn rounded(size: u64) -> u64 {
    size.checked_next_multiple_of(SIZE_ALIGNMENT).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::partition;
    use crate::disk::select::TargetKind;
    use std::path::PathBuf;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const LABELS: [&str; 5] = ["resin-boot", "resin-rootA", "resin-rootB", "resin-state", "resin-data"];

    fn image_partition(index: u32, label: &str, start: u64, size: u64) -> Partition {
        Partition { index, start, size, name: None, label: Some(label.into()), file_system: None }
    }

    fn table(kind: TableKind, indices: [u32; 5], places: [(u64, u64); 5]) -> Table {
        let partitions = indices
            .into_iter()
            .zip(LABELS)
            .zip(places)
            .map(|((index, label), (start, size))| image_partition(index, label, start, size))
            .collect();
        Table { kind, sector_size: 512, partitions, backup: None, areas: Vec::new() }
    }

    /// Root B and data are not multiples of 4 MiB.
    fn gpt_image() -> Table {
        let places = [(4, 40 * MIB), (44, 300 * MIB), (344, 302 * MIB), (648, 20 * MIB), (668, 191 * MIB)];
        table(TableKind::Gpt, [1, 2, 3, 4, 5], places.map(|(start, size)| (start * MIB, size)))
    }

    /// Logical partitions with a gap of 4 MiB in front, and a boot partition that is not a multiple of 4 MiB.
    fn mbr_image() -> Table {
        let places = [(8, 38 * MIB), (48, 300 * MIB), (348, 300 * MIB), (652, 20 * MIB), (676, 192 * MIB)];
        table(TableKind::Mbr, [1, 2, 3, 5, 6], places.map(|(start, size)| (start * MIB, size)))
    }

    fn target(size: u64, block_size: u32) -> Target {
        Target {
            name: PathBuf::from("/dev/sda"),
            node: PathBuf::from("/dev/sda"),
            kind: TargetKind::Block,
            dev: None,
            size,
            block_size,
            by_id: None,
            model: None,
            serial: None,
        }
    }

    fn layout(table: &Table, luks: bool) -> Result<Layout> {
        Layout::new(Path::new("/opt/os.img"), table, &target(8 << 30, 512), luks)
    }

    /// Number, name, start, size and the image's bytes, in MiB.
    type Row<'a> = (u32, &'a str, u64, u64, Option<Range<u64>>);

    fn rows(layout: &Layout) -> Vec<Row<'_>> {
        let mib = |bytes: u64| {
            assert!(bytes.is_multiple_of(MIB));
            bytes / MIB
        };
        let image = |p: &Part| p.image.as_ref().map(|bytes| mib(bytes.start)..mib(bytes.end));
        let parts = layout.partitions.iter();
        parts.map(|p| (p.number, p.name.as_str(), mib(p.start), mib(p.size), image(p))).collect()
    }

    fn assert_refused(table: &Table, words: &[&str]) {
        let error = layout(table, true).unwrap_err();
        assert_eq!(error.code(), Code::ImageLayoutUnfit, "{error}");
        assert_eq!(error.subject(), Some("/opt/os.img"));
        for word in words.iter().chain(&["/opt/os.img"]) {
            assert!(error.message().contains(word), "`{word}` is not in: {error}");
        }
    }

    #[test]
    fn luks_on_a_gpt_image() {
        let layout = layout(&gpt_image(), true).unwrap();
        assert_eq!(
            rows(&layout),
            [
                (1, "", 4, 40, Some(4..44)),
                (2, "resin-boot", 44, 56, None),
                (3, "resin-rootA", 100, 316, Some(44..344)),
                (4, "resin-rootB", 416, 320, Some(344..646)),
                (5, "resin-state", 736, 36, Some(648..668)),
                (6, "resin-data", 772, 208, Some(668..859)),
            ]
        );
        let encrypted: Vec<bool> = layout.partitions.iter().map(|p| p.encrypted).collect();
        assert_eq!(encrypted, [false, true, true, true, true, true]);
        assert_eq!((layout.sector, layout.disk), (512, 8 << 30));
    }

    #[test]
    fn plain_dm_crypt_on_an_mbr_image_with_logical_partitions() {
        assert_eq!(
            rows(&layout(&mbr_image(), false).unwrap()),
            [
                (1, "", 8, 40, Some(8..46)),
                (2, "resin-boot", 48, 40, None),
                (3, "resin-rootA", 88, 300, Some(48..348)),
                (4, "resin-rootB", 388, 300, Some(348..648)),
                (5, "resin-state", 688, 20, Some(652..672)),
                (6, "resin-data", 708, 192, Some(676..868)),
            ]
        );
    }

    #[test]
    fn the_methods_differ_by_the_headers_only() {
        for table in [gpt_image(), mbr_image()] {
            let (plain, luks) = (layout(&table, false).unwrap(), layout(&table, true).unwrap());
            for (p, l) in plain.partitions.iter().zip(&luks.partitions) {
                let headers = u64::from(l.number).saturating_sub(2) * 16 * MIB;
                assert_eq!(l.start - p.start, headers);
                assert_eq!(l.size - p.size, if l.encrypted { 16 * MIB } else { 0 });
                assert_eq!(l.image, p.image);
            }
        }
    }

    #[test]
    fn the_smallest_start_counts_and_not_the_smallest_number() {
        let mut table = gpt_image();
        // As text, 10 comes before 2.
        for (p, index) in table.partitions.iter_mut().zip([12, 2, 3, 11, 10]) {
            p.index = index;
        }
        table.partitions[2].start = 44 * MIB;
        table.partitions[1].start = 346 * MIB;
        table.partitions.reverse();
        let layout = layout(&table, false).unwrap();
        let expected = [(2, "resin-boot", 44, 40, None), (3, "resin-rootA", 84, 300, Some(346..646))];
        assert_eq!(rows(&layout)[1..3], expected);
    }

    #[test]
    fn each_partition_must_be_there_once() {
        for (at, label) in LABELS.iter().enumerate() {
            let mut table = gpt_image();
            table.partitions[at].label = None;
            assert_refused(&table, &[&format!("no partition labelled {label}")]);
            let mut table = gpt_image();
            table.partitions.push(image_partition(9, label, 900 * MIB, MIB));
            let (first, words) = (at + 1, format!("several partitions labelled {label}: numbers"));
            assert_refused(&table, &[&words, &format!("{first} and 9")]);
        }
    }

    #[test]
    fn the_boot_partition_must_end_before_the_encrypted_ones() {
        let mut table = gpt_image();
        table.partitions[0].size = 40 * MIB + 4 * KIB;
        let (end, start) = ((48 * MIB).to_string(), (44 * MIB).to_string());
        assert_refused(&table, &["partition 1", "partition 2", &end, &start]);
        // The boot partition comes last in the image.
        table.partitions[0] = image_partition(1, "resin-boot", 900 * MIB, 40 * MIB);
        assert_refused(&table, &["partition 1", &(940 * MIB).to_string(), &start]);
    }

    #[test]
    fn the_boot_partition_must_begin_after_the_table() {
        let mut table = gpt_image();
        table.partitions[0].start = 16 * KIB;
        table.partitions[0].size = 4 * MIB;
        assert_refused(&table, &["begin at byte 16384", "ends at byte 17408"]);
        table.partitions[0].start = 20 * KIB;
        assert_eq!(layout(&table, true).unwrap().partitions[0].start, 20 * KIB);
        let error = Layout::new(Path::new("i"), &table, &target(8 << 30, 4096), true).unwrap_err();
        assert!(error.message().contains("ends at byte 24576"), "{error}");
    }

    #[test]
    fn places_in_the_image_must_be_aligned() {
        for (at, label) in LABELS.iter().enumerate() {
            let named = format!("partition {} ({label})", at + 1);
            let mut table = gpt_image();
            table.partitions[at].size -= 512;
            let size = table.partitions[at].size.to_string();
            assert_refused(&table, &[&named, "the size of", &size, "a multiple of 4096"]);
            let mut table = gpt_image();
            table.partitions[at].start += 2048;
            let start = table.partitions[at].start.to_string();
            assert_refused(&table, &[&named, "the start of", &start, "a multiple of 4096"]);
        }
    }

    #[test]
    fn blocks_of_another_size_are_refused() {
        let target = target(8 << 30, 1024);
        let error = Layout::new(Path::new("i"), &gpt_image(), &target, true).unwrap_err();
        assert_eq!(error.code(), Code::ImageLayoutUnfit);
        assert!(error.message().contains("sectors of 1024 bytes"), "{error}");
    }

    #[test]
    fn the_backup_of_the_table_must_fit_too() {
        for (block_size, backup) in [(512, 33 * 512), (4096, 5 * 4096)] {
            let needed = 980 * MIB + backup;
            let on = |size| Layout::new(Path::new("i"), &gpt_image(), &target(size, block_size), true);
            assert!(on(needed).unwrap().named("balena-efi").table().is_ok());
            for size in [needed - 1, needed - 512, 4096, 0] {
                let error = on(size).unwrap_err();
                assert_eq!(error.code(), Code::TargetTooSmall);
                assert_eq!(error.subject(), Some("/dev/sda"), "{error}");
                assert!(error.message().contains(&format!("needs {needed} bytes")), "{error}");
                assert!(error.message().contains(&format!("has {size}")), "{error}");
            }
        }
    }

    #[test]
    fn sizes_without_end_are_refused() {
        let mut table = gpt_image();
        for p in &mut table.partitions[1..] {
            p.size = u64::MAX - 4095;
        }
        assert_eq!(layout(&table, true).unwrap_err().code(), Code::TargetTooSmall);
    }

    #[test]
    fn the_table_reads_back_as_the_layout() {
        let named = layout(&mbr_image(), true).unwrap().named("balena-rpi");
        let new = named.table().unwrap();
        let mut read_at = |offset: u64, buf: &mut [u8]| {
            for (at, byte) in (offset..).zip(buf) {
                let of = |bytes: &[u8], start: u64| {
                    let at = usize::try_from(at.checked_sub(start)?).unwrap();
                    bytes.get(at).copied()
                };
                *byte = of(&new.primary, 0).or_else(|| of(&new.backup, new.backup_start)).unwrap_or(0);
            }
            Ok(())
        };
        let analysis = partition::analyse(&mut read_at, Some(named.disk)).ok().unwrap();
        assert!(analysis.complete);
        let mut expected = named.as_table();
        for p in &mut expected.partitions {
            // Nothing is in the partitions yet.
            assert!(p.file_system.take().is_some());
        }
        assert_eq!(analysis.table, expected);
        assert_ne!(named.table().unwrap(), new, "the identifiers are random");
    }

    #[test]
    fn no_table_without_a_name_that_fits() {
        let unnamed = layout(&gpt_image(), true).unwrap();
        let refusal = |layout: &Layout| {
            let error = layout.table().unwrap_err();
            assert_eq!(error.code(), Code::ImageLayoutUnfit);
            error.message()
        };
        assert!(refusal(&unnamed).contains("partition 1 has no name"));
        assert!(refusal(&unnamed.named(&"x".repeat(37))).contains("at most 36"));
    }

    #[test]
    fn the_serialised_form_has_places_and_names() {
        let layout = layout(&gpt_image(), true).unwrap().named("balena-efi");
        let json = serde_json::to_value(&layout).unwrap();
        let first = r#"{"number":1,"name":"balena-efi","start":4194304,"size":41943040,"encrypted":false}"#;
        assert_eq!(json["partitions"][0].to_string(), first);
        assert_eq!(json.as_object().unwrap().len(), 1);
    }
}
