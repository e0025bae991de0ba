//! Reads a tar member by member, with bounded memory.
//!
//! The crate `tar` reads GNU long names and PAX headers of any length into memory: 71 KB of xz become gigabytes. This reader keeps one header
//! at a time. Where formats leave a choice it follows Go's `archive/tar`: the engine reads the same bytes with it.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

const BLOCK_BYTES: usize = 512;

/// In bytes: `PATH_MAX` of Linux without its final zero.
const MAX_NAME_BYTES: u64 = 4095;

/// Bytes of a PAX header: a name, and extended attributes, of which the kernel takes 64 KiB each. Go reads 1 MiB.
const MAX_PAX_BYTES: u64 = 256 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemberKind {
    File,
    Folder,
    Symlink,
    HardLink,
    /// A device, a FIFO, a sparse file, and extensions of single programs.
    Other,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: PathBuf,
    pub(super) kind: MemberKind,
    pub(super) target: PathBuf,
    pub(super) size: u64, // bytes
}

/// As a reader: the content of the last member.
pub(super) struct Tar<'a> {
    inner: &'a mut dyn Read,
    left: u64,
    padding: u64,
}

impl<'a> Tar<'a> {
    pub(super) fn new(inner: &'a mut dyn Read) -> Self {
        Tar { inner, left: 0, padding: 0 }
    }

    /// `None` at the end. Skips unread content of the member before.
    pub(super) fn next(&mut self) -> io::Result<Option<Member>> {
        let (mut name, mut target, mut pax) = (None, None, None);
        loop {
            self.skip()?;
            let Some(header) = self.header()? else {
                let is_complete = name.is_none() && target.is_none() && pax.is_none();
                return if is_complete { Ok(None) } else { Err(damaged("its last member is missing")) };
            };
            let size =
                number(header.field(SIZE)).ok_or_else(|| damaged("the size of a member is not a number"))?;
            self.content_of(size);
            match header.kind() {
                b'L' => name = Some(self.name()?),
                b'K' => target = Some(self.name()?),
                b'x' => pax = Some(self.records()?),
                // A global header applies to all members that follow; engines ignore it.
                b'g' => drop(self.records()?),
                kind => return self.member(&header, kind, name, target, pax.unwrap_or_default()).map(Some),
            }
        }
    }

    fn member(
        &mut self,
        header: &Header,
        kind: u8,
        name: Option<Vec<u8>>,
        target: Option<Vec<u8>>,
        pax: Records,
    ) -> io::Result<Member> {
        if let Some(size) = pax.size {
            self.content_of(size);
        }
        let name = pax.sparse_name.or(name).or(pax.name).unwrap_or_else(|| header.name());
        let kind = match kind {
            // Before the type for folders, they were files with a trailing slash.
            0 if name.ends_with(b"/") => MemberKind::Folder,
            0 | b'0' => MemberKind::File,
            b'1' => MemberKind::HardLink,
            b'2' => MemberKind::Symlink,
            b'5' => MemberKind::Folder,
            b'S' => {
                self.skip_sparse_map(header)?;
                MemberKind::Other
            }
            _ => MemberKind::Other,
        };
        // Links, devices, folders and FIFOs have no content, whatever their header says.
        if kind == MemberKind::Folder || matches!(header.kind(), b'1'..=b'6') {
            self.content_of(0);
        }
        let is_link = matches!(kind, MemberKind::HardLink | MemberKind::Symlink);
        let target = target.or(pax.target).unwrap_or_else(|| text(header.field(TARGET)));
        Ok(Member {
            name: path(name),
            kind,
            target: if is_link { path(target) } else { PathBuf::new() },
            size: self.left,
        })
    }

    fn content_of(&mut self, size: u64) {
        self.left = size;
        self.padding = size.wrapping_neg() % BLOCK_BYTES as u64;
    }

    fn skip(&mut self) -> io::Result<()> {
        for bytes in [std::mem::take(&mut self.left), std::mem::take(&mut self.padding)] {
            if io::copy(&mut (&mut self.inner).take(bytes), &mut io::sink())? != bytes {
                return Err(cut());
            }
        }
        Ok(())
    }

