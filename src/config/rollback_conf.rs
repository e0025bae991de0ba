//! The owner's rules for the trial of a new system: `/etc/copal/rollback.conf`.
//!
//! A [shell fragment](super::shell_conf). It is part of the release on trial, so a mistake in it must not decide the trial:
//! every mistake is tolerated. The log of a trial and `copal doctor` report it.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::paths::Paths;
use super::read::shown;
use super::shell_conf::RawConf;
use crate::error::{Code, Error, Result};

pub const FILE: &str = "/etc/copal/rollback.conf";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Number {
    pub key: &'static str,
    pub default: u32,
    pub range: RangeInclusive<u32>,
    pub unit: &'static str,
}

/// From one run of the checks to the next. Default of the script `rollback-health`. At most an hour: until the verdict, the
/// supervisor does not restart the device.
pub const TIMEOUT: Number = Number { key: "TIMEOUT", default: 60, range: 1..=3600, unit: "seconds" };
/// Runs of the checks before the rollback. Default of the script `rollback-health`.
pub const COUNT: Number = Number { key: "COUNT", default: 15, range: 1..=240, unit: "runs" };
/// How long to wait for `rollback-altboot`; `REBOOT_TIMEOUT` in the script `rollback-health`.
const ALTBOOT_TIMEOUT: Number =
    Number { key: "ALTBOOT_TIMEOUT", default: 900, range: 1..=86_400, unit: "seconds" };
/// How long one check may take. The script had no limit, so a check that hung was never decided. A check needs less than five
/// minutes on a board under full load; with the other defaults, a system on which every run hangs fails after 90 minutes.
const CHECK_LIMIT: Number = Number { key: "CHECK_LIMIT", default: 300, range: 1..=3600, unit: "seconds" };
/// The boot count at which the loader takes the other root. 0: as U-Boot compares with its own limit. The UEFI of Jetson Orin and Thor reads
/// U-Boot's files, and takes the other root at 3 (balena-jetson-orin, `BALENA_OS_BC_LIM` in the patches of `L4TLauncher.c`).
const FALLBACK_COUNT: Number = Number { key: "FALLBACK_COUNT", default: 0, range: 0..=100, unit: "boots" };
pub const NUMBERS: [&Number; 5] = [&TIMEOUT, &COUNT, &ALTBOOT_TIMEOUT, &CHECK_LIMIT, &FALLBACK_COUNT];

/// Whether a check decides the trial, or is only reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    pub key: &'static str,
    pub default: bool,
}

/// A unit that has failed since the update counts against the new system.
pub const REQUIRE_UNITS: Switch = Switch { key: "REQUIRE_UNITS", default: false };
/// A kernel that got another device tree than the owner names, and got that one before the update, counts against the new system.
pub const REQUIRE_DEVICE_TREE: Switch = Switch { key: "REQUIRE_DEVICE_TREE", default: true };
pub const SWITCHES: [&Switch; 2] = [&REQUIRE_UNITS, &REQUIRE_DEVICE_TREE];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RollbackConf {
    pub timeout: Duration,
    pub count: u32,
    pub altboot_timeout: Duration,
    pub check_limit: Duration,
    pub units_required: bool,
    pub device_tree_required: bool,
}

impl Default for RollbackConf {
    fn default() -> Self {
        RollbackConf {
            timeout: seconds(TIMEOUT.default),
            count: COUNT.default,
            altboot_timeout: seconds(ALTBOOT_TIMEOUT.default),
            check_limit: seconds(CHECK_LIMIT.default),
            units_required: REQUIRE_UNITS.default,
            device_tree_required: REQUIRE_DEVICE_TREE.default,
        }
    }
}

impl RollbackConf {
    /// The configuration and every mistake in its file. A missing file, and a part with a mistake, mean the defaults. `args` are those of the shell file
    /// `rollback-health`, `TIMEOUT COUNT`; either may be missing or empty. They override the file, because people and tests edit the shell
    /// file.
    #[must_use]
    pub fn read(paths: &Paths, args: &[OsString]) -> (Self, Vec<Error>) {
        let (raw, mut mistakes) = match RawConf::load_if_there(&paths.at(FILE)) {
            Ok(raw) => (raw.unwrap_or_default(), Vec::new()),
            // Nothing of such a file counts, and all that is wrong in it is said.
            Err(e) => {
                let (raw, mut mistakes) = RawConf::load_leniently(&paths.at(FILE));
                if mistakes.is_empty() {
                    mistakes.push(e);
                }
                let _ = Self::parse(&raw, &mut mistakes);
                (RawConf::default(), mistakes)
            }
        };
        let mut conf = Self::parse(&raw, &mut mistakes);
        conf.take_positionals(args, &mut mistakes);
        (conf, mistakes)
    }

