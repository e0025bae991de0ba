//! The policy of an encrypted disk is changed, with a power cut before each command to the TPM and each change of a file.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use copal::error::{Code, Error};
use copal::sys::crash_point;
use copal::tpm::Tpm;
use copal::tpm::policy::{self, Digest};
use copal::tpm::store::{INDEX, SPARE, Secret};
use copal::unlock::policies::{List, Policies};
use copal::unlock::seal::{self, Sealed};

use crate::kit::emulated_tpm::Emulated;
use crate::kit::prove::cases;

pub(crate) const SECRET: [u8; 32] = *b"a passphrase of thirty-two bytes";

/// What the device was like before.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Before {
    /// As copal installs.
    Installed,
    /// As an older copal installed: the spare is there at rest.
    Older,
    /// As a shell release updates: no spare, and a folder with a random name.
    Shell,
    /// As a shell release commits: no folder.
    ShellAlone,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    pub(crate) before: Before,
    /// Branches that are there besides that of the present state, and afterwards.
    pub(crate) others: (u8, u8),
}

pub(crate) const CHANGES: [Change; 5] = [
    Change { before: Before::Installed, others: (1, 3) },
    Change { before: Before::Older, others: (2, 0) },
    Change { before: Before::Shell, others: (1, 4) },
    Change { before: Before::Shell, others: (1, 0) },
    Change { before: Before::ShellAlone, others: (0, 2) },
];

const OWN_NAMES: [&str; 3] = ["policy.primary", "policy.secondary", "policy.tertiary"];

pub(crate) fn branches(met: Digest, others: u8) -> Vec<Digest> {
    [met].into_iter().chain((0..others).map(|n| [n; 32])).collect()
}

/// A device: its TPM, and the partition that the firmware reads.
pub(crate) struct Device {
    pub(crate) emulated: Emulated,
    pub(crate) partition: tempfile::TempDir,
}

impl Device {
    pub(crate) fn policies(&self) -> Policies {
        Policies::at(self.partition.path().to_owned())
    }

    /// The state of this start.
    pub(crate) fn met(&self) -> Digest {
        policy::pcr(&self.emulated.tpm().pcrs().unwrap())
    }

    pub(crate) fn begin(&mut self, change: Change) {
        self.emulated.end_lockout();
        self.partition = tempfile::tempdir().unwrap();
        let branches = branches(self.met(), change.others.0);
        let mut tpm = self.emulated.tpm();
        let (indices, folder, names): (&[u32], _, _) = match change.before {
            Before::Installed => (&[INDEX], "policies.copal", OWN_NAMES),
            Before::Older => (&[INDEX, SPARE], "policies.copal", OWN_NAMES),
            Before::Shell => (&[INDEX], "EFI/policies.Xa1Bc", ["policy.pcr", "policy.pcr-efibin", "unused"]),
            Before::ShellAlone => (&[INDEX], "", [""; 3]),
        };
        for index in [INDEX, SPARE] {
            tpm.remove(index).unwrap();
        }
        for index in indices {
            tpm.store(*index, &policy::any(&branches), &(&SECRET).into()).unwrap();
        }
        if !folder.is_empty() {
            let folder = self.partition.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            for (name, branch) in names.iter().zip(&branches) {
                std::fs::write(folder.join(name), branch).unwrap();
            }
        }
    }

    pub(crate) fn change(&self, change: Change) -> copal::error::Result<()> {
        let (mut tpm, policies) = (self.emulated.tpm(), self.policies());
        let sealed = seal::read(&mut tpm, &policies)?;
        seal::seal(&mut tpm, &policies, &sealed, &branches(sealed.met, change.others.1))
    }

    /// Whether the scripts of an initramfs read the passphrase.
    pub(crate) fn unlocks_by_scripts(&self) -> bool {
        let folders = found(self.partition.path(), &|path| name(path).starts_with("policies."));
        assert!(folders.len() < 2, "{folders:?}");
        let mut files =
            folders.iter().flat_map(|folder| found(folder, &|path| path.is_file())).collect::<Vec<_>>();
        files.sort();
        let list: Vec<Digest> =
            files.iter().filter_map(|file| std::fs::read(file).unwrap().try_into().ok()).collect();
        list.len() == files.len() && self.unlocks(INDEX, &list)
    }

