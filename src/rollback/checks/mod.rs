//! The health checks of a system on trial.
