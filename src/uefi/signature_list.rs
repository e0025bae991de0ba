//! `EFI_SIGNATURE_LIST`: the hashes and certificates in `PK`, `KEK`, `db` and `dbx` (UEFI specification 2.10, 32.4.1).

use super::{Fields, Guid};

/// The type, three sizes.
const HEADER: usize = 28;

/// Before each hash or certificate: who added it.
const OWNER: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Of its list.
    pub kind: [u8; 16],
    /// Owner, then hash or certificate.
    pub bytes: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Without its owner.
    #[must_use]
    pub fn data(&self) -> &'a [u8] {
        self.bytes.get(OWNER..).unwrap_or_default()
    }
}

struct List<'a> {
    kind: [u8; 16],
    /// With the header.
    head: &'a [u8],
    entry_len: usize,
    entries: Vec<&'a [u8]>,
}

fn lists(bytes: &[u8]) -> Result<Vec<List<'_>>, &'static str> {
    let mut rest = Fields::of(bytes);
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (kind, len, header_len, entry_len) =
            sizes(rest.clone()).ok_or("a list is shorter than its header")?;
        let list = rest.bytes(len).ok_or("a list is longer than what holds it")?;
        let start = HEADER.checked_add(header_len).filter(|start| *start <= len);
        let (head, entries) =
            start.and_then(|s| list.split_at_checked(s)).ok_or("a list is shorter than its header")?;
        if entry_len <= OWNER || !entries.len().is_multiple_of(entry_len) {
            return Err("the entries of a list do not have the length that it names");
        }
        found.push(List { kind, head, entry_len, entries: entries.chunks_exact(entry_len).collect() });
    }
    Ok(found)
}

/// Type, then the lengths of the list, of a further header, and of each entry.
fn sizes(mut header: Fields<'_>) -> Option<([u8; 16], usize, usize, usize)> {
    Some((header.array()?, header.len32()?, header.len32()?, header.len32()?))
}

/// All entries of the lists, which must fill `bytes`. No bytes are no lists.
pub fn entries(bytes: &[u8]) -> Result<Vec<Entry<'_>>, &'static str> {
    let mut all = Vec::new();
    for list in lists(bytes)? {
        let kind = list.kind;
        all.extend(list.entries.iter().map(|bytes| Entry { kind, bytes }));
    }
    Ok(all)
}

/// What a variable may have contained before appends: all of it, then without its last list, and so on to nothing.
#[must_use]
pub fn beginnings(bytes: &[u8]) -> Vec<&[u8]> {
    let lens = lists(bytes)
        .unwrap_or_default()
        .into_iter()
        .map(|list| list.head.len() + list.entries.len() * list.entry_len);
    let ends = lens.rev().scan(bytes.len(), |end, len| {
        *end = end.saturating_sub(len);
        Some(*end)
    });
    [bytes.len()].into_iter().chain(ends).filter_map(|end| bytes.get(..end)).collect()
}

/// What a variable contains after an append: the old lists, then of the new ones those entries that the old ones lack. So does EDK2
/// (`FilterSignatureList` in `SecurityPkg`/`MdeModulePkg`, `AuthVariableLib/AuthService.c`), and so did the firmware of the test board.
pub fn append(old: &[u8], new: &[u8]) -> Result<Vec<u8>, &'static str> {
    let before = lists(old)?;
    let mut out = old.to_vec();
    for list in lists(new)? {
        let is_new = |entry: &&&[u8]| {
            let same = before.iter().filter(|b| b.kind == list.kind && b.entry_len == list.entry_len);
            !same.flat_map(|b| &b.entries).any(|b| b == *entry)
        };
        let kept: Vec<&&[u8]> = list.entries.iter().filter(is_new).collect();
        if kept.is_empty() {
            continue;
        }
        let len = list.head.len() + kept.len() * list.entry_len;
        let mut head = list.head.to_vec();
        let len = u32::try_from(len).map_err(|_| "a list is too long")?;
        if let Some(place) = head.get_mut(16..20) {
            place.copy_from_slice(&len.to_le_bytes());
        }
        out.extend(head);
        kept.into_iter().for_each(|entry| out.extend(*entry));
    }
    Ok(out)
}

/// A list of SHA-256 hashes, one entry a hash.
#[must_use]
pub fn of_hashes(hashes: &[[u8; 32]], owner: Guid) -> Vec<u8> {
    let mut out = Vec::new();
    // A list each, as the tools of balenaOS make them.
    for hash in hashes {
        let entry_len = u32::try_from(OWNER + hash.len()).unwrap_or(0);
        let len = u32::try_from(HEADER).unwrap_or(0) + entry_len;
        out.extend(Guid::SHA256.bytes());
        [len, 0, entry_len].iter().for_each(|n| out.extend(n.to_le_bytes()));
        out.extend(owner.bytes());
        out.extend(hash);
    }
    out
}
