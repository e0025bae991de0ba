//! `/etc/copal/bootloaders.conf`, a file of the board: the bootloaders that a release writes outside of file systems.
//!
//! Sections of `key = value`, in the order of the writes. Strict, because with `seak = 66` a bootloader must not be written
//! to byte 0. `docs/bootloader-writes.md` describes the format.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use super::flasher_conf::number;
use super::read::{self, shown};
use crate::error::{Code, Error, Result};

pub const PATH: &str = "/etc/copal/bootloaders.conf";

const MAX_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootloadersConf {
    /// The bootloaders are one set: all of them are written, or none.
    pub together: bool,
    /// In the order of the writes; at least one.
    pub writes: Vec<Loader>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loader {
    pub name: String,
    pub device: String,
    /// Absolute path in the release that the file is part of.
    pub image: PathBuf,
    /// Unit of `seek` in bytes; at least 1.
    pub block_size: u64,
    /// Blocks of the device before the bootloader.
    pub seek: u64,
}

impl Loader {
    /// Start on the device, in bytes; `None` past what the kernel can address.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.block_size.checked_mul(self.seek).filter(|o| i64::try_from(*o).is_ok())
    }
}

impl BootloadersConf {
    pub fn load(path: &Path) -> Result<Option<Self>> {
        let file = path.display();
        let wrong = |code, what: &str| Error::new(code, format!("{file} {what}")).object(path.display());
        let bytes = match read::bounded(path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(read::Fault::Missing(_)) => return Ok(None),
            Err(read::Fault::NotRegular) => return Err(wrong(Code::ConfInvalid, "is not a regular file")),
            Err(read::Fault::TooLarge(most)) => {
                return Err(wrong(Code::ConfInvalid, &format!("has more than {most} bytes")));
            }
            Err(read::Fault::Changed) => return Err(wrong(Code::Busy, "is being written to")),
            Err(read::Fault::Io(e)) => return Err(wrong(read::io_code(&e), "cannot be read").because(e)),
        };
        let text = std::str::from_utf8(&bytes).map_err(|_| wrong(Code::ConfSyntax, "is not UTF-8 text"))?;
        Self::parse(text, path).map(Some)
    }

    pub fn parse(text: &str, file: &Path) -> Result<Self> {
        let mut parser = Parser { file, together: None, sections: Vec::new() };
        for (number, line) in (1..).zip(text.lines()) {
            parser.line(number, line.trim())?;
        }
        parser.end()
    }
}

impl fmt::Display for BootloadersConf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "together = {}", self.together)?;
        for w in &self.writes {
            write!(f, "\n[{}]\ndevice = {}\nimage = {}\n", w.name, w.device, w.image.display())?;
            write!(f, "block-size = {}\nseek = {}\n", w.block_size, w.seek)?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Section {
    name: String,
    line: usize,
    device: Option<String>,
    image: Option<PathBuf>,
    block_size: Option<u64>,
    seek: Option<u64>,
}

struct Parser<'a> {
    file: &'a Path,
    together: Option<bool>,
    sections: Vec<Section>,
}

impl Parser<'_> {
    fn line(&mut self, number: usize, line: &str) -> Result<()> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.strip_suffix(']').filter(|n| is_name(n));
            let name = name.ok_or_else(|| {
                self.error(Code::ConfSyntax, number, &format!("`{}` is not [name]", shown(line)))
            })?;
            if self.sections.iter().any(|s| s.name == name) {
                return Err(self.error(Code::ConfInvalid, number, &format!("[{name}] is there twice")));
            }
            self.sections.push(Section { name: name.to_owned(), line: number, ..Section::default() });
            return Ok(());
        }
        let Some((key, value)) = line.split_once('=').map(|(k, v)| (k.trim(), v.trim())) else {
            let what = format!("`{}` is not key = value", shown(line));
            return Err(self.error(Code::ConfSyntax, number, &what));
        };
        self.pair(key, value)
            .map_err(|what| self.error(Code::ConfInvalid, number, &format!("{}: {what}", shown(key))))
    }

    fn pair(&mut self, key: &str, value: &str) -> Result<(), String> {
        if value.is_empty() {
            return Err("it has no value".to_owned());
        }
        let numeric = || number(value).map_err(|why| format!("`{}` {why}", shown(value)));
        match (self.sections.last_mut(), key) {
            (None, "together") => match value {
                "true" => once(&mut self.together, true),
                "false" => once(&mut self.together, false),
                other => Err(format!("`{}` is neither true nor false", shown(other))),
            },
            (None, _) => Err("this key is not known before the first [name]".to_owned()),
            (Some(s), "device") => once(&mut s.device, device(value)?),
            (Some(s), "image") => once(&mut s.image, image(value)?),
            (Some(s), "block-size") => match numeric()? {
                0 => Err("a block has at least 1 byte".to_owned()),
                n => once(&mut s.block_size, n),
            },
            (Some(s), "seek") => once(&mut s.seek, numeric()?),
            (Some(_), _) => Err("this key is not known".to_owned()),
        }
    }

    fn end(self) -> Result<BootloadersConf> {
        if self.sections.is_empty() {
            let what = format!("{} names no bootloader", self.file.display());
            return Err(Error::new(Code::ConfInvalid, what)
                .object(self.file.display())
                .with_hint(FORMAT_HINT));
        }
        let writes = self.sections.iter().map(|s| self.loader(s)).collect::<Result<_>>()?;
        Ok(BootloadersConf { together: self.together.unwrap_or(false), writes })
    }

    fn loader(&self, s: &Section) -> Result<Loader> {
        let wrong = |what: &str| self.error(Code::ConfInvalid, s.line, &format!("[{}] {what}", s.name));
        let (Some(device), Some(image)) = (s.device.clone(), s.image.clone()) else {
            return Err(wrong("needs `device` and `image`"));
        };
        if s.seek.is_some() && s.block_size.is_none() {
            return Err(wrong("has `seek` without `block-size`"));
        }
        let (block_size, seek) = (s.block_size.unwrap_or(1), s.seek.unwrap_or(0));
        let loader = Loader { name: s.name.clone(), device, image, block_size, seek };
        match loader.offset() {
            Some(_) => Ok(loader),
            None => Err(wrong("leads past the end of any device")),
        }
    }

    fn error(&self, code: Code, line: usize, what: &str) -> Error {
        let file = self.file.display();
        Error::new(code, format!("{file}:{line}: {what}")).object(file).with_hint(FORMAT_HINT)
    }
}

