//! What the hooks of a host OS update write, on a real vfat, with the power going at every moment.
//!
//! A guest has a disk as a device has one: boot partition, both roots, state partition. It runs the hooks as the runner does, for an
//! update and for its undo. Every write and flush of the disk is recorded. Then the disk is put together as it may be after a cut
//! at any request and looked at by readers that share no code with copal; some of these disks start again in another guest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use md5::{Digest as _, Md5};

use crate::bootpart::{Loss, is_leftover, text};
use crate::support::fat::{self, Node};
use crate::support::writelog::{self, Request};
use crate::support::{Disk, Guest, LIMIT, fat_files, folder, gpt_image, tool};

const MIB: usize = 1 << 20;
const HOOKS: &str = "/etc/hostapp-update-hooks.d";
const FINGERPRINT: &str = "balenaos.fingerprint";

type Files = BTreeMap<&'static str, Vec<u8>>;

/// A path with its content in the old and in the new release.
fn releases() -> [Files; 2] {
    let sizes: [(&str, usize, usize); 12] = [
        ("EFI/BOOT/bootx64.efi", 23_000, 20_000),
        ("EFI/BOOT/grub.cfg", 1200, 1300),
        ("EFI/BOOT/grub_extraenv", 0, 1024),
        ("extra_uEnv.txt", 0, 300),
        ("folder of its own/deeper/New.bin", 0, 900),
        ("grub/grub.cfg", 1200, 1300),
        ("grub/grub_extraenv", 0, 1024),
        ("overlays/a board with a long name.dtbo", 2000, 2600),
        ("overlays/brand new overlay.dtbo", 0, 1500),
        ("overlays/OLD.DTB", 700, 0),
        ("splash/balena-logo.png", 900, 1000),
        ("vmlinuz", 60_000, 70_000),
    ];
    let mut releases = [Files::new(), Files::new()];
    for (path, old, new) in sizes {
        for (release, (tag, size)) in releases.iter_mut().zip([("old", old), ("new", new)]) {
            if size > 0 {
                release.insert(path, text(&format!("{tag} {path}"), size));
            }
        }
    }
    for release in &mut releases {
        release.insert("overlays/unchanged.dtbo", text("unchanged", 3000));
        release.insert("config.txt", text("of a release", 80));
    }
    releases
}

/// The owner's own, and what older releases have left.
fn owned() -> Files {
    Files::from([
        ("config.json", b"{\"uuid\":\"abc\"}\n".to_vec()),
        ("config.txt", text("of the owner", 100)),
        ("splash/balena-logo.png", text("logo of the owner", 4000)),
        ("some notes.txt", text("notes", 1000)),
        ("EFI/BOOT/bootx64.efi.secureboot", text("secure", 9000)),
        (FINGERPRINT, b"00000000000000000000000000000000  vmlinuz\n".to_vec()),
    ])
}

/// Never deployed over what is there.
fn is_skipped(path: &str) -> bool {
    ["config.txt", "splash/balena-logo.png", "extra_uEnv.txt"].contains(&path)
        || path.ends_with("grub_extraenv")
}

/// What `1-bootfiles` makes of a boot partition.
fn deployed(mut there: Files, release: &Files) -> Files {
    for (path, data) in release {
        if !(there.contains_key(path) && is_skipped(path)) {
            there.insert(path, data.clone());
        }
    }
    there
}

