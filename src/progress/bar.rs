//! A progress bar on stderr, for a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::lines;
use super::sink::{Due, Moment, Sink, Snapshot};
use crate::sys::log;

const DRAW_INTERVAL: Duration = Duration::from_millis(100);

const BAR_LENGTH: u64 = 100;

/// A finished stage leaves a line.
pub struct Bar {
    prefix: String,
    bar: Option<ProgressBar>,
}

impl Bar {
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Bar { prefix: prefix.to_owned(), bar: None }
    }

    fn begin(&mut self, snapshot: &Snapshot) {
        self.clear();
        let bar = ProgressBar::with_draw_target(Some(BAR_LENGTH), ProgressDrawTarget::stderr_with_hz(10));
        let template = match snapshot.total {
            Some(_) => "{prefix:6} [{bar:16}] {wide_msg}",
            None => "{prefix:6} {spinner} {wide_msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> ").tick_chars("|/-\\ "));
        }
        bar.set_prefix(snapshot.stage.to_string());
        bar.set_message(lines::numbers(snapshot));
        let same_bar = bar.clone();
        log::aside(Some(Box::new(move |write| same_bar.suspend(write))));
        self.bar = Some(bar);
    }

    fn update(&self, snapshot: &Snapshot) {
        if let Some(bar) = &self.bar {
            bar.set_message(lines::numbers(snapshot));
            match snapshot.percent {
                Some(percent) => bar.set_position(percent.into()),
                None => bar.tick(),
            }
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            log::aside(None);
            if !log::is_open() {
                bar.set_draw_target(ProgressDrawTarget::hidden());
            }
            bar.finish_and_clear();
        }
    }
}

impl Sink for Bar {
    fn show(&mut self, snapshot: &Snapshot) -> Due {
        match snapshot.moment {
            // A stopped terminal (Ctrl-S, a dead connection) must not stop the job: this drawing is left out.
            Moment::Begin | Moment::Underway if !log::is_open() => {}
            Moment::Begin => self.begin(snapshot),
            Moment::Underway => self.update(snapshot),
            Moment::End => {
                self.clear();
                log::stderr(&format!("{}{}", self.prefix, lines::line(snapshot)));
            }
        }
        Due::after(DRAW_INTERVAL)
    }

    fn close(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::super::{self as progress, Progress as _, Stage};
    use super::*;

    /// What the tests below start on a terminal: a stage that works, a warning in its middle, a stage that fails.
    #[test]
    #[ignore = "draws on the terminal; started by the tests below"]
    fn drawing() {
        log::start(log::Voice::Verb);
        let bar = progress::for_stderr("");
        bar.begin(Stage::Write, Some(100 << 20));
        for i in 0..100 {
            bar.advance(1 << 20);
            if i == 50 {
                tracing::warn!("the disk is slow");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bar.finish();
        bar.begin(Stage::Verify, None);
        bar.advance(5);
        bar.close();
        log::stderr("copal: it failed");
    }

    fn on_a_terminal(environment: &[(&str, &str)]) -> Option<String> {
        let exe = std::env::current_exe().unwrap();
        let child = format!(
            "stty rows 30 cols 100 && exec {} --exact progress::bar::tests::drawing --ignored --nocapture",
            exe.display()
        );
        let run = Command::new("timeout")
            .args(["30", "script", "-qec", &child, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .env_remove(log::LEVEL_VARIABLE)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .output();
        match run {
            Ok(out) if out.status.code() != Some(127) => {
                let text = String::from_utf8_lossy(&out.stdout).into_owned();
                assert!(out.status.success(), "{text}");
                Some(text)
            }
            _ => {
                drop(std::io::Write::write_all(
                    &mut std::io::stderr(),
                    b"not run: bar on a terminal: script(1) is missing\n",
                ));
                None
            }
        }
    }

    /// What a terminal shows of `text`: each line as it stood when the next one began.
    fn lines_left(text: &str) -> Vec<String> {
        text.split('\n')
            .map(|line| {
                let shown = line.trim_end_matches('\r').rsplit(['\r', '\u{1b}']).next().unwrap_or_default();
                shown.strip_prefix("[2K").unwrap_or(shown).trim_end().to_owned()
            })
            .collect()
    }

    #[test]
    fn a_terminal_gets_a_bar_that_leaves_clean_lines() {
        let Some(text) = on_a_terminal(&[]) else { return };
        assert!(text.contains("write  [") && text.contains("MiB of 100.0 MiB, "), "{text:?}");
        assert!(text.contains('\u{1b}'), "{text:?}");
        let left = lines_left(&text);
        let has = |whole: &str| left.iter().any(|l| l == whole);
        assert!(has("copal: warning: the disk is slow"), "{left:#?}");
        assert!(has("copal: it failed"), "{left:#?}");
        assert!(left.iter().any(|l| l.starts_with("write: done, 100.0 MiB in 0:0")), "{left:#?}");
    }

    #[test]
    fn a_plain_terminal_gets_lines() {
        for plain in [("TERM", "dumb"), ("NO_COLOR", "1")] {
            let Some(text) = on_a_terminal(&[plain]) else { return };
            assert!(!text.contains('\u{1b}'), "{plain:?}: {text:?}");
            assert!(text.contains("write: 100.0 MiB to do") && text.contains("write: 95 %, "), "{text}");
        }
    }
}
