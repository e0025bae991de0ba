//! What folders hold, to be compared and set back.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    Folder,
    File(Vec<u8>),
    Link(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
    modes: BTreeMap<String, u32>,
}

impl Tree {
    /// Everything below these folders; one that is not there holds nothing.
    pub fn of(root: &Path, areas: &[&str]) -> Tree {
        let mut tree = Tree::default();
        for area in areas {
            tree.add(root, area);
        }
        tree
    }

    fn add(&mut self, root: &Path, folder: &str) {
        let Ok(entries) = fs::read_dir(root.join(folder)) else { return };
        let own = fs::metadata(root.join(folder)).unwrap().dev();
        for entry in entries {
            use std::os::unix::fs::PermissionsExt as _;
            let entry = entry.unwrap();
            let name = format!("{folder}/{}", entry.file_name().to_str().unwrap());
            let meta = entry.metadata().unwrap();
            let node = if meta.is_dir() {
                // What is mounted there is not part of it.
                if meta.dev() == own {
                    self.add(root, &name);
                }
                Node::Folder
            } else if meta.is_symlink() {
                Node::Link(fs::read_link(entry.path()).unwrap().to_str().unwrap().to_owned())
            } else {
                Node::File(fs::read(entry.path()).unwrap())
            };
            self.modes.insert(name.clone(), meta.permissions().mode());
            self.nodes.insert(name, node);
        }
    }

    /// Makes these folders hold this again.
    pub fn restore(&self, root: &Path, areas: &[&str]) {
        use std::os::unix::fs::PermissionsExt as _;
        let now = Tree::of(root, areas);
        // What is deeper goes first.
        for (name, node) in now.nodes.iter().rev() {
            let path = root.join(name);
            if self.nodes.get(name) == Some(node) {
                continue;
            }
            match node {
                Node::Folder => fs::remove_dir(path).unwrap(),
                _ => fs::remove_file(path).unwrap(),
            }
        }
        for (name, node) in &self.nodes {
            if now.nodes.get(name) == Some(node) {
                continue;
            }
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match node {
                Node::Folder => fs::create_dir_all(&path).unwrap(),
                Node::Link(to) => symlink(to, &path).unwrap(),
                Node::File(bytes) => {
                    fs::write(&path, bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
                    fs::set_permissions(&path, fs::Permissions::from_mode(self.modes[name])).unwrap();
                }
            }
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.nodes.contains_key(name)
    }

    pub fn file(&self, name: &str) -> Option<&[u8]> {
        match self.nodes.get(name) {
            Some(Node::File(bytes)) => Some(bytes),
            _ => None,
        }
    }

    pub fn link(&self, name: &str) -> Option<&str> {
        match self.nodes.get(name) {
            Some(Node::Link(to)) => Some(to),
            _ => None,
        }
    }

    /// Names directly or deeper in a folder, without the folder's own.
    pub fn below<'t>(&'t self, folder: &'t str) -> impl Iterator<Item = &'t str> {
        self.nodes.keys().filter_map(move |n| n.strip_prefix(folder)?.strip_prefix('/'))
    }

    /// One line for everything, with what is new in every run replaced by one word.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .nodes
            .iter()
            .map(|(name, node)| match node {
                Node::Folder => format!("{name}/"),
                Node::Link(to) => format!("{name} -> {to}"),
                Node::File(bytes) => {
                    let text = plain(&String::from_utf8_lossy(bytes));
                    let shown: String = text.chars().take(300).collect();
                    let sum = text.bytes().fold(0_u32, |s, b| s.rotate_left(5) ^ u32::from(b));
                    let sum = if text.len() > 300 { format!(" {sum:x}") } else { String::new() };
                    format!("{name}{sum}: {shown:?}")
                }
            })
            .map(|line| plain(&line))
            .collect();
        lines.sort();
        lines
    }
}

/// Numbers of containers, volumes, transactions and boots, which are long and hexadecimal.
pub fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().chain(['\0']) {
        if c.is_ascii_hexdigit() || c == '-' {
            word.push(c);
            continue;
        }
        let digits = word.chars().filter(char::is_ascii_hexdigit).count();
        out.push_str(if digits >= 32 { "NUMBER" } else { &word });
        word.clear();
        if c != '\0' {
            out.push(c);
        }
    }
    out
}