fn fingerprint(files: &Files, selection: &[(&'static str, Vec<u8>)]) -> Vec<u8> {
    let mut all = files.clone();
    all.extend(selection.iter().cloned());
    all.retain(|path, _| ![FINGERPRINT, "config.json"].contains(path));
    let line = |(path, data): (&&str, &Vec<u8>)| {
        let digest: String = Md5::digest(data).iter().map(|b| format!("{b:02x}")).collect();
        format!("{digest}  {path}\n")
    };
    all.iter().map(line).collect::<String>().into_bytes()
}

/// An environment block.
fn block(lines: &str) -> Vec<u8> {
    let mut block = format!("# GRUB Environment Block\n{lines}").into_bytes();
    block.resize(1024, b'#');
    block
}

/// Which root is selected, on trial or not.
type Selected = (char, bool);

const RUNNING: Selected = ('A', false);
const TRIAL: Selected = ('B', true);

const UENV: &str = "resinOS_uEnv.txt";
const COUNT: &str = "bootcount.env";
const BOOTENV: &str = "bootenv";
const GRUBENV: &str = "EFI/BOOT/grubenv";

fn file<'t>(tree: &'t fat::Tree, path: &str) -> Option<&'t [u8]> {
    match tree.nodes.get(path) {
        Some(Node::File(Ok(data))) => Some(data),
        Some(other) => panic!("{path}: {other:?}"),
        None => None,
    }
}

fn value<'t>(text: &'t str, key: &str) -> Result<&'t str, String> {
    let mut values = text.lines().filter_map(|l| l.strip_prefix(key)?.strip_prefix('='));
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        other => Err(format!("{key}: {other:?} in {text:?}")),
    }
}

/// The selection as the bootloaders read it: their files in the order of detection.
fn selected(tree: &fat::Tree) -> Result<(Selected, u32), String> {
    let pick = |text: &str| {
        Ok::<_, String>((
            value(text, "resin_root_part")?.to_owned(),
            value(text, "upgrade_available")? == "1",
        ))
    };
    let of_block = |data: &[u8]| {
        let text = String::from_utf8_lossy(data).into_owned();
        if data.len() != 1024 || !text.starts_with("# GRUB Environment Block\n") {
            return Err(format!("no environment block: {} bytes", data.len()));
        }
        Ok((pick(&text)?, value(&text, "bootcount")?.parse::<u32>().map_err(|e| e.to_string())?))
    };
    let ((root, trial), count) = if let Some(data) = file(tree, UENV) {
        let count = file(tree, COUNT).map_or(Ok(0), |data| {
            let text = String::from_utf8_lossy(data).replace('\0', "");
            u32::from_str_radix(value(&text, "bootcount")?, 16).map_err(|e| e.to_string())
        })?;
        (pick(&String::from_utf8_lossy(data))?, count)
    } else if let Some(data) = file(tree, BOOTENV) {
        of_block(data)?
    } else if let Some(data) = file(tree, GRUBENV) {
        of_block(data)?
    } else {
        // What no bootloader of these tests has: each begins with its file.
        return Err("no selection".to_owned());
    };
    match root.as_str() {
        "2" | "A" => Ok((('A', trial), count)),
        "3" | "B" => Ok((('B', trial), count)),
        other => Err(format!("root {other}")),
    }
}

/// One run of the hooks.
struct Phase {
    name: &'static str,
    /// What is done before, and not cut.
    prepare: &'static str,
    script: String,
    before: Files,
    /// What a path may hold on the way, besides what it holds before and after.
    via: Files,
    after: Files,
    /// Of the selection's files, what the fingerprint sums up.
    summed: Vec<(&'static str, Vec<u8>)>,
    selection: [Selected; 2],
    /// Whether the selection is changed after everything else, or before.
    selected_last: bool,
    /// Written over for want of room: any sector old or new.
    overwritten: &'static [&'static str],
}

