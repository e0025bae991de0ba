//! `hostapp-update-hooks` and `hostapp-update-hooks-v2`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use super::{Hook, Phases, Run, run};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::log::printable;

pub const HELP: &str = "\
Usage: hostapp-update-hooks [options]

Runs the hooks of host OS updates: the forward hooks, unless options name
others. Options may be combined.

  -a, --after     run the `after` hooks instead
  -b, --before    run the `before` hooks instead
  -c, --commit    run the `commit` hooks instead
  -d, --dir DIR   where the hooks are [default: /etc/hostapp-update-hooks.d/]
  -f, --full      run the `before`, forward and `after` hooks
      --list      print what would run, and run nothing
  -h, --help      print this

DURING_UPDATE in the environment, 0 where it is missing, is handed on to the
hooks: 1 while a release is installed. COPAL_HOOK_TIMEOUT limits the time of
each hook, in seconds; without it there is no limit.
";

#[derive(Debug, PartialEq, Eq)]
pub enum Arguments {
    Help,
    Hooks { phases: Phases, dir: Option<PathBuf>, list: bool },
}

/// Unknown arguments are ignored with a warning: other releases may have more.
pub fn parse(args: &[OsString]) -> Result<Arguments> {
    // As in the script: forward hooks run unless another phase is given without `--full` after it.
    let (mut phases, mut dir, mut list) = (Phases::FORWARD, None, false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_bytes() {
            b"-a" | b"--after" => phases = Phases { after: true, forward: false, ..phases },
            b"-b" | b"--before" => phases = Phases { before: true, forward: false, ..phases },
            b"-c" | b"--commit" => phases = Phases { commit: true, forward: false, ..phases },
            b"-f" | b"--full" => phases = Phases { commit: phases.commit, ..Phases::FULL },
            b"-d" | b"--dir" => dir = Some(directory(args.next().map(OsString::as_os_str))?),
            b"--list" => list = true,
            b"-h" | b"--help" => return Ok(Arguments::Help),
            other => match other.strip_prefix(b"--dir=") {
                Some(value) => dir = Some(directory(Some(OsStr::from_bytes(value)))?),
                None => tracing::warn!("ignoring the unknown argument '{}'", arg.to_string_lossy()),
            },
        }
    }
    Ok(Arguments::Hooks { phases, dir, list })
}

fn directory(value: Option<&OsStr>) -> Result<PathBuf> {
    value.filter(|v| !v.is_empty()).map(PathBuf::from).ok_or_else(|| {
        Error::new(Code::Usage, "--dir needs a directory").object("--dir").with_hint("run it with --help")
    })
}

pub fn main(args: &[OsString], paths: &Paths) -> Result<Option<Vec<u8>>> {
    let (phases, dir, list) = match parse(args)? {
        Arguments::Help => return Ok(Some(HELP.into())),
        Arguments::Hooks { phases, dir, list } => (phases, dir, list),
    };
    let request = Run::of_environment(paths, phases, dir)?;
    if list {
        return Ok(Some(lines(&request.list()?).into_bytes()));
    }
    run(paths, &request)?;
    Ok(None)
}

/// One line a hook, whatever characters its name has.
#[must_use]
pub fn lines(hooks: &[Hook]) -> String {
    let line = |h: &Hook| format!("{}\n", printable(&h.path.to_string_lossy()));
    hooks.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(line: &str) -> String {
        let args: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        match parse(&args).unwrap() {
            Arguments::Hooks { phases, .. } => phases.requested().map(|p| &p.word()[..1]).collect(),
            Arguments::Help => "help".into(),
        }
    }

    #[test]
    fn flags_combine_as_in_the_script() {
        for (line, expected) in [
            ("", "f"),
            ("-a", "a"),
            ("--before", "b"),
            ("-c", "c"),
            ("-b -a", "ba"),
            ("-a -b -c", "bac"),
            ("-f", "bfa"),
            ("-b --full", "bfa"),
            ("-f -b", "ba"),
            ("--full --commit", "bac"),
            ("-c -f", "bfac"),
            ("--what -x y", "f"),
            ("--what -h -d", "help"),
        ] {
            assert_eq!(phases(line), expected, "{line}");
        }
    }

    #[test]
    fn a_directory_is_the_next_word_whatever_it_is() {
        let dir = |args: &[&str]| match parse(&args.iter().map(OsString::from).collect::<Vec<_>>()) {
            Ok(Arguments::Hooks { dir, .. }) => dir,
            other => panic!("{other:?}"),
        };
        assert_eq!(dir(&[]), None);
        assert_eq!(dir(&["-d", "/x y/"]), Some("/x y/".into()));
        assert_eq!(dir(&["--dir", "-b"]), Some("-b".into()));
        assert_eq!(dir(&["--dir=/x"]), Some("/x".into()));
        for wrong in [&["-d"][..], &["-b", "--dir"], &["--dir", ""], &["--dir="]] {
            let args: Vec<OsString> = wrong.iter().map(OsString::from).collect();
            assert_eq!(parse(&args).unwrap_err().code(), Code::Usage, "{wrong:?}");
        }
    }
}
