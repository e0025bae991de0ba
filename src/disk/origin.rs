//! Which block devices hold a mounted file system.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Dev;
use crate::config::paths::Paths;
use crate::sys::mount::{Mount, overlay_layers};

/// File systems without a device; their source is free text.
const IN_MEMORY: &[&str] = &["tmpfs", "ramfs", "rootfs", "devtmpfs", "proc", "sysfs", "overlay", "autofs"];

/// Mount options that name another device: log and realtime device of XFS, journal of reiserfs and ext4.
const DEVICE_OPTIONS: &[&str] = &["logdev", "rtdev", "jdev", "journal_path"];

/// Devices of one btrfs, from `/sys/fs/btrfs/<uuid>/devices`: the mount table names only one.
pub(super) type Group = BTreeSet<Dev>;

pub(super) struct Tracer<'a> {
    pub(super) paths: &'a Paths,
    pub(super) mounts: &'a [Mount],
    pub(super) groups: &'a [Group],
    pub(super) known: &'a dyn Fn(Dev) -> bool,
    pub(super) dev_at: &'a dyn Fn(&Path) -> Option<Dev>,
}

/// The mount that a path is on: the longest mount point, and of several mounts there the topmost.
pub(super) fn mount_of(mounts: &[Mount], path: &Path, except: Option<usize>) -> Option<usize> {
    let holding = || mounts.iter().enumerate().filter(|(i, m)| Some(*i) != except && m.contains(path));
    let deepest = holding().map(|(_, m)| m.point.components().count()).max()?;
    let at_point = || holding().filter(|(_, m)| m.point.components().count() == deepest);
    // Of mounts on the same point, each later one has an earlier one as its parent. The order of lines varies between kernels.
    let mut top = at_point().filter(|(_, m)| !at_point().any(|(_, other)| other.parent == m.id));
    top.next_back().or_else(|| at_point().next_back()).map(|(i, _)| i)
}

impl Tracer<'_> {
    pub(super) fn trace_all(&self) -> Vec<BTreeSet<Dev>> {
        let mut all: Vec<BTreeSet<Dev>> = self.mounts.iter().map(|m| self.trace(m)).collect();
        self.unexplained_btrfs(&mut all);
        for (i, _) in self.mounts.iter().enumerate().filter(|(_, m)| m.fstype == "overlay") {
            let reached = self.layers_reach(i);
            let found: BTreeSet<Dev> =
                reached.iter().filter_map(|r| all.get(*r)).flatten().copied().collect();
            if let Some(devs) = all.get_mut(i) {
                devs.extend(found);
            }
        }
        all
    }

    fn trace(&self, mount: &Mount) -> BTreeSet<Dev> {
        let mut devs = BTreeSet::new();
        if (self.known)(mount.dev) {
            devs.insert(mount.dev);
        } else if !IN_MEMORY.contains(&mount.fstype.as_str()) {
            devs.extend(self.sources(mount));
        }
        for option in DEVICE_OPTIONS {
            devs.extend(mount.values(option).filter_map(|v| (self.dev_at)(Path::new(&v))));
        }
        let groups = self.groups.iter().filter(|g| !g.is_disjoint(&devs));
        let siblings: Vec<Dev> = groups.flatten().copied().collect();
        devs.extend(siblings);
        devs
    }

    /// The source of a file system with an anonymous device number: one path, or several with `:` between them (bcachefs).
    fn sources(&self, mount: &Mount) -> Vec<Dev> {
        let parts: Vec<&[u8]> = mount.source.as_bytes().split(|&b| b == b':').collect();
        if let Some(dev) = (self.dev_at)(Path::new(&mount.source)) {
            return vec![dev];
        }
        if parts.iter().any(|p| !p.starts_with(b"/dev/")) {
            return Vec::new();
        }
        parts.iter().filter_map(|p| (self.dev_at)(Path::new(std::ffi::OsStr::from_bytes(p)))).collect()
    }

    /// A btrfs whose source leads nowhere (`/dev/root`, a name that has changed) is one of those that no other mount accounts
    /// for. Where there are several, all of them count: too many excluded disks are better than one too few.
    fn unexplained_btrfs(&self, all: &mut [BTreeSet<Dev>]) {
        let explained: BTreeSet<Dev> = all.iter().flatten().copied().collect();
        let rest: BTreeSet<Dev> =
            self.groups.iter().filter(|g| g.is_disjoint(&explained)).flatten().copied().collect();
        for (mount, devs) in self.mounts.iter().zip(all) {
            if mount.fstype == "btrfs" && devs.is_empty() {
                devs.extend(&rest);
            }
        }
    }

    fn layers_reach(&self, index: usize) -> BTreeSet<usize> {
        let mut reached = BTreeSet::new();
        let mut todo = vec![index];
        while let Some(i) = todo.pop() {
            if let Some(mount) = self.mounts.get(i).filter(|m| reached.insert(i) && m.fstype == "overlay") {
                todo.extend(self.layer_mounts(i, mount));
            }
        }
        reached
    }

    fn layer_mounts(&self, index: usize, overlay: &Mount) -> Vec<usize> {
        let mut layers: Vec<PathBuf> = overlay.values("lowerdir").flat_map(|v| overlay_layers(&v)).collect();
        for key in ["lowerdir+", "datadir+", "upperdir", "workdir"] {
            layers.extend(overlay.values(key).map(PathBuf::from));
        }
        layers.retain(|l| l.is_absolute());
        layers.sort();
        layers.dedup();
        layers.iter().flat_map(|l| self.layer_mount(index, overlay, l)).collect()
    }

    /// The mount that a layer is on. If only `/` contains the layer and the overlay itself is `/`, the path is from before the
    /// root was changed. Then the mounts count that have this folder below their mount point now.
    fn layer_mount(&self, index: usize, overlay: &Mount, layer: &Path) -> Vec<usize> {
        let by_path = mount_of(self.mounts, layer, Some(index));
        let own = by_path.and_then(|i| self.mounts.get(i)).is_some_and(|m| m.point != Path::new("/"));
        if own || overlay.point != Path::new("/") {
            return by_path.into_iter().collect();
        }
        let moved = self.mounts.iter().enumerate().filter(|(i, m)| {
            let below = layer.strip_prefix(&m.root).ok();
            *i != index
                && m.point != Path::new("/")
                && !IN_MEMORY.contains(&m.fstype.as_str())
                && below.is_some_and(|b| self.paths.at(m.point.join(b)).is_dir())
        });
        let moved: Vec<usize> = moved.map(|(i, _)| i).collect();
        if moved.is_empty() { by_path.into_iter().collect() } else { moved }
    }
}
