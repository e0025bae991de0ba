//! Runs the hooks of the old system in its own root.
//!
//! They restore what belongs to the old release, first of all its boot files. Only they know all of it: boards have hooks of their own.
//! They run as in that release's updates, with its own programs, while the new system runs.
//!
//! All mounts are in a private mount namespace of their own: the kernel undoes them when its last process ends, in whatever way, and this
//! system has no copy of them.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::boot_files::deploy::{DeployRequest, Purpose};
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::{Code, Error, Result};
use crate::hooks::builtin::bootfiles;
use crate::hooks::{DURING_UPDATE, HOOKS_FOLDER};
use crate::slot::Roots;
use crate::sys::command::{Command, Speaker};
use crate::sys::mount;
use crate::sys::signal::SignalGuard;
use crate::unlock;
use crate::update::mounted_root::MountedRoot;

/// In every release with rollbacks. Without arguments it runs the forward hooks.
const HOOK_RUNNER: &str = "/usr/bin/hostapp-update-hooks";

pub use crate::hooks::RUN_LIMIT;

/// For hooks of an earlier, killed run to end.
const USERS_TIMEOUT: Duration = Duration::from_secs(120);

/// Used if this program has no search path.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables for copal and its hooks: not passed to the old system.
const OWN_PREFIX: &str = "COPAL_";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceKind {
    /// The same folder of the running system, without mounts below it.
    Same,
    /// A file system of the kernel; where it cannot be mounted, as [`Same`](PieceKind::Same).
    Kernel(&'static str),
    /// An empty tmpfs: the old root may be read-only, and must not be written to.
    Memory,
}

#[derive(Debug)]
struct Piece {
    path: PathBuf,
    what: PieceKind,
    /// Without it, hooks do not run: they would do half of their work, or do it in the wrong place.
    required: bool,
    make: bool,
}

/// Runs the hooks of the inactive slot's system as for an update (`DURING_UPDATE=1`), since to them the other slot is the one to select.
/// On return all mounts are undone. Signals are deferred meanwhile.
pub fn run_old_hooks(paths: &Paths) -> Result<()> {
    let active = Facts::gather(paths).and_then(|facts| Ok(Roots::of(&facts)?.active));
    let kept = active.as_ref().map_err(Error::clone);
    if let Err(e) = kept.and_then(|active| unlock::before_hooks(paths, active, &paths.inactive())) {
        tracing::warn!("{}", e.message());
    }
    let done = run_old_hooks_within(paths, RUN_LIMIT);
    let Ok(active) = active else { return done };
    match unlock::after_hooks(paths, &active) {
        Err(e) if done.is_err() => {
            tracing::warn!("{}", e.message());
            done
        }
        ended => done.and(ended),
    }
}

pub fn run_old_hooks_within(paths: &Paths, limit: Duration) -> Result<()> {
    let pieces = pieces(paths);
    check_folders(paths, &pieces)?;
    let signal_guard = SignalGuard::begin().map_err(|e| failed("defer signals", HOOK_RUNNER).because(e))?;
    let result = in_old_root(paths, &pieces, limit);
    signal_guard.release();
    result
}

/// A system that cannot be mounted now does not boot either.
#[must_use]
pub fn is_there(paths: &Paths) -> bool {
    let init = paths.active().join("current/boot/init");
    let mounted =
        mount::in_private_namespace(|| MountedRoot::mount(&init, &paths.inactive()).map(MountedRoot::detach));
    match mounted.and_then(|result| result) {
        Ok(()) => true,
        Err(e) => {
            tracing::error!("the old system cannot be mounted: {e}");
            false
        }
    }
}

/// Deploys the old system's boot files without its hooks: a device that boots is worth more than what a board's hooks know.
pub(crate) fn deploy_old_boot_files(paths: &Paths) -> Result<()> {
    let roots = Roots::of(&Facts::gather(paths)?)?;
    let mut request = DeployRequest::new(paths, roots.inactive()?, Purpose::Undo)?;
    let work = || -> Result<()> {
        let init = paths.active().join("current/boot/init");
        let root = MountedRoot::mount(&init, &paths.inactive())
            .map_err(|e| failed("mount the old system", &init.display().to_string()).because(e))?;
        request.source = root.path().join("resin-boot");
        let deployed = deploy_each(&mut request, root.path());
        root.detach();
        deployed
    };
    let done = mount::in_private_namespace(work);
    done.map_err(|e| failed("make a mount namespace for its boot files", HOOK_RUNNER).because(e))?
}

/// To each boot partition that the old system has a hook for, under that hook's name.
fn deploy_each(request: &mut DeployRequest, root: &Path) -> Result<()> {
    let hooks = root.join(HOOKS_FOLDER.trim_start_matches('/'));
    let (usual, others) = bootfiles::NAMES.split_first().unwrap_or((&"1-bootfiles", &[]));
    let is_there = |name: &str| hooks.join(name).is_file();
    let other = others.iter().any(|name| is_there(name));
    let mut targets = Vec::new();
    if is_there(usual) || !other {
        targets.push(request.paths.boot());
    }
    if other {
        targets.push(request.paths.plain_boot());
    }
    for target in targets {
        request.target = target;
        let done = request.deploy()?;
        tracing::info!("boot files of slot {} on {}: {done}", request.owner, request.target.display());
    }
    Ok(())
}

fn pieces(paths: &Paths) -> Vec<Piece> {
    let piece = |path: &str, what, required| Piece { path: path.into(), what, required, make: false };
    let mut pieces: Vec<Piece> = [
        "/dev",
        "/run",
        "/proc",
        "/sys",
        "/mnt/boot",
        "/mnt/state",
        "/mnt/data",
        "/mnt/sysroot",
        "/mnt/sysroot/active",
        "/mnt/sysroot/inactive",
    ]
    .map(|path| piece(path, PieceKind::Same, true))
    .into();
    let (plain, boot) = (paths.plain_boot(), paths.boot());
    if let Ok(inside) = plain.strip_prefix(paths.root())
        && plain != boot
    {
        // A release without rollbacks lacks this folder.
        pieces.push(Piece {
            path: Path::new("/").join(inside),
            what: PieceKind::Same,
            required: true,
            make: true,
        });
    }
    for (path, fstype) in [("/sys/firmware/efi/efivars", "efivarfs"), ("/sys/kernel/security", "securityfs")]
    {
        if paths.at(path).is_dir() {
            pieces.push(piece(path, PieceKind::Kernel(fstype), false));
        }
    }
    pieces.push(piece("/tmp", PieceKind::Memory, false));
    pieces.push(piece("/var/cache", PieceKind::Memory, false));
    pieces
}

/// Checks what the hooks need before anything is mounted. Reading a folder also triggers automounts, for example of the inactive slot,
/// which another namespace would not see.
fn check_folders(paths: &Paths, pieces: &[Piece]) -> Result<()> {
    for piece in pieces.iter().filter(|p| p.required) {
        let folder = paths.at(&piece.path);
        fs::read_dir(&folder)
            .map_err(|e| failed(&look_at(&folder), &folder.display().to_string()).because(e))?;
    }
    Ok(())
}

fn look_at(folder: &Path) -> String {
    format!("read {}", folder.display())
}

enum Attempt {
    Ran,
    InTheWay(PathBuf),
}

fn in_old_root(paths: &Paths, pieces: &[Piece], limit: Duration) -> Result<()> {
    match try_once(paths, pieces, limit)? {
        Attempt::Ran => return Ok(()),
        Attempt::InTheWay(root) => clear_away(paths, &root),
    }
    match try_once(paths, pieces, limit)? {
        Attempt::Ran => Ok(()),
        Attempt::InTheWay(root) => {
            let shown = root.display();
            Err(failed(&format!("unmount what an earlier run has left at {shown}"), &shown.to_string()))
        }
    }
}

fn try_once(paths: &Paths, pieces: &[Piece], limit: Duration) -> Result<Attempt> {
    let mounts = mounts(paths)?;
    let is_taken = |root: &Path| mounts.iter().any(|m| m.point.starts_with(root));
    let work = || -> Result<Attempt> {
        let init = paths.active().join("current/boot/init");
        let root = MountedRoot::mount(&init, &paths.inactive())
            .map_err(|e| failed("mount the old system", &init.display().to_string()).because(e))?;
        let tried = if is_taken(root.path()) {
            Ok(Attempt::InTheWay(root.path().to_owned()))
        } else {
            wait_for_users(root.path());
            furnish(paths, root.path(), pieces).and_then(|()| run(root.path(), limit)).map(|()| Attempt::Ran)
        };
        // First, since a process that a hook left running would keep the mounts.
        root.detach();
        tried
    };
    let done = mount::in_private_namespace(work);
    done.map_err(|e| failed("make a mount namespace for them", HOOK_RUNNER).because(e))?
}

fn mounts(paths: &Paths) -> Result<Vec<mount::Mount>> {
    let table = paths.at("/proc/self/mountinfo");
    mount::read_mounts(&table)
        .map_err(|e| failed("read the table of mounts", &table.display().to_string()).because(e))
}

/// Unmounts what other programs left of the old system, the last first.
fn clear_away(paths: &Paths, root: &Path) {
    let mounts = mounts(paths).unwrap_or_default();
    let running = mounts.iter().rev().find(|m| m.point == Path::new("/")).map(|m| m.dev);
    let left = || mounts.iter().rev().filter(|m| m.point.starts_with(root));
    // A bind mount of the running root: unmounting below it would also unmount in the original.
    for view in left().filter(|m| Some(m.dev) == running) {
        if let Err(e) = mount::make_private(&view.point) {
            tracing::warn!("cannot cut {} off: {e}", view.point.display());
        }
    }
    for each in left() {
        tracing::warn!("{} is still mounted from an earlier run; unmounting it", each.point.display());
        if let Err(e) = mount::detach(&each.point) {
            tracing::debug!("cannot unmount {}: {e}", each.point.display());
        }
    }
}

/// Hooks of a killed run may still work: two at a time would write the same boot files.
fn wait_for_users(root: &Path) {
    let end = Instant::now() + USERS_TIMEOUT;
    let mut reported = false;
    loop {
        let users = mount::users(root);
        if users.is_empty() {
            return;
        }
        let users = users.join(" ");
        if Instant::now() >= end {
            tracing::warn!("the old system is still used by {users}; running its hooks nevertheless");
            return;
        }
        if !reported {
            tracing::warn!("the old system is used by {users}; waiting for them to end");
            reported = true;
        }
        thread::sleep(Duration::from_millis(200));
    }
}

fn furnish(paths: &Paths, root: &Path, pieces: &[Piece]) -> Result<()> {
    for piece in pieces {
        let path = piece.path.display();
        match add(paths, root, piece) {
            Ok(()) => tracing::debug!("mounted {path} in the old system"),
            Err(e) if piece.required => {
                let what = format!("mount {path} in the old system");
                return Err(failed(&what, &path.to_string()).because(e));
            }
            Err(e) => tracing::warn!("running the hooks of the old system without {path}: {e}"),
        }
    }
    Ok(())
}

fn add(paths: &Paths, root: &Path, piece: &Piece) -> io::Result<()> {
    let point = mount_point(root, &piece.path, piece.make)?;
    let same = || mount::bind(&paths.at(&piece.path), &point);
    match piece.what {
        PieceKind::Same => same(),
        PieceKind::Memory => mount::mount_virtual("tmpfs", &point),
        PieceKind::Kernel(fstype) => mount::mount_virtual(fstype, &point).or_else(|e| {
            let mounted = mounts(paths).is_ok_and(|all| all.iter().any(|m| m.point == piece.path));
            if mounted { same() } else { Err(e) }
        }),
    }
}

/// Refuses links on the way: they would lead into the running system.
fn mount_point(root: &Path, path: &Path, make: bool) -> io::Result<PathBuf> {
    let mut point = root.to_owned();
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        point.push(name);
        let found = match fs::symlink_metadata(&point) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && make => {
                fs::create_dir(&point)?;
                fs::symlink_metadata(&point)
            }
            found => found,
        };
        if !found?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a folder"));
        }
    }
    Ok(point)
}

