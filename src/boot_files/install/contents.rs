//! The list of copies, in order: pure data, made from the medium's boot partition and the board's configuration.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::config::flasher_conf::FlasherConf;
use crate::error::{Code, Error, Result, counted};
use crate::sys::file;

/// Deeper folders are refused, so that every walk ends.
const MAX_DEPTH: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Install {
    Plain,
    Encrypted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    MergeFolder,
    /// Afterwards the folder has exactly these files.
    ReplaceFolder,
    CopyFile,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceFile {
    #[serde(serialize_with = "lossy")]
    pub from: PathBuf,
    #[serde(serialize_with = "lossy")]
    pub to: PathBuf,
    pub size: u64, // bytes
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Item {
    pub action: Action,
    #[serde(serialize_with = "lossy")]
    pub source: PathBuf,
    #[serde(serialize_with = "lossy")]
    pub destination: PathBuf,
    /// Required below the internal boot partition, outer ones first.
    #[serde(skip)]
    pub(super) folders: Vec<PathBuf>,
    pub files: Vec<SourceFile>,
}

/// Files of one folder, in the order in which they are copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Files {
    #[serde(skip)]
    pub(super) source: PathBuf,
    pub items: Vec<Item>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// Of the medium's boot partition; `config.json` comes after them.
    #[serde(flatten)]
    pub files: Files,
    /// The owner's file. It is read again right before it is copied, without its `installer` member.
    #[serde(serialize_with = "lossy")]
    pub config_json: PathBuf,
    #[serde(skip)]
    pub(super) config_json_size: u64, // bytes
}

fn lossy<S: Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

impl Contents {
    /// Plans the copy of the medium's boot folder and of the owner's `config_json`. Writes nothing.
    pub fn gather(
        medium: &Path,
        conf: &FlasherConf,
        config_json: &Path,
        install: Install,
    ) -> Result<Contents> {
        conf.check_medium(medium)?;
        let names = &conf.names;
        let source = Source::open(medium)?;
        let mut items = Vec::new();
        items.extend(source.folder(&names.splash, Action::MergeFolder)?);
        for name in [&names.nm_config, &names.nm_dispatcher, &names.proxy_config] {
            items.extend(source.folder(name, Action::ReplaceFolder)?);
        }
        items.extend(source.bootloader_config(conf, install)?);
        items.extend(source.file(Path::new(&names.bootloader_config), Path::new(&names.bootloader_config))?);
        let config_json_size = match fs::metadata(config_json) {
            Ok(meta) => meta.len(),
            Err(e) => return Err(unreadable(config_json, e)),
        };
        let config_json = config_json.to_owned();
        let files = Files { source: source.root, items };
        Ok(Contents { files, config_json, config_json_size })
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.items.iter().map(Item::bytes).sum::<u64>().saturating_add(self.config_json_size)
    }

    pub(super) fn config_json_name(&self) -> &OsStr {
        self.config_json.file_name().unwrap_or(OsStr::new("config.json"))
    }

    /// A cheap check before the first write: more bytes than the image's boot partition has cannot fit.
    pub fn check_size(&self, boot_partition: u64) -> Result<()> {
        if self.bytes() <= boot_partition {
            return Ok(());
        }
        Err(Error::new(
            Code::BootPartitionFull,
            format!(
                "cannot copy {} bytes from {} to a boot partition of {boot_partition} bytes",
                self.bytes(),
                self.files.source.display()
            ),
        )
        .object(self.files.source.display()))
    }
}

impl Files {
    /// None yet, of the folder `source`.
    pub fn of(source: &Path) -> Result<Files> {
        Ok(Files { source: Source::open(source)?.root, items: Vec::new() })
    }

    /// Adds the file `name`. Returns whether the folder has one.
    pub fn add(&mut self, name: &Path) -> Result<bool> {
        let item = Source { root: self.source.clone() }.file(name, name)?;
        let is_there = item.is_some();
        self.items.extend(item);
        Ok(is_there)
    }
}

impl Item {
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.size).fold(0, u64::saturating_add)
    }
}

struct Source {
    root: PathBuf,
}

/// The kind of a name on the medium, after links.
enum MediumEntry {
    Nothing,
    File(u64),
    Folder,
    Other,
}

impl Source {
    fn open(medium: &Path) -> Result<Source> {
        let root = fs::canonicalize(medium).map_err(|e| {
            unreadable(medium, e).with_hint(
                "mount the installation medium's boot partition there, or write only the image with --image-only",
            )
        })?;
        Ok(Source { root })
    }

