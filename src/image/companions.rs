//! Files beside an image: `.bmap`, `.sha256`, `.sig`.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::bmap::{self, Bmap};
use super::open::{NotOpened, open_regular};
use super::{Image, Surroundings, checksum_file};
use crate::error::{Code, Error, Result};
use crate::image::digest::Digest256;

const MAX_CHECKSUM_FILE: u64 = 1 << 20;

pub(super) struct Companions {
    pub(super) bmap: Option<(PathBuf, Bmap)>,
    /// The expected SHA-256 of the stored file, and the file that it is from.
    pub(super) sha256: Option<(PathBuf, Digest256)>,
}

impl Companions {
    pub(super) fn of(image: &Image) -> Result<Companions> {
        let mut bmap = None;
        for path in bmap_paths(&image.path) {
            if let Some(bytes) = read(&path, image.surroundings, bmap::MAX_BYTES as u64, Code::BmapInvalid)? {
                let parsed = Bmap::parse(&bytes).map_err(|why| {
                    let text = format!("block map {} cannot be used: {why}", path.display());
                    Error::new(Code::BmapInvalid, text).object(path.display())
                })?;
                bmap = Some((path, parsed));
                break;
            }
        }
        let path = appended(&image.path, ".sha256");
        let name = image.path.file_name().unwrap_or_default();
        let sha256 = match read(&path, image.surroundings, MAX_CHECKSUM_FILE, Code::ChecksumFileInvalid)? {
            None => None,
            Some(bytes) => {
                let digest = checksum_file::find(&bytes, name).map_err(|why| {
                    let text = format!("checksum file {} cannot be used: {why}", path.display());
                    Error::new(Code::ChecksumFileInvalid, text).object(path.display())
                })?;
                Some((path, digest))
            }
        };
        Ok(Companions { bmap, sha256 })
    }
}

/// All files that belong to an image if they are there. None of them may be written.
pub(crate) fn companions(image: &Path) -> Vec<PathBuf> {
    let mut paths = bmap_paths(image);
    paths.extend([appended(image, ".sha256"), signature_of(image)]);
    paths
}

/// Where the signature of an image is.
pub(super) fn signature_of(image: &Path) -> PathBuf {
    appended(&uncompressed_name(image), ".sig")
}

fn appended(path: &Path, suffix: &str) -> PathBuf {
    let mut text = OsString::from(path);
    text.push(suffix);
    PathBuf::from(text)
}

fn uncompressed_name(path: &Path) -> PathBuf {
    match path.extension().and_then(|e| e.to_str()) {
        Some("gz" | "xz" | "zst" | "bz2") => path.with_extension(""),
        _ => path.to_path_buf(),
    }
}

/// Where the block map of `disk.img.xz` may be, first match taken: `disk.img.xz.bmap`, `disk.img.bmap`, `disk.bmap`.
/// bmaptool removes more suffixes, which can lead to the map of another version.
fn bmap_paths(image: &Path) -> Vec<PathBuf> {
    let plain = uncompressed_name(image);
    let mut paths = vec![appended(image, ".bmap"), appended(&plain, ".bmap")];
    if matches!(plain.extension().and_then(|e| e.to_str()), Some("img" | "raw" | "wic" | "balenaos-img")) {
        paths.push(plain.with_extension("bmap"));
    }
    paths.dedup();
    paths
}

pub(super) fn read(
    path: &Path,
    surroundings: Surroundings,
    limit: u64,
    code: Code,
) -> Result<Option<Vec<u8>>> {
    if !path.exists() && !path.is_symlink() {
        return Ok(None);
    }
    let failed = |why: String| {
        Error::new(code, format!("cannot use {}: {why}", path.display())).object(path.display())
    };
    let file = open_regular(path, surroundings).map_err(|why| match why {
        NotOpened::Kind(what) => failed(format!("it is {what}")),
        NotOpened::Untrusted(e) => e,
        NotOpened::Io(e) => failed(e.to_string()),
    })?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| failed(e.to_string()))?;
    if bytes.len() as u64 > limit {
        return Err(failed(format!("it has more than {limit} bytes")));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_block_maps() {
        let names = |path: &str| -> Vec<String> {
            bmap_paths(Path::new(path)).iter().map(|p| p.display().to_string()).collect()
        };
        assert_eq!(names("/d/disk.img.xz"), ["/d/disk.img.xz.bmap", "/d/disk.img.bmap", "/d/disk.bmap"]);
        assert_eq!(names("/d/os-2.3.wic"), ["/d/os-2.3.wic.bmap", "/d/os-2.3.bmap"]);
        assert_eq!(names("/d/os-2.3"), ["/d/os-2.3.bmap"]);
    }
}
