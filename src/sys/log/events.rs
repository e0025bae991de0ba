//! The events that an owner, or a program of theirs, may look for in the journal. Each has an identifier that never
//! changes, and an entry in `systemd/copal.catalog` that says what it means and what to do. A test keeps the two equal.
//!
//! An event is a line of the log with the field `MESSAGE_ID`:
//! `tracing::info!(MESSAGE_ID = events::FLASH_STARTED, COPAL_DEVICE = %name, "…")`.

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident = $id:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $id;)*

        /// Every event: the name of its constant, and its identifier.
        pub const ALL: &[(&str, &str)] = &[$((stringify!($name), $name),)*];
    };
}

events! {
    /// A disk is being written from now on.
    FLASH_STARTED = "06b2ee14b8b447e6b23061cee0def024";
    /// A disk was written and verified.
    FLASH_FINISHED = "bd777019650f46e385f1b23c954427f6";
    /// A flash has come to nothing.
    FLASH_FAILED = "94231e1ed99a406f899dfda870cbf1a2";
    /// A disk that a pattern names was passed over.
    TARGET_REJECTED = "2793065fec784251b574ea7b00bea85a";
    /// A disk gave back other bytes than were written to it.
    VERIFY_MISMATCH = "6ffd8d7e2c5e45d4905de0114e8ce803";
    /// A bootloader was written and verified.
    BOOTLOADER_WRITTEN = "957714db815b40879cf91340b3777ef2";
    /// The file with the boot selection was damaged, and has been written anew.
    ENVIRONMENT_REPAIRED = "3e2ebb1a5b3142ffbea465409f014bc4";
    /// A reboot waits for the lock of a service.
    LOCK_WAIT = "10158c8430fa41b1a74808c0bc1475c2";
    /// The other root partition is being installed to from now on.
    UPDATE_STARTED = "0fd8a3c12f4c4b00bd434e6ec054d3e3";
    /// An update is installed; it is tried at the next boot.
    UPDATE_INSTALLED = "3eac8ee1bc9b4ded9c398effda6722bc";
    /// An update has come to nothing.
    UPDATE_FAILED = "31d71edeaeec4ab2be92c2ebd9903a66";
    /// A new system runs, and has to prove itself.
    TRIAL_STARTED = "087c0e1168f24595b105b90da41ef69a";
    /// A system on trial is not as well as it has to be, at this attempt.
    HEALTH_CHECK_FAILED = "5b7762eab28f4f78bde1c0b84adc5035";
    /// A new system stays: it has proved itself, or somebody has decided so.
    COMMITTED = "8913a1f17bab4dc28ea8ab45f90c32ac";
    /// The device goes back to the old system.
    ROLLED_BACK = "5f7781a0713c4955a35238e2e70b59ad";
    /// The device cannot go back to the old system.
    ROLLBACK_FAILED = "20d67fc400ba406fb93b511b529a738a";
    /// A record of the history is in the journal, since it could not be added to its file.
    HISTORY_UNWRITTEN = "f30bf94e59054aedb36674b6c326dded";
}
