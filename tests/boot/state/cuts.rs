//! Every change of the boot state, stopped before each of its calls: the old or the new selection is always there.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::rc::Rc;

use copal::boot_state::envblock::Damage;
use copal::boot_state::{self, Backend, BootState, Named};
use copal::slot::{Root, Slot};
use copal::sys::crash_point::{self, Armed};
use copal::sys::file::{self, Folder, Outcome, change_in_place, is_temporary};

use super::support::{Device, block, root, state, unselected};
use crate::kit::let_go::let_go;

/// What the calls of this thread are, some of which are not made; until it is dropped.
pub(crate) struct Rigged {
    _armed: Armed,
    seen: Rc<Seen>,
}

#[derive(Default)]
struct Seen {
    calls: RefCell<Vec<String>>,
    met: Cell<bool>,
    /// Whether the file system is full.
    full: Cell<bool>,
    temporary: RefCell<PathBuf>,
}

impl Rigged {
    /// `from`: the first call that is not done. `count`: how many are not done.
    pub(crate) fn new(from: usize, count: usize) -> Rigged {
        let seen: Rc<Seen> = Rc::default();
        let all = seen.clone();
        let armed = crash_point::arm(move |step, path| all.call(step, path, from, count));
        Rigged { _armed: armed, seen }
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.seen.calls.borrow().clone()
    }

    pub(crate) fn met(&self) -> bool {
        self.seen.met.get()
    }
}

