//! What a person sees of a flash: on terminals of several widths, on one without a bar, and in a file.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::kit::needs::{needs, tools};
use crate::kit::process::tool;
use crate::kit::storage_daemon::Daemon;
use crate::kit::terminal::{WIDTHS, assert_fits, on_terminal, shown};
use crate::support::*;

/// Digits as `9`, one for each number with its unit, so that texts of different runs are equal.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for word in text.split_inclusive(' ') {
        let (bare, end) = (word.trim_end_matches([' ', ',', ';', ':']), word);
        let end = &end[bare.len()..];
        let is_number = bare.starts_with(|c: char| c.is_ascii_digit());
        let is_digest = bare.len() == 64 && bare.bytes().all(|b| b.is_ascii_hexdigit());
        let is_unit = matches!(bare, "B" | "KiB" | "MiB" | "GiB" | "B/s" | "KiB/s" | "MiB/s" | "GiB/s");
        let rate = if bare.ends_with("/s") { "UNIT/s" } else { "UNIT" };
        out += if is_digest {
            "DIGEST"
        } else if is_number {
            "9"
        } else if is_unit {
            rate
        } else {
            bare
        };
        out += end;
    }
    out
}

/// An image, and a disk that takes some seconds for it.
struct Place {
    disk: Daemon,
    image: PathBuf,
    _dir: tempfile::TempDir,
}

/// Bytes a second: the rate is known before the write ends.
const RATE: u64 = 60_000_000;

impl Place {
    /// `None`, and a line that says so, where there is no storage daemon with FUSE.
    fn new(test: &str) -> Option<Place> {
        let dir = folder();
        let image = dir.path().join("os.img");
        tool(&["cp", "--sparse=always", text(os_image()), text(&image)]);
        let backing = dir.path().join("disk");
        fill(&backing, std::fs::metadata(&image).unwrap().len());
        let disk = Daemon::throttled(&backing, RATE).map_err(|why| not_run(test, why)).ok()?;
        Some(Place { disk, image, _dir: dir })
    }

    /// What a terminal of so many columns gets. The image is checked, written and verified.
    fn on_terminal(&self, columns: u16, environment: &[(&str, &str)]) -> String {
        let (copal, image, target) =
            (env!("CARGO_BIN_EXE_copal"), text(&self.image), text(&self.disk.export));
        let call = [copal, "flash", "--yes", "--sha256", "--image", image, "--target", target];
        let out = on_terminal(columns, environment, &call);
        let shown = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success(), "{shown}");
        assert_equal(&self.image, &self.disk.export);
        shown
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// To the begin of a line, and clears it.
const CLEAR: &str = "\r\u{1b}[K";

/// The last four lines, as they are on every terminal.
#[track_caller]
fn assert_ends_with_four_lines(place: &Place, shown: &str) {
    let lines: Vec<&str> = shown.trim_end().rsplitn(5, "\r\n").take(4).collect();
    let last: Vec<String> =
        lines.iter().rev().map(|line| without_numbers(line.rsplit(CLEAR).next().unwrap())).collect();
    let expected = [
        "image   os.img, 9 UNIT: 9 UNIT written, 9 UNIT zeroed".to_owned(),
        format!("target  {}: the image was read back from it, and is right", place.disk.export.display()),
        "SHA-256 DIGEST".to_owned(),
        "time    9 s: check 9 s, 9 UNIT/s; write 9 s, 9 UNIT/s; verify 9 s, 9 UNIT/s".to_owned(),
    ];
    assert_eq!(last, expected, "{shown}");
}

fn percents<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let percent = |text: &str| text.split(" %").next()?.rsplit(' ').next()?.parse().ok();
    texts.into_iter().filter(|text| text.contains(" %")).filter_map(percent).collect()
}

