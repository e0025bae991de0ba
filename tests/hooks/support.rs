//! A root folder with hooks in it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use copal::config::paths::Paths;
use copal::hooks::{Phases, Run, Signals};
use tempfile::TempDir;

use crate::kit::log::Line;
pub(crate) use crate::kit::log::lines as logged;
pub(crate) use crate::kit::process::{program, soon};

pub(crate) const COPAL: &str = env!("CARGO_BIN_EXE_copal");
pub(crate) const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hooks/stand-in.sh");

/// What a hook does that only tells that it ran: its path below the hook directory, ended by a NUL, goes to `$OUT`.
pub(crate) const TELLS: &str =
    "#!/bin/sh\nprintf '%s\\0' \"${0#\"$HOOKS_DIR\"}\" >>\"${HOOKS_DIR%hooks/}out\"\n";

pub(crate) struct Site {
    dir: TempDir,
}

impl Site {
    pub(crate) fn new() -> Site {
        let site = Site { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(site.hooks()).unwrap();
        site
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn paths(&self) -> Paths {
        Paths::new(self.dir.path())
    }

    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn hooks(&self) -> PathBuf {
        self.at("hooks")
    }

    /// A hook with `text`, mode 0755.
    pub(crate) fn hook(&self, name: &str, text: &str) -> PathBuf {
        program(&self.hooks().join(name), text, "755")
    }

    /// Hooks that only tell that they ran, and end with a status.
    pub(crate) fn tell(&self, hooks: &[(&str, u8)]) {
        for (name, status) in hooks {
            self.hook(name, &format!("{TELLS}exit {status}\n"));
        }
    }

    /// The hooks that told, in their order.
    pub(crate) fn told(&self) -> Vec<String> {
        split(&std::fs::read(self.at("out")).unwrap_or_default())
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    pub(crate) fn run(&self, phases: Phases) -> Run {
        Run {
            phases,
            dir: self.hooks(),
            during_update: "0".into(),
            more: &[],
            limit: None,
            signals: Signals::StopBetweenHooks,
        }
    }

    /// `copal hooks`, below this root.
    pub(crate) fn copal(&self, args: &[&str]) -> Command {
        let mut command = clean(COPAL);
        command.arg("hooks").args(args).arg("--root").arg(self.path()).arg("--dir").arg(self.hooks());
        command
    }
}

/// With nothing in its environment that could change what it does.
pub(crate) fn clean(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for variable in
        ["COPAL_LOG", "COPAL_HOOK_TIMEOUT", "DURING_UPDATE", "HOOKS_DIR", "CONFIG_PATH", "NOTIFY_SOCKET"]
    {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

/// Words that end with a NUL.
pub(crate) fn split(bytes: &[u8]) -> Vec<String> {
    let words = bytes.split_inclusive(|b| *b == 0).map(|w| w.strip_suffix(b"\0").unwrap());
    words.map(|w| escape(OsStr::from_bytes(w))).collect()
}

/// As in the files of `order/`.
pub(crate) fn escape(name: &OsStr) -> String {
    let chunk = |c: std::str::Utf8Chunk<'_>| {
        let bytes: String = c.invalid().iter().map(|b| format!("\\x{b:02x}")).collect();
        let plain = |c: char| match c {
            c if c.is_ascii_control() => format!("\\x{:02x}", u32::from(c)),
            c => c.to_string(),
        };
        c.valid().chars().map(plain).collect::<String>() + &bytes
    };
    name.as_bytes().utf8_chunks().map(chunk).collect()
}

pub(crate) fn texts(lines: &[Line]) -> Vec<&str> {
    lines.iter().map(|l| l.text.as_str()).collect()
}
