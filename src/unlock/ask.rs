//! Asks at the terminal for the recovery passphrase.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use super::seal;
use crate::error::{Error, Result};
use crate::luks::passphrase::Passphrase;
use crate::luks::recovery::{self, Recovery};
use crate::sys::limits::{self, wipe};
use crate::sys::terminal::{self, Echo};
use crate::tpm::Tpm;

/// A device without a person at it goes on to fail: its start counts for the rollback.
const TIMEOUT: Duration = Duration::from_secs(60);
const TRIES: u32 = 3;

/// More than the 64 digits, with a lot of space around.
const LINE: usize = 256;

/// Where the TPM does not unlock the disk, because of `e`: opens the disk with the recovery passphrase, if there is one, and a person at standard
/// input who knows it. `plain`: the mount point of the partition that is not encrypted. `tpm`: is [closed](seal::close) before.
pub(super) fn instead<T>(
    plain: &Path,
    tpm: Result<Tpm>,
    e: Error,
    open: impl FnMut(&Passphrase) -> Result<T>,
) -> Result<T> {
    let Some(terminal) = terminal::of_stdin().filter(|_| plain.join(recovery::FILE).is_file()) else {
        return Err(e);
    };
    if let Err(also) = tpm.and_then(|mut tpm| seal::close(&mut tpm)) {
        let why = format!("the recovery passphrase is not asked for: {}", also.message());
        return Err(e.and_also(&why));
    }
    say(&terminal, &e.message());
    let Some(opened) = opened_by_person(&terminal, Instant::now() + TIMEOUT, open) else {
        return Err(e.and_also("the recovery passphrase was not entered"));
    };
    tracing::warn!(
        "the recovery passphrase has opened the disk; each initramfs of a start asks for it, until `copal recover` was run in the system"
    );
    Ok(opened)
}

/// `None`: it was not entered in time, or was wrong each time.
fn opened_by_person<T>(
    terminal: &File,
    deadline: Instant,
    mut open: impl FnMut(&Passphrase) -> Result<T>,
) -> Option<T> {
    for _ in 0..TRIES {
        let opened = match entered(terminal, deadline) {
            Ok(None) => return None,
            Ok(Some(recovery)) => recovery.passphrase().and_then(|passphrase| open(&passphrase)),
            Err(e) => Err(e),
        };
        match opened {
            Ok(opened) => return Some(opened),
            Err(e) => say(terminal, &e.message()),
        }
    }
    None
}

/// `None`: not before the deadline.
pub(crate) fn entered(terminal: &File, deadline: Instant) -> Result<Option<Recovery>> {
    let mut line = [0; LINE];
    limits::keep_in_memory(&line);
    let read =
        terminal::ask(terminal, "recovery passphrase (64 hex digits): ", Echo::Hidden, deadline, &mut line);
    let recovery = match read {
        Ok(None) => Ok(None),
        Ok(Some(length)) => Recovery::of_text(line.get(..length).unwrap_or_default()).map(Some),
        Err(e) => Err(recovery::wrong("it cannot be read from the terminal").because(e)),
    };
    wipe(&mut line);
    recovery
}

/// A terminal that has gone changes nothing: the wait ends.
fn say(terminal: &File, text: &str) {
    drop(terminal::put(terminal, &format!("{text}\n")));
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::thread;

    use nix::pty::openpty;

    use super::*;
    use crate::error::Code;

    const RIGHT: &str = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";

    /// What a person who enters these lines, one after each question, gets to see, and which passphrases were tried.
    fn person(lines: &[&str], seconds: u64) -> (String, Vec<String>, bool) {
        let pair = openpty(None, None).unwrap();
        let (master, terminal) = (File::from(pair.master), File::from(pair.slave));
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let typing = thread::spawn(move || {
            let (mut seen, mut piece, mut lines) = (String::new(), [0; 4096], lines.into_iter());
            let mut asked = 0;
            // An error: the terminal has gone.
            while let Ok(n) = (&master).read(&mut piece) {
                seen += &String::from_utf8_lossy(&piece[..n]);
                while seen.matches("digits): ").count() > asked {
                    asked += 1;
                    if let Some(line) = lines.next() {
                        (&master).write_all(line.as_bytes()).unwrap();
                    }
                }
            }
            seen
        });
        let mut tried = Vec::new();
        let opened =
            opened_by_person(&terminal, Instant::now() + Duration::from_secs(seconds), |passphrase| {
                let mut text = String::new();
                passphrase.input().unwrap().read_to_string(&mut text).unwrap();
                tried.push(text);
                if tried.last().unwrap().starts_with("00112233") {
                    Ok(())
                } else {
                    Err(recovery::wrong("no slot takes it"))
                }
            });
        drop(terminal);
        (typing.join().unwrap(), tried, opened.is_some())
    }

    #[test]
    fn a_person_has_three_tries_and_sees_nothing_of_what_is_typed() {
        let (right, wrong) = (format!("  {RIGHT} \n"), format!("{}\n", "f".repeat(64)));
        let (seen, tried, opened) = person(&["hello\n", &wrong, &right], 60);
        assert!(opened);
        assert_eq!(tried, ["f".repeat(64), RIGHT.to_lowercase()]);
        assert!(seen.contains("64 hex digits") && seen.contains("no slot takes it"), "{seen}");
        assert!(!seen.contains("hello") && !seen.contains("ffff") && !seen.contains("0011"), "{seen}");

        let (seen, tried, opened) = person(&[&wrong, &wrong, &wrong, &right], 60);
        assert!(!opened && tried.len() == 3, "{tried:?}");
        assert_eq!(seen.matches("digits): ").count(), 3, "{seen}");
        // Longer than any; the rest of it is not the next try.
        let (_, tried, opened) = person(&[&format!("{}\n", "0".repeat(1000)), &right], 60);
        assert!(opened && tried.len() == 1, "{tried:?}");
    }

    #[test]
    fn the_wait_for_a_person_ends() {
        let (_, tried, opened) = person(&["no end of a line"], 1);
        assert!(!opened && tried.is_empty());
        // The terminal says that nothing more comes.
        let (_, _, opened) = person(&["\u{4}"], 60);
        assert!(!opened);
        let e = Error::new(Code::WouldNotUnlock, "because of this");
        let folder = tempfile::tempdir().unwrap();
        let same = instead::<()>(folder.path(), Err(e.clone()), e.clone(), |_| unreachable!());
        assert_eq!(same.unwrap_err(), e);
    }
}
