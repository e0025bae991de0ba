//! `copal update`.

use std::path::absolute;

use super::{Ui, UpdateArgs};
use crate::config::paths::Paths;
use crate::daemon::{IN_DAEMON, client};
use crate::error::{Code, Error, Result};
use crate::update::{Installed, Request, Source};

/// Updates: hands `args` to the update, and what came of it to `ui`.
pub(super) fn run_update(args: &UpdateArgs, ui: &Ui) -> Result<()> {
    let source = match (&args.file, &args.image) {
        (Some(file), _) => Source::File(absolute(file).unwrap_or_else(|_| file.clone())),
        (None, Some(image)) => Source::Reference(image.clone()),
        (None, None) => return Err(Error::new(Code::Usage, "--file or --image is needed")),
    };
    let request = Request {
        paths: Paths::default(),
        program: std::env::var(IN_DAEMON).unwrap_or_else(|_| "copal update".to_owned()),
        source,
        hooks: !args.no_hooks,
        recover: !args.no_recovery,
        reboot: args.reboot,
        force: args.force,
    };
    client::update(&request, !args.no_daemon, ui.progress(), &|installed| {
        ui.result("update", installed, &summary(&request, installed));
    })
}

fn summary(request: &Request, installed: &Installed) -> String {
    let slot = installed.slot.map_or_else(|| "of an image".to_owned(), |s| s.to_string());
    let next = if installed.selected { "it boots next, on trial" } else { "it was not selected" };
    format!("{} is installed in slot {slot}; {next}", request.source)
}
