use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Shells whose `-x` traces, by base name. Other interpreters use it for something else.
const SHELLS: [&str; 7] = ["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"];

/// Programs that start the interpreter in their argument.
const STARTERS: [&str; 2] = ["env", "busybox"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// `#!`: the interpreter, and the one argument that the kernel makes of the rest of the line.
    Named(PathBuf, Option<OsString>),
    /// Text without an interpreter.
    Text,
    /// ELF, or a format that is registered with the kernel.
    Binary,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    pub start: Start,
    /// By its mode.
    pub executable: bool,
}

impl Script {
    pub fn of(path: &Path) -> io::Result<Script> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file"));
        }
        let mut head = Vec::new();
        File::open(path)?.take(256).read_to_end(&mut head)?;
        Ok(Script { start: start(&head), executable: is_executable(path) })
    }

    pub(crate) fn check_interpreter(&self) -> io::Result<()> {
        match &self.start {
            Start::Named(name, _) if !is_executable(name) => {
                let why = format!("its interpreter {} is missing", name.display());
                Err(io::Error::new(io::ErrorKind::NotFound, why))
            }
            _ => Ok(()),
        }
    }

    #[must_use]
    pub(crate) fn is_for_shell(&self) -> bool {
        match &self.start {
            Start::Text => true,
            Start::Binary => false,
            Start::Named(name, argument) => {
                is_one_of(name.as_os_str(), &SHELLS)
                    || is_one_of(name.as_os_str(), &STARTERS)
                        && argument
                            .as_ref()
                            .is_some_and(|a| first_name(a).is_some_and(|n| is_one_of(n, &SHELLS)))
            }
        }
    }
}

/// By its mode; plain files only.
pub(super) fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn start(head: &[u8]) -> Start {
    let Some(rest) = head.strip_prefix(b"#!") else {
        return if head.contains(&0) { Start::Binary } else { Start::Text };
    };
    let line = rest.split(|&b| b == b'\n').next().unwrap_or_default().trim_ascii();
    let end = line.iter().position(|b| b" \t\r".contains(b)).unwrap_or(line.len());
    let (name, argument) = line.split_at(end);
    let argument = argument.trim_ascii();
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    Start::Named(text(name).into(), (!argument.is_empty()).then(|| text(argument)))
}

/// The first word that is neither an option nor an assignment: the program that `env` starts.
fn first_name(argument: &OsStr) -> Option<&OsStr> {
    let mut words = argument.as_bytes().split(|b| b" \t".contains(b));
    words.find(|w| !w.is_empty() && !w.starts_with(b"-") && !w.contains(&b'=')).map(OsStr::from_bytes)
}

fn is_one_of(name: &OsStr, names: &[&str]) -> bool {
    Path::new(name).file_name().is_some_and(|n| names.iter().any(|s| n == *s))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(head: &str) -> bool {
        Script { start: start(head.as_bytes()), executable: true }.is_for_shell()
    }

    #[test]
    fn the_first_line_is_read_as_the_kernel_does() {
        let named = |name: &str, argument: Option<&str>| Start::Named(name.into(), argument.map(Into::into));
        assert_eq!(start(b"#!/bin/sh\necho"), named("/bin/sh", None));
        assert_eq!(start(b"#! /bin/bash -e  -u \n"), named("/bin/bash", Some("-e  -u")));
        assert_eq!(start(b"#!/bin/sh"), named("/bin/sh", None));
        assert_eq!(start(b"echo\n"), Start::Text);
        assert_eq!(start(b""), Start::Text);
        assert_eq!(start(b"\x7fELF\x02\x01\x01\0"), Start::Binary);
    }

    #[test]
    fn shells_are_recognised_after_env_and_busybox_too() {
        for head in
            ["#!/bin/sh\n", "#!/bin/bash -e\n", "#!/usr/bin/env bash\n", "#!/bin/busybox sh\n", "echo\n"]
        {
            assert!(shell(head), "{head}");
        }
        assert!(shell("#!/usr/bin/env -S LC_ALL=C /bin/dash -e\n"));
        for head in
            ["#!/usr/bin/python3\n", "#!/usr/bin/env python3\n", "#!/usr/bin/awk -f\n", "#!/bin/busybox\n"]
        {
            assert!(!shell(head), "{head}");
        }
    }
}
