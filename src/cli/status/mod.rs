//! `copal status`.

mod history;
mod when;

use std::path::PathBuf;

use clap::Args;

use super::Ui;
use super::labelled::fitted;
use crate::config::paths::Paths;
use crate::device_tree::live::Live;
use crate::device_tree::{Origin, Tree};
use crate::error::Result;
use crate::job::lock::Holder;
use crate::progress::lines::size;
use crate::slot::Slot;
use crate::status::{self, Boot, SlotStatus, Status};
use crate::sys::log::printable;

const EXAMPLES: &str = "\
Examples:
  copal status
  copal status --log
  copal status --json | tail -n 1 | jq .status.phase";

/// Show where the device stands, and the result of the last update
///
/// Also why it was rolled back, if it was. Reads only. What cannot be read is
/// listed with the reason, and hides nothing else.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(super) struct StatusArgs {
    /// The result as a JSON line on stdout
    #[arg(long)]
    json: bool,

    /// The result of every update that is known
    #[arg(long, conflicts_with = "log")]
    history: bool,

    /// The last journal lines of the system that was rolled back
    #[arg(long)]
    log: bool,

    /// Folder that stands for / (for tests)
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    root: PathBuf,
}

pub(super) fn run_status(args: &StatusArgs, ui: &Ui) -> Result<()> {
    let paths = Paths::new(&args.root);
    let status = if args.history { status::read_with_history(&paths) } else { status::read(&paths) };
    let status = status.with_device_trees(&paths);
    let text = match &status.history {
        _ if args.log && status.is_for_root("last_rollback") => UNKNOWN.to_owned(),
        _ if args.log => history::journal(&status).join("\n"),
        Some(_) if status.is_for_root("last_update") => UNKNOWN.to_owned(),
        Some(records) => history::all(records).join("\n"),
        None => status::no_device(&paths).unwrap_or_else(|| fitted(text(&status).trim_end(), TEXT_COLUMN)),
    };
    ui.result("status", &status, &text);
    Ok(())
}

/// Where the text begins beside the label of a line.
const TEXT_COLUMN: usize = 9;

/// In the place of what this user may not read.
const UNKNOWN: &str = "unknown (requires root)";

fn text(status: &Status) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    history::rolled_back(status).into_iter().for_each(&mut line);
    match (status.phase, status.meaning) {
        (Some(phase), Some(meaning)) => line(format!("phase    {phase}: {meaning}")),
        _ if status.is_for_root("phase") => line(format!("phase    {UNKNOWN}")),
        _ => line("phase    unknown".into()),
    }
    for slot in status.running.into_iter().flat_map(|_| [Slot::A, Slot::B]) {
        let mounted = status.slots.iter().find(|s| s.slot == slot);
        line(format!("slot {slot}   {}", mounted.map_or("not mounted".into(), |s| words(s, status))));
    }
    if let Some(boot) = &status.boot {
        line(format!("boot     {} {}", boot.backend, selection(boot, status)));
        if boot.selected && boot.exceeded {
            let other = status.next.map_or("the other root".to_owned(), |slot| format!("slot {slot}"));
            line(format!("         that is too many: {} starts {other} instead", boot.backend));
        }
        line(format!("         {}", boot.file));
        if let Some(damage) = &boot.damage {
            line(format!("         DAMAGED: {damage}"));
        }
    }
    if status.is_for_root("device_trees") {
        line(format!("tree     {UNKNOWN}"));
    }
    status.device_trees.iter().map(tree).for_each(&mut line);
    status.live_tree.as_ref().map(live_tree).into_iter().for_each(&mut line);
    match &status.update {
        Some(update) => {
            let update = Holder { since: when::minute_utc(&update.since), ..update.clone() };
            line(format!("update   {}", update.doing()));
        }
        None if status.is_for_root("update") => line(format!("update   {UNKNOWN}")),
        None => {}
    }
    match &status.hook {
        Some(hook) => {
            let since = when::minute_utc(&hook.since);
            line(format!("hook     {} runs as process {}, since {since}", hook.name, hook.pid));
        }
        None if status.is_for_root("hook") => line(format!("hook     {UNKNOWN}")),
        None => {}
    }
    if status.breadcrumb == Some(true) {
        line("         breadcrumbs are there: the supervisor does not reboot the device".into());
    }
    for flag in &status.flags {
        line(format!("flag     {flag}"));
    }
    for (record, slot) in [("boot files", status.bootfiles), ("rollback", status.rollback)] {
        if let Some(slot) = slot {
            line(format!("record   {record}: slot {slot}"));
        }
    }
    if status.is_for_root("last_update") {
        line(format!("updated  {UNKNOWN}"));
    }
    history::last(status).into_iter().for_each(&mut line);
    for problem in &status.problems {
        line(format!("problem  {} [{}]; {}", problem.message, problem.code, problem.hint));
    }
    out
}

