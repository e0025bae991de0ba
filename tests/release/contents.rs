//! The list of contents is complete, and every row of it true.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use copal::names::{NameKind, applets};

use crate::{files, pages, top};

pub(crate) struct Row {
    pub(crate) package: String,
    pub(crate) kind: String,
    pub(crate) mode: String,
    pub(crate) path: String,
    pub(crate) source: String,
}

const PACKAGES: [&str; 5] =
    ["copal", "resin-init-flasher", "hostapp-update", "hostapp-update-hooks", "balena-rollback"];

const HOOKS: &str = "/etc/hostapp-update-hooks.d/";
const UNITS: &str = "/usr/lib/systemd/system/";

pub(crate) fn rows() -> Vec<Row> {
    let text = std::fs::read_to_string(top().join("scripts/contents.tsv")).unwrap();
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .map(|line| {
            let words: Vec<String> = line.split('\t').map(str::to_owned).collect();
            let [package, kind, mode, path, source] =
                <[String; 5]>::try_from(words).unwrap_or_else(|w| panic!("five words are wanted: {w:?}"));
            Row { package, kind, mode, path, source }
        })
        .collect()
}

/// Where a link leads to, with the device's root as root.
fn leads_to(row: &Row) -> String {
    let mut at = PathBuf::from("/");
    for part in Path::new(&row.path).parent().unwrap().join(&row.source).components() {
        match part {
            Component::ParentDir => assert!(at.pop(), "{} leads out of the root", row.path),
            Component::Normal(name) => at.push(name),
            _ => at = PathBuf::from("/"),
        }
    }
    at.to_str().unwrap().to_owned()
}

#[test]
fn every_row_is_well_formed_and_every_path_there_once() {
    let mut seen = BTreeSet::new();
    let pages = pages::all().unwrap();
    for row in rows() {
        let Row { package, kind, mode, path, source } = &row;
        let optional = package.strip_prefix("optional:").is_some_and(|what| !what.is_empty());
        assert!(optional || PACKAGES.contains(&package.as_str()), "{package} of {path}");
        assert!(path.starts_with('/') && !path.contains("..") && !path.contains("//"), "{path}");
        assert!(seen.insert(path.clone()), "{path} twice");
        // The upstream test-suite looks for the one file with this in its path.
        assert_eq!(path.contains("bin/rollback-health"), path == "/usr/bin/rollback-health", "{path}");
        match kind.as_str() {
            "file" => {
                assert!(["0755", "0644"].contains(&mode.as_str()), "{mode} of {path}");
                if source == "copal" || pages.contains_key(source) {
                    assert!(source == "copal" || mode == "0644", "{mode} of {path}");
                    continue;
                }
                let found = std::fs::metadata(top().join(source)).unwrap_or_else(|e| panic!("{source}: {e}"));
                assert!(found.is_file(), "{source}");
                let run = found.permissions().mode() & 0o100 != 0;
                assert_eq!(run, mode == "0755", "{source}: its mode, and {mode}");
            }
            "link" => {
                assert_eq!(mode, "-", "{path}");
                // An absolute one would lead out of a root that is not the running one.
                assert!(!source.starts_with('/'), "{path}: {source} is absolute");
            }
            "enable" => assert_eq!(mode, "-", "{path}"),
            other => panic!("{other} of {path}"),
        }
    }
}

#[test]
fn no_link_leads_nowhere() {
    let rows = rows();
    let kinds: BTreeMap<&str, &str> = rows.iter().map(|r| (r.path.as_str(), r.kind.as_str())).collect();
    for row in rows.iter().filter(|r| r.kind != "file") {
        assert_eq!(kinds.get(leads_to(row).as_str()), Some(&"file"), "{} -> {}", row.path, row.source);
    }
}

/// Each package is whole by itself and with `copal`: no other one is needed for what it has.
#[test]
fn links_stay_in_their_package_or_lead_to_copal() {
    let rows = rows();
    let package = |path: &str| rows.iter().find(|r| r.path == path).unwrap().package.clone();
    for row in rows.iter().filter(|r| r.kind != "file") {
        let to = package(&leads_to(row));
        assert!(to == row.package || to == "copal", "{} of {} leads into {to}", row.path, row.package);
    }
}

