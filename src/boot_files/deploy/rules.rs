//! Which files of a release are deployed, under which name and on which condition. Pure data.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::release::Listed;
use crate::error::{Code, Error};

/// As in the recipes of meta-balena (`BALENA_FINGERPRINT_FILENAME`, `BALENA_FINGERPRINT_EXT`).
pub const FINGERPRINT: &str = "balenaos.fingerprint";

/// Files of the owner or of one device (meta-balena, `BALENA_BOOTFILES_BLACKLIST`). In lower case: FAT ignores case.
const SKIPPED: &[&str] = &[
    "config.json",
    "config.txt",
    LOGO,
    "extra_uenv.txt",
    "efi/boot/grub_extraenv",
    "grub/grub_extraenv",
    "configfs.json",
    "hw_intfc.conf",
    "bootenv",
];

const NEEDED: &[&str] = &["extra_uenv.txt", "efi/boot/grub_extraenv", "grub/grub_extraenv"];

const LOGO: &str = "splash/balena-logo.png";
/// The logo's name before 2018. Owners have replaced that file.
pub(super) const OLD_LOGO: &str = "splash/resin-logo.png";

/// GRUB's configuration; on encrypted disks another file takes this name.
const GRUB: &str = "grub.cfg";
const GRUB_LUKS: &str = "grub-luks.cfg";
pub(super) const SIGNATURE: &str = ".sig";
const SECURE: &str = ".secureboot";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    pub fingerprint: OsString,
    pub skip: Vec<PathBuf>,
    /// Files of the release that the board's function `do_skip` skips.
    pub passed_over: BTreeSet<PathBuf>,
}

impl Default for Board {
    fn default() -> Self {
        Board { fingerprint: FINGERPRINT.into(), skip: Vec::new(), passed_over: BTreeSet::new() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Always,
    Missing,
    /// Only if missing: the owner has pinned it.
    Pinned,
    /// Only if no file selects a root: boot files must not change the selection.
    NoSelection,
    Logo,
    /// Not deployed; may get `developmentMode`.
    ConfigJson,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
    pub(super) size: u64, // bytes
    pub(super) when: When,
}

#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) files: Vec<Candidate>,
    pub(super) problems: Vec<Error>,
}

/// `pinned`: files of the boot partition that the owner keeps. `encrypted`: of two variants of a file, the one for secure boot gets the name.
pub(super) fn choose(release: Vec<Listed>, board: &Board, pinned: &[PathBuf], encrypted: bool) -> Choice {
    let release: Vec<Listed> = release.into_iter().filter(|f| !board.passed_over.contains(&f.path)).collect();
    let variants = Variants::of(&release, encrypted);
    let lowered = |paths: &[PathBuf]| paths.iter().map(|p| lower(p)).collect();
    let (skip, pinned) = (lowered(&board.skip), lowered(pinned));
    let mut choice = Choice::default();
    for file in release {
        let Some(to) = variants.name_of(&file.path, &mut choice.problems) else { continue };
        if let Some(when) = when(&to, board, &skip, &pinned) {
            choice.files.push(Candidate { from: file.path, to, size: file.size, when });
        }
    }
    // A `grub.cfg` that reads the selection chooses root B where there is none: write the selection first.
    choice.files.sort_by_key(|w| w.when != When::NoSelection);
    choice
}

fn when(path: &Path, board: &Board, skip: &BTreeSet<String>, pinned: &BTreeSet<String>) -> Option<When> {
    let name = lower(path);
    match name.as_str() {
        _ if path == Path::new(&board.fingerprint) => None,
        LOGO if pinned.contains(LOGO) || pinned.contains(OLD_LOGO) => None,
        LOGO => Some(When::Logo),
        "config.json" => Some(When::ConfigJson),
        n if NEEDED.contains(&n) => Some(When::Missing),
        n if SKIPPED.contains(&n) || skip.contains(n) => None,
        n if pinned.contains(n) => Some(When::Pinned),
        // GRUB's environment, in any folder, and U-Boot's. The environment of an image selects root A.
        "resinos_uenv.txt" => Some(When::NoSelection),
        n if n.rsplit('/').next() == Some("grubenv") => Some(When::NoSelection),
        _ => Some(When::Always),
    }
}

/// As FAT compares names, for the names that releases use.
pub(super) fn lower(path: &Path) -> String {
    path.to_string_lossy().to_lowercase()
}

/// Files with a plain variant and one for encrypted disks: exactly one of them gets the name.
struct Variants {
    encrypted: bool,
    names: BTreeSet<String>,
}

impl Variants {
    fn of(release: &[Listed], encrypted: bool) -> Variants {
        Variants { encrypted, names: release.iter().map(|f| lower(&f.path)).collect() }
    }

