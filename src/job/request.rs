//! The request of a job, from its caller.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Spec;
use super::environment::is_passed_on;

/// The job's process takes it as a file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobRequest {
    pub spec: Spec,
    /// The name of the requesting program. The job's log lines begin with it.
    pub program: String,
    /// The caller's environment; `None` selects the environment of the unit.
    environment: Option<HashMap<String, String>>,
    /// The caller's registry configuration, in a separate file.
    #[serde(skip)]
    pub credentials: Option<String>,
    /// Identifies a repeated request.
    #[serde(skip)]
    pub token: Option<String>,
}

impl JobRequest {
    pub(crate) fn new(spec: Spec, program: impl Into<String>) -> JobRequest {
        JobRequest { spec, program: program.into(), environment: None, credentials: None, token: None }
    }

    /// Drops variables that are only valid for the caller's process.
    pub(crate) fn with_environment(mut self, mut environment: HashMap<String, String>) -> JobRequest {
        environment.retain(|name, _| is_passed_on(name));
        self.environment = Some(environment);
        self
    }

    pub(crate) fn environment(&self) -> Option<&HashMap<String, String>> {
        self.environment.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Source, UpdateSpec};
    use super::*;

    #[test]
    fn what_belongs_to_the_caller_is_not_passed_on() {
        let own = [
            "LD_PRELOAD",
            "NOTIFY_SOCKET",
            "JOURNAL_STREAM",
            "LISTEN_FDS",
            "DBUS_SESSION_BUS_ADDRESS",
            "TERM",
            "PWD",
        ];
        let given = own.iter().chain(&["HOME", "HTTPS_PROXY"]).map(|n| ((*n).to_owned(), "x".to_owned()));
        let request = JobRequest::new(Spec::Rollback, "p").with_environment(given.collect());
        let mut kept: Vec<_> = request.environment().unwrap().keys().collect();
        kept.sort();
        assert_eq!(kept, ["HOME", "HTTPS_PROXY"]);
    }

    #[test]
    fn its_file_has_no_secret() {
        let source = Source::Reference("-x:1".into());
        let update = UpdateSpec { hooks: false, reboot: true, ..UpdateSpec::new(source) };
        let request = JobRequest {
            credentials: Some("secret".into()),
            token: Some("secret".into()),
            ..JobRequest::new(Spec::Update(update), "p").with_environment([("A".into(), "b".into())].into())
        };
        let text = serde_json::to_string(&request).unwrap();
        assert!(!text.contains("secret"), "{text}");
        let read: JobRequest = serde_json::from_str(&text).unwrap();
        assert_eq!(read, JobRequest { credentials: None, token: None, ..request });
    }
}
