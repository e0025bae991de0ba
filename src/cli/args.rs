//! The command line of `copal`.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Command, CommandFactory, Parser, Subcommand};

use super::EXIT_CODES;
use super::bootloader::BootloaderVerb;
use super::daemon::DaemonArgs;
use super::digest::DigestArgs;
use super::doctor::DoctorArgs;
use super::explain::ExplainArgs;
use super::flash::FlashArgs;
use super::hooks::HooksArgs;
use super::info::InfoArgs;
use super::job::JobArgs;
use super::recover::RecoverArgs;
use super::rollback::RollbackVerb;
use super::status::StatusArgs;
use super::update::UpdateArgs;
use super::verify::VerifyArgs;
use crate::error::{Code, Error, Result};

/// What follows the options in the help of `copal`.
const AFTER_HELP: &str = "\
Called by one of the names of `copal --list` (through a link, or as
`copal NAME ...`), the program stands in for the script of that name: exit
codes are 0, 1 and, for wrong arguments, 2.

Environment:
  COPAL_LOG  error, warn, info or debug: the level of the log on stderr
             [default: warn]
  NO_COLOR   when set: lines instead of a progress bar";

/// On-device flasher and host OS update agent for balenaOS
#[derive(Debug, Parser)]
#[command(name = "copal", version = crate::version::COPAL, after_help = format!("{AFTER_HELP}\n\n{EXIT_CODES}"), args_conflicts_with_subcommands = true)]
pub(super) struct Cli {
    /// List the legacy names, one a line
    #[arg(long)]
    pub(super) list: bool,

    /// Log more; twice for debugging
    #[arg(short, long, global = true, display_order = 900, action = ArgAction::Count)]
    pub(super) verbose: u8,

    #[command(subcommand)]
    pub(super) verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    Flash(FlashArgs),
    Update(UpdateArgs),
    Verify(VerifyArgs),
    Info(InfoArgs),
    Digest(DigestArgs),
    #[command(subcommand)]
    Bootloader(BootloaderVerb),
    Hooks(HooksArgs),
    #[command(subcommand)]
    Rollback(RollbackVerb),
    Status(StatusArgs),
    Doctor(DoctorArgs),
    Explain(ExplainArgs),
    Daemon(DaemonArgs),
    /// Unlock the encrypted disk with the TPM, in an initramfs
    ///
    /// Opens the partitions whose passphrase the TPM gives to this start, and
    /// completes a change of its policy that a power cut has interrupted. Does
    /// nothing where secure boot is off.
    #[command(verbatim_doc_comment, after_help = super::unlock::AFTER_HELP)]
    Unlock,
    Recover(RecoverArgs),
    #[command(hide = true)]
    Job(JobArgs),
    /// Reboot, by force where the system does not (for copal-reboot.service)
    #[command(hide = true)]
    Reboot,
}

pub(super) enum Request {
    Run(Box<Cli>),
    /// Help or version.
    Text(String),
}

/// With those that help does not list, since only units run them.
#[must_use]
pub fn verbs() -> Vec<String> {
    let mut all: Vec<String> = command().get_subcommands().map(|c| c.get_name().to_owned()).collect();
    all.push("help".to_owned());
    all
}

/// Whether help lists the verb, and a release has a page of it.
#[must_use]
pub fn is_listed(verb: &str) -> bool {
    command().find_subcommand(verb).is_none_or(|c| !c.is_hide_set())
}

#[must_use]
pub fn command() -> Command {
    Cli::command()
}

/// Decided before parsing: the error of a wrong command line is JSON too.
pub(super) fn wants_json(args: &[OsString]) -> bool {
    args.iter().take_while(|a| *a != "--").any(|a| a == "--json")
}

pub(super) fn parse(args: &[OsString]) -> Result<Request> {
    let argv = std::iter::once(OsString::from("copal")).chain(args.iter().cloned());
    match Cli::try_parse_from(argv) {
        Ok(cli) => Ok(Request::Run(Box::new(cli))),
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Ok(Request::Text(e.render().to_string()))
        }
        Err(e) => Err(usage(&e, args)),
    }
}

/// clap's message as one line: its first paragraph, and the suggestion as the remedy.
pub(super) fn usage(e: &clap::Error, args: &[OsString]) -> Error {
    let command = command();
    // clap's answer to a missing verb is all of the help.
    if matches!(e.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand)
        && let Some(error) = args.first().and_then(|a| missing_verb(command.find_subcommand(a)?))
    {
        return error;
    }
    let text = e.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let message =
        first.strip_prefix("error: ").unwrap_or(first).split_whitespace().collect::<Vec<_>>().join(" ");
    let mut error = Error::new(Code::Usage, message);
    if let Some(ContextValue::String(object)) =
        e.get(ContextKind::InvalidArg).or(e.get(ContextKind::InvalidSubcommand))
    {
        error = error.object(object);
    }
    let verb = args.first().and_then(|a| a.to_str()).filter(|a| verbs().iter().any(|v| v == a));
    let help = verb.filter(|&v| v != "help").map_or("copal help".to_owned(), |v| format!("copal help {v}"));
    let mut tips = text.lines().filter_map(|l| l.trim_start().strip_prefix("tip: "));
    // clap suggests what help does not list, too.
    let tip = tips.find(|tip| !tip.split(['\'', ' ']).any(|word| hides(&command, word)));
    error.with_hint(match tip {
        Some(tip) => format!("{tip}; run `{help}`"),
        None => format!("run `{help}`"),
    })
}

