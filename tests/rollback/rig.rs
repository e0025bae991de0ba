//! A device of files, on which the programs run in no time.
#![allow(unreachable_pub)]

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use copal::boot_state;
use copal::config::paths::Paths;
use copal::config::rollback_conf::RollbackConf;
use copal::disk::Facts;
use copal::error::{Code, Error, Result};
use copal::hooks;
use copal::hooks::builtin::BUILTINS;
use copal::rollback::{Context, Platform, altboot, boot_check, health};
use copal::slot::{Roots, Slot};
use copal::state::files::{Trial, drop_breadcrumbs};
use copal::state::history::{Check, CheckResult};
use copal::state::phase::{Phase, observe};

use crate::kit::tree::{GIB, MIB, Tree};

/// How the bootloader is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    Uboot,
    Grub,
    Balena,
}

impl Told {
    pub const ALL: [Told; 3] = [Told::Uboot, Told::Grub, Told::Balena];
}

pub struct Rig {
    pub tree: Tree,
    pub told: Told,
    /// What each run of the checks comes to, in turn; the last one again and again.
    pub health: RefCell<Vec<bool>>,
    pub old_hooks: Cell<bool>,
    pub old_boot_files: Cell<bool>,
    pub too_old: Cell<bool>,
    pub old_is_there: Cell<bool>,
    /// What hooks that were left do at last: whether they select the other slot, and whether they can be ended.
    pub left_hooks: Cell<(bool, bool)>,
    /// What was done, in its order.
    pub log: RefCell<Vec<String>>,
    /// Time that has passed.
    pub clock: Cell<Duration>,
}

/// A machine that runs slot B, which is on trial after an update of slot A.
pub fn on_trial(told: Told) -> Rig {
    let rig = Rig::new(told, Slot::B);
    rig.select(Slot::B, true);
    drop_breadcrumbs(&rig.paths()).unwrap();
    Trial { transaction: "t1".into(), slot: Slot::B, resets: 0 }.write(&rig.paths()).unwrap();
    copal::state::files::keep_vpn_state(&rig.paths(), true).unwrap();
    rig
}

impl Rig {
    pub fn new(told: Told, running: Slot) -> Rig {
        let mut tree = Tree::new();
        tree.disk("sda", "8:0", 8 * MIB).folder("/run/udev/data").folder("/mnt/data");
        tree.folder("/mnt/state").folder("/mnt/boot/EFI/BOOT");
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
        tree.file("/resin-boot/board.dtb", &format!("of {running}"));
        tree.file("/mnt/boot/board.dtb", &format!("of {running}"));
        let block = |root: &str| {
            let text = format!(
                "# GRUB Environment Block\nresin_root_part={root}\nupgrade_available=0\nbootcount=0\n"
            );
            format!("{text:#<1024}")
        };
        match told {
            Told::Uboot => {
                tree.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=0\n")
            }
            Told::Grub => {
                tree.folder("/sys/firmware/efi").file("/mnt/boot/EFI/BOOT/grub.cfg", "menuentry");
                tree.file("/mnt/boot/EFI/BOOT/grubenv", &block("2"))
            }
            Told::Balena => tree.file("/mnt/boot/bootenv", &block("A")),
        };
        Rig {
            tree,
            told,
            health: RefCell::new(vec![true]),
            old_hooks: Cell::new(true),
            old_boot_files: Cell::new(true),
            too_old: Cell::new(false),
            old_is_there: Cell::new(true),
            left_hooks: Cell::new((false, true)),
            log: RefCell::default(),
            clock: Cell::default(),
        }
    }

    pub fn paths(&self) -> Paths {
        self.tree.paths()
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.paths().at(path)
    }

    /// Whether a file of the state partition is there.
    pub fn has(&self, name: &str) -> bool {
        self.paths().state().join(name).exists()
    }

    pub fn roots(&self) -> Roots {
        Roots::of(&Facts::gather(&self.paths()).unwrap()).unwrap()
    }

    pub fn select(&self, slot: Slot, trial: bool) {
        let backend = boot_state::detect(&self.paths()).unwrap();
        backend.set(self.roots().in_slot(slot).unwrap(), trial).unwrap();
    }

    /// The bootloader has made so many attempts.
    pub fn count(&self, n: u32) {
        match self.told {
            Told::Uboot => {
                fs::write(self.at("/mnt/boot/bootcount.env"), format!("bootcount={n:x}\n\0")).unwrap();
            }
            Told::Grub => self.edit(Path::new("/mnt/boot/EFI/BOOT/grubenv"), n),
            Told::Balena => self.edit(Path::new("/mnt/boot/bootenv"), n),
        }
    }