impl Seen {
    fn call(&self, step: &str, path: &std::path::Path, from: usize, count: usize) -> io::Result<()> {
        let (verb, object) = step.split_once(' ').unwrap_or((step, ""));
        let name = path.file_name().unwrap();
        let name = if is_temporary(name) { "T" } else { name.to_str().unwrap() };
        let what = match verb {
            "twin" | "owners" => return Ok(()),
            "names" | "sweep" | "write" => verb.to_owned(),
            "free" => "close".to_owned(),
            "sync" | "flush" | "close" | "sector" => step.to_owned(),
            "rename" => format!("rename over {name}"),
            _ => format!("{verb} {name}"),
        };
        let n = self.calls.borrow().len();
        self.calls.borrow_mut().push(what);
        if n >= from && n - from < count {
            self.met.set(true);
            if verb == "write" {
                // Half of it is there when it fails.
                let half = vec![b'?'; object.parse::<usize>().unwrap() / 2];
                std::fs::write(&*self.temporary.borrow(), half).unwrap();
            }
            return Err(io::Error::other("as ordered"));
        }
        if verb == "create" {
            path.clone_into(&mut self.temporary.borrow_mut());
            if self.full.get() {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        Ok(())
    }
}

type Files = [(&'static str, Vec<u8>)];

fn device(files: &Files) -> Device {
    Device::new(&files.iter().map(|(name, content)| (*name, content.as_slice())).collect::<Vec<_>>())
}

fn backend(device: &Device) -> Box<dyn Backend> {
    boot_state::detect(&device.paths).unwrap()
}

fn now(device: &Device) -> BootState {
    backend(device).read().unwrap()
}

/// The calls of a change that is not stopped.
fn calls(files: &Files, to: &Root) -> Vec<String> {
    let device = device(files);
    let backend = backend(&device);
    let rigged = Rigged::new(usize::MAX, 0);
    backend.set(to, true).unwrap();
    rigged.calls()
}

/// Stops the change before each call, for good or for this call only; then does it once more, whole.
fn stopped_everywhere(files: &Files, to: &Root, allowed: &[BootState]) {
    let whole = calls(files, to).len();
    for count in [usize::MAX, 1] {
        for from in 0..whole {
            let device = device(files);
            let backend = backend(&device);
            let folder = backend.file().parent().unwrap();
            let rigged = Rigged::new(from, count);
            let result = backend.set(to, true);
            let context = format!("{count} from {from} of {:?}", rigged.calls());
            assert!(rigged.met() && result.is_err(), "{context}");
            drop(rigged);
            let state = now(&device);
            assert!(allowed.contains(&state), "{state:?}: {context}");
            let_go(folder);
            backend.set(to, true).unwrap();
            assert_eq!(now(&device), *allowed.last().unwrap(), "{context}");
            let all = std::fs::read_dir(folder).unwrap();
            let left = all.map(|e| e.unwrap().file_name()).find(|n| is_temporary(n));
            assert_eq!(left, None, "{context}");
        }
    }
}

#[test]
fn uboot() {
    let uenv = b"resin_root_part=2\nupgrade_available=0\n".to_vec();
    let files = [("resinOS_uEnv.txt", uenv), ("bootcount.env", b"bootcount=4\n\0".to_vec())];
    let old = state(Named::Index(2), 4, false);
    let cleared = BootState { bootcount: 0, ..old.clone() };
    let new = state(Named::Index(3), 0, true);
    stopped_everywhere(&files, &root(Slot::B, 3), &[old, cleared, new]);
}

#[test]
fn the_order_of_uboot() {
    let files = [
        ("resinOS_uEnv.txt", b"resin_root_part=2\n".to_vec()),
        ("bootcount.env", b"bootcount=4\n\0".to_vec()),
        ("bootcount.env.old", b"bootcount=4\n\0".to_vec()),
    ];
    let calls = calls(&files, &root(Slot::B, 3));
    let at = |what: &str| calls.iter().position(|c| c == what).unwrap_or_else(|| panic!("{what}: {calls:?}"));
    for count in ["unlink bootcount.env", "unlink bootcount.env.old"] {
        let after = &calls[at(count)..at("rename over resinOS_uEnv.txt")];
        assert_eq!(&after[1..3], ["sync folder", "flush"], "{calls:?}");
    }
    let after = &calls[at("rename over resinOS_uEnv.txt")..];
    assert_eq!(after[1..4], ["sync", "sync folder", "flush"]);
    // Looked for once more in the end.
    assert_eq!(after.last().unwrap(), "names");
}

/// A rollback must not need space: U-Boot then has no space for its count either, and would start the new system for ever.
#[test]
fn a_full_boot_partition_is_changed_in_place() {
    let device = Device::new(&[("resinOS_uEnv.txt", b"resin_root_part=3\nupgrade_available=1\n")]);
    let backend = backend(&device);
    let rigged = Rigged::new(usize::MAX, 0);
    rigged.seen.full.set(true);
    backend.set(&root(Slot::A, 2), false).unwrap();
    assert_eq!(now(&device), state(Named::Index(2), 0, false));
    let calls = rigged.calls();
    assert_eq!(
        calls.iter().filter(|c| c.starts_with("sector")).collect::<Vec<_>>(),
        ["sector 0"],
        "{calls:?}"
    );
    assert_eq!(device.names(), ["resinOS_uEnv.txt"]);
}

/// Where nobody can select the other root, only U-Boot's count leads there.
#[test]
fn what_cannot_be_written_costs_no_count() {
    let count = b"bootcount=2\n\0".as_slice();
    // Longer afterwards, so that there is no way without room; and a medium that does not keep what it is given.
    for (uenv, full) in
        [(&b"resin_root_part=3\n"[..], true), (b"resin_root_part=3\nupgrade_available=1\n", false)]
    {
        let device = Device::new(&[("resinOS_uEnv.txt", uenv), ("bootcount.env", count)]);
        let backend = backend(&device);
        let from = if full { usize::MAX } else { writes(&device) };
        let rigged = Rigged::new(from, 1);
        rigged.seen.full.set(full);
        backend.set(&root(Slot::A, 2), false).unwrap_err();
        assert_eq!(device.names(), ["bootcount.env", "resinOS_uEnv.txt"], "{:?}", rigged.calls());
        assert_eq!(
            (device.read("bootcount.env"), device.read("resinOS_uEnv.txt")),
            (count.to_vec(), uenv.to_vec())
        );
    }
}

/// Which call is the first that writes.
fn writes(device: &Device) -> usize {
    let copy = Device::new(&[]);
    for name in device.names() {
        copy.write(&name, &device.read(&name));
    }
    let backend = backend(&copy);
    let rigged = Rigged::new(usize::MAX, 0);
    backend.set(&root(Slot::A, 2), false).unwrap();
    rigged.calls().iter().position(|c| c.starts_with("write")).unwrap()
}

#[test]
fn a_fresh_uboot() {
    let old = unselected(Named::Index(2), None);
    let new = state(Named::Index(3), 0, true);
    stopped_everywhere(&[], &root(Slot::B, 3), &[old, new]);
}

#[test]
fn grub_with_the_selection_in_its_configuration() {
    let config = b"resin_root_part=2\nupgrade_available=0\nload_env\n".to_vec();
    let files = [("EFI/BOOT/grub.cfg", config), ("EFI/BOOT/grubenv", block("bootcount=2\n"))];
    let old = state(Named::Index(2), 2, false);
    let cleared = BootState { bootcount: 0, ..old.clone() };
    let new = state(Named::Index(3), 0, true);
    stopped_everywhere(&files, &root(Slot::B, 3), &[old, cleared, new]);
}

#[test]
fn grub_in_place() {
    let files = [("EFI/BOOT/grubenv", block("bootcount=2\nresin_root_part=2\nupgrade_available=0\n"))];
    let old = state(Named::Index(2), 2, false);
    let new = state(Named::Index(3), 0, true);
    let to = root(Slot::B, 3);
    let wanted = ["names", "holds grubenv", "open grubenv", "sector 0", "flush", "close", "holds grubenv"];
    let calls = calls(&files, &to);
    let (looks, change) = calls.split_at(calls.len() - wanted.len());
    assert_eq!(change, wanted);
    assert_eq!(looks, ["sweep", "names", "names", "names", "hold grubenv"]);
    stopped_everywhere(&files, &to, &[old, new]);
}

#[test]
fn the_balena_bootloader_in_place() {
    let files = [("bootenv", block("resin_root_part=A\nkernel_override_abi=12\n"))];
    let old = state(Named::Slot(Slot::A), 0, false);
    let new = state(Named::Slot(Slot::B), 0, true);
    stopped_everywhere(&files, &root(Slot::B, 3), &[old, new]);
}

/// A value that gets longer moves what follows into the next sector; the keys of the decision lie apart: a replacement.
#[test]
fn grub_by_replacement() {
    let long = "x".repeat(480);
    let files = [(
        "grub/grubenv",
        block(&format!("bootcount=2\nabi={long}\nresin_root_part=2\nupgrade_available=1\n")),
    )];
    let to = root(Slot::B, 3);
    assert!(calls(&files, &to).contains(&"rename over grubenv".to_owned()));
    let (old, new) = (state(Named::Index(2), 2, true), state(Named::Index(3), 0, true));
    stopped_everywhere(&files, &to, &[old, new]);
}

#[test]
fn a_damaged_block() {
    let files = [("bootenv", b"bootcount=1\nresin_root_part=A\nupgrade_available=1\n".to_vec())];
    let old = unselected(Named::Other(String::new()), Some(Damage::Size(50)));
    let new = state(Named::Slot(Slot::B), 0, true);
    stopped_everywhere(&files, &root(Slot::B, 3), &[old, new]);
    // A line at which U-Boot stops.
    let files = [("resinOS_uEnv.txt", b"resin_root_part=2\n=x\nupgrade_available=0\n".to_vec())];
    let old = BootState { damage: Some(Damage::Nameless), ..state(Named::Index(2), 0, false) };
    stopped_everywhere(&files, &root(Slot::B, 3), &[old, state(Named::Index(3), 0, true)]);
}

#[test]
fn an_old_grub() {
    let files = [("grub/grub.cfg", b"linux /x root=LABEL=resin-rootA\n".to_vec())];
    let (old, new) = (state(Named::Slot(Slot::A), 0, false), state(Named::Slot(Slot::B), 0, false));
    stopped_everywhere(&files, &root(Slot::B, 3), &[old, new]);
}

/// `fatrw` would put a stale side file over what was written in place.
#[test]
fn side_files_go_before_the_first_sector() {
    let side = ".bootenv.0123abcd.00112233445566778899aabbccddeeff.md5sum";
    let device = Device::new(&[("bootenv", &block("resin_root_part=A\n")), (side, b"stale")]);
    let backend = backend(&device);
    let rigged = Rigged::new(usize::MAX, 0);
    backend.set(&root(Slot::B, 3), true).unwrap();
    let calls = rigged.calls();
    let at = |what: &str| calls.iter().position(|c| c == what).unwrap_or_else(|| panic!("{what}: {calls:?}"));
    let unlink = at(&format!("unlink {side}"));
    assert_eq!(calls[unlink + 1..unlink + 5], ["sync folder", "flush", "close", "flush"], "{calls:?}");
    assert!(unlink < at("open bootenv"), "{calls:?}");
    assert_eq!(device.names(), ["bootenv"]);
}

#[test]
fn what_the_medium_did_not_keep_is_found() {
    for keeps in [0, 40] {
        let old = block("bootcount=2\nresin_root_part=2\nupgrade_available=0\n");
        let device = Device::new(&[("grub/grubenv", &old)]);
        let backend = backend(&device);
        // It says that the sector is written when half of it is, or nothing.
        let (file, mut written) = (device.at("grub/grubenv"), false);
        let _armed = crash_point::arm(move |step, _| {
            if std::mem::replace(&mut written, step == "sector 0") {
                let file = std::fs::File::options().write(true).open(&file)?;
                file.write_all_at(&old[keeps..512], u64::try_from(keeps).unwrap())?;
            }
            Ok(())
        });
        let e = backend.set(&root(Slot::B, 3), true).unwrap_err();
        assert!(e.message().contains("what was read back is not what was written"), "{e}");
    }
}

#[test]
fn only_a_file_that_is_as_it_was_read_is_changed_in_place() {
    let (old, new) = (block("a=1\n"), block("a=2\n"));
    let device = Device::new(&[("f", &block("a=9\n"))]);
    let folder = Folder::open(&device.paths.boot()).unwrap();
    let change =
        |old: &[u8], new: &[u8], order: &[usize]| change_in_place(&folder, "f".as_ref(), old, new, order);
    assert_eq!(change(&old, &new, &[0]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    for (old, new, order) in [(&old[..], &new[..], &[][..]), (&old, &new, &[0, 1]), (&old, &new[..512], &[0])]
    {
        assert_eq!(change(old, new, order).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    assert_eq!(device.read("f"), block("a=9\n"));
    device.write("f", &old);
    assert_eq!(change(&old, &new, &[0]).unwrap(), Outcome::Written);
    assert_eq!(change(&new, &new, &[]).unwrap(), Outcome::Unchanged);
    assert_eq!(device.read("f"), new);
    assert_eq!(file::differing(&old, &new), [0]);
    std::os::unix::fs::symlink("f", device.at("link")).unwrap();
    change_in_place(&folder, "link".as_ref(), &new, &old, &[0]).unwrap_err();
    assert_eq!(device.read("f"), new);
}
