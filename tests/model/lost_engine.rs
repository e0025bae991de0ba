//! An update that loses its engine: hooks that may still run are ended before the update is undone.

use std::cell::{Cell, RefCell};

use crate::tree::{GIB, MIB, Tree};
use copal::boot_state;
use copal::config::paths::Paths;
use copal::disk::Facts;
use copal::engine::Hostapp;
use copal::engine::Image;
use copal::error::{Code, Error, Result};
use copal::hooks::Context;
use copal::hooks::builtin::BUILTINS;
use copal::job::{Source, UpdateSpec};
use copal::slot::{Roots, Slot};
use copal::state::files::{self, Trial};
use copal::state::phase::{Phase, observe};
use copal::update::installer::{Installer, When};
use copal::update::preflight::Device;
use copal::update::steps::Update;

/// Runs slot A; the bootloader is U-Boot.
fn device() -> Tree {
    let mut tree = Tree::new();
    tree.disk("sda", "8:0", 8 * MIB).folder("/run/udev/data").folder("/mnt/data").folder("/mnt/state");
    tree.file("/proc/sys/kernel/random/boot_id", "this\n");
    tree.part("sda", "sda1", "8:1", MIB).mount("8:1", "/mnt/boot", "vfat", "/dev/sda1", "rw");
    for (slot, n, point) in [(Slot::A, 2, "/mnt/sysroot/active"), (Slot::B, 3, "/mnt/sysroot/inactive")] {
        let (name, dev) = (format!("sda{n}"), format!("8:{n}"));
        tree.part("sda", &name, &dev, GIB);
        tree.udev(&dev, &[("ID_FS_TYPE", "ext4"), ("ID_FS_LABEL", slot.label())]);
        tree.folder(point).mount(&dev, point, "ext4", &format!("/dev/{name}"), "rw");
    }
    tree.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=0\n");
    tree
}

fn roots(paths: &Paths) -> Roots {
    Roots::of(&Facts::gather(paths).unwrap()).unwrap()
}

fn phase(paths: &Paths) -> Phase {
    observe(paths, &roots(paths)).unwrap().phase
}

fn hooks(paths: &Paths, during_update: bool) -> Result<()> {
    for name in ["80-rollback", "99-resin-uboot"] {
        let hook = BUILTINS.iter().find(|b| b.names.contains(&name)).unwrap();
        (hook.run)(&Context { paths: paths.clone(), during_update, called: name.to_owned() })?;
    }
    Ok(())
}

/// An engine that dies while hooks run.
struct Lost<'a> {
    paths: &'a Paths,
    left: bool,
    comes_back: bool,
    ended: RefCell<Vec<Phase>>,
}

impl Installer for Lost<'_> {
    fn end_hooks(&self) -> Result<()> {
        Ok(())
    }

    fn has_left_hooks(&self) -> bool {
        self.left
    }

    fn end_left_hooks(&self) -> Result<()> {
        self.ended.borrow_mut().push(phase(self.paths));
        // They complete before they are ended.
        hooks(self.paths, true)?;
        if self.comes_back { Ok(()) } else { Err(Error::new(Code::EngineUnreachable, "there is no engine")) }
    }

    fn keep(&self, _transaction: &str) -> Result<()> {
        Ok(())
    }

    fn install(&self) -> Result<(Image, Hostapp)> {
        let image = Image { reference: "image".into(), id: "id".into(), size: 0 };
        Ok((image, Hostapp { id: "hostapp".into(), boot: "/boot".into() }))
    }

    fn hooks_here(&self, _when: When) -> Result<()> {
        Ok(())
    }

    fn forward_hooks(&self, _image: &Image) -> Result<()> {
        Err(Error::new(Code::EngineUnreachable, "the engine is gone"))
    }

    fn count(&self) -> Result<u64> {
        Ok(1)
    }
}

/// The error of an update that loses its engine, and the phases in which hooks were ended.
fn lost(tree: &Tree, left: bool, comes_back: bool, recover: bool) -> (Error, Vec<Phase>) {
    let paths = tree.paths();
    let spec = UpdateSpec { recover, ..UpdateSpec::new(Source::Reference("image".into())) };
    let roots = roots(&paths);
    let target = roots.inactive().unwrap().clone();
    let device = Device::of(&paths, roots, target, false).unwrap();
    let installer = Lost { paths: &paths, left, comes_back, ended: RefCell::default() };
    let restored = Cell::new(0);
    let restore = || {
        restored.set(restored.get() + 1);
        hooks(&paths, false)
    };
    let update = Update {
        spec: &spec,
        paths: &paths,
        device: Some(&device),
        installer: &installer,
        restore: &restore,
        transaction: "t".into(),
    };
    let e = update.run().unwrap_err();
    assert_eq!(restored.get(), u32::from(recover));
    let state = boot_state::detect(&paths).unwrap().read().unwrap();
    assert!(state.root.means(&device.roots.active) && !state.upgrade_available, "{state:?}");
    (e, installer.ended.take())
}

fn breadcrumbs(tree: &Tree) -> bool {
    files::any_breadcrumb(&tree.paths()).unwrap()
}

#[test]
fn hooks_that_the_engine_has_left_are_ended_before_the_update_is_undone() {
    for recover in [true, false] {
        let tree = device();
        let (e, ended) = lost(&tree, true, true, recover);
        // The running system was selected before anything that may take long.
        assert_eq!(ended, [Phase::Installing]);
        assert_eq!(e.message(), "the engine is gone; slot A, the running system, boots next");
        assert_eq!((phase(&tree.paths()), breadcrumbs(&tree)), (Phase::Healthy, false));
    }
    let tree = device();
    let (_, ended) = lost(&tree, false, true, true);
    assert_eq!(ended, [], "no hook is waited for without need");
    assert_eq!((phase(&tree.paths()), breadcrumbs(&tree)), (Phase::Healthy, false));
}

#[test]
fn hooks_that_cannot_be_ended_are_reported_and_handled_at_the_next_boot() {
    let tree = device();
    let (e, _) = lost(&tree, true, false, true);
    assert_eq!(e.code(), Code::EngineUnreachable);
    assert_eq!(
        e.message(),
        "the engine is gone; hooks of the new release may still run, and select slot B again (there is no engine); slot A, the \
         running system, boots next, unless they do"
    );
    assert!(e.hint().contains("copal rollback now"), "{e}");
    assert_eq!((phase(&tree.paths()), breadcrumbs(&tree)), (Phase::Installing, true));
    // If they select it, that is a normal trial.
    hooks(&tree.paths(), true).unwrap();
    assert_eq!(phase(&tree.paths()), Phase::Pending);
    assert!(Trial::read(&tree.paths()).unwrap().is_some());

    let tree = device();
    lost(&tree, true, false, true);
    std::fs::remove_dir_all(tree.paths().at("/run/copal")).unwrap();
    assert_eq!(phase(&tree.paths()), Phase::Cleanup, "the next boot");
}