    /// [`RollbackConf::read`] for the programs that decide a trial: mistakes are logged.
    #[must_use]
    pub fn on_trial(paths: &Paths, args: &[OsString]) -> Self {
        let (conf, mistakes) = Self::read(paths, args);
        for e in mistakes {
            tracing::warn!("{}; it is ignored", e.message());
        }
        conf
    }

    /// `None` where U-Boot's own limit counts. Reported with the other mistakes, not here: each look at the boot state asks.
    pub(crate) fn fallback_count(paths: &Paths) -> Option<u32> {
        let raw = RawConf::load_if_there(&paths.at(FILE)).ok()??;
        FALLBACK_COUNT.parse(raw.get(FALLBACK_COUNT.key)?).ok()?.filter(|count| *count > 0)
    }

    fn parse(raw: &RawConf, mistakes: &mut Vec<Error>) -> Self {
        mistakes.extend(raw.unknown_keys(|key| {
            SWITCHES.iter().any(|s| s.key == key) || NUMBERS.iter().any(|n| n.key == key)
        }));
        let mut number = |number: &Number| match raw.get(number.key).map(|v| number.parse(v)) {
            Some(Ok(Some(value))) => value,
            None | Some(Ok(None)) => number.default,
            Some(Err(what)) => {
                mistakes.push(raw.invalid(number.key, &what, &number.rule()));
                number.default
            }
        };
        let mut conf = RollbackConf {
            timeout: seconds(number(&TIMEOUT)),
            count: number(&COUNT),
            altboot_timeout: seconds(number(&ALTBOOT_TIMEOUT)),
            check_limit: seconds(number(&CHECK_LIMIT)),
            ..Self::default()
        };
        // For its mistakes: the boot state reads its value.
        number(&FALLBACK_COUNT);
        let mut switch = |switch: &Switch| match raw.get(switch.key).unwrap_or_default() {
            "" => switch.default,
            "0" => false,
            "1" => true,
            odd => {
                let what = format!("`{}` is neither 0 nor 1", shown(odd));
                mistakes.push(raw.invalid(switch.key, &what, "write 0 or 1"));
                switch.default
            }
        };
        conf.units_required = switch(&REQUIRE_UNITS);
        conf.device_tree_required = switch(&REQUIRE_DEVICE_TREE);
        conf
    }

    fn take_positionals(&mut self, args: &[OsString], mistakes: &mut Vec<Error>) {
        let mut args = args.iter();
        let mut next = |number: &Number| match args.next().map(|a| number.parse(&a.to_string_lossy())) {
            None => None,
            Some(Ok(value)) => value,
            Some(Err(what)) => {
                let e = Error::new(Code::Usage, format!("argument {}: {what}", number.key));
                mistakes.push(e.object(number.key).with_hint(number.rule()));
                None
            }
        };
        let (timeout, count) = (next(&TIMEOUT), next(&COUNT));
        self.timeout = timeout.map_or(self.timeout, seconds);
        self.count = count.unwrap_or(self.count);
        if let Some(arg) = args.next() {
            let message = format!("unexpected argument '{}'", shown(&arg.to_string_lossy()));
            mistakes.push(Error::new(Code::Usage, message).with_hint("the arguments are TIMEOUT and COUNT"));
        }
    }
}

impl Number {
    fn parse(&self, text: &str) -> Result<Option<u32>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse().ok().filter(|n| digits && self.range.contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(format!("`{}` is not a number from {}", shown(text), self.span())),
        }
    }

    fn rule(&self) -> String {
        format!("write a whole number of {} from {}", self.unit, self.span())
    }

    fn span(&self) -> String {
        format!("{} to {}", self.range.start(), self.range.end())
    }
}

fn seconds(number: u32) -> Duration {
    Duration::from_secs(number.into())
}
