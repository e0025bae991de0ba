//! The VPN is up, or was down before the update.

use super::{CheckContext, Finding};
use crate::state::files;
use crate::update::snapshot;

pub(super) fn check(context: &CheckContext) -> Finding {
    if snapshot::vpn_is_up(&context.paths) {
        return Finding::passed("it is up");
    }
    let change = context.change;
    match files::kept_vpn_state(&context.variables) {
        Some(true) => Finding::failed(format!("it is down, and was up before the {change}")),
        Some(false) => Finding::passed(format!("it is down, as it was before the {change}")),
        None => Finding::unknown(format!("it is down; it is unknown whether it was up before the {change}")),
    }
}
