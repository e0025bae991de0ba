//! Versions of balenaOS: `X.Y.Z[-label][+revN]`. They look like semantic versions and are none: after `+` there is a revision,
//! which counts, and a draft of a release carries a time stamp where others have the name of a pre-release.
//!
//! Shapes in the field: `2.98.11`, `2.30.0+rev1`, `2.29.2-beta.1`, `6.0.10-1680000000000` (a draft), `2.0.0-rc1.rev1` and
//! `2.0.0.rev1` (before the sign became `+`), `2.12.7+rev1.dev`, `2.0-beta.1`, and any of them with a `v` in front.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// That of copal itself, and the commit that it is made of (`build.rs`).
pub const COPAL: &str = env!("COPAL_VERSION");

/// A version. The order is that of age: numbers first; a pre-release or draft before its release; a higher revision after a lower
/// one, and any revision after none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version {
    numbers: [u64; 3],
    label: Option<String>,
    build: Option<String>,
}

impl Version {
    /// A release without label and revision.
    #[must_use]
    pub const fn new(major: u64, minor: u64, patch: u64) -> Version {
        Version { numbers: [major, minor, patch], label: None, build: None }
    }

    /// The three numbers, without which a label or a revision says nothing.
    #[must_use]
    pub const fn numbers(&self) -> [u64; 3] {
        self.numbers
    }

    /// What is between `-` and `+`: a pre-release, or the time stamp of a draft.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// The revision: the number of the first part `revN` after `+`.
    fn revision(&self) -> Option<u64> {
        self.build.as_deref()?.split('.').find_map(revision)
    }
}

/// Why a text is no version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoVersion {
    /// It does not begin with two or three numbers with dots between them.
    Numbers,
    /// A number is larger than anything that counts releases.
    TooLarge,
    /// After `-` or `+` there is nothing, or a character other than letters, digits, `.`, `-` and `_`.
    Label,
}

impl fmt::Display for NoVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoVersion::Numbers => "it does not begin with two or three numbers",
            NoVersion::TooLarge => "a number in it is too large",
            NoVersion::Label => "what follows the numbers is neither a label nor a revision",
        })
    }
}

impl std::error::Error for NoVersion {}

impl FromStr for Version {
    type Err = NoVersion;

    fn from_str(text: &str) -> Result<Version, NoVersion> {
        let text = text.trim();
        let text = text.strip_prefix(['v', 'V']).unwrap_or(text);
        let core = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (core, rest) = text.split_at_checked(core).ok_or(NoVersion::Numbers)?;
        // `2.0.0.rev1`: the dot belongs to what follows.
        let (core, old) = core.strip_suffix('.').map_or((core, false), |c| (c, rest.starts_with("rev")));
        if !old && text.as_bytes().get(core.len()) == Some(&b'.') {
            return Err(NoVersion::Numbers);
        }
        let numbers = numbers(core)?;
        let rest = if old { Rest::Build(rest) } else { Rest::of(rest)? };
        let (label, build) = match rest {
            Rest::Nothing => (None, None),
            Rest::Build(build) => (None, Some(build)),
            Rest::Label(label, build) => (Some(label), build),
        };
        let known = |part: Option<&str>| part.map(words).transpose();
        Ok(Version { numbers, label: known(label)?, build: known(build)? })
    }
}

/// What follows the numbers.
enum Rest<'t> {
    Nothing,
    Build(&'t str),
    Label(&'t str, Option<&'t str>),
}

impl Rest<'_> {
    fn of(text: &str) -> Result<Rest<'_>, NoVersion> {
        if text.is_empty() {
            return Ok(Rest::Nothing);
        }
        if let Some(build) = text.strip_prefix('+') {
            return Ok(Rest::Build(build));
        }
        let label = text.strip_prefix('-').ok_or(NoVersion::Label)?;
        Ok(match label.split_once('+') {
            Some((label, build)) => Rest::Label(label, Some(build)),
            None => Rest::Label(label, None),
        })
    }
}

fn numbers(text: &str) -> Result<[u64; 3], NoVersion> {
    let mut numbers = [0; 3];
    let mut parts = text.split('.');
    let mut count = 0;
    for (number, part) in numbers.iter_mut().zip(&mut parts) {
        if part.is_empty() {
            return Err(NoVersion::Numbers);
        }
        *number = part.parse().map_err(|_| NoVersion::TooLarge)?;
        count += 1;
    }
    if count < 2 || parts.next().is_some() {
        return Err(NoVersion::Numbers);
    }
    Ok(numbers)
}

fn words(text: &str) -> Result<String, NoVersion> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if text.is_empty() || !text.chars().all(known) {
        return Err(NoVersion::Label);
    }
    Ok(text.to_owned())
}

fn revision(part: &str) -> Option<u64> {
    let digits = part.strip_prefix("rev")?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")?;
        if let Some(label) = &self.label {
            write!(f, "-{label}")?;
        }
        self.build.as_ref().map_or(Ok(()), |build| write!(f, "+{build}"))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Version) -> Ordering {
        let labels = match (self.label(), other.label()) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(a), Some(b)) => natural(a, b),
        };
        let build = |v: &Version| v.build.clone().unwrap_or_default();
        self.numbers
            .cmp(&other.numbers)
            .then(labels)
            .then_with(|| self.revision().cmp(&other.revision()))
            .then_with(|| natural(&build(self), &build(other)))
            // Two that differ in nothing but this are still two, also `None` and a revision of no name.
            .then_with(|| self.build.cmp(&other.build))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Version) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// As people count: runs of digits as numbers (`rc9` before `rc10`), all else byte by byte; a text before one that goes on.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (runs(a), runs(b));
    loop {
        let order = match (x.next(), y.next()) {
            (None, None) => return a.cmp(b),
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(x), Some(y)) => x.cmp(&y),
        };
        if order.is_ne() {
            return order;
        }
    }
}

