//! What boards and owners configure, as values.

mod braces;
pub mod config_json;
pub mod flasher_conf;
pub mod os_release;
pub mod paths;
pub mod pattern;
mod read;
pub mod shell_conf;

/// Never passed on to other people's programs: the board's `balena-config-defaults` takes its presence in the environment for an
/// encrypted installation.
pub const NOT_PASSED_ON: &str = "CRYPT";
