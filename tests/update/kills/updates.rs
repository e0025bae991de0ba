//! A whole update, killed after each change.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::judge::{Root, Verdict, beginning, difference, ending, events, judge, unnamed};
use super::rig::{Backend, Rig, View};
use super::runs;
use super::shim::End;
use super::tree::{Tree, plain};
use crate::kit::prove;

pub const UPDATE: [&str; 3] = ["hostapp-update", "-f", "/mnt/data/os.tar"];

/// One device, and how an undisturbed update ends there.
pub struct Bench {
    pub rig: Rig,
    /// As an update leaves it.
    pub updated: Tree,
    wanted: Vec<String>,
    /// States from which the next update has succeeded.
    seen: HashSet<Vec<String>>,
    pub points: usize,
    pub again: usize,
    pub refused: usize,
    began: Instant,
}

/// A change of `run` that an undisturbed one never makes. In another order they may be: a hook runs while its runner notes that.
fn foreign<'r>(run: &'r [String], whole: &[String]) -> Option<&'r String> {
    let mut left: Vec<String> = whole.iter().map(|c| lasting(c)).collect();
    run.iter().find(|c| match left.iter().position(|l| *l == lasting(c)) {
        Some(at) => {
            left.swap_remove(at);
            false
        }
        None => true,
    })
}

/// A change without what is new in every run.
fn lasting(change: &str) -> String {
    let (call, path) = change.split_once(' ').unwrap();
    let name = path.rsplit('/').next().unwrap();
    plain(&unnamed(&format!("{call} /{name}")))
}

impl Bench {
    pub fn new(backend: Backend, places: &[&str]) -> Bench {
        let rig = Rig::new(backend, places);
        let (status, said) = rig.run_freely(View::Running, &UPDATE);
        assert_eq!(status, Some(0), "{said}");
        let updated = rig.tree();
        let verdict = judge(&updated, rig.pristine(), backend).unwrap();
        assert_eq!(verdict.boots, Root::B, "an undisturbed update");
        let wanted = ending(&updated).unwrap();
        rig.restore(rig.pristine());
        let began = Instant::now();
        Bench { rig, updated, wanted, seen: HashSet::new(), points: 0, again: 0, refused: 0, began }
    }

    /// Runs `argv` from `start` to its end, and says what it changes.
    pub fn whole(&self, start: &Tree, argv: &[&str], status: i32) -> (Vec<String>, String) {
        self.rig.restore(start);
        let (traced, said) = self.rig.run(View::Running, argv, None);
        assert_eq!(traced.end, End::Ended(Some(status)), "{argv:?}: {said}\n{}", self.rig.engine_log());
        (traced.changes, said)
    }

    /// Runs `argv` from `start` and kills it after the change number `n` of `whole`, which are those of an undisturbed run.
    /// Whatever was left is judged, and updated from.
    pub fn point(
        &mut self,
        start: &Tree,
        argv: &[&str],
        n: usize,
        whole: &[String],
    ) -> Result<Verdict, String> {
        self.rig.restore(start);
        let (traced, said) = self.rig.run(View::Running, argv, Some(n));
        self.points += 1;
        let left = match (traced.end, foreign(&traced.changes, whole)) {
            (End::Ended(status), _) => Err(format!("it ended before, with {status:?}")),
            (End::Killed, Some(change)) => Err(format!("an undisturbed run has no {change}")),
            (End::Killed, None) => self.left(),
        };
        left.map_err(|e| {
            let last = traced.changes.iter().rev().take(8).rev().fold(String::new(), |s, c| s + "\n  " + c);
            let engine = self.rig.engine_log();
            // At once, too: nobody may be there to tell it in the end.
            eprintln!("{:?}: COPAL_KILL_AT={n}: {}", self.rig.backend, e.lines().next().unwrap_or_default());
            format!(
                "COPAL_KILL_AT={n}, to be killed after {}: {e}\nit said:\n{said}\nits last changes:{last}\nthe engine said last:\n{engine}",
                whole[n - 1]
            )
        })
    }

