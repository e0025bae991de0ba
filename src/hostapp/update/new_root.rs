//! The root file system of the new release, mounted beside the running one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::installer::When;
use super::story::Story;
use crate::error::{Code, Error, Result};
use crate::hostapp::sysroot::Sysroot;
use crate::sys::command::{Command, Event, Speaker, Stream, because, keep};
use crate::sys::mount;

/// For mounting a root: milliseconds on a device that works.
const MOUNTING: Duration = Duration::from_secs(120);

/// For programs of a hook that still use it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The runner that came with the release.
const RUNNER: &str = "usr/bin/hostapp-update-hooks-v2";

impl When {
    const fn word(self) -> &'static str {
        match self {
            When::Before => "before",
            When::After => "after",
        }
    }
}

/// A mounted root. It is unmounted by its owner, on every path.
#[must_use = "it stays mounted"]
pub(super) struct NewRoot {
    path: PathBuf,
}

impl NewRoot {
    /// Has the slot's own `init` mount it, which knows how its engine stores layers.
    pub(super) fn mount(sysroot: &Sysroot) -> Result<NewRoot> {
        let init = sysroot.path().join("current/boot/init");
        let failed = |why: std::io::Error| {
            Error::new(Code::UpdateFailed, "cannot mount the root of the new release")
                .object(init.display())
                .because(why)
        };
        let command = Command::new(&init).arg("-sysroot").arg(sysroot.path()).apart().limit(Some(MOUNTING));
        let mut running = command.start().map_err(failed)?;
        let (mut printed, mut last) = (String::new(), String::new());
        let end = loop {
            match running.next(None).map_err(failed)? {
                Event::Line(Stream::Out, line) => printed = line,
                Event::Line(Stream::Err, line) => {
                    tracing::debug!("init: {line}");
                    keep(&mut last, &line);
                }
                Event::Ended(end) => break end,
                Event::Silent(_) | Event::Waited => {}
            }
        };
        if !end.is_success() {
            return Err(failed(because(end, &last)));
        }
        let path = PathBuf::from(printed.trim());
        if !path.is_absolute() || !path.is_dir() || path == Path::new("/") {
            return Err(failed(std::io::Error::other(format!("init says it is at {:?}", printed.trim()))));
        }
        Ok(NewRoot { path })
    }

    /// Runs the hooks of the new release here, if it has any.
    pub(super) fn run_hooks(&self, when: When, story: &Story) -> Result<()> {
        let runner = self.path.join(RUNNER);
        if !runner.is_file() {
            tracing::info!("the new release has no hooks to be run {} the others", when.word());
            return Ok(());
        }
        let what = format!("{} hooks", when.word());
        let failed = |why: std::io::Error| {
            Error::new(Code::HookFailed, format!("cannot run the {what} of the new release"))
                .object(when.word())
                .because(why)
        };
        // With a slash at its end, as the runners of other releases print it into paths.
        let mut folder = self.path.join("etc/hostapp-update-hooks.d").into_os_string();
        folder.push("/");
        let command = Command::script(&runner).map_err(failed)?;
        let command = command.arg(format!("--{}", when.word())).arg("--dir").arg(folder);
        let command = command.envs([("DURING_UPDATE", "1")]);
        let speaker = Speaker { name: &what, full: &what, hook: None, levels: true };
        let ended = command.run_logged(speaker, |_| {}).map_err(failed)?;
        story.hooks_ended(when.word(), ended.end);
        if ended.end.is_success() { Ok(()) } else { Err(failed(ended.because())) }
    }

    /// Unmounts it, or takes it out of sight while a hook's program still uses it.
    pub(super) fn unmount(self) {
        let Err(e) = mount::unmount(&self.path, PATIENCE) else { return };
        let users = mount::users(&self.path).join(" ");
        tracing::warn!("cannot unmount {} yet: {e}; in use by {users}", self.path.display());
        if let Err(e) = mount::detach(&self.path) {
            tracing::warn!("cannot detach {}: {e}", self.path.display());
        }
    }
}
