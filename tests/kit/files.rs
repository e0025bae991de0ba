//! Folder trees as maps.

use std::collections::BTreeMap;
use std::path::Path;

/// A folder in which changes take the steps that they take on a FAT, which most machines do not mount without a virtual one: in memory,
/// since ext4 has steps of its own.
pub fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// Relative paths with contents; a path that ends with `/` is a folder, contents that start with `-> ` are a link.
pub type Tree = BTreeMap<String, String>;

pub fn tree(entries: &[(&str, &str)]) -> Tree {
    entries.iter().map(|(p, c)| ((*p).to_owned(), (*c).to_owned())).collect()
}

pub fn make(root: &Path, tree: &Tree) {
    for (path, contents) in tree {
        let full = root.join(path);
        if path.ends_with('/') {
            std::fs::create_dir_all(&full).unwrap();
            continue;
        }
        std::fs::create_dir_all(full.parent().unwrap()).unwrap();
        match contents.strip_prefix("-> ") {
            Some(to) => std::os::unix::fs::symlink(to, &full).unwrap(),
            None => std::fs::write(&full, contents).unwrap(),
        }
    }
}

/// What is below a folder: files, links, and folders, as in [`make`].
pub fn see(root: &Path) -> Tree {
    let mut seen = Tree::new();
    let mut todo = vec![root.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                seen.insert(name + "/", String::new());
                todo.push(path);
            } else if kind.is_symlink() {
                seen.insert(name, format!("-> {}", std::fs::read_link(&path).unwrap().display()));
            } else if kind.is_file() {
                seen.insert(name, String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned());
            } else {
                seen.insert(name, "special".into());
            }
        }
    }
    seen
}
