//! Whether the previous system is new enough to go back to.
