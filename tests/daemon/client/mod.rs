//! Updates that are handed to the daemon, against a stand-in for it and against the real one.

mod engine;
mod followed;
mod own_process;
mod place;
mod served;
mod stand_in;
