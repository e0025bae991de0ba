//! Where a device stands in an update: derived from boot state and state files at each call, never stored.
//!
//! [`of`] is a pure function with a row for every combination; [`observe`] reads its facts.

mod observe;

use std::fmt;

pub use observe::{Observation, observe};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The rollback is complete but for the reboot.
    RolledBack,
    /// The previous system runs again; its rollback is not complete.
    Finishing,
    /// A rollback to the other slot was cut off.
    RollingBack,
    Healthy,
    /// An update runs, or died in this boot.
    Installing,
    /// An update died before this boot, with nothing selected.
    Cleanup,
    Trial,
    /// Installed and selected; the reboot has not happened.
    Pending,
    /// A slot that does not run is selected, but not on trial: the selection was cut off.
    Interrupted,
    /// The bootloader has fallen back to the running system.
    Altboot,
}

impl Phase {
    /// In the order in which they are decided.
    pub const ALL: &[Phase] = &[
        Phase::RolledBack,
        Phase::Finishing,
        Phase::RollingBack,
        Phase::Healthy,
        Phase::Installing,
        Phase::Cleanup,
        Phase::Trial,
        Phase::Pending,
        Phase::Interrupted,
        Phase::Altboot,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::RolledBack => "rolled back",
            Phase::Finishing => "finishing",
            Phase::RollingBack => "rolling back",
            Phase::Healthy => "healthy",
            Phase::Installing => "installing",
            Phase::Cleanup => "cleanup",
            Phase::Trial => "trial",
            Phase::Pending => "pending",
            Phase::Interrupted => "interrupted",
            Phase::Altboot => "altboot",
        }
    }

    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Phase::RolledBack => "the update was rolled back; the device waits for its reboot",
            Phase::Finishing => "a rollback to the running system is being completed",
            Phase::RollingBack => "a rollback was cut off, and is resumed at the next boot",
            Phase::Healthy => "no update is under way",
            Phase::Installing => "an update is running, or has died since the last boot",
            Phase::Cleanup => {
                "an update died before it selected anything; its traces are removed at the next boot"
            }
            Phase::Trial => "the running system is on trial until its health checks have passed",
            Phase::Pending => "an update is installed, and is tried at the next boot",
            Phase::Interrupted => {
                "an update died while it selected the new system; the next update repairs that"
            }
            Phase::Altboot => "the bootloader fell back from the new system; a rollback follows",
        }
    }

    #[must_use]
    pub(crate) const fn update_permission(self) -> UpdatePermission {
        match self {
            Phase::Healthy => UpdatePermission::Free,
            Phase::Installing | Phase::Cleanup | Phase::Pending | Phase::Interrupted => {
                UpdatePermission::AfterRecovery
            }
            Phase::Trial | Phase::Altboot => UpdatePermission::Forced,
            Phase::RolledBack | Phase::Finishing | Phase::RollingBack => UpdatePermission::Never,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether an update may start, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdatePermission {
    Free,
    /// After the running system is selected again and has its boot files again.
    AfterRecovery,
    /// With `force` only: the other slot is the only system that was committed.
    Forced,
    /// A rollback is under way.
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Marked {
    Installing,
    RolledBack,
}

/// The slot that a rollback leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    Running,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Facts {
    pub selected_is_running: bool,
    pub upgrade_available: bool,
    pub breadcrumb: bool,
    pub marker: Option<Marked>,
    pub rollback: Option<Target>,
}

/// The rows stand in the order of docs/phases.md; the first one that fits decides.
#[must_use]
pub fn of(facts: Facts) -> Phase {
    let installing = facts.marker == Some(Marked::Installing);
    match facts {
        Facts { marker: Some(Marked::RolledBack), .. } => Phase::RolledBack,
        Facts { rollback: Some(Target::Running), .. } => Phase::Finishing,
        Facts { rollback: Some(Target::Other), .. } => Phase::RollingBack,
        Facts { selected_is_running: true, upgrade_available: true, .. } => Phase::Trial,
        Facts { selected_is_running: true, .. } if installing => Phase::Installing,
        Facts { selected_is_running: true, breadcrumb: true, .. } => Phase::Cleanup,
        Facts { selected_is_running: true, .. } => Phase::Healthy,
        Facts { upgrade_available: true, .. } if installing => Phase::Pending,
        _ if installing => Phase::Interrupted,
        _ => Phase::Altboot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Facts> {
        let mut all = Vec::new();
        let both = [false, true];
        for selected_is_running in both {
            for upgrade_available in both {
                for breadcrumb in both {
                    for marker in [None, Some(Marked::Installing), Some(Marked::RolledBack)] {
                        for rollback in [None, Some(Target::Running), Some(Target::Other)] {
                            all.push(Facts {
                                selected_is_running,
                                upgrade_available,
                                breadcrumb,
                                marker,
                                rollback,
                            });
                        }
                    }
                }
            }
        }
        all
    }

    /// The table of docs/phases.md, in its order and words.
    fn by_the_table(f: Facts) -> Phase {
        let running = f.selected_is_running;
        let installing = f.marker == Some(Marked::Installing);
        let rows = [
            (f.marker == Some(Marked::RolledBack), Phase::RolledBack),
            (f.rollback == Some(Target::Running), Phase::Finishing),
            (f.rollback == Some(Target::Other), Phase::RollingBack),
            (running && !f.upgrade_available && !f.breadcrumb && f.marker.is_none(), Phase::Healthy),
            (running && !f.upgrade_available && installing, Phase::Installing),
            (running && !f.upgrade_available && f.breadcrumb && f.marker.is_none(), Phase::Cleanup),
            (running && f.upgrade_available, Phase::Trial),
            (!running && f.upgrade_available && installing, Phase::Pending),
            (!running && !f.upgrade_available && installing, Phase::Interrupted),
            (!running && f.marker.is_none(), Phase::Altboot),
        ];
        rows.iter().find(|(holds, _)| *holds).expect("a row for every combination").1
    }

    #[test]
    fn every_combination_has_the_phase_of_the_table() {
        let mut seen = std::collections::BTreeSet::new();
        for facts in all() {
            assert_eq!(of(facts), by_the_table(facts), "{facts:?}");
            seen.insert(of(facts));
        }
        assert_eq!(seen.len(), Phase::ALL.len(), "every phase can be reached");
    }

    #[test]
    fn an_update_never_starts_over_the_only_proven_system_by_itself() {
        for phase in Phase::ALL {
            let proven_is_the_other = matches!(phase, Phase::Trial | Phase::RollingBack);
            if proven_is_the_other {
                assert!(
                    !matches!(
                        phase.update_permission(),
                        UpdatePermission::Free | UpdatePermission::AfterRecovery
                    ),
                    "{phase}"
                );
            }
        }
        assert_eq!(Phase::Healthy.update_permission(), UpdatePermission::Free);
        assert_eq!(Phase::Altboot.update_permission(), UpdatePermission::Forced);
    }
}
