//! Brace lists as bash expands them, bounded.
//!
//! `a{b,c}` → `ab ac`; nested and empty alternatives. Braces that bash takes for plain text stay as they are: `{a}`, `{}`, and those
//! without a partner. Sequences, `{1..3}`, are refused: no board uses one. Checked against bash 5.2 in the tests.

/// Limit of one expansion: `{a,b}` forty times in a row would not end. Real values give a few words.
pub(super) const MAX_WORDS: usize = 1024;

const MAX_DEPTH: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// More than [`MAX_WORDS`] results.
    Words,
    Depth,
    /// `{1..3}`, or what bash takes for text because its ends do not fit.
    Sequence,
}

/// Expands `word` to all its words in bash's order, including empty words.
pub(super) fn expand(word: &str) -> Result<Vec<String>, Refusal> {
    let chars: Vec<char> = word.chars().collect();
    expand_chars(&chars, MAX_DEPTH)
}

/// Works from left to right: literal text, one brace expression, then the same again with what follows it.
fn expand_chars(mut text: &[char], depth: usize) -> Result<Vec<String>, Refusal> {
    let depth = depth.checked_sub(1).ok_or(Refusal::Depth)?;
    let mut done = vec![String::new()];
    while let Some((open, close)) = first_expression(text) {
        let (before, inner, after) = split(text, open, close);
        let literal: String = before.iter().collect();
        if !inner.contains(&',') {
            return Err(Refusal::Sequence);
        }
        let alternatives = alternatives(inner, depth)?;
        if done.len().saturating_mul(alternatives.len()) > MAX_WORDS {
            return Err(Refusal::Words);
        }
        done = done
            .iter()
            .flat_map(|head| alternatives.iter().map(move |tail| (head, tail)))
            .map(|(head, tail)| [head, literal.as_str(), tail].concat())
            .collect();
        text = after;
    }
    let rest: String = text.iter().collect();
    for word in &mut done {
        word.push_str(&rest);
    }
    Ok(done)
}

fn split(text: &[char], open: usize, close: usize) -> (&[char], &[char], &[char]) {
    (
        text.get(..open).unwrap_or_default(),
        text.get(open + 1..close).unwrap_or_default(),
        text.get(close + 1..).unwrap_or_default(),
    )
}

/// The first `{` with a partner. bash takes `{}` at the very start for text.
fn first_expression(text: &[char]) -> Option<(usize, usize)> {
    text.iter()
        .enumerate()
        .filter(|&(i, &c)| c == '{' && !(i == 0 && matches!(text.get(1), None | Some('}'))))
        .find_map(|(open, _)| Some((open, closing(text, open)?)))
}

/// The `}` of an expression: the first one on its level that follows a `,` or `..` of that level. An earlier one is text.
fn closing(text: &[char], open: usize) -> Option<usize> {
    let mut level = 0_usize;
    let mut separated = false;
    for (i, &c) in text.iter().enumerate().skip(open + 1) {
        let next = |n: usize| text.get(i + n);
        match c {
            '{' => level += 1,
            '}' if level > 0 => level -= 1,
            '}' if separated => return Some(i),
            ',' if level == 0 => separated = true,
            '.' if level == 0 && next(1) == Some(&'.') && next(2) != Some(&'}') => separated = true,
            _ => {}
        }
    }
    None
}

