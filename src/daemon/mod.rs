//! The D-Bus service `io.balena.Copal1`.

pub mod client;
