//! A device made of files: what lasts on it, what its bootloader does, and what its programs see.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::tree::{GIB, MIB, Tree};
use copal::config::paths::Paths;
use copal::slot::Slot;
use copal::sys::crash_point::{self, Armed};
use copal::sys::file;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loader {
    Uboot,
    Grub,
    Balena,
}

impl Loader {
    /// The highest count at which the bootloader still boots the selected root (3 for U-Boot; a count of 2 is one too many for GRUB, 3 for
    /// the balena bootloader).
    fn limit(self) -> u32 {
        match self {
            Loader::Uboot => 3,
            Loader::Grub => 1,
            Loader::Balena => 2,
        }
    }

    fn file(self) -> &'static str {
        match self {
            Loader::Uboot => "mnt/boot/resinOS_uEnv.txt",
            Loader::Grub => "mnt/boot/EFI/BOOT/grubenv",
            Loader::Balena => "mnt/boot/bootenv",
        }
    }

    pub(crate) fn hook(self) -> &'static str {
        match self {
            Loader::Uboot => "99-resin-uboot",
            Loader::Grub => "99-resin-grub",
            Loader::Balena => "99-balena-bootloader",
        }
    }
}

/// What lasts, by path: boot partition, state partition, and the content of the two slots.
pub(crate) type Lasting = BTreeMap<String, Vec<u8>>;

pub(crate) fn slot_file(slot: Slot) -> String {
    format!("mnt/slots/{slot}")
}

pub(crate) fn content(state: &Lasting, slot: Slot) -> &str {
    std::str::from_utf8(&state[&slot_file(slot)]).unwrap()
}

/// The boot selection, read without copal's code: root, on trial, count.
pub(crate) fn selection(loader: Loader, state: &Lasting) -> (Slot, bool, u32) {
    let value = |file: &str, key: &str| -> Option<String> {
        let text = String::from_utf8_lossy(state.get(file)?).into_owned();
        let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))?;
        Some(line.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
    };
    let root = match value(loader.file(), "resin_root_part").as_deref() {
        Some("2" | "A") => Slot::A,
        Some("3" | "B") => Slot::B,
        other => panic!("{loader:?} selects {other:?}"),
    };
    let trial = value(loader.file(), "upgrade_available").is_some_and(|v| v == "1");
    let count = match loader {
        Loader::Uboot => value("mnt/boot/bootcount.env", "bootcount"),
        Loader::Grub | Loader::Balena => value(loader.file(), "bootcount"),
    };
    (root, trial, count.and_then(|c| u32::from_str_radix(&c, 16).ok()).unwrap_or(0))
}

fn count(loader: Loader, state: &mut Lasting, count: u32) {
    match loader {
        Loader::Uboot => {
            state.insert("mnt/boot/bootcount.env".into(), format!("bootcount={count:x}\n\0").into_bytes());
        }
        Loader::Grub | Loader::Balena => {
            let block = String::from_utf8(state[loader.file()].clone()).unwrap();
            let counted: String = block
                .split_inclusive('\n')
                .map(|l| if l.starts_with("bootcount=") { format!("bootcount={count}\n") } else { l.into() })
                .collect();
            assert_eq!(counted.len(), block.len(), "{block}");
            state.insert(loader.file().into(), counted.into_bytes());
        }
    }
}

/// From power-on to userspace: the slot that boots, or why none does. `lives`: which slots reach userspace.
pub(crate) fn boot(
    loader: Loader,
    state: &mut Lasting,
    lives: impl Fn(&Lasting, Slot) -> bool,
) -> Result<Slot, &'static str> {
    for _ in 0..12 {
        let (root, trial, mut n) = selection(loader, state);
        if trial {
            n = (n + 1).min(9);
            count(loader, state, n);
        }
        let slot = if n > loader.limit() { root.other() } else { root };
        if !content(state, slot).starts_with('v') {
            return Err("selects a slot that is not complete");
        }
        if lives(state, slot) {
            return Ok(slot);
        }
        if !trial {
            return Err("boots no system at all");
        }
    }
    Err("boots no system at all")
}

