//! The output of a process with `--json`: one JSON object per line, as described in `docs/json.md`.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Result;

/// Incremented when a key is removed or changes its meaning, not when a key is added.
const SCHEMA_VERSION: u32 = 1;

/// In the order of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// No stage has begun.
    Start,
    /// Reading or decoding the image before the first write.
    Check,
    Write,
    Verify,
    /// Loading an image archive into the container engine.
    Load,
    Pull,
    Unpack,
    /// Work without progress, for example hooks: between two stages, and after the last.
    Install,
    /// The work is done, and the job waits for the reboot.
    Reboot,
    Done,
}

impl Stage {
    /// Whether processes report progress in this stage.
    #[must_use]
    pub(crate) fn has_progress(self) -> bool {
        !matches!(self, Stage::Start | Stage::Install | Stage::Reboot | Stage::Done)
    }

    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Stage::Start => "start",
            Stage::Check => "check",
            Stage::Write => "write",
            Stage::Verify => "verify",
            Stage::Load => "load",
            Stage::Pull => "pull",
            Stage::Unpack => "unpack",
            Stage::Install => "install",
            Stage::Reboot => "reboot",
            Stage::Done => "done",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The progress of one stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageProgress {
    pub stage: Stage,
    /// `None` between begin and end of the stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Edge>,
    pub percent: Option<u8>,
    pub bytes_done: u64,
    pub bytes_total: Option<u64>,
    /// Bytes a second.
    pub rate: Option<u64>,
    /// Seconds.
    pub eta: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Edge {
    Begin,
    End,
}

/// The end of a verb: its result with its key, if it has a result; or the error.
pub type Report = Result<Option<(String, Value)>>;

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Stage(StageProgress),
    /// A named value that precedes an error.
    Finding(String, Value),
    Result(Report),
}

impl Event {
    /// The line, with a newline.
    #[must_use]
    pub fn to_line(&self) -> String {
        let (event, fields) = match self {
            Event::Stage(progress) => {
                (if progress.state.is_some() { "stage" } else { "progress" }, to_map(progress))
            }
            Event::Finding(name, value) => (name.as_str(), Map::from_iter([(name.clone(), value.clone())])),
            Event::Result(Ok(entry)) => {
                ("result", [("ok".to_owned(), true.into())].into_iter().chain(entry.clone()).collect())
            }
            Event::Result(Err(e)) => {
                ("result", [("ok".to_owned(), false.into())].into_iter().chain(to_map(e)).collect())
            }
        };
        let head = [("event".to_owned(), event.into()), ("version".to_owned(), SCHEMA_VERSION.into())];
        let line: Map<String, Value> = head.into_iter().chain(fields).collect();
        format!("{}\n", Value::Object(line))
    }

    /// `None` for a line without progress or result. A later release may print lines that this release does not know.
    #[must_use]
    pub fn of_line(line: &str) -> Option<Event> {
        let line: Map<String, Value> = serde_json::from_str(line).ok()?;
        match line.get("event")?.as_str()? {
            "stage" | "progress" => serde_json::from_value(line.into()).ok().map(Event::Stage),
            "result" if line.get("ok") == Some(&Value::Bool(true)) => {
                let is_result = |key: &String| !matches!(key.as_str(), "event" | "version" | "ok");
                Some(Event::Result(Ok(line.into_iter().find(|(key, _)| is_result(key)))))
            }
            "result" => serde_json::from_value(line.into()).ok().map(|e| Event::Result(Err(e))),
            _ => None,
        }
    }
}

fn to_map(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Error};

    #[test]
    fn what_is_written_is_read_back() {
        let progress = StageProgress {
            stage: Stage::Verify,
            state: None,
            percent: Some(45),
            bytes_done: u64::MAX,
            bytes_total: None,
            rate: Some(7),
            eta: None,
        };
        let error = Error::new(Code::HookFailed, "cannot run x").object("x").with_hint("fix x");
        for event in [
            Event::Stage(progress.clone()),
            Event::Stage(StageProgress { state: Some(Edge::End), ..progress }),
            Event::Result(Ok(None)),
            Event::Result(Ok(Some(("update".into(), 5.into())))),
            Event::Result(Err(error.because(std::io::Error::other("why")).after_write())),
        ] {
            assert_eq!(Event::of_line(&event.to_line()), Some(event));
        }
    }

    #[test]
    fn lines_are_as_documented() {
        let result = |report| Event::Result(report).to_line();
        assert_eq!(result(Ok(None)), "{\"event\":\"result\",\"version\":1,\"ok\":true}\n");
        assert_eq!(
            result(Ok(Some(("digest".into(), 5.into())))),
            "{\"event\":\"result\",\"version\":1,\"ok\":true,\"digest\":5}\n"
        );
        assert_eq!(
            Event::Finding("doctor".into(), 5.into()).to_line(),
            "{\"event\":\"doctor\",\"version\":1,\"doctor\":5}\n"
        );
        let e = Error::new(Code::TargetMounted, "cannot flash \"x\"").object("/dev/sda").after_write();
        let line = result(Err(e));
        let documented = r#"{"event":"result","version":1,"ok":false,"code":"target-mounted","message":"cannot flash \"x\"","object":"/dev/sda","hint":"unmount it first","effect":"written""#;
        assert!(line.starts_with(documented), "{line}");
        let line = result(Err(Error::new(Code::NotRoot, "x")));
        assert!(line.contains(r#""object":null"#) && line.contains(r#""effect":"refused""#), "{line}");
    }

    #[test]
    fn what_is_unknown_is_no_event() {
        for line in
            ["no json", "[]", "{}", r#"{"event":"new","version":1}"#, r#"{"event":"stage","version":1}"#]
        {
            assert_eq!(Event::of_line(line), None, "{line}");
        }
    }
}