    /// An index whose policy is that of the list, or of the present state alone where there is none.
    fn unlocks(&self, index: u32, list: &[Digest]) -> bool {
        let mut tpm = self.emulated.tpm();
        let met = [self.met()];
        let list = if list.is_empty() { &met[..] } else { list };
        if !tpm.public(index).unwrap().is_some_and(|public| public.holds(&policy::any(list))) {
            return false;
        }
        list.contains(&met[0]) && tpm.unlock(index, list).unwrap().bytes() == &SECRET
    }

    pub(crate) fn has_spare(&self) -> bool {
        self.emulated.tpm().public(SPARE).unwrap().is_some()
    }

    /// Whether a program of this start that knows all policies gets this passphrase.
    pub(crate) fn gives(&self, index: u32, secret: &[u8; 32]) -> bool {
        let met = self.met();
        let lists = (0..5).map(|others| branches(met, others)).chain([foreign(met)]);
        let mut tpm = self.emulated.tpm();
        let Some(public) = tpm.public(index).unwrap() else { return false };
        lists
            .filter(|list| public.policy == policy::any(list))
            .any(|list| tpm.unlock(index, &list).is_ok_and(|found| found.bytes() == secret))
    }

    /// A start from a disk whose partitions take only these passphrases. The error is that of `copal unlock`, which then closes the TPM, so that the
    /// recovery passphrase can be asked for.
    pub(crate) fn start(&self, known: &[&[u8; 32]]) -> Result<Sealed, Error> {
        let (mut tpm, policies) = (self.emulated.tpm(), self.policies());
        let is_open = Cell::new(false);
        let takes = |secret: &Secret| Ok(known.contains(&secret.bytes()));
        let open = |secret: &Secret| {
            is_open.set(takes(secret)?);
            if is_open.get() {
                Ok(())
            } else {
                Err(Error::new(Code::EncryptionFailed, "no key slot takes it"))
            }
        };
        let done = seal::unlock(&mut tpm, &policies, &takes, &open, &|()| is_open.set(false));
        assert_eq!(is_open.get(), done.is_ok());
        if done.is_err() {
            seal::close(&mut tpm).unwrap();
        }
        done.map(|(sealed, ())| sealed)
    }

    /// Whether the scripts would read the first index at a start of these branches.
    fn holds(&self, branches: &[Digest]) -> bool {
        let list = self.policies().current().unwrap_or_default();
        let public = self.emulated.tpm().public(INDEX).unwrap();
        list.branches() == branches && public.is_some_and(|public| public.holds(&list.policy()))
    }

    fn assert_whole(&self, change: Change, what: &str) -> Sealed {
        let sealed =
            seal::read(&mut self.emulated.tpm(), &self.policies()).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(sealed.secret.bytes(), &SECRET, "{what}");
        let mut found = sealed.list.branches();
        found.sort_unstable();
        let lists = [change.others.0, change.others.1].map(|others| {
            let mut list = branches(sealed.met, others);
            list.sort_unstable();
            list
        });
        assert!(lists.contains(&found), "{what}: neither the old nor the new list: {found:?}");
        sealed
    }
}

/// A list of an attacker: this start meets it, and no index of the device has it.
pub(crate) fn foreign(met: Digest) -> Vec<Digest> {
    vec![met, [0xaa; 32]]
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// What is below the folder, not looking into what is found.
pub(crate) fn found(folder: &Path, is_it: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if is_it(&path) {
            all.push(path);
        } else if path.is_dir() {
            all.extend(found(&path, is_it));
        }
    }
    all
}

