//! Every change of the boot state, stopped before each of its calls: the old or the new selection is there, never none.

use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use copal::boot_state::change::{Step, carry_out};
use copal::boot_state::{self, BootState, Named};
use copal::slot::{Root, Slot};
use copal::sys::file::{self, Content, Folder, InPlace, Outcome, Steps, change_in_place, is_temporary};

use super::support::{Device, block, root, state};
use crate::kit::let_go::let_go;

/// A folder that takes down every call, and does not do some.
pub(crate) struct Rigged {
    folder: Folder,
    pub(crate) calls: RefCell<Vec<String>>,
    /// The first call that is not done.
    from: usize,
    /// How many are not done.
    count: usize,
    pub(crate) met: Cell<bool>,
    /// Whether there is no room for anything new.
    full: Cell<bool>,
}

impl Rigged {
    pub(crate) fn new(device: &Device, folder: &Path, from: usize, count: usize) -> Rigged {
        assert!(folder.starts_with(device.paths.boot()));
        let folder = Folder::open(folder).unwrap();
        Rigged {
            folder,
            calls: RefCell::default(),
            from,
            count,
            met: Cell::new(false),
            full: Cell::new(false),
        }
    }

    fn call<T>(&self, what: &str, name: &OsStr, does: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let name = if is_temporary(name) { "T" } else { name.to_str().unwrap() };
        let n = self.calls.borrow().len();
        self.calls.borrow_mut().push(format!("{what} {name}").trim_end().to_owned());
        if n >= self.from && n - self.from < self.count {
            self.met.set(true);
            return Err(io::Error::other("as ordered"));
        }
        does()
    }
}

impl Steps for Rigged {
    fn names(&self) -> io::Result<Vec<OsString>> {
        self.call("names", "".as_ref(), || self.folder.names())
    }
    fn same_name(&self, a: &OsStr, b: &OsStr) -> bool {
        a == b
    }
    fn holds(&self, name: &OsStr, content: &Content<'_>) -> io::Result<bool> {
        self.call("holds", name, || self.folder.holds(name, content))
    }
    fn hold(&self, name: &OsStr) -> io::Result<Option<File>> {
        self.call("hold", name, || self.folder.hold(name))
    }
    fn create(&self, name: &OsStr, content: &Content<'_>) -> io::Result<File> {
        self.call("create", name, || {
            if self.full.get() {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                self.folder.create(name, content)
            }
        })
    }
    fn write(&self, file: &File, content: &Content<'_>) -> io::Result<()> {
        // Half of it is there when it fails.
        if let Content::Bytes(bytes) = content {
            self.folder.write(file, &Content::Bytes(&bytes[..bytes.len() / 2]))?;
        }
        self.call("write", "".as_ref(), || self.folder.write(file, content))
    }
    fn sync(&self, file: &File) -> io::Result<()> {
        self.call("sync", "".as_ref(), || self.folder.sync(file))
    }
    fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        self.call("rename over", to, || self.folder.rename(from, to))
    }
    fn unlink(&self, name: &OsStr) -> io::Result<()> {
        self.call("unlink", name, || self.folder.unlink(name))
    }
    fn make(&self, name: &OsStr) -> io::Result<File> {
        self.call("make", name, || self.folder.make(name))
    }
    fn hold_folder(&self, name: &OsStr) -> io::Result<File> {
        self.call("hold", name, || self.folder.hold_folder(name))
    }
    fn unlink_folder(&self, name: &OsStr) -> io::Result<()> {
        self.call("unlink", name, || self.folder.unlink_folder(name))
    }
    fn sync_folder(&self) -> io::Result<()> {
        self.call("sync folder", "".as_ref(), || self.folder.sync_folder())
    }
    fn flush(&self) -> io::Result<()> {
        self.call("flush", "".as_ref(), || self.folder.flush())
    }
    fn close(&self, file: File) -> io::Result<()> {
        self.call("close", "".as_ref(), || self.folder.close(file))
    }
}

