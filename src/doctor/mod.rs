//! What would stop a flash, an update or a rollback. Nothing is written, not even to test a file system.

mod boot;
mod device_tree;
mod engine;
mod flash;
mod slots;
mod space;
mod system;
mod unlock;

use std::path::Path;

use nix::unistd::geteuid;
use serde::Serialize;

use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::{Code, Error};
use crate::slot::Roots;
use crate::status;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Stops nothing.
    Warning,
    Problem,
}

#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub verdict: Verdict,
    pub text: String,
    pub code: Option<&'static str>,
    pub hint: Option<String>,
}

pub(crate) struct Findings<'a> {
    check: &'static str,
    all: &'a mut Vec<Finding>,
}

impl Findings<'_> {
    fn add(
        &mut self,
        verdict: Verdict,
        text: impl Into<String>,
        code: Option<&'static str>,
        hint: Option<String>,
    ) {
        let (check, text) = (self.check, text.into());
        // The words of the C library for EACCES, as Rust's standard library and nix have them.
        if verdict != Verdict::Ok && text.contains("Permission denied") && !geteuid().is_root() {
            let (text, hint) =
                (format!("unknown (requires root): {text}"), Some("run it as root".to_owned()));
            return self.all.push(Finding { check, verdict: Verdict::Warning, text, code: None, hint });
        }
        self.all.push(Finding { check, verdict, text, code, hint });
    }

    fn ok(&mut self, text: impl Into<String>) {
        self.add(Verdict::Ok, text, None, None);
    }

    fn warn(&mut self, text: impl Into<String>, hint: &str) {
        self.add(Verdict::Warning, text, None, Some(hint.to_owned()));
    }

    fn problem(&mut self, e: &Error) {
        self.add(Verdict::Problem, e.message(), Some(e.code().as_str()), Some(e.hint().to_owned()));
    }
}

pub(crate) struct Patient<'a> {
    paths: &'a Paths,
    facts: Option<&'a Facts>,
    roots: Option<&'a Roots>,
}

struct Check {
    name: &'static str,
    look: fn(&Patient<'_>, &mut Findings<'_>),
}

/// In the order in which they are shown.
const CHECKS: &[Check] = &[
    Check { name: "slots", look: slots::look },
    Check { name: "boot-state", look: boot::state },
    Check { name: "boot-partition", look: boot::partition },
    Check { name: "unlock", look: unlock::look },
    Check { name: "device-tree", look: device_tree::look },
    Check { name: "engine", look: engine::look },
    Check { name: "space", look: space::look },
    Check { name: "cleanup", look: system::cleanup },
    Check { name: "update", look: system::update },
    Check { name: "rollback-conf", look: system::rollback_conf },
    Check { name: "system", look: system::services },
];

/// The check of a release that is named.
const RELEASE_NAME: &str = "release";

/// The check of a flasher medium first.
#[must_use]
pub fn names() -> Vec<&'static str> {
    let checks = CHECKS.iter().map(|c| c.name);
    std::iter::once(flash::CHECK_NAME).chain(checks).chain([RELEASE_NAME]).collect()
}

/// What the findings are about: a machine has one job for copal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// On a flasher medium.
    Installation,
    /// On an installed system.
    Update,
    /// On a machine that is neither.
    Nothing,
}

impl Subject {
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Subject::Installation => "the installation from this medium",
            Subject::Update => "an update or a rollback of this device",
            Subject::Nothing => "an update, a rollback or an installation here",
        }
    }
}

/// On a flasher medium checks what a flash needs, on an installed system what an update or a rollback needs.
#[must_use]
pub(crate) fn examine(paths: &Paths, release: Option<&Path>) -> (Subject, Vec<Finding>) {
    let mut all = Vec::new();
    if paths.flasher_flag().exists() {
        flash::look(paths, &mut Findings { check: flash::CHECK_NAME, all: &mut all });
        return (Subject::Installation, all);
    }
    if let Some(why) = status::no_device(paths) {
        let hint =
            "only a device or its flasher medium can be examined; `copal flash IMAGE TARGET` works here, too";
        Findings { check: "slots", all: &mut all }
            .problem(&Error::new(Code::SlotUnknown, why).with_hint(hint));
        return (Subject::Nothing, all);
    }
    let facts = Facts::gather(paths);
    let roots = facts.as_ref().ok().map(Roots::of);
    for e in facts.as_ref().err().into_iter().chain(roots.as_ref().and_then(|r| r.as_ref().err())) {
        Findings { check: "slots", all: &mut all }.problem(e);
    }
    let patient =
        Patient { paths, facts: facts.as_ref().ok(), roots: roots.as_ref().and_then(|r| r.as_ref().ok()) };
    for check in CHECKS {
        (check.look)(&patient, &mut Findings { check: check.name, all: &mut all });
    }
    if let Some(release) = release {
        unlock::release(&patient, release, &mut Findings { check: RELEASE_NAME, all: &mut all });
    }
    (Subject::Update, all)
}