/// Counts the points that `work` reaches, and fails all from `cut` on.
pub(crate) fn cut(
    cut: usize,
    work: impl FnOnce() -> copal::error::Result<()>,
) -> (usize, copal::error::Result<()>) {
    let reached = Rc::new(Cell::new(0));
    let counter = reached.clone();
    let armed = crash_point::arm(move |_, _| {
        let n = counter.get();
        counter.set(n + 1);
        if n >= cut { Err(std::io::Error::other("the power is off")) } else { Ok(()) }
    });
    let done = work();
    drop(armed);
    (reached.get(), done)
}

/// How far the hooks of a shell release have come.
const BY_SHELL: [&str; 4] = ["index removed", "index written", "both folders", "done"];

#[test]
fn what_a_shell_release_seals_for_itself_is_undone_through_the_spare() {
    let test = "what_a_shell_release_seals_for_itself_is_undone_through_the_spare";
    let Some(emulated) = Emulated::new(test) else { return };
    let mut device = Device { emulated, partition: tempfile::tempdir().unwrap() };
    for (change, how_far) in
        CHANGES.iter().step_by(2).flat_map(|change| BY_SHELL.map(|how_far| (*change, how_far)))
    {
        let what = format!("{change:?}, {how_far}");
        device.begin(change);
        let (mut tpm, policies) = (device.emulated.tpm(), device.policies());
        let before = seal::read(&mut tpm, &policies).unwrap();
        seal::keep_aside(&mut tpm, &policies, &before).unwrap();
        assert!(device.unlocks_by_scripts(), "{what}");

        // For a start that is not this one.
        let other = [0xee; 32];
        tpm.remove(INDEX).unwrap();
        if how_far != "index removed" {
            tpm.store(INDEX, &policy::any(&[other]), &(&SECRET).into()).unwrap();
        }
        if ["both folders", "done"].contains(&how_far) {
            let old = found(device.partition.path(), &|path| name(path).starts_with("policies."));
            let folder = device.partition.path().join("policies.Zz9Aa");
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("policy.pcr"), other).unwrap();
            for old in old.iter().filter(|_| how_far == "done") {
                std::fs::remove_dir_all(old).unwrap();
            }
        }
        assert!(!device.unlocks(INDEX, &before.list.branches()), "{what}");

        let sealed = seal::read(&mut tpm, &policies).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!((sealed.index, sealed.is_whole), (SPARE, false), "{what}");
        assert_eq!(sealed.list.branches(), before.list.branches(), "{what}");
        // What is whole for the other start is not taken away from it.
        let is_whole = device.holds(&[other]);
        assert!(is_whole || how_far != "done", "{what}");
        assert_eq!(sealed.is_for_another, is_whole, "{what}");
        seal::repair(&mut tpm, &policies, &sealed).unwrap();
        assert_eq!(device.holds(&[other]), is_whole, "{what}");
        let both = [&before.list.branches()[..], &[other]].concat();
        let sealed = seal::read(&mut tpm, &policies).unwrap();
        seal::seal(&mut tpm, &policies, &sealed, &both).unwrap();
        assert!(device.unlocks_by_scripts(), "{what}");
        let sealed = seal::read(&mut tpm, &policies).unwrap();
        assert!(sealed.is_whole && sealed.list.branches().len() == both.len(), "{what}");
        assert!(!device.has_spare(), "{what}");
    }
}

