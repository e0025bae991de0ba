//! Lists of policies: two folders are refused, and a list that was written is read back, with the other list as it was.
#![no_main]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use copal::unlock::policies::{List, Policies};
use libfuzzer_sys::fuzz_target;

const NAMES: [&str; 8] = [
    "policies.copal",
    "policies.x",
    ".policies.new",
    "EFI",
    "policy.00",
    "policy.01",
    "CPL0000A.TMP",
    "policies",
];

/// What is on the partition: each record is a byte for the folder it is in, one for what it is, one for its name, and the content of a file.
fn make(top: &Path, data: &[u8]) {
    let mut folders = vec![top.to_owned()];
    let mut rest = data;
    for _ in 0..24 {
        let [parent, kind, name, more @ ..] = rest else { return };
        let parent = &folders[usize::from(*parent) % folders.len()];
        let (own, more) = more.split_at(more.len().min(usize::from(name >> 4)));
        let name = match NAMES.get(usize::from(*name)) {
            Some(name) => OsStr::new(name),
            None => OsStr::from_bytes(own),
        };
        let path = parent.join(name);
        let is_plain = !matches!(name.as_bytes(), b"" | b"." | b"..")
            && !name.as_bytes().iter().any(|b| matches!(b, b'/' | 0));
        // Copied to the second list, a file with such a name would be another first one.
        let is_list = |name: &OsStr| name.as_bytes().starts_with(b"policies.");
        let is_plain = is_plain && !(is_list(name) && parent.iter().any(is_list));
        let length = match kind {
            0..=0x7f => 32,
            0x80..=0xbf => usize::from(*kind),
            _ => 0,
        };
        let (content, more) = more.split_at(more.len().min(length));
        // The search ends at a depth that no board has.
        if is_plain && *kind >= 0xc0 && path.strip_prefix(top).unwrap().iter().count() < 8 {
            if fs::create_dir(&path).is_ok() {
                folders.push(path);
            }
        } else if is_plain && *kind < 0xc0 {
            let _ = fs::write(&path, content);
        }
        rest = more;
    }
}

/// What the initramfs looks for.
fn folders(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_name().as_bytes().starts_with(b"policies.") {
            found.push(entry.path());
        } else if entry.file_type().unwrap().is_dir() {
            folders(&entry.path(), found);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((count, data)) = data.split_first() else { return };
    let memory = Path::new("/dev/shm");
    let top = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    make(top.path(), data);
    let policies = Policies::at(top.path().to_owned());
    let mut found = Vec::new();
    folders(top.path(), &mut found);
    // In the second list the first one would be a part of it.
    if found.iter().any(|path| path.starts_with(top.path().join(".policies.new"))) {
        return;
    }
    let current = policies.current();
    assert!(found.len() < 2 || current.is_err());
    assert!(!found.is_empty() || current.as_ref().is_ok_and(|list| list.branches().is_empty()));
    let second = policies.second();

    let branches: Vec<_> =
        (0..count % 9).map(|number| [number ^ data.first().copied().unwrap_or(0); 32]).collect();
    let list = List::of(&branches, current.as_ref().unwrap_or(&List::default()), &Default::default());
    assert_eq!(list.branches().len(), branches.len());
    if policies.write_current(&list).is_ok() {
        assert_eq!(policies.current().unwrap(), list);
        assert_eq!(policies.second().ok(), second.ok());
    }
    let written = policies.current().ok();
    if policies.write_second(&list).is_ok() {
        assert_eq!(policies.second().unwrap(), Some(list).filter(|list| !list.branches().is_empty()));
        assert_eq!(policies.current().ok(), written);
        policies.remove_second().unwrap();
        assert_eq!(policies.second().unwrap(), None);
    }
});
