//! The journal events that an owner, or a program, may look for. Each has an identifier that never changes, and an entry in
//! `systemd/copal.catalog` with its meaning and the remedy. A test compares the two.
//!
//! An event is a log line with the field `MESSAGE_ID`:
//! `tracing::info!(MESSAGE_ID = events::FLASH_STARTED, COPAL_DEVICE = %name, "…")`.

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident = $id:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $id;)*

        pub const ALL: &[(&str, &str)] = &[$((stringify!($name), $name),)*];
    };
}

events! {
    FLASH_STARTED = "06b2ee14b8b447e6b23061cee0def024";
    FLASH_FINISHED = "bd777019650f46e385f1b23c954427f6";
    FLASH_FAILED = "94231e1ed99a406f899dfda870cbf1a2";
    TARGET_REJECTED = "2793065fec784251b574ea7b00bea85a";
    VERIFY_MISMATCH = "6ffd8d7e2c5e45d4905de0114e8ce803";
    BOOTLOADER_WRITTEN = "957714db815b40879cf91340b3777ef2";
    ENVIRONMENT_REPAIRED = "3e2ebb1a5b3142ffbea465409f014bc4";
    LOCK_WAIT = "10158c8430fa41b1a74808c0bc1475c2";
    UPDATE_STARTED = "0fd8a3c12f4c4b00bd434e6ec054d3e3";
    UPDATE_INSTALLED = "3eac8ee1bc9b4ded9c398effda6722bc";
    UPDATE_FAILED = "31d71edeaeec4ab2be92c2ebd9903a66";
    TRIAL_STARTED = "087c0e1168f24595b105b90da41ef69a";
    /// One attempt; the trial goes on.
    HEALTH_CHECK_FAILED = "5b7762eab28f4f78bde1c0b84adc5035";
    COMMITTED = "8913a1f17bab4dc28ea8ab45f90c32ac";
    ROLLED_BACK = "5f7781a0713c4955a35238e2e70b59ad";
    ROLLBACK_FAILED = "20d67fc400ba406fb93b511b529a738a";
    BOOT_FILE_CARRIED = "d3c72971147c42d9aeb7942e31a8135f";
    /// A record of the history is in the journal because its file could not be written.
    HISTORY_UNWRITTEN = "f30bf94e59054aedb36674b6c326dded";
}
