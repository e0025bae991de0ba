//! The question before the first write, if the owner or the board wants it asked.

use std::time::{Duration, Instant};

use super::screen::Screen;
use crate::config::confirm::Confirm;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::keyboard::{Key, Keyboards};
use crate::sys::signal;

/// For a keyboard whose driver is still being loaded.
const KEYBOARD_TIMEOUT: Duration = Duration::from_secs(10);

const SECOND: Duration = Duration::from_secs(1);

/// To the operator at the device, who sees its screen and presses its keys.
pub(super) struct Question<'a> {
    confirm: Confirm,
    screen: &'a Screen,
    keyboards: Keyboards,
}

impl<'a> Question<'a> {
    /// Refuses, early, a device that could never answer.
    pub(super) fn prepare(confirm: Confirm, screen: &'a Screen, paths: &Paths) -> Result<Self> {
        let mut keyboards = Keyboards::open(paths.root());
        if confirm == Confirm::Key {
            let end = Instant::now() + KEYBOARD_TIMEOUT;
            while keyboards.is_empty() && Instant::now() < end && signal::came().is_none() {
                std::thread::sleep(SECOND / 10);
                keyboards.look();
            }
            if keyboards.is_empty() && signal::came().is_none() {
                let message = "cannot ask before it erases the disk: the device has no keyboard";
                return Err(Error::new(Code::NoInputDevice, message).object("installer.confirm"));
            }
        }
        Ok(Question { confirm, screen, keyboards })
    }

    /// Returns when the installation may begin. A signal ends the wait, too.
    pub(super) fn ask(mut self) -> Result<()> {
        match self.confirm {
            Confirm::Unasked => Ok(()),
            Confirm::Countdown(time) => self.count_down(time),
            Confirm::Key => self.wait_for_enter(),
        }
    }

    fn count_down(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        tracing::info!("waiting {} s: a key pressed at the device stops the installation", time.as_secs());
        while signal::came().is_none() {
            let now = Instant::now();
            let left = end.saturating_duration_since(now);
            if left.is_zero() {
                break;
            }
            // Rounded up, and until the number changes.
            let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
            let answer = if self.keyboards.is_empty() {
                "No keyboard is plugged in: to stop it, switch the device off."
            } else {
                "To stop it, press any key."
            };
            self.screen.says(format!("ERASING BEGINS IN {seconds} s"), &[answer]);
            if self.keyboards.pressed(end - SECOND * u32::try_from(seconds - 1).unwrap_or(0)).is_some() {
                return Err(aborted());
            }
        }
        Ok(())
    }

    fn wait_for_enter(&mut self) -> Result<()> {
        tracing::info!("waiting for Enter at the device");
        while signal::came().is_none() {
            self.screen.says("READY TO ERASE", &["To begin, press Enter. To stop it, press any other key."]);
            match self.keyboards.pressed(Instant::now() + SECOND) {
                Some(Key::Enter) => return Ok(()),
                Some(Key::Other) => return Err(aborted()),
                None => {}
            }
        }
        Ok(())
    }
}

fn aborted() -> Error {
    Error::new(Code::Aborted, "the installation was stopped by a key at the device")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::keyboard::tests::{KEYS, device, press};
    use std::io::Write as _;

    #[test]
    fn a_key_decides() {
        let dir = tempfile::tempdir().unwrap();
        let mut keyboard = device(dir.path(), "event0", KEYS);
        let (screen, paths) = (Screen::none(), Paths::new(dir.path()));
        let long = Confirm::Countdown(Duration::from_secs(3600));
        let short = Confirm::Countdown(Duration::from_millis(10));
        for (confirm, key, expected) in [
            (Confirm::Key, Some(true), None),
            (Confirm::Key, Some(false), Some(Code::Aborted)),
            (long, Some(true), Some(Code::Aborted)),
            (long, Some(false), Some(Code::Aborted)),
            (short, None, None),
        ] {
            let question = Question::prepare(confirm, &screen, &paths).unwrap();
            if let Some(enter) = key {
                keyboard.write_all(&press(enter)).unwrap();
            }
            assert_eq!(question.ask().err().map(|e| e.code()), expected, "{confirm:?} {key:?}");
        }
    }
}
