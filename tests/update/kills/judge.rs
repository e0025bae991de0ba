//! What would boot, and whether it would find everything: read from the files by this program's own means.

use std::fmt::Write as _;

use md5::{Digest as _, Md5};

use super::rig::Backend;
use super::system::{VOLUME, boot_file, boot_files};
use super::tree::Tree;

/// A root, by what the test calls it: updates run on A.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    A,
    B,
}

/// What the bootloader is going to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    pub root: Root,
    pub trial: bool,
    pub count: u32,
}

/// Which release's boot files there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    Old,
    New,
    Mixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub boots: Root,
    pub files: Files,
}

/// What the bootloader would do, as it reads its files: it knows nothing of side files and temporaries.
pub fn selection(tree: &Tree, backend: Backend) -> Result<Selection, String> {
    match backend {
        Backend::Uboot => uboot(tree),
        Backend::Grub => block(tree, "mnt/boot/EFI/BOOT/grubenv", ["2", "3"]),
        Backend::Balena => block(tree, "mnt/boot/bootenv", ["A", "B"]),
    }
}

fn uboot(tree: &Tree) -> Result<Selection, String> {
    // Without the file U-Boot boots the first root; but it was there before the update.
    let text = tree.file("mnt/boot/resinOS_uEnv.txt").ok_or("resinOS_uEnv.txt is missing")?;
    let text = std::str::from_utf8(text).map_err(|e| e.to_string())?;
    let value = |key: &str| {
        let mut all = text.lines().filter_map(|l| l.strip_prefix(key)?.strip_prefix('='));
        all.next_back().ok_or_else(|| format!("resinOS_uEnv.txt has no {key}: {text:?}"))
    };
    let root = match value("resin_root_part")? {
        "2" => Root::A,
        "3" => Root::B,
        other => return Err(format!("resin_root_part={other:?}")),
    };
    let trial = flag(value("upgrade_available")?)?;
    if !text.contains("# kept\n") || !text.contains("fdtfile=a.dtb\n") {
        return Err(format!("lines of others are lost: {text:?}"));
    }
    let mut count = 0;
    for name in tree.below("mnt/boot").filter(|n| n.contains("bootcount.env")) {
        let text = String::from_utf8_lossy(tree.file(&format!("mnt/boot/{name}")).unwrap()).into_owned();
        let number = text.trim_end_matches(['\n', '\0']).strip_prefix("bootcount=");
        count = number.and_then(|n| u32::from_str_radix(n, 16).ok()).ok_or(format!("{name}: {text:?}"))?;
    }
    Ok(Selection { root, trial, count })
}

fn block(tree: &Tree, path: &str, roots: [&str; 2]) -> Result<Selection, String> {
    let bytes = tree.file(path).ok_or_else(|| format!("{path} is missing"))?;
    let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
    let body = text.strip_prefix("# GRUB Environment Block\n").filter(|_| bytes.len() == 1024);
    let body = body.ok_or_else(|| format!("{path} is no environment block: {text:?}"))?.trim_end_matches('#');
    let value = |key: &str| {
        let mut all = body.lines().filter_map(|l| l.strip_prefix(key)?.strip_prefix('='));
        let value = all.next().ok_or_else(|| format!("{path} has no {key}"));
        if all.next().is_some() { Err(format!("{path} has {key} twice")) } else { value }
    };
    let root = match value("resin_root_part")? {
        v if v == roots[0] => Root::A,
        v if v == roots[1] => Root::B,
        other => return Err(format!("resin_root_part={other:?}")),
    };
    if value("kept")? != "yes" {
        return Err("a variable of others is lost".to_owned());
    }
    let count = value("bootcount").unwrap_or("0");
    let count = count.trim().parse().map_err(|e| format!("bootcount={count:?}: {e}"))?;
    Ok(Selection { root, trial: flag(value("upgrade_available")?)?, count })
}

fn flag(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(format!("upgrade_available={other:?}")),
    }
}