    /// A link to a file inside the medium counts as that file: the initramfs may have created some. FAT has no links.
    fn look(&self, path: &Path) -> Result<MediumEntry> {
        let full = self.root.join(path);
        let meta = match fs::symlink_metadata(&full) {
            Ok(meta) => meta,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(MediumEntry::Nothing);
            }
            Err(e) => return Err(unreadable(&full, e)),
        };
        // A folder of the path can also be a link.
        let real = fs::canonicalize(&full).ok().filter(|real| real.starts_with(&self.root));
        let Some(real) = real else { return Err(escapes(&full)) };
        if !meta.is_symlink() {
            return Ok(found(&meta));
        }
        match found(&fs::metadata(&real).map_err(|e| unreadable(&full, e))?) {
            // The link could lead to a parent of itself.
            MediumEntry::Folder => Err(Error::new(
                Code::BootPathEscapes,
                format!("{} is a link to a folder; replace it by the folder", full.display()),
            )
            .object(full.display())),
            other => Ok(other),
        }
    }

    fn file(&self, from: &Path, to: &Path) -> Result<Option<Item>> {
        let MediumEntry::File(size) = self.look(from)? else { return Ok(None) };
        let folders = to.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).map(Path::to_owned);
        let mut folders: Vec<_> = folders.collect();
        folders.reverse();
        Ok(Some(Item {
            action: Action::CopyFile,
            source: from.to_owned(),
            destination: to.to_owned(),
            folders,
            files: vec![SourceFile { from: from.to_owned(), to: to.to_owned(), size }],
        }))
    }

    /// The bootloader's configuration for internal boot, its signature, and its second location.
    fn bootloader_config(&self, conf: &FlasherConf, install: Install) -> Result<Vec<Item>> {
        let replacement = conf.bootloader_config_luks.as_ref().filter(|_| install == Install::Encrypted);
        let mut config = conf.bootloader_config.as_ref();
        if let Some(luks) = replacement
            && matches!(self.look(luks)?, MediumEntry::File(_))
        {
            config = Some(luks);
        }
        let (Some(config), Some(to)) = (config, &conf.bootloader_config_path) else { return Ok(Vec::new()) };
        let Some(item) = self.file(config, to)? else { return Ok(Vec::new()) };
        let mut items = vec![item];
        items.extend(self.file(&with_sig(config), &with_sig(to))?);
        if let Some(legacy) = &conf.bootloader_legacy_config_path {
            items.extend(self.file(config, legacy)?);
        }
        Ok(items)
    }

    fn folder(&self, name: &str, action: Action) -> Result<Option<Item>> {
        let path = PathBuf::from(name);
        if !matches!(self.look(&path)?, MediumEntry::Folder) {
            return Ok(None);
        }
        let mut item = Item {
            action,
            source: path.clone(),
            destination: path.clone(),
            folders: Vec::new(),
            files: Vec::new(),
        };
        self.walk(&path, 0, &mut item)?;
        Ok(Some(item))
    }

    fn walk(&self, folder: &Path, depth: usize, item: &mut Item) -> Result<()> {
        let full = self.root.join(folder);
        if depth > MAX_DEPTH {
            return Err(unreadable(&full, io::Error::other(format!("more than {MAX_DEPTH} folders deep"))));
        }
        item.folders.push(folder.to_owned());
        let entries = fs::read_dir(&full).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut names: Vec<_> =
            entries.map_err(|e| unreadable(&full, e))?.iter().map(fs::DirEntry::file_name).collect();
        names.sort();
        for name in &names {
            // The script merged `splash/*`, which leaves out dot files; of folders below it took everything.
            let is_top_of_merge = depth == 0 && item.action == Action::MergeFolder;
            if is_top_of_merge && name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = folder.join(name);
            // Temporary files of an interrupted write: the first write beside them would remove them.
            if file::is_temporary(name)
                || file::owners(name).any(|n| names.binary_search_by(|o| o.as_os_str().cmp(n)).is_ok())
            {
                tracing::warn!("{} is left over from an interrupted write and is not copied", path.display());
                continue;
            }
            match self.look(&path)? {
                MediumEntry::File(size) => {
                    item.files.push(SourceFile { from: path.clone(), to: path, size });
                }
                MediumEntry::Folder => self.walk(&path, depth + 1, item)?,
                MediumEntry::Nothing => {}
                MediumEntry::Other => {
                    tracing::warn!("{} is neither a file nor a folder and is not copied", path.display());
                }
            }
        }
        Ok(())
    }
}

fn found(meta: &fs::Metadata) -> MediumEntry {
    match meta {
        m if m.is_file() => MediumEntry::File(m.len()),
        m if m.is_dir() => MediumEntry::Folder,
        _ => MediumEntry::Other,
    }
}

fn with_sig(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".sig");
    name.into()
}

fn escapes(path: &Path) -> Error {
    let file = path.display();
    let what =
        format!("{file} is, or is below, a link that leads out of the medium's boot folder or nowhere");
    Error::new(Code::BootPathEscapes, what).object(file)
}

pub(super) fn unreadable(path: &Path, e: io::Error) -> Error {
    Error::new(Code::BootCopyFailed, format!("cannot read {}", path.display()))
        .object(path.display())
        .because(e)
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.source.display(), self.destination.display());
        let (files, bytes) = (self.files.len(), self.bytes());
        match self.action {
            Action::MergeFolder => {
                write!(f, "add the {} of {from}/ to {to}/ ({bytes} bytes)", counted(files, "file"))
            }
            Action::ReplaceFolder => {
                write!(
                    f,
                    "replace the directory {to}/ with the medium's: {}, {bytes} bytes",
                    counted(files, "file")
                )
            }
            Action::CopyFile => write!(f, "copy {from} to {to} ({bytes} bytes)"),
        }
    }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for item in &self.files.items {
            writeln!(f, "{item}")?;
        }
        let to = Path::new(self.config_json_name()).display();
        writeln!(f, "copy {} to {to}, without `installer`", self.config_json.display())
    }
}
