use std::io;

use crate::error::Result;

pub(super) enum Fault {
    Damaged(String),
    Window,
    Unsupported(String),
}

impl Fault {
    pub(super) fn damaged(why: impl std::fmt::Display) -> Self {
        Fault::Damaged(why.to_string())
    }
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            // lzma-rust2 reports a dictionary above its limit like this.
            io::ErrorKind::OutOfMemory => Fault::Window,
            io::ErrorKind::Unsupported => Fault::Unsupported(e.to_string()),
            io::ErrorKind::UnexpectedEof => Fault::Damaged("the file ends too early".into()),
            _ => Fault::Damaged(e.to_string()),
        }
    }
}

pub(super) trait Unpack: Send {
    /// Puts at least one byte into `buf`, which is not empty. Returns 0 when the whole file was read and every check passed.
    /// Not called again after that or after a fault.
    fn read(&mut self, buf: &mut [u8]) -> Result<usize, Fault>;
}
