//! Paths in JSON, which is Unicode. The names of files on Linux need not be.

use std::path::{Path, PathBuf};

use serde::{Serialize as _, Serializer};

/// A path that is not UTF-8 has U+FFFD in the place of each wrong sequence of bytes, and a note that says so.
pub(crate) fn text(path: &Path) -> String {
    path.to_str().map_or_else(|| format!("{} (not UTF-8)", path.to_string_lossy()), str::to_owned)
}

/// For `serialize_with`.
pub(crate) fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text(path))
}

/// For `serialize_with`.
#[allow(clippy::ref_option)] // serde passes the field
pub(crate) fn option<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_deref().map(text).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn what_is_not_unicode_is_marked() {
        assert_eq!(text(Path::new("/d/Käse.img")), "/d/Käse.img");
        assert_eq!(text(Path::new(OsStr::from_bytes(b"t\xff.img"))), "t\u{fffd}.img (not UTF-8)");
    }
}
