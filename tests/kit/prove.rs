//! Tests with many cases: `./dev test` tries a sample of them, `./dev prove PART` all. `scripts/prove/parts.tsv` names the tests of each part.
#![allow(dead_code, unreachable_pub)] // no test program uses all of it

use std::collections::BTreeSet;

/// Seeds with which a test has failed before: their samples are tried in every run.
const KEPT_SEEDS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/seeds.tsv"));

/// Whether all cases of this part are to be tried. `./dev prove` sets this.
pub fn is_requested(part: &str) -> bool {
    std::env::var("COPAL_PROVE").is_ok_and(|parts| parts.split(',').any(|one| one == part))
}

/// Whether a test runs whose only case is too slow for `./dev test`; says so where it does not.
pub fn runs(part: &str, test: &str) -> bool {
    let requested = is_requested(part);
    if !requested {
        eprintln!("left to prove: {part}: {test}");
    }
    requested
}

/// What a test draws its sample with: the number that `COPAL_SEED` gives, which `./dev test` takes from the commit.
pub fn seed() -> u64 {
    std::env::var("COPAL_SEED").map_or(0, |n| n.parse().expect("COPAL_SEED is a number"))
}

/// The seeds of a test's samples: the seed of this run, and each seed with which the test has failed before.
fn seeds(test: &str) -> Vec<u64> {
    // The run finds the test by this name in what the test has printed.
    assert!(!test.contains(':'), "{test} is named without its modules");
    let kept =
        KEPT_SEEDS.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('\t'));
    let kept = kept.filter(|(name, _)| *name == test);
    let mut all = vec![seed()];
    all.extend(kept.map(|(_, n)| n.trim().parse::<u64>().expect("tests/seeds.tsv has numbers")));
    all
}

/// Random numbers for one test: two tests of one run draw different ones.
fn random(test: &str, seed: u64) -> fastrand::Rng {
    // FNV-1a.
    let hash = test.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    fastrand::Rng::with_seed(hash ^ seed)
}

/// Which of `total` cases are tried, in their order: all where the part is being proved, or the share of them that `COPAL_SHARE` names (`2/5`); else
/// `few` for each seed.
pub fn cases(part: &str, test: &str, total: usize, few: usize) -> BTreeSet<usize> {
    if is_requested(part) {
        let share = std::env::var("COPAL_SHARE").unwrap_or_else(|_| "1/1".to_owned());
        let (number, count) = share.split_once('/').expect("COPAL_SHARE is a share, as in 2/5");
        let [number, count]: [usize; 2] =
            [number, count].map(|n| n.parse().expect("COPAL_SHARE has numbers"));
        return (0..total).filter(|case| case % count == number % count).collect();
    }
    if few >= total {
        return (0..total).collect();
    }
    let mut chosen = BTreeSet::new();
    for seed in seeds(test) {
        let mut random = random(test, seed);
        let size = (chosen.len() + few).min(total);
        while chosen.len() < size {
            chosen.insert(random.usize(..total));
        }
    }
    eprintln!(
        "left to prove: {part}: {test}: {} of {total} cases; COPAL_SEED={} repeats them",
        total - chosen.len(),
        seed()
    );
    chosen
}

/// Whether a test runs that is one of a group of slow ones: all of them where the part is being proved, else `few` for each seed.
pub fn is_drawn(part: &str, group: &[&str], test: &str, few: usize) -> bool {
    if is_requested(part) {
        return true;
    }
    let mut order = group.to_vec();
    random(part, seed()).shuffle(&mut order);
    // A test that has failed before always runs.
    let drawn = order.iter().take(few).any(|name| *name == test) || seeds(test).len() > 1;
    let what = if drawn { "drawn from" } else { "left to" };
    eprintln!("{what} prove: {part}: {test}; COPAL_SEED={} draws the same", seed());
    drawn
}

/// Random numbers for the cases of a test that draws them, one generator for each: `all` of them where the part is being proved, else `few`
/// for each seed.
pub fn draws(part: &str, test: &str, all: usize, few: usize) -> Vec<fastrand::Rng> {
    let count = if is_requested(part) { all } else { few };
    let mut found = Vec::new();
    for seed in seeds(test) {
        let mut random = random(test, seed);
        found.extend((0..count).map(|_| random.fork()));
    }
    if count < all {
        eprintln!(
            "left to prove: {part}: {test}: {} of {all} rounds; COPAL_SEED={} repeats them",
            all - count,
            seed()
        );
    }
    found
}

/// Random numbers for a test that bounds by itself how far it goes, one generator for each seed; `None` where the part is being proved, and
/// nothing is bounded.
pub fn samples(part: &str, test: &str) -> Option<Vec<fastrand::Rng>> {
    if is_requested(part) {
        return None;
    }
    eprintln!("left to prove: {part}: {test}: all but a sample; COPAL_SEED={} repeats it", seed());
    Some(seeds(test).into_iter().map(|seed| random(test, seed)).collect())
}