    fn edit(&self, file: &Path, n: u32) {
        let file = self.paths().at(file);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("bootcount=0", &format!("bootcount={n}"))).unwrap();
    }

    /// Root, trial and count, as the bootloader will find them.
    pub fn selection(&self) -> (Slot, bool, u32) {
        let state = boot_state::detect(&self.paths()).unwrap().read().unwrap();
        let roots = self.roots();
        let named = |s: &Slot| roots.in_slot(*s).is_some_and(|root| state.root.means(root));
        // Without the other root mounted, what is not the running one is the other.
        let slot = [Slot::A, Slot::B].into_iter().find(named).unwrap_or(roots.active.slot.other());
        (slot, state.upgrade_available, state.bootcount)
    }

    /// The other root cannot be mounted any more. With what this returns [`mounts`](Self::mounts) makes it one that was late.
    pub fn lose_other(&self) -> String {
        let table = fs::read_to_string(self.at("/proc/self/mountinfo")).unwrap();
        let left: String =
            table.split_inclusive('\n').filter(|line| !line.contains(" /mnt/sysroot/inactive ")).collect();
        assert_ne!(left, table);
        self.mounts(&left);
        table
    }

    pub fn mounts(&self, table: &str) {
        fs::write(self.at("/proc/self/mountinfo"), table).unwrap();
    }

    pub fn phase(&self) -> Phase {
        observe(&self.paths(), &self.roots()).unwrap().phase
    }

    fn note(&self, what: &str) {
        self.log.borrow_mut().push(what.to_owned());
    }

    pub fn noted(&self) -> Vec<String> {
        self.log.borrow().clone()
    }

    /// The hooks of a release that matter here, with what they find selected.
    fn hooks(&self, name: &str, during_update: bool) -> Result<()> {
        let (slot, trial, _) = self.selection();
        self.note(&format!("{name}, {slot} selected{}", if trial { " on trial" } else { "" }));
        let last = match self.told {
            Told::Uboot => "99-resin-uboot",
            Told::Grub => "99-resin-grub",
            Told::Balena => "99-balena-bootloader",
        };
        for hook in ["80-rollback", last] {
            let builtin = BUILTINS.iter().find(|b| b.names.contains(&hook)).unwrap();
            (builtin.run)(&hooks::Context { paths: self.paths(), during_update, called: hook.to_owned() })?;
        }
        Ok(())
    }

    fn check(&self) -> Vec<Check> {
        let mut health = self.health.borrow_mut();
        let healthy = if health.len() > 1 { health.remove(0) } else { health[0] };
        self.note(if healthy { "checks pass" } else { "checks fail" });
        let result = if healthy { CheckResult::Passed } else { CheckResult::Failed };
        let reason = if healthy { String::new() } else { "the engine does not answer".to_owned() };
        vec![
            Check { name: "engine".into(), required: true, result, reason, seconds: 0.1 },
            Check {
                name: "units".into(),
                required: false,
                result: CheckResult::Failed,
                reason: "foo.service".into(),
                seconds: 0.1,
            },
        ]
    }

    pub fn platform(&self) -> Platform<'_> {
        let fails = |what: &str| Error::new(Code::HookFailed, format!("{what} fails"));
        Platform {
            wait: Box::new(|time| self.clock.set(self.clock.get() + time)),
            checks: Box::new(|| self.check()),
            previous_is_new_enough: Box::new(|| !self.too_old.get()),
            old_hooks: Box::new(move || {
                if self.old_hooks.get() { self.hooks("old hooks", true) } else { Err(fails("hook")) }
            }),
            old_boot_files: Box::new(move || {
                self.note("old boot files");
                if self.old_boot_files.get() { Ok(()) } else { Err(fails("boot file")) }
            }),
            current_hooks: Box::new(|| self.hooks("current hooks", false)),
            commit_hooks: Box::new(|| {
                self.note("commit hooks");
                Ok(())
            }),
            end_hooks: Box::new(move || {
                self.note(&format!("hooks are ended, {} selected", self.selection().0));
                let (select, end) = self.left_hooks.get();
                if select {
                    self.select(self.roots().inactive()?.slot, true);
                }
                if end { Ok(()) } else { Err(Error::new(Code::EngineUnreachable, "the engine is gone")) }
            }),
            hold_signals: false,
            old_is_there: Box::new(|| self.old_is_there.get()),
            reboot: Box::new(|| {
                self.note("reboot");
                Error::new(Code::RebootFailed, "the device does not reboot")
            }),
        }
    }

    pub fn health(&self) -> Result<()> {
        let platform = self.platform();
        health::run_with(&Context::look(&self.paths(), &platform)?, &RollbackConf::default())
    }

    pub fn altboot(&self) -> Result<()> {
        let platform = self.platform();
        altboot::run_with(&Context::look(&self.paths(), &platform)?)
    }

    pub fn boot_check(&self) -> Result<()> {
        let platform = self.platform();
        boot_check::run_with(&Context::look(&self.paths(), &platform)?)
    }

    /// The next boot, in which this slot runs: what was in memory is gone.
    pub fn booted(self, running: Slot) -> Rig {
        let next = Rig::new(self.told, running);
        for part in ["mnt/state", "mnt/boot"] {
            fs::remove_dir_all(next.at(part)).unwrap();
            copy(&self.at(part), &next.at(part));
        }
        next
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &to) } else { assert!(fs::copy(&path, &to).is_ok()) }
    }
}
