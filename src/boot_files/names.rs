use std::ffi::OsStr;

/// As in Linux (`vfat_is_used_badchars` and `vfat_striptail_len` of `fs/fat/namei_vfat.c`).
#[must_use]
pub fn refused_by_fat(name: &OsStr) -> Option<&'static str> {
    let text = name.to_string_lossy();
    match &*text {
        t if t.chars().any(|c| c < ' ' || "*?<>|\":\\".contains(c)) => {
            Some("its name has one of the characters * ? < > | \" : \\")
        }
        t if t.ends_with('.') => Some("its name ends with a dot"),
        t if t.ends_with(' ') => Some("its name ends with a blank"),
        t if t.encode_utf16().count() > 255 => Some("its name is too long"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_fat_does_not_take() {
        for name in ["a:b", "what?", "a\\b", "tab\t", "dot.", "blank ", "\"", &"x".repeat(256)] {
            assert!(refused_by_fat(OsStr::new(name)).is_some(), "{name}");
        }
        for name in [".hidden", "a b.txt", "ä", "x+y=z,[1];", &"x".repeat(255)] {
            assert!(refused_by_fat(OsStr::new(name)).is_none(), "{name}");
        }
    }
}
