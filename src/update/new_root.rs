//! The new release's root file system, mounted beside the running one.

use super::history_record::HistoryRecord;
use crate::engine::HOST_VARIABLE;
use crate::error::{Code, Error, Result};
use crate::sys::command::{Command, Speaker};
use crate::update::mounted_root::MountedRoot;
use crate::update::sysroot::Sysroot;

const HOOK_RUNNER: &str = "usr/bin/hostapp-update-hooks-v2";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

impl When {
    const fn word(self) -> &'static str {
        match self {
            When::Before => "before",
            When::After => "after",
        }
    }
}

/// The caller unmounts it, on every path.
#[must_use = "it stays mounted"]
pub(super) struct NewRoot(MountedRoot);

impl NewRoot {
    pub(super) fn mount(sysroot: &Sysroot) -> Result<NewRoot> {
        let init = sysroot.path().join("current/boot/init");
        MountedRoot::mount(&init, sysroot.path()).map(NewRoot).map_err(|why| {
            Error::new(Code::UpdateFailed, "cannot mount the root of the new release")
                .object(init.display())
                .because(why)
        })
    }

    pub(super) fn run_hooks(&self, when: When, history: &HistoryRecord) -> Result<()> {
        let runner = self.0.path().join(HOOK_RUNNER);
        if !runner.is_file() {
            tracing::info!("the new release has no hooks to run {} the others", when.word());
            return Ok(());
        }
        let what = format!("{} hooks", when.word());
        let failed = |why: std::io::Error| {
            Error::new(Code::HookFailed, format!("cannot run the {what} of the new release"))
                .object(when.word())
                .because(why)
        };
        // With a trailing slash: runners of other releases append to it.
        let mut folder = self.0.path().join("etc/hostapp-update-hooks.d").into_os_string();
        folder.push("/");
        let command = Command::script(&runner).map_err(failed)?.with_default_signals();
        let command = command.arg(format!("--{}", when.word())).arg("--dir").arg(folder);
        let command = command.envs([("DURING_UPDATE", "1"), HOST_VARIABLE]);
        let speaker = Speaker { name: &what, full: &what, hook: None, levels: true };
        let ended = command.run_logged(speaker, |_| {}).map_err(failed)?;
        history.hooks_ended(when.word(), ended.end);
        if ended.end.is_success() { Ok(()) } else { Err(failed(ended.because())) }
    }

    pub(super) fn unmount(self) {
        self.0.unmount();
    }
}
