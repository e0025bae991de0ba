//! `rollback-stop`: ends a trial by hand.
