//! How far a load or a pull is, by recorded answers of balenaEngine.

use copal::engine::{Progress, archive};
use copal::job::Stage;

use crate::calls::{Bench, says};
use crate::kit::stub_engine::{Kind, Script, Then};

const PULL_FULL: &str = include_str!("../kit/engine_streams/pull-full.txt");
const PULL_DELTA: &str = include_str!("../kit/engine_streams/pull-delta.txt");
const LOAD_FULL: &str = include_str!("../kit/engine_streams/load-full.txt");
const LOAD_DELTA: &str = include_str!("../kit/engine_streams/load-delta.txt");
const LOAD_QUIET: &str = include_str!("../kit/engine_streams/load-quiet.txt");

fn seen(script: Script, work: impl FnOnce(&Bench, &mut dyn FnMut(&Progress))) -> Vec<Progress> {
    let bench = Bench::new(|s| Script { root: s.root, ..script });
    let mut seen = Vec::new();
    work(&bench, &mut |p| seen.push(*p));
    seen
}

/// What is seen of a pull, and whether it succeeds.
fn pull(faults: impl FnOnce(Script) -> Script) -> (Vec<Progress>, bool) {
    let mut succeeds = false;
    let seen = seen(faults(Script::default()), |bench, progress| {
        succeeds = bench.engine.pull("127.0.0.1:5000/os:full", progress).is_ok();
    });
    (seen, succeeds)
}

fn load(stream: &str, name: &str) -> Vec<Progress> {
    let script = Script { archive: name.to_owned(), ..Script::default() };
    seen(script.fault("load", 1, Kind::Recorded(stream.to_owned())), |bench, progress| {
        // As large as the layers of the recording, and a little that no layer is.
        let archive = bench.archive(usize::try_from(layers(stream) + 10_000).unwrap());
        bench.engine.load(&archive::open(&archive).unwrap(), progress).unwrap();
    })
}

/// The bytes of all layers that a recorded load names.
fn layers(stream: &str) -> u64 {
    let lines = stream.lines().map(|l| serde_json::from_str(l.split_once(' ').unwrap().1).unwrap());
    let mut layers: Vec<(String, u64)> = lines
        .filter_map(|l: serde_json::Value| {
            Some((l["id"].as_str()?.to_owned(), l["progressDetail"]["total"].as_u64()?))
        })
        .collect();
    layers.sort();
    layers.dedup();
    layers.iter().map(|(_, total)| total).sum()
}

/// Percent of the stage at each step, which never fall.
#[track_caller]
fn percents(seen: &[Progress], stage: Stage) -> Vec<u64> {
    let of = seen.iter().filter(|p| p.stage == stage);
    let percents: Vec<u64> = of.map(|p| p.done * 100 / p.total.expect("a total")).collect();
    assert!(percents.is_sorted(), "{percents:?}");
    percents
}

#[test]
fn a_pull_of_balena_engine_is_as_far_as_all_its_layers_together() {
    for (stream, total, expected) in [
        (PULL_FULL, 29_366_906, &[1, 11, 21, 30, 43, 60, 63, 84, 100][..]),
        (PULL_DELTA, 5_781_368, &[1, 5, 63, 75, 89, 100]),
    ] {
        let (seen, succeeds) = pull(|s| s.fault("pull", 1, Kind::Recorded(stream.to_owned())));
        assert!(succeeds);
        // It unpacks during the transfer, without a stage for that.
        assert!(seen.iter().all(|p| p.stage == Stage::Pull && p.total == Some(total)), "{seen:?}");
        assert_eq!(percents(&seen, Stage::Pull), expected);
    }
}

#[test]
fn a_pull_that_goes_on_after_a_loss_counts_what_it_has() {
    let total = |current: u64, total: u64| {
        format!(
            "{}\r\n",
            serde_json::json!({ "id": "Total", "progressDetail": { "current": current, "total": total } })
        )
    };
    let first = [total(10, 100), total(60, 100)];
    // One layer of 40 is complete, and not fetched again.
    let second =
        [total(0, 60), total(15, 60), total(60, 60), "{\"status\":\"Status: Downloaded\"}\r\n".to_owned()];
    let pieces = |lines: &[String]| lines.iter().map(String::as_str).collect::<Vec<_>>().join("");
    let (first, second) = (pieces(&first), pieces(&second));
    let (seen, _) = pull(|s| {
        s.fault("pull", 1, says(&[&first], Then::Cut)).fault("pull", 1, says(&[&second], Then::End))
    });
    assert_eq!(percents(&seen, Stage::Pull), [10, 60, 60, 60, 100]);
}

#[test]
fn a_load_of_balena_engine_is_as_far_as_its_layers_are_of_the_archive() {
    for (stream, name) in [(LOAD_FULL, "os:v2"), (LOAD_DELTA, "127.0.0.1:5000/os:delta")] {
        let seen = load(stream, name);
        assert_eq!(*percents(&seen, Stage::Load).last().unwrap(), 100);
        let percents = percents(&seen, Stage::Unpack);
        assert!(percents[0] <= 1, "{percents:?}");
        assert!(*percents.last().unwrap() >= 97, "{percents:?}");
        // The second layer begins where the first one ends, and not at the end of the stage.
        assert!(percents.iter().filter(|p| (40..99).contains(*p)).count() >= 2, "{percents:?}");
    }
    assert!(load(LOAD_QUIET, "os:v2").iter().all(|p| p.stage == Stage::Load));
}

#[test]
fn a_pull_of_dockerd_has_two_stages() {
    let layer = |status: &str, id: &str, current: u64, total: u64| {
        let detail = serde_json::json!({ "current": current, "total": total });
        format!("{}\r\n", serde_json::json!({ "status": status, "id": id, "progressDetail": detail }))
    };
    let plain = |status: &str, id: &str| {
        format!("{}\r\n", serde_json::json!({ "status": status, "id": id, "progressDetail": {} }))
    };
    let lines = [
        plain("Pulling fs layer", "a"),
        plain("Pulling fs layer", "b"),
        layer("Downloading", "a", 5, 10),
        layer("Downloading", "b", 10, 30),
        plain("Verifying Checksum", "a"),
        plain("Download complete", "a"),
        layer("Extracting", "a", 10, 10),
        plain("Pull complete", "a"),
        plain("Download complete", "b"),
        layer("Extracting", "b", 15, 30),
        plain("Pull complete", "b"),
        "{\"status\":\"Status: Downloaded newer image\"}\r\n".to_owned(),
    ];
    let (seen, _) =
        pull(|s| s.fault("pull", 1, says(&lines.iter().map(String::as_str).collect::<Vec<_>>(), Then::End)));
    let of = |stage| {
        seen.iter().filter(|p| p.stage == stage).map(|p| (p.done, p.total.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(of(Stage::Pull), [(5, 10), (15, 40), (20, 40), (20, 40), (40, 40)]);
    assert_eq!(of(Stage::Unpack), [(10, 10), (10, 10), (25, 40), (40, 40)]);
}
