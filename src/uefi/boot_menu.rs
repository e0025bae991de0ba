//! The firmware's boot menu: entries `Boot0000` to `BootFFFF`, and `BootOrder` (UEFI specification 2.10, 3.1.3 and 3.3; device paths 10.3.5.1
//! and 10.3.5.4).

use std::ops::Range;

use super::Fields;
use super::guid::Guid;
use super::variables::{Firmware, Variable};
use crate::error::Result;

/// Offered, and started in its turn.
const ACTIVE: u32 = 1;

const MEDIA: u8 = 4;
const HARD_DRIVE: u8 = 1;
const FILE_PATH: u8 = 4;
const END: [u8; 4] = [0x7f, 0xff, 4, 0];

/// Of a hard drive's node: the partition is in a GPT, and known by its GUID.
const GPT: u8 = 2;
const BY_GUID: u8 = 2;

const ORDER: Variable<'static> = Variable("BootOrder", Guid::GLOBAL);

/// A partition of a GPT, as the firmware finds it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GptPartition {
    pub number: u32,
    /// In blocks of the disk.
    pub blocks: Range<u64>,
    /// As the GPT has it.
    pub id: [u8; 16],
}

impl GptPartition {
    /// The partition that begins at this byte of a disk with blocks of `sector` bytes; `read_at` reads the disk. `None` if its GPT has none there.
    pub fn find(
        read_at: &mut dyn FnMut(u64, &mut [u8]) -> std::io::Result<()>,
        sector: u32,
        start: u64,
    ) -> std::io::Result<Option<GptPartition>> {
        let sector = u64::from(sector);
        let mut header = [0; 92];
        read_at(sector, &mut header)?;
        let place = |header: &[u8]| -> Option<(u64, u32, usize)> {
            let mut fields = Fields::of(header);
            fields.bytes(8).filter(|signature| *signature == b"EFI PART")?;
            fields.bytes(64)?;
            Some((fields.u64()?, fields.u32()?, fields.len32()?))
        };
        let Some((table, count, size)) = place(&header).filter(|(_, _, size)| (128..=4096).contains(size))
        else {
            return Ok(None);
        };
        let mut entry = vec![0; size];
        for n in 0..count.min(1024) {
            let at = table.saturating_mul(sector).saturating_add(u64::from(n).saturating_mul(size as u64));
            read_at(at, &mut entry)?;
            let mut fields = Fields::of(&entry);
            let mut found =
                || Some((fields.array::<16>()?, fields.array::<16>()?, fields.u64()?, fields.u64()?));
            if let Some((kind, id, first, last)) = found()
                && kind != [0; 16]
                && first.checked_mul(sector) == Some(start)
            {
                return Ok(Some(GptPartition { number: n + 1, blocks: first..last.saturating_add(1), id }));
            }
        }
        Ok(None)
    }
}

/// The entry of a program on a partition. `path` has `\` between its folders.
fn entry_of(name: &str, partition: &GptPartition, path: &str) -> Vec<u8> {
    let mut device = Vec::new();
    let mut node = |kind: u8, data: &[u8]| {
        device.extend([MEDIA, kind]);
        device.extend(u16::try_from(data.len() + 4).unwrap_or(u16::MAX).to_le_bytes());
        device.extend(data);
    };
    let len = partition.blocks.end.saturating_sub(partition.blocks.start);
    let numbers = [partition.blocks.start, len].map(u64::to_le_bytes).concat();
    node(
        HARD_DRIVE,
        &[&partition.number.to_le_bytes()[..], &numbers, &partition.id, &[GPT, BY_GUID]].concat(),
    );
    node(FILE_PATH, &utf16(path));
    device.extend(END);
    let len = u16::try_from(device.len()).unwrap_or(u16::MAX);
    [&ACTIVE.to_le_bytes()[..], &len.to_le_bytes(), &utf16(name), &device].concat()
}

/// With the zero at its end.
fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
}

fn name_of(entry: &[u8]) -> Option<String> {
    let mut fields = Fields::of(entry);
    // Attributes, and the length of what follows the name.
    fields.bytes(6)?;
    let mut name = Vec::new();
    loop {
        match fields.u16()? {
            0 => return Some(String::from_utf16_lossy(&name)),
            unit => name.push(unit),
        }
    }
}

/// What is to be changed.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    /// Of the entry, and whether it has to be written.
    number: u16,
    is_new: bool,
    order: Vec<u16>,
    doubles: Vec<u16>,
}

/// `entries`: all, by number. Entries with one of `names` are the board's own; one of them stays, or becomes `wanted`, and is first.
fn change(entries: &[(u16, Vec<u8>)], order: &[u16], names: &[&str], wanted: &[u8]) -> Option<Change> {
    let is_own = |entry: &[u8]| name_of(entry).is_some_and(|name| names.contains(&name.as_str()));
    let own: Vec<&(u16, Vec<u8>)> = entries.iter().filter(|(_, entry)| is_own(entry)).collect();
    let same = own.iter().find(|(_, entry)| entry == wanted);
    let free = || (0..=u16::MAX).find(|number| entries.iter().all(|(used, _)| used != number));
    let number = same.or(own.first()).map(|(number, _)| *number).or_else(free)?;
    let doubles: Vec<u16> = own.iter().map(|(number, _)| *number).filter(|other| *other != number).collect();
    let mut new_order = vec![number];
    for other in order {
        let exists = entries.iter().any(|(known, _)| known == other) && !doubles.contains(other);
        if exists && !new_order.contains(other) {
            new_order.push(*other);
        }
    }
    Some(Change { number, is_new: same.is_none(), order: new_order, doubles })
}

