//! Every name that the program answers to.
//!
//! Board layers, units and other releases of the OS call programs by the names of [`applets`], through links to this
//! one program. Under any other name it is `copal`, whose verbs are in [`cli`]. `copal NAME …` is the same as
//! calling it as `NAME`, for the shell files that stand in for a name, and for systems without the links.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use crate::boot_files::fatrw;
use crate::cli;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result, exit};
use crate::hooks::builtin::{BUILTINS, Builtin};
use crate::hooks::legacy;
use crate::install;
use crate::job_client;
use crate::progress::{self, Progress as _};
use crate::rollback::state_probe;
use crate::sys::log::{self, Voice};
use crate::update::arguments::{self, Arguments};
use crate::update::safe_reboot;

#[derive(Clone, Copy)]
pub struct Applet {
    /// The base name, as in `argv[0]`.
    pub name: &'static str,
    pub kind: NameKind,
}

#[derive(Clone, Copy)]
pub enum NameKind {
    /// A program. Its exit code is 0, 1 or, for wrong arguments, 2.
    Program(fn(&Invocation) -> Result<()>),
    /// A program in `/etc/hostapp-update-hooks.d`, with the same exit codes.
    Hook(&'static Builtin),
    /// A shell file that board scripts source; never a program.
    Sourced,
}

pub struct Invocation {
    pub name: &'static str,
    pub args: Vec<OsString>,
}

const fn program(name: &'static str, run: fn(&Invocation) -> Result<()>) -> Applet {
    Applet { name, kind: NameKind::Program(run) }
}

/// Every name with its function, in the order of `copal --list`.
pub fn applets() -> impl Iterator<Item = Applet> {
    let hooks = BUILTINS.iter().flat_map(|hook| hook.names.iter().map(move |name| (*name, hook)));
    let hooks = hooks.map(|(name, hook)| Applet { name, kind: NameKind::Hook(hook) });
    PROGRAMS.iter().copied().chain(hooks)
}

/// All names but those of [`BUILTINS`].
const PROGRAMS: &[Applet] = &[
    program("resin-init-flasher", |call| install::resin_init_flasher(&call.args)),
    program("hostapp-update", hostapp_update),
    program("hostapp-update-hooks", run_hooks),
    program("hostapp-update-hooks-v2", run_hooks),
    program("rollback-health", rollback),
    program("rollback-altboot", rollback),
    program("rollback-clear-bootcount", rollback),
    program("rollback-stop", rollback),
    program("rollback-tests", rollback),
    program("rollback-check-version", rollback),
    Applet { name: "rollback-parse-bootloader", kind: NameKind::Sourced },
    program("safe_reboot", |call| safe_reboot::safe_reboot(&call.args)),
    program("fatrw", |call| fatrw::fatrw(&call.args)),
    program("resin_update_state_probe", state_probe),
];

fn hostapp_update(call: &Invocation) -> Result<()> {
    // As the script did.
    log::steps_on_stdout();
    let (spec, as_job) = match arguments::parse(&call.args)? {
        Arguments::Help => return cli::answer(arguments::HELP.as_bytes()),
        Arguments::Update(spec, as_job) => (spec, as_job),
    };
    let paths = Paths::default();
    cli::refuse_without_root(call.name, paths.root())?;
    let shown = progress::for_service();
    let result = job_client::update(&spec, &paths, call.name, as_job, &*shown, &|_| shown.close());
    shown.close();
    result
}

fn run_hooks(call: &Invocation) -> Result<()> {
    match legacy::main(&call.args, &Paths::default())? {
        Some(answer) => cli::answer(&answer),
        None => Ok(()),
    }
}

fn rollback(call: &Invocation) -> Result<()> {
    cli::rollback_program(call.name, &call.args)
}

fn state_probe(call: &Invocation) -> Result<()> {
    cli::answer(state_probe::properties(&Paths::default(), &call.args)?.as_bytes())
}

pub enum Call {
    Legacy(Applet, Invocation),
    /// `copal VERB …`.
    Verb(Vec<OsString>),
}

impl Call {
    #[must_use]
    pub fn of(argv: impl IntoIterator<Item = OsString>) -> Self {
        let mut argv = argv.into_iter();
        let own = argv.next().unwrap_or_default();
        let mut args: Vec<OsString> = argv.collect();
        if let Some(applet) = Path::new(&own).file_name().and_then(find) {
            return Call::Legacy(applet, Invocation { name: applet.name, args });
        }
        if let Some(applet) = args.first().and_then(|a| find(a)) {
            args.remove(0);
            return Call::Legacy(applet, Invocation { name: applet.name, args });
        }
        Call::Verb(args)
    }