/// At the end of an update to such a release, or of a rollback to it, nothing of this start is left; unless its hooks have left no start at all.
#[test]
fn what_was_kept_aside_is_gone_once_a_shell_release_has_sealed_for_itself() {
    let test = "what_was_kept_aside_is_gone_once_a_shell_release_has_sealed_for_itself";
    let Some(emulated) = Emulated::new(test) else { return };
    let mut device = Device { emulated, partition: tempfile::tempdir().unwrap() };
    let other = [0xee; 32];
    // Whether the index is there, and which lists; the last two are for its start: with a list, and with its state alone.
    for (index, lists, is_sealed) in [
        (false, &["old"][..], false),
        (true, &["old"], false),
        (true, &["old", "new"], false),
        (true, &["new"], true),
        (true, &[], true),
    ] {
        let what = format!("{index}, {lists:?}");
        device.begin(CHANGES[0]);
        let (mut tpm, policies) = (device.emulated.tpm(), device.policies());
        let before = seal::read(&mut tpm, &policies).unwrap();
        seal::keep_aside(&mut tpm, &policies, &before).unwrap();
        assert!(device.has_spare() && policies.second().unwrap().is_some(), "{what}");
        tpm.remove(INDEX).unwrap();
        if index {
            tpm.store(INDEX, &policy::any(&[other]), &(&SECRET).into()).unwrap();
        }
        let folder = device.partition.path().join("policies.Zz9Aa");
        if lists.contains(&"new") {
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("policy.pcr"), other).unwrap();
        }
        if !lists.contains(&"old") {
            std::fs::remove_dir_all(device.partition.path().join("policies.copal")).unwrap();
        }
        let sealed = seal::read(&mut tpm, &policies).unwrap();
        let ended = seal::end_aside(&mut tpm, &policies, &sealed);
        assert_eq!(ended.is_ok(), is_sealed, "{what}");
        assert_eq!(device.has_spare(), !is_sealed, "{what}");
        assert_eq!(device.policies().second().unwrap().is_some(), !is_sealed, "{what}");
        if is_sealed {
            assert!(!device.gives(INDEX, &SECRET), "{what}: this start");
            assert!(tpm.public(INDEX).unwrap().unwrap().holds(&other), "{what}: that of the release");
            continue;
        }
        // The update has failed: this start is unlocked as before.
        seal::take_back(&mut tpm, &policies, &sealed).unwrap();
        assert!(device.unlocks_by_scripts() && !device.has_spare(), "{what}");
    }
    // Hooks that have left everything as it was.
    device.begin(CHANGES[0]);
    let (mut tpm, policies) = (device.emulated.tpm(), device.policies());
    let before = seal::read(&mut tpm, &policies).unwrap();
    seal::keep_aside(&mut tpm, &policies, &before).unwrap();
    let sealed = seal::read(&mut tpm, &policies).unwrap();
    seal::end_aside(&mut tpm, &policies, &sealed).unwrap();
    assert!(device.unlocks_by_scripts() && !device.has_spare());
}

#[test]
fn another_start_that_is_sealed_for_stays_so_at_any_instant() {
    let test = "another_start_that_is_sealed_for_stays_so_at_any_instant";
    let Some(emulated) = Emulated::new(test) else { return };
    let mut device = Device { emulated, partition: tempfile::tempdir().unwrap() };
    let other = [0xee; 32];
    let begin = |device: &mut Device| {
        device.begin(CHANGES[0]);
        let (mut tpm, policies) = (device.emulated.tpm(), device.policies());
        let before = seal::read(&mut tpm, &policies).unwrap();
        seal::keep_aside(&mut tpm, &policies, &before).unwrap();
        tpm.remove(INDEX).unwrap();
        tpm.store(INDEX, &policy::any(&[other]), &(&SECRET).into()).unwrap();
        let folder = device.partition.path().join("policies.copal");
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("policy.pcr"), other).unwrap();
        before.list.branches()
    };
    let seal = |device: &Device, known: &[Digest]| {
        let (mut tpm, policies) = (device.emulated.tpm(), device.policies());
        let sealed = seal::read(&mut tpm, &policies)?;
        seal::seal(&mut tpm, &policies, &sealed, &[known, &[other]].concat())
    };
    let known = begin(&mut device);
    let (total, done) = cut(usize::MAX, || seal(&device, &known));
    done.unwrap();
    // Where it does not come, this start stays readable while the first index is taken back.
    let take_back = |device: &Device| {
        let (mut tpm, policies) = (device.emulated.tpm(), device.policies());
        let sealed = seal::read(&mut tpm, &policies)?;
        seal::take_back(&mut tpm, &policies, &sealed)
    };
    begin(&mut device);
    let (of_taking, done) = cut(usize::MAX, || take_back(&device));
    done.unwrap();
    assert!(device.unlocks_by_scripts());
    for n in cases("secure-boot", test, of_taking, 4) {
        begin(&mut device);
        drop(cut(n, || take_back(&device)));
        device.emulated.restart();
        let sealed = seal::read(&mut device.emulated.tpm(), &device.policies());
        assert_eq!(sealed.unwrap().secret.bytes(), &SECRET, "cut at {n} of {of_taking}");
    }
    for n in cases("secure-boot", test, total, 4) {
        let known = begin(&mut device);
        drop(cut(n, || seal(&device, &known)));
        device.emulated.restart();
        let policies = device.policies();
        let lists = [policies.current().ok(), policies.second().ok().flatten()];
        let has = |list: &List| {
            let is_in = |index| {
                let public = device.emulated.tpm().public(index).unwrap();
                public.is_some_and(|public| public.holds(&list.policy()))
            };
            list.branches().contains(&other) && [INDEX, SPARE].into_iter().any(is_in)
        };
        assert!(lists.iter().flatten().any(has), "cut at {n} of {total}");
    }
}