/// A run of digits without leading zeros, by length and then by value; or one other character. Digits come before others.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Token<'t> {
    Number(usize, &'t str),
    Other(char),
}

fn runs(text: &str) -> impl Iterator<Item = Token<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let len = if first.is_ascii_digit() {
            rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (run, after) = rest.split_at_checked(len)?;
        rest = after;
        let digits = run.trim_start_matches('0');
        Some(if first.is_ascii_digit() { Token::Number(digits.len(), digits) } else { Token::Other(first) })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn shapes_of_the_field() {
        for (text, shown, revision) in [
            ("2.98.11", "2.98.11", None),
            ("2.30.0+rev1", "2.30.0+rev1", Some(1)),
            ("v2.29.2-beta.1", "2.29.2-beta.1", None),
            ("6.0.10-1680000000000", "6.0.10-1680000000000", None),
            ("2.0.0-rc1.rev1", "2.0.0-rc1.rev1", None),
            ("2.0.0.rev1", "2.0.0+rev1", Some(1)),
            ("2.12.7+rev10.dev", "2.12.7+rev10.dev", Some(10)),
            ("2.12.7-beta1+dev.rev3", "2.12.7-beta1+dev.rev3", Some(3)),
            ("v2.0-beta.1", "2.0.0-beta.1", None),
            ("2023.1.0", "2023.1.0", None),
            (" 2.3.4\n", "2.3.4", None),
            ("5.1.20+rev2-v16.4.6", "5.1.20+rev2-v16.4.6", None),
        ] {
            let v = version(text);
            assert_eq!((v.to_string().as_str(), v.revision()), (shown, revision), "{text}");
            assert_eq!(version(&v.to_string()), v, "{text}");
        }
    }

    #[test]
    fn what_is_no_version_says_why() {
        for (text, why) in [
            ("", NoVersion::Numbers),
            ("v", NoVersion::Numbers),
            ("2", NoVersion::Numbers),
            ("2.", NoVersion::Numbers),
            ("2..3", NoVersion::Numbers),
            (".1.2", NoVersion::Numbers),
            ("2.1.3.4", NoVersion::Numbers),
            ("2.1.3.", NoVersion::Numbers),
            ("kirkstone", NoVersion::Numbers),
            ("-1.2.3", NoVersion::Numbers),
            ("99999999999999999999.0.0", NoVersion::TooLarge),
            ("2.1.3-", NoVersion::Label),
            ("2.1.3+", NoVersion::Label),
            ("2.1.3-a+", NoVersion::Label),
            ("2.1.3-a b", NoVersion::Label),
            ("2.1.3-a\nb", NoVersion::Label),
            ("2.1.3 (prod)", NoVersion::Label),
            ("2.1.3+rev1+rev2", NoVersion::Label),
            ("2.1.3_1", NoVersion::Label),
        ] {
            assert_eq!(text.parse::<Version>(), Err(why), "{text:?}");
        }
    }

    #[test]
    fn the_order_is_that_of_age() {
        let in_order = [
            "1.26.0",
            "2.0.0-beta.1",
            "2.0.0-rc9",
            "2.0.0-rc10",
            "2.0.0",
            "2.0.0+rev1",
            "2.0.0+rev1.dev",
            "2.0.0+rev2",
            "2.0.0+rev10",
            "2.0.1",
            "2.2.0",
            "2.10.0",
            "2.30.0-1680000000000",
            "2.30.0-1680000000001",
            "2.30.0",
            "6.0.0",
            "2023.1.0",
        ];
        for pair in in_order.windows(2) {
            let [a, b] = pair else { panic!() };
            assert!(version(a) < version(b), "{a} < {b}");
            assert!(version(b) > version(a), "{b} > {a}");
        }
    }

    prop_compose! {
        // Few different parts, so that equal ones meet.
        fn versions()(
            numbers in prop::array::uniform3(0u64..4),
            label in prop::option::of("(rc|beta\\.|)[0-9]{1,2}(-x)?|[0-9A-Za-z._-]{1,4}"),
            build in prop::option::of("rev[0-9]{1,2}(\\.dev)?|[0-9A-Za-z._-]{1,4}"),
        ) -> Version {
            Version { numbers, label, build }
        }
    }

    proptest! {
        #[test]
        fn text_and_value_go_round(v in versions()) {
            prop_assert_eq!(v.to_string().parse::<Version>(), Ok(v));
        }

        #[test]
        fn the_order_is_total(a in versions(), b in versions(), c in versions()) {
            prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
            prop_assert_eq!(a.cmp(&b).is_eq(), a == b);
            prop_assert_eq!(a.partial_cmp(&b), Some(a.cmp(&b)));
            if a <= b && b <= c {
                prop_assert!(a <= c, "{} <= {} <= {}", a, b, c);
            }
            let mut three = [a, b, c];
            three.sort();
            prop_assert!(three.is_sorted());
        }

        #[test]
        fn a_revision_counts_after_everything_else(v in versions(), n in 0u64..1000, m in 0u64..1000) {
            let with = |n: u64| Version { build: Some(format!("rev{n}")), ..v.clone() };
            let none = Version { build: None, ..v.clone() };
            prop_assert!(with(n) > none);
            prop_assert_eq!(with(n).cmp(&with(m)), n.cmp(&m));
            prop_assert_eq!(with(n).revision(), Some(n));
        }

        #[test]
        fn any_text_is_a_version_or_is_not(text in ".*") {
            if let Ok(v) = text.parse::<Version>() {
                prop_assert_eq!(v.to_string().parse::<Version>(), Ok(v));
            }
        }
    }
}
