//! A running QEMU: its console, its ending, its limits.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::host;
use super::monitor::Monitor;

/// How a guest came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shutdown {
    /// It switched itself off.
    PoweredOff,
    /// It restarted itself (or crashed: then the console says so). The machine did not start again.
    Rebooted,
    /// [`super::Guest::cut_at`] took its power.
    Cut,
}

/// What is left of a guest.
pub(crate) struct Outcome {
    pub(crate) ending: Shutdown,
    /// The exit status of the script; none where it never came to its end.
    pub(crate) status: Option<i32>,
    pub(crate) console: String,
    /// From the start of QEMU to its end.
    pub(crate) took: Duration,
    pub(super) folder: tempfile::TempDir,
}

impl Outcome {
    /// The host's side of the guest's `/host`.
    pub(crate) fn host(&self) -> PathBuf {
        self.folder.path().join("host")
    }

    /// A file that the guest wrote below its `/host`.
    pub(crate) fn file(&self, name: &str) -> String {
        let path = self.host().join(name);
        let data = std::fs::read(&path).unwrap_or_else(|e| {
            panic!("the guest left no {name} ({e}); its console:\n{}", tail(&self.console))
        });
        String::from_utf8_lossy(&data).into_owned()
    }

    /// What the journal of a system guest got until it was off, an object of its fields for each entry.
    pub(crate) fn journal(&self) -> Vec<serde_json::Value> {
        // The last line may have been cut.
        self.file("journal").lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Fails unless the script ended with 0 and the guest switched itself off.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(
            (self.status, self.ending),
            (Some(0), Shutdown::PoweredOff),
            "status and ending of the guest; its console:\n{}",
            tail(&self.console)
        );
        assert!(!self.console.contains("Kernel panic"), "{}", tail(&self.console));
        self
    }
}

/// The last lines of a console.
fn tail(console: &str) -> String {
    let lines: Vec<&str> = console.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// What [`run`] needs of a guest.
pub(super) struct Start<'a> {
    pub(super) arguments: Vec<String>,
    pub(super) folder: tempfile::TempDir,
    pub(super) limit: Duration,
    pub(super) cut_at: Option<&'a str>,
    /// Called again and again while it runs.
    pub(super) watch: &'a mut dyn FnMut(&mut Monitor<'_>),
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// QEMU with its own loader and libraries, which need not be those of this machine.
pub(super) fn qemu(at: &Path) -> Command {
    let libraries =
        ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|dir| at.join(dir).display().to_string());
    // A test that is killed takes its guest with it.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(at.join("lib64/ld-linux-x86-64.so.2"))
        .args(["--library-path", &libraries.join(":")])
        .arg(at.join("usr/bin/qemu-system-x86_64"));
    for data in ["usr/share/qemu", "usr/share/seabios"] {
        command.arg("-L").arg(at.join(data));
    }
    command
}

/// Runs a guest to its end. Panics, with what its console said last, when it does not end in time.
pub(super) fn run(qemu_at: &Path, start: Start) -> Outcome {
    let place = host::take_place();
    let dir = start.folder.path();
    let console = dir.join("console");
    let events = dir.join("events");
    std::fs::write(&console, "").unwrap();
    let begun = Instant::now();
    let mut child = Killed(
        qemu(qemu_at)
            .args(&start.arguments)
            .args(["-serial", &format!("file:{}", console.display()), "-qmp", "stdio"])
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(&events).unwrap())
            .stderr(std::fs::File::create(dir.join("errors")).unwrap())
            .spawn()
            .expect("setpriv starts"),
    );
    // Without this no event is reported. It stays open: at its end QEMU would only lose the monitor.
    let mut monitor = child.0.stdin.take().unwrap();
    drop(monitor.write_all(b"{\"execute\":\"qmp_capabilities\"}\n"));
    let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    let mut ending = None;
    let mut answered = 0;
    loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            assert!(
                status.success(),
                "QEMU: {status}: {}\n{}",
                read(&dir.join("errors")),
                tail(&read(&console))
            );
            break;
        }
        if start.cut_at.is_some_and(|marker| read(&console).contains(marker)) {
            ending = Some(Shutdown::Cut);
            break;
        }
        assert!(
            begun.elapsed() < start.limit,
            "the guest has not ended after {} s; its console:\n{}",
            start.limit.as_secs(),
            tail(&read(&console))
        );
        (start.watch)(&mut Monitor {
            folder: dir,
            commands: &mut monitor,
            answers: &events,
            answered: &mut answered,
        });
        std::thread::sleep(Duration::from_millis(30));
    }
    drop(child);
    drop(place);
    let events = read(&events);
    let ending = ending.unwrap_or_else(|| {
        if events.contains("\"guest-shutdown\"") {
            Shutdown::PoweredOff
        } else if events.contains("\"guest-reset\"") || events.contains("\"guest-panic\"") {
            Shutdown::Rebooted
        } else {
            panic!("QEMU ended by itself: {events}\n{}", tail(&read(&console)))
        }
    });
    let status = read(&dir.join("host/status")).trim().parse().ok();
    Outcome { ending, status, console: read(&console), took: begun.elapsed(), folder: start.folder }
}
