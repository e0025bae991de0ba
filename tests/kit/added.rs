//! Variables that a program finds, and that nobody has given it.

/// Variables that a shell adds, and `LPROF_INIT_ONCE_ENV`, which LLVM's coverage leaves (compiler-rt).
const ADDED: [&str; 5] = ["PWD", "OLDPWD", "SHLVL", "_", "__LLVM_PROFILE_RT_INIT_ONCE"];

/// Whether a variable is one of them.
pub fn is_added(name: &str) -> bool {
    ADDED.contains(&name)
}
