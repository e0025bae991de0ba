//! Waits for network services, and for a disk that appears late. Bounded, and driven by events.

use std::time::{Duration, Instant};

use super::inputs::Inputs;
use super::partitions::pause;
use crate::config::config_json::ConfigJson;
use crate::config::paths::Paths;
use crate::disk::select::Target;
use crate::error::Code;
use crate::sys::signal;
use crate::sys::systemd::{self, Waited};
use crate::sys::uevent::Uevents;

/// They register the device, or show it to its owner; one is enough.
const SERVICES: [&str; 2] = ["openvpn.service", "resin-device-register.service"];

/// The same time as in the scripts.
const SERVICES_TIMEOUT: Duration = Duration::from_secs(15);

/// For slow `NVMe`, eMMC with a late module, a USB bridge, an array that is still being assembled.
const DISK_TIMEOUT: Duration = Duration::from_secs(30);

/// Lets the device register before it goes offline. No wait for a device without a fleet, without these services, or
/// without systemd.
pub(super) fn wait_for_services(paths: &Paths, config: Option<&ConfigJson>) {
    let provisioned = config.is_some_and(ConfigJson::is_provisioned);
    if !provisioned {
        tracing::info!("not waiting for the network: the device belongs to no fleet");
        return;
    }
    if !systemd::is_running(paths.root()) {
        tracing::info!("not waiting for the network: systemd is not running");
        return;
    }
    match systemd::wait_for_active(&SERVICES, SERVICES_TIMEOUT) {
        Waited::Active(unit) => tracing::info!("{unit} is active"),
        Waited::NoneKnown => {
            tracing::info!(
                "not waiting for the network: there is neither {} nor {}",
                SERVICES[0],
                SERVICES[1]
            );
        }
        Waited::NoneComing => {
            tracing::info!(
                "not waiting for the network: neither {} nor {} is active or about to be",
                SERVICES[0],
                SERVICES[1]
            );
        }
        Waited::TimedOut if signal::came().is_some() => {}
        Waited::TimedOut => tracing::warn!(
            "neither {} nor {} became active within {} s: no network? Flashing without it",
            SERVICES[0],
            SERVICES[1],
            SERVICES_TIMEOUT.as_secs()
        ),
        Waited::NoBus(why) => {
            tracing::warn!("cannot ask systemd for network services ({why}); flashing without them");
        }
    }
}

/// Waits until there is a disk to choose, or a signal comes. The later choice, which knows the size of the image, reports an error in detail.
pub(super) fn wait_for_disk(inputs: &Inputs, paths: &Paths) -> Option<Target> {
    let began = Instant::now();
    let deadline = began + DISK_TIMEOUT;
    // Before the first check, so that no event is missed.
    let events = Uevents::open().inspect_err(|e| tracing::debug!("no kernel events: {e}")).ok();
    let mut waiting = false;
    loop {
        let e = match inputs.target(paths) {
            Ok(target) => {
                if waiting {
                    tracing::info!("a disk appeared after {:.1} s", began.elapsed().as_secs_f64());
                }
                return Some(target);
            }
            Err(e) => e,
        };
        if !matches!(e.code(), Code::NoTarget | Code::TargetMissing | Code::TargetNoMedium)
            || Instant::now() >= deadline
            || signal::came().is_some()
        {
            return None;
        }
        if !waiting {
            waiting = true;
            tracing::info!("no disk to flash yet; waiting up to {} s for one", DISK_TIMEOUT.as_secs());
        }
        pause(events.as_ref(), deadline);
    }
}