impl Phase {
    fn faults(&self, tree: &fat::Tree) -> Vec<String> {
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
            if !is_known(path) && !path.split('/').any(is_leftover) && !alias {
                faults.push(format!("{path} came from nowhere: {node:?}"));
            }
        }
        for (a, b) in &tree.shared {
            if !a.split('/').any(is_leftover) && !b.split('/').any(is_leftover) {
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

/// Whether a file that is overwritten holds nothing but sectors of the old and the new one.
fn mixed(there: Option<&Vec<u8>>, old: Option<&Vec<u8>>, new: Option<&Vec<u8>>) -> bool {
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

fn differences(tree: &fat::Tree, files: &Files) -> Vec<String> {
    let ours = |path: &&String| ![UENV, COUNT, BOOTENV, GRUBENV].contains(&path.as_str());
    let found = tree.nodes.iter().filter(|(_, node)| matches!(node, Node::File(_))).map(|(path, _)| path);
    let extra = found
        .filter(ours)
        .filter(|p| !files.contains_key(p.as_str()))
        .filter(|p| !is_leftover(p) && !p.contains('~'));
    let differs = files.iter().filter(|(path, data)| file(tree, path) != Some(data.as_slice()));
    let differs = differs.map(|(path, _)| format!("{path} differs"));
    differs.chain(extra.map(|p| format!("{p} is there"))).collect()
}

/// A device.
struct Device {
    test: &'static str,
    fat: (u64, &'static [&'static str]),
    uefi: bool,
    /// Names of the hooks for bootloaders, in the order of the phases.
    hooks: &'static [&'static str],
    files: Files,
    selection: Vec<(&'static str, Vec<u8>)>,
}

const BEGIN: usize = MIB;

impl Device {
    fn image(&self, dir: &Path) -> PathBuf {
        let part = |name: &str| dir.join(name);
        let (boot, image) = (part("resin-boot"), part("disk.img"));
        let mut files: Vec<(&str, &[u8])> = self.files.iter().map(|(p, d)| (*p, d.as_slice())).collect();
        files.extend(self.selection.iter().map(|(p, d)| (*p, d.as_slice())));
        std::fs::File::create(&boot).unwrap().set_len(self.fat.0).unwrap();
        let at = boot.to_str().unwrap();
        tool(&[&["mkfs.vfat", "-n", "resin-boot"], self.fat.1, &[at]].concat());
        fat_files(&boot, &files);
        for (label, size) in [("resin-rootA", "2M"), ("resin-rootB", "2M"), ("resin-state", "4M")] {
            tool(&["mke2fs", "-q", "-t", "ext4", "-L", label, part(label).to_str().unwrap(), size]);
        }
        std::fs::write(part("mark"), vec![0; MIB]).unwrap();
        let names = ["resin-boot", "resin-rootA", "resin-rootB", "resin-state", "mark"];
        let parts = names.map(|name| (name, part(name)));
        gpt_image(&image, &parts.each_ref().map(|(n, p)| (*n, p.as_path())), 1);
        for (_, path) in parts {
            std::fs::remove_file(path).unwrap();
        }
        image
    }

    fn boot(&self) -> std::ops::Range<usize> {
        BEGIN..BEGIN + usize::try_from(self.fat.0).unwrap()
    }

    /// The partition behind the boot partition, the two roots (2 MiB each) included.
    fn state(&self) -> std::ops::Range<usize> {
        self.boot().end + 4 * MIB..self.boot().end + 8 * MIB
    }

    fn marks(&self) -> usize {
        self.state().end
    }

    /// A guest with the hooks, both releases, and a shell function for each step. `$disk` is what they are about.
    fn guest(&self, script: &str) -> Option<Guest> {
        let mut guest = Guest::small(self.test)?.module("vfat").module("nls_cp437").module("nls_ascii");
        for name in ["nls_utf8", "crc32c_generic", "ext4"] {
            guest = guest.module(name);
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks");
        let named = here.join("hook");
        guest = guest.copal().file(&here.join("1-bootfiles"), &format!("{HOOKS}/1-bootfiles"));
        guest = guest.file(&named, &format!("{HOOKS}/80-rollback"));
        for name in self.hooks {
            guest = guest.file(&named, &format!("/hooks/{name}"));
        }
        for (release, name) in releases().into_iter().zip(["old", "new"]) {
            for (path, data) in release {
                guest = guest.text(&format!("/release/{name}/{path}"), std::str::from_utf8(&data).unwrap());
            }
        }
        let efi =
            if self.uefi { "mount -t tmpfs firmware /sys/firmware; mkdir /sys/firmware/efi" } else { "" };
        Some(guest.script(&format!(
            "{efi}
             mkdir -p /mnt/boot /mnt/state /mnt/sysroot/active /mnt/sysroot/inactive
             attach() {{
                 mount -t vfat ${{disk}}1 /mnt/boot; mount -t ext4 ${{disk}}2 /mnt/sysroot/active
                 mount -t ext4 ${{disk}}3 /mnt/sysroot/inactive; mount -t ext4 ${{disk}}4 /mnt/state
             }}
             detach() {{ umount /mnt/boot /mnt/sysroot/active /mnt/sysroot/inactive /mnt/state; }}
             mark() {{ dd if=/dev/zero of=${{disk}}5 bs=4096 count=1 conv=fsync 2>/dev/null; }}
             bootloader() {{ rm -f {HOOKS}/99-*; cp /hooks/$1 {HOOKS}/; }}
             release() {{ rm -rf /resin-boot; cp -a /release/$1 /resin-boot; }}
             update() {{ release new; DURING_UPDATE=1 copal hostapp-update-hooks; }}
             undo() {{ release old; DURING_UPDATE=0 {HOOKS}/99-*; DURING_UPDATE=0 copal hostapp-update-hooks; }}
             {script}"
        )))
    }

    /// Runs the phases, and looks at every cut in them; returns disks to be started again, with the phase each was cut in.
    fn survives(&self, phases: &[Phase], most: usize) {
        let dir = folder();
        let (image, log) = (self.image(dir.path()), dir.path().join("log"));
        let before = std::fs::read(&image).unwrap();
        let scripts: String =
            phases.iter().map(|p| format!("{}\nmark\n{}\nmark\n", p.prepare, p.script)).collect();
        let script = format!("disk=/dev/vda\nattach\n{scripts}detach");
        let Some(guest) = self.guest(&format!("({script}) >/host/out 2>&1")) else { return };
        let outcome = guest.disk(Disk::Virtio, &image, "disk").logged(&log).run(LIMIT);
        assert_eq!(outcome.status, Some(0), "{}\n{}", outcome.file("out"), outcome.console);
        let requests = writelog::read(&log);
        let at_mark = |r: &Request| {
            r.at >= self.marks() as u64 && !r.data.is_empty() && r.at < (self.marks() + MIB) as u64
        };
        let marks: Vec<usize> = (0..requests.len()).filter(|n| at_mark(&requests[*n])).collect();
        assert_eq!(marks.len(), phases.len() * 2, "{}", outcome.file("out"));
        println!("guest: {:?}", outcome.took);
        let (mut restarts, mut long) = (Vec::new(), Vec::new());
        let mut cuts = Cuts::new(&before[self.boot()], &requests, self.boot());
        let mut phases_seen = Vec::new();
        for (phase, window) in phases.iter().zip(marks.chunks(2)) {
            let phase = phase.sized(&before, &requests[..window[0]], self.boot());
            let (start, seen) =
                (std::time::Instant::now(), self.every_cut(&phase, &mut cuts, window, &mut restarts));
            println!("{}: requests {window:?}, {seen}, {:?}", phase.name, start.elapsed());
            assert!(
                seen.disks > 100 && seen.with_old > 0 && seen.with_new > 0,
                "the cuts cut nothing: {seen}"
            );
            let end = writelog::after_a_cut(&before, &requests, window[1], |_, _| false);
            let tree = fat::read(&end[self.boot()]);
            assert_eq!(differences(&tree, &phase.after), Vec::<String>::new(), "after {}", phase.name);
            assert_eq!(selected(&tree), Ok((phase.selection[1], 0)), "after {}", phase.name);
            assert!(
                tree.shared.is_empty() && tree.lost == 0,
                "after {}: {:?} {}",
                phase.name,
                tree.shared,
                tree.lost
            );
            check(&dir.path().join("fat"), &end[self.boot()]);
            if phase.selected_last {
                self.state_fits(dir.path(), &before, &requests, &phase, &seen.looks);
            }
            long.extend(seen.long);
            phases_seen.push(phase);
        }
        fastrand::Rng::with_seed(2).shuffle(&mut restarts);
        restarts.truncate(most);
        println!("{} of the disks that start have a file with clusters behind its end", long.len());
        restarts.append(&mut long);
        let restarts = restarts.into_iter().map(|cut: Cut| {
            let disk = writelog::after_a_cut(&before, &requests, cut.at, |r, s| cut.loss.keeps(r, s));
            (phases_seen.iter().find(|p| p.name == cut.phase).unwrap(), disk)
        });
        self.starts_again(dir.path(), &restarts.collect::<Vec<_>>());
    }

    fn every_cut(
        &self,
        phase: &Phase,
        cuts: &mut Cuts<'_>,
        window: &[usize],
        restarts: &mut Vec<Cut>,
    ) -> Seen {
        let (mut seen, mut rng) = (Seen::default(), fastrand::Rng::with_seed(3));
        cuts.run(window[0]..window[1], |at, loss, disk| {
            let tree = fat::read(disk);
            let faults = phase.faults(&tree);
            assert!(faults.is_empty(), "{}: cut after request {at}, {loss:?}: {faults:#?}", phase.name);
            let leftovers = tree.nodes.keys().any(|p| is_leftover(p));
            seen.disks += 1;
            seen.with_leftovers += usize::from(leftovers);
            seen.with_shared += usize::from(!tree.shared.is_empty());
            seen.with_lost += usize::from(tree.lost > 0);
            seen.with_growing += usize::from(!tree.growing.is_empty());
            let now = selected(&tree).unwrap().0;
            seen.with_old += usize::from(now == phase.selection[0]);
            seen.with_new += usize::from(now == phase.selection[1]);
            let is_new = now == phase.selection[1];
            let first = !seen.looks.iter().any(|look| look.is_new == is_new);
            if (first || rng.u32(..80) == 0) && (is_new || !differences(&tree, &phase.before).is_empty()) {
                seen.looks.push(Look { cut: Cut { phase: phase.name, at, loss }, is_new });
            }
            // Linux grows such a file only after it has been cut to its size.
            if !tree.long.is_empty() && seen.long.is_none() {
                seen.long = Some(Cut { phase: phase.name, at, loss });
            }
            let rare = !tree.shared.is_empty() || tree.nodes.keys().any(|p| p.contains('~'));
            if rng.u32(..if rare { 12 } else { 60 }) == 0 {
                restarts.push(Cut { phase: phase.name, at, loss });
            }
        });
        seen
    }

    /// What the state partition has to say: before a boot file is changed, whose they are going to be; before the selection, that
    /// an update is on trial. The boot partition has what it can have at a cut, the state partition only what it must have.
    fn state_fits(&self, dir: &Path, before: &[u8], requests: &[Request], phase: &Phase, looks: &[Look]) {
        let state = dir.join("state");
        let image = state.to_str().unwrap();
        for Look { cut, is_new } in looks {
            let ours = |n: usize| self.boot().contains(&usize::try_from(requests[n].at).unwrap());
            let keeps = |n: usize, s: usize| ours(n) && cut.loss.keeps(n, s);
            std::fs::write(&state, &writelog::after_a_cut(before, requests, cut.at, keeps)[self.state()])
                .unwrap();
            // 1: something was repaired, the journal at least.
            let status = Command::new("e2fsck").args(["-fy", image]).output().unwrap().status;
            let what = format!("{}: state after request {}", phase.name, cut.at);
            assert!(status.code().is_some_and(|c| c <= 1), "{what}: {status}");
            if *is_new {
                let names = tool(&["debugfs", "-R", "ls -p /", image]);
                for name in ["rollback-health-breadcrumb", "rollback-altboot-breadcrumb"] {
                    assert!(names.contains(&format!("/{name}/")), "{what}: {names}");
                }
            } else {
                let record = tool(&["debugfs", "-R", "cat copal/bootfiles", image]).replace(' ', "");
                assert!(record.contains("\"owner\":\"B\""), "{what}: {record:?}");
            }
        }
        println!("{}: {} looks at the state", phase.name, looks.len());
        let [new, old] = [true, false].map(|is_new| looks.iter().filter(|l| l.is_new == is_new).count());
        assert!(new > 0 && old > 0, "{}: {new} {old}", phase.name);
    }

    /// After a cut, the same update or its undo goes through and leaves nothing behind.
    fn starts_again(&self, dir: &Path, disks: &[(&Phase, Vec<u8>)]) {
        let nodes: Vec<String> = ('a'..='z').take(disks.len()).map(|c| format!("/dev/vd{c}")).collect();
        let images: Vec<PathBuf> = nodes.iter().map(|n| dir.join(n.rsplit('/').next().unwrap())).collect();
        let script: String = disks
            .iter()
            .zip(&nodes)
            .map(|((phase, disk), node)| {
                // Linux does not take a folder that was growing; the start's fsck comes before the mount.
                let growing = !fat::read(&disk[self.boot()]).growing.is_empty();
                let mend = if growing { "fsck.fat -a ${disk}1 || [ $? = 1 ]" } else { "" };
                let script = &phase.script;
                format!("echo \"== {node} {}\"\ndisk={node}\n{mend}\nattach\n{script}\ndetach\n", phase.name)
            })
            .collect();
        let Some(mut guest) = self.guest(&format!("({script}) >/host/out 2>&1")) else { return };
        for ((_, disk), image) in disks.iter().zip(&images) {
            std::fs::write(image, disk).unwrap();
            guest = guest.disk(Disk::Virtio, image, "cut");
        }
        let outcome = guest.run(LIMIT);
        let out = outcome.file("out");
        assert_eq!(outcome.status, Some(0), "{out}\n{}", outcome.console);
        println!("{} starts: {:?}", disks.len(), outcome.took);
        for ((phase, _), image) in disks.iter().zip(&images) {
            let what = format!("{}: {} after a cut", image.display(), phase.name);
            let disk = std::fs::read(image).unwrap();
            let tree = fat::read(&disk[self.boot()]);
            let mut differences = differences(&tree, &phase.after);
            // It sums up the selection too, which some had changed before, and what a cut has left under a short name.
            differences.retain(|d| !d.starts_with(FINGERPRINT));
            assert_eq!(differences, Vec::<String>::new(), "{what}\n{out}");
            assert_eq!(selected(&tree), Ok((phase.selection[1], 0)), "{what}");
            let leftovers: Vec<_> =
                tree.nodes.iter().filter(|(p, n)| is_leftover(p) && **n != Node::Folder).collect();
            assert!(leftovers.is_empty(), "{what}: {leftovers:?}");
            let folder = |p: &String| tree.nodes.get(p) == Some(&Node::Folder);
            let shared: Vec<_> = tree.shared.iter().filter(|(a, b)| !(folder(a) && folder(b))).collect();
            assert!(shared.is_empty(), "{what}: {shared:?}");
        }
    }
}

impl Phase {
    /// With the file that takes up the room as it was made.
    fn sized(&self, before: &[u8], requests: &[Request], boot: std::ops::Range<usize>) -> Phase {
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

const FILLER: &str = "filler";

/// What another tool says about a file system that is mounted, and nothing else the matter with it.
fn check(image: &Path, disk: &[u8]) {
    let mut disk = disk.to_vec();
    for state in [0x25, 0x41] {
        // Bit 0: mounted; on the other kind of FAT the byte is no state.
        if (state == 0x41) == (disk[22..24] == [0, 0]) {
            disk[state] &= !1;
        }
    }
    std::fs::write(image, disk).unwrap();
    let out = Command::new("fsck.fat").arg("-n").arg(image).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    // The number of free clusters is a hint, which Linux writes now and then.
    let words = ["fsck.fat", "Free cluster summary", "Leaving filesystem", "  Auto-correcting"];
    let told = |l: &&str| l.starts_with('/') || words.iter().any(|w| l.trim().starts_with(w.trim()));
    let others: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty() && !told(l)).collect();
    let others: Vec<&&str> =
        others.iter().filter(|l| !l.starts_with("1) ") && !l.starts_with("2) ")).collect();
    assert!(others.is_empty(), "{text}");
}

/// How a disk came to be.
#[derive(Debug)]
struct Cut {
    phase: &'static str,
    at: usize,
    loss: Loss,
}

/// A cut at which the state partition is looked at too.
#[derive(Debug)]
struct Look {
    cut: Cut,
    /// Whether the new release is selected there; else boot files differ from those of the old one.
    is_new: bool,
}

#[derive(Debug, Default)]
struct Seen {
    looks: Vec<Look>,
    /// The first one with a file that has clusters behind its end.
    long: Option<Cut>,
    disks: usize,
    with_leftovers: usize,
    with_shared: usize,
    with_lost: usize,
    with_growing: usize,
    with_old: usize,
    with_new: usize,
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Seen { disks, with_leftovers, with_shared, with_lost, with_growing, with_old, with_new, .. } =
            self;
        write!(
            f,
            "{disks} disks, {with_old} with the old selection, {with_new} with the new one; {with_leftovers} with leftovers, \
             {with_shared} with shared clusters, {with_lost} with lost ones, {with_growing} with a growing folder"
        )
    }
}

/// The disks that cuts leave of one partition, in the order of the log.
struct Cuts<'a> {
    requests: &'a [Request],
    range: std::ops::Range<usize>,
    next: usize,
    /// What is on the medium for certain.
    safe: Vec<u8>,
    /// The same, between two disks.
    disk: Vec<u8>,
    /// What may be: indices of requests for this partition.
    pending: Vec<usize>,
}

impl<'a> Cuts<'a> {
    fn new(before: &[u8], requests: &'a [Request], range: std::ops::Range<usize>) -> Self {
        let (safe, disk) = (before.to_vec(), before.to_vec());
        Cuts { requests, range, next: 0, safe, disk, pending: Vec::new() }
    }

    fn is_ours(&self, n: usize) -> bool {
        let request = &self.requests[n];
        !request.data.is_empty() && self.range.contains(&usize::try_from(request.at).unwrap())
    }

    fn apply(&self, disk: &mut [u8], n: usize, keeps: impl Fn(usize) -> bool) {
        let at = usize::try_from(self.requests[n].at).unwrap() - self.range.start;
        for (s, sector) in self.requests[n].data.chunks(512).enumerate().filter(|(s, _)| keeps(*s)) {
            disk[at + s * 512..][..sector.len()].copy_from_slice(sector);
        }
    }

    /// Takes the next request; whether it made a difference to this partition.
    fn step(&mut self) -> bool {
        let n = self.next;
        self.next += 1;
        let mut differs = false;
        if self.requests[n].flush && !self.pending.is_empty() {
            let (mut safe, mut disk) = (std::mem::take(&mut self.safe), std::mem::take(&mut self.disk));
            for i in std::mem::take(&mut self.pending) {
                self.apply(&mut safe, i, |_| true);
                self.apply(&mut disk, i, |_| true);
            }
            (self.safe, self.disk) = (safe, disk);
            differs = true;
        }
        if self.is_ours(n) {
            assert!(!self.requests[n].fua, "no FUA on vfat is thought of here");
            self.pending.push(n);
            differs = true;
        }
        differs
    }

    fn run(&mut self, window: std::ops::Range<usize>, mut see: impl FnMut(usize, Loss, &[u8])) {
        while self.next < window.start {
            self.step();
        }
        let mut rng = fastrand::Rng::with_seed(4);
        while self.next < window.end {
            if !self.step() {
                continue;
            }
            let losses = self.losses(&mut rng);
            // Changed and changed back: copies of a whole disk would be most of the work.
            let mut disk = std::mem::take(&mut self.disk);
            for loss in losses {
                for n in &self.pending {
                    self.apply(&mut disk, *n, |s| loss.keeps(*n, s));
                }
                see(self.next, loss, &disk);
                for n in &self.pending {
                    let at = usize::try_from(self.requests[*n].at).unwrap() - self.range.start;
                    let there = at..at + self.requests[*n].data.len();
                    disk[there.clone()].copy_from_slice(&self.safe[there]);
                }
            }
            self.disk = disk;
        }
    }

    fn losses(&self, rng: &mut fastrand::Rng) -> Vec<Loss> {
        let Some(last) = self.pending.last().copied() else { return vec![Loss::All] };
        let sectors = self.requests[last].data.len() / 512;
        let mut losses = vec![Loss::None];
        if sectors > 1 {
            losses.push(Loss::Torn(last, rng.usize(1..sectors)));
            losses.push(Loss::Random(rng.u64(..) << 40));
        }
        if self.pending.len() > 1 {
            losses.extend(self.pending.iter().rev().take(3).flat_map(|&n| [Loss::Only(n), Loss::Without(n)]));
            losses.extend((0..6).map(|_| Loss::Random(rng.u64(..) << 40)));
        }
        losses
    }
}

/// An update and its undo, for a device whose boot partition holds `there`.
fn both_ways(
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

fn uenv(root: &str, trial: &str) -> Vec<u8> {
    format!("resin_root_part={root}\nupgrade_available={trial}\n").into_bytes()
}

#[test]
fn uboot_survives_every_power_cut_of_an_update() {
    let mut files = deployed(owned(), &releases()[0]);
    files.insert(FINGERPRINT, owned()[FINGERPRINT].clone());
    let start = vec![(UENV, uenv("2", "0")), (COUNT, b"bootcount=2\n\0".to_vec())];
    let selections = [start.as_slice(), &[(UENV, uenv("2", "0"))]];
    let device = Device {
        test: "uboot_survives_every_power_cut_of_an_update",
        fat: (8 << 20, &["-F", "16", "-s", "2"]),
        uefi: false,
        hooks: &["99-resin-uboot", "99-balena-bootloader"],
        files: files.clone(),
        selection: start.clone(),
    };
    let [update, undo] = both_ways("99-resin-uboot", &files, selections, false);
    // The next release has the balena bootloader, whose file comes before that of U-Boot goes. Going back finds no room.
    let selections = [
        &[(UENV, uenv("2", "0"))][..],
        &[(BOOTENV, block("bootcount=0\nresin_root_part=A\nupgrade_available=0\n"))],
    ];
    let [balena, back] = both_ways("99-balena-bootloader", &undo.after, selections, true);
    device.survives(&[update, undo, balena, back], 10);
}

/// Leaves 12 KiB.
const FILL: &str = "sync; head -c $(($(df -k /mnt/boot | tail -n 1 | awk '{print $4}') * 1024 - 12288)) /dev/zero >/mnt/boot/filler; sync";

#[test]
fn grub_survives_every_power_cut_of_an_update() {
    let files = deployed(owned(), &releases()[0]);
    let start = block("bootcount=0\nresin_root_part=2\nupgrade_available=0\n");
    let selections = [&[(GRUBENV, start.clone())][..], &[(GRUBENV, start.clone())]];
    let device = Device {
        test: "grub_survives_every_power_cut_of_an_update",
        fat: (34 << 20, &["-F", "32", "-s", "1"]),
        uefi: true,
        hooks: &["99-resin-grub"],
        files: files.clone(),
        selection: vec![(GRUBENV, start)],
    };
    device.survives(&both_ways("99-resin-grub", &files, selections, false), 6);
}