#[test]
fn the_passphrase_can_be_read_after_a_power_cut_at_any_instant_of_a_change() {
    let test = "the_passphrase_can_be_read_after_a_power_cut_at_any_instant_of_a_change";
    let Some(emulated) = Emulated::new(test) else { return };
    let mut device = Device { emulated, partition: tempfile::tempdir().unwrap() };
    let mut points = Vec::new();
    for (kind, change) in CHANGES.into_iter().enumerate() {
        device.begin(change);
        assert!(device.unlocks_by_scripts(), "{change:?}");
        let (total, done) = cut(usize::MAX, || device.change(change));
        done.unwrap();
        let sealed = device.assert_whole(change, "afterwards");
        assert!(sealed.is_whole && device.unlocks_by_scripts() && !device.has_spare(), "{change:?}");
        assert_eq!(sealed.list.branches().len(), 1 + usize::from(change.others.1));
        let again = cut(usize::MAX, || device.change(change));
        assert!(again.1.is_ok() && !device.partition.path().join(".policies.new").exists());
        points.extend((0..total).map(|n| (kind, n)));
    }
    let (mut tried, mut not_by_scripts) = (0, 0);
    for case in cases("secure-boot", test, points.len(), 6) {
        let (kind, n) = points[case];
        let what = format!("{:?}, cut at {n}", CHANGES[kind]);
        device.begin(CHANGES[kind]);
        let (_, done) = cut(n, || device.change(CHANGES[kind]));
        device.emulated.restart();
        let sealed = device.assert_whole(CHANGES[kind], &what);
        // At the end only the sessions of the TPM are given up.
        assert!(done.is_err() || sealed.is_whole, "{what}");
        not_by_scripts += usize::from(!device.unlocks_by_scripts());
        seal::repair(&mut device.emulated.tpm(), &device.policies(), &sealed).unwrap();
        assert!(device.assert_whole(CHANGES[kind], &what).is_whole && !device.has_spare(), "{what}");
        assert!(device.unlocks_by_scripts(), "{what}, repaired");
        tried += 1;
    }
    println!(
        "{tried} of {} cuts: each unlocked by copal, {not_by_scripts} not by the scripts of an initramfs",
        points.len()
    );
}

