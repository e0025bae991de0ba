//! Ends a program, with every process it has started, right after one chosen change of a file system.
//!
//! A `ptrace` of the whole tree: each system call that makes, writes, renames, links, removes, mounts or changes what an inode
//! says of itself is looked at when it is entered, and counted when it has succeeded.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

pub use super::calls::Watched;
use super::calls::{Change, change_of, registers};
use crate::kit::needs::{self, needs};

/// Longer than anything here takes on any machine; then it hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(600);

/// Whether this machine has registers that this program knows.
pub fn can_run(test: &str) -> bool {
    needs::is_there(test, cfg!(target_arch = "x86_64"), "the registers of x86-64")
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself, with this status; `None`: by a signal.
    Ended(Option<i32>),
    /// As ordered.
    Killed,
}

#[derive(Debug)]
pub struct Traced {
    pub end: End,
    /// Every change, in its order.
    pub changes: Vec<String>,
}

/// A program that waits to be started, so that nothing of it is missed.
pub struct Held {
    child: Child,
}

impl Held {
    /// `argv`, with the rest of `command` (environment, output) as it is given; its own program and arguments do not count.
    pub fn new(argv: &[&str], set: impl FnOnce(&mut Command)) -> Held {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read -r go; exec \"$@\" < /dev/null", "sh"]).args(argv);
        set(&mut command);
        Held { child: command.stdin(Stdio::piped()).spawn().unwrap() }
    }

    fn id(&self) -> Pid {
        pid_of(&self.child)
    }

    fn go(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}

/// One thread under trace.
#[derive(Debug, Default, Clone)]
struct Thread {
    /// Its system calls are looked at. Those of `beside` are not, but those of what it starts are.
    counted: bool,
    /// Within a system call: its number, and what it changes if it succeeds.
    call: Option<(u64, Option<Change>)>,
}

struct Tracer<'a> {
    watched: &'a Watched,
    threads: HashMap<Pid, Thread>,
    changes: Vec<String>,
    kill_after: Option<usize>,
    each: &'a mut dyn FnMut(&str),
    killed: bool,
}

/// Runs `held`, and ends it and everything below it, and `beside` with everything below that, after the change number
/// `kill_after` (from 1). `beside` is a program that runs already; it is ended in any case. `each` is called after every change, while the
/// thread that made it stands still.
pub fn run(
    mut held: Held,
    beside: Option<Child>,
    watched: &Watched,
    kill_after: Option<usize>,
    each: &mut dyn FnMut(&str),
) -> Traced {
    let main = held.id();
    let mut tracer =
        Tracer { watched, threads: HashMap::new(), changes: Vec::new(), kill_after, each, killed: false };
    tracer.seize(main, true);
    if let Some(beside) = &beside {
        tracer.seize(pid_of(beside), false);
    }
    let (done, waiting) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let hangs = waiting.recv_timeout(HANG_TIMEOUT).is_err();
        if hangs {
            let _gone = kill(main, Signal::SIGKILL);
        }
        hangs
    });
    held.go();
    let status = tracer.follow(main);
    let _nobody_waits = done.send(());
    if let Some(mut beside) = beside {
        let _gone = beside.kill();
        tracer.reap();
        let _reaped = beside.wait();
    }
    let _reaped = held.child.wait();
    let last = tracer.changes.last().cloned().unwrap_or_default();
    assert!(!watchdog.join().unwrap(), "it hangs behind {last}, change {}", tracer.changes.len());
    let end = if tracer.killed { End::Killed } else { End::Ended(status) };
    Traced { end, changes: tracer.changes }
}