/// Splits at the commas of this level and expands each part.
fn alternatives(inner: &[char], depth: usize) -> Result<Vec<String>, Refusal> {
    let mut level = 0_usize;
    let at_comma = |&c: &char| {
        match c {
            '{' => level += 1,
            '}' => level = level.saturating_sub(1),
            _ => {}
        }
        c == ',' && level == 0
    };
    let mut words = Vec::new();
    for part in inner.split(at_comma) {
        words.extend(expand_chars(part, depth)?);
        if words.len() > MAX_WORDS {
            return Err(Refusal::Words);
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Write as _;
    use std::process::Command;

    /// bash's result for each word, after `prefix`; bash drops empty words.
    fn bash(prefix: &str, words: &[String]) -> Vec<Vec<String>> {
        let mut script = String::from("set -f\nshow() { printf '<%s>' \"$@\"; printf '\\n'; }\n");
        for word in words {
            writeln!(script, "show {prefix}{word}").unwrap();
        }
        let output = Command::new("bash").arg("-c").arg(script).env("LC_ALL", "C").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8(output.stdout).unwrap();
        lines
            .lines()
            .map(|l| l.trim_start_matches('<').trim_end_matches('>').split("><").map(str::to_owned).collect())
            .collect()
    }

    fn same_as_bash(prefix: &str, words: &[String]) {
        let theirs = bash(prefix, words);
        assert_eq!(theirs.len(), words.len());
        for (word, theirs) in words.iter().zip(theirs) {
            let mut ours = expand(&format!("{prefix}{word}")).unwrap();
            ours.retain(|w| !w.is_empty());
            if ours.is_empty() {
                ours.push(String::new()); // `show` without arguments prints one empty pair
            }
            assert_eq!(ours, theirs, "{prefix}{word}");
        }
    }

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn odd_words_expand_as_in_bash() {
        let words = words(
            "md/balena{,_*} {a} {a,b a,b} {{a,b} {a,b}} {a,{b,c}} {,} x{,} {{a,b},c {a{b,c}d {} {},b x{},b} {a,} {..} {1..} \
             {a,b}..{c,d} {1..3,a} {{},a} }{a,b} {a,}} {,a}.{b {{a,b}..c} {a},b} {, {a..b,c} {a.. a{..}b{c,d} \
             {{a,b},{c,d}}{1,2} { } {a,b}{} {}{a,b} {}} {a,b}{},c}",
        );
        for prefix in ["", "/dev/"] {
            assert_eq!(lists(prefix, &words), words);
            same_as_bash(prefix, &words);
        }
    }

    #[test]
    fn sequences_are_refused() {
        for word in words(
            "{1..3} {01..10..3} {3..1..2} {a..e} {a..e..2} {-1..2} {a..3} {a...c} {x{0..2},sd{a,b}} {a,b{1..2} a{1..2}{ {{1..3}} \
             {{a..c}..e} {a,b}{1..2}",
        ) {
            assert_eq!(expand(&word), Err(Refusal::Sequence), "{word}");
            assert_eq!(expand(&format!("/dev/{word}")), Err(Refusal::Sequence), "/dev/{word}");
        }
    }

    /// Those that are not refused as sequences.
    fn lists(prefix: &str, words: &[String]) -> Vec<String> {
        let is_list = |word: &&String| expand(&format!("{prefix}{word}")) != Err(Refusal::Sequence);
        words.iter().filter(is_list).cloned().collect()
    }

    /// Without numbers of four digits, of which bash would make too many words.
    fn sequence_like() -> impl Strategy<Value = String> {
        "[a{}{},.b013-]{1,12}".prop_filter("many words", |word| {
            !word.as_bytes().windows(4).any(|four| four.iter().all(u8::is_ascii_digit))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn any_word_expands_as_in_bash(
            text in prop::collection::vec("[a{},.*?]{1,12}", 150),
            sequences in prop::collection::vec(sequence_like(), 150),
        ) {
            for prefix in ["", "/dev/"] {
                same_as_bash(prefix, &lists(prefix, &text));
                same_as_bash(prefix, &lists(prefix, &sequences));
            }
        }
    }

    #[test]
    fn bounded_in_number_and_depth() {
        assert_eq!(expand(&"{a,b}".repeat(10)).unwrap().len(), 1024);
        assert_eq!(expand(&"{a,b}".repeat(40)), Err(Refusal::Words));
        assert_eq!(expand(&format!("{}{}", "{a,".repeat(40), "}".repeat(40))), Err(Refusal::Depth));
        assert_eq!(expand(&"{".repeat(4000)).unwrap(), ["{".repeat(4000)]);
    }
}