    fn header(&mut self) -> io::Result<Option<Header>> {
        let Some(header) = self.block()? else { return Ok(None) };
        if header.is_zero() {
            return match self.block()? {
                Some(second) if !second.is_zero() => {
                    Err(damaged("something follows the first block of its end"))
                }
                _ => Ok(None),
            };
        }
        if number(header.field(SUM)).is_none_or(|sum| !header.sums().contains(&sum)) {
            return Err(damaged("the checksum of a header does not match"));
        }
        Ok(Some(header))
    }

    fn block(&mut self) -> io::Result<Option<Header>> {
        let mut block = [0; BLOCK_BYTES];
        match super::read_up_to(self.inner, &mut block)? {
            0 => Ok(None),
            BLOCK_BYTES => Ok(Some(Header(block))),
            _ => Err(cut()),
        }
    }

    /// Skips the blocks that list the parts of a sparse file; they stand before the content and do not count in its size.
    fn skip_sparse_map(&mut self, header: &Header) -> io::Result<()> {
        let mut more = header.0.get(SPARSE_GOES_ON) == Some(&1);
        while more {
            let block = self.block()?.ok_or_else(cut)?;
            more = block.0.get(SPARSE_GOES_ON_AGAIN) == Some(&1);
        }
        Ok(())
    }

    fn name(&mut self) -> io::Result<Vec<u8>> {
        Ok(text(&self.whole(MAX_NAME_BYTES + 1, "a name")?))
    }

    fn records(&mut self) -> io::Result<Records> {
        Records::parse(&self.whole(MAX_PAX_BYTES, "a PAX header")?)
            .ok_or_else(|| damaged("a PAX header is not a list of records"))
    }

    fn whole(&mut self, most: u64, what: &str) -> io::Result<Vec<u8>> {
        if self.left > most {
            return Err(damaged(&format!("{what} in it has {} bytes, more than {most}", self.left)));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(self.left).unwrap_or(0));
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Read for Tar<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = (&mut self.inner).take(self.left).read(buf)?;
        self.left -= n as u64;
        if n == 0 && self.left > 0 && !buf.is_empty() {
            return Err(cut());
        }
        Ok(n)
    }
}

// Header fields: POSIX 1003.1, pax, "ustar Interchange Format"; for GNU, tar.h of GNU tar.
const TITLE: (usize, usize) = (0, 100);
const SIZE: (usize, usize) = (124, 12);
const SUM: (usize, usize) = (148, 8);
const KIND: usize = 156;
const TARGET: (usize, usize) = (157, 100);
const MAGIC: (usize, usize) = (257, 6);
const PREFIX: (usize, usize) = (345, 155);
const SPARSE_GOES_ON: usize = 482;
const SPARSE_GOES_ON_AGAIN: usize = 504;

struct Header([u8; BLOCK_BYTES]);

impl Header {
    fn field(&self, (at, len): (usize, usize)) -> &[u8] {
        self.0.get(at..at + len).unwrap_or_default()
    }

    fn is_zero(&self) -> bool {
        self.0.iter().all(|b| *b == 0)
    }

    fn kind(&self) -> u8 {
        self.0.get(KIND).copied().unwrap_or_default()
    }

    fn name(&self) -> Vec<u8> {
        let name = text(self.field(TITLE));
        // GNU tar has other data where POSIX has the folder of a long name.
        let folder = if self.field(MAGIC) == b"ustar\0" { text(self.field(PREFIX)) } else { Vec::new() };
        if folder.is_empty() { name } else { [folder, name].join(&b'/') }
    }

    /// The checksums of the bytes as unsigned and as signed numbers: some programs use signed ones. The checksum's own field counts as blanks.
    fn sums(&self) -> [u64; 2] {
        let at = |i: usize, b: u8| if (SUM.0..SUM.0 + SUM.1).contains(&i) { b' ' } else { b };
        let bytes = || self.0.iter().enumerate().map(|(i, b)| at(i, *b));
        let sum: u64 = bytes().map(u64::from).sum();
        let large = bytes().filter(|b| *b >= 0x80).count() as u64;
        [sum, sum.wrapping_sub(large * 0x100)]
    }
}

#[derive(Default)]
struct Records {
    name: Option<Vec<u8>>,
    /// Of a sparse file; the other name is for programs that cannot read one.
    sparse_name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
}

