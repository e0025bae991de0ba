//! What would stop a flash from this medium: everything that the installation refuses for before it asks the board's plug-in.

use super::{Findings, Verdict};
use crate::config::paths::Paths;
use crate::error::Code;
use crate::flash::job::Request;
use crate::install;
use crate::progress::Silent;

pub(super) const NAME: &str = "flash";

pub(super) fn look(paths: &Paths, found: &mut Findings<'_>) {
    let mut request = Request::of_environment(paths.clone());
    // To read all of it takes minutes, and the installation will do that.
    request.checks.single_pass = true;
    match install::plan(&request, &Silent) {
        Ok(plan) => {
            found.add(
                Verdict::Ok,
                format!("{} would be written", plan.flash.target.name.display()),
                None,
                None,
            );
        }
        // It mounts its own in that place.
        Err(e) if e.code() == Code::MediumBootElsewhere => {
            found.add(Verdict::Warning, e.message(), Some(e.code().as_str()), Some(e.hint().to_owned()));
        }
        Err(e) => found.problem(&e),
    }
}
