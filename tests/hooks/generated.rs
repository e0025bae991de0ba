//! Hook directories that are put together at random, beside a model of meta-balena's runner (`hostapp-update-hooks` of v8.0.2).

use copal::hooks::{Phases, run};

use crate::support::Site;

const WORDS: [&str; 5] = ["before", "forward", "after", "commit", "cleanup"];

/// A hook and its exit status.
type Tree = Vec<(String, u8)>;

fn tree(random: &mut fastrand::Rng) -> Tree {
    let mut tree = Tree::new();
    for n in 0..random.usize(2..8) {
        let words: String =
            (0..random.usize(0..3)).map(|_| format!("-{}", random.choice(WORDS).unwrap())).collect();
        let folder = match random.u8(0..3) {
            0 => format!("{}-dir/", random.usize(0..9)),
            1 => format!("{}-{}/", random.usize(0..9), random.choice(WORDS).unwrap()),
            _ => String::new(),
        };
        let status = if random.u8(0..4) == 0 { random.u8(1..9) } else { 0 };
        tree.push((format!("{folder}{}{n}{words}", random.usize(0..9)), status));
    }
    tree.sort();
    tree
}

/// Whose rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    Script,
    /// With the differences that `docs/hooks.md` names.
    Copal,
}

/// Which hooks run, and whether that is a success. `errexit` ends the script at the first hook that fails outside of a condition.
fn model(tree: &Tree, phases: Phases, rules: Rules) -> (Vec<String>, bool) {
    let with = |word: &str| tree.iter().filter(|(name, _)| name.contains(word)).collect::<Vec<_>>();
    let mut ran: Vec<String> = Vec::new();
    let all = |hooks: Vec<&(String, u8)>, ran: &mut Vec<String>| {
        for (name, status) in hooks {
            if rules == Rules::Copal && ran.contains(name) {
                continue;
            }
            ran.push(name.clone());
            if *status != 0 {
                return false;
            }
        }
        true
    };
    if phases.before && !all(with("before"), &mut ran) {
        return (ran, false);
    }
    // Each of its two `find` lists a hook of the first format that has the word.
    let times = |name: &str| usize::from(!name.contains('/')) + usize::from(name.contains("forward"));
    let forward = tree.iter().flat_map(|hook| std::iter::repeat_n(hook, times(&hook.0))).collect();
    let forward = !phases.forward || all(forward, &mut ran);
    if phases.after && !all(with("after"), &mut ran) && (forward || rules == Rules::Script) {
        return (ran, false);
    }
    if phases.commit && (forward || rules == Rules::Script) && !all(with("commit"), &mut ran) {
        return (ran, false);
    }
    if !forward {
        for (name, status) in with("cleanup") {
            ran.push(name.clone());
            if rules == Rules::Script && *status != 0 {
                break;
            }
        }
    }
    (ran, forward)
}

#[test]
fn generated_directories_run_as_with_the_script_but_for_what_is_documented() {
    let mut random = fastrand::Rng::with_seed(15);
    let (mut same, mut failed) = (0, 0);
    for _ in 0..150 {
        let tree = tree(&mut random);
        let site = Site::new();
        site.tell(&tree.iter().map(|(name, status)| (name.as_str(), *status)).collect::<Vec<_>>());
        let undone = Phases { commit: true, ..Phases::FULL };
        for phases in [Phases::FORWARD, Phases::FULL, Phases { before: true, ..Phases::AFTER }, undone] {
            drop(std::fs::remove_file(site.at("out")));
            let result = run(&site.paths(), &site.run(phases));
            let expected = model(&tree, phases, Rules::Copal);
            assert_eq!((site.told(), result.is_ok()), expected, "{phases:?} of {tree:?}");
            same += usize::from(expected == model(&tree, phases, Rules::Script));
            failed += usize::from(!expected.1);
        }
    }
    assert!(same > 300 && failed > 150, "{same} {failed}");
}
