//! `resin_update_state_probe`: tells udev which root partition is the active one.
