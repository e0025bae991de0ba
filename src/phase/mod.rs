//! Where a device stands in an update.
