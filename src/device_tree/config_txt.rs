//! `config.txt`, as the firmware of the Raspberry Pi reads it (raspberrypi/documentation, `config_txt/`).
//!
//! `[all]` ends every filter, and below `[none]` nothing is applied. Which of the other filters apply, by model, serial number, monitor or
//! pin, only the firmware knows: copal carries names below them, without requiring them.

use std::collections::HashSet;

use super::{Files, Found, Key};
use crate::config::update_conf::plain_path;

const CONFIG_TXT: &str = "config.txt";
/// The firmware ignores the rest of a line.
const MAX_LINE_BYTES: usize = 98;
/// Against files that include each other.
const MAX_FILES: usize = 32;
const OVERLAY_FOLDER: &str = "overlays/";
/// The renamed overlays, and those that depend on the model.
const OVERLAY_MAP: &str = "overlay_map.dtb";

pub(super) fn read(files: &mut Files<'_>, found: &mut dyn FnMut(Found)) {
    let mut config = Config {
        filter: Filter::All,
        files: 0,
        trees: Vec::new(),
        overlays: Vec::new(),
        ..Config::default()
    };
    config.include(files, CONFIG_TXT);
    config.say(files, found);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Filter {
    #[default]
    All,
    Undecided,
    None,
}

/// A value, and whether it is sure to be set.
type Value = (String, bool);

#[derive(Debug, Default)]
struct Config {
    filter: Filter,
    files: usize,
    os_prefix: Option<Value>,
    overlay_prefix: Option<Value>,
    upstream: bool,
    /// The last one that is sure, and all after it.
    trees: Vec<Value>,
    overlays: Vec<Value>,
}

impl Config {
    fn include(&mut self, files: &mut Files<'_>, path: &str) {
        self.files += 1;
        if self.files > MAX_FILES {
            return;
        }
        let content = files.read(path);
        for line in String::from_utf8_lossy(&content).split(['\n', '\0']) {
            let line: String = line.trim().chars().take(MAX_LINE_BYTES).collect();
            self.line(files, &line);
        }
    }

    fn line(&mut self, files: &mut Files<'_>, line: &str) {
        if let Some(filter) = line.strip_prefix('[') {
            self.filter = match filter.split(']').next().unwrap_or_default() {
                "all" => Filter::All,
                "none" => Filter::None,
                // Whether another filter ends `[none]`, its documentation does not say.
                _ => Filter::Undecided,
            };
            return;
        }
        if line.starts_with('#') || self.filter == Filter::None {
            return;
        }
        if let Some(path) = line.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) {
            if let Some(path) = plain_path(path.trim()) {
                self.include(files, &path.to_string_lossy());
            }
            return;
        }
        let Some((key, value)) = line.split_once('=') else { return };
        let sure = self.filter == Filter::All;
        let value = (value.to_owned(), sure);
        match key {
            "os_prefix" => self.os_prefix = Some(value),
            "overlay_prefix" => self.overlay_prefix = Some(value),
            "upstream_kernel" => self.upstream = value.0 == "1",
            "device_tree" => {
                if sure {
                    self.trees.clear();
                }
                self.trees.push(value);
            }
            "dtoverlay" => self.overlays.push(value),
            _ => {}
        }
    }

    fn say(self, files: &mut Files<'_>, found: &mut dyn FnMut(Found)) {
        let upstream = || if self.upstream { "upstream/" } else { "" }.to_owned();
        let (os, os_sure) = self.os_prefix.clone().unwrap_or_else(|| (upstream(), true));
        let (below, below_sure) =
            self.overlay_prefix.clone().unwrap_or_else(|| (OVERLAY_FOLDER.to_owned(), true));
        let unsure_tree = self.trees.len() > 1;
        for (name, sure) in self.trees.iter().filter(|(name, _)| !name.is_empty()) {
            // The firmware ignores a prefix with which it does not find the files.
            let with = format!("{os}{name}");
            let prefixed =
                !name.starts_with('/') && plain_path(&with).is_some_and(|p| files.has(&p.to_string_lossy()));
            let name = if prefixed { with } else { name.clone() };
            found(Found { key: Key::DeviceTree, name, sure: *sure && os_sure && !unsure_tree });
        }
        let shared = |files: &mut Files<'_>| {
            let readme = format!("{os}{below}README");
            !plain_path(&readme).is_some_and(|path| files.has(&path.to_string_lossy()))
        };
        let folder = if shared(files) { below.clone() } else { format!("{os}{below}") };
        let map =
            plain_path(&format!("{folder}{OVERLAY_MAP}")).map(|path| files.read(&path.to_string_lossy()));
        let mapped = nodes(map.as_deref().unwrap_or_default());
        for (value, sure) in &self.overlays {
            // Parameters follow.
            let name = value.split([',', ':']).next().unwrap_or_default();
            if name.is_empty() || mapped.contains(name.as_bytes()) {
                continue;
            }
            let name =
                if name.starts_with('/') { format!("{name}.dtbo") } else { format!("{folder}{name}.dtbo") };
            found(Found { key: Key::Dtoverlay, name, sure: *sure && os_sure && below_sure });
        }
    }
}

/// The names of nodes in a tree: each after the token that begins one, three zero bytes and a one, up to a zero byte.
fn nodes(tree: &[u8]) -> HashSet<&[u8]> {
    tree.split(|byte| *byte == 0).filter_map(|part| part.strip_prefix(b"\x01")).collect()
}