impl Tracer<'_> {
    /// Every thread of a process.
    fn seize(&mut self, process: Pid, counted: bool) {
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL;
        for task in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
            let id = Pid::from_raw(task.unwrap().file_name().to_str().unwrap().parse().unwrap());
            ptrace::seize(id, options).unwrap();
            self.threads.insert(id, Thread { counted, call: None });
            // Without it, system calls are not looked at before the next stop, of which there may be none.
            ptrace::interrupt(id).unwrap();
        }
    }

    /// Until the process `main` is gone; its exit status.
    fn follow(&mut self, main: Pid) -> Option<i32> {
        loop {
            let seen = wait();
            let status = match seen {
                WaitStatus::Exited(id, status) if id == main => Some(Some(status)),
                WaitStatus::Signaled(id, ..) if id == main => Some(None),
                _ => None,
            };
            self.take(seen);
            if let Some(status) = status {
                self.kill_all();
                self.reap();
                return status;
            }
        }
    }

    fn take(&mut self, seen: WaitStatus) {
        match seen {
            WaitStatus::Exited(id, _) | WaitStatus::Signaled(id, ..) => {
                self.threads.remove(&id);
            }
            WaitStatus::PtraceSyscall(id) => {
                self.system_call(id);
                self.resume(id, None);
            }
            WaitStatus::PtraceEvent(id, _, event) => {
                self.event(id, event);
                self.resume(id, None);
            }
            WaitStatus::Stopped(id, signal) => self.resume(id, Some(signal)),
            other => panic!("{other:?}"),
        }
    }

    fn event(&mut self, id: Pid, event: i32) {
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                let Ok(child) = ptrace::getevent(id) else { return };
                let counted = self.threads.get(&id).is_none_or(|t| t.counted);
                let child = Pid::from_raw(i32::try_from(child).unwrap());
                // It may have been told of before, and have ended.
                if !self.threads.contains_key(&child) && is_there(child) {
                    self.threads.insert(child, Thread { counted, call: None });
                }
            }
            libc::PTRACE_EVENT_EXEC => {
                // A thread that is not the first one goes on under the number of the process.
                if let Ok(former) = ptrace::getevent(id) {
                    let former = Pid::from_raw(i32::try_from(former).unwrap());
                    let state = self.threads.remove(&former).unwrap_or_default();
                    self.threads.insert(id, state);
                }
                // What `beside` starts is looked at from here on.
                self.threads.entry(id).or_default().counted = true;
            }
            // A new one stops before its first system call; on a busy machine that may be told before whoever made it tells
            // of it, and it must not run on as somebody else until then.
            _ if !self.threads.contains_key(&id) => {
                let counted = maker(id).and_then(|m| self.threads.get(&m)).is_none_or(|t| t.counted);
                self.threads.insert(id, Thread { counted, call: None });
            }
            _ => {}
        }
    }

    /// Lets a thread go on; one that is gone meanwhile says so by itself.
    fn resume(&self, id: Pid, signal: Option<Signal>) {
        if self.killed {
            // It may have begun after the others were killed.
            let _gone = kill(id, Signal::SIGKILL);
            return;
        }
        let counted = self.threads.get(&id).is_none_or(|t| t.counted);
        let _gone = if counted { ptrace::syscall(id, signal) } else { ptrace::cont(id, signal) };
    }

    fn system_call(&mut self, id: Pid) {
        let Ok(registers) = registers(id) else { return };
        let thread = self.threads.entry(id).or_default();
        // The kernel has this in the place of the result until there is one.
        let begins = registers.result == -i64::from(libc::ENOSYS);
        match thread.call.take() {
            Some((number, change)) if !begins || number == registers.number => {
                let Some(change) = change else { return };
                if registers.result < 0 || (change.amount && registers.result == 0) || self.killed {
                    return;
                }
                (self.each)(&change.text);
                self.changes.push(change.text);
                if self.kill_after == Some(self.changes.len()) {
                    self.kill_all();
                    self.killed = true;
                }
            }
            _ if begins => {
                let change = (!self.killed).then(|| change_of(id, &registers, self.watched)).flatten();
                thread.call = Some((registers.number, change));
            }
            // The end of a call that began before anybody looked.
            _ => {}
        }
    }

    fn kill_all(&self) {
        for id in self.threads.keys() {
            let _gone = kill(*id, Signal::SIGKILL);
        }
    }

    /// Waits until nobody is left.
    fn reap(&mut self) {
        loop {
            // The end of one that ends at once may be told before its beginning.
            self.threads.retain(|id, _| is_there(*id));
            if self.threads.is_empty() {
                return;
            }
            // One that was started at the last moment.
            self.kill_all();
            let Some(seen) = look() else {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            };
            if let WaitStatus::PtraceEvent(id, _, event) = seen {
                self.event(id, event);
            }
            self.take(seen);
        }
    }
}

/// The process that a new thread is of; if it is the first thread of its own, the process that made that.
fn maker(id: Pid) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let number = |key: &str| {
        let value = status.lines().find_map(|l| l.strip_prefix(key))?;
        value.trim().parse().ok().map(Pid::from_raw)
    };
    let process = number("Tgid:")?;
    if process == id { number("PPid:") } else { Some(process) }
}

/// Whether it is traced, by whomever: nobody else traces what this program has started.
fn is_there(id: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    status.lines().any(|l| l.strip_prefix("TracerPid:").is_some_and(|t| t.trim() != "0"))
}

/// What there is to be told now.
fn look() -> Option<WaitStatus> {
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD | WaitPidFlag::WNOHANG;
    waitpid(None, Some(flags)).ok().filter(|s| *s != WaitStatus::StillAlive)
}

