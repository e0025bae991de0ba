//! Results for people, on terminals of several widths and without one.

use crate::kit::terminal::{WIDTHS, assert_fits, printed, shown};
use crate::names::{copal, stdout};
use crate::status::device;

const COPAL: &str = env!("CARGO_BIN_EXE_copal");

const EXPLAINED: [&str; 3] = [
    "\
image-damaged
cause      The compressed image does not decode to its end, does not match its
           own checksum, or is followed by other bytes.
remedy     fetch the image again: it is truncated, damaged, or has bytes after
           its end
exit code  3: nothing was written
           4: it failed after writing had begun
",
    "\
image-damaged
cause      The compressed image does
           not decode to its end, does
           not match its own checksum,
           or is followed by other
           bytes.
remedy     fetch the image again: it is
           truncated, damaged, or has
           bytes after its end
exit code  3: nothing was written
           4: it failed after writing
           had begun
",
    "\
image-damaged
cause
  The compressed
  image does not
  decode to its
  end, does not
  match its own
  checksum, or is
  followed by other
  bytes.
remedy
  fetch the image
  again: it is
  truncated,
  damaged, or has
  bytes after its
  end
exit code
  3: nothing was
  written
  4: it failed
  after writing had
  begun
",
];

#[test]
fn an_explanation_is_as_wide_as_the_terminal() {
    assert_eq!(printed(&[COPAL, "explain", "image-damaged"]), EXPLAINED[0]);
    for (columns, expected) in WIDTHS.into_iter().zip(EXPLAINED) {
        // As it is copied from an error.
        assert_eq!(shown(columns, &[], &[COPAL, "explain", "[image-damaged]"]), expected, "{columns}");
        assert_fits(expected, columns);
    }
}

#[test]
fn every_code_has_a_line_on_every_terminal() {
    use copal::error::Code;
    let codes: Vec<String> = Code::ALL.iter().map(ToString::to_string).collect();
    let first = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let whole = stdout(&copal(&["explain"]));
    assert_eq!(first(&whole), codes);
    let busy = "busy                         Another program holds the device or the lock that the job needs";
    assert!(whole.lines().any(|line| line == busy), "{whole}");
    for columns in WIDTHS {
        let text = shown(columns, &[], &[COPAL, "explain"]);
        assert_eq!(first(&text), codes);
        assert_fits(&text, columns);
        let line = text.lines().find(|line| line.starts_with("busy")).unwrap();
        let cut = "busy                         Another program holds the device or the lock that…";
        assert_eq!(line, if columns == 80 { cut } else { "busy" });
    }
}

#[test]
fn the_status_is_whole_elsewhere_and_fits_into_a_terminal() {
    let mut t = device();
    // A problem, whose line is long.
    t.file("/mnt/state/rollback-health-triggered", "");
    std::fs::remove_file(t.paths().boot().join("resinOS_uEnv.txt")).unwrap();
    std::fs::create_dir(t.paths().boot().join("resinOS_uEnv.txt")).unwrap();
    let root = t.paths().root().to_str().unwrap().to_owned();
    let argv = [COPAL, "status", "--root", &root];
    let whole = stdout(&copal(&argv[1..]));
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert!(whole.lines().any(|line| line.chars().count() > 80), "{whole}");
    for columns in WIDTHS {
        let text = shown(columns, &[], &argv);
        assert_fits(&text, columns);
        assert_eq!(words(&text), words(&whole), "{columns}");
    }
}
