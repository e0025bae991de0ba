//! Text for people, in the width of their terminal.

use crate::progress::lines::wrap;
use crate::sys::terminal;

/// Where no terminal says how wide it is.
const USUAL_COLUMNS: u16 = 80;

/// Of the labels, with the space after the longest.
const LABEL_COLUMNS: usize = 11;

/// With less space for the text, a label has a line of its own.
const LEAST_TEXT_COLUMNS: usize = 20;

const NARROW_INDENT: usize = 2;

/// Columns for text on stdout. The last one of a terminal stays free: in it, some terminals begin a new line.
pub(super) fn columns() -> usize {
    usize::from(terminal::stdout_width().unwrap_or(USUAL_COLUMNS).saturating_sub(1))
}

/// Lines of `label  text`, wrapped between words. A word that is too long for a line has a line of its own, and each line of `text` begins
/// a new one.
pub(super) fn labelled(label: &str, text: &str, columns: usize) -> String {
    let is_narrow = columns < LABEL_COLUMNS + LEAST_TEXT_COLUMNS;
    let indent = if is_narrow { NARROW_INDENT } else { LABEL_COLUMNS };
    let lines: Vec<String> =
        text.lines().flat_map(|line| wrap(line, columns.saturating_sub(indent))).collect();
    let blank = " ".repeat(indent);
    let text = lines.join(&format!("\n{blank}"));
    if is_narrow { format!("{label}\n{blank}{text}") } else { format!("{label:<LABEL_COLUMNS$}{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_after_a_newline() {
        let text = "one two three four five\nsix";
        assert_eq!(
            labelled("size", text, 33),
            "size       one two three four\n           five\n           six"
        );
        assert_eq!(labelled("size", text, 12), "size\n  one two\n  three four\n  five\n  six");
        assert_eq!(labelled("size", "", 33), "size       ");
        assert_eq!(labelled("a", "unbreakable", 4), "a\n  unbreakable");
    }
}
