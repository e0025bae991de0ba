//! What becomes of the owner's device trees in a new release: which are carried, and which would be missing.

use std::path::{Path, PathBuf};

use super::carry::{self, Item, Origin, Outcome, Source};
use super::damage::{damage, has_booted};
use super::pins::Pins;
use super::{ExpectedFiles, Named, Place, Refused, content, expected_files, of_release, running_boot};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};

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
    expected: ExpectedFiles,
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
        let expected = expected_files(paths);
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
        for named in expected.named.iter().filter(|named| named.is_in_root()) {
            add(&named.path, Origin::Named { key: named.key, counts: named.counts });
        }
        expected.others.iter().for_each(|path| add(path, Origin::Board));
        pins.paths.iter().for_each(|path| add(path, Origin::Pin));
        // What the update must not lose takes the space first.
        items.sort_by_key(|item| !item.origin.is_needed());
        NewRelease { paths: paths.clone(), from: running_boot(paths), expected, items, secure }
    }

    /// Whether the owner and the board ask for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.expected.named.is_empty() && self.expected.refused.is_empty()
    }

    /// The roots are encrypted.
    #[must_use]
    pub fn with_secure_boot(self, secure: bool) -> NewRelease {
        NewRelease { secure: self.secure || secure, ..self }
    }

    /// The files of the release, below its root, that decide.
    #[must_use]
    pub fn requested_files(&self) -> Vec<PathBuf> {
        let named = self
            .expected
            .named
            .iter()
            .flat_map(|n| [BOOT, BOOT_FILES].map(|top| Path::new(top).join(&n.path)));
        let items = self.items.iter().map(|item| Path::new(BOOT).join(&item.path));
        let mut all: Vec<PathBuf> = named.chain(items).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Whether everything that is named will be where the bootloader looks. `has`: whether the release has one of the
    /// [requested](NewRelease::requested_files) files. `free`: bytes for carried files.
    #[must_use]
    pub fn judge(&self, has: &dyn Fn(&Path) -> bool, free: u64) -> Judgement {
        let mut judgement = Judgement::default();
        for Refused { key, name, counts } in &self.expected.refused {
            let text = format!(
                "{key} names {name:?}, which is not a plain path below the boot folder; it is not carried"
            );
            if *counts && self.expected.required {
                judgement.problems.push(Error::new(Code::DeviceTreeMissing, text).object(name));
            } else {
                judgement.warnings.push(text);
            }
        }
        let mut seen: Vec<&Path> = Vec::new();
        // If several settings name a file, the setting that counts decides.
        for counts in [true, false] {
            for named in self.expected.named.iter().filter(|named| named.counts == counts) {
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
            // Those of the release are looked at when they are there; with them `1-bootfiles` repairs the boot partition.
            let is_repaired = has(&Path::new(BOOT_FILES).join(&named.path)) && !self.is_pinned(named);
            if named.place != Place::Root && on_boot && !is_repaired {
                self.judge_damage(named, &boot, &boot, judgement);
            }
            return;
        }
        let item = self.items.iter().find(|item| item.path == named.path);
        let source = item.map_or(Source::Missing, |item| item.source(&self.from));
        if matches!(source, Source::File(_)) && !self.secure {
            let file = self.from.join(&named.path);
            return self.judge_damage(named, &file, &file, judgement);
        }
        // A board with several settings loads one of the trees.
        let is_required = self.expected.is_required(named) && !self.has_another(named, has);
        let Judgement { problems, warnings } = judgement;
        let mut lost = |item: &Item, why: &str| {
            item.report(Code::UpdateFailed, why, item.origin.is_tree_that_counts(), problems, warnings);
        };
        match (item, source) {
            // The bootloader cannot have read it there.
            (Some(item), Source::File(_)) => {
                let why = "with secure boot, files of the owner are not carried";
                item.report(Code::UpdateFailed, why, is_required, problems, warnings);
            }
            (Some(item), Source::Unfit(why)) => lost(item, &why),
            (None, _) | (_, Source::Missing) => {
                let missing = self.missing(named, on_boot);
                if is_required {
                    problems.push(missing);
                } else {
                    warnings.push(format!("{}; the bootloader may take its default", missing.message()));
                }
            }
        }
    }

    fn is_pinned(&self, named: &Named) -> bool {
        self.items.iter().any(|item| item.pinned && item.path == named.path)
    }

    /// Whether another setting names a tree that will be there.
    fn has_another(&self, named: &Named, has: &dyn Fn(&Path) -> bool) -> bool {
        let is_there = |other: &Named| {
            let in_root = || has(&Path::new(BOOT).join(&other.path)) || self.from.join(&other.path).is_file();
            let on_boot = || self.paths.plain_boot().join(&other.path).is_file();
            (other.is_in_root() && in_root()) || (other.place != Place::Root && on_boot())
        };
        let mut others =
            self.expected.named.iter().filter(|n| n.counts && n.key.is_tree() && n.path != named.path);
        named.key.is_tree() && others.any(is_there)
    }

    /// `before`: where the running system has the file.
    fn judge_damage(&self, named: &Named, file: &Path, before: &Path, judgement: &mut Judgement) {
        let Some(e) = damage(named, file) else { return };
        if self.expected.is_required(named) || !has_booted(&self.paths, file, before) {
            judgement.problems.push(e);
        } else {
            judgement
                .warnings
                .push(format!("{}; the running system has booted with the same file", e.message()));
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

    /// Carries into `to`, the new release's boot folder, before anything leads there. A damaged tree there is also a problem.
    pub fn carry(&self, to: &Path) -> Outcome {
        let mut outcome = self.copy(to);
        let mut judgement = Judgement::default();
        for named in self.expected.named.iter().filter(|named| named.is_in_root()) {
            let file = to.join(&named.path);
            if file.is_file()
                && named.places(&self.paths, to).iter().find(|place| place.is_file()) == Some(&file)
            {
                self.judge_damage(named, &file, &self.from.join(&named.path), &mut judgement);
            }
        }
        judgement.warn();
        outcome.problems.extend(judgement.problems);
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

    /// As [`carry`](NewRelease::carry), into a release that has run: it gets what it lacks, and keeps every file of its own. A tree that it has
    /// booted without stays away from it.
    pub fn add_only(&mut self, to: &Path) -> Outcome {
        let required = self.expected.required;
        self.items.retain(|item| required || !matches!(item.origin, Origin::Named { .. }));
        self.items.iter_mut().for_each(|item| item.pinned = false);
        self.copy(to)
    }
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
mod tests;
