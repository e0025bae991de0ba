//! The files of older jobs.

use std::fs;
use std::io;

use super::unit::Files;
use crate::config::paths::Paths;

/// Removes the files of jobs with a lower number than `id`.
pub(super) fn remove(paths: &Paths, id: u32) {
    let entries = match fs::read_dir(paths.run_files()) {
        Ok(entries) => entries,
        Err(e) => {
            if e.kind() != io::ErrorKind::NotFound {
                tracing::debug!("files of older jobs stay: {e}");
            }
            return;
        }
    };
    for name in entries.flatten().map(|entry| entry.file_name()) {
        let number =
            name.to_str().and_then(|name| name.strip_prefix("job-")?.split_once('.')?.0.parse().ok());
        if let Some(older) = number.filter(|n: &u32| *n < id) {
            Files::new(paths, &older).clean();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_jobs_and_plans_stay() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        remove(&paths, 3);
        fs::create_dir_all(paths.run_files().join("job-1.auth")).unwrap();
        for name in ["job-2.end", "job-2.jsonl", "job-3.end", "job-10.jsonl", "job-plan.end", "job.json"] {
            fs::write(paths.run_files().join(name), "").unwrap();
        }
        remove(&paths, 3);
        let mut left: Vec<_> =
            fs::read_dir(paths.run_files()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["job-10.jsonl", "job-3.end", "job-plan.end", "job.json"]);
    }
}
