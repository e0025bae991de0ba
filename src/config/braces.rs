//! Brace expansion as bash does it, bounded.
//!
//! `a{b,c}` → `ab ac`; nested and empty alternatives; sequences `{1..3}`, `{01..10..3}`, `{a..e}`. Braces that are plain text
//! to bash are not changed: `{a}`, `{}`, and those without a partner. The tests compare with bash 5.2.

/// Limit of one expansion: `{a,b}` forty times in a row would not end. Real values give a few words.
pub(super) const MAX_WORDS: usize = 1024;

const MAX_DEPTH: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    Words,
    Depth,
}

/// In bash's order, empty words included.
pub(super) fn expand(word: &str) -> Result<Vec<String>, Excess> {
    let chars: Vec<char> = word.chars().collect();
    expand_chars(&chars, MAX_DEPTH)
}

/// From left to right: literal text, one brace expression, then the rest in the same way.
fn expand_chars(mut text: &[char], depth: usize) -> Result<Vec<String>, Excess> {
    let depth = depth.checked_sub(1).ok_or(Excess::Depth)?;
    let mut done = vec![String::new()];
    while let Some((open, close)) = first_expression(text) {
        let (before, inner, after) = split(text, open, close);
        let literal: String = before.iter().collect();
        let alternatives = if inner.contains(&',') {
            alternatives(inner, depth)?
        } else {
            match sequence(&inner.iter().collect::<String>())? {
                Some(words) => words,
                None => vec![text.get(open..=close).unwrap_or_default().iter().collect()],
            }
        };
        if done.len().saturating_mul(alternatives.len()) > MAX_WORDS {
            return Err(Excess::Words);
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

fn alternatives(inner: &[char], depth: usize) -> Result<Vec<String>, Excess> {
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
            return Err(Excess::Words);
        }
    }
    Ok(words)
}

/// `from..to` or `from..to..step`, numbers or single letters. `None`: it is text.
fn sequence(inner: &str) -> Result<Option<Vec<String>>, Excess> {
    let mut parts = inner.splitn(3, "..");
    let (Some(from), Some(to), step) = (parts.next(), parts.next(), parts.next()) else { return Ok(None) };
    let Some(step) = step.map_or(Some(1), |s| s.parse::<i64>().ok()) else { return Ok(None) };
    if let (Some(a), Some(b)) = (letter(from), letter(to)) {
        let words = range(a, b, step)?.into_iter().filter_map(|n| u8::try_from(n).ok());
        return Ok(Some(words.map(|b| char::from(b).to_string()).collect()));
    }
    let (Ok(a), Ok(b)) = (from.parse::<i64>(), to.parse::<i64>()) else { return Ok(None) };
    // A number with a leading zero is padded to the width of the wider of the two.
    let padded = |s: &str| s.len() > 1 && s.trim_start_matches('-').starts_with('0') && s != "-0";
    let width = if padded(from) || padded(to) { from.len().max(to.len()) } else { 0 };
    Ok(Some(range(a, b, step)?.into_iter().map(|n| format!("{n:0width$}")).collect()))
}

fn letter(text: &str) -> Option<i64> {
    match text.as_bytes() {
        [b] if b.is_ascii_alphabetic() => Some(i64::from(*b)),
        _ => None,
    }
}

/// Both ends included, towards `to` whatever the sign of `step`; a step of 0 counts as 1.
fn range(from: i64, to: i64, step: i64) -> Result<Vec<i64>, Excess> {
    let step = step.unsigned_abs().max(1);
    let count = usize::try_from(from.abs_diff(to) / step).map_err(|_| Excess::Words)?;
    if count >= MAX_WORDS {
        return Err(Excess::Words);
    }
    let signed = i64::try_from(step).unwrap_or(i64::MAX);
    let next = |n: &i64| if from <= to { n.checked_add(signed) } else { n.checked_sub(signed) };
    Ok(std::iter::successors(Some(from), next).take(count + 1).collect())
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

    #[test]
    fn odd_words_expand_as_in_bash() {
        let words = "md/balena{,_*} {nvme{0..2}n1,sd{a,b}} {a} {a,b a,b} {{a,b} {a,b}} {a,{b,c}} {,} x{,} {1..3} \
            {01..3} {3..1..2} {a..c} {a..3} {1..3..0} {-1..2} {a..e..2} {{a,b},c {a{b,c}d {a..b}{, {} {},b x{},b} {a,} \
            {..} {1..} {a,b}..{c,d} {{1..3}} {a,b{1..2} {1..3,a} {{},a} }{a,b} {a,}} {,a}.{b {0010..2..3} {+1..3} \
            {1..-2..-2} {{a,b}..c} {a},b} a{1..2}{ {, {a..b,c} {a.. a{..}b{c,d} {{a..c}..e} {a...c} {a..c..} {a..b..c} \
            {1..3}} {1..a}{2..3} {-01..2} {-0..2} {1..2..x} {{a,b},{c,d}}{1,2} { } {a,b}{} {}{a,b} {}} {00..1} {a,b}{},c}";
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        same_as_bash("", &words);
        same_as_bash("/dev/", &words);
    }

    /// Without numbers of four digits: copal refuses a word with more than [`MAX_WORDS`] results, and bash does not.
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
                same_as_bash(prefix, &text);
                same_as_bash(prefix, &sequences);
            }
        }
    }

    #[test]
    fn bounded_in_number_and_depth() {
        assert_eq!(expand(&"{a,b}".repeat(10)).unwrap().len(), 1024);
        assert_eq!(expand(&"{a,b}".repeat(40)), Err(Excess::Words));
        assert_eq!(expand("{1..1000000}"), Err(Excess::Words));
        assert_eq!(expand("{-9223372036854775808..9223372036854775807}"), Err(Excess::Words));
        assert_eq!(
            expand("{9223372036854775806..9223372036854775807..-9223372036854775808}").unwrap().len(),
            1
        );
        assert_eq!(expand(&format!("{}{}", "{a,".repeat(40), "}".repeat(40))), Err(Excess::Depth));
        assert_eq!(expand(&"{".repeat(4000)).unwrap(), ["{".repeat(4000)]);
    }
}