impl InPlace for Rigged {
    fn open_in_place(&self, name: &OsStr) -> io::Result<File> {
        self.call("open", name, || self.folder.open_in_place(name))
    }
    fn write_sector(&self, file: &File, index: usize, sector: &[u8]) -> io::Result<()> {
        self.call(&format!("sector {index}"), "".as_ref(), || self.folder.write_sector(file, index, sector))
    }
}

type Files = [(&'static str, Vec<u8>)];

fn device(files: &Files) -> Device {
    Device::new(&files.iter().map(|(name, content)| (*name, content.as_slice())).collect::<Vec<_>>())
}

fn now(device: &Device) -> BootState {
    boot_state::detect(&device.paths).unwrap().read().unwrap()
}

/// The calls of a change that is not stopped.
fn calls(files: &Files, to: &Root) -> Vec<String> {
    let device = device(files);
    let plan = boot_state::detect(&device.paths).unwrap().plan(to, true).unwrap();
    let rigged = Rigged::new(&device, &plan.folder, usize::MAX, 0);
    carry_out(&rigged, &plan.steps).unwrap();
    rigged.calls.take()
}

/// Stops the change before each call, for good or for this call only; then does it once more, whole.
fn stopped_everywhere(files: &Files, to: &Root, allowed: &[BootState]) {
    let whole = calls(files, to).len();
    for count in [usize::MAX, 1] {
        for from in 0..whole {
            let device = device(files);
            let plan = boot_state::detect(&device.paths).unwrap().plan(to, true).unwrap();
            let rigged = Rigged::new(&device, &plan.folder, from, count);
            let result = carry_out(&rigged, &plan.steps);
            let context = format!("{count} from {from} of {:?}", rigged.calls.borrow());
            assert!(rigged.met.get() && result.is_err(), "{context}");
            let state = now(&device);
            assert!(allowed.contains(&state), "{state:?}: {context}");
            let_go(&plan.folder);
            boot_state::detect(&device.paths).unwrap().set(to, true).unwrap();
            assert_eq!(now(&device), *allowed.last().unwrap(), "{context}");
            let all = std::fs::read_dir(&plan.folder).unwrap();
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

/// A device that goes back must not need room for that: U-Boot has none for its count either, and would start the new system for ever.
#[test]
fn a_full_boot_partition_is_changed_in_place() {
    let device = Device::new(&[("resinOS_uEnv.txt", b"resin_root_part=3\nupgrade_available=1\n")]);
    let plan = boot_state::detect(&device.paths).unwrap().plan(&root(Slot::A, 2), false).unwrap();
    let rigged = Rigged::new(&device, &plan.folder, usize::MAX, 0);
    rigged.full.set(true);
    carry_out(&rigged, &plan.steps).unwrap();
    assert_eq!(now(&device), state(Named::Index(2), 0, false));
    let calls = rigged.calls.take();
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
        let plan = boot_state::detect(&device.paths).unwrap().plan(&root(Slot::A, 2), false).unwrap();
        let from = if full { usize::MAX } else { writes(&device, &plan.steps) };
        let rigged = Rigged::new(&device, &plan.folder, from, 1);
        rigged.full.set(full);
        carry_out(&rigged, &plan.steps).unwrap_err();
        assert_eq!(device.names(), ["bootcount.env", "resinOS_uEnv.txt"], "{:?}", rigged.calls.borrow());
        assert_eq!(
            (device.read("bootcount.env"), device.read("resinOS_uEnv.txt")),
            (count.to_vec(), uenv.to_vec())
        );
    }
}

/// Which call is the first that writes.
fn writes(device: &Device, steps: &[Step]) -> usize {
    let copy = Device::new(&[]);
    for name in device.names() {
        copy.write(&name, &device.read(&name));
    }
    let rigged = Rigged::new(&copy, &copy.paths.boot(), usize::MAX, 0);
    carry_out(&rigged, steps).unwrap();
    rigged.calls.take().iter().position(|c| c.starts_with("write")).unwrap()
}

#[test]
fn a_fresh_uboot() {
    let old = state(Named::Index(2), 0, false);
    let new = state(Named::Index(3), 0, true);
    stopped_everywhere(&[], &root(Slot::B, 3), &[old, new]);
}

#[test]
fn grub_in_place() {
    let files = [("EFI/BOOT/grubenv", block("bootcount=2\nresin_root_part=2\nupgrade_available=0\n"))];
    let old = state(Named::Index(2), 2, false);
    let new = state(Named::Index(3), 0, true);
    let to = root(Slot::B, 3);
    let wanted = ["names", "holds grubenv", "open grubenv", "sector 0", "flush", "close", "holds grubenv"];
    assert_eq!(calls(&files, &to), wanted);
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
    let (old, new) = (state(Named::Slot(Slot::A), 1, true), state(Named::Slot(Slot::B), 0, true));
    stopped_everywhere(&files, &root(Slot::B, 3), &[old, new]);
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
    let plan = boot_state::detect(&device.paths).unwrap().plan(&root(Slot::B, 3), true).unwrap();
    let rigged = Rigged::new(&device, &plan.folder, usize::MAX, 0);
    carry_out(&rigged, &plan.steps).unwrap();
    let calls = rigged.calls.take();
    let wanted = [
        &format!("hold {side}")[..],
        &format!("unlink {side}"),
        "sync folder",
        "flush",
        "close",
        "flush",
        "holds bootenv",
    ];
    assert_eq!(&calls[1..8], wanted);
    assert_eq!(device.names(), ["bootenv"]);
}

/// A medium that writes half a sector, or nothing, and says it is done.
struct Lying {
    rigged: Rigged,
    keeps: usize,
}

impl Steps for Lying {
    fn names(&self) -> io::Result<Vec<OsString>> {
        self.rigged.names()
    }
    fn same_name(&self, a: &OsStr, b: &OsStr) -> bool {
        a == b
    }
    fn holds(&self, name: &OsStr, content: &Content<'_>) -> io::Result<bool> {
        self.rigged.holds(name, content)
    }
    fn hold(&self, name: &OsStr) -> io::Result<Option<File>> {
        self.rigged.hold(name)
    }
    fn create(&self, name: &OsStr, content: &Content<'_>) -> io::Result<File> {
        self.rigged.create(name, content)
    }
    fn write(&self, file: &File, content: &Content<'_>) -> io::Result<()> {
        self.rigged.write(file, content)
    }
    fn sync(&self, file: &File) -> io::Result<()> {
        self.rigged.sync(file)
    }
    fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        self.rigged.rename(from, to)
    }
    fn unlink(&self, name: &OsStr) -> io::Result<()> {
        self.rigged.unlink(name)
    }
    fn make(&self, name: &OsStr) -> io::Result<File> {
        self.rigged.make(name)
    }
    fn hold_folder(&self, name: &OsStr) -> io::Result<File> {
        self.rigged.hold_folder(name)
    }
    fn unlink_folder(&self, name: &OsStr) -> io::Result<()> {
        self.rigged.unlink_folder(name)
    }
    fn sync_folder(&self) -> io::Result<()> {
        self.rigged.sync_folder()
    }
    fn flush(&self) -> io::Result<()> {
        self.rigged.flush()
    }
}

impl InPlace for Lying {
    fn open_in_place(&self, name: &OsStr) -> io::Result<File> {
        self.rigged.open_in_place(name)
    }
    fn write_sector(&self, file: &File, index: usize, sector: &[u8]) -> io::Result<()> {
        file.write_all_at(&sector[..self.keeps], u64::try_from(index * 512).unwrap())
    }
}

#[test]
fn what_the_medium_did_not_keep_is_found() {
    for keeps in [0, 40] {
        let old = block("bootcount=2\nresin_root_part=2\nupgrade_available=0\n");
        let device = Device::new(&[("grub/grubenv", &old)]);
        let plan = boot_state::detect(&device.paths).unwrap().plan(&root(Slot::B, 3), true).unwrap();
        let rigged = Rigged::new(&device, &plan.folder, usize::MAX, 0);
        let e = carry_out(&Lying { rigged, keeps }, &plan.steps).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidData, "{e}");
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
