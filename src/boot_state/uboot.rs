//! U-Boot (meta-balena, `u-boot/patches/env_resin.h`): it reads the selection from `resinOS_uEnv.txt`, compares the number of the
//! partition as a string, and keeps the count in a file of its own, which it writes through a FAT driver of its own.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::change::{self, Plan, Step};
use super::envblock::{BOOTCOUNT, ROOT, UPGRADE};
use super::uenv::Uenv;
use super::{Backend, BootState, Named, env_file, invalid, unwritable};
use crate::error::Result;
use crate::slot::Root;
use crate::sys::file::{self, Folder};

/// Name of the file with the selection.
pub(super) const FILE: &str = "resinOS_uEnv.txt";
/// Name of the file with the count. There may be others with this in their names: U-Boot's FAT driver has made a second entry.
const COUNT_FILE: &str = "bootcount.env";
/// Where owners set U-Boot's variables.
const EXTRA_FILE: &str = "extra_uEnv.txt";
/// The variable with the largest count at which the selected root is still booted.
const LIMIT: &str = "os_bc_lim";
/// Its value since balenaOS 2.85.9. It was 1 before, and U-Boot is not always updated.
const DEFAULT_LIMIT: u32 = 3;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Uboot {
    boot: PathBuf,
    file: PathBuf,
    /// Number of the first root partition.
    first_root: u32,
}

impl Uboot {
    pub(super) fn new(boot: PathBuf, first_root: u32) -> Self {
        Uboot { file: boot.join(FILE), boot, first_root }
    }

    fn folder(&self) -> io::Result<Folder> {
        Folder::open(&self.boot)
    }

    fn content(folder: &Folder, name: &str) -> io::Result<Uenv> {
        let actual = change::find(folder, name)?;
        let name = actual.as_deref().unwrap_or(OsStr::new(name));
        Ok(Uenv::parse(&file::current_content(folder, name)?.unwrap_or_default()))
    }

    fn try_read(&self) -> io::Result<BootState> {
        let folder = self.folder()?;
        let uenv = Self::content(&folder, FILE)?;
        let root = match uenv.get(ROOT) {
            None | Some(b"") => Named::Index(self.first_root),
            Some(value) => {
                let text = env_file::text(value);
                hexadecimal(&text).map_or(Named::Other(text), Named::Index)
            }
        };
        let count = Self::content(&folder, COUNT_FILE)?;
        let bootcount = counted(count.get(BOOTCOUNT).unwrap_or_default());
        Ok(BootState { root, bootcount, upgrade_available: uenv.get(UPGRADE) == Some(b"1") })
    }

    fn try_set(&self, root: &Root, upgrade_available: bool) -> io::Result<()> {
        let folder = self.folder()?;
        let actual = change::find(&folder, FILE)?.unwrap_or_else(|| FILE.into());
        change::prepare(&folder, &actual)?;
        change::carry_out(&folder, &Self::steps(&folder, root, upgrade_available)?)
    }

    fn steps(folder: &Folder, root: &Root, upgrade_available: bool) -> io::Result<Vec<Step>> {
        let actual = change::find(folder, FILE)?.unwrap_or_else(|| FILE.into());
        let mut uenv = Self::content(folder, FILE)?;
        let index = format!("{:x}", root.index);
        if !uenv.set(ROOT, &index) || !uenv.set(UPGRADE, if upgrade_available { "1" } else { "0" }) {
            return Err(io::Error::other("it cannot hold this selection"));
        }
        // A count over the limit turns any selection round. It goes before the new one comes, and once more after it: until then the
        // old selection may have been counted by somebody else. What is sure to fail must not cost the count: by that, U-Boot would come to
        // the other root where nobody here can select it.
        let new = uenv.print();
        Ok(vec![
            Step::Rehearse(actual.clone(), new.clone()),
            Step::RemoveAll(COUNT_FILE),
            Step::Replace(actual, new),
            Step::RemoveAll(COUNT_FILE),
        ])
    }

    /// There is nothing to clear where the only count is 0.
    fn is_clear(folder: &Folder) -> io::Result<bool> {
        let list = folder.list()?;
        let mut counts = list.iter().filter(|(name, _)| change::has(name, COUNT_FILE));
        match (counts.next(), counts.next()) {
            (None, _) => Ok(true),
            (Some((name, _)), None) if folder.same_name(name, COUNT_FILE.as_ref()) => {
                let count = Self::content(folder, COUNT_FILE)?;
                Ok(count.get(BOOTCOUNT).is_some_and(|c| !c.is_empty() && c.iter().all(|b| *b == b'0')))
            }
            _ => Ok(false),
        }
    }

    fn try_clear(&self) -> io::Result<()> {
        let folder = self.folder()?;
        if Self::is_clear(&folder)? {
            return Ok(());
        }
        file::sweep(&folder)?;
        change::carry_out(&folder, &[Step::RemoveAll(COUNT_FILE)])
    }
}

impl Backend for Uboot {
    fn name(&self) -> &'static str {
        "U-Boot"
    }

    fn file(&self) -> &Path {
        &self.file
    }

    fn limit(&self) -> u32 {
        let extra = self.folder().and_then(|folder| Self::content(&folder, EXTRA_FILE));
        let own = extra.ok().and_then(|extra| env_file::text(extra.get(LIMIT)?).parse().ok());
        own.unwrap_or(DEFAULT_LIMIT)
    }

    fn is_exceeded(&self, bootcount: u32) -> bool {
        bootcount > self.limit()
    }

    fn read(&self) -> Result<BootState> {
        self.try_read().map_err(|e| invalid(&self.file).because(e))
    }

    fn plan(&self, root: &Root, upgrade_available: bool) -> Result<Plan> {
        let steps = self.folder().and_then(|folder| Self::steps(&folder, root, upgrade_available));
        let steps = steps.map_err(|e| unwritable(&self.file).because(e))?;
        Ok(Plan { folder: self.boot.clone(), steps })
    }

    fn set(&self, root: &Root, upgrade_available: bool) -> Result<()> {
        self.try_set(root, upgrade_available).map_err(|e| unwritable(&self.file).because(e))
    }

    fn clear_bootcount(&self) -> Result<()> {
        self.try_clear().map_err(|e| unwritable(&self.boot.join(COUNT_FILE)).because(e))
    }
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// A count as `setexpr` writes it. Of a damaged one the digits it begins with count, as for U-Boot (`simple_strtoul`).
fn counted(value: &[u8]) -> u32 {
    let digits = value.iter().map_while(|byte| char::from(*byte).to_digit(16));
    digits.fold(0, |count: u32, digit| count.saturating_mul(16).saturating_add(digit))
}