    /// The name at the beginning of log lines and errors. A job uses the name of the program that requested it.
    #[must_use]
    pub fn voice(&self) -> Voice {
        match self {
            Call::Legacy(applet, _) => Voice::Legacy(applet.name),
            Call::Verb(args) => cli::job_requested_by(args)
                .and_then(find)
                .map_or(Voice::Verb, |applet| Voice::Legacy(applet.name)),
        }
    }

    #[must_use]
    pub fn run(&self) -> ExitCode {
        match self {
            Call::Legacy(applet, invocation) => run_legacy(*applet, invocation),
            Call::Verb(args) => {
                let names: Vec<&str> = applets().map(|a| a.name).collect();
                cli::run(args, &names)
            }
        }
    }
}

fn find(name: &OsStr) -> Option<Applet> {
    applets().find(|a| a.name == name)
}

fn run_legacy(applet: Applet, invocation: &Invocation) -> ExitCode {
    let result = match applet.kind {
        NameKind::Program(run) => run(invocation),
        NameKind::Hook(hook) => hook.call(invocation.name, &invocation.args),
        NameKind::Sourced => Err(Error::new(
            Code::NotInThisBuild,
            format!("cannot run {}: it is a shell file to be sourced, not a program", applet.name),
        )
        .object(applet.name)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            log::last(Voice::Legacy(applet.name), &e.to_string(), e.code().as_str());
            ExitCode::from(exit::of_legacy(&e))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(argv: &[&str]) -> (Option<&'static str>, Vec<OsString>) {
        match Call::of(argv.iter().map(OsString::from)) {
            Call::Legacy(applet, i) => (Some(applet.name), i.args),
            Call::Verb(args) => (None, args),
        }
    }

    #[test]
    fn base_name_or_first_argument_decides() {
        assert_eq!(call(&["/usr/bin/fatrw", "read", "x"]), (Some("fatrw"), vec!["read".into(), "x".into()]));
        assert_eq!(call(&["fatrw"]), (Some("fatrw"), vec![]));
        assert_eq!(call(&["copal", "fatrw", "-u"]), (Some("fatrw"), vec!["-u".into()]));
        // Once only: the argument of a legacy name is its own.
        assert_eq!(call(&["copal", "fatrw", "fatrw"]), (Some("fatrw"), vec!["fatrw".into()]));
        assert_eq!(call(&["fatrw", "safe_reboot"]), (Some("fatrw"), vec!["safe_reboot".into()]));
    }

    #[test]
    fn any_other_name_is_copal() {
        assert_eq!(call(&["copal", "flash", "--plan"]), (None, vec!["flash".into(), "--plan".into()]));
        assert_eq!(call(&["/x/copal-0.1-amd64", "--list"]), (None, vec!["--list".into()]));
        assert_eq!(call(&[]), (None, vec![]));
        assert_eq!(call(&["fatrw-old"]), (None, vec![]));
    }

    #[test]
    fn a_job_speaks_as_the_program_that_has_requested_it() {
        let voice = |argv: &[&str]| Call::of(argv.iter().map(OsString::from)).voice();
        let of_client = ["copal", "job", "--json", "--run-for=hostapp-update", "1"];
        assert_eq!(voice(&of_client), Voice::Legacy("hostapp-update"));
        for other in [
            ["copal", "job", "--run-for=copal update", "1"],
            ["copal", "job", "hostapp-update", "1"],
            ["copal", "update", "--run-for=hostapp-update", "1"],
        ] {
            assert_eq!(voice(&other), Voice::Verb, "{other:?}");
        }
    }

    #[test]
    fn names_are_unique_and_none_is_a_verb() {
        let mut seen = std::collections::HashSet::new();
        for applet in applets() {
            assert!(seen.insert(applet.name), "{} twice", applet.name);
            assert!(!cli::verbs().contains(&applet.name.to_owned()), "{} is a verb too", applet.name);
        }
    }
}
