//! The flasher: read the board's configuration, choose the target, write the image, prove that it is there.

use std::ffi::OsString;

pub mod board;
pub mod bootpart;
pub mod chunks;
pub mod compare;
pub mod digest;
pub mod ending;
pub mod image;
pub mod install;
pub mod job;
pub mod milestone;
pub mod plan;
pub mod plugin;
pub mod progress;
pub mod receipt;
mod shell;
pub mod target;
pub mod watch;
pub mod write;

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use job::Request;
use watch::Watch;

/// `resin-init-flasher`: installs, and ends the running system. Takes no arguments.
///
/// # Errors
/// [`Code::Usage`] for arguments, then those of [`install::run`] and [`ending::now`]. On success it does not return.
pub fn resin_init_flasher(args: &[OsString]) -> Result<()> {
    if let Some(arg) = args.first() {
        let message =
            format!("unexpected argument '{}': this program takes none, and flashes", arg.to_string_lossy());
        return Err(
            Error::new(Code::Usage, message).with_hint("see `copal help flash` for a flasher with arguments")
        );
    }
    let request = Request::of_environment(Paths::default());
    let shown = progress::for_service();
    let installed = install::run(&request, &Watch::new(&shown, &request.paths, None), &|_| Ok(()))?;
    Err(ending::now(installed.ending, &installed.environment, Some(request.flasher_conf())))
}
