//! Everyone who watches an installation: whoever started it, the owner's dashboard, systemd's status line, an LED, and
//! the journal.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use super::events;
use super::plan::Plan;
use super::receipt::Receipt;
use crate::config::config_json::ConfigJson;
use crate::config::paths::Paths;
use crate::error::{Code, Error};
use crate::progress::cloud::{self, Cloud};
use crate::progress::led::{Led, Pattern};
use crate::progress::status::Status;
use crate::progress::{Progress, Shown};
use crate::sys::{notify, systemd};

/// For the last report to the dashboard: one call that is under way, and one more.
const LAST_REPORT: Duration = Duration::from_secs(25);

/// How long a failure blinks before the program ends with it.
const BLINK: Duration = Duration::from_secs(5);

/// The watchers.
pub struct Watch<'a> {
    shown: &'a Shown,
    led: Led,
    cloud: Mutex<Option<Cloud>>,
}

impl<'a> Watch<'a> {
    /// Adds systemd's status line and an LED, `led` or the configured one, to `shown`.
    #[must_use]
    pub fn new(shown: &'a Shown, paths: &Paths, led: Option<&Path>) -> Self {
        events::wanted();
        let led = led.map_or_else(|| Led::configured(paths), Led::at);
        shown.also(Box::new(Status::new(notify::status)));
        shown.also(led.sink());
        Watch { shown, led, cloud: Mutex::new(None) }
    }

    /// Where the job reports how far it is.
    #[must_use]
    pub fn progress(&self) -> &dyn Progress {
        self.shown
    }

    /// From now on the dashboard hears of it, if the device belongs to a fleet. Without systemd there is nobody who would
    /// carry it there.
    pub fn tell_owner(&self, paths: &Paths, config: Option<&ConfigJson>) {
        if !systemd::is_running(paths.root()) {
            return;
        }
        let cloud = Cloud::new(paths, config.is_some_and(ConfigJson::is_provisioned));
        self.shown.also(cloud.sink());
        if let Ok(mut own) = self.cloud.lock() {
            *own = Some(cloud);
        }
    }

    /// The LED is the board's own from now on.
    pub fn hands_off(&self) {
        self.led.show(Pattern::HandsOff);
    }

    /// The plan stands: from now on a failure is one of its disk.
    pub fn planned(&self, plan: &Plan) {
        events::planned(plan);
    }

    /// Nothing can refuse any more: the first write follows.
    pub fn started(&self, plan: &Plan) {
        events::started(plan);
    }

    /// All is done; returns when the last report is out.
    pub fn succeeded(&self, receipt: &Receipt) {
        events::finished(receipt);
        self.led.show(Pattern::Solid);
        self.report(cloud::POST_PROVISIONING);
    }

    /// It failed; the error itself is told by the caller.
    pub fn failed(&self, e: &Error) {
        match e.code() {
            Code::NoTarget => self.report(cloud::NO_DEVICE),
            Code::NoTargetPattern => self.report(cloud::NOT_SUPPORTED),
            _ => {}
        }
        self.led.fail(BLINK);
    }

    fn report(&self, text: &'static str) {
        let cloud = self.cloud.lock().ok().and_then(|c| c.clone());
        if let Some(cloud) = cloud {
            cloud.report(100, text);
            cloud.finish(LAST_REPORT);
        }
    }
}
