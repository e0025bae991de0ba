//! One run of the hooks, and what a boot partition may hold on the way.

use crate::bootpart::is_temporary;
use crate::support::fat::{self, Node};
use crate::support::writelog::{self, Request};

use super::release::{
    BOOTENV, COUNT, FINGERPRINT, Files, GRUBENV, RUNNING, Selected, TRIAL, UENV, deployed, file, fingerprint,
    releases, selected,
};

/// One run of the hooks.
pub(super) struct Phase {
    pub(super) name: &'static str,
    /// What is done before, and not cut.
    pub(super) prepare: &'static str,
    pub(super) script: String,
    pub(super) before: Files,
    /// What a path may hold on the way, besides what it holds before and after.
    pub(super) via: Files,
    pub(super) after: Files,
    /// Of the selection's files, what the fingerprint sums up.
    pub(super) summed: Vec<(&'static str, Vec<u8>)>,
    pub(super) selection: [Selected; 2],
    /// Whether the selection is changed after everything else, or before.
    pub(super) selected_last: bool,
    /// Written over for want of room: any sector old or new.
    pub(super) overwritten: &'static [&'static str],
}

impl Phase {
    pub(super) fn faults(&self, tree: &fat::Tree) -> Vec<String> {
        let mut faults = Vec::new();
        let paths = [&self.before, &self.via, &self.after];
        let all = || paths.iter().flat_map(|files| files.keys().copied());
        for path in all() {
            let there = match tree.nodes.get(path) {
                None => None,
                Some(Node::File(Ok(data))) => Some(data),
                // Cut off already, with an entry that says the old size.
                Some(Node::File(Err(_))) if self.overwritten.contains(&path) => continue,
                Some(other) => {
                    faults.push(format!("{path}: {other:?}"));
                    continue;
                }
            };
            let [old, via, new] = paths.map(|files| files.get(path));
            let known = there == old || there == new || via.is_some() && there == via;
            let half = self.overwritten.contains(&path) && mixed(there, old, new);
            if !known && !half {
                let what =
                    there.map_or("lost".to_owned(), |d| format!("neither old nor new: {} bytes", d.len()));
                faults.push(format!("{path}: {what}"));
            }
        }
        let is_known = |path: &str| {
            [UENV, COUNT, BOOTENV, GRUBENV].contains(&path)
                || all().any(|p| p == path || p.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
        };
        for (path, node) in &tree.nodes {
            // A long name that a cut has separated from its entry shows as the short one, with the complete contents.
            let alias = path.split('/').any(|name| name.contains('~'))
                && match node {
                    Node::Folder => true,
                    Node::File(Err(_)) => false,
                    Node::File(Ok(data)) => {
                        paths.iter().any(|files| files.values().any(|d| d == data))
                            || data.starts_with(b"bootcount=")
                            || data.starts_with(b"resin_root_part=")
                    }
                };
            if !is_known(path) && !path.split('/').any(is_temporary) && !alias {
                faults.push(format!("{path} came from nowhere: {node:?}"));
            }
        }
        for (a, b) in &tree.shared {
            if !a.split('/').any(is_temporary) && !b.split('/').any(is_temporary) {
                faults.push(format!("{a} and {b} share clusters"));
            }
        }
        faults.extend(self.selection_faults(tree));
        faults
    }

    fn selection_faults(&self, tree: &fat::Tree) -> Vec<String> {
        let (selected, count) = match selected(tree) {
            Ok(found) => found,
            Err(why) => return vec![why],
        };
        let [from, to] = self.selection;
        let mut faults = Vec::new();
        if selected != from && selected != to {
            faults.push(format!("{selected:?} is selected"));
        }
        if selected == to && count != 0 {
            faults.push(format!("{to:?} is selected with a count of {count}"));
        }
        // The files must be those of the release that boots on trial.
        let (moment, files) = if self.selected_last { (to, &self.after) } else { (from, &self.before) };
        if selected == moment {
            faults.extend(
                differences(tree, files).into_iter().map(|d| format!("{selected:?} is selected, but {d}")),
            );
        }
        faults
    }
}

impl Phase {
    /// With the file that takes up the room as it was made.
    pub(super) fn sized(&self, before: &[u8], requests: &[Request], boot: std::ops::Range<usize>) -> Phase {
        let mut phase = Phase {
            script: self.script.clone(),
            before: self.before.clone(),
            via: self.via.clone(),
            after: self.after.clone(),
            summed: self.summed.clone(),
            ..*self
        };
        if !self.overwritten.is_empty() {
            let disk = writelog::after_a_cut(before, requests, requests.len(), |_, _| true);
            let filler = file(&fat::read(&disk[boot]), FILLER).unwrap().to_vec();
            for files in [&mut phase.before, &mut phase.via, &mut phase.after] {
                files.insert(FILLER, filler.clone());
            }
            let text = fingerprint(&phase.via, &phase.summed);
            phase.via.insert(FINGERPRINT, text.clone());
            phase.after.insert(FINGERPRINT, text);
        }
        phase
    }
}

pub(super) const FILLER: &str = "filler";

/// Leaves 12 KiB.
pub(super) const FILL: &str = "sync; head -c $(($(df -k /mnt/boot | tail -n 1 | awk '{print $4}') * 1024 - 12288)) /dev/zero >/mnt/boot/filler; sync";

/// An update and its undo, for a device whose boot partition holds `there`.
pub(super) fn both_ways(
    hook: &'static str,
    there: &Files,
    selections: [&[(&'static str, Vec<u8>)]; 2],
    full: bool,
) -> [Phase; 2] {
    let [old, new] = releases();
    let summed = |mut files: Files, selection: &[(&'static str, Vec<u8>)]| {
        let text = fingerprint(&files, selection);
        files.insert(FINGERPRINT, text);
        files
    };
    let grub = hook == "99-resin-grub";
    let without_other = |mut files: Files| {
        if grub {
            files.retain(|path, _| !path.starts_with("grub/") && !path.ends_with(".secureboot"));
        }
        files
    };
    let via = summed(deployed(there.clone(), &new), selections[0]);
    let after = without_other(via.clone());
    let update = Phase {
        name: if full { "update for another bootloader" } else { "update" },
        prepare: "",
        summed: selections[0].to_vec(),
        script: format!("bootloader {hook}; update"),
        before: there.clone(),
        via,
        after: after.clone(),
        selection: [RUNNING, TRIAL],
        selected_last: true,
        overwritten: &[],
    };
    let via = summed(deployed(after.clone(), &old), selections[1]);
    let undo = Phase {
        name: if full { "undo without room" } else { "undo" },
        prepare: if full { FILL } else { "" },
        summed: selections[1].to_vec(),
        script: format!("bootloader {hook}; undo"),
        before: after,
        after: without_other(via.clone()),
        via,
        selection: [TRIAL, RUNNING],
        selected_last: false,
        overwritten: if full { &["vmlinuz", "EFI/BOOT/bootx64.efi"] } else { &[] },
    };
    [update, undo]
}

/// Whether a file that is overwritten holds nothing but sectors of the old and the new one.
pub(super) fn mixed(there: Option<&Vec<u8>>, old: Option<&Vec<u8>>, new: Option<&Vec<u8>>) -> bool {
    let (Some(there), Some(old), Some(new)) = (there, old, new) else { return false };
    let limits = old.len().min(new.len())..=old.len().max(new.len());
    limits.contains(&there.len())
        && there.chunks(512).enumerate().all(|(n, sector)| {
            let is_of = |d: &Vec<u8>| d.get(n * 512..n * 512 + sector.len()) == Some(sector);
            // What is behind the old end may be there before its data is.
            let rest = |d: &Vec<u8>| d.get(n * 512..).unwrap_or_default().to_vec();
            let begins = |end: Vec<u8>| end.len() < sector.len() && sector.starts_with(&end);
            is_of(old) || is_of(new) || begins(rest(old)) || !rest(new).is_empty() && begins(rest(new))
        })
}

pub(super) fn differences(tree: &fat::Tree, files: &Files) -> Vec<String> {
    let ours = |path: &&String| ![UENV, COUNT, BOOTENV, GRUBENV].contains(&path.as_str());
    let found = tree.nodes.iter().filter(|(_, node)| matches!(node, Node::File(_))).map(|(path, _)| path);
    let extra = found
        .filter(ours)
        .filter(|p| !files.contains_key(p.as_str()))
        .filter(|p| !is_temporary(p) && !p.contains('~'));
    let differs = files.iter().filter(|(path, data)| file(tree, path) != Some(data.as_slice()));
    let differs = differs.map(|(path, _)| format!("{path} differs"));
    differs.chain(extra.map(|p| format!("{p} is there"))).collect()
}
