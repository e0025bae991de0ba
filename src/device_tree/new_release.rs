//! What becomes of the owner's device trees in a new release: which are carried, and which would be missing.

use std::path::{Path, PathBuf};

use super::blob::Blob;
use super::carry::{self, Item, LARGEST_TREE, Origin, Outcome, Source};
use super::pins::Pins;
use super::{Named, Place, Refused, Wanted, content, of_release, running_boot, wanted};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::file;

/// Folders of an image: with the files of the boot folder, and with those that `1-bootfiles` puts on the boot partition.
const BOOT: &str = "boot";
const BOOT_FILES: &str = "resin-boot";

/// For space before the files are there, in bytes.
const BLOCK: u64 = 4096;

/// Before the new release boots.
#[derive(Debug)]
pub struct NewRelease {
    paths: Paths,
    /// The running release's boot folder.
    from: PathBuf,
    wanted: Wanted,
    items: Vec<Item>,
    /// With secure boot nothing is carried: the release alone says what boots.
    secure: bool,
}

/// What is known before a file is carried.
#[derive(Debug, Default)]
pub struct Judgement {
    /// The update ends with the first, unless it is forced.
    pub problems: Vec<Error>,
    pub warnings: Vec<String>,
}

impl Judgement {
    pub fn warn(&self) {
        self.warnings.iter().for_each(|text| tracing::warn!("{text}"));
    }
}

impl NewRelease {
    /// Reads settings, pins and the board's configuration. `secure`: the roots are encrypted.
    #[must_use]
    pub fn read(paths: &Paths, secure: bool) -> NewRelease {
        let wanted = wanted(paths);
        let pins = if secure { Pins::default() } else { Pins::read_aloud(paths) };
        let mut items: Vec<Item> = Vec::new();
        let mut add = |path: &Path, origin: Origin| match items.iter_mut().find(|item| item.path == path) {
            None => items.push(Item { path: path.to_owned(), origin, pinned: origin == Origin::Pin }),
            Some(item) => {
                item.pinned |= origin == Origin::Pin;
                if matches!(origin, Origin::Named { counts: true, .. }) {
                    item.origin = origin;
                }
            }
        };
        for named in wanted.named.iter().filter(|named| named.is_in_root()) {
            add(&named.path, Origin::Named { key: named.key, counts: named.counts });
        }
        wanted.others.iter().for_each(|path| add(path, Origin::Board));
        pins.paths.iter().for_each(|path| add(path, Origin::Pin));
        // What the update must not lose takes the space first.
        items.sort_by_key(|item| !item.origin.is_needed());
        NewRelease { paths: paths.clone(), from: running_boot(paths), wanted, items, secure }
    }