fn run(root: &Path, limit: Duration) -> Result<()> {
    tracing::info!("running the hooks of the old system");
    let cannot = |e: io::Error| {
        Error::new(Code::HookFailed, "cannot run the hooks of the old system").object(HOOK_RUNNER).because(e)
    };
    let mut command =
        Command::new(HOOK_RUNNER).with_default_signals().in_root(root).map_err(cannot)?.limit(Some(limit));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with(OWN_PREFIX) {
            command = command.without(name);
        }
    }
    if std::env::var_os("PATH").is_none() {
        command = command.envs([("PATH", SEARCH_PATH)]);
    }
    let speaker = Speaker { name: "old system", full: "hooks of the old system", hook: None, levels: true };
    let ended = command.envs([(DURING_UPDATE, "1")]).run_logged(speaker, |_| {}).map_err(cannot)?;
    if ended.end.is_success() {
        return Ok(());
    }
    Err(Error::new(Code::HookFailed, "the hooks of the old system failed")
        .object(HOOK_RUNNER)
        .because(ended.because())
        .after_write())
}

fn failed(what: &str, object: &str) -> Error {
    Error::new(Code::HookFailed, format!("cannot run the hooks of the old system: cannot {what}"))
        .object(object)
        .with_hint("check the kernel log and the mounts of this system: the old system is unchanged")
}