/// Of the calling thread's own only: others have children, too.
fn wait() -> WaitStatus {
    waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)).unwrap()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::gettid;

    use super::*;

    /// One of everything, in a shell, its children and the background.
    const SCRIPT: &str = "cd $0; echo a > x; mv x y; mkdir d; rmdir d; ln -s y l; rm l; : > z; : > z; \
        (echo b >> z; chmod 600 z) & wait; touch z; truncate -s 9 z; echo c | dd of=z conv=notrunc 2> /dev/null; \
        cat < z > /dev/null; echo d > /dev/null";

    fn watched(folder: &Path) -> Watched {
        Watched { devices: BTreeSet::from([fs::metadata(folder).unwrap().dev()]) }
    }

    fn run_script(kill_after: Option<usize>) -> (tempfile::TempDir, Traced) {
        let dir = tempfile::tempdir().unwrap();
        let held = Held::new(&["/bin/sh", "-c", SCRIPT, dir.path().to_str().unwrap()], |_| {});
        let traced = run(held, None, &watched(dir.path()), kill_after, &mut |_| {});
        (dir, traced)
    }

    #[test]
    fn every_change_is_counted_and_nothing_else() {
        needs!(can_run);
        let (_dir, traced) = run_script(None);
        assert_eq!(traced.end, End::Ended(Some(0)));
        let said: Vec<String> = traced
            .changes
            .iter()
            .map(|c| {
                let (call, path) = c.split_once(' ').unwrap();
                let plain = call.trim_end_matches("at").trim_end_matches("at2");
                format!("{plain} {}", path.rsplit('/').next().unwrap())
            })
            .collect();
        let wanted = [
            "open x",
            "write x",
            "rename y",
            "mkdir d",
            "rmdir d",
            "symlink l",
            "unlink l",
            "open z",
            "write z",
            "fchmod z",
            "utimens 0",
            "ftruncate z",
            "write z",
        ];
        println!("{:?}", traced.changes);
        assert_eq!(said, wanted);
    }

    #[test]
    fn one_that_stops_before_its_maker_reports_it_counts_as_its_maker_does() {
        let own = Pid::this();
        let mut child =
            Command::new("/bin/sh").args(["-c", "read -r end"]).stdin(Stdio::piped()).spawn().unwrap();
        for (id, of) in [(pid_of(&child), "a process"), (gettid(), "a thread")] {
            for counted in [false, true] {
                let mut tracer = Tracer {
                    watched: &Watched::default(),
                    threads: HashMap::from([(own, Thread { counted, call: None })]),
                    changes: Vec::new(),
                    kill_after: None,
                    each: &mut |_| {},
                    killed: false,
                };
                tracer.event(id, libc::PTRACE_EVENT_STOP);
                assert_eq!(tracer.threads[&id].counted, counted, "{of}");
            }
        }
        drop(child.stdin.take());
        let _reaped = child.wait().unwrap();
    }

    /// On one processor the kernel tells of new processes in every order.
    #[test]
    fn what_beside_does_by_itself_is_never_counted_and_what_it_starts_always() {
        const BESIDE: &str = "cd $0; until [ -e go ]; do :; done; \
            i=0; while [ $i -lt 300 ]; do (echo > a); i=$((i + 1)); done; \
            i=0; while [ $i -lt 100 ]; do mkdir d$i; i=$((i + 1)); done; echo > done";
        needs!(can_run);
        let mut one = CpuSet::new();
        let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
        one.set((0..CpuSet::count()).find(|i| all.is_set(*i).unwrap()).unwrap()).unwrap();
        // Of this thread, and of what it starts.
        sched_setaffinity(Pid::from_raw(0), &one).unwrap();

        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().to_str().unwrap();
        let beside = Command::new("/bin/sh").args(["-c", BESIDE, folder]).spawn().unwrap();
        let script = "cd $0; echo > go; until [ -e done ]; do :; done";
        let held = Held::new(&["/bin/sh", "-c", script, folder], |_| {});
        let traced = run(held, Some(beside), &watched(dir.path()), None, &mut |_| {});
        assert_eq!(traced.end, End::Ended(Some(0)));
        let seen: Vec<String> = traced
            .changes
            .iter()
            .map(|c| format!("{} {}", c.split_once(' ').unwrap().0, c.rsplit('/').next().unwrap()))
            .collect();
        let mut wanted = vec!["openat go".to_owned(), "write go".to_owned()];
        wanted.extend((0..100).map(|i| format!("mkdir d{i}")));
        assert_eq!(seen, wanted);
    }

    #[test]
    fn killed_after_each_change_the_next_never_comes() {
        needs!(can_run);
        let names = |dir: &Path| {
            let mut names: Vec<String> = fs::read_dir(dir)
                .unwrap()
                .map(|e| e.unwrap())
                .map(|e| format!("{}:{}", e.file_name().to_str().unwrap(), e.metadata().unwrap().len()))
                .collect();
            names.sort();
            names.join(" ")
        };
        let after = ["x:0", "x:2", "y:2", "d:4096 y:2", "y:2", "l:1 y:2", "y:2", "y:2 z:0", "y:2 z:2"];
        for (n, wanted) in after.iter().enumerate() {
            let (dir, traced) = run_script(Some(n + 1));
            assert_eq!((traced.end, traced.changes.len()), (End::Killed, n + 1));
            // The size of a folder is the file system's own affair.
            let found = names(dir.path());
            let found = if found.contains("d:") { "d:4096 y:2".to_owned() } else { found };
            assert_eq!(found, *wanted, "{}", traced.changes[n]);
        }
        let (_dir, traced) = run_script(Some(99));
        assert_eq!((traced.end, traced.changes.len()), (End::Ended(Some(0)), 13));
    }
}