    /// Judges what is there now, and updates from it in both ways.
    pub fn left(&mut self) -> Result<Verdict, String> {
        let rig = &self.rig;
        // Hooks fail once.
        rig.mend();
        let tree = rig.tree();
        let verdict = judge(&tree, rig.pristine(), rig.backend)?;
        let mut state = beginning(&tree);
        state.push(format!("mounts {:?}", rig.mounted()));
        if self.seen.contains(&state) {
            return Ok(verdict);
        }
        self.update_again().map_err(|e| format!("in the same boot: {e}"))?;
        self.rig.restore(&tree);
        self.rig.reboot();
        match verdict.boots {
            Root::A => self.update_again(),
            Root::B => self.is_refused(),
        }
        .map_err(|e| format!("after a reboot: {e}"))?;
        self.seen.insert(state);
        Ok(verdict)
    }

    fn update_again(&mut self) -> Result<(), String> {
        let (status, said) = self.rig.run_freely(View::Running, &UPDATE);
        if status != Some(0) {
            return Err(format!("the next update fails: {status:?}\n{said}"));
        }
        // Mounts of killed programs are for the engine to take away, with the layers below them.
        self.rig.unmount_new();
        let tree = self.rig.tree();
        if events(&tree)?.last().is_none_or(|e| e != "installed") {
            return Err(format!("the history says {:?}", events(&tree)));
        }
        let found = ending(&tree)?;
        if found != self.wanted {
            return Err(format!(
                "the next update ends elsewhere: {}\n{said}",
                difference(&self.wanted, &found)
            ));
        }
        self.again += 1;
        Ok(())
    }

    /// On trial, the only system that has proved itself must not be erased.
    fn is_refused(&mut self) -> Result<(), String> {
        let before = ending(&self.rig.tree())?;
        let (status, said) = self.rig.run_freely(View::Rebooted, &UPDATE);
        if status != Some(1) || !said.contains("[update-refused]") || !said.contains("on trial") {
            return Err(format!("an update on trial is not refused: {status:?}\n{said}"));
        }
        let after = ending(&self.rig.tree())?;
        if before != after {
            return Err(format!("an update on trial is refused, but {}", difference(&before, &after)));
        }
        self.refused += 1;
        Ok(())
    }

    /// Fails with what is known of those points, of the first ones with everything that was said.
    pub fn assert_none(&self, bad: &[String]) {
        let first = |text: &String| text.lines().next().unwrap_or_default().to_owned();
        let (whole, rest) = bad.split_at(bad.len().min(4));
        let text = [whole.to_vec(), rest.iter().map(first).collect()].concat().join("\n\n");
        assert!(
            bad.is_empty(),
            "{:?}: {} of {} points; each alone again with COPAL_KILL_AT set as it says:\n{text}",
            self.rig.backend,
            bad.len(),
            self.points
        );
    }

    pub fn told(&self, what: &str) {
        self.rig.assert_tidy();
        let Bench { points, again, refused, .. } = self;
        let time: Duration = self.began.elapsed();
        eprintln!(
            "{:?}: {what}: {points} kills; from what they left, {again} updates succeeded and {refused} were refused on trial; \
             {:.0} s",
            self.rig.backend,
            time.as_secs_f64()
        );
    }
}

/// Which of an update's changes it is killed after: with `COPAL_KILL_AT` in the environment that one only.
pub fn chosen(test: &str, candidates: &[usize], few: usize) -> Vec<usize> {
    if let Ok(only) = std::env::var("COPAL_KILL_AT") {
        let only: usize = only.parse().expect("COPAL_KILL_AT is a number");
        return candidates.iter().copied().filter(|n| *n == only).collect();
    }
    prove::cases("cuts", test, candidates.len(), few).into_iter().map(|at| candidates[at]).collect()
}

/// Changes of an update that a test kills it after, where not all are proved.
const FEW: usize = 5;

