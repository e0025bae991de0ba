//! Hands an update to the daemon, and follows it.
