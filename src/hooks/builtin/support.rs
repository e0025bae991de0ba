use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::command::{Command, Said, Stream};

/// A tool that hangs must not block an update for ever; none needs minutes.
const TOOL_LIMIT: Duration = Duration::from_secs(600);

/// Searched before `PATH`, which a container or a chroot may have changed.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

pub(super) fn find(paths: &Paths, name: &str) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let folders = FOLDERS.into_iter().map(PathBuf::from).chain(std::env::split_paths(&search));
    folders.map(|folder| paths.at(folder).join(name)).find(|path| path.is_file())
}

pub(super) fn run(command: Command, program: &Path, what: &str) -> Result<Vec<String>> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (mut lines, mut last) = (Vec::new(), None);
    let end = command.apart().limit(Some(TOOL_LIMIT)).run(|said| match said {
        Said::Line(Stream::Out, line) => lines.push(line.to_owned()),
        Said::Line(Stream::Err, line) => {
            tracing::info!("{name}: {line}");
            last = Some(line.to_owned());
        }
        Said::Nothing(time) => tracing::warn!("{name} has printed nothing for {} s", time.as_secs()),
    });
    match end {
        Ok(end) if end.is_success() => Ok(lines),
        Ok(end) => {
            let words = last.map(|l| format!(": {l}")).unwrap_or_default();
            Err(failed(what, format!("{name}: {end}{words}"), program))
        }
        Err(e) => Err(failed(what, format!("{name} cannot be run"), program).because(e)),
    }
}

pub(super) fn failed(what: &str, why: impl Display, object: &Path) -> Error {
    Error::new(Code::HookFailed, format!("cannot {what}: {why}")).object(object.display())
}

pub(super) fn split(path: &Path) -> (&Path, &OsStr) {
    (path.parent().unwrap_or(Path::new("/")), path.file_name().unwrap_or_default())
}
