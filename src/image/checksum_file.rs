//! `.sha256` files as `sha256sum` writes them, and the BSD style of `sha256sum --tag`.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::image::digest::Digest256;

/// Where there is only one line, its file name does not matter: images are renamed.
pub(super) fn find(bytes: &[u8], name: &OsStr) -> Result<Digest256, String> {
    let mut lines = Vec::new();
    for (raw, number) in bytes.split(|b| *b == b'\n').zip(1usize..) {
        let line = raw.strip_suffix(b"\r").unwrap_or(raw);
        if line.iter().all(u8::is_ascii_whitespace) || line.starts_with(b"#") {
            continue;
        }
        lines.push(parse(line).ok_or_else(|| format!("line {number} is not a SHA-256 checksum line"))?);
    }
    match lines.as_slice() {
        [] => Err("it has no checksum".into()),
        [(digest, _)] => Ok(*digest),
        several => {
            let mut of_name = several.iter().filter(|(_, file)| base_name(file) == name.as_bytes());
            let (digest, _) =
                of_name.next().ok_or_else(|| format!("none of its lines is for {}", name.display()))?;
            if of_name.any(|(other, _)| other != digest) {
                return Err(format!("it has different checksums for {}", name.display()));
            }
            Ok(*digest)
        }
    }
}

fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

fn parse(line: &[u8]) -> Option<(Digest256, Cow<'_, [u8]>)> {
    // A backslash at the start says that the name has escapes.
    let (line, escaped) = line.strip_prefix(b"\\").map_or((line, false), |rest| (rest, true));
    let name = |raw| if escaped { Cow::Owned(unescape(raw)) } else { Cow::Borrowed(raw) };
    if let Some(rest) = line.strip_prefix(b"SHA256 (") {
        let end = rest.windows(4).rposition(|w| w == b") = ")?;
        let (file, digest) = (rest.get(..end)?, rest.get(end + 4..)?);
        return Some((hex(digest.trim_ascii_end())?, name(file)));
    }
    let digest = hex(line.get(..64)?)?;
    match line.get(64..)? {
        [] => Some((digest, Cow::Borrowed(b""))),
        blank if blank.iter().all(u8::is_ascii_whitespace) => Some((digest, Cow::Borrowed(b""))),
        // Text mode, binary mode.
        [b' ', b' ' | b'*', file @ ..] => Some((digest, name(file))),
        [b' ', file @ ..] => Some((digest, name(file))),
        _ => None,
    }
}

fn hex(digits: &[u8]) -> Option<Digest256> {
    Digest256::from_hex(std::str::from_utf8(digits).ok()?)
}

fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => match bytes.next() {
                Some(b'n') => out.push(b'\n'),
                Some(b'r') => out.push(b'\r'),
                Some(other) => out.push(other),
                None => {}
            },
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(text: &str, name: &str) -> Result<Digest256, String> {
        find(text.as_bytes(), OsStr::new(name))
    }

    #[test]
    fn forms_of_lines() {
        let a = Digest256::of(b"a");
        let b = Digest256::of(b"b");
        for text in [
            format!("{a}"),
            format!("{a}\n"),
            format!("{a}  x.img\n"),
            format!("{a} *x.img\r\n"),
            format!("{a}  elsewhere\n"),
            format!("# note\n\n{a} *x.img\n{b} *y.img\n"),
            format!("{b}  y.img\n{a}  ./out/x.img\n"),
            format!("SHA256 (x.img) = {a}\n"),
            format!("SHA256 (y (1) = .img) = {b}\nSHA256 (x.img) = {a}"),
            a.to_string().to_uppercase(),
        ] {
            assert_eq!(look(&text, "x.img"), Ok(a), "{text}");
        }
        assert_eq!(look(&format!("\\{a}  b\\\\c\\n\n{b}  q\n"), "b\\c\n"), Ok(a));
    }

    #[test]
    fn what_is_refused() {
        let a = Digest256::of(b"a");
        let b = Digest256::of(b"b");
        for text in [
            String::new(),
            "\n\n".into(),
            "<html>404</html>".into(),
            a.to_string()[..63].into(),
            format!("{a}x.img"),
            format!("{a}  x.img\nrubbish\n"),
            format!("{a}  y.img\n{b}  z.img\n"),
            format!("{a}  x.img\n{b}  x.img\n"),
            format!("SHA512 (x.img) = {a}"),
            "SHA256 (x.img) = ".into(),
        ] {
            assert!(look(&text, "x.img").is_err(), "{text}");
        }
    }
}
