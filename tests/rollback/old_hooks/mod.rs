//! Going back: the hooks of the old system in its own root, with every mount undone whatever happens, and its kernel override.

mod ends;
mod failures;
mod kernel;
mod place;
mod rig;

/// What a rollback does in the rigs: no test, but a program that a device runs.
#[test]
#[ignore = "a program that other tests start"]
fn program() {
    rig::act();
}
