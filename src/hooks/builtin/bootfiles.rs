//! `1-bootfiles`: deploys the boot files of a release. See `docs/hooks-bootfiles.md`.
//!
//! The shell file `hooks/1-bootfiles` sets the variables below: a recipe fills it in, and only a shell file can call the functions of a
//! board. Boards install copies under other names, which deploy to the non-encrypted boot partition.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use super::Context;
use crate::boot_files::deploy::{Board, DeployRequest, FINGERPRINT, Purpose};
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::{Code, Error, Result};
use crate::slot::{Roots, Slot};
use crate::state::files::RollbackRecord;

/// The first name deploys to the boot partition, the others to the non-encrypted one.
pub(crate) const NAMES: &[&str] = &["1-bootfiles", "2-rpifiles", "2-imxfiles"];

const NAME_VARIABLE: &str = "COPAL_BOOTFILES_NAME";
const ROOT_VARIABLE: &str = "COPAL_BOOTFILES_ROOT";
const FINGERPRINT_VARIABLE: &str = "COPAL_BOOTFILES_FINGERPRINT";
/// Paths below the boot partition that are never deployed, separated by blanks.
const BLACKLIST_VARIABLE: &str = "COPAL_BOOTFILES_BLACKLIST";
/// Whether standard input has the files that the board skips, one path a line.
const PASSED_OVER_VARIABLE: &str = "COPAL_BOOTFILES_PASSED_OVER";

pub const VARIABLES: &[&str] =
    &[NAME_VARIABLE, ROOT_VARIABLE, FINGERPRINT_VARIABLE, BLACKLIST_VARIABLE, PASSED_OVER_VARIABLE];

/// In bytes. No boot partition has so many files.
const MAX_INPUT_BYTES: u64 = 4 << 20;

pub fn run(context: &Context) -> Result<()> {
    let call = Call::of(&context.called, |name| std::env::var_os(name), io::stdin())?;
    let paths = &context.paths;
    let roots = Roots::of(&Facts::gather(paths)?)?;
    let (purpose, root) = match context.during_update {
        true => {
            let inactive = roots.inactive()?;
            (purpose_for(paths, inactive.slot), inactive)
        }
        false => (Purpose::Undo, &roots.active),
    };
    let mut request = DeployRequest::new(paths, root, purpose)?;
    if let Some(root) = &call.root {
        request.source = root.join("resin-boot");
    }
    if call.name != NAMES.first().copied().unwrap_or_default() {
        request.target = paths.plain_boot();
    }
    request.board = call.board;
    request.boots_now = Some(roots.active.index);
    let done = request.deploy()?;
    tracing::info!("boot files of slot {} on {}: {done}", request.owner, request.target.display());
    Ok(())
}

/// A rollback also runs the hooks of the inactive slot as an update does. They must not refuse boot files for lack of space: the failed
/// release still has its files there, and nothing would boot.
fn purpose_for(paths: &Paths, inactive: Slot) -> Purpose {
    if RollbackRecord::is_at_work(paths, inactive) { Purpose::Undo } else { Purpose::Update }
}

#[derive(Debug)]
pub struct Call {
    pub name: String,
    /// The root file system with the release, where it is not the caller's own.
    pub root: Option<PathBuf>,
    pub board: Board,
}

impl Call {
    pub fn of(called: &str, variable: impl Fn(&str) -> Option<OsString>, input: impl Read) -> Result<Call> {
        // An unreplaced placeholder of the recipe begins with `@`.
        let set = |name: &str| variable(name).filter(|v| !v.is_empty() && !v.as_bytes().starts_with(b"@"));
        let name = set(NAME_VARIABLE).map_or_else(|| called.to_owned(), |n| n.to_string_lossy().into_owned());
        let fingerprint = set(FINGERPRINT_VARIABLE).unwrap_or_else(|| FINGERPRINT.into());
        if Path::new(&fingerprint).file_name() != Some(&fingerprint) {
            return Err(wrong(FINGERPRINT_VARIABLE, "is not the name of a file"));
        }
        let mut board = Board { fingerprint, ..Board::default() };
        let list = set(BLACKLIST_VARIABLE).unwrap_or_default();
        let words = list.as_bytes().split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
        board.skip.extend(words.map(below));
        match set(PASSED_OVER_VARIABLE) {
            None => {}
            Some(v) if v == "stdin" => board.passed_over = lines(input)?,
            Some(_) => return Err(wrong(PASSED_OVER_VARIABLE, "has to be `stdin`")),
        }
        Ok(Call { name, root: set(ROOT_VARIABLE).map(PathBuf::from), board })
    }
}

/// Repeated slashes count as one.
fn below(path: &[u8]) -> PathBuf {
    let parts = Path::new(OsStr::from_bytes(path)).components();
    parts.filter(|c| matches!(c, Component::Normal(_))).collect()
}

fn lines(input: impl Read) -> Result<BTreeSet<PathBuf>> {
    let mut text = Vec::new();
    let read = input.take(MAX_INPUT_BYTES + 1).read_to_end(&mut text);
    read.map_err(|e| wrong(PASSED_OVER_VARIABLE, "announces paths that cannot be read").because(e))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_INPUT_BYTES {
        return Err(wrong(PASSED_OVER_VARIABLE, "announces paths without end"));
    }
    let lines = text.split(|&b| b == b'\n').filter(|l| !l.is_empty());
    Ok(lines.map(|l| below(&OsString::from_vec(l.to_vec()).into_vec())).collect())
}

fn wrong(name: &str, what: &str) -> Error {
    Error::new(Code::Usage, format!("cannot deploy boot files: {name} {what}"))
        .object(name)
        .with_hint("install the hook 1-bootfiles of this release")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(set: &[(&str, &str)], input: &str) -> Result<Call> {
        let find = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        Call::of("1-bootfiles", find, input.as_bytes())
    }

    #[test]
    fn without_a_word_all_is_as_built_in() {
        for unset in [
            &[][..],
            &[(FINGERPRINT_VARIABLE, "@BALENA_BOOT_FINGERPRINT@"), (BLACKLIST_VARIABLE, "@BALENA_X@")],
        ] {
            let call = call(unset, "not read").unwrap();
            assert_eq!((call.name.as_str(), call.root), ("1-bootfiles", None));
            assert_eq!(call.board, Board::default());
        }
    }

    #[test]
    fn what_the_shell_file_hands_on() {
        let set = [
            (NAME_VARIABLE, "2-rpifiles"),
            (ROOT_VARIABLE, "/new"),
            (FINGERPRINT_VARIABLE, "resinos.fingerprint"),
            (BLACKLIST_VARIABLE, "\t/config.json \t//EFI/BOOT/own\n /a"),
            (PASSED_OVER_VARIABLE, "stdin"),
        ];
        let call = call(&set, "/EFI/a b\n\n/x\n").unwrap();
        assert_eq!((call.name.as_str(), call.root), ("2-rpifiles", Some("/new".into())));
        assert_eq!(call.board.fingerprint, "resinos.fingerprint");
        assert_eq!(call.board.skip, [PathBuf::from("config.json"), "EFI/BOOT/own".into(), "a".into()]);
        assert_eq!(call.board.passed_over, BTreeSet::from(["EFI/a b".into(), "x".into()]));
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        for set in
            [(FINGERPRINT_VARIABLE, "../x"), (FINGERPRINT_VARIABLE, "a/b"), (PASSED_OVER_VARIABLE, "4")]
        {
            assert_eq!(call(&[set], "").unwrap_err().code(), Code::Usage, "{set:?}");
        }
    }
}
