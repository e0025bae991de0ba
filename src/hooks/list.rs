//! The hooks of a phase.
//!
//! The rules of meta-balena's runner apply (its `docs/hooks.md`), with two differences: a word counts only in the path below the
//! hook directory, and no hook runs twice in one run because two rules select it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Before,
    /// In the new system. Hooks of the first format also run here.
    Forward,
    After,
    /// In the new system, after its trial.
    Commit,
    Cleanup,
}

impl Phase {
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Phase::Before => "before",
            Phase::Forward => "forward",
            Phase::After => "after",
            Phase::Commit => "commit",
            Phase::Cleanup => "cleanup",
        }
    }

    /// `name`: below the hook directory.
    fn selects(self, name: &OsStr) -> bool {
        let (name, word) = (name.as_bytes(), self.word().as_bytes());
        name.windows(word.len()).any(|w| w == word) || self == Phase::Forward && !name.contains(&b'/')
    }
}

/// The phases of a run. Clean-up cannot be requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is a flag of the command line, in any combination
pub struct Phases {
    pub before: bool,
    pub forward: bool,
    pub after: bool,
    pub commit: bool,
}

impl Phases {
    const NONE: Phases = Phases { before: false, forward: false, after: false, commit: false };
    pub const FORWARD: Phases = Phases { forward: true, ..Self::NONE };
    pub const BEFORE: Phases = Phases { before: true, ..Self::NONE };
    pub const AFTER: Phases = Phases { after: true, ..Self::NONE };
    pub const COMMIT: Phases = Phases { commit: true, ..Self::NONE };
    pub const FULL: Phases = Phases { before: true, forward: true, after: true, commit: false };

    pub(super) fn requested(self) -> impl Iterator<Item = Phase> {
        let all = [
            (self.before, Phase::Before),
            (self.forward, Phase::Forward),
            (self.after, Phase::After),
            (self.commit, Phase::Commit),
        ];
        all.into_iter().filter(|(requested, _)| *requested).map(|(_, phase)| phase)
    }
}

impl Default for Phases {
    fn default() -> Self {
        Self::FORWARD
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    pub phase: Phase,
    pub path: PathBuf,
    pub name: String,
}

#[derive(Debug)]
pub(super) struct Hooks {
    dir: PathBuf,
    names: Vec<PathBuf>,
}

impl Hooks {
    /// All regular files below `dir`; none where the folder is missing.
    pub(super) fn in_dir(dir: &Path) -> Result<Hooks> {
        let mut names = Vec::new();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let path = dir.join(&folder);
            let failed = |e: io::Error| {
                let text = format!("cannot list the hooks in {}", path.display());
                Error::new(Code::Io, text).object(path.display()).because(e)
            };
            let entries = match fs::read_dir(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound && folder.as_os_str().is_empty() => break,
                entries => entries.map_err(failed)?,
            };
            for entry in entries {
                let entry = entry.map_err(failed)?;
                let kind = entry.file_type().map_err(failed)?;
                let name = folder.join(entry.file_name());
                if kind.is_dir() {
                    folders.push(name);
                } else if kind.is_file() {
                    names.push(name);
                }
            }
        }
        // By bytes: the order of `Path` compares parts, and would put `a/x` before `a-b`.
        names.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
        Ok(Hooks { dir: dir.to_owned(), names })
    }

    pub(super) fn of(&self, phase: Phase) -> Vec<Hook> {
        let selected = self.names.iter().filter(|n| phase.selects(n.as_os_str()));
        let hook = |name: &PathBuf| Hook {
            phase,
            path: self.dir.join(name),
            name: name.to_string_lossy().into_owned(),
        };
        selected.map(hook).collect()
    }

    /// In the order in which they run, each once: in the first phase that selects it.
    pub(super) fn of_all(&self, phases: Phases) -> Vec<Hook> {
        let mut seen = BTreeSet::new();
        let mut all: Vec<Hook> = phases.requested().flat_map(|phase| self.of(phase)).collect();
        all.retain(|hook| seen.insert(hook.path.clone()));
        all
    }
}
