//! What boards and owners configure, as values.

pub mod bootloaders_conf;
mod braces;
pub mod config_json;
pub mod flasher_conf;
pub mod os_release;
pub mod paths;
pub mod pattern;
mod read;
pub mod rollback_conf;
pub mod shell_conf;
