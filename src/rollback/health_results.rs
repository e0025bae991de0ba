//! The results of the health checks of one trial.

use std::collections::BTreeMap;

use crate::state::history::{Check, CheckResult};

#[derive(Debug, Default)]
pub(super) struct HealthResults {
    pub attempts: u32,
    pub checks: Vec<Check>,
    failures: BTreeMap<String, u32>,
}

impl HealthResults {
    pub(super) fn add(&mut self, checks: Vec<Check>) {
        self.attempts = self.attempts.saturating_add(1);
        for check in checks.iter().filter(|c| c.result == CheckResult::Failed) {
            *self.failures.entry(check.name.clone()).or_default() += 1;
        }
        self.checks = checks;
    }

    pub(super) fn summary(&self) -> Vec<Check> {
        let mut summary = self.checks.clone();
        for check in &mut summary {
            let Some(failures) = self.failures.get(&check.name) else { continue };
            let often = format!("failed {failures} of {} times", self.attempts);
            check.reason = if check.reason.is_empty() { often } else { format!("{often}: {}", check.reason) };
        }
        summary
    }

    pub(super) fn missed(&self) -> String {
        let missed = self.checks.iter().filter(|c| c.required && c.result == CheckResult::Failed);
        missed.map(|c| c.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}