impl Records {
    /// Each record is `LENGTH KEY=VALUE` and a newline; the length covers the whole record.
    fn parse(mut rest: &[u8]) -> Option<Records> {
        let mut found = Records::default();
        while !rest.is_empty() {
            let blank = rest.iter().position(|b| *b == b' ')?;
            let len: usize = std::str::from_utf8(rest.get(..blank)?).ok()?.parse().ok()?;
            let (record, next) = rest.split_at_checked(len)?;
            rest = next;
            let record = record.get(blank + 1..)?.strip_suffix(b"\n")?;
            let equals = record.iter().position(|b| *b == b'=')?;
            let (key, value) = (record.get(..equals)?, record.get(equals + 1..)?);
            // An empty value cancels the record.
            let value = Some(value).filter(|v| !v.is_empty());
            match key {
                b"path" => found.name = name_of(value)?,
                b"GNU.sparse.name" => found.sparse_name = name_of(value)?,
                b"linkpath" => found.target = name_of(value)?,
                b"size" => {
                    found.size = match value {
                        Some(digits) => Some(in_range(std::str::from_utf8(digits).ok()?.parse().ok()?)?),
                        None => None,
                    }
                }
                _ => {}
            }
        }
        Some(found)
    }
}

fn name_of(value: Option<&[u8]>) -> Option<Option<Vec<u8>>> {
    let is_name = |v: &[u8]| v.len() as u64 <= MAX_NAME_BYTES && !v.contains(&0);
    value.is_none_or(is_name).then(|| value.map(<[u8]>::to_vec))
}

/// Octal digits between blanks and zeros; or, with the first bit set, a binary number.
fn number(field: &[u8]) -> Option<u64> {
    if let Some((first @ 0x80..0xc0, rest)) = field.split_first() {
        let mut bytes = std::iter::once(first & 0x3f).chain(rest.iter().copied());
        let value = bytes.try_fold(0u64, |n, b| n.checked_mul(0x100).map(|n| n | u64::from(b)))?;
        return in_range(value);
    }
    let is_filling = |b: &u8| *b == b' ' || *b == 0;
    let start = field.iter().position(|b| !is_filling(b)).unwrap_or(field.len());
    let end = field.iter().rposition(|b| !is_filling(b)).map_or(start, |i| i + 1);
    match field.get(start..end)? {
        [] => Some(0),
        digits => u64::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok(),
    }
}

/// Go uses signed numbers.
fn in_range(size: u64) -> Option<u64> {
    i64::try_from(size).is_ok().then_some(size)
}

fn text(bytes: &[u8]) -> Vec<u8> {
    bytes.split(|b| *b == 0).next().unwrap_or_default().to_vec()
}

