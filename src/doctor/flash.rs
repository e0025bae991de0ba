//! Everything that stops an installation before it asks the board's plug-in.

use super::{Findings, Verdict};
use crate::config::paths::Paths;
use crate::error::Code;
use crate::install::secure_boot::Decision;
use crate::install::{self, FlashRequest};
use crate::progress::Silent;

pub(super) const CHECK_NAME: &str = "flash";

pub(super) fn look(paths: &Paths, found: &mut Findings<'_>) {
    let mut request = FlashRequest::of_environment(paths.clone());
    // Reading all of it takes minutes; the installation does that.
    request.checks.single_pass = true;
    match install::plan(&request, &Silent) {
        Ok(plan) => {
            found.add(
                Verdict::Ok,
                format!("{} would be written", plan.flash.target.name.display()),
                None,
                None,
            );
            let Some(installation) = plan.installation else { return };
            if installation.encryption.as_ref().is_some_and(|planned| planned.recovery_slot) {
                found.ok("each encrypted partition would get a recovery passphrase, for the owner of installer.recovery_key");
            }
            match installation.encryption.map(|planned| planned.secure_boot.map(|summary| summary.decision)) {
                None => {}
                Some(None) => found.ok("it would be encrypted if the secure-boot plug-in decides so"),
                Some(Some(Decision::EnrolKeys)) => {
                    found.ok("it would be encrypted, and the medium's keys enrolled into the firmware");
                }
                Some(Some(Decision::KeysAreEnrolled)) => {
                    found.ok("it would be encrypted; the firmware has the medium's keys already");
                }
            }
            if let Some(why) = installation.encryption_refused {
                found.warn(
                    format!("if the secure-boot plug-in decides to encrypt: {why}"),
                    "see docs/secure-boot.md for what encryption needs",
                );
            }
        }
        // The installation mounts its own boot partition in that place.
        Err(e) if e.code() == Code::MediumBootElsewhere => {
            found.add(Verdict::Warning, e.message(), Some(e.code().as_str()), Some(e.hint().to_owned()));
        }
        Err(e) => found.problem(&e),
    }
}
