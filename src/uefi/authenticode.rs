//! The digest by which the firmware knows a program (Microsoft: Windows Authenticode Portable Executable Signature Format, 2008; PE Format).

use sha2::{Digest as _, Sha256};

use super::Fields;

/// Its place is in the DOS header.
const PE_OFFSET: usize = 0x3c;
const SIGNATURE: &[u8] = b"PE\0\0";
const COFF_HEADER: usize = 20;
const SECTION_HEADER: usize = 40;

/// Of the optional header: its kind, and where its number of data directories is.
const PE32: (u16, usize) = (0x10b, 92);
const PE32_PLUS: (u16, usize) = (0x20b, 108);

/// In the optional header.
const SIZE_OF_HEADERS: usize = 60;
const CHECKSUM: usize = 64;

/// The directory of certificates: number, and bytes of each.
const SECURITY: usize = 4;
const DIRECTORY: usize = 8;

/// No program has more.
const MAX_SECTIONS: u16 = 256;

/// A program of UEFI, as far as it matters here.
#[derive(Debug, Clone)]
pub struct Program<'a> {
    /// SHA-256 of all that a signature covers.
    pub digest: [u8; 32],
    /// The table with its signatures; empty without.
    pub certificates: &'a [u8],
    /// Whether each tool finds the same digest: some of them pad other lengths.
    pub is_aligned: bool,
}

struct Layout {
    checksum: usize,
    /// The entry of the certificates.
    directory: Option<usize>,
    headers: usize,
    /// Offset and length in the file.
    sections: Vec<(usize, usize)>,
    certificates: (usize, usize),
}

impl Layout {
    fn of(file: &[u8]) -> Option<Layout> {
        let u16_at = |at: usize| Fields::of(file.get(at..)?).u16();
        let len_at = |at: usize| Fields::of(file.get(at..)?).len32();
        let pe = len_at(PE_OFFSET)?;
        if file.get(pe..pe.checked_add(4)?)? != SIGNATURE {
            return None;
        }
        let coff = pe + SIGNATURE.len();
        let sections = u16_at(coff + 2).filter(|n| *n <= MAX_SECTIONS)?;
        let optional_len = usize::from(u16_at(coff + 16)?);
        let optional = coff + COFF_HEADER;
        let kind = u16_at(optional)?;
        let (_, count_at) = [PE32, PE32_PLUS].into_iter().find(|(magic, _)| *magic == kind)?;
        let count = len_at(optional + count_at)?;
        let directory = optional + count_at + 4 + SECURITY * DIRECTORY;
        let has_directory = count > SECURITY && count_at + 4 + (SECURITY + 1) * DIRECTORY <= optional_len;
        let certificates = if has_directory { (len_at(directory)?, len_at(directory + 4)?) } else { (0, 0) };
        let table = optional + optional_len;
        let mut places = Vec::new();
        for n in 0..usize::from(sections) {
            let at = table + n * SECTION_HEADER;
            places.push((len_at(at + 20)?, len_at(at + 16)?));
        }
        Some(Layout {
            checksum: optional + CHECKSUM,
            directory: has_directory.then_some(directory),
            headers: len_at(optional + SIZE_OF_HEADERS)?,
            sections: places,
            certificates,
        })
    }
}

impl<'a> Program<'a> {
    /// `None` for a file that is no program of UEFI, or a damaged one.
    #[must_use]
    pub fn parse(file: &'a [u8]) -> Option<Program<'a>> {
        let mut layout = Layout::of(file)?;
        let mut hash = Sha256::new();
        // The headers without what a signature changes: checksum, and the place of the certificates.
        hash.update(file.get(..layout.checksum)?);
        let mut at = layout.checksum + 4;
        if let Some(directory) = layout.directory {
            hash.update(file.get(at..directory)?);
            at = directory + DIRECTORY;
        }
        hash.update(file.get(at..layout.headers)?);
        let mut hashed = layout.headers;
        layout.sections.retain(|(_, len)| *len > 0);
        layout.sections.sort_unstable();
        for (start, len) in layout.sections {
            hash.update(file.get(start..start.checked_add(len)?)?);
            hashed = hashed.checked_add(len)?;
        }
        // What follows the sections, without the certificates, which are last.
        let (start, len) = layout.certificates;
        let certificates = if len == 0 { &[][..] } else { file.get(start..start.checked_add(len)?)? };
        let end = file.len().checked_sub(len)?;
        if hashed < end {
            hash.update(file.get(hashed..end)?);
        }
        Some(Program {
            digest: hash.finalize().into(),
            certificates,
            is_aligned: file.len().is_multiple_of(8),
        })
    }
}
