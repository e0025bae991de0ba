//! `85-os-blocks-extensions`: installs and removes extensions of the host OS.

use std::fs;
use std::path::{Path, PathBuf};

use super::support::{find, run as run_program};
use crate::error::Result;
use crate::hooks::Context;
use crate::sys::command::Command;

const HOOKS: &str = "etc/hostapp-update-hooks.d";

/// `85-fwd_commit_…`: removes the extensions that do not match the committed release.
pub(super) fn commit(context: &Context) -> Result<()> {
    let Some(manager) = find(&context.paths, "balena-extension-manager") else {
        tracing::debug!("balena-extension-manager is not installed");
        return Ok(());
    };
    let command = Command::new(&manager).args(["cleanup", "--stale-os"]);
    log_lines(&run_program(command, &manager, "remove stale extensions")?);
    Ok(())
}

/// `85-after_…`: installs the extensions for the new release's kernel. Only branches of meta-balena have this hook (commit
/// `cd93aa2d0`): their `update-hostapp-extensions` reads the kernel version from `NEW_KERNEL_VERSION`. Without that program there is
/// nothing to do.
pub(super) fn after(context: &Context) -> Result<()> {
    let Some(program) = find(&context.paths, "update-hostapp-extensions").filter(|_| context.during_update)
    else {
        return Ok(());
    };
    let hooks = std::env::var_os("HOOKS_DIR").unwrap_or_default();
    let Some(kernel) = root_of(Path::new(&hooks)).and_then(|root| kernel(&root)) else {
        tracing::warn!("{} does not lead to the new release's kernel", Path::new(&hooks).display());
        return Ok(());
    };
    tracing::info!("installing extensions for the kernel {kernel}");
    let command = Command::new(&program).envs([("NEW_KERNEL_VERSION", &kernel)]);
    log_lines(&run_program(command, &program, "install extensions for the new kernel")?);
    Ok(())
}

fn root_of(hooks: &Path) -> Option<PathBuf> {
    let root = hooks.ends_with(HOOKS).then(|| hooks.ancestors().nth(2)).flatten()?;
    root.is_dir().then(|| root.to_owned())
}

/// `6.1.21` for `/lib/modules/6.1.21-v8+`: the rest belongs to the board.
fn kernel(root: &Path) -> Option<String> {
    let folders = fs::read_dir(root.join("lib/modules")).ok()?.flatten();
    let names = folders.filter(|e| e.path().is_dir()).filter_map(|e| e.file_name().into_string().ok());
    let first = names.filter(|n| n.starts_with(|c: char| c.is_ascii_digit())).min()?;
    Some(first.split('-').next().unwrap_or_default().to_owned())
}

fn log_lines(lines: &[String]) {
    for line in lines {
        tracing::info!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_of_the_release_whose_hooks_run() {
        let dir = tempfile::tempdir().unwrap();
        let hooks = dir.path().join(HOOKS);
        fs::create_dir_all(&hooks).unwrap();
        for name in ["lib/modules/6.1.21-v8+", "lib/modules/README"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let with_slash = PathBuf::from(format!("{}/", hooks.display()));
        for hooks in [hooks, with_slash] {
            assert_eq!(root_of(&hooks).as_deref(), Some(dir.path()));
        }
        assert_eq!(kernel(dir.path()).as_deref(), Some("6.1.21"));
        assert_eq!(root_of(Path::new("")), None);
        assert_eq!(root_of(dir.path()), None);
    }
}