pub(crate) struct Machine {
    tree: Tree,
    pub loader: Loader,
    pub running: Slot,
    seen: Rc<RefCell<Seen>>,
    armed: RefCell<Option<Armed>>,
}

#[derive(Default)]
struct Seen {
    /// What lasted before each change, and so after a power cut.
    cuts: Vec<Lasting>,
    /// What lasts now, without the change announced last.
    now: Lasting,
    changing: Option<PathBuf>,
}

impl Seen {
    /// Before each change: a place for a cut.
    fn change(&mut self, root: &Path, path: &Path) {
        self.catch_up(root);
        if name_of(root, path).is_some() {
            self.cuts.push(self.now.clone());
        }
        self.changing = Some(path.to_owned());
    }

    fn catch_up(&mut self, root: &Path) {
        let Some(path) = self.changing.take() else { return };
        let Some(name) = name_of(root, &path) else { return };
        match fs::read(&path) {
            Ok(bytes) => drop(self.now.insert(name.clone(), anonymous(&name, bytes))),
            Err(_) => drop(self.now.remove(&name)),
        }
    }
}

impl Machine {
    pub(crate) fn new(loader: Loader, running: Slot) -> Machine {
        // In memory: there is no drive to flush.
        let mut tree = Tree::in_folder(Path::new("/dev/shm"));
        tree.disk("sda", "8:0", 8 * MIB).folder("/run/udev/data").folder("/mnt/data");
        tree.folder("/mnt/state").folder("/mnt/slots").folder("/mnt/boot");
        tree.file("/proc/sys/kernel/random/boot_id", "this\n").file("/proc/cmdline", "quiet\n");
        tree.part("sda", "sda1", "8:1", MIB);
        for (slot, n) in [(Slot::A, 2), (Slot::B, 3)] {
            let (name, dev) = (format!("sda{n}"), format!("8:{n}"));
            tree.part("sda", &name, &dev, GIB);
            let point = if slot == running { "/mnt/sysroot/active" } else { "/mnt/sysroot/inactive" };
            tree.udev(&dev, &[("ID_FS_TYPE", "ext4"), ("ID_FS_LABEL", slot.label())]);
            tree.folder(point).mount(&dev, point, "ext4", &format!("/dev/{name}"), "rw");
        }
        tree.mount("8:1", "/mnt/boot", "vfat", "/dev/sda1", "rw");
        if loader == Loader::Grub {
            tree.folder("/sys/firmware/efi");
        }
        tree.link("/resin-boot", &format!("releases/{running}/resin-boot"));
        Machine { tree, loader, running, seen: Rc::default(), armed: RefCell::default() }
    }

