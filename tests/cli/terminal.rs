//! Results for people, on terminals of several widths and without one.

use crate::kit::terminal::on_terminal;
use crate::names::{code, copal, stderr, stdout};

const COPAL: &str = env!("CARGO_BIN_EXE_copal");

const WIDTHS: [u16; 3] = [80, 40, 20];

/// What a terminal of so many columns shows.
#[track_caller]
pub(crate) fn shown(columns: u16, environment: &[(&str, &str)], args: &[&str]) -> String {
    let out = on_terminal(columns, environment, &[&[COPAL], args].concat());
    let text = stdout(&out).replace("\r\n", "\n");
    assert_eq!(code(&out), 0, "{args:?}: {text}");
    assert!(!text.contains(['\u{1b}', '\r']), "{args:?}: {text:?}");
    text
}

/// What the verb prints without a terminal; it is the same on one of 80 columns and, there, with `NO_COLOR`.
#[track_caller]
pub(crate) fn printed(args: &[&str]) -> String {
    let out = copal(args);
    assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{args:?}");
    for environment in [&[][..], &[("NO_COLOR", "1")]] {
        assert_eq!(shown(80, environment, args), stdout(&out), "{args:?} {environment:?}");
    }
    stdout(&out)
}

/// Asserts that no line fills the terminal, except where one word is longer.
#[track_caller]
fn assert_fits(text: &str, columns: u16) {
    for line in text.lines() {
        let fits = line.chars().count() < usize::from(columns);
        assert!(fits || !line.trim_start().contains(' '), "{columns} columns: {line:?}");
    }
}

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
    assert_eq!(printed(&["explain", "image-damaged"]), EXPLAINED[0]);
    for (columns, expected) in WIDTHS.into_iter().zip(EXPLAINED) {
        // As it is copied from an error.
        assert_eq!(shown(columns, &[], &["explain", "[image-damaged]"]), expected, "{columns}");
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
    let busy =
        "busy                          Another program holds the device or the lock that the job needs";
    assert!(whole.lines().any(|line| line == busy), "{whole}");
    for columns in WIDTHS {
        let text = shown(columns, &[], &["explain"]);
        assert_eq!(first(&text), codes);
        assert_fits(&text, columns);
        let line = text.lines().find(|line| line.starts_with("busy")).unwrap();
        let cut = "busy                          Another program holds the device or the lock tha…";
        assert_eq!(line, if columns == 80 { cut } else { "busy" });
    }
}
