//! The command line of `copal`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, ArgGroup, Args, Command, CommandFactory, Parser, Subcommand, ValueHint};

use super::bootloader::BootloaderVerb;
use super::daemon::DaemonArgs;
use super::doctor::DoctorArgs;
use super::hooks::HooksArgs;
use super::rollback::RollbackVerb;
use super::status::StatusArgs;
use super::texts::{
    DAEMON_EXAMPLES, DIGEST_EXAMPLES, DOCTOR_EXAMPLES, EXIT_CODES, FLASH_EXAMPLES, MAIN_HELP,
    STATUS_EXAMPLES, UPDATE_EXAMPLES, VERIFY_EXAMPLES,
};
use crate::error::{Code, Error, Result};
use crate::image::digest::Digest256;

/// On-device flasher and host OS update agent for balenaOS
#[derive(Debug, Parser)]
#[command(name = "copal", version, after_help = format!("{MAIN_HELP}\n\n{EXIT_CODES}"), args_conflicts_with_subcommands = true)]
pub(super) struct Cli {
    /// List the legacy names, one a line
    #[arg(long)]
    pub(super) list: bool,

    /// Tell more in the log; twice for debugging
    #[arg(short, long, global = true, display_order = 900, action = ArgAction::Count)]
    pub(super) verbose: u8,

    #[command(subcommand)]
    pub(super) verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Write an OS image to a disk, and prove that it is there
    ///
    /// With --image and --target, or with --image-only, the image is all that is
    /// written. Otherwise the board's configuration is followed to its end, as
    /// resin-init-flasher does: bootloaders, boot partition, the board's own
    /// programs, and power off.
    #[command(verbatim_doc_comment, next_line_help = true, after_help = format!("{FLASH_EXAMPLES}\n\n{EXIT_CODES}"))]
    Flash(FlashArgs),
    /// Install a release of the host OS in the other slot, and select it
    ///
    /// The new system boots on trial: if it fails, the device comes back to this
    /// one. The slot that is running is not touched.
    #[command(verbatim_doc_comment, next_line_help = true, after_help = UPDATE_EXAMPLES)]
    Update(UpdateArgs),
    /// Compare a disk with an image, without writing
    #[command(after_help = format!("{VERIFY_EXAMPLES}\n\n{EXIT_CODES}"))]
    Verify(VerifyArgs),
    /// Print the chunk digest of an image, as receipts have it
    ///
    /// The image is cut into chunks of 1 MiB, the last one shorter; the chunk digest is
    /// the SHA-256 over the SHA-256 digests of the chunks. A compressed image has the
    /// digest of what is in it.
    #[command(verbatim_doc_comment, after_help = format!("{DIGEST_EXAMPLES}\n\n{EXIT_CODES}"))]
    Digest(DigestArgs),
    /// Write a bootloader outside file systems, or show where one can go
    Bootloader {
        /// What to do
        #[command(subcommand)]
        what: BootloaderVerb,
    },
    /// Run the hooks of host OS updates, or show which would run
    ///
    /// Without a phase: the forward hooks, which are run in a new release to
    /// install it. With DURING_UPDATE=0 (or without it) they put the running
    /// release back in its rights.
    #[command(verbatim_doc_comment, after_help = super::hooks::AFTER_HELP)]
    Hooks(HooksArgs),
    /// Follow the trial of an update, or end it
    #[command(after_help = super::rollback::AFTER_HELP)]
    Rollback {
        /// What to do
        #[command(subcommand)]
        what: RollbackVerb,
    },
    /// Show where the device stands, and what the last update came to
    ///
    /// Also why it was rolled back, if it was. Reads only. What cannot be told is
    /// listed with the reason, and hides nothing else.
    #[command(verbatim_doc_comment, after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Look for what would stop a flash, an update or a rollback
    ///
    /// Changes nothing. Exit code 1: there is something; each line says what to do.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Serve updates on the system bus, as io.balena.Copal1
    ///
    /// They go on without whoever started them. Started by systemd when somebody
    /// calls it, and ends when nobody needs it. Its jobs are processes of their
    /// own, which go on whatever becomes of it.
    #[command(verbatim_doc_comment, after_help = DAEMON_EXAMPLES)]
    Daemon(DaemonArgs),
}

/// What `copal flash` was asked.
#[derive(Debug, Clone, Default, Args)]
pub struct FlashArgs {
    /// The board's configuration [default: /etc/resin-init-flasher.conf]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub conf: Option<PathBuf>,

    /// The image: raw, gzip, xz, zstd or bzip2 [default: the configuration's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub image: Option<PathBuf>,

    /// A whole disk, or a plain file [default: the configuration's patterns]
    #[arg(long, value_name = "DEV|FILE", value_hint = ValueHint::AnyPath)]
    pub target: Option<PathBuf>,

    /// Check everything and show what would be written; write nothing
    #[arg(long)]
    pub plan: bool,

