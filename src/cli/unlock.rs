//! `copal unlock`.

use std::path::Path;

use super::{Ui, refuse_without_root};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::sys::limits;
use crate::unlock::{self, Opened};

pub(super) const AFTER_HELP: &str = "\
Where the TPM does not give the passphrase, and the disk has a recovery slot:
asks for the recovery passphrase on a terminal, for a minute.

Exit codes:
  0  the partitions are open, or there is nothing to open
  3  the disk stays locked: the message says why
  4  a partition could not be opened";

pub(super) fn run_unlock(ui: &Ui) -> Result<()> {
    refuse_without_root("copal unlock", Path::new("/"))?;
    limits::forbid_core_dumps();
    ui.text(&match unlock::open_partitions(&Paths::default())? {
        Opened::Partitions(names) => format!("{} encrypted partitions are open\n", names.len()),
        Opened::Nothing(why) => format!("nothing is unlocked: {why}\n"),
    });
    Ok(())
}
