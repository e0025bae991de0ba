//! `copal hooks`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::{Value, json};

use super::{Ui, answer, refuse_without_root};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::hooks::{Hook, Phases, Run, legacy, run};

const AFTER_HELP: &str = "\
Environment:
  DURING_UPDATE       passed on: 1 while a release is installed [default: 0]
  COPAL_HOOK_TIMEOUT  seconds that a hook may take [default: no limit]

Examples:
  copal hooks --full --list                      what an update runs
  copal hooks --list --commit --dir /mnt/hooks   those of another folder
  DURING_UPDATE=0 copal hooks                    restore the running release

Exit codes:
  0  done
  1  a signal ended the run between two hooks; or the output failed
  2  wrong arguments
  3  refused: no hook was run
  4  a hook failed";

/// Run the hooks of host OS updates, or show which would run
///
/// Without a phase: the forward hooks, which are run in a new release to
/// install it. With DURING_UPDATE=0 (or without it) they restore the running
/// release.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment, after_help = AFTER_HELP)]
#[allow(clippy::struct_excessive_bools)] // flags of a command line
pub(super) struct HooksArgs {
    /// The hooks that run in the old system before an update
    #[arg(long)]
    before: bool,

    /// The hooks that run in the old system after an update
    #[arg(long)]
    after: bool,

    /// The hooks that run in the new system when it is committed
    #[arg(long)]
    commit: bool,

    /// All hooks of an update: before, forward, after
    #[arg(long, conflicts_with_all = ["before", "after"])]
    full: bool,

    /// Where the hooks are [default: /etc/hostapp-update-hooks.d]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,

    /// Show what would run, in its order; run nothing
    #[arg(long)]
    list: bool,

    /// The result as a JSON line on stdout
    #[arg(long)]
    json: bool,

    /// Folder that stands for / (for tests)
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    root: PathBuf,
}

impl HooksArgs {
    fn phases(&self) -> Phases {
        let commit = self.commit;
        if self.full {
            return Phases { commit, ..Phases::FULL };
        }
        let (before, after) = (self.before, self.after);
        Phases { before, forward: !(before || after || commit), after, commit }
    }
}

pub(super) fn run_hooks(args: &HooksArgs, ui: &Ui) -> Result<()> {
    let paths = Paths::new(&args.root);
    let request = Run::of_environment(&paths, args.phases(), args.dir.clone())?;
    if args.list {
        let hooks = request.list()?;
        if !ui.json() {
            return answer(legacy::lines(&hooks).as_bytes());
        }
        ui.result("hooks", &hooks.iter().map(shown).collect::<Vec<_>>(), "");
        return Ok(());
    }
    // Who writes a hook may try it.
    if args.dir.is_none() {
        refuse_without_root("copal hooks", &args.root)?;
    }
    let ran = run(&paths, &request)?;
    let with_time = |r: &_| {
        let crate::hooks::Ran { hook, time } = r;
        let mut value = shown(hook);
        if let Value::Object(members) = &mut value {
            members.insert("seconds".into(), time.as_secs_f64().into());
        }
        value
    };
    let text = match ran.len() {
        1 => "1 hook was run".to_owned(),
        n => format!("{n} hooks were run"),
    };
    ui.result("hooks", &ran.iter().map(with_time).collect::<Vec<_>>(), &text);
    Ok(())
}

fn shown(hook: &Hook) -> Value {
    json!({ "phase": hook.phase, "name": hook.name, "path": hook.path.to_string_lossy() })
}
