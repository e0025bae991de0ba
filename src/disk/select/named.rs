//! A target that the owner names: a disk or a plain file. Every doubt refuses it.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nix::sys::stat::{FileStat, fstat};

use super::{Candidate, Target, block, checks, file, warn_of_hidden_root};
use crate::disk::select::ImageSize;
use crate::disk::{Device, Facts};
use crate::error::{Code, Error, Result};

pub fn named(path: &Path, facts: &Facts, image: Option<&Path>, size: Option<ImageSize>) -> Result<Target> {
    warn_of_hidden_root(facts);
    let absolute =
        std::path::absolute(path).map_err(|e| file::missing(path, "cannot be resolved").because(e))?;
    refuse_own_descriptor(path, &absolute)?;
    match facts.device_at(&absolute) {
        Some(device) => disk(path, &absolute, device, facts, image, size),
        None => file::check(path, &absolute, facts, image),
    }
}

/// The receipt and the progress would be written over the image.
fn refuse_own_descriptor(path: &Path, absolute: &Path) -> Result<()> {
    let Some(stream) = own_descriptor(absolute) else { return Ok(()) };
    let message = format!("cannot flash {}: it is {stream}", path.display());
    let error = Error::new(Code::TargetInUse, message).object(path.display());
    Err(error.with_hint("name another target, or redirect the output of this program elsewhere"))
}

/// The stream of this process that a path leads to, by its name or by what is open there.
fn own_descriptor(path: &Path) -> Option<&'static str> {
    let mut here = path.to_owned();
    // As many links as Linux follows (path_resolution(7)).
    for _ in 0..40 {
        let directory = here.parent().and_then(|directory| directory.canonicalize().ok());
        if directory.is_some_and(|directory| directory.starts_with("/proc") && directory.ends_with("fd")) {
            return Some("an open file of this program");
        }
        let Ok(to) = std::fs::read_link(&here) else { break };
        here = here.parent().unwrap_or(Path::new("/")).join(to);
    }
    let target = std::fs::metadata(path).ok()?;
    let is_target = |open: nix::Result<FileStat>| {
        open.is_ok_and(|open| match target.file_type() {
            kind if kind.is_block_device() => target.rdev() == open.st_rdev,
            kind => kind.is_file() && (target.dev(), target.ino()) == (open.st_dev, open.st_ino),
        })
    };
    let streams = [
        (fstat(std::io::stdin()), "the standard input of this program"),
        (fstat(std::io::stdout()), "the standard output of this program"),
        (fstat(std::io::stderr()), "the standard error output of this program"),
    ];
    streams.into_iter().find(|(open, _)| is_target(*open)).map(|(_, name)| name)
}

fn disk(
    path: &Path,
    absolute: &Path,
    device: &Device,
    facts: &Facts,
    image: Option<&Path>,
    size: Option<ImageSize>,
) -> Result<Target> {
    let refused = |code, why: &str| {
        Error::new(code, format!("cannot flash {}: {why}", path.display())).object(path.display())
    };
    let candidate = Candidate { name: path.to_owned(), md: absolute.starts_with("/dev/md") };
    let device = checks::skip(&candidate, Some(device), facts, &facts.medium())
        .map_err(|r| refused(r.code, &r.reason))?;
    if lies_on_image(device, facts, image) {
        return Err(refused(Code::TargetIsImage, "the image backs this loop device"));
    }
    checks::refuse(path, device, facts, size)?;
    Ok(block(path, device, facts))
}

fn lies_on_image(device: &Device, facts: &Facts, image: Option<&Path>) -> bool {
    let below = facts.all_below([device.dev]);
    let loops = below.iter().filter_map(|d| facts.device(*d)).filter_map(|d| d.backing.as_ref());
    let mut files = loops.map(|b| (b.file, facts.paths().at(&b.path)));
    image.is_some_and(|image| files.any(|(file, path)| file::is_same(image, &path, file)))
}
