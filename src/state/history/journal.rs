//! The last journal lines of this boot. They are read in that boot: on most devices the journal is in memory.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use super::record::{JOURNAL_LINE_LIMIT, harmless};
use crate::config::paths::Paths;
use crate::sys::command::{Command, End, Said, Stream};

/// Lines in the record of a rollback.
pub const JOURNAL_LINES: usize = 200;

/// `journalctl` is killed then.
const JOURNALCTL_TIMEOUT: Duration = Duration::from_secs(10);

/// The second is for systems without a merged `/usr`.
const JOURNALCTL_PATHS: [&str; 2] = ["/usr/bin/journalctl", "/bin/journalctl"];

/// Oldest first, each line cut to a few hundred bytes, control characters escaped. Without a journal: one line that says why.
#[must_use]
pub fn journal_of_this_boot(paths: &Paths, lines: usize) -> Vec<String> {
    let Some(program) = JOURNALCTL_PATHS.iter().map(|p| paths.at(p)).find(|p| p.exists()) else {
        return vec!["-- no journal: journalctl is not installed --".to_owned()];
    };
    match read_lines(&program, lines) {
        Ok(said) => said,
        Err(why) => vec![harmless(&format!("-- the journal cannot be read: {why} --"), JOURNAL_LINE_LIMIT)],
    }
}

fn read_lines(program: &Path, lines: usize) -> Result<Vec<String>, String> {
    let command = Command::new(program)
        .args(["--boot", "--output=short-iso", "--no-pager", "--quiet", "--lines"])
        .arg(lines.to_string())
        .apart()
        .limit(Some(JOURNALCTL_TIMEOUT));
    let (mut kept, mut complaint) = (VecDeque::new(), String::new());
    let end = command.run(|said| match said {
        Said::Line(Stream::Out, line) => {
            kept.push_back(harmless(line, JOURNAL_LINE_LIMIT));
            if kept.len() > lines {
                kept.pop_front();
            }
        }
        Said::Line(Stream::Err, line) => line.clone_into(&mut complaint),
        Said::Nothing(_) => {}
    });
    match end.map_err(|e| e.to_string())? {
        End::Status(0) if !kept.is_empty() => Ok(kept.into()),
        End::Status(0) if complaint.is_empty() => Err("it has no lines of this boot".to_owned()),
        End::Status(0) => Err(complaint),
        // The lines read so far are worth more than none.
        end if !kept.is_empty() => {
            kept.push_back(format!("-- the journal may have more: {end} --"));
            Ok(kept.into())
        }
        end if complaint.is_empty() => Err(end.to_string()),
        end => Err(format!("{end}: {complaint}")),
    }
}
