//! The file that `--receipt` names.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use tempfile::NamedTempFile;

use crate::error::{Code, Error, Result};
use crate::flash::plan::Plan;
use crate::image::companions;
use crate::sys::block::sync_name;
use crate::sys::file::{Place, is_same};

/// A receipt's file. That it can be written is checked before anything is flashed.
pub(super) struct ReceiptFile {
    place: Place,
    mode: u32,
}

impl ReceiptFile {
    pub(super) fn for_run(path: Option<&Path>, plan: &Plan) -> Result<Option<Self>> {
        path.map(|path| Self::open(path, plan)).transpose()
    }

    fn open(path: &Path, plan: &Plan) -> Result<Self> {
        let refused = |why: &str| {
            Error::new(Code::OutputFailed, format!("cannot put a receipt into {}: {why}", path.display()))
                .object(path.display())
                .with_hint("give --receipt a plain file in a writable directory")
        };
        let image = &plan.image.stored.path;
        let beside = companions(image);
        let mut taken = vec![(image, "it is the image"), (&plan.target.node, "it is the target")];
        taken.extend(beside.iter().map(|path| (path, "it belongs to the image")));
        if let Some((_, why)) = taken.into_iter().find(|(taken, _)| is_same(path, taken)) {
            return Err(refused(why));
        }
        // A link stays: the file that it leads to is replaced.
        let place = Place::of(path).map_err(|e| refused("it leads to no place for a file").because(e))?;
        let old = std::fs::symlink_metadata(place.handle());
        let is_special = ["/dev", "/proc", "/sys"].iter().any(|top| place.path().starts_with(top));
        if is_special || old.as_ref().is_ok_and(|m| !m.is_file()) {
            return Err(refused("it is not a plain file"));
        }
        // It allows no more than the old file did.
        let file = ReceiptFile { place, mode: 0o644 & old.map_or(0o777, |m| m.mode()) };
        file.temporary().map_err(|e| refused("its folder cannot be written").because(e))?;
        Ok(file)
    }

    /// A new file beside the receipt; it goes with the value.
    fn temporary(&self) -> std::io::Result<NamedTempFile> {
        let permissions = Permissions::from_mode(self.mode);
        tempfile::Builder::new()
            .prefix(".receipt-")
            .permissions(permissions)
            .tempfile_in(self.place.folder_handle())
    }

    pub(super) fn save(&self, text: &str) -> Result<()> {
        self.replace(text).map_err(|e| {
            let path = self.place.path().display();
            let message = format!("the image was written and verified, but the receipt {path} was not");
            Error::new(Code::OutputFailed, message).object(path).because(e).after_success()
        })
    }

    fn replace(&self, text: &str) -> std::io::Result<()> {
        let mut temporary = self.temporary()?;
        writeln!(temporary, "{text}")?;
        temporary.as_file().sync_all()?;
        temporary.persist(self.place.handle())?;
        sync_name(&self.place.handle())
    }
}
