//! Running a program as on Linux 4.4, the kernel of the oldest devices.
#![allow(dead_code)] // no test program uses all of it

use std::path::{Path, PathBuf};

/// The program that does so; behind it comes what it runs.
pub const SCRIPT: &str = include_str!("old_kernel.py");

/// What a program prints in which a system call of Linux 4.5 is refused.
pub const REFUSED: &str = "copy_file_range: Function not implemented";

/// A program that prints [`REFUSED`], if that is so.
pub const CONTROL: &str = "\
import os
f = os.open('/proc/self/exe', os.O_RDONLY)
try:
    os.copy_file_range(f, f, 1)
except OSError as e:
    print(f'copy_file_range: {e.strerror}')
";

/// What devices get: the static program where `./dev build` has made it, else the one under test.
pub fn program() -> PathBuf {
    let made = std::env::var_os("COPAL_DIST")
        .map(|dist| Path::new(&dist).join(format!("copal-{}", std::env::consts::ARCH)))
        .filter(|made| made.is_file());
    made.unwrap_or_else(|| env!("CARGO_BIN_EXE_copal").into())
}