    /// Progress and result as JSON lines on stdout
    #[arg(long)]
    pub json: bool,

    /// Accept an image without a valid partition table or boot partition
    #[arg(long)]
    pub force_raw: bool,

    /// Do not check a compressed image first: faster, but damage shows late
    #[arg(long)]
    pub single_pass: bool,

    /// Compute the uncompressed image's SHA-256; with HEX, refuse any other
    #[arg(long, value_name = "HEX", num_args = 0..=1, require_equals = true, value_parser = sha256)]
    #[allow(clippy::option_option)] // not asked, asked, asked with a value
    pub sha256: Option<Option<Digest256>>,

    /// Put the receipt into FILE, and only a summary on stdout
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "plan")]
    pub receipt: Option<PathBuf>,

    /// An LED that shows progress: the file that takes 1 and 0
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub led: Option<PathBuf>,

    /// Write and verify the image only, whatever the configuration asks for
    #[arg(long)]
    pub image_only: bool,

    /// Stay on when an installation is done; always so with the image only
    #[arg(long)]
    pub no_power_off: bool,

    /// Folder that stands for / (for tests)
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    pub root: PathBuf,
}

/// What `copal update` was asked.
#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("source").required(true)))]
pub struct UpdateArgs {
    /// An image archive, as `docker save` writes it
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, group = "source")]
    pub file: Option<PathBuf>,

    /// An image in a registry; without tag or digest, the tag `latest`
    #[arg(short, long, value_name = "IMAGE", group = "source")]
    pub image: Option<String>,

    /// Reboot afterwards, as soon as applications allow it
    #[arg(short, long)]
    pub reboot: bool,

    /// Run no hooks of the release: it is installed, and not selected
    #[arg(short, long)]
    pub no_hooks: bool,

    /// When a hook fails, do not run those of the running system
    #[arg(short = 'x', long)]
    pub no_recovery: bool,

    /// Update although the running system is on trial or was fallen back to
    #[arg(long)]
    pub force: bool,

    /// Run in this process, even where a daemon could run the update
    #[arg(long)]
    pub no_daemon: bool,

    /// Progress and result as JSON lines on stdout
    #[arg(long)]
    pub json: bool,
}

/// What `copal verify` was asked.
#[derive(Debug, Clone, Args)]
pub struct VerifyArgs {
    /// The image: raw, gzip, xz, zstd or bzip2
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub image: PathBuf,

    /// The disk or plain file to read
    #[arg(long, value_name = "DEV|FILE", value_hint = ValueHint::AnyPath)]
    pub target: PathBuf,

    /// Progress and result as JSON lines on stdout
    #[arg(long)]
    pub json: bool,
}

/// What `copal digest` was asked.
#[derive(Debug, Clone, Args)]
pub struct DigestArgs {
    /// The image: raw, gzip, xz, zstd or bzip2
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,

    /// Progress and result as JSON lines on stdout
    #[arg(long)]
    pub json: bool,
}

/// A command line that was understood.
pub(super) enum Request {
    /// A verb to run.
    Run(Box<Cli>),
    /// Help or version: the text.
    Text(String),
}

/// Every verb.
#[must_use]
pub fn verbs() -> Vec<String> {
    let mut all: Vec<String> = command().get_subcommands().map(|c| c.get_name().to_owned()).collect();
    all.push("help".to_owned());
    all
}

/// The definition of the command line.
#[must_use]
pub fn command() -> Command {
    Cli::command()
}

/// Whether JSON was asked for, decided before parsing: a wrong command line is answered as it would have been.
pub(super) fn wants_json(args: &[OsString]) -> bool {
    args.iter().take_while(|a| *a != "--").any(|a| a == "--json")
}

/// Understands `copal args…`.
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
    let tip = text.lines().find_map(|l| l.trim_start().strip_prefix("tip: "));
    error.with_hint(match tip {
        Some(tip) => format!("{tip}; run `{help}`"),
        None => format!("run `{help}`"),
    })
}

fn sha256(text: &str) -> Result<Digest256, &'static str> {
    Digest256::from_hex(text).ok_or("64 hex digits are wanted")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let e = error("verify");
        assert!(e.message().contains("--image <FILE> --target <DEV|FILE>"), "{e}");
        let e = error("flsh");
        assert!(e.hint().contains("'flash'"), "{e}");
        assert!(
            error("flash --sha256=12").message().contains("64 hex digits"),
            "{}",
            error("flash --sha256=12")
        );
        for line in ["flash x", "digest", "digest a b", "--list flash", "flash --plan --receipt x"] {
            let e = error(line);
            assert_eq!(e.code(), Code::Usage, "{line}");
            assert!(!e.to_string().contains('\n'), "{e}");
        }
    }

    #[test]
    fn json_is_seen_before_parsing() {
        assert!(wants_json(&args("flash --bad --json")));
        assert!(!wants_json(&args("digest -- --json")));
    }
}
