//! `copal explain`.

use clap::Args;
use serde_json::{Value, json};

use super::Ui;
use super::labelled::{columns, labelled};
use crate::error::{Code, Effect, Error, Result, exit};
use crate::sys::terminal;

const EXAMPLES: &str = "\
Examples:
  copal explain image-damaged
  copal explain            all codes, one a line";

/// Say what an error code means: its cause, remedy and exit codes
///
/// The code is the word in brackets in an error. Without a code: all of them.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(super) struct ExplainArgs {
    /// The code of an error
    code: Option<String>,

    /// The same as a JSON line on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run_explain(args: &ExplainArgs, ui: &Ui) -> Result<()> {
    let (codes, text) = match &args.code {
        None => (Code::ALL.to_vec(), list(terminal::stdout_width().map(|_| columns()))),
        Some(word) => {
            let code = named(word)?;
            (vec![code], explained(code, columns()))
        }
    };
    ui.result("explain", &codes.into_iter().map(value).collect::<Vec<_>>(), &text);
    Ok(())
}

/// The code, also as it is printed: in brackets.
fn named(word: &str) -> Result<Code> {
    let bare = word.trim_matches(['[', ']']).to_lowercase();
    Code::named(&bare).ok_or_else(|| {
        let nearest: Vec<String> = nearest(&bare).into_iter().map(|code| format!("`{code}`")).collect();
        let hint = match nearest.as_slice() {
            [] => String::new(),
            [one] => format!("the nearest is {one}; "),
            several => format!("the nearest are {}; ", several.join(", ")),
        };
        Error::new(Code::Usage, format!("there is no error code `{word}`"))
            .object(word)
            .with_hint(format!("{hint}`copal explain` lists all codes"))
    })
}

/// At most three, the nearest first: with few letters changed, or else with the same words.
fn nearest(word: &str) -> Vec<Code> {
    const MOST: usize = 3;
    let most_changes = word.len() / 3;
    let mut found: Vec<(usize, Code)> =
        Code::ALL.iter().map(|code| (changes(word, code.as_str()), *code)).collect();
    found
        .retain(|(changes, code)| *changes <= most_changes || word.len() > 2 && code.as_str().contains(word));
    found.sort_by_key(|(changes, _)| *changes);
    found.into_iter().map(|(_, code)| code).take(MOST).collect()
}

/// How many letters have to be put in, taken out or replaced (the distance of Levenshtein).
fn changes(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let (mut diagonal, mut left) = (i, i + 1);
        for (above, b) in row.iter_mut().skip(1).zip(to.bytes()) {
            left = (*above + 1).min(left + 1).min(diagonal + usize::from(a != b));
            diagonal = std::mem::replace(above, left);
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

fn explained(code: Code, columns: usize) -> String {
    let exits: Vec<String> =
        exit::of_code(code).iter().map(|(exit, effect)| format!("{exit}: {}", words(*effect))).collect();
    let lines = [
        code.to_string(),
        labelled("cause", code.cause(), columns),
        labelled("remedy", code.remedy(), columns),
        labelled("exit code", &exits.join("\n"), columns),
    ];
    lines.join("\n")
}

fn words(effect: Effect) -> &'static str {
    match effect {
        Effect::Refused => "nothing was written",
        Effect::Written => "it failed after writing had begun",
        Effect::Completed => "the job was done",
    }
}

/// Each code with the first sentence of its cause, cut to the width of a terminal. A narrow terminal gets the codes.
fn list(columns: Option<usize>) -> String {
    const LEAST_TEXT_COLUMNS: usize = 20;
    let longest = Code::ALL.iter().map(|code| code.as_str().len()).max().unwrap_or_default();
    let line = |code: &Code| {
        let cause = code.cause().trim();
        let first = cause.split_once(". ").map_or(cause, |(first, _)| first).trim_end_matches('.');
        let space = columns.map_or(usize::MAX, |columns| columns.saturating_sub(longest + 2));
        match first.char_indices().nth(space.saturating_sub(1)) {
            _ if space < LEAST_TEXT_COLUMNS => code.to_string(),
            Some((end, _)) if first.chars().count() > space => {
                format!("{:<longest$}  {}…", code.as_str(), first.get(..end).unwrap_or_default().trim_end())
            }
            _ => format!("{:<longest$}  {first}", code.as_str()),
        }
    };
    Code::ALL.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn value(code: Code) -> Value {
    let exits: Vec<Value> =
        exit::of_code(code).iter().map(|(exit, effect)| json!({ "exit": exit, "effect": effect })).collect();
    json!({ "code": code.as_str(), "cause": code.cause().trim(), "remedy": code.remedy(), "exit_codes": exits })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted() {
        for (from, to, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("", "ab", 2),
            ("busy", "bsuy", 2),
            ("io", "ion", 1),
            ("abc", "xbc", 1),
        ] {
            assert_eq!(changes(from, to), expected, "{from} {to}");
        }
    }

    #[test]
    fn a_wrong_letter_or_a_part_finds_the_code() {
        assert_eq!(nearest("image-damagd").first(), Some(&Code::ImageDamaged));
        assert_eq!(nearest("busyy"), [Code::Busy]);
        assert!(nearest("damaged").contains(&Code::ImageDamaged));
        assert!(nearest("qqqqqqqq").is_empty() && nearest("").is_empty());
        assert!(nearest("target").len() == 3);
    }
}
