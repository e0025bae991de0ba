//! Variables that a program finds, and that nobody has given it.

/// Those that a shell adds, and the one that LLVM's measuring of the coverage leaves (`LPROF_INIT_ONCE_ENV` of compiler-rt).
const ADDED: [&str; 5] = ["PWD", "OLDPWD", "SHLVL", "_", "__LLVM_PROFILE_RT_INIT_ONCE"];

/// Whether a variable is one of them.
pub fn is_added(name: &str) -> bool {
    ADDED.contains(&name)
}