#[test]
fn a_terminal_gets_one_bar_for_all_stages_and_four_lines() {
    needs!(tools);
    for columns in [80, 40] {
        let Some(place) = Place::new("a_terminal_gets_one_bar_for_all_stages_and_four_lines") else { return };
        let shown = place.on_terminal(columns, &[]);
        let (drawn, rest) = shown.rsplit_once(CLEAR).unwrap();
        let drawings: Vec<&str> = drawn.split(CLEAR).skip(1).collect();
        for drawing in &drawings {
            assert!(
                drawing.starts_with('[') && drawing.len() < usize::from(columns),
                "{columns}: {drawing:?}"
            );
            assert!(!drawing.contains(['\n', '\u{1b}']), "{columns}: {drawing:?}");
        }
        // Each stage was seen, in this order, and the bar climbs through all of them.
        let stage = |drawing: &&str| ["check", "write", "verify"].into_iter().find(|s| drawing.contains(s));
        let mut stages: Vec<&str> = drawings.iter().filter_map(stage).collect();
        stages.dedup();
        assert_eq!(stages, ["check", "write", "verify"], "{drawings:#?}");
        let percents = percents(drawings.iter().copied());
        assert!(percents.len() >= 5 && percents.is_sorted(), "{percents:?}");
        assert!(percents.iter().all(|percent| *percent < 100), "{percents:?}");
        // The whole form, from the moment on at which a rate is known.
        let forms: Vec<String> =
            drawings.iter().map(|d| without_numbers(d.split_once("] ").unwrap().1)).collect();
        let whole = if columns == 80 {
            "9 %, 9 left; verify: 9 UNIT of 9 UNIT, 9 UNIT/s"
        } else {
            "9 %, 9 left; verify"
        };
        assert!(forms.iter().any(|form| form == whole), "{forms:#?}");
        assert!(!rest.contains('\u{1b}') && !shown.contains('{'), "{shown}");
        assert_ends_with_four_lines(&place, &shown);
    }
}

#[test]
fn a_terminal_without_a_bar_gets_lines_that_fit() {
    needs!(tools);
    for (columns, environment) in [(20, ("TERM", "xterm")), (40, ("NO_COLOR", "1"))] {
        let Some(place) = Place::new("a_terminal_without_a_bar_gets_lines_that_fit") else { return };
        let shown = place.on_terminal(columns, &[environment]);
        assert!(!shown.contains(['\u{1b}', '{']), "{environment:?}: {shown:?}");
        assert_ends_with_four_lines(&place, &shown);
        let lines: Vec<&str> = shown.trim_end().split("\r\n").collect();
        let progress = &lines[..lines.len() - 4];
        assert!(!progress.is_empty(), "{shown}");
        for line in progress {
            assert!(line.len() < usize::from(columns), "{columns}: {line:?}");
        }
        assert!(percents(progress.iter().copied()).is_sorted(), "{progress:?}");
    }
}

#[test]
fn without_a_terminal_there_are_lines_at_a_bounded_pace_and_a_receipt() {
    needs!(tools);
    let test = "without_a_terminal_there_are_lines_at_a_bounded_pace_and_a_receipt";
    let Some(place) = Place::new(test) else { return };
    let mut flash = copal();
    flash.args(["flash", "--sha256", "--image"]).arg(&place.image).arg("--target").arg(&place.disk.export);
    let mut child = flash.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines: Vec<(Instant, String)> = Vec::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        lines.push((Instant::now(), line.unwrap()));
    }
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{lines:?}");
    let receipt: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(receipt["check"]["seconds"].as_f64().unwrap() > 0.0, "{receipt}");
    assert_eq!(without_numbers(&lines[0].1), "check: 9 UNIT to do");
    // The reader may be late for one line and in time for the next, so they are counted.
    let took = lines.last().unwrap().0 - lines[0].0;
    assert!(lines.len() <= took.as_secs() as usize + 2, "{lines:#?}");
    assert!(lines.iter().all(|(_, line)| !line.contains(['\u{1b}', '\r'])), "{lines:#?}");
    let texts = lines.iter().map(|(_, line)| line.as_str());
    assert!(percents(texts).is_sorted(), "{lines:#?}");
}

