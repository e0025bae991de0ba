//! The branches of the policy, on the partition that the firmware reads: the initramfs hands them to the TPM.
//!
//! A contract with the initramfs of every release (meta-balena v8.0.2, `cryptsetup-efi-tpm`): the files below the only folder named
//! `policies.*`, in the bytewise order of their paths, each a digest of 32 bytes; several are joined by `PolicyOR`. A shell release that
//! commits with a single branch leaves no folder. A second list has a name that the initramfs does not see.
//!
//! Files are named by their digests, so that a change of the list adds and removes files, and never renames a folder: on a FAT a power cut in a
//! rename can leave two names for one folder. The names also have the first bytes of PCRs 0, 2 and 3, so that a start that is not unlocked can
//! say which one differs.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::measurements::Values;
use crate::sys::file::{self, Content, FileKind, Folder};
use crate::tpm::policy::{self, Digest};

/// The folder that copal makes.
pub(crate) const FOLDER: &str = "policies.copal";
const PREFIX: &str = "policies.";
const SECOND: &str = ".policies.new";

/// The encrypted passphrase, as releases before meta-balena 6.4.0 have it. Later ones leave the file until their first commit.
pub(super) const OLDER: &str = "balena-luks.enc";

/// What `TPM2_PolicyOR` takes.
pub const MOST_BRANCHES: usize = 8;

/// Deeper than any board has folders there; it bounds the search in a damaged file system.
const DEPTH: u8 = 8;

/// More than any policy: a damaged file system may show a file of any length.
const FILE_LIMIT: u64 = 4096;

/// Branches in the order in which the initramfs takes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List {
    /// Path below the folder, content.
    files: Vec<(PathBuf, Digest)>,
}

impl List {
    /// One that stands for these branches, in the files that `like` has for them already. PCRs 0, 2 and 3 of all of them are those of `values`.
    #[must_use]
    pub fn of(branches: &[Digest], like: &List, values: &Values) -> List {
        let mut files: Vec<(PathBuf, Digest)> = Vec::new();
        for branch in branches {
            if !files.iter().any(|(_, known)| known == branch) {
                let known = like.files.iter().find(|(_, digest)| digest == branch);
                files.push(known.cloned().unwrap_or_else(|| (name_of(branch, values), *branch)));
            }
        }
        files.sort();
        List { files }
    }

    #[must_use]
    pub fn branches(&self) -> Vec<Digest> {
        self.files.iter().map(|(_, digest)| *digest).collect()
    }

    /// The digest of the policy that they make.
    #[must_use]
    pub fn policy(&self) -> Digest {
        policy::any(&self.branches())
    }

    /// Names of the files, with their digests.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, &Digest)> {
        self.files.iter().map(|(path, digest)| (path.as_path(), digest))
    }

    /// Why a start with these PCRs meets none of the branches, as far as the names of the files say so: the PCRs that differ, in the order of the
    /// branches.
    #[must_use]
    pub fn differences(&self, values: &Values) -> Vec<Vec<u8>> {
        self.files.iter().map(|(path, branch)| differing(path, branch, values)).collect()
    }
}

/// `policy.`, then PCRs 0, 2 and 3, then the digest; 4 bytes of each PCR and 8 of the digest.
fn name_of(branch: &Digest, [pcr0, pcr2, pcr3, _]: &Values) -> PathBuf {
    let [pcr0, pcr2, pcr3] = [pcr0, pcr2, pcr3].map(|value| start_of(value, 4));
    format!("policy.{pcr0}-{pcr2}-{pcr3}-{}", start_of(branch, 8)).into()
}

/// In hexadecimal.
pub(super) fn start_of(digest: &Digest, bytes: usize) -> String {
    digest.iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// Which PCRs of a branch differ from `values`, by the name of its file; empty where the name says nothing. PCR 7 may also differ where another
/// one does.
fn differing(path: &Path, branch: &Digest, values: &Values) -> Vec<u8> {
    let [pcr0, pcr2, pcr3, _] = values;
    let known = path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix("policy."));
    let parts: Vec<&str> = known.map(|name| name.split('-').collect()).unwrap_or_default();
    let [of_0, of_2, of_3, of_branch] = parts.as_slice() else { return Vec::new() };
    if *of_branch != start_of(branch, 8) {
        return Vec::new();
    }
    let pairs = [(0, of_0, pcr0), (2, of_2, pcr2), (3, of_3, pcr3)];
    let found: Vec<u8> =
        pairs.iter().filter(|(_, text, now)| **text != start_of(now, 4)).map(|(pcr, ..)| *pcr).collect();
    if found.is_empty() { vec![7] } else { found }
}

/// The lists of a device.
#[derive(Debug)]
pub struct Policies {
    top: PathBuf,
}

impl Policies {
    /// `top`: the mount point of the partition that the firmware reads.
    #[must_use]
    pub fn at(top: PathBuf) -> Policies {
        Policies { top }
    }

    #[must_use]
    pub fn of(paths: &Paths) -> Policies {
        Policies::at(paths.plain_boot())
    }

    /// The list that the initramfs takes; empty where there is none.
    pub fn current(&self) -> Result<List> {
        match self.folder()? {
            Some(folder) => self.read(&folder),
            None => Ok(List::default()),
        }
    }

    /// The list of a change that goes on, or that was cut off. A folder that is left empty is none.
    pub fn second(&self) -> Result<Option<List>> {
        let folder = self.top.join(SECOND);
        let list = if folder.is_dir() { self.read(&folder)? } else { List::default() };
        Ok(Some(list).filter(|list| !list.files.is_empty()))
    }

