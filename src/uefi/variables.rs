//! Variables of the firmware, through efivarfs (Linux: Documentation/filesystems/efivarfs.rst).

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

use super::guid::Guid;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::{file, mount};

const UEFI: &str = "/sys/firmware/efi";
const VARIABLES: &str = "/sys/firmware/efi/efivars";

/// Non-volatile, of boot services, at run time.
const KEPT: u32 = 0x07;

/// Kept, and written with a time, which has to be later than that of the last write.
const AUTHENTICATED: u32 = KEPT | 0x20;

const APPENDED: u32 = 0x40;

/// No variable has so many bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The firmware of a system that was started by UEFI.
#[derive(Debug, Clone)]
pub struct Firmware {
    variables: PathBuf,
}

/// A variable that the kernel shows as a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable<'a>(pub &'a str, pub Guid);

impl Variable<'static> {
    pub const SECURE_BOOT: Self = Variable("SecureBoot", Guid::GLOBAL);
    pub const SETUP_MODE: Self = Variable("SetupMode", Guid::GLOBAL);
    pub const PK: Self = Variable("PK", Guid::GLOBAL);
    pub const KEK: Self = Variable("KEK", Guid::GLOBAL);
    pub const DB: Self = Variable("db", Guid::DATABASE);
    pub const DBX: Self = Variable("dbx", Guid::DATABASE);
}

impl Firmware {
    /// `None` where the system was not started by UEFI. Mounts the file system of the variables where it is not mounted yet.
    pub fn find(paths: &Paths) -> Result<Option<Firmware>> {
        if !paths.at(UEFI).is_dir() {
            return Ok(None);
        }
        let variables = paths.at(VARIABLES);
        let is_empty = std::fs::read_dir(&variables).map(|mut entries| entries.next().is_none());
        if is_empty.unwrap_or(true) {
            // A kernel without efivarfs has no such folder.
            let mounted = mount::mount_virtual("efivarfs", &variables);
            // It is mounted, and has no variable.
            let busy = |e: &io::Error| e.kind() == io::ErrorKind::ResourceBusy;
            mounted.or_else(|e| if busy(&e) { Ok(()) } else { Err(e) }).map_err(|e| {
                let what = variables.display();
                let message = format!("cannot reach the variables of the firmware: cannot mount {what}");
                Error::new(Code::FirmwareVariableFailed, message).object(what).because(e)
            })?;
        }
        Ok(Some(Firmware { variables }))
    }

    fn path(&self, variable: Variable<'_>) -> PathBuf {
        self.variables.join(format!("{}-{}", variable.0, variable.1))
    }

    /// The contents; `None` if there is no such variable. One that the firmware has refused stays an empty file until the next start, without
    /// attributes (Linux, `fs/efivarfs/file.c`).
    pub fn read(&self, variable: Variable<'_>) -> Result<Option<Vec<u8>>> {
        let failed = |e| failed(variable, "read").because(e);
        let file = match File::open(self.path(variable)) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        // After its attributes.
        match bytes.get(4..) {
            Some(contents) => Ok(Some(contents.to_vec())),
            None if bytes.is_empty() => Ok(None),
            None => Err(failed(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// A variable of one byte that is 0 or 1; `None` if there is no such variable.
    pub fn flag(&self, variable: Variable<'_>) -> Result<Option<bool>> {
        match self.read(variable)?.as_deref() {
            None => Ok(None),
            Some([0]) => Ok(Some(false)),
            Some([1]) => Ok(Some(true)),
            Some(_) => Err(failed(variable, "use").because(io::Error::other("it is neither 0 nor 1"))),
        }
    }

    /// For more variables; `None` where the kernel does not show it (before Linux 6.7, `efivarfs_statfs`).
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        let stat = nix::sys::statvfs::statvfs(&self.variables).ok()?;
        // The fields' width depends on the platform.
        #[allow(clippy::useless_conversion)]
        let (all, free, unit) =
            (u64::from(stat.blocks()), u64::from(stat.blocks_available()), u64::from(stat.fragment_size()));
        (all > 0).then(|| free.saturating_mul(unit))
    }

    /// Names of the variables of that vendor.
    pub fn names(&self, vendor: Guid) -> Result<Vec<String>> {
        let failed = |e| {
            let what = self.variables.display();
            Error::new(
                Code::FirmwareVariableFailed,
                format!("cannot list the variables of the firmware in {what}"),
            )
            .object(what)
            .because(e)
        };
        let end = format!("-{vendor}");
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.variables).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_suffix(&end)).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// Replaces the contents of a key variable. `signed`: with the header of `authenticated`. `contents`: what it has afterwards.
    pub fn replace_keys(&self, variable: Variable<'_>, signed: &[u8], contents: &[u8]) -> Result<()> {
        self.write(variable, AUTHENTICATED, signed, contents)
    }

    /// Adds to the contents of a key variable.
    pub fn append_keys(&self, variable: Variable<'_>, signed: &[u8], contents: &[u8]) -> Result<()> {
        self.write(variable, AUTHENTICATED | APPENDED, signed, contents)
    }

    /// Replaces a variable without a signature.
    pub fn replace(&self, variable: Variable<'_>, contents: &[u8]) -> Result<()> {
        self.write(variable, KEPT, contents, contents)
    }

    /// Removes a variable without a signature.
    pub fn remove(&self, variable: Variable<'_>) -> Result<()> {
        let path = self.path(variable);
        let remove = || {
            file::clear_immutable(&File::open(&path)?)?;
            std::fs::remove_file(&path)
        };
        remove().map_err(|e| failed(variable, "remove").because(e))
    }

    fn write(&self, variable: Variable<'_>, attributes: u32, data: &[u8], contents: &[u8]) -> Result<()> {
        let path = self.path(variable);
        let failed = |e| failed(variable, "write").because(e);
        match File::open(&path) {
            Ok(file) => file::clear_immutable(&file).map_err(failed)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e)),
        }
        // The firmware gets what one write has.
        let whole = [&attributes.to_le_bytes()[..], data].concat();
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        match file.write(&whole) {
            Ok(n) if n == whole.len() => {}
            Ok(_) => return Err(failed(io::ErrorKind::WriteZero.into())),
            Err(e) => {
                drop(file);
                // The kernel has made an empty file and protects it like a variable. A variable has content, and must never be removed here.
                if matches!(self.read(variable), Ok(None))
                    && let Ok(left) = File::open(&path)
                {
                    drop(file::clear_immutable(&left).and_then(|()| std::fs::remove_file(&path)));
                }
                return Err(failed(e));
            }
        }
        drop(file);
        match self.read(variable)? {
            Some(found) if found == contents => Ok(()),
            _ => Err(failed(io::Error::other("the firmware has not kept what was written"))),
        }
    }
}

fn failed(variable: Variable<'_>, what: &str) -> Error {
    let name = variable.0;
    Error::new(Code::FirmwareVariableFailed, format!("cannot {what} {name}, a variable of the firmware"))
        .object(name)
}