/// A flash on a terminal, with the answer to its question: exit code and what it shows.
fn answering(target: &Path, more: &[&str], answer: Option<&str>) -> (i32, String) {
    let call = format!(
        "exec {} flash {} {} {}",
        env!("CARGO_BIN_EXE_copal"),
        text(os_image()),
        text(target),
        more.join(" ")
    );
    let mut child = Command::new("timeout")
        .args(["300", "script", "-qec", &call, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("COPAL_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut out, mut shown) = (child.stdout.take().unwrap(), Vec::new());
    if let Some(answer) = answer {
        let mut byte = [0];
        while !shown.ends_with(b"[y/N] ") && out.read(&mut byte).unwrap() > 0 {
            shown.push(byte[0]);
        }
        child.stdin.as_mut().unwrap().write_all(answer.as_bytes()).unwrap();
    }
    out.read_to_end(&mut shown).unwrap();
    (child.wait().unwrap().code().unwrap(), String::from_utf8(shown).unwrap())
}

#[test]
fn a_terminal_is_asked_once_before_a_used_target_is_erased() {
    needs!(tools);
    let dir = folder();
    let target = dir.path().join("disk.img");
    // A new file, then an empty one: nothing is lost.
    for size in [0, 1 << 20] {
        let (code, shown) = answering(&target, &[], None);
        assert!(code == 0 && !shown.contains("[y/N]"), "{size}: {shown}");
        assert_equal(os_image(), &target);
        std::fs::write(&target, vec![0; size]).unwrap();
    }
    // ^C and ^D as a terminal sends them.
    for (content, holds) in
        [(std::fs::read(os_image()).unwrap(), "resin-boot"), (vec![7; 2 << 20], "nothing that is known")]
    {
        std::fs::write(&target, &content).unwrap();
        for (answer, end) in
            [("n\n", "[aborted]"), ("\n", "[aborted]"), ("\u{4}", "[aborted]"), ("\u{3}", "[interrupted]")]
        {
            let (code, shown) = answering(&target, &[], Some(answer));
            assert_eq!(code, 3, "{answer:?}: {shown}");
            assert!(
                shown.contains(holds) && shown.contains(end) && shown.contains("nothing was written"),
                "{answer:?}: {shown}"
            );
            assert!(std::fs::read(&target).unwrap() == content, "{answer:?}");
        }
    }
    let (code, shown) = answering(&target, &[], Some("y\n"));
    assert!(code == 0 && shown.matches("[y/N]").count() == 1, "{shown}");
    assert_equal(os_image(), &target);
    for more in [&["--yes"][..], &["--json"], &["--plan"]] {
        let (code, shown) = answering(&target, more, None);
        assert!(code == 0 && !shown.contains("[y/N]"), "{more:?}: {shown}");
    }
}

#[test]
fn an_image_of_unknown_size_has_bytes_and_rate_and_no_percent() {
    needs!(tools);
    let dir = folder();
    let (packed, target) = (dir.path().join("os.img.gz"), dir.path().join("disk"));
    tool(&["sh", "-ec", "gzip -1 -c \"$1\" >\"$2\"", "sh", text(os_image()), text(&packed)]);
    let out = flash(&packed, &target, &["--json", "--single-pass"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let lines: Vec<serde_json::Value> =
        String::from_utf8(out.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let of = |stage: &str| {
        lines.iter().filter(|l| l["stage"] == stage && l["state"] != "end").cloned().collect::<Vec<_>>()
    };
    assert!(of("write").iter().all(|l| l["job_percent"].is_null() && l["job_eta"].is_null()), "{lines:#?}");
    assert!(of("verify").iter().all(|l| l["job_percent"].is_u64()), "{lines:#?}");
    let ends = lines.iter().filter(|l| l["state"] == "end").map(|l| l["job_percent"].as_u64());
    assert_eq!(ends.map(|percent| percent == Some(100)).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn a_plan_is_whole_elsewhere_and_fits_into_a_terminal() {
    needs!(tools);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("disk.img");
    std::fs::write(&target, vec![1; 2 << 20]).unwrap();
    let argv = [env!("CARGO_BIN_EXE_copal"), "flash", text(os_image()), text(&target), "--plan"];
    let out = Command::new(argv[0]).args(&argv[1..]).output().unwrap();
    let whole = String::from_utf8(out.stdout).unwrap();
    assert!(whole.ends_with("nothing was written: this is the plan\n"), "{whole}");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let command = format!("exec {} 2>/dev/null", argv.join(" "));
    for columns in WIDTHS {
        for environment in [&[][..], &[("NO_COLOR", "1")]] {
            let text = shown(columns, environment, &["sh", "-c", &command]);
            assert_fits(&text, columns);
            assert_eq!(words(&text), words(&whole), "{columns}");
        }
    }
}
