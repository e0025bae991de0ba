//! The locks: held by util-linux' `flock` or by this process, let go, removed, overridden.

use std::fs::File;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use copal::config::paths::Paths;
use copal::progress::dashboard::Dashboard;
use copal::update::safe_reboot::{self, Times, WAITING};

use crate::kit::log::logged;
use crate::kit::needs::{has, is_root, needs};
use crate::kit::process::Ended;
use crate::kit::process::{Root, soon};

const SERVICES: &str = "/tmp/balena-supervisor/services";
const TARGET_STATE_CONFIG: &str = "/tmp/balena-supervisor/target-state-config";

/// So long that only an event can have ended a wait.
const NEVER: Duration = Duration::from_secs(60);

fn times(look: Duration) -> Times {
    Times { look, pause: Duration::from_millis(20), ..Times::default() }
}

/// An empty lock file.
fn lock(root: &Root, folder: &str) -> PathBuf {
    let folder = root.at(SERVICES).join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("updates.lock");
    File::create(&path).unwrap();
    path
}

/// Somebody who holds a lock.
fn hold(path: &Path) -> Ended {
    let mut command = Command::new("flock");
    command.args(["--exclusive", "--no-fork"]).arg(path).args(["sh", "-c", "echo held; exec sleep 1000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 5]).unwrap();
    Ended(child)
}

/// Waits for locks on a thread of its own.
struct Waiting {
    thread: thread::JoinHandle<(Duration, Vec<String>)>,
}

impl Waiting {
    fn begin(root: &Root, look: Duration) -> Waiting {
        let paths = Paths::new(root.path());
        let wait = move || {
            let began = Instant::now();
            let dashboard = Dashboard::if_installed(&paths);
            let ((), log) = logged(|| safe_reboot::wait(&paths, &times(look), &dashboard));
            dashboard.finish(Duration::from_secs(10));
            (began.elapsed(), log)
        };
        Waiting { thread: thread::spawn(wait) }
    }

    /// Still waiting after a moment.
    fn goes_on(&self) -> bool {
        thread::sleep(Duration::from_millis(800));
        !self.thread.is_finished()
    }

    /// Ends soon; what it logged.
    fn ends(self) -> Vec<String> {
        assert!(soon(|| self.thread.is_finished()), "still waiting");
        self.thread.join().unwrap().1
    }
}

fn busy(path: &Path) -> String {
    format!("WARN {} exists, busy waiting on unlocking for reboot.", path.display())
}

#[test]
fn without_a_supervisor_or_with_free_locks_nothing_is_waited_for() {
    let root = Root::new();
    assert_eq!(Waiting::begin(&root, NEVER).ends().last().unwrap(), "INFO no service holds a lock");
    // Files, and links to them, none of them held; circles.
    let free = lock(&root, "1/main");
    lock(&root, "1");
    let folder = free.parent().unwrap();
    symlink(root.at(SERVICES), folder.join("circle")).unwrap();
    symlink("circle", root.at(SERVICES).join("circle")).unwrap();
    for (name, to) in [("a", "/nonexistent"), ("b", "updates.lock"), ("c", "../1/main/updates.lock")] {
        std::fs::create_dir(root.at(SERVICES).join(name)).unwrap();
        symlink(to, root.at(SERVICES).join(name).join("updates.lock")).unwrap();
    }
    let log = Waiting::begin(&root, NEVER).ends();
    assert!(log.iter().all(|l| !l.starts_with("WARN")), "{log:?}");
}

/// An open can have any effect, of a device for example. A service may make links to those of the host.
#[test]
fn one_that_leads_to_no_regular_file_is_free_and_never_opened() {
    let root = Root::new();
    let services = root.at(SERVICES);
    let at = |name: &str| {
        std::fs::create_dir_all(services.join(name)).unwrap();
        services.join(name).join("updates.lock")
    };
    let pipe = root.at("/pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    nix::unistd::mkfifo(&at("a"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    symlink(&pipe, at("b")).unwrap();
    symlink("/dev/null", at("c")).unwrap();
    let _socket = UnixListener::bind(at("d")).unwrap();
    std::fs::create_dir(at("e")).unwrap();
    let opens = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
    for path in [&pipe, &at("a")] {
        opens.add_watch(path, AddWatchFlags::IN_OPEN).unwrap();
    }
    let log = Waiting::begin(&root, NEVER).ends();
    for name in ["a", "b", "c", "d", "e"] {
        let warning = format!("WARN {} leads to no regular file: it counts as free", at(name).display());
        assert!(log.contains(&warning), "{warning}: {log:?}");
    }
    assert_eq!(opens.read_events().unwrap_err(), nix::errno::Errno::EAGAIN, "one was opened");
}

#[test]
fn a_lock_is_reported_at_every_look() {
    if !has("locks of services", "flock") {
        return;
    }
    let root = Root::new();
    lock(&root, "1/free");
    let path = lock(&root, "2/deep/er");
    let holder = hold(&path);
    let waiting = Waiting::begin(&root, Duration::from_millis(100));
    assert!(waiting.goes_on() && waiting.goes_on());
    drop(holder);
    let log = waiting.ends();
    let told = log.iter().filter(|l| **l == busy(&path)).count();
    assert!((3..=30).contains(&told), "{log:?}");
    assert_eq!(log.last().unwrap(), "INFO no service holds a lock");
}

/// A holder that ends, a lock that is removed, an owner who overrides: each is an event.
#[test]
fn what_has_an_event_is_not_waited_for_longer() {
    if !has("events of locks", "flock") {
        return;
    }
    for how in ["end", "remove", "remove folder", "override", "override by rename"] {
        let root = Root::new();
        let path = lock(&root, "1/main");
        let holder = hold(&path);
        std::fs::write(root.at(TARGET_STATE_CONFIG), r#"{"SUPERVISOR_OVERRIDE_LOCK":"false"}"#).unwrap();
        let waiting = Waiting::begin(&root, NEVER);
        assert!(waiting.goes_on(), "{how}");
        let yes = r#"{"SUPERVISOR_OVERRIDE_LOCK":"true"}"#;
        match how {
            "end" => drop(holder),
            "remove" => std::fs::remove_file(&path).unwrap(),
            "remove folder" => std::fs::remove_dir_all(root.at(SERVICES)).unwrap(),
            "override" => std::fs::write(root.at(TARGET_STATE_CONFIG), yes).unwrap(),
            _ => {
                std::fs::write(root.at("/tmp/new"), yes).unwrap();
                std::fs::rename(root.at("/tmp/new"), root.at(TARGET_STATE_CONFIG)).unwrap();
            }
        }
        let log = waiting.ends();
        let by_owner = log.contains(&"INFO the owner overrides the locks of services".to_owned());
        assert_eq!(by_owner, how.starts_with("override"), "{how}: {log:?}");
        assert!(log.contains(&busy(&path)), "{how}: {log:?}");
    }
}

#[test]
fn a_lock_that_is_let_go_without_an_event_is_found_at_the_next_look() {
    let root = Root::new();
    let path = lock(&root, "1/main");
    let file = File::open(&path).unwrap();
    file.lock().unwrap();
    let waiting = Waiting::begin(&root, Duration::from_millis(800));
    assert!(waiting.goes_on());
    file.unlock().unwrap();
    waiting.ends();
}

#[test]
fn a_lock_that_comes_meanwhile_counts() {
    let root = Root::new();
    let take = |folder| {
        let path = lock(&root, folder);
        let file = File::open(&path).unwrap();
        file.lock().unwrap();
        (path, file)
    };
    let (first, held) = take("1/main");
    let waiting = Waiting::begin(&root, NEVER);
    assert!(waiting.goes_on());
    let (second, also) = take("0/new");
    drop(held);
    assert!(waiting.goes_on());
    drop(also);
    let log = waiting.ends();
    assert!(log.contains(&busy(&first)) && log.contains(&busy(&second)), "{log:?}");
}

#[test]
fn a_lock_that_cannot_be_tried_counts_as_held() {
    needs!(is_root);
    let root = Root::new();
    let path = lock(&root, "1/main");
    for (mode, path) in [(0o755, root.path()), (0o600, &path)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    // Of this thread, and of those that it begins.
    nix::unistd::setfsuid(65534.into());
    let waiting = Waiting::begin(&root, NEVER);
    nix::unistd::setfsuid(0.into());
    assert!(waiting.goes_on());
    std::fs::remove_file(&path).unwrap();
    let log = waiting.ends();
    let told = format!("WARN cannot determine whether {} is held: ", path.display());
    assert!(log.iter().any(|l| l.starts_with(&told)), "{log:?}");
}

#[test]
fn a_service_that_makes_events_without_end_is_no_burden() {
    let root = Root::new();
    let path = lock(&root, "1/main");
    let file = File::open(&path).unwrap();
    file.lock().unwrap();
    let paths = Paths::new(root.path());
    let times = Times { look: NEVER, pause: Duration::from_millis(200), ..Times::default() };
    let thread = thread::spawn(move || {
        logged(|| safe_reboot::wait(&paths, &times, &Dashboard::if_installed(&paths))).1
    });
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        std::fs::write(path.with_file_name("noise"), "x").unwrap();
    }
    drop(file);
    let log = thread.join().unwrap();
    let told = log.iter().filter(|l| **l == busy(&path)).count();
    assert!((2..=17).contains(&told), "{told}");
}

#[test]
fn the_dashboard_is_notified_once() {
    let root = Root::new();
    let calls = root.at("calls");
    let text = format!("#!/bin/bash\necho \"$# $*\" >>{}\n", calls.display());
    root.program("/usr/bin/resin-device-progress", &text);
    let path = lock(&root, "1/main");
    let file = File::open(&path).unwrap();
    file.lock().unwrap();
    let waiting = Waiting::begin(&root, Duration::from_millis(50));
    assert!(waiting.goes_on());
    assert!(soon(|| calls.exists()));
    drop(file);
    waiting.ends();
    assert_eq!(root.read("calls"), format!("4 --percentage 100 --state {WAITING}\n"));
}
