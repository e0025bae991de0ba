//! The operating system, without anything of copal: the only place with `unsafe`.

pub mod block;
pub mod buffer;
pub mod command;
pub mod crash_point;
pub(crate) mod device_mapper;
pub mod file;
pub(crate) mod hold;
pub(crate) mod keyboard;
pub(crate) mod limits;
pub mod log;
pub(crate) mod loopdev;
pub(crate) mod machine;
pub mod mount;
pub mod mtd;
pub mod notify;
pub mod output;
pub(crate) mod path_text;
pub mod power;
pub mod random;
pub mod shutdown;
pub mod signal;
pub mod systemd;
pub mod terminal;
pub mod uevent;
pub mod watch;
