//! The verbs of `copal`: arguments and output. The jobs themselves are elsewhere.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::error::{Code, Error, Result};
use crate::sys::log;

mod args;
mod bootloader;
mod daemon;
mod digest;
mod doctor;
mod explain;
mod flash;
mod hooks;
mod image_and_target;
mod info;
mod job;
mod labelled;
mod reboot;
mod receipt_file;
mod recover;
mod rollback;
mod status;
mod ui;
mod unlock;
mod update;
mod verify;

use args::{Cli, Request, Verb};
pub use args::{command, is_listed, verbs};
pub(crate) use job::job_requested_by;
use ui::Ui;
pub(crate) use ui::answer;

/// For verbs without exit codes of their own.
const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed; or the job was done, and only what came after it failed
  2  wrong arguments
  3  refused: nothing was written
  4  failed after writing had begun: the target holds no partition table,
     or the message says that one may be left
  5  busy: another program holds the target; nothing was written

An error has its code in brackets: `copal explain CODE` says what it means.";

/// Runs `copal args…`; `legacy` are the names of `--list`.
pub fn run(args: &[OsString], legacy: &[&str]) -> ExitCode {
    let ui = Ui::new(args::wants_json(args));
    let result = match args::parse(args) {
        Ok(Request::Text(text)) => {
            ui.text(&text);
            return ui.end_text();
        }
        Ok(Request::Run(cli)) => {
            raise_log_level(cli.verbose);
            dispatch(&cli, legacy, &ui)
        }
        Err(e) => Err(e),
    };
    ui.end(result)
}

fn dispatch(cli: &Cli, legacy: &[&str], ui: &Ui) -> Result<()> {
    match &cli.verb {
        None if cli.list => list(legacy, ui),
        None => Err(Error::new(Code::Usage, "no command was given")),
        Some(Verb::Flash(a)) => flash::run_flash(a, ui),
        Some(Verb::Update(a)) => update::run_update(a, ui),
        Some(Verb::Verify(a)) => verify::run_verify(a, ui),
        Some(Verb::Bootloader(verb)) => bootloader::run_bootloader(verb, ui),
        Some(Verb::Hooks(a)) => hooks::run_hooks(a, ui),
        Some(Verb::Rollback(verb)) => rollback::run_rollback(verb, ui),
        Some(Verb::Status(a)) => status::run_status(a, ui),
        Some(Verb::Doctor(a)) => doctor::run_doctor(a, ui),
        Some(Verb::Explain(a)) => explain::run_explain(a, ui),
        Some(Verb::Info(a)) => info::run_info(a, ui),
        Some(Verb::Daemon(a)) => daemon::run_daemon(a),
        Some(Verb::Job(a)) => job::run_job(a, ui),
        Some(Verb::Reboot) => reboot::run_reboot(),
        Some(Verb::Unlock) => unlock::run_unlock(ui),
        Some(Verb::Recover(a)) => recover::run_recover(a, ui),
        Some(Verb::Digest(a)) => digest::run_digest(a, ui),
    }
}

/// Refuses a verb that changes the device at once where an ordinary user has called it: its first failure would name a file, not the cause.
pub(crate) fn refuse_without_root(call: &str, root: &Path) -> Result<()> {
    if nix::unistd::geteuid().is_root() || root != Path::new("/") {
        return Ok(());
    }
    let error = Error::new(Code::NotRoot, format!("`{call}` must be run as root")).object(call);
    Err(error.with_hint("run it with sudo, for example"))
}

fn list(legacy: &[&str], ui: &Ui) -> Result<()> {
    ui.text(&legacy.iter().map(|name| format!("{name}\n")).collect::<String>());
    Ok(())
}

fn raise_log_level(verbose: u8) {
    match verbose {
        0 => {}
        1 => log::at_least(tracing::Level::INFO),
        _ => log::at_least(tracing::Level::DEBUG),
    }
}

/// Runs `rollback-NAME` as `copal rollback NAME`.
pub(crate) fn rollback_program(name: &'static str, arguments: &[OsString]) -> Result<()> {
    #[derive(Debug, Parser)]
    #[command(disable_help_subcommand = true)]
    struct Alone {
        #[command(subcommand)]
        verb: rollback::RollbackVerb,
    }
    let verb = name.strip_prefix("rollback-").unwrap_or(name);
    let argv = ["copal rollback", verb].map(OsString::from).into_iter();
    let parsed = Alone::try_parse_from(argv.chain(arguments.iter().cloned()));
    match parsed {
        Ok(alone) => rollback::run_program(&alone.verb),
        Err(e) if !e.use_stderr() => answer(e.render().to_string().as_bytes()),
        Err(e) => Err(args::usage(&e, &["rollback".into()])),
    }
}
