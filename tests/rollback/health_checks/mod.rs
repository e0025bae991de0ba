//! The health checks of a system on trial, below a root folder with programs and a systemd that are stand-ins.

mod conf;
mod device_tree;
mod docs;
mod folders;
mod rig;
mod standard;
mod units;
