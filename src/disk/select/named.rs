//! A target that the owner names: a disk or a plain file. Every doubt refuses it.

use std::path::Path;

use super::{Candidate, Target, block, checks, file, warn_of_hidden_root};
use crate::disk::select::ImageSize;
use crate::disk::{Device, Facts};
use crate::error::{Code, Error, Result};

pub fn named(path: &Path, facts: &Facts, image: Option<&Path>, size: Option<ImageSize>) -> Result<Target> {
    warn_of_hidden_root(facts);
    let absolute =
        std::path::absolute(path).map_err(|e| file::missing(path, "cannot be resolved").because(e))?;
    match facts.device_at(&absolute) {
        Some(device) => disk(path, &absolute, device, facts, image, size),
        None => file::check(path, &absolute, facts, image),
    }
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
