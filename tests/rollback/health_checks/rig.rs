//! A device below a folder.

use std::fs;
use std::time::{Duration, SystemTime};

use copal::config::paths::Paths;
use copal::config::rollback_conf::RollbackConf;
use copal::rollback::checks;
use copal::state::history::{Check, CheckResult};
use copal::sys::systemd::Bus;

use crate::kit::process::Root;

pub(crate) const ENGINE: &str = "/usr/lib/balena/balena-healthcheck";
pub(crate) const BOARD: &str = "/usr/bin/rollback-board-healthcheck";
pub(crate) const VPN: &str = "/run/openvpn/vpn_status/active";
pub(crate) const VARIABLES: &str = "/mnt/state/rollback-health-variables";

pub(crate) const FINE: &str = "#!/bin/sh\nexit 0\n";

pub(crate) struct Rig {
    pub(crate) root: Root,
    pub(crate) conf: RollbackConf,
}

impl Rig {
    /// A device on which all is well, without VPN and without a list of units.
    pub(crate) fn healthy() -> Rig {
        let conf = RollbackConf { check_limit: Duration::from_secs(60), ..RollbackConf::default() };
        let rig = Rig { root: Root::new(), conf };
        rig.root.program(ENGINE, FINE);
        rig.root.program(BOARD, FINE);
        fs::create_dir_all(rig.root.at("/mnt/state/copal")).unwrap();
        rig
    }

    pub(crate) fn paths(&self) -> Paths {
        Paths::new(self.root.path())
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.root.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Makes a file look as if it was written so many seconds ago.
    pub(crate) fn age(&self, path: &str, seconds: u64) {
        let file = fs::File::options().write(true).open(self.root.at(path)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }

    pub(crate) fn run(&self) -> Vec<Check> {
        checks::run_with(&self.paths(), &self.conf, &Bus::at("unix:path=/nonexistent"), None)
    }

    /// Result and reason of one check.
    pub(crate) fn one(&self, name: &str) -> (CheckResult, String) {
        find(&self.run(), name)
    }
}

pub(crate) fn find(checks: &[Check], name: &str) -> (CheckResult, String) {
    let check = checks.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("{name}: {checks:?}"));
    (check.result, check.reason.clone())
}

pub(crate) fn names(checks: &[Check]) -> Vec<&str> {
    checks.iter().map(|c| c.name.as_str()).collect()
}