/// Whatever must hold at any instant, and what boots at this one.
pub fn judge(tree: &Tree, pristine: &Tree, backend: Backend) -> Result<Verdict, String> {
    events(tree)?;
    let files = files(tree, pristine)?;
    let selection = selection(tree, backend)?;
    let breadcrumbs = ["health", "altboot"].map(|k| tree.has(&format!("mnt/state/rollback-{k}-breadcrumb")));
    let record = tree.has("mnt/state/copal/bootfiles");
    match selection {
        // One failed boot from before the update may still be counted: it is below every limit.
        Selection { root: Root::A, trial: false, count: 0 | 1 } => {
            if files != Files::Old && breadcrumbs == [false, false] && !record {
                return Err(format!("boot files are {files:?}, and neither breadcrumb nor record says so"));
            }
            if files == Files::Mixed && !record {
                return Err("boot files are mixed, and no record says so".to_owned());
            }
        }
        Selection { root: Root::B, trial: true, count: 0 } => {
            complete(tree)?;
            if files != Files::New {
                return Err(format!("the new slot boots with boot files that are {files:?}"));
            }
            if breadcrumbs != [true, true] {
                return Err(format!("the new slot boots with breadcrumbs {breadcrumbs:?}"));
            }
            let variables = tree.file("mnt/state/rollback-health-variables");
            if variables != Some(b"BALENAOS_ROLLBACK_VPNONLINE=0\n") {
                return Err(format!("the new slot boots with variables {variables:?}"));
            }
        }
        half => return Err(format!("half a selection: {half:?}")),
    }
    Ok(Verdict { boots: selection.root, files })
}

const HISTORY: &str = "mnt/state/copal/history.jsonl";

/// What the history tells, whose lines are whole wherever a program was killed.
pub fn events(tree: &Tree) -> Result<Vec<String>, String> {
    let text = String::from_utf8_lossy(tree.file(HISTORY).unwrap_or_default()).into_owned();
    let event = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).map_err(|e| format!("{e}: {line}"))?;
        record["event"].as_str().map(str::to_owned).ok_or_else(|| format!("no event: {line}"))
    };
    text.lines().map(event).collect()
}

/// Everything there is, without what tells of times.
pub fn state(tree: &Tree) -> Vec<String> {
    tree.lines().into_iter().filter(|l| !l.starts_with(HISTORY)).collect()
}

const CALLS: &str = "mnt/sysroot/inactive/balena/stub/calls";
const LOCK: &str = "run/copal/update.lock";

/// The same without who was there and when, and what the engine was asked: nothing goes on from these.
pub fn beginning(tree: &Tree) -> Vec<String> {
    let lines = state(tree).into_iter().filter(|l| !l.starts_with(CALLS));
    let mut lines: Vec<String> =
        lines
            .map(|l| {
                if l.starts_with(LOCK) && l.contains("pid") { format!("{LOCK}: a name") } else { unnamed(&l) }
            })
            .collect();
    lines.sort();
    lines
}

/// A path without the part of a temporary's name that is new in every run.
pub fn unnamed(text: &str) -> String {
    for (before, digits, behind) in [("/CPL", 5, ".TMP"), ("/.hook-", 6, "")] {
        let Some(at) = text.find(before).map(|at| at + before.len()) else { continue };
        if let Some((_, rest)) = text[at..].split_at_checked(digits).filter(|(_, r)| r.starts_with(behind)) {
            return text[..at].to_owned() + rest;
        }
    }
    text.to_owned()
}

/// Each boot file is complete, of either release, and no other file has changed.
fn files(tree: &Tree, pristine: &Tree) -> Result<Files, String> {
    let mut seen = [false, false];
    for (name, in_old) in boot_files() {
        let path = format!("mnt/boot/{name}");
        let (old, new) = (boot_file(name, "old"), boot_file(name, "new"));
        match tree.file(&path) {
            // Additions do no harm to an old release.
            None if !in_old => {}
            Some(bytes) if !in_old && bytes == new => {}
            Some(bytes) if bytes == old && old == new => {}
            Some(bytes) if bytes == old => seen[0] = true,
            Some(bytes) if bytes == new => seen[1] = true,
            Some(bytes) => return Err(format!("{name} is neither old nor new: {} bytes", bytes.len())),
            None => return Err(format!("{name} is missing")),
        }
        if !in_old && seen == [false, true] && !tree.has(&path) {
            seen[0] = true;
        }
    }
    for name in ["config.json", "device-type.json"] {
        let path = format!("mnt/boot/{name}");
        if tree.file(&path) != pristine.file(&path) {
            return Err(format!("{name} has changed"));
        }
    }
    for name in tree.below("mnt/boot") {
        let last = name.rsplit('/').next().unwrap();
        let own = last.starts_with("CPL") && last.ends_with(".TMP");
        let known = boot_files().any(|(n, _)| n == name || n.starts_with(&format!("{name}/")));
        let path = format!("mnt/boot/{name}");
        if !own && !known && last != "balenaos.fingerprint" && !pristine.has(&path) {
            return Err(format!("{name} appeared"));
        }
    }
    Ok(match seen {
        [_, false] => Files::Old,
        [false, true] => Files::New,
        [true, true] => Files::Mixed,
    })
}

