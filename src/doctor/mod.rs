//! What on this system would stop a flash, an update or a rollback. Looks, and changes nothing: not even a probe is written.

mod boot;
mod engine;
mod flash;
mod slots;
mod space;
mod system;

use serde::Serialize;

use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::Error;
use crate::slot::Roots;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All is well.
    Ok,
    /// Worth knowing; it stops nothing.
    Warning,
    /// It would stop a flash, an update or a rollback.
    Problem,
}

/// One thing that was looked at.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// What was found.
    pub text: String,
    /// Stable code of the error that it would lead to.
    pub code: Option<&'static str>,
    /// What to do about it.
    pub hint: Option<String>,
}

/// The findings of one check, as it makes them.
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
        self.all.push(Finding { check: self.check, verdict, text: text.into(), code, hint });
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

/// What the checks look at.
pub(crate) struct Patient<'a> {
    paths: &'a Paths,
    facts: Option<&'a Facts>,
    roots: Option<&'a Roots>,
}

/// A check: its name, and what it does.
struct Check {
    name: &'static str,
    look: fn(&Patient<'_>, &mut Findings<'_>),
}

/// The table: every check, in the order in which they are shown.
const CHECKS: &[Check] = &[
    Check { name: "slots", look: slots::look },
    Check { name: "boot-state", look: boot::state },
    Check { name: "boot-partition", look: boot::partition },
    Check { name: "engine", look: engine::look },
    Check { name: "space", look: space::look },
    Check { name: "leftovers", look: system::leftovers },
    Check { name: "update", look: system::update },
    Check { name: "system", look: system::services },
];

/// Names of all checks, those of a flasher medium first.
#[must_use]
pub fn names() -> Vec<&'static str> {
    std::iter::once(flash::NAME).chain(CHECKS.iter().map(|c| c.name)).collect()
}

/// Examines the device: a flasher medium for what would stop a flash, an installed system for what would stop an update or
/// a rollback.
#[must_use]
pub fn examine(paths: &Paths) -> Vec<Finding> {
    let mut all = Vec::new();
    if paths.flasher_flag().exists() {
        flash::look(paths, &mut Findings { check: flash::NAME, all: &mut all });
        return all;
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
    all
}
