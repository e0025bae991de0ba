//! What boards and owners configure, as values.

pub mod config_json;
pub mod flasher_conf;
pub mod paths;
pub mod pattern;