    pub(super) fn has_older_passphrase(&self) -> bool {
        self.top.join(OLDER).is_file()
    }

    fn folders(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        search(&self.top, DEPTH, &mut found).map_err(|e| self.failed("read", &self.top, e))?;
        Ok(found)
    }

    fn folder(&self) -> Result<Option<PathBuf>> {
        match self.folders()?.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            [one, other, ..] => Err(Error::new(
                Code::WouldNotUnlock,
                format!(
                    "two folders have policies, and the initramfs takes none: {} and {}",
                    one.display(),
                    other.display()
                ),
            )
            .object(other.display())
            .with_hint("remove the one whose files are not those of the TPM's policy")),
        }
    }

    fn read(&self, folder: &Path) -> Result<List> {
        let mut paths = Vec::new();
        files(folder, DEPTH, &mut paths).map_err(|e| self.failed("read", folder, e))?;
        let mut list = List::default();
        for path in paths {
            let bytes = file::read_bytes(&path, FILE_LIMIT).map_err(|e| self.failed("read", &path, e))?;
            let digest = Digest::try_from(bytes).map_err(|bytes| {
                let (name, length) = (path.display(), bytes.len());
                Error::new(
                    Code::WouldNotUnlock,
                    format!("{name} is no policy: it has {length} bytes, and not 32"),
                )
                .object(name)
            })?;
            list.files.push((path.strip_prefix(folder).unwrap_or(&path).to_owned(), digest));
        }
        list.files.sort();
        Ok(list)
    }

    /// Writes the second list.
    pub fn write_second(&self, list: &List) -> Result<()> {
        // What a cut left there keeps folders from being removed.
        if let Err(e) = Folder::open(&self.top).and_then(|top| file::sweep(&top)) {
            tracing::warn!("cannot clean up {}: {e}", self.top.display());
        }
        let folder = self.top.join(SECOND);
        self.make(&folder)?;
        self.become_list(&folder, list)
    }

    /// Makes the list that the initramfs takes the same as `list`, and removes others, which the hooks of a shell release leave when they are cut
    /// off. A power cut leaves one that is neither; the second list is whole then.
    pub fn write_current(&self, list: &List) -> Result<()> {
        let mut folders = self.folders()?.into_iter();
        let folder = folders.next().unwrap_or_else(|| self.top.join(FOLDER));
        for other in folders {
            self.become_list(&other, &List::default())?;
            remove_folder(&other).map_err(|e| self.failed("remove", &other, e))?;
        }
        self.make(&folder)?;
        self.become_list(&folder, list)
    }

    pub fn remove_second(&self) -> Result<()> {
        let folder = self.top.join(SECOND);
        if folder.is_dir() {
            self.become_list(&folder, &List::default())?;
            if let Err(e) = remove_folder(&folder) {
                // Empty, it does no harm.
                tracing::debug!("cannot remove {}: {e}", folder.display());
            }
        }
        Ok(())
    }

    fn make(&self, folder: &Path) -> Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        let make = || file::make_folder(&Folder::open(&self.top)?, folder.file_name().unwrap_or_default());
        make().map_err(|e| self.failed("make", folder, e))
    }

    /// New files first: fewer states in between are those of no list.
    fn become_list(&self, folder: &Path, list: &List) -> Result<()> {
        let swept = Folder::open(folder).and_then(|folder| file::sweep(&folder));
        swept.map_err(|e| self.failed("clean up", folder, e))?;
        let there = self.read_names(folder)?;
        for (path, digest) in &list.files {
            let name = folder.join(path);
            let put = || file::replace(&parent(&name)?, last(&name), &Content::Bytes(digest));
            put().map_err(|e| self.failed("write", &name, e))?;
        }
        for path in there.iter().filter(|path| !list.files.iter().any(|(wanted, _)| wanted == *path)) {
            let name = folder.join(path);
            let remove = || file::remove(&parent(&name)?, last(&name));
            remove().map_err(|e| self.failed("remove", &name, e))?;
        }
        Ok(())
    }

    fn read_names(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        files(folder, DEPTH, &mut paths).map_err(|e| self.failed("read", folder, e))?;
        Ok(paths.into_iter().map(|path| path.strip_prefix(folder).unwrap_or(&path).to_owned()).collect())
    }

    fn failed(&self, what: &str, path: &Path, e: io::Error) -> Error {
        let name = path.display();
        Error::new(Code::WouldNotUnlock, format!("cannot {what} {name}, a policy of the encrypted disk"))
            .object(name)
            .because(e)
    }
}

fn parent(path: &Path) -> io::Result<Folder> {
    Folder::open(path.parent().unwrap_or(Path::new("/")))
}

fn remove_folder(path: &Path) -> io::Result<()> {
    file::remove_folder(&parent(path)?, last(path))
}

fn last(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// All that `find -name 'policies.*'` finds.
fn search(folder: &Path, depth: u8, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for (name, kind) in Folder::open_to_read(folder)?.list()? {
        let path = folder.join(&name);
        if name.to_string_lossy().starts_with(PREFIX) {
            found.push(path);
        } else if kind == Some(FileKind::Folder) && depth > 0 {
            search(&path, depth - 1, found)?;
        }
    }
    Ok(())
}

/// All files below a folder but temporary ones.
fn files(folder: &Path, depth: u8, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for (name, kind) in Folder::open_to_read(folder)?.list()? {
        let path = folder.join(&name);
        match kind {
            Some(FileKind::Folder) if depth > 0 => files(&path, depth - 1, found)?,
            Some(FileKind::File) if !file::is_temporary(&name) => found.push(path),
            _ => {}
        }
    }
    Ok(())
}
