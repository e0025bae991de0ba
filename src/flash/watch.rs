//! Everything that follows an installation: the caller, the owner's dashboard, systemd's status line, an LED, the journal.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use super::events;
use super::plan::Plan;
use super::receipt::Receipt;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::progress::cloud::{self, Cloud};
use crate::progress::led::{Led, Pattern};
use crate::progress::status::Status;
use crate::progress::{Progress, Shown};
use crate::sys::{notify, systemd};

/// For the current call to the dashboard, and one more.
const LAST_REPORT: Duration = Duration::from_secs(25);

/// How long the LED shows a failure before the program ends.
const BLINK_TIME: Duration = Duration::from_secs(5);

pub struct Watch<'a> {
    shown: &'a Shown,
    led: Led,
    cloud: Mutex<Option<Cloud>>,
}

impl<'a> Watch<'a> {
    /// Adds systemd's status line and an LED, `led` or the configured one, to `shown`. Fails if `led` is none.
    pub fn new(shown: &'a Shown, paths: &Paths, led: Option<&Path>) -> Result<Self> {
        let led = match led {
            Some(file) => Led::at(file, paths)?,
            None => Led::configured(paths),
        };
        events::requested();
        shown.also(Box::new(Status::new(notify::status)));
        shown.also(led.sink());
        Ok(Watch { shown, led, cloud: Mutex::new(None) })
    }

    #[must_use]
    pub fn progress(&self) -> &dyn Progress {
        &**self.shown
    }

    /// Reports to the dashboard from now on, if the device belongs to a fleet (`provisioned`). Without systemd no service would forward it.
    pub(crate) fn report_to_owner(&self, paths: &Paths, provisioned: bool) {
        if !systemd::is_running(paths.root()) {
            return;
        }
        let cloud = Cloud::new(paths, provisioned);
        self.shown.also(cloud.sink());
        if let Ok(mut own) = self.cloud.lock() {
            *own = Some(cloud);
        }
    }

    /// From now on the board drives the LED.
    pub(crate) fn hands_off(&self) {
        self.led.show(Pattern::HandsOff);
    }

    pub(crate) fn planned(&self, plan: &Plan) {
        events::planned(plan);
    }

    pub fn started(&self, plan: &Plan) {
        events::started(plan);
    }

    /// Returns when the last report was sent.
    pub fn succeeded(&self, receipt: &Receipt) {
        events::finished(receipt);
        self.led.show(Pattern::Solid);
        self.report(cloud::POST_PROVISIONING);
    }

    /// The caller prints the error itself.
    pub fn failed(&self, e: &Error) {
        self.shown.close();
        match e.code() {
            Code::NoTarget => self.report(cloud::NO_DEVICE),
            Code::NoTargetPattern => self.report(cloud::NOT_SUPPORTED),
            _ => {}
        }
        self.led.fail(BLINK_TIME);
    }

    fn report(&self, text: &'static str) {
        let cloud = self.cloud.lock().ok().and_then(|c| c.clone());
        if let Some(cloud) = cloud {
            cloud.report(100, text);
            cloud.finish(LAST_REPORT);
        }
    }
}
