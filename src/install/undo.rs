//! After a failure that follows the write: the device must start its flasher again, not half a system.

use std::time::Duration;

use crate::boot_files::install::BootPartition;
use crate::config::paths::Paths;
use crate::error::{Code, Error};
use crate::flash::job;
use crate::flash::plan::Plan;
use crate::flash::write;
use crate::install::encryption::Encrypted;

/// How long other programs, such as udev, have to release the disk.
const REREAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Clears boot sector and partition table of the disk of `plan` once none of it is mounted. Adds the outcome to `e`.
pub(super) fn make_unbootable(
    plan: &Plan,
    paths: &Paths,
    mounted: Option<BootPartition>,
    encrypted: Option<&mut Encrypted>,
    e: Error,
) -> Error {
    let name = plan.target.name.display();
    if let Some(boot) = mounted
        && let Err(still) = boot.unmount()
    {
        tracing::warn!("{}", still.message());
    }
    if let Some(encrypted) = encrypted {
        encrypted.let_go(paths);
    }
    let cleared = match job::open_to_undo(&plan.target, paths) {
        Ok(device) => {
            let cleared = write::disarm(plan, &device);
            // So that no partition is mounted that no longer exists.
            if let Err(why) = device.reread_partitions(REREAD_TIMEOUT) {
                tracing::debug!("the kernel keeps the partition table of {name}: {why}");
            }
            cleared
        }
        Err(why) => {
            tracing::error!("cannot make {name} unbootable again: {}", why.message());
            false
        }
    };
    let e = e.after_write();
    if cleared {
        tracing::warn!("{name} was made unbootable again: its boot sector and partition table are cleared");
        if e.code() == Code::Interrupted { write::does_not_boot(name, e) } else { e }
    } else {
        e.and_also("its partition table could not be cleared again: it may boot half installed")
    }
}