impl Firmware {
    /// Makes the firmware start `path` on `partition` first, by one entry with the first of `names`; other entries with one of these names are
    /// removed. Whenever the power goes, the order names no entry that is missing.
    pub fn start_first(&self, names: &[&str], partition: &GptPartition, path: &str) -> Result<()> {
        let mut entries = Vec::new();
        for name in self.names(Guid::GLOBAL)? {
            let digits = name.strip_prefix("Boot").filter(|digits| digits.len() == 4);
            let number = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
            if let Some(number) = number
                && let Some(contents) = self.read(Variable(&name, Guid::GLOBAL))?
            {
                entries.push((number, contents));
            }
        }
        let order = self.read(ORDER)?.unwrap_or_default();
        let numbers: Vec<u16> = order
            .chunks_exact(2)
            .filter_map(|pair| Some(u16::from_le_bytes(pair.try_into().ok()?)))
            .collect();
        let wanted = entry_of(names.first().copied().unwrap_or_default(), partition, path);
        let Some(change) = change(&entries, &numbers, names, &wanted) else { return Ok(()) };
        let name = |number: u16| format!("Boot{number:04X}");
        if change.is_new {
            self.replace(Variable(&name(change.number), Guid::GLOBAL), &wanted)?;
        }
        let new_order: Vec<u8> = change.order.iter().flat_map(|number| number.to_le_bytes()).collect();
        if new_order != order {
            self.replace(ORDER, &new_order)?;
        }
        change.doubles.iter().try_for_each(|number| self.remove(Variable(&name(*number), Guid::GLOBAL)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["balenaOS", "resinOS"];

    fn partition() -> GptPartition {
        GptPartition { number: 1, blocks: 2048..100_352, id: [7; 16] }
    }

    fn entry(name: &str, path: &str) -> Vec<u8> {
        entry_of(name, &partition(), path)
    }

    #[test]
    fn an_entry_has_the_form_of_the_specification() {
        let path = "\\EFI\\BOOT\\bootx64.efi";
        let found = entry("balenaOS", path);
        let units = |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_le_bytes).collect() };
        let expected = [
            &b"\x01\0\0\0\x5e\0"[..],
            &units("balenaOS\0"),
            b"\x04\x01\x2a\0\x01\0\0\0\0\x08\0\0\0\0\0\0\0\x80\x01\0\0\0\0\0",
            &[7; 16],
            b"\x02\x02\x04\x04\x30\0",
            &units(path),
            b"\0\0\x7f\xff\x04\0",
        ]
        .concat();
        assert_eq!(found, expected);
        assert_eq!(name_of(&found).as_deref(), Some("balenaOS"));
        assert_eq!(name_of(&found[..20]), None);
    }

    #[test]
    fn one_entry_is_left_and_is_first() {
        let wanted = entry("balenaOS", "\\new.efi");
        let other = |name: &str| entry(name, "\\old.efi");
        let changed =
            |entries: &[(u16, Vec<u8>)], order: &[u16]| change(entries, order, &NAMES, &wanted).unwrap();
        assert_eq!(
            changed(&[], &[]),
            Change { number: 0, is_new: true, order: vec![0], doubles: Vec::new() }
        );
        // A number that is free, even if the order still names it.
        let firmware = [(0, other("Setup")), (2, other("USB"))];
        assert_eq!(
            changed(&firmware, &[2, 1, 0, 2]),
            Change { number: 1, is_new: true, order: vec![1, 2, 0], doubles: Vec::new() }
        );
        // Of several, the one that fits stays.
        let several =
            [(0, other("resinOS")), (3, other("balenaOS")), (4, wanted.clone()), (7, other("balenaOS 2"))];
        assert_eq!(
            changed(&several, &[7, 0, 3]),
            Change { number: 4, is_new: false, order: vec![4, 7], doubles: vec![0, 3] }
        );
        // None fits: the first one is rewritten.
        assert_eq!(
            changed(&several[..2], &[3, 0]),
            Change { number: 0, is_new: true, order: vec![0], doubles: vec![3] }
        );
        let done = [(5, wanted.clone()), (6, other("USB"))];
        assert_eq!(
            changed(&done, &[5, 6]),
            Change { number: 5, is_new: false, order: vec![5, 6], doubles: Vec::new() }
        );
        let all: Vec<(u16, Vec<u8>)> = (0..=u16::MAX).map(|number| (number, Vec::new())).collect();
        assert_eq!(change(&all, &[], &NAMES, &wanted), None);
    }
}