fn missing_verb(command: &Command) -> Option<Error> {
    let name = command.get_name();
    let verbs = command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help");
    let verbs = verbs.map(Command::get_name).collect::<Vec<_>>().join(", ");
    (!verbs.is_empty()).then(|| {
        Error::new(Code::Usage, format!("`copal {name}` needs one of these verbs: {verbs}"))
            .object(name)
            .with_hint(format!("run `copal help {name}`"))
    })
}

fn hides(command: &Command, word: &str) -> bool {
    let long = word.strip_prefix("--");
    let mut options = command.get_arguments().filter(|a| a.is_hide_set());
    long.is_some_and(|long| options.any(|a| a.get_long() == Some(long)))
        || command.get_subcommands().any(|c| c.is_hide_set() && c.get_name() == word || hides(c, word))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::image::digest::Digest256;

    fn args(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn flash(line: &str) -> FlashArgs {
        match parse(&args(line)) {
            Ok(Request::Run(cli)) => match cli.verb {
                Some(Verb::Flash(a)) => a,
                other => panic!("{other:?}"),
            },
            Ok(Request::Text(t)) => panic!("{t}"),
            Err(e) => panic!("{e}"),
        }
    }

    fn error(line: &str) -> Error {
        parse(&args(line)).err().unwrap_or_else(|| panic!("accepted: {line}"))
    }

    #[test]
    fn definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn flash_takes_every_flag() {
        let hex = Digest256::of(b"abc");
        let a = flash(&format!(
            "flash --conf c --image i --target t --plan --json --force-raw --single-pass --sha256={hex} --image-only \
             --no-power-off --root r"
        ));
        let paths = [&a.conf, &a.image, &a.target].map(|p| p.as_ref().unwrap().to_str().unwrap());
        assert_eq!(paths, ["c", "i", "t"]);
        assert!(a.plan && a.json && a.force_raw && a.single_pass && a.image_only && a.no_power_off);
        assert_eq!(a.sha256, Some(Some(hex)));
        assert_eq!(a.root, PathBuf::from("r"));
        assert_eq!(flash("flash --receipt x").receipt, Some("x".into()));
    }

    #[test]
    fn nothing_is_asked_by_default() {
        let a = flash("flash");
        assert!(a.conf.is_none() && a.image.is_none() && a.target.is_none() && a.receipt.is_none());
        assert!(!(a.plan || a.json || a.force_raw || a.single_pass || a.image_only || a.no_power_off));
        assert_eq!((a.sha256, a.root), (None, PathBuf::from("/")));
        assert_eq!(flash("flash --sha256").sha256, Some(None));
    }

    #[test]
    fn usage_errors_are_one_line_with_a_way_out() {
        let e = error("flash --imagee x");
        assert_eq!(e.code(), Code::Usage);
        assert_eq!(
            e.to_string(),
            "unexpected argument '--imagee' found [usage]; a similar argument exists: '--image'; run `copal help flash`"
        );
        assert_eq!(e.subject(), Some("--imagee"));
        let e = error("flsh");
        assert!(e.hint().contains("'flash'"), "{e}");
        assert!(
            error("flash --sha256=12").message().contains("64 hex digits"),
            "{}",
            error("flash --sha256=12")
        );
        for line in ["flash x y z", "digest", "digest a b", "--list flash", "flash --plan --receipt x"] {
            let e = error(line);
            assert_eq!(e.code(), Code::Usage, "{line}");
            assert!(!e.to_string().contains('\n'), "{e}");
        }
    }

    #[test]
    fn what_help_does_not_list_is_never_suggested() {
        fn each(command: &Command, line: &str, seen: &mut usize) {
            for hidden in command.get_arguments().filter(|a| a.is_hide_set()).filter_map(|a| a.get_long()) {
                let e = error(&format!("{line} --{hidden}x"));
                assert!(!e.to_string().contains(&format!("--{hidden}'")), "{e}");
                *seen += 1;
            }
            for verb in command.get_subcommands() {
                let name = verb.get_name();
                if verb.is_hide_set() {
                    let e = error(&format!("{line} {name}x"));
                    assert!(!e.hint().contains(&format!("'{name}'")), "{e}");
                    *seen += 1;
                }
                each(verb, &format!("{line} {name}"), seen);
            }
        }
        let mut seen = 0;
        each(&command(), "", &mut seen);
        assert!(seen > 15, "{seen}");
        let e = super::super::rollback_program("rollback-tests", &args("--foo")).unwrap_err();
        assert_eq!((e.code(), e.hint()), (Code::Usage, "run `copal help rollback`"));
    }

    #[test]
    fn json_is_seen_before_parsing() {
        assert!(wants_json(&args("flash --bad --json")));
        assert!(!wants_json(&args("digest -- --json")));
    }
}
