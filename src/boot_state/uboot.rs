//! U-Boot (meta-balena, `u-boot/patches/env_resin.h`): it reads the selection from `resinOS_uEnv.txt`, compares the partition number
//! as a string, and keeps the boot count in a file of its own, written by U-Boot's own FAT driver.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::change::{self, Step};
use super::envblock::{BOOTCOUNT, Damage, ROOT, UPGRADE};
use super::uenv::Uenv;
use super::variables::Variables;
use super::{Backend, BootState, Named, invalid, unwritable};
use crate::error::Result;
use crate::slot::Root;
use crate::sys::file::{self, Folder};

pub(crate) const UENV_FILE: &str = "resinOS_uEnv.txt";
/// Other files may contain this in their names: U-Boot's FAT driver is known to create a second entry.
const COUNT_FILE: &str = "bootcount.env";
pub(crate) const EXTRA_FILE: &str = "extra_uEnv.txt";
/// The variable with the largest count at which the selected root still boots.
const BOOT_LIMIT_VARIABLE: &str = "os_bc_lim";
/// Since balenaOS 2.85.9. It was 1 before, and U-Boot is not always updated.
const DEFAULT_BOOT_LIMIT: u32 = 3;

#[derive(Debug)]
pub(super) struct Uboot {
    boot: PathBuf,
    file: PathBuf,
    first_root: u32,
    /// Of a loader that reads U-Boot's files and takes the other root at a count of its own.
    fallback_count: Option<u32>,
}

impl Uboot {
    pub(super) fn new(boot: PathBuf, first_root: u32, fallback_count: Option<u32>) -> Self {
        Uboot { file: boot.join(UENV_FILE), boot, first_root, fallback_count }
    }

    fn content(folder: &Folder, name: &str) -> io::Result<Uenv> {
        let actual = change::find(folder, name)?;
        let name = actual.as_deref().unwrap_or(OsStr::new(name));
        Ok(Uenv::parse(&file::current_content(folder, name)?.unwrap_or_default()))
    }

    fn try_read(&self) -> io::Result<BootState> {
        let folder = Folder::open_to_read(&self.boot)?;
        let mut read = Variables::default();
        let damage = read.import(&Self::content(&folder, UENV_FILE)?).err();
        let returns = [ROOT, UPGRADE].iter().any(|key| read.get(key).is_some_and(|v| v.ends_with(b"\r")));
        let damage = damage.or(returns.then_some(Damage::Return));
        // What stands before the end of the import counts. A damaged file of the owner is not copal's to repair.
        let _owners = read.import(&Self::content(&folder, EXTRA_FILE)?);
        let mut count = Variables::default();
        let _counted = count.import(&Self::content(&folder, COUNT_FILE)?);
        let root = read.get(ROOT).map(|value| {
            let text = String::from_utf8_lossy(value).into_owned();
            hexadecimal(&text).map_or(Named::Other(text), Named::Index)
        });
        let named = matches!(root, Some(Named::Index(_)));
        Ok(BootState {
            selected: named,
            damage: damage.or((root.is_some() && !named).then_some(Damage::NoRoot)),
            root: root.unwrap_or(Named::Index(self.first_root)),
            bootcount: counted(count.get(BOOTCOUNT).unwrap_or_default()),
            upgrade_available: read.get(UPGRADE) == Some(b"1"),
        })
    }

    fn try_set(&self, root: &Root, upgrade_available: bool) -> io::Result<()> {
        let folder = Folder::open(&self.boot)?;
        let actual = change::find(&folder, UENV_FILE)?.unwrap_or_else(|| UENV_FILE.into());
        change::prepare(&folder, &actual)?;
        change::carry_out(&folder, &Self::steps(&folder, root, upgrade_available)?)
    }

    fn steps(folder: &Folder, root: &Root, upgrade_available: bool) -> io::Result<Vec<Step>> {
        let actual = change::find(folder, UENV_FILE)?.unwrap_or_else(|| UENV_FILE.into());
        let mut uenv = Self::content(folder, UENV_FILE)?;
        let index = format!("{:x}", root.index);
        let expected = [(ROOT, index.as_str()), (UPGRADE, if upgrade_available { "1" } else { "0" })];
        if !expected.iter().all(|(key, value)| uenv.set(key, value)) {
            return Err(io::Error::other("it cannot hold this selection"));
        }
        Self::read_back(folder, &uenv, &expected)?;
        // A count over the limit reverses any selection. It goes before the new selection comes, and once more after it: until then
        // U-Boot or another program may have counted for the old selection. A change that is sure to fail must not cost the count: without it
        // U-Boot would boot the other root, which has no way to select this one again.
        let new = uenv.print();
        Ok(vec![
            Step::Rehearse(actual.clone(), new.clone()),
            Step::RemoveAll(COUNT_FILE),
            Step::Replace(actual, new),
            Step::RemoveAll(COUNT_FILE),
        ])
    }

