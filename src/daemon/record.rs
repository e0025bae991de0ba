//! The record of the last job.

use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::job_state::JobKind;
use super::unit::LARGEST;
use crate::config::paths::Paths;
use crate::sys::file;

pub(super) const RECORD: &str = "job.json";

/// The last job, until the next boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub id: u32,
    pub kind: JobKind,
    #[serde(default)]
    pub token: Option<String>,
    pub reboot: bool,
}

impl Record {
    /// `None` where there was no job, or the record is damaged.
    pub(super) fn read(paths: &Paths) -> Option<Record> {
        let path = paths.run_files().join(RECORD);
        let read = file::read_record(&path, LARGEST).and_then(|text| Ok(serde_json::from_str(&text)?));
        match read {
            Ok(record) => Some(record),
            Err(e) => {
                if e.kind() != io::ErrorKind::NotFound {
                    tracing::warn!("the last job is unknown: {}: {e}", path.display());
                }
                None
            }
        }
    }

    pub(super) fn write(&self, paths: &Paths) -> io::Result<()> {
        let file = content(&paths.run_files(), &serde_json::to_vec(self)?)?;
        file.persist(paths.run_files().join(RECORD))?;
        Ok(())
    }
}

/// A file for root, not yet under its name: no process reads a part of it.
pub(super) fn content(folder: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_record_is_for_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        std::fs::create_dir_all(paths.run_files()).unwrap();
        let record = Record { id: 7, kind: JobKind::Update, token: Some("secret".into()), reboot: true };
        record.write(&paths).unwrap();
        assert_eq!(Record::read(&paths), Some(record));
        let mode = std::fs::metadata(paths.run_files().join(RECORD)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
