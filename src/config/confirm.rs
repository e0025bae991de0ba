//! Whether the flasher asks a person before it erases a disk.

use std::time::Duration;

/// In seconds. An operator does not wait longer beside a device.
const LONGEST: u64 = 3600;

/// What the setting may be, for messages.
pub(super) const VALUES: &str = "`none`, `countdown:SECONDS` (1 to 3600) or `key`";

/// `installer.confirm` of `config.json`, or `INSTALLER_CONFIRM` of the board.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Confirm {
    #[default]
    Unasked,
    /// It begins after this time, unless a key is pressed.
    Countdown(Duration),
    /// It begins when Enter is pressed.
    Key,
}

impl Confirm {
    #[must_use]
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "none" => Some(Confirm::Unasked),
            "key" => Some(Confirm::Key),
            _ => {
                let digits = text.strip_prefix("countdown:")?;
                let seconds = digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))?;
                (1..=LONGEST).contains(&seconds).then(|| Confirm::Countdown(Duration::from_secs(seconds)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_words_and_nothing_else() {
        assert_eq!(Confirm::parse("none"), Some(Confirm::Unasked));
        assert_eq!(Confirm::parse("key"), Some(Confirm::Key));
        assert_eq!(Confirm::parse("countdown:10"), Some(Confirm::Countdown(Duration::from_secs(10))));
        assert_eq!(Confirm::parse("countdown:3600"), Some(Confirm::Countdown(Duration::from_secs(3600))));
        for wrong in [
            "",
            "None",
            "KEY",
            " key",
            "yes",
            "countdown",
            "countdown:",
            "countdown:0",
            "countdown:3601",
            "countdown:+5",
            "countdown:-1",
            "countdown: 5",
            "countdown:5s",
            "countdown:99999999999999999999",
        ] {
            assert_eq!(Confirm::parse(wrong), None, "{wrong:?}");
        }
    }
}
