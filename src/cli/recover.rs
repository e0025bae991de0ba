//! `copal recover`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};

use super::{Ui, refuse_without_root};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::job::lock::{Lock, Work};
use crate::luks::recovery::{self, Recovery};
use crate::sys::{limits, terminal};
use crate::unlock;

const STDIN: &str = "stdin";

/// For an owner who has to look for it.
const TIMEOUT: Duration = Duration::from_secs(600);

/// More than 64 digits, with a lot of space around.
const MAX_BYTES: usize = 1024;

const AFTER_HELP: &str = "\
The owner decrypts the passphrase, where the private key is, from the file
recovery.enc of the partition balena-efi, or from the receipt:
  openssl pkeyutl -decrypt -inkey key.pem -pkeyopt rsa_padding_mode:oaep \\
    -pkeyopt rsa_oaep_md:sha256 -in recovery.enc

Exit codes:
  0  done, or nothing to do
  1  the disk is unlocked, and an old key is left: run it again
  2  wrong arguments
  3  refused: nothing was changed
  4  failed after a change: run it again; the recovery passphrase is valid
  5  busy: an update is running";

/// Let the TPM unlock the disk again, with the recovery passphrase
///
/// For a device with UEFI and a TPM whose firmware, TPM or board has changed:
/// on its own system, or on a medium that was started there. Each encrypted
/// partition gets a new key, and the TPM its passphrase for the next start; the
/// recovery passphrase stays valid. May be repeated after a power cut.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment, after_help = AFTER_HELP)]
pub(super) struct RecoverArgs {
    /// Its file; on a terminal, it is asked for
    #[arg(long, value_name = "FILE|stdin", default_value = STDIN, hide_default_value = true, value_hint = ValueHint::FilePath)]
    passphrase_file: PathBuf,
}

pub(super) fn run_recover(args: &RecoverArgs, ui: &Ui) -> Result<()> {
    refuse_without_root("copal recover", Path::new("/"))?;
    let paths = Paths::default();
    limits::forbid_core_dumps();
    let lock = Lock::take(&paths, "copal recover", Work::BootState)?;
    let done = unlock::recover(&paths, &|| passphrase(&args.passphrase_file))?;
    lock.release();
    ui.text(&format!("{done}\n"));
    Ok(())
}

fn passphrase(path: &Path) -> Result<Recovery> {
    if path != Path::new(STDIN) {
        let file = File::open(path).map_err(|e| unreadable(path, e))?;
        return read(path, file);
    }
    match terminal::of_stdin() {
        // Not through a buffer of the library, which is not wiped.
        None => io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| unreadable(path, e))
            .and_then(|fd| read(path, File::from(fd))),
        Some(terminal) => unlock::recovery_entered(&terminal, Instant::now() + TIMEOUT)?
            .ok_or_else(|| recovery::wrong("it was not entered")),
    }
}

fn read(path: &Path, mut from: impl Read) -> Result<Recovery> {
    let mut text = [0; MAX_BYTES];
    limits::keep_in_memory(&text);
    let mut length = 0;
    let done = loop {
        match from.read(text.get_mut(length..).unwrap_or_default()) {
            Ok(0) => break Recovery::of_text(text.get(..length).unwrap_or_default()),
            Ok(n) => length += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => break Err(unreadable(path, e)),
        }
    };
    limits::wipe(&mut text);
    done
}

fn unreadable(path: &Path, e: io::Error) -> Error {
    let path = path.display();
    Error::new(Code::Io, format!("cannot read the recovery passphrase from {path}")).object(path).because(e)
}