fn changes(test: &str, backend: Backend) {
    let mut bench = Bench::new(backend, &[]);
    let start = bench.rig.pristine().clone();
    let (whole, _) = bench.whole(&start, &UPDATE, 0);
    let (mut boots, mut bad) = (Vec::new(), Vec::new());
    let all: Vec<usize> = (1..=whole.len()).collect();
    let points = chosen(test, &all, FEW);
    for n in &points {
        match bench.point(&start, &UPDATE, *n, &whole) {
            Ok(verdict) => boots.push(verdict.boots),
            Err(e) => bad.push(e),
        }
    }
    bench.assert_none(&bad);
    // One switch, and nothing else ever.
    let switches: Vec<_> = boots.windows(2).filter(|w| w[0] != w[1]).collect();
    assert!(
        switches.len() < 2 && switches.iter().all(|w| w[0] == Root::A),
        "what boots after the changes {points:?}: {boots:?}"
    );
    let ends = (boots.first(), boots.last());
    assert!(points.len() < all.len() || ends == (Some(&Root::A), Some(&Root::B)), "what boots: {boots:?}");
    bench.told(&format!("{} of the {} changes of an update", points.len(), all.len()));
}

#[test]
fn killed_after_any_change_of_an_update_with_u_boot() {
    let test = "killed_after_any_change_of_an_update_with_u_boot";
    if runs(test) {
        changes(test, Backend::Uboot);
    }
}

#[test]
fn killed_after_any_change_of_an_update_with_grub() {
    let test = "killed_after_any_change_of_an_update_with_grub";
    if runs(test) {
        changes(test, Backend::Grub);
    }
}

#[test]
fn killed_after_any_change_of_an_update_with_the_balena_bootloader() {
    let test = "killed_after_any_change_of_an_update_with_the_balena_bootloader";
    if runs(test) {
        changes(test, Backend::Balena);
    }
}

/// The second update's way back, from what a first one has left: until it erases the slot.
fn recoveries(test: &str, backend: Backend) {
    let mut bench = Bench::new(backend, &[]);
    let pristine = bench.rig.pristine().clone();
    let (whole, _) = bench.whole(&pristine, &UPDATE, 0);
    let place = |end: &str| whole.iter().position(|c| c.ends_with(end)).unwrap() + 1;
    let mut starts = vec![("installed", bench.updated.clone())];
    for (what, n) in [
        ("boot files are half new", place("/kernel.img")),
        ("boot files are new", place("/balenaos.fingerprint")),
    ] {
        bench.rig.restore(&pristine);
        assert_eq!(bench.rig.run(View::Running, &UPDATE, Some(n)).0.end, End::Killed);
        starts.push((what, bench.rig.tree()));
        bench.rig.reboot();
        starts.push((what, bench.rig.tree()));
    }
    let mut bad = Vec::new();
    let tried = prove::cases("cuts", test, starts.len(), 1);
    for (what, start) in tried.iter().map(|at| &starts[*at]) {
        let (whole, said) = bench.whole(start, &UPDATE, 0);
        assert!(said.contains("undoing it first"), "{what}: {said}");
        // The room to unpack in comes after everything was set back and erased.
        let end = whole.iter().position(|c| c.ends_with("/balena/tmp")).unwrap() + 1;
        let every = if *what == "installed" { 1 } else { 6 };
        let candidates: Vec<usize> = (1..=end).step_by(every).collect();
        for n in chosen(test, &candidates, FEW) {
            if let Err(e) = bench.point(start, &UPDATE, n, &whole) {
                bad.push(format!("{what}: {e}"));
            }
        }
    }
    bench.assert_none(&bad);
    let (tried, starts) = (tried.len(), starts.len());
    bench.told(&format!(
        "the way back before a second update, from {tried} of {starts} states that a first one has left"
    ));
}

#[test]
fn killed_while_an_earlier_update_is_undone_with_u_boot() {
    let test = "killed_while_an_earlier_update_is_undone_with_u_boot";
    if runs(test) {
        recoveries(test, Backend::Uboot);
    }
}

#[test]
fn killed_while_an_earlier_update_is_undone_with_grub() {
    let test = "killed_while_an_earlier_update_is_undone_with_grub";
    if runs(test) {
        recoveries(test, Backend::Grub);
    }
}