    /// Power on: only what lasts is there. From now on each change is a place for a cut.
    pub(crate) fn start(&self, state: &Lasting) {
        let root = self.paths().root().to_owned();
        for folder in PARTITIONS.iter().chain(&["run/copal", "releases"]) {
            drop(fs::remove_dir_all(root.join(folder)));
        }
        for folder in PARTITIONS {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for (path, bytes) in state {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        for slot in [Slot::A, Slot::B] {
            self.lay_out_release(slot);
        }
        *self.seen.borrow_mut() = Seen { now: state.clone(), ..Seen::default() };
        let seen = self.seen.clone();
        let armed = crash_point::arm(move |step, path| {
            // Of the steps in place: related bytes fit one sector.
            if ["rename", "unlink", "open in place"].iter().any(|change| step.starts_with(change)) {
                seen.borrow_mut().change(&root, path);
            }
            Ok(())
        });
        *self.armed.borrow_mut() = Some(armed);
    }

    pub(crate) fn lose_other(&self) {
        let table = self.paths().at("/proc/self/mountinfo");
        let text = fs::read_to_string(&table).unwrap();
        let left = text.split_inclusive('\n').filter(|line| !line.contains(" /mnt/sysroot/inactive "));
        fs::write(&table, left.collect::<String>()).unwrap();
    }

    pub(crate) fn paths(&self) -> Paths {
        self.tree.paths()
    }

    pub(crate) fn release(&self, slot: Slot) -> PathBuf {
        self.paths().at(format!("/releases/{slot}/resin-boot"))
    }

    fn lay_out_release(&self, slot: Slot) {
        let content = fs::read_to_string(self.paths().at(slot_file(slot))).unwrap();
        let folder = self.release(slot);
        fs::create_dir_all(folder.join("overlays")).unwrap();
        for name in BOOT_FILES {
            fs::write(folder.join(name), format!("{slot} {content}")).unwrap();
        }
    }

    /// What every cut has left, and what the device has at the end.
    pub(crate) fn stop(&self) -> (Vec<Lasting>, Lasting) {
        drop(self.armed.take());
        let end = self.now();
        let mut seen = self.seen.borrow_mut();
        seen.catch_up(self.paths().root());
        assert_eq!(seen.now, end, "a change that was not announced");
        (std::mem::take(&mut seen.cuts), end)
    }

    fn now(&self) -> Lasting {
        lasting(self.paths().root())
    }

    pub(crate) fn fill(&self, slot: Slot, content: &str) {
        let paths = self.paths();
        self.seen.borrow_mut().change(paths.root(), &paths.at(slot_file(slot)));
        fs::write(self.paths().at(slot_file(slot)), content).unwrap();
        self.lay_out_release(slot);
    }
}

pub(crate) const BOOT_FILES: [&str; 2] = ["board.dtb", "overlays/wifi.dtbo"];

pub(crate) fn boot_files(state: &Lasting) -> Option<&str> {
    let all = BOOT_FILES
        .map(|name| state.get(&format!("mnt/boot/{name}")).map(|b| std::str::from_utf8(b).unwrap()));
    all.iter().all(|f| *f == all[0]).then_some(all[0]).flatten()
}

const PARTITIONS: [&str; 3] = ["mnt/boot", "mnt/state", "mnt/slots"];

/// The name of a path among what lasts. Temporary files of a write are not part of it, since they are swept; nor is the history, on which no
/// decision depends.
fn name_of(root: &Path, path: &Path) -> Option<String> {
    let name = path.file_name()?;
    let lasts = PARTITIONS.iter().any(|p| path.starts_with(root.join(p)));
    let counts = lasts && !file::is_temporary(name) && !name.to_string_lossy().starts_with("history");
    (counts && !path.is_dir()).then(|| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned())
}

fn lasting(root: &Path) -> Lasting {
    let mut all = Lasting::new();
    let mut folders: Vec<PathBuf> = PARTITIONS.map(|p| root.join(p)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(name) = name_of(root, &path) {
                let bytes = anonymous(&name, fs::read(&path).unwrap());
                all.insert(name, bytes);
            }
        }
    }
    all
}

/// Without the number of the update, on which nothing depends.
fn anonymous(name: &str, bytes: Vec<u8>) -> Vec<u8> {
    if !name.starts_with("mnt/state/copal/") {
        return bytes;
    }
    let mut record: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    if let Some(transaction) = record.get_mut("transaction") {
        *transaction = "t".into();
    }
    serde_json::to_vec(&record).unwrap()
}

/// Root A with its boot files, selected for good.
pub(crate) fn factory(loader: Loader) -> Lasting {
    let mut state = Lasting::new();
    state.insert(slot_file(Slot::A), b"v1".into());
    state.insert(slot_file(Slot::B), b"empty".into());
    for name in BOOT_FILES {
        state.insert(format!("mnt/boot/{name}"), b"A v1".into());
    }
    let pairs = |root: &str| format!("resin_root_part={root}\nupgrade_available=0\nbootcount=0\n");
    let block = |root: &str| format!("{:#<1024}", format!("# GRUB Environment Block\n{}", pairs(root)));
    let text = match loader {
        Loader::Uboot => "resin_root_part=2\nupgrade_available=0\n".to_owned(),
        Loader::Grub => block("2"),
        Loader::Balena => block("A"),
    };
    state.insert(loader.file().into(), text.into_bytes());
    if loader == Loader::Grub {
        state.insert("mnt/boot/EFI/BOOT/grub.cfg".into(), b"menuentry".into());
    }
    state
}