/// Everything that the new slot needs to boot.
fn complete(tree: &Tree) -> Result<(), String> {
    let slot = |name: &str| format!("mnt/sysroot/inactive/{name}");
    let link =
        |name: &str| tree.link(&slot(name)).ok_or_else(|| format!("the new slot boots without {name}"));
    for (name, to) in [("boot", "current/boot"), ("sbin/init", "../current/boot/init")] {
        if link(name)? != to {
            return Err(format!("{name} leads to {}", link(name)?));
        }
    }
    let hostapp = link("current")?;
    let id = hostapp.strip_prefix("hostapps/").filter(|i| !i.is_empty() && !i.starts_with('.'));
    let id = id.ok_or_else(|| format!("current leads to {hostapp}"))?;
    let volume = link(&format!("hostapps/{id}/boot"))?;
    let volume = volume.strip_prefix("../../").ok_or_else(|| format!("boot leads to {volume}"))?;
    for (name, text) in VOLUME {
        if tree.file(&slot(&format!("{volume}/{name}"))) != Some(text.as_bytes()) {
            return Err(format!("the new slot boots without {volume}/{name}"));
        }
    }
    if !tree.has(&slot(&format!("balena/stub/containers/{id}"))) {
        return Err(format!("the engine does not know the container {id}"));
    }
    for folder in ["balena", "dev", "etc", "mnt/state", "proc", "run", "sbin", "sys", "tmp", "etc/machine-id"]
    {
        if !tree.has(&slot(folder)) {
            return Err(format!("the new slot boots without {folder}"));
        }
    }
    Ok(())
}

/// What must be the same whenever an update has ended in the same way; the list of boot files is checked here instead, since it
/// has files in it that the update changes afterwards.
pub fn ending(tree: &Tree) -> Result<Vec<String>, String> {
    let list = tree.file("mnt/boot/balenaos.fingerprint");
    let list = list.map(|l| String::from_utf8_lossy(l).into_owned()).unwrap_or_default();
    for (name, _) in boot_files() {
        let Some(bytes) = tree.file(&format!("mnt/boot/{name}")) else { continue };
        let mut sum = String::new();
        for byte in Md5::digest(bytes) {
            write!(sum, "{byte:02x}").unwrap();
        }
        if !list.lines().any(|l| l.starts_with(&sum) && l.ends_with(&format!(" {name}"))) {
            return Err(format!("the fingerprint of {name} is wrong: {list}"));
        }
    }
    let changing = ["mnt/boot/balenaos.fingerprint", CALLS, LOCK];
    // What runs at the moment, as `copal status` shows it, goes with the next boot. A folder that was just being made stays: on
    // FAT nobody can tell whether it shares its cluster with the one it was to become.
    let passing = |l: &str| l.starts_with("run/copal/.hook-") || (l.contains("/CPL") && l.ends_with(".TMP/"));
    let lines = state(tree).into_iter();
    Ok(lines.filter(|l| !passing(l) && !changing.iter().any(|c| l.starts_with(c))).collect())
}

/// Lines that only one of the two has, or that one has more often.
pub fn difference(one: &[String], other: &[String]) -> String {
    let mut text = String::new();
    for (sign, these, those) in [('-', one, other), ('+', other, one)] {
        let mut left: Vec<&String> = those.iter().collect();
        for line in these {
            match left.iter().position(|l| *l == line) {
                Some(at) => drop(left.swap_remove(at)),
                None => writeln!(text, "{sign} {line}").unwrap(),
            }
        }
    }
    text
}
