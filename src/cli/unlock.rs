//! `copal unlock`.

use std::path::Path;

use super::{Ui, refuse_without_root};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::unlock::{self, Opened};

pub(super) fn run_unlock(ui: &Ui) -> Result<()> {
    refuse_without_root("copal unlock", Path::new("/"))?;
    ui.text(&match unlock::open_partitions(&Paths::default())? {
        Opened::Partitions(names) => format!("{} encrypted partitions are open\n", names.len()),
        Opened::Nothing(why) => format!("nothing is unlocked: {why}\n"),
    });
    Ok(())
}
