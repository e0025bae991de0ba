//! Waiting for the world: the network services, and a disk that is slow to appear. Bounded, and driven by events.

use std::time::{Duration, Instant};

use super::partitions::pause;
use crate::config::config_json::ConfigJson;
use crate::config::paths::Paths;
use crate::error::Code;
use crate::flash::job::Inputs;
use crate::sys::systemd::{self, Waited};
use crate::sys::uevent::Uevents;

/// What registers the device, or lets its owner see it; either will do.
const SERVICES: [&str; 2] = ["openvpn.service", "resin-device-register.service"];

/// The scripts waited as long.
const FOR_SERVICES: Duration = Duration::from_secs(15);

/// Slow `NVMe`, eMMC behind a late module, a USB bridge, an array that is still being assembled.
const FOR_DISK: Duration = Duration::from_secs(30);

/// Gives the device a chance to register before its owner loses sight of it. A device that belongs to nobody, a system
/// without these services or without systemd: no wait.
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
    match systemd::wait_for_active(&SERVICES, FOR_SERVICES) {
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
        Waited::TimedOut => tracing::warn!(
            "neither {} nor {} became active within {} s: no network? Flashing without",
            SERVICES[0],
            SERVICES[1],
            FOR_SERVICES.as_secs()
        ),
        Waited::NoBus(why) => {
            tracing::warn!("cannot ask systemd for network services ({why}); flashing without");
        }
    }
}

/// Waits until there is a disk to choose. Whatever the outcome, the choice itself is made later, and tells more.
pub(super) fn wait_for_disk(inputs: &Inputs, paths: &Paths) {
    let began = Instant::now();
    let deadline = began + FOR_DISK;
    // Before the first look, so that nothing is missed between a look and the wait.
    let events = Uevents::open().inspect_err(|e| tracing::debug!("no kernel events: {e}")).ok();
    let mut waiting = false;
    while let Err(e) = inputs.target(paths) {
        if !matches!(e.code(), Code::NoTarget | Code::TargetMissing | Code::TargetNoMedium)
            || Instant::now() >= deadline
        {
            return;
        }
        if !waiting {
            waiting = true;
            tracing::info!("no disk to flash yet; waiting up to {} s for one", FOR_DISK.as_secs());
        }
        pause(events.as_ref(), deadline);
    }
    if waiting {
        tracing::info!("a disk appeared after {:.1} s", began.elapsed().as_secs_f64());
    }
}