/// As `copal recover` on the device's own system, or on a medium, whose state gets no branch. After a power cut in between, the recovery passphrase opens
/// the disk.
#[test]
fn a_passphrase_is_replaced_and_the_spare_never_has_the_new_one() {
    const NEW: [u8; 32] = *b"another one of 32 bytes, as well";
    let test = "a_passphrase_is_replaced_and_the_spare_never_has_the_new_one";
    let Some(emulated) = Emulated::new(test) else { return };
    let mut device = Device { emulated, partition: tempfile::tempdir().unwrap() };
    let replace = |device: &Device, branches: &[Digest]| {
        seal::replace(&mut device.emulated.tpm(), &device.policies(), branches, &(&NEW).into())
    };
    let read = |device: &Device, what: &str| {
        let sealed = seal::read(&mut device.emulated.tpm(), &device.policies());
        sealed.unwrap_or_else(|e| panic!("{what}: {e}"))
    };
    let mut points = Vec::new();
    for (kind, change) in CHANGES.into_iter().enumerate() {
        device.begin(change);
        let branches = branches(device.met(), change.others.1);
        let (total, done) = cut(usize::MAX, || replace(&device, &branches));
        done.unwrap();
        let sealed = read(&device, "afterwards");
        assert!(
            sealed.is_whole
                && sealed.secret.bytes() == &NEW
                && sealed.list.branches().len() == branches.len()
        );
        points.extend((0..total).map(|n| (kind, n)));
    }
    for case in cases("secure-boot", test, points.len(), 4) {
        let (kind, n) = points[case];
        let what = format!("{:?}, cut at {n}", CHANGES[kind]);
        device.begin(CHANGES[kind]);
        let branches = branches(device.met(), CHANGES[kind].others.1);
        drop(cut(n, || replace(&device, &branches)));
        device.emulated.restart();
        // All partitions take both.
        if let Ok(sealed) = seal::read(&mut device.emulated.tpm(), &device.policies()) {
            assert!([SECRET, NEW].contains(sealed.secret.bytes()), "{what}");
        }
        assert!(!device.gives(SPARE, &NEW), "{what}");
        replace(&device, &branches).unwrap();
        let sealed = read(&device, &what);
        assert!(sealed.is_whole && sealed.secret.bytes() == &NEW && !device.has_spare(), "{what}");
    }

    // On a TPM that has nothing of it, and with lists that nothing can be read through.
    device.begin(CHANGES[0]);
    for index in [INDEX, SPARE] {
        device.emulated.tpm().remove(index).unwrap();
    }
    std::fs::create_dir(device.partition.path().join("policies.other")).unwrap();
    replace(&device, &[device.met()]).unwrap();
    assert!(read(&device, "nothing before").is_whole);
    for _ in 0..2 {
        replace(&device, &[[0xee; 32]]).unwrap();
        assert!(device.holds(&[[0xee; 32]]) && !device.partition.path().join(".policies.new").exists());
        assert!(seal::read(&mut device.emulated.tpm(), &device.policies()).is_err());
    }
}

#[test]
fn a_state_that_no_branch_names_does_not_give_the_passphrase() {
    let Some(emulated) = Emulated::new("a_state_that_no_branch_names_does_not_give_the_passphrase") else {
        return;
    };
    let mut device = Device { emulated, partition: tempfile::tempdir().unwrap() };
    device.begin(CHANGES[0]);
    let read = |device: &Device| seal::read(&mut device.emulated.tpm(), &device.policies());
    let sealed = read(&device).unwrap();
    let lacks = seal::seal(&mut device.emulated.tpm(), &device.policies(), &sealed, &branches([9; 32], 1));
    assert_eq!(lacks.unwrap_err().code().as_str(), "would-not-unlock");
    let many = seal::seal(&mut device.emulated.tpm(), &device.policies(), &sealed, &branches(sealed.met, 8));
    assert_eq!(many.unwrap_err().code().as_str(), "would-not-unlock");
    assert!(read(&device).unwrap().is_whole, "nothing was changed");

    std::fs::create_dir(device.partition.path().join("policies.other")).unwrap();
    let e = read(&device).unwrap_err();
    assert!(e.message().contains("two folders"), "{e}");
    std::fs::remove_dir(device.partition.path().join("policies.other")).unwrap();
    std::fs::write(device.partition.path().join("policies.copal/policy.zzz"), "short").unwrap();
    assert!(read(&device).unwrap_err().message().contains("policy.zzz"));
    std::fs::write(device.partition.path().join("policies.copal/policy.zzz"), [8; 32]).unwrap();
    assert!(read(&device).unwrap_err().message().contains("no list"));
    std::fs::remove_file(device.partition.path().join("policies.copal/policy.zzz")).unwrap();
    read(&device).unwrap();

    // The second list is enough, and the repair makes the first one of it.
    let folder = |name: &str| device.partition.path().join(name);
    std::fs::create_dir(folder(".policies.new")).unwrap();
    for name in ["policy.primary", "policy.secondary"] {
        std::fs::copy(folder("policies.copal").join(name), folder(".policies.new").join(name)).unwrap();
    }
    std::fs::write(folder("policies.copal/policy.secondary"), "").unwrap();
    let damaged = read(&device).unwrap();
    assert!(!damaged.is_whole);
    seal::repair(&mut device.emulated.tpm(), &device.policies(), &damaged).unwrap();
    assert!(read(&device).unwrap().is_whole && device.unlocks_by_scripts());

    device.emulated.extend(7);
    let e = read(&device).unwrap_err();
    assert_eq!(e.code().as_str(), "would-not-unlock");
    assert!(e.message().contains("the state of this start"), "{e}");
    let mut tpm: Tpm = device.emulated.tpm();
    tpm.remove(INDEX).unwrap();
    drop(tpm);
    assert!(read(&device).unwrap_err().message().contains("no index"));
}

