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
    beside(label, text, LABEL_COLUMNS, columns)
}

/// Lines that are too long for the terminal, wrapped; those with a label in their first `indent` columns go on below their text. For verbs whose
/// lines are whole where stdout is no terminal.
pub(super) fn fitted(text: &str, indent: usize) -> String {
    if terminal::stdout_width().is_none() { text.to_owned() } else { fit(text, indent, columns()) }
}

fn fit(text: &str, indent: usize, columns: usize) -> String {
    let line = |line: &str| {
        if line.chars().count() <= columns {
            return line.to_owned();
        }
        let split = line.char_indices().nth(indent).map_or(0, |(at, _)| at);
        match line.split_at(split) {
            (label, text) if label.ends_with(' ') && !text.starts_with(' ') => {
                beside(label.trim_end(), text, indent, columns)
            }
            _ => wrap(line, columns).join("\n"),
        }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// In a narrow terminal the label has a line of its own.
fn beside(label: &str, text: &str, indent: usize, columns: usize) -> String {
    let is_narrow = columns < indent + LEAST_TEXT_COLUMNS;
    let indent = if is_narrow { NARROW_INDENT } else { indent };
    let lines: Vec<String> =
        text.lines().flat_map(|line| wrap(line, columns.saturating_sub(indent))).collect();
    let blank = " ".repeat(indent);
    let text = lines.join(&format!("\n{blank}"));
    match label {
        "" => format!("{blank}{text}"),
        _ if is_narrow => format!("{label}\n{blank}{text}"),
        _ => format!("{label:<indent$}{text}"),
    }
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

    #[test]
    fn only_lines_that_are_too_long_change() {
        let text = "a sentence of some length\nslot A   one two three four five six\n         seven eight nine ten eleven twelve\nflag     x";
        let expected = "a sentence of some length\nslot A   one two three four five\n         six\n         seven eight nine ten\n         eleven twelve\nflag     x";
        assert_eq!(fit(text, 9, 33), expected);
        assert_eq!(
            fit("slot A   one two three\n         four five six seven", 9, 16),
            "slot A\n  one two three\n  four five six\n  seven"
        );
        assert_eq!(fit("a sentence of words", 9, 12), "a sentence\nof words");
    }
}
