//! `70-sshd_migrate_keys`: converts the dropbear host key of old releases for OpenSSH.
//!
//! The key is created in a folder of its own and renamed when it is complete: where it exists, the hook does nothing, so half a key
//! would lock the owner out for good.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::support::{failed, find, run as run_program, split};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::hooks::Context;
use crate::sys::command::Command;
use crate::sys::file::{self, Content, Folder};

const DROPBEAR: &str = "/mnt/state/root-overlay/etc/dropbear/dropbear_rsa_host_key";
const OPENSSH: &str = "/mnt/state/root-overlay/etc/ssh/hostkeys/ssh_host_rsa_key";
const PUBLIC: &str = "/mnt/state/root-overlay/etc/ssh/hostkeys/ssh_host_rsa_key.pub";

/// Beside the key, so that half a key never leaves the state partition.
const WORK: &str = "/mnt/state/root-overlay/etc/ssh/hostkeys/.migrate";

pub(super) fn run(context: &Context) -> Result<()> {
    let paths = &context.paths;
    let (old, new) = (paths.at(DROPBEAR), paths.at(OPENSSH));
    let work = paths.at(WORK);
    if is_key(&new) {
        // A power cut after the last step left a second copy of the key.
        remove(&work);
        return Ok(());
    }
    if !old.is_file() {
        return Ok(());
    }
    let convert = program(paths, "dropbearconvert")?;
    let keygen = program(paths, "ssh-keygen")?;
    tracing::info!("converting the host key of dropbear");
    begin(&work).map_err(|e| unwritable(&work, e))?;
    let done = migrate(paths, &convert, &keygen, &work.join("key"));
    remove(&work);
    done?;
    tracing::info!("{} is the host key of dropbear", new.display());
    Ok(())
}

/// A shell release leaves an empty file when the power fails during a conversion.
fn is_key(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() > 0)
}

fn program(paths: &Paths, name: &str) -> Result<PathBuf> {
    find(paths, name).ok_or_else(|| {
        failed("convert the host key of dropbear", format!("{name} is not installed"), Path::new(name))
    })
}

fn remove(work: &Path) {
    match fs::remove_dir_all(work) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("cannot remove {}: {e}", work.display());
        }
        _ => {}
    }
}

fn begin(work: &Path) -> io::Result<()> {
    let (parent, _) = split(work);
    file::make_folders(parent)?;
    match fs::remove_dir_all(work) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    DirBuilder::new().mode(0o700).create(work)
}

fn migrate(paths: &Paths, convert: &Path, keygen: &Path, made: &Path) -> Result<()> {
    let command = Command::new(convert).args(["dropbear", "openssh"]).arg(paths.at(DROPBEAR)).arg(made);
    run_program(command, convert, "convert the host key of dropbear")?;
    if !is_key(made) {
        return Err(failed("convert the host key of dropbear", "dropbearconvert created no key", made));
    }
    // ssh-keygen, and later sshd, refuse a private key that other users can read.
    fs::set_permissions(made, Permissions::from_mode(0o600)).map_err(|e| unwritable(made, e))?;
    let what = "print the public part of the host key";
    let lines = run_program(Command::new(keygen).arg("-f").arg(made).arg("-y"), keygen, what)?;
    let public = lines.iter().find(|l| !l.trim().is_empty());
    let public = public.ok_or_else(|| failed(what, "ssh-keygen printed none", made))?;

    let text = format!("{public}\n");
    put(&paths.at(PUBLIC), &Content::Bytes(text.as_bytes()))?;
    let key = File::open(made).map_err(|e| unwritable(made, e))?;
    put(&paths.at(OPENSSH), &Content::File(&key))
}

fn put(path: &Path, content: &Content<'_>) -> Result<()> {
    let (folder, name) = split(path);
    let written = Folder::open(folder).and_then(|folder| {
        file::sweep(&folder)?;
        file::replace(&folder, name, content)
    });
    written.map(drop).map_err(|e| unwritable(path, e))
}

fn unwritable(path: &Path, e: io::Error) -> Error {
    Error::new(Code::StateUnwritable, format!("cannot write {}", path.display()))
        .object(path.display())
        .because(e)
}