/// Which root the bootloader takes, whether it is on trial, and how often it was tried.
fn selection(boot: &Boot, status: &Status) -> String {
    let root = match boot.root.as_str() {
        number if number.bytes().all(|b| b.is_ascii_digit()) => format!("partition {number}"),
        text => format!("root {}", printable(text)),
    };
    if !boot.selected {
        return match boot.root.as_str() {
            "" => "finds no root".to_owned(),
            _ => format!("finds no selection; by default it starts {root}"),
        };
    }
    let slot = status.next.map(|next| if boot.exceeded { next.other() } else { next });
    let selected = match slot {
        Some(slot) if slot.letter() == boot.root => format!("selects slot {slot}"),
        Some(slot) => format!("selects slot {slot} ({root})"),
        None => format!("selects {root}"),
    };
    let counted = match boot.limit {
        Some(limit) => format!("{} of {limit} boot attempts counted", boot.bootcount),
        None => "this bootloader does not count boot attempts".to_owned(),
    };
    match (boot.upgrade_available, boot.bootcount) {
        (true, _) => format!("{selected}, on trial: {counted}"),
        (false, 0) => format!("{selected}, not on trial"),
        (false, _) => format!("{selected}, not on trial: {counted}"),
    }
}

fn tree(tree: &Tree) -> String {
    let what = match (tree.origin, tree.size.zip(tree.sha256)) {
        (Origin::Missing, _) if tree.required => "MISSING, and the board does not boot without it".into(),
        (Origin::Missing, _) => "missing".into(),
        (_, None) => "cannot be read".into(),
        (origin, Some((bytes, sha256))) => {
            let whose = match origin {
                Origin::Release => "of the release",
                Origin::BootPartition => "on the boot partition",
                _ => "of the owner",
            };
            format!("{whose}, {}, SHA-256 {sha256}", size(bytes))
        }
    };
    format!("tree     {} {}: {what}", tree.key, printable(&tree.name))
}

fn live_tree(live: &Live) -> String {
    let model = live.model.as_deref().unwrap_or("no model");
    let whose = match (&live.named, live.is_named) {
        (Some(name), Some(true)) => format!(", of {}", printable(name)),
        (Some(name), Some(false)) => format!(", NOT of {}", printable(name)),
        (Some(name), None) => format!("; whether it is of {} is unknown", printable(name)),
        (None, _) => String::new(),
    };
    format!("kernel   has the device tree \"{}\"{whose}", printable(model))
}

fn words(slot: &SlotStatus, status: &Status) -> String {
    let mut words = vec![slot.version.clone().unwrap_or_else(|| match slot.hostapp {
        Some(_) => "unknown version".into(),
        None if status.is_for_root("slots") => UNKNOWN.into(),
        None => "no hostapp".into(),
    })];
    words.push(format!("on {} (partition {})", slot.device, slot.partition));
    words.extend(slot.counter.map(|n| format!("counter {n}")));
    words.extend(slot.encrypted.then(|| "encrypted".into()));
    words.extend(slot.running.then(|| "runs now".into()));
    words.extend((status.next == Some(slot.slot)).then(|| "boots next".into()));
    words.join(", ")
}