    /// The files of the release, below its root, that decide.
    #[must_use]
    pub fn asked(&self) -> Vec<PathBuf> {
        let named =
            self.wanted.named.iter().flat_map(|n| [BOOT, BOOT_FILES].map(|top| Path::new(top).join(&n.path)));
        let items = self.items.iter().map(|item| Path::new(BOOT).join(&item.path));
        let mut all: Vec<PathBuf> = named.chain(items).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Whether everything that is named will be where the bootloader looks. `has`: whether the release has one of the
    /// [asked](NewRelease::asked) files. `free`: bytes for carried files.
    #[must_use]
    pub fn judge(&self, has: &dyn Fn(&Path) -> bool, free: u64) -> Judgement {
        let mut judgement = Judgement::default();
        judgement.warnings.extend(self.wanted.refused.iter().map(|refused| {
            let Refused { key, name } = refused;
            format!(
                "{key} names {name:?}, which is not a plain path below the boot folder; it is not carried"
            )
        }));
        let mut seen: Vec<&Path> = Vec::new();
        // Of several settings that name a file, the one that counts says what becomes of it.
        for counts in [true, false] {
            for named in self.wanted.named.iter().filter(|named| named.counts == counts) {
                if !seen.contains(&named.path.as_path()) {
                    seen.push(&named.path);
                    self.judge_named(named, has, &mut judgement);
                }
            }
        }
        let mut left = free;
        for item in &self.items {
            let Source::File(size) = item.source(&self.from) else { continue };
            let Judgement { problems, warnings } = &mut judgement;
            if self.secure {
                let of_board = item.origin == Origin::Board;
                let text = || format!("boot/{} is not carried: secure boot is on", item.path.display());
                warnings.extend(of_board.then(text));
            } else if item.pinned || !has(&Path::new(BOOT).join(&item.path)) {
                let needed = size.next_multiple_of(BLOCK).saturating_add(BLOCK);
                match left.checked_sub(needed) {
                    Some(rest) => left = rest,
                    None => {
                        let why =
                            format!("the other root partition has no space for its {} KiB", needed >> 10);
                        item.report(Code::SlotFull, &why, item.origin.is_needed(), problems, warnings);
                    }
                }
            }
        }
        judgement
    }

    fn judge_named(&self, named: &Named, has: &dyn Fn(&Path) -> bool, judgement: &mut Judgement) {
        let in_release = has(&Path::new(BOOT).join(&named.path));
        let boot = self.paths.plain_boot().join(&named.path);
        let on_boot = boot.is_file();
        let on_boot_next = on_boot || has(&Path::new(BOOT_FILES).join(&named.path));
        let there = match named.place {
            Place::Root => in_release,
            Place::BootFirst => on_boot_next || in_release,
            Place::Boot => on_boot_next,
        };
        if there {
            // Those of the release are looked at when they are there.
            let at_once = named.place != Place::Root && on_boot;
            judgement.problems.extend(damage(named, &boot).filter(|_| at_once));
            return;
        }
        let item = self.items.iter().find(|item| item.path == named.path);
        let source = item.map_or(Source::Missing, |item| item.source(&self.from));
        let Judgement { problems, warnings } = judgement;
        let mut lost = |item: &Item, why: &str| {
            item.report(Code::UpdateFailed, why, item.origin.is_tree_that_counts(), problems, warnings);
        };
        match (item, source) {
            (Some(item), Source::File(_)) if self.secure => {
                lost(item, "with secure boot, files of the owner are not carried");
            }
            (_, Source::File(_)) => problems.extend(damage(named, &self.from.join(&named.path))),
            (Some(item), Source::Unfit(why)) => lost(item, &why),
            (_, Source::Missing | Source::Unfit(_)) => {
                let missing = self.missing(named, on_boot);
                if self.wanted.is_required(named) {
                    problems.push(missing);
                } else {
                    warnings.push(format!("{}; the bootloader may take its default", missing.message()));
                }
            }
        }
    }

    fn missing(&self, named: &Named, on_boot: bool) -> Error {
        let (path, key) = (named.path.display(), named.key);
        let root = format!("in {}", self.from.display());
        let boot = format!("on the boot partition, {}", self.paths.plain_boot().display());
        let looked = match named.place {
            Place::Root => root,
            Place::BootFirst => format!("{boot}, nor {root}"),
            Place::Boot => boot,
        };
        let text =
            format!("cannot find {path}, which {key} names: it is neither {looked}, nor in the new release");
        let error = Error::new(Code::DeviceTreeMissing, text).object(path);
        if on_boot && named.place == Place::Root {
            error.and_also("it is on the boot partition, where this board's bootloader does not look")
        } else {
            error
        }
    }

    /// Carries into `to`, the new release's boot folder, before anything leads there. A damaged tree there is a problem, too.
    pub fn carry(&self, to: &Path) -> Outcome {
        let mut outcome = self.copy(to);
        for named in &self.wanted.named {
            let there = named.places(&self.paths, to).into_iter().find(|place| place.is_file());
            outcome.problems.extend(there.and_then(|file| damage(named, &file)));
        }
        outcome
    }

    fn copy(&self, to: &Path) -> Outcome {
        if self.secure {
            return Outcome::default();
        }
        carry::carry(&self.from, to, &self.items, &|path| self.is_owners(path))
    }

    /// Whether the running boot folder has another file than its own release.
    fn is_owners(&self, path: &Path) -> bool {
        match (content(&self.from.join(path)), of_release(&self.paths, path)) {
            (Ok(own), Some(release)) => own != release,
            _ => true,
        }
    }

    /// As [`carry`](NewRelease::carry), into a release that has run: it gets what it lacks, and keeps every file of its own.
    pub fn add_only(&mut self, to: &Path) -> Outcome {
        self.items.iter_mut().for_each(|item| item.pinned = false);
        self.copy(to)
    }
}

/// What is wrong with the tree that the bootloader takes: with a damaged one, or a damaged overlay, it may stop.
pub(crate) fn damage(named: &Named, file: &Path) -> Option<Error> {
    let why = match file::read_bytes(file, LARGEST_TREE) {
        Ok(bytes) => Blob::check(&bytes).err()?.to_owned(),
        Err(e) => e.to_string(),
    };
    let text = format!("cannot boot with {}, which {} names: {why}", file.display(), named.key);
    named.counts.then(|| Error::new(Code::DeviceTreeInvalid, text).object(named.path.display()))
}

/// The first of the problems, unless the caller has forced the update: then they are warnings.
pub fn settle(problems: Vec<Error>, force: bool) -> Result<()> {
    let mut problems = problems.into_iter();
    let first = if force { None } else { problems.next() };
    for problem in problems {
        tracing::warn!("{}{}", if force { "--force: continuing although " } else { "" }, problem.message());
    }
    first.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::device_tree::blob::LEAST;

    /// A running release and a boot folder of a new one.
    struct Device(tempfile::TempDir);

    const RUNNING: &str = "mnt/sysroot/active/current/boot";
    const NEW: &str = "new";

    impl Device {
        fn new(conf: &str, extra: &str) -> Device {
            let device = Device(tempfile::tempdir().unwrap());
            device.put("etc/copal/update.conf", conf);
            device.put("mnt/boot/extra_uEnv.txt", extra);
            device.put(&format!("{RUNNING}/init"), "mobynit");
            device.put(&format!("{NEW}/init"), "mobynit");
            device
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn put(&self, name: &str, text: &str) {
            fs::create_dir_all(self.at(name).parent().unwrap()).unwrap();
            let tree: &[u8] = if name.contains(".dtb") { LEAST } else { b"" };
            fs::write(self.at(name), [tree, text.as_bytes()].concat()).unwrap();
        }

        fn running(&self, name: &str, text: &str) {
            self.put(&format!("{RUNNING}/{name}"), text);
        }

        fn new_has(&self, name: &str, text: &str) {
            self.put(&format!("{NEW}/{name}"), text);
        }

        fn read(&self, secure: bool) -> NewRelease {
            NewRelease::read(&Paths::new(self.0.path()), secure)
        }

        /// Objects of the problems, and the number of warnings.
        fn judged(&self, free: u64, secure: bool) -> (Vec<String>, usize) {
            let has = |file: &Path| match file.strip_prefix(BOOT) {
                Ok(name) => self.at(NEW).join(name).is_file(),
                Err(_) => self.at(file.to_str().unwrap()).is_file(),
            };
            let Judgement { problems, warnings } = self.read(secure).judge(&has, free);
            (
                problems.iter().map(|e| format!("{} {}", e.subject().unwrap(), e.code())).collect(),
                warnings.len(),
            )
        }

        fn carried(&self) -> Vec<(String, String)> {
            let Outcome { carried, problems } = self.read(false).carry(&self.at(NEW));
            assert!(problems.is_empty(), "{problems:?}");
            carried.into_iter().map(|c| (c.name, c.origin)).collect()
        }

        fn text(&self, name: &str) -> String {
            let content = fs::read(self.at(NEW).join(name)).unwrap_or_default();
            String::from_utf8(content.strip_prefix(LEAST).unwrap_or(&content).to_vec()).unwrap()
        }
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    #[test]
    fn what_the_release_lacks_is_carried_and_what_it_has_counts() {
        let conf = "CARRY_BOOT=\"firmware/cal.bin firmware/none.bin\"\n";
        let device =
            Device::new(conf, "custom_fdt_file=own.dtb\noverlay_files=over/a.dtbo\nfdtfile=board.dtb\n");
        for name in ["own.dtb", "over/a.dtbo", "board.dtb", "firmware/cal.bin", "other"] {
            device.running(name, "the owner's");
        }
        device.new_has("board.dtb", "the release's");
        assert_eq!(device.judged(u64::MAX, false), (vec![], 0));
        let expected = [
            ("own.dtb", "custom_fdt_file"),
            ("over/a.dtbo", "overlay_files"),
            ("firmware/cal.bin", "CARRY_BOOT"),
        ];
        assert_eq!(device.carried(), pairs(&expected));
        assert_eq!(
            (device.text("own.dtb"), device.text("over/a.dtbo")),
            ("the owner's".into(), "the owner's".into())
        );
        assert_eq!((device.text("board.dtb"), device.text("other")), ("the release's".into(), String::new()));
        assert_eq!(device.carried(), [], "a second time there is nothing to do");

        device.put("mnt/boot/copal/keep", "board.dtb\nother\nown.dtb\n");
        let expected = [("board.dtb", "fdtfile"), ("other", "keep")];
        let carried: BTreeSet<_> = device.carried().into_iter().collect();
        assert_eq!(carried, pairs(&expected).into_iter().collect());
        assert_eq!(device.text("board.dtb"), "the owner's");
        // A release that has run keeps its own files.
        device.new_has("board.dtb", "its own");
        fs::remove_file(device.at("new/own.dtb")).unwrap();
        assert_eq!(device.read(false).add_only(&device.at(NEW)).carried.len(), 1);
        assert_eq!(
            (device.text("board.dtb"), device.text("own.dtb")),
            ("its own".into(), "the owner's".into())
        );
    }

    #[test]
    fn a_release_of_which_the_owner_has_changed_nothing_has_no_files_of_his() {
        let device = Device::new("", "");
        let slot = "mnt/sysroot/active";
        fs::remove_dir_all(device.at(&format!("{slot}/current"))).unwrap();
        fs::create_dir_all(device.at(&format!("{slot}/hostapps/c/boot"))).unwrap();
        symlink("hostapps/c", device.at(&format!("{slot}/current"))).unwrap();
        device.put(&format!("{slot}/balena/image/overlay2/layerdb/mounts/c/mount-id"), "top");
        device.put(&format!("{slot}/balena/overlay2/top/diff/boot/board.dtb"), "the release's");
        device.running("own.dtb", "the owner's");
        for (text, is_owners) in [("the release's", false), ("the owner's", true)] {
            device.running("board.dtb", text);
            let release = device.read(false);
            assert_eq!(release.is_owners(Path::new("board.dtb")), is_owners);
            assert!(release.is_owners(Path::new("own.dtb")));
        }
    }

    #[test]
    fn only_plain_files_are_carried() {
        let device = Device::new("", "custom_fdt_file=own.dtb\nfdt_file=dir/x.dtb\n");
        device.running("real.dtb", "x");
        symlink("real.dtb", device.at(RUNNING).join("own.dtb")).unwrap();
        symlink("..", device.at(RUNNING).join("dir")).unwrap();
        device.put("mnt/sysroot/active/current/x.dtb", "x");
        let lost = "own.dtb device-tree-missing".to_owned();
        assert_eq!(device.judged(u64::MAX, false), (vec![lost], 1));
        let Outcome { carried, problems } = device.read(false).carry(&device.at(NEW));
        assert_eq!((carried.len(), problems.len()), (0, 1));
        // The release's own is no loss, whatever the running folder has.
        device.new_has("own.dtb", "the release's");
        assert_eq!((device.judged(u64::MAX, false).0.len(), device.carried().len()), (0, 0));
        // Links of the release: one that leads to a file counts, another one gives way.
        fs::remove_file(device.at(RUNNING).join("own.dtb")).unwrap();
        device.running("own.dtb", "the owner's");
        device.new_has("its.dtb", "the release's");
        for (to, text) in [("its.dtb", "the release's"), ("none", "the owner's")] {
            fs::remove_file(device.at("new/own.dtb")).unwrap();
            symlink(to, device.at("new/own.dtb")).unwrap();
            device.carried();
            assert_eq!(device.text("own.dtb"), text);
        }
        // A mistake of the board ends no update.
        device.put("etc/copal/update.conf", "CARRY_BOOT=\"firmware link.bin\"\n");
        device.running("firmware/x", "x");
        symlink("init", device.at(RUNNING).join("link.bin")).unwrap();
        assert_eq!((device.judged(u64::MAX, false).0.len(), device.carried().len()), (0, 0));
        device.running("own.dtb", &"x".repeat(9 << 20));
        fs::remove_file(device.at("new/own.dtb")).unwrap();
        assert_eq!(device.judged(u64::MAX, false).0.len(), 1, "no device tree is so large");
    }

    #[test]
    fn a_missing_name_refuses_only_where_the_board_says_so() {
        for (conf, refused, warned) in [
            ("", 0, 1),
            ("DEVICE_TREE_REQUIRED=1\n", 1, 0),
            ("DEVICE_TREE_REQUIRED=1\nDEVICE_TREE_KEYS=fdtfile\n", 0, 1),
            ("DEVICE_TREE_REQUIRED=1\nDEVICE_TREE_PLACE=boot\n", 1, 0),
            ("DEVICE_TREE_REQUIRED=1\nDEVICE_TREE_PLACE=boot-first\n", 1, 0),
        ] {
            let device = Device::new(conf, "custom_fdt_file=own.dtb\n");
            let (problems, warnings) = device.judged(u64::MAX, false);
            assert_eq!((problems.len(), warnings), (refused, warned), "{conf}");
            let is_there = |what: &str| {
                assert_eq!(device.judged(u64::MAX, false), (vec![], 0), "{conf}: {what}");
            };
            let on_boot = conf.contains("PLACE");
            if on_boot {
                device.put("mnt/boot/own.dtb", "x");
                is_there("on the boot partition");
                fs::remove_file(device.at("mnt/boot/own.dtb")).unwrap();
                device.put("resin-boot/own.dtb", "x");
                is_there("among the release's boot files");
                fs::remove_file(device.at("resin-boot/own.dtb")).unwrap();
            } else {
                device.put("mnt/boot/own.dtb", "x");
                assert_eq!(
                    device.judged(u64::MAX, false).0.len(),
                    refused,
                    "{conf}: the loader does not look there"
                );
            }
            if !conf.contains("PLACE=boot\n") {
                device.running("own.dtb", "x");
                is_there("in the running release");
            }
        }
        let device = Device::new("DEVICE_TREE_REQUIRED=1\n", "custom_fdt_file=../own.dtb\n");
        assert_eq!(device.judged(u64::MAX, false), (vec![], 1), "not a plain path");
    }

    #[test]
    fn a_tree_in_use_is_never_lost_in_silence() {
        let device = Device::new("CARRY_BOOT=cal.bin\n", "custom_fdt_file=own.dtb\nfdt_file=other.dtb\n");
        for name in ["own.dtb", "other.dtb", "cal.bin"] {
            device.running(name, &"x".repeat(5000));
        }
        let own = || "own.dtb device-tree-missing".to_owned();
        assert_eq!(device.judged(u64::MAX, true), (vec![own()], 2), "with secure boot");
        assert!(device.read(true).carry(&device.at(NEW)).carried.is_empty());
        assert_eq!(device.judged(0, false), (vec![own(), "cal.bin slot-full".into()], 1));
        assert_eq!(device.judged(2 * (12 << 10), false), (vec![], 1), "what is needed has the space first");
        assert_eq!(device.judged(3 * (12 << 10), false), (vec![], 0));
        // The release has it: nothing is lost.
        device.new_has("own.dtb", "the release's");
        assert_eq!(device.judged(u64::MAX, true).0, [""; 0]);
    }

    #[test]
    fn a_damaged_tree_is_refused_wherever_it_is() {
        for (place, in_time) in [("mnt/boot", true), (RUNNING, true), (NEW, false)] {
            for name in ["own.dtb", "over.dtbo"] {
                let conf = if place == "mnt/boot" { "DEVICE_TREE_PLACE=boot-first\n" } else { "" };
                let device =
                    Device::new(conf, "custom_fdt_file=own.dtb\noverlay_files=over.dtbo\nfdtfile=x.dtb\n");
                for file in ["own.dtb", "over.dtbo", "x.dtb"] {
                    device.put(&format!("{place}/{file}"), "");
                }
                fs::write(device.at(&format!("{place}/{name}")), &LEAST[..60]).unwrap();
                // What does not count, the bootloader does not read.
                fs::write(device.at(&format!("{place}/x.dtb")), "").unwrap();
                let refused = vec![format!("{name} device-tree-invalid")];
                assert_eq!(
                    device.judged(u64::MAX, false).0,
                    if in_time { refused.clone() } else { vec![] },
                    "{place}"
                );
                let problems = device.read(false).carry(&device.at(NEW)).problems;
                let problems = problems.iter().map(|e| format!("{} {}", e.subject().unwrap(), e.code()));
                assert_eq!(problems.collect::<Vec<_>>(), refused, "{place}");
                // A rollback is never refused.
                assert!(device.read(false).add_only(&device.at(NEW)).problems.is_empty());
            }
        }
    }
}
