//! The reboot that waits for the locks of services. Nothing here can end this machine: the ways to do so are stand-ins, or stand in a
//! process namespace of their own without `/proc`.

mod locks;
mod program;
mod shutdown_methods;