/// Board layers and units find every name where the script of that name was.
#[test]
fn every_name_has_its_row() {
    let rows = rows();
    for applet in applets() {
        let name = applet.name;
        let found: Vec<&Row> = rows
            .iter()
            .filter(|r| {
                r.kind != "enable" && !r.path.contains("/man/") && r.path.ends_with(&format!("/{name}"))
            })
            .collect();
        assert_eq!(found.len(), 1, "{name}");
        let row = found[0];
        let place = match name {
            "safe_reboot" => "/usr/libexec/",
            "resin_update_state_probe" => "/usr/lib/udev/",
            _ if name.starts_with(|c: char| c.is_ascii_digit()) => HOOKS,
            _ => "/usr/bin/",
        };
        assert!(row.path.starts_with(place), "{name} in {place}: {}", row.path);
        let source = match name {
            "1-bootfiles" | "2-rpifiles" | "2-imxfiles" => "hooks/1-bootfiles",
            // Edited by others, or sourced.
            "rollback-health" | "rollback-parse-bootloader" => &format!("hooks/{name}"),
            // A runner of hooks takes no links.
            _ if place == HOOKS => "hooks/hook",
            _ => {
                assert_eq!((row.kind.as_str(), leads_to(row).as_str()), ("link", "/usr/bin/copal"), "{name}");
                continue;
            }
        };
        assert_eq!((row.kind.as_str(), row.source.as_str()), ("file", source), "{name}");
        assert_eq!(
            row.mode,
            if matches!(applet.kind, NameKind::Sourced) { "0644" } else { "0755" },
            "{name}"
        );
    }
}

/// And no row stands for a name that the program does not know.
#[test]
fn every_row_of_a_program_is_a_name() {
    let known = |name: &str| applets().any(|a| a.name == name);
    for row in rows() {
        let name = row.path.rsplit('/').next().unwrap().to_owned();
        // What the init sources calls the program by a verb.
        let is_module = row.path.starts_with("/init.d/");
        let is_name = row.path.starts_with(HOOKS) || row.source.starts_with("hooks/") || {
            row.kind == "link" && !row.path.contains("/man/")
        };
        assert!(!is_name || is_module || known(&name), "{}", row.path);
    }
}

#[test]
fn every_file_of_these_folders_has_its_row() {
    let sources: BTreeSet<String> =
        rows().into_iter().filter(|r| r.kind == "file").map(|r| r.source).collect();
    for folder in ["hooks", "systemd"] {
        for file in files(folder) {
            assert!(sources.contains(file.to_str().unwrap()), "{}", file.display());
        }
    }
}

/// As `systemctl enable` does it: the links that a unit's `[Install]` asks for, and no others.
#[test]
fn units_are_enabled_by_what_they_say() {
    let rows = rows();
    let mut wanted = BTreeSet::new();
    for row in rows.iter().filter(|r| r.path.starts_with(UNITS)) {
        let text = std::fs::read_to_string(top().join(&row.source)).unwrap();
        let unit = row.path.strip_prefix(UNITS).unwrap();
        for line in text.lines() {
            let folder = match line.split_once('=') {
                Some(("WantedBy", by)) => (by, "wants"),
                Some(("RequiredBy", by)) => (by, "requires"),
                Some((key @ ("Also" | "Alias"), _)) => panic!("{unit}: {key}= has no kind of row"),
                _ => continue,
            };
            for by in folder.0.split_whitespace() {
                let link = format!("/etc/systemd/system/{by}.{}/{unit}", folder.1);
                wanted.insert((row.package.clone(), link, row.path.clone()));
            }
        }
    }
    let listed: BTreeSet<_> =
        rows.into_iter().filter(|r| r.kind == "enable").map(|r| (r.package, r.path, r.source)).collect();
    assert!(wanted.len() >= 6, "{wanted:?}");
    assert_eq!(listed, wanted);
}

/// What is installed says where itself, and the documentation too.
#[test]
fn places_are_those_that_the_files_name() {
    for row in rows().iter().filter(|r| r.source.starts_with("systemd/") && r.kind == "file") {
        let text = std::fs::read_to_string(top().join(&row.source)).unwrap();
        let folder = row.path.rsplit_once('/').unwrap().0;
        for named in text.split_whitespace().filter(|w| w.starts_with("/usr/share/dbus-1/")) {
            assert_eq!(named.trim_end_matches([':', ',', '.']), folder, "{}", row.source);
        }
        for line in text.lines().filter_map(|l| l.strip_prefix("ExecStart=").or(l.strip_prefix("ExecStop=")))
        {
            let program = line.split(' ').next().unwrap();
            let ours = rows().iter().any(|r| r.path == program);
            assert!(ours || program == "/bin/true", "{}: {program}", row.source);
        }
    }
}
