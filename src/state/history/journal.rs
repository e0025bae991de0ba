//! The last lines of this boot's journal. They are taken in the boot itself: on most devices the journal is in memory.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use super::record::harmless;
use crate::config::paths::Paths;
use crate::sys::command::{Command, End, Said, Stream};

/// Lines that a record of a rollback has.
pub const LINES: usize = 200;

/// Longest line that is kept, in bytes.
pub(super) const LONGEST: usize = 400;

/// For `journalctl` to answer; it is ended then.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where a system has it; the older one without `/usr` merged.
const PLACES: [&str; 2] = ["/usr/bin/journalctl", "/bin/journalctl"];

/// The last `lines` lines of this boot's journal, oldest first, each cut to a few hundred bytes, control characters escaped. Where
/// they cannot be had, one line that says why.
#[must_use]
pub fn journal_of_this_boot(paths: &Paths, lines: usize) -> Vec<String> {
    let Some(program) = PLACES.iter().map(|p| paths.at(p)).find(|p| p.exists()) else {
        return vec!["-- no journal: journalctl is not installed --".to_owned()];
    };
    match ask(&program, lines) {
        Ok(said) => said,
        Err(why) => vec![harmless(&format!("-- the journal cannot be read: {why} --"), LONGEST)],
    }
}

fn ask(program: &Path, lines: usize) -> Result<Vec<String>, String> {
    let command = Command::new(program)
        .args(["--boot", "--output=short-iso", "--no-pager", "--quiet", "--lines"])
        .arg(lines.to_string())
        .apart()
        .limit(Some(TIMEOUT));
    let (mut kept, mut complaint) = (VecDeque::new(), String::new());
    let end = command.run(|said| match said {
        Said::Line(Stream::Out, line) => {
            kept.push_back(harmless(line, LONGEST));
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
        // What came before is worth more than nothing.
        end if !kept.is_empty() => {
            kept.push_back(format!("-- the journal may have more: {end} --"));
            Ok(kept.into())
        }
        end if complaint.is_empty() => Err(end.to_string()),
        end => Err(format!("{end}: {complaint}")),
    }
}