    fn name_of(&self, path: &Path, problems: &mut Vec<Error>) -> Option<PathBuf> {
        let Some(secure) = plain_name(path) else {
            return self.is_good(path, problems).then(|| path.to_owned());
        };
        if self.encrypted {
            return Some(secure);
        }
        // Without a plain variant the purpose of the file is unknown.
        (!self.has(&secure)).then(|| path.to_owned())
    }

    /// Whether a file may keep its name although it is not a variant for secure boot.
    fn is_good(&self, path: &Path, problems: &mut Vec<Error>) -> bool {
        if !self.encrypted {
            return true;
        }
        let Some(secure) = secure_name(path) else { return true };
        if self.has(&secure) {
            return false;
        }
        // A plain loader would not start, or not open the disk. Loaders in other folders are never started.
        let name = lower(path);
        let loader = name.starts_with("efi/boot/") && name.ends_with(".efi");
        let signature = name.ends_with(SIGNATURE) && self.has(&path.with_file_name(GRUB_LUKS));
        if loader || signature {
            problems.push(incomplete(path, &secure));
        }
        !(loader || signature)
    }

    fn has(&self, path: &Path) -> bool {
        self.names.contains(&lower(path))
    }
}

/// `x.efi` for `x.efi.secureboot`.
pub(super) fn plain_name(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let folded = name.to_lowercase();
    if let Some(plain) = folded.strip_suffix(SECURE).filter(|p| p.ends_with(".efi")) {
        return Some(path.with_file_name(name.get(..plain.len())?));
    }
    match folded.strip_prefix(GRUB_LUKS)? {
        "" => Some(path.with_file_name(GRUB)),
        SIGNATURE => Some(path.with_file_name([GRUB, SIGNATURE].concat())),
        _ => None,
    }
}

/// Loaders and GRUB's configuration with its signature, in either variant.
pub(super) fn is_of_loader(path: &Path) -> bool {
    plain_name(path).is_some() || secure_name(path).is_some()
}

fn secure_name(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let folded = name.to_lowercase();
    if folded.ends_with(".efi") {
        return Some(path.with_file_name([name, SECURE].concat()));
    }
    match folded.strip_prefix(GRUB)? {
        "" => Some(path.with_file_name(GRUB_LUKS)),
        SIGNATURE => Some(path.with_file_name([GRUB_LUKS, SIGNATURE].concat())),
        _ => None,
    }
}

fn incomplete(path: &Path, missing: &Path) -> Error {
    let what = format!(
        "cannot deploy boot files to an encrypted system: the release has /{} and no /{}",
        path.display(),
        missing.display()
    );
    Error::new(Code::BootFilesInvalid, what).object(missing.display())
}

/// Of files whose names differ in case only, keeps the last: on FAT each would overwrite the one before.
pub(super) fn one_each(candidates: Vec<Candidate>, fold: impl Fn(&Path) -> OsString) -> Vec<Candidate> {
    let last: BTreeMap<OsString, usize> =
        candidates.iter().enumerate().map(|(i, w)| (fold(&w.to), i)).collect();
    let mut kept = Vec::new();
    for (i, one) in candidates.into_iter().enumerate() {
        if last.get(&fold(&one.to)) == Some(&i) {
            kept.push(one);
        } else {
            tracing::warn!(
                "/{} exists twice for a FAT file system; deploying the later one",
                one.to.display()
            );
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(paths: &[&str], board: &Board, encrypted: bool) -> (Vec<(String, String, When)>, usize) {
        let listed = |p: &&str| Listed { path: PathBuf::from(p), size: 1 };
        let choice = choose(paths.iter().map(listed).collect(), board, &[], encrypted);
        let text = |p: &Path| p.to_str().unwrap().to_owned();
        (choice.files.iter().map(|w| (text(&w.from), text(&w.to), w.when)).collect(), choice.problems.len())
    }

    fn names(paths: &[&str], encrypted: bool) -> Vec<String> {
        let (wanted, problems) = chosen(paths, &Board::default(), encrypted);
        assert_eq!(problems, 0);
        wanted
            .into_iter()
            .map(|(from, to, _)| if from == to { to } else { format!("{from} as {to}") })
            .collect()
    }

    #[test]
    fn every_path_of_the_skip_list() {
        let one = |path: &str| chosen(&[path], &Board::default(), false).0.first().map(|w| w.2);
        for path in ["config.txt", "CONFIG.TXT", "configfs.json", "hw_intfc.conf", "bootenv", FINGERPRINT] {
            assert_eq!(one(path), None, "{path}");
        }
        for path in ["extra_uEnv.txt", "EFI/BOOT/grub_extraenv", "grub/grub_extraenv"] {
            assert_eq!(one(path), Some(When::Missing), "{path}");
        }
        for path in ["grubenv", "EFI/BOOT/grubenv", "grub/GRUBENV", "resinOS_uEnv.txt"] {
            assert_eq!(one(path), Some(When::NoSelection), "{path}");
        }
        assert_eq!(one("splash/balena-logo.png"), Some(When::Logo));
        assert_eq!(one("config.json"), Some(When::ConfigJson));
        for path in
            ["overlays/config.txt", "vmlinuz", "sub/config.json", "splash/resin-logo.png", "a/bootenv"]
        {
            assert_eq!(one(path), Some(When::Always), "{path}");
        }
    }

    #[test]
    fn a_board_adds_to_the_list() {
        let board = Board {
            skip: vec!["own.conf".into(), "extra_uEnv.txt".into()],
            passed_over: BTreeSet::from(["zImage".into(), "config.json".into()]),
            ..Board::default()
        };
        let paths = ["OWN.conf", "extra_uEnv.txt", "zImage", "config.json", "config.txt", "dtb"];
        let wanted = chosen(&paths, &board, false).0;
        let names: Vec<_> = wanted.iter().map(|w| (w.1.as_str(), w.2)).collect();
        assert_eq!(names, [("extra_uEnv.txt", When::Missing), ("dtb", When::Always)]);
    }

    #[test]
    fn a_pinned_file_is_deployed_only_where_it_is_missing() {
        let paths = ["A.dtb", "overlays/x.dtbo", "x.dtbo", "splash/balena-logo.png", "config.txt"];
        let listed = paths.iter().map(|p| Listed { path: PathBuf::from(p), size: 1 }).collect();
        let pinned = ["a.dtb", "overlays/x.dtbo", OLD_LOGO, "config.txt"].map(PathBuf::from);
        let choice = choose(listed, &Board::default(), &pinned, false);
        let wanted: Vec<_> = choice.files.iter().map(|w| (w.to.to_str().unwrap(), w.when)).collect();
        let expected = [("A.dtb", When::Pinned), ("overlays/x.dtbo", When::Pinned), ("x.dtbo", When::Always)];
        assert_eq!(wanted, expected);
    }

    const EFI: [&str; 7] = [
        "EFI/BOOT/bootx64.efi",
        "EFI/BOOT/bootx64.efi.secureboot",
        "EFI/BOOT/grub-luks.cfg",
        "EFI/BOOT/grub-luks.cfg.sig",
        "EFI/BOOT/grub.cfg",
        "EFI/BOOT/grub.cfg.sig",
        "vmlinuz",
    ];

    #[test]
    fn exactly_one_of_two_variants_gets_the_name() {
        let plain = ["EFI/BOOT/bootx64.efi", "EFI/BOOT/grub.cfg", "EFI/BOOT/grub.cfg.sig", "vmlinuz"];
        assert_eq!(names(&EFI, false), plain);
        let secure = [
            "EFI/BOOT/bootx64.efi.secureboot as EFI/BOOT/bootx64.efi",
            "EFI/BOOT/grub-luks.cfg as EFI/BOOT/grub.cfg",
            "EFI/BOOT/grub-luks.cfg.sig as EFI/BOOT/grub.cfg.sig",
            "vmlinuz",
        ];
        assert_eq!(names(&EFI, true), secure);
        assert_eq!(
            names(&["x.efi.secureboot", "grub/grub.cfg"], false),
            ["x.efi.secureboot", "grub/grub.cfg"]
        );
        assert_eq!(names(&["grub/grub.cfg", "zImage"], true), ["grub/grub.cfg", "zImage"]);
    }

    #[test]
    fn an_encrypted_system_never_gets_a_plain_loader() {
        for missing in [1, 3] {
            let mut paths = EFI.to_vec();
            paths.remove(missing);
            let (wanted, problems) = chosen(&paths, &Board::default(), true);
            assert_eq!(problems, 1, "{missing}");
            let plain = if missing == 1 { "EFI/BOOT/bootx64.efi" } else { "EFI/BOOT/grub.cfg.sig" };
            assert!(wanted.iter().all(|w| w.0 != plain), "{wanted:?}");
        }
    }

    #[test]
    fn the_last_of_two_spellings_counts() {
        let wanted = |to: &str| Candidate { from: to.into(), to: to.into(), size: 0, when: When::Always };
        let all = vec![wanted("A.dtb"), wanted("a.dtb"), wanted("b")];
        let kept = one_each(all.clone(), |p| lower(p).into());
        assert_eq!(kept, [wanted("a.dtb"), wanted("b")]);
        assert_eq!(one_each(all.clone(), |p| p.as_os_str().to_owned()), all);
    }
}
