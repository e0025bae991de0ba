//! Starts the system that a slot holds as a container.
//!
//! As the first program, with a slot as root, it mounts the layers of the slot's current container, makes them the root, and
//! executes `/sbin/init` there. With `-sysroot DIR` it mounts those of another slot, and says where. It is the boards' stand-in for
//! mobynit, whose documented behaviour it has; extensions of the host OS are not overlaid.

mod boot;
mod container;
mod mounts;

use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What to do.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    /// Start the system of the slot that is the root.
    Boot,
    /// Mount the root of the slot at this path.
    Mount(PathBuf),
}

/// `-sysroot DIR` as programs in Go take it, with one dash or two. The kernel hands its first program whatever words it does not know
/// itself, so nothing else is an error there.
fn task(arguments: &[OsString], first: bool) -> Result<Task, String> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let Some(text) = argument.to_str() else { continue };
        let option = text.strip_prefix("--").or_else(|| text.strip_prefix('-')).unwrap_or("");
        let dir = match option.split_once('=') {
            Some(("sysroot", dir)) => Some(PathBuf::from(dir)),
            None if option == "sysroot" => rest.next().map(PathBuf::from),
            _ => continue,
        };
        return match dir {
            Some(dir) if dir.is_absolute() => Ok(Task::Mount(dir)),
            Some(dir) => Err(format!("-sysroot {}: call it with the absolute path of a slot", dir.display())),
            None => Err("-sysroot: say which slot, as in -sysroot /mnt/sysroot/inactive".into()),
        };
    }
    if first {
        Ok(Task::Boot)
    } else {
        Err("only the first program starts a system; call it as init -sysroot DIR to mount that of a slot"
            .into())
    }
}

fn run(arguments: &[OsString], first: bool) -> Result<(), Box<dyn Error>> {
    let (name, rest) = arguments.split_first().ok_or("started without a name")?;
    match task(rest, first)? {
        Task::Boot => Err(boot::boot(Path::new("/"), name, rest)),
        Task::Mount(slot) => {
            let path = container::current(&slot)?.mount_beside()?;
            // The caller takes all that is printed as the path.
            std::io::stdout().write_all(path.as_os_str().as_bytes())?;
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match run(&arguments, std::process::id() == 1) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // There is nowhere to report a failure of this. After the first program the kernel panics, and the bootloader counts.
            drop(writeln!(std::io::stderr(), "init: {e}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str], first: bool) -> Result<Task, String> {
        task(&words.iter().map(OsString::from).collect::<Vec<_>>(), first)
    }

    #[test]
    fn every_spelling_of_the_option() {
        for words in
            [&["-sysroot", "/slot"][..], &["--sysroot", "/slot"], &["-sysroot=/slot"], &["--sysroot=/slot"]]
        {
            assert_eq!(of(words, false), Ok(Task::Mount("/slot".into())), "{words:?}");
        }
    }

    #[test]
    fn words_of_the_kernel_command_line_are_for_the_system() {
        assert_eq!(of(&["single", "-b", "sysroot=/x", "flasher"], true), Ok(Task::Boot));
    }

    #[test]
    fn a_call_that_says_nothing_is_refused() {
        assert!(of(&[], false).unwrap_err().contains("-sysroot DIR"));
        assert!(of(&["-sysroot"], false).unwrap_err().contains("which slot"));
        assert!(of(&["-sysroot", "slot"], false).unwrap_err().contains("absolute"));
    }
}
