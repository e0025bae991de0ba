//! The kernel that a slot was committed with (`kernel_override_abi`).