    /// Refuses, before anything is written, a selection that U-Boot would not read: it imports the owner's file after this one.
    fn read_back(folder: &Folder, new: &Uenv, expected: &[(&str, &str)]) -> io::Result<()> {
        let mut read = Variables::default();
        // As U-Boot gets the bytes.
        let imported = read.import(&Uenv::parse(&new.print()));
        let is_read =
            |read: &Variables| expected.iter().all(|(key, value)| read.get(key) == Some(value.as_bytes()));
        if imported.is_err() || !is_read(&read) {
            return Err(io::Error::other("U-Boot would not read this selection"));
        }
        let _what_counts_of_it = read.import(&Self::content(folder, EXTRA_FILE)?);
        if !is_read(&read) {
            return Err(io::Error::other(format!(
                "{EXTRA_FILE} sets {ROOT} or {UPGRADE}, and counts instead"
            )));
        }
        Ok(())
    }

    /// Nothing to clear where the only count is 0.
    fn is_clear(folder: &Folder) -> io::Result<bool> {
        let list = folder.list()?;
        let mut counts = list.iter().filter(|(name, _)| change::has(name, COUNT_FILE));
        match (counts.next(), counts.next()) {
            (None, _) => Ok(true),
            (Some((name, _)), None) if folder.same_name(name, COUNT_FILE.as_ref()) => {
                let mut count = Variables::default();
                let read = count.import(&Self::content(folder, COUNT_FILE)?);
                let zero = |c: &[u8]| !c.is_empty() && c.iter().all(|b| *b == b'0');
                Ok(read.is_ok() && count.get(BOOTCOUNT).is_some_and(zero))
            }
            _ => Ok(false),
        }
    }

    fn try_clear(&self) -> io::Result<()> {
        let folder = Folder::open(&self.boot)?;
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
        if let Some(count) = self.fallback_count {
            return count;
        }
        let extra = Folder::open_to_read(&self.boot).and_then(|folder| Self::content(&folder, EXTRA_FILE));
        let mut read = Variables::default();
        let _what_counts_of_it = extra.map(|extra| read.import(&extra));
        read.get(BOOT_LIMIT_VARIABLE).and_then(number).unwrap_or(DEFAULT_BOOT_LIMIT)
    }

    fn is_exceeded(&self, bootcount: u32) -> bool {
        self.fallback_count.map_or(bootcount > self.limit(), |count| bootcount >= count)
    }

    fn read(&self) -> Result<BootState> {
        self.try_read().map_err(|e| invalid(&self.file).because(e))
    }

    fn may_be_root(&self, root: &Named) -> bool {
        let second = self.first_root.saturating_add(1);
        matches!(root, Named::Index(index) if [self.first_root, second].contains(index))
    }

    fn set(&self, root: &Root, upgrade_available: bool) -> Result<()> {
        self.try_set(root, upgrade_available).map_err(|e| unwritable(&self.file).because(e))
    }

    fn warnings(&self) -> Vec<(String, &'static str)> {
        let extra = Folder::open_to_read(&self.boot).and_then(|folder| Self::content(&folder, EXTRA_FILE));
        let found = returns(&self.boot.join(EXTRA_FILE), &extra.unwrap_or_default());
        found
            .into_iter()
            .map(|text| (text, "save the file with line ends of Unix: a newline alone"))
            .collect()
    }

    fn clear_bootcount(&self) -> Result<()> {
        self.try_clear().map_err(|e| unwritable(&self.boot.join(COUNT_FILE)).because(e))
    }
}

/// What is wrong with lines of the owner's file that end as in Windows.
pub(crate) fn returns(file: &Path, content: &Uenv) -> Vec<String> {
    let line = |(number, name): (usize, String)| {
        format!(
            "{}, line {number}: the carriage return at its end belongs to the value of {name}",
            file.display()
        )
    };
    content.with_returns().into_iter().map(line).collect()
}

/// The number of a partition as U-Boot writes it, which compares texts: `0x3` and `03` are not `3`.
fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok().filter(|index| format!("{index:x}") == text)
}

/// A number as `test -gt` takes it (U-Boot 2026.10-rc2, `simple_strtol` in `cmd/test.c`): what follows the digits does not count.
fn number(value: &[u8]) -> Option<u32> {
    let (radix, digits) = match value {
        [b'0', b'x' | b'X', rest @ ..] => (16, rest),
        _ => (10, value),
    };
    let mut digits = digits.iter().map_while(|byte| char::from(*byte).to_digit(radix)).peekable();
    digits.peek()?;
    Some(digits.fold(0, |number: u32, digit| number.saturating_mul(radix).saturating_add(digit)))
}

/// A hexadecimal count, as `setexpr` writes it. Of damaged text the leading digits count, as for U-Boot (`simple_strtoul`).
fn counted(value: &[u8]) -> u32 {
    let digits = value.iter().map_while(|byte| char::from(*byte).to_digit(16));
    digits.fold(0, |count: u32, digit| count.saturating_mul(16).saturating_add(digit))
}
