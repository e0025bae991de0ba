//! Exit codes. They are part of the interface; `copal --help` lists them.

use super::{Code, Effect, Error};

pub(crate) const FAILURE: u8 = 1;
const USAGE: u8 = 2;
const REFUSED: u8 = 3;
const AFTER_WRITE: u8 = 4;
const BUSY: u8 = 5;

/// The exit code of a verb that failed with `error`.
#[must_use]
pub fn of_verb(error: &Error) -> u8 {
    match (error.code(), error.effect()) {
        (Code::Usage, _) => USAGE,
        // Before all others: a caller that reads 3 or 5 relies on an untouched target.
        (_, Effect::Written) => AFTER_WRITE,
        (_, Effect::Completed) => FAILURE,
        (Code::Busy, _) => BUSY,
        // The answer of a comparison or an examination, and the absence of a program, refuse nothing.
        (
            Code::TargetDiffers
            | Code::NotInThisBuild
            | Code::ProblemsFound
            | Code::HealthCheckFailed
            | Code::PreviousTooOld,
            _,
        ) => FAILURE,
        _ => REFUSED,
    }
}

/// What a device may be left as by errors of this code, each with its exit code: most errors come before a write or within one, and with
/// some the job is always done. None is listed twice.
#[must_use]
pub fn of_code(code: Code) -> Vec<(u8, Effect)> {
    let effects: &[Effect] = match code {
        Code::ShutdownFailed | Code::RebootFailed => &[Effect::Completed],
        // `copal bootloader protect`, `copal bootloader write`.
        Code::LeftWritable => &[Effect::Refused, Effect::Completed],
        _ if code.never_after_write() => &[Effect::Refused],
        _ => &[Effect::Refused, Effect::Written],
    };
    let exit = |effect: &Effect| (of_verb(&Error::new(code, "").with_effect(*effect)), *effect);
    let mut exits: Vec<(u8, Effect)> = effects.iter().map(exit).collect();
    exits.dedup_by_key(|(exit, _)| *exit);
    exits
}

/// The exit code of a legacy name that failed with `error`: its callers know 0, 1 and 2 only. A script had no question, so no caller of
/// it knows how that is answered.
#[must_use]
pub fn of_legacy(error: &Error) -> u8 {
    match error.code() {
        Code::Usage => USAGE,
        Code::Aborted => REFUSED,
        _ => FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_distinguish_refused_from_written() {
        let code = |c| of_verb(&Error::new(c, "x"));
        assert_eq!(code(Code::Usage), 2);
        assert_eq!(code(Code::Busy), 5);
        assert_eq!(code(Code::TargetDiffers), 1);
        assert_eq!(code(Code::NotInThisBuild), 1);
        assert_eq!(code(Code::HealthCheckFailed), 1);
        assert_eq!(code(Code::TargetTooSmall), 3);
        assert_eq!(of_verb(&Error::new(Code::TargetWriteFailed, "x").after_write()), 4);
        assert_eq!(of_verb(&Error::new(Code::Busy, "x").after_write()), 4);
        assert_eq!(of_verb(&Error::new(Code::Interrupted, "x").after_write()), 4);
        assert_eq!(of_verb(&Error::new(Code::HookFailed, "x").after_write()), 4);
    }

    #[test]
    fn legacy_names_use_one_and_two_only() {
        for &c in Code::ALL.iter().filter(|c| **c != Code::Aborted) {
            let expected = if c == Code::Usage { 2 } else { 1 };
            assert_eq!(of_legacy(&Error::new(c, "x")), expected, "{c}");
            assert_eq!(of_legacy(&Error::new(c, "x").with_effect(Effect::Written)), expected, "{c}");
        }
    }
}