const FORMAT_HINT: &str = "correct the file in the board's recipe; docs/bootloader-writes.md has its format";

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err("this key is there twice".to_owned()),
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn device(value: &str) -> Result<String, String> {
    let name = value.strip_prefix("/dev/").unwrap_or(value);
    if name.starts_with('/')
        || name.split('/').any(|p| matches!(p, "" | "." | ".."))
        || name.contains(char::is_control)
    {
        return Err(format!("`{}` is not the name of a device below /dev", shown(value)));
    }
    Ok(name.to_owned())
}

fn image(value: &str) -> Result<PathBuf, String> {
    let path = Path::new(value);
    let plain = path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain || value.contains(char::is_control) {
        return Err(format!("`{}` is not an absolute path", shown(value)));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<BootloadersConf> {
        BootloadersConf::parse(text, Path::new("c"))
    }

    #[test]
    fn a_set_is_understood_and_printed_to_the_same() {
        let text = "# RK3399\ntogether = true\r\n\n[idbloader]\n device=/dev/mmcblk1\nimage = /opt/id = b.img\nblock-size = 512\n\
                    seek = 64\n[u-boot]\ndevice = mtd:u-boot\nimage = /resin-boot/u-boot.itb\n";
        let conf = parse(text).unwrap();
        assert!(conf.together);
        let [id, uboot] = &conf.writes[..] else { panic!("{conf:?}") };
        assert_eq!(
            (id.name.as_str(), id.device.as_str(), id.offset()),
            ("idbloader", "mmcblk1", Some(32768))
        );
        assert_eq!(id.image, Path::new("/opt/id = b.img"));
        assert_eq!((uboot.device.as_str(), uboot.offset()), ("mtd:u-boot", Some(0)));
        assert_eq!(parse(&conf.to_string()).unwrap(), conf);
        assert!(!parse("[a]\ndevice = sda\nimage = /x").unwrap().together);
    }

    #[test]
    fn whatever_is_not_clear_is_refused_with_its_line() {
        let good = "[a]\ndevice = sda\nimage = /x\n";
        for (text, line, part) in [
            ("together = yes\n".to_owned() + good, 1, "neither true nor false"),
            ("together = true\ntogether = true\n".to_owned() + good, 2, "twice"),
            ("device = sda\n".to_owned() + good, 1, "before the first"),
            (good.to_owned() + "seak = 66\n", 4, "not known"),
            (good.to_owned() + "image = /y\n", 4, "twice"),
            (good.to_owned() + "together = true\n", 4, "not known"),
            (good.to_owned() + "block-size = 0\n", 4, "at least 1"),
            (good.to_owned() + "block-size = 1x\n", 4, "not a number"),
            (good.to_owned() + "seek = 3\n", 1, "without `block-size`"),
            (good.to_owned() + "block-size = 1G\nseek = 99999999999\n", 1, "past the end"),
            (good.to_owned() + "[a]\n", 4, "twice"),
            (good.to_owned() + "[b c]\n", 4, "not [name]"),
            (good.to_owned() + "seek\n", 4, "not key = value"),
            (good.to_owned() + "seek =\n", 4, "no value"),
            ("[a]\nimage = /x\n".to_owned(), 1, "needs `device` and `image`"),
            ("[a]\ndevice = ../x\n".to_owned(), 2, "not the name of a device"),
            ("[a]\nimage = u-boot.img\n".to_owned(), 2, "not an absolute path"),
            ("[a]\nimage = /a/../b\n".to_owned(), 2, "not an absolute path"),
        ] {
            let e = parse(&text).unwrap_err();
            assert!(matches!(e.code(), Code::ConfSyntax | Code::ConfInvalid), "{e}");
            assert!(
                e.message().starts_with(&format!("c:{line}: ")) && e.message().contains(part),
                "{text}: {e}"
            );
        }
        assert!(parse("# nothing\n").unwrap_err().message().contains("names no bootloader"));
    }
}
