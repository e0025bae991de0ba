//! Before a wanted reboot: it is no failed boot.