fn path(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it ends too early")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt as _, symlink};
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn members(mut bytes: &[u8]) -> io::Result<Vec<(String, MemberKind, u64, String)>> {
        let mut tar = Tar::new(&mut bytes);
        let mut found = Vec::new();
        while let Some(member) = tar.next()? {
            let text = |path: &Path| path.to_str().unwrap().to_owned();
            found.push((text(&member.name), member.kind, member.size, text(&member.target)));
        }
        Ok(found)
    }

    fn run(argv: &[&str]) -> Vec<u8> {
        let output = Command::new(argv[0]).args(&argv[1..]).output().unwrap();
        assert!(output.status.success(), "{argv:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn tree(long: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at(long)).unwrap();
        fs::write(at("file"), vec![7; 1000]).unwrap();
        fs::write(at(long).join("x"), b"x").unwrap();
        fs::hard_link(at("file"), at("hard")).unwrap();
        symlink(long, at("soft")).unwrap();
        // More pieces than one header can list.
        let sparse = fs::File::create(at("sparse")).unwrap();
        (0..40).for_each(|i| sparse.write_all_at(b"data", i << 16).unwrap());
        dir
    }

    #[test]
    fn every_format_of_gnu_tar_is_read() {
        let long = vec!["n".repeat(60); 4].join("/");
        for (format, long) in
            [("v7", "n"), ("ustar", "n"), ("oldgnu", &long), ("gnu", &long), ("posix", &long)]
        {
            let dir = tree(long);
            let folder = dir.path().to_str().unwrap();
            let format = format!("--format={format}");
            let tar = run(&["tar", &format, "--sort=name", "-C", folder, "-c", "."]);
            let found = members(&tar).unwrap();
            let one = |name: &str| found.iter().find(|m| m.0 == name).unwrap();
            assert_eq!(one("./file"), &("./file".into(), MemberKind::File, 1000, String::new()), "{format}");
            assert_eq!(
                one("./hard"),
                &("./hard".into(), MemberKind::HardLink, 0, "./file".into()),
                "{format}"
            );
            assert_eq!(
                one("./soft"),
                &("./soft".into(), MemberKind::Symlink, 0, long.to_owned()),
                "{format}"
            );
            let name = format!("./{long}/x");
            assert_eq!(one(&name), &(name.clone(), MemberKind::File, 1, String::new()), "{format}");
            assert_eq!(one("./sparse").2, (39 << 16) + 4, "{format}");
            assert_eq!(
                found.iter().filter(|m| m.1 == MemberKind::Folder).count(),
                if long == "n" { 2 } else { 5 }
            );
        }
    }

    #[test]
    fn sparse_files_are_read_by_their_names() {
        let dir = tree("n");
        let folder = dir.path().to_str().unwrap();
        for format in ["--format=gnu", "--format=posix", "--sparse-version=0.0", "--sparse-version=0.1"] {
            let tar = run(&["tar", format, "-S", "--sort=name", "-C", folder, "-c", "."]);
            let found = members(&tar).unwrap();
            let names: Vec<_> = found.iter().map(|m| m.0.as_str()).collect();
            assert_eq!(names, ["./", "./file", "./hard", "./n/", "./n/x", "./soft", "./sparse"], "{format}");
            assert!((40 * 512..60 << 12).contains(&found[6].2), "{format}: {:?}", found[6]);
        }
    }

    #[test]
    fn what_is_damaged_or_cut_is_noticed() {
        let dir = tree(&vec!["n".repeat(60); 4].join("/"));
        let folder = dir.path().to_str().unwrap();
        for format in ["--format=gnu", "--format=posix"] {
            let tar =
                run(&["tar", format, "-b1", "-C", folder, "-c", "hard", "soft", "n".repeat(60).as_str()]);
            let whole = members(&tar).unwrap();
            for cut in (1..tar.len() - 1024).step_by(97) {
                let found = members(&tar[..cut]);
                assert!(found.is_err() || found.is_ok_and(|f| f.len() < whole.len()), "{cut}");
            }
            for at in 0..512 {
                let mut damaged = tar.clone();
                damaged[at] ^= 1;
                assert!(members(&damaged).is_err(), "byte {at}");
            }
        }
        let mut end = vec![0; 1024];
        assert!(members(&end).unwrap().is_empty() && members(&end[..512]).unwrap().is_empty());
        end[600] = 1;
        assert!(members(&end).is_err());
    }

    #[test]
    fn numbers() {
        assert_eq!(number(b"00000001750\0"), Some(1000));
        assert_eq!(number(b"   1750 \0\0\0\0"), Some(1000));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"1x"), None);
        assert_eq!(number(b"\x80\0\0\0\0\0\0\0\0\0\x01\x02"), Some(0x102));
        assert_eq!(number(&[0xff; 12]), None);
        assert_eq!(number(b"\x80\0\0\0\xff\0\0\0\0\0\0\0"), None);
    }

    #[test]
    fn records_are_exact() {
        let parse = |text: &[u8]| Records::parse(text).map(|r| (r.name, r.target, r.size));
        let name = |text: &str| Some(text.as_bytes().to_vec());
        assert_eq!(parse(b""), Some((None, None, None)));
        assert_eq!(parse(b"10 path=x\n13 linkpath=\n9 size=8\n"), Some((name("x"), None, Some(8))));
        assert_eq!(parse(b"10 path=x\n8 path=\n"), Some((None, None, None)));
        for bad in [
            &b"10 path=x"[..],
            b"11 path=x\n",
            b"8 path=x\n",
            b"path=x\n",
            b"8 pathx\n",
            b"10 size=x\n",
            b"28 size=9223372036854775808\n",
            b"-1 path=x\n",
            b"11 path=x\0\n",
            b"0 path=x\n",
        ] {
            assert_eq!(parse(bad), None, "{}", String::from_utf8_lossy(bad));
        }
        let long = format!("{} path={}\n", 4096 + 11, "x".repeat(4096));
        assert_eq!(parse(long.as_bytes()), None);
    }
}