#[test]
fn a_start_that_is_not_unlocked_says_which_pcr_differs() {
    let Some(emulated) = Emulated::new("a_start_that_is_not_unlocked_says_which_pcr_differs") else { return };
    let mut device = Device { emulated, partition: tempfile::tempdir().unwrap() };
    device.begin(CHANGES[0]);
    let sealed = seal::read(&mut device.emulated.tpm(), &device.policies()).unwrap();
    // In files of their own.
    let branches = [sealed.met, [5; 32], [6; 32]];
    seal::seal(&mut device.emulated.tpm(), &device.policies(), &sealed, &branches).unwrap();
    for differing in [0, 2, 3, 7] {
        device.emulated.restart();
        device.emulated.extend(differing);
        let tpm = &mut device.emulated.tpm();
        let values = tpm.pcrs().unwrap();
        let differences = device.policies().current().unwrap().differences(&values);
        // The file that was there before has a name that says nothing.
        let expected = u8::try_from(differing).unwrap();
        let said = differences.iter().filter(|one| !one.is_empty()).collect::<Vec<_>>();
        assert!(said.len() == 2 && said.iter().all(|one| **one == [expected]), "{differences:?}");
        let message = seal::read(tpm, &device.policies()).unwrap_err().message();
        for (pcr, count) in [0, 2, 3, 7].map(|pcr| (pcr, message.matches(&format!("PCR {pcr} ")).count())) {
            assert_eq!(count > 0, pcr == differing, "{message}");
        }
    }
}

/// A damaged file system may show a file of any length.
#[test]
fn a_file_longer_than_any_policy_is_not_read_to_its_end() {
    let partition = tempfile::tempdir().unwrap();
    let folder = partition.path().join("policies.copal");
    std::fs::create_dir(&folder).unwrap();
    std::fs::File::create(folder.join("policy.00")).unwrap().set_len(1 << 40).unwrap();
    let error = Policies::at(partition.path().to_owned()).current().unwrap_err();
    assert!(format!("{error:?}").contains("it has more than 4096 bytes"), "{error:?}");
}

/// The initramfs takes none of two lists, so a write that leaves both has failed.
#[test]
fn a_list_that_cannot_be_removed_is_an_error() {
    let partition = tempfile::tempdir().unwrap();
    let folders = ["EFI/policies.copal/folder", "policies.x/folder"].map(|path| partition.path().join(path));
    for folder in &folders {
        std::fs::create_dir_all(folder).unwrap();
    }
    let policies = Policies::at(partition.path().to_owned());
    let error =
        policies.write_current(&List::of(&[[1; 32]], &List::default(), &Default::default())).unwrap_err();
    assert!(error.message().contains("cannot remove"), "{error:?}");
    for folder in &folders {
        std::fs::remove_dir(folder).unwrap();
    }
    let list = List::of(&[[1; 32]], &List::default(), &Default::default());
    policies.write_current(&list).unwrap();
    assert_eq!(policies.current().unwrap(), list);
}
