//! The record of the last job.

use std::io;

use serde::{Deserialize, Serialize};

use super::Spec;
use super::files::{MAX_FILE_BYTES, private_file};
use crate::config::paths::Paths;
use crate::sys::file;

pub(super) const RECORD_FILE: &str = "job.json";

/// The object of the service on the bus, and the prefix of the objects of jobs.
pub(crate) const OBJECT_PATH: &str = "/io/balena/Copal1";

/// The object of a job on the bus.
pub(crate) fn object_path(id: u32) -> String {
    format!("{OBJECT_PATH}/job/{id}")
}

/// The last job, until the next boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobRecord {
    pub id: u32,
    pub spec: Spec,
    pub token: Option<String>,
}

impl JobRecord {
    /// `None` if there was no job, or if the record is damaged.
    pub(super) fn read(paths: &Paths) -> Option<JobRecord> {
        let path = paths.run_files().join(RECORD_FILE);
        let read = file::read_record(&path, MAX_FILE_BYTES).and_then(|text| Ok(serde_json::from_str(&text)?));
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

    pub(crate) fn write(&self, paths: &Paths) -> io::Result<()> {
        let file = private_file(&paths.run_files(), &serde_json::to_vec(self)?)?;
        file.persist(paths.run_files().join(RECORD_FILE))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Source, UpdateSpec};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_record_is_for_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        std::fs::create_dir_all(paths.run_files()).unwrap();
        let spec = Spec::Update(UpdateSpec::new(Source::File("/a".into())));
        let record = JobRecord { id: 7, spec, token: Some("secret".into()) };
        record.write(&paths).unwrap();
        assert_eq!(JobRecord::read(&paths), Some(record));
        let mode = std::fs::metadata(paths.run_files().join(RECORD_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
