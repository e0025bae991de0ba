//! A check by a program of a board or an owner: exit status 0 means healthy.

use std::path::Path;
use std::time::Duration;

use super::Finding;
use crate::sys::command::{Command, Speaker};

const MAX_REASON_CHARS: usize = 200;

/// `name`: in log lines. The last output line is the reason.
pub(super) fn check(path: &Path, name: &str, limit: Duration) -> Finding {
    let full = path.display().to_string();
    let speaker = Speaker { name, full: &full, hook: None, levels: true };
    let run = || Command::script(path)?.with_default_signals().limit(Some(limit)).run_logged(speaker, |_| ());
    match run() {
        Err(e) => Finding::failed(format!("cannot run {full}: {e}")),
        Ok(ended) if !ended.end.is_success() => Finding::failed(ended.because().to_string()),
        Ok(ended) if ended.last.is_empty() => Finding::passed(ended.end.to_string()),
        Ok(ended) => Finding::passed(ended.last.chars().take(MAX_REASON_CHARS).collect::<String>()),
    }
}
