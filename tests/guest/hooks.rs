//! What the hooks of a host OS update write, on a real vfat, with the power going at every moment.
//!
//! A guest has a disk as a device has one: boot partition, both roots, state partition. It runs the hooks as the runner does, for an
//! update and for its undo. Every write and flush of the disk is recorded. Then the disk is put together as it may be after a cut
//! at any request and looked at by readers that share no code with copal; some of these disks start again in another guest.

mod cuts;
mod phase;
mod release;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bootpart::is_temporary;
use crate::kit::needs::{needs, tools};
use crate::support::fat::{self, Node};
use crate::support::writelog::{self, Loss, Request};
use crate::support::{Disk, Guest, LIMIT, fat_files, folder, gpt_image, tool};
use cuts::Cuts;
use phase::{Phase, both_ways, differences};
use release::{
    BOOTENV, COUNT, FINGERPRINT, Files, GRUBENV, UENV, block, deployed, owned, releases, selected, uenv,
};

const MIB: usize = 1 << 20;
const HOOKS: &str = "/etc/hostapp-update-hooks.d";

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
        let (mut restarts, mut long, mut short, mut halved) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
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
            short.extend(seen.short);
            halved.extend(seen.halved);
            phases_seen.push(phase);
        }
        fastrand::Rng::with_seed(2).shuffle(&mut restarts);
        restarts.truncate(most);
        println!("{} of the disks that start have a file with clusters behind its end", long.len());
        println!("{} have a file with fewer clusters than its size needs", short.len());
        println!("{} have a folder with two names", halved.len());
        restarts.append(&mut long);
        restarts.append(&mut short);
        restarts.append(&mut halved);
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
            let leftovers = tree.nodes.keys().any(|p| is_temporary(p));
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
            // A folder whose new and temporary name lead to one cluster, after half a rename.
            let folder = |p: &String| tree.nodes.get(p) == Some(&Node::Folder);
            if seen.halved.is_none() && tree.shared.iter().any(|(a, b)| folder(a) && folder(b)) {
                seen.halved = Some(Cut { phase: phase.name, at, loss });
            }
            // Linux grows such a file only after it has been cut to its size.
            if !tree.long.is_empty() && seen.long.is_none() {
                seen.long = Some(Cut { phase: phase.name, at, loss });
            }
            // Linux makes a file system read-only when it is to read such a file to its end.
            let is_short =
                |(path, node): (&String, &Node)| matches!(node, Node::File(Err(_))) && !is_temporary(path);
            if seen.short.is_none() && tree.nodes.iter().any(is_short) {
                seen.short = Some(Cut { phase: phase.name, at, loss });
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
                tree.nodes.iter().filter(|(p, n)| is_temporary(p) && **n != Node::Folder).collect();
            assert!(leftovers.is_empty(), "{what}: {leftovers:?}");
            let folder = |p: &String| tree.nodes.get(p) == Some(&Node::Folder);
            let shared: Vec<_> = tree.shared.iter().filter(|(a, b)| !(folder(a) && folder(b))).collect();
            assert!(shared.is_empty(), "{what}: {shared:?}");
        }
    }
}

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
    /// The first one with a file that has fewer clusters than its size needs.
    short: Option<Cut>,
    /// The first one with a folder that has two names.
    halved: Option<Cut>,
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

#[test]
fn uboot_survives_every_power_cut_of_an_update() {
    needs!(tools);
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

#[test]
fn grub_survives_every_power_cut_of_an_update() {
    needs!(tools);
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
