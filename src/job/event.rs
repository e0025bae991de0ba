//! The output of a process with `--json`: one JSON object per line, as described in `docs/json.md`.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::sys::log::printable_json;

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StageProgress {
    pub stage: Stage,
    /// `None` between begin and end of the stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Edge>,
    pub percent: Option<u8>,
    pub bytes_done: u64,
    pub bytes_total: Option<u64>,
    /// Bytes a second.
    pub rate: Option<u64>,
    /// Seconds.
    pub eta: Option<u64>,
    /// Of the whole job, which may have more stages.
    pub job_percent: Option<u8>,
    /// Seconds.
    pub job_eta: Option<u64>,
    /// A later stage cannot be estimated yet: the job takes `job_eta` or longer.
    pub job_eta_is_least: bool,
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
        printable_json(&format!("{}\n", Value::Object(line))).into_owned()
    }

    /// `None` for a line without progress or result. A later release may print lines that this release does not know.
    #[must_use]
    pub fn of_line(line: &str) -> Option<Event> {
        let line: Map<String, Value> = serde_json::from_str(line).ok()?;
        match line.get("event")?.as_str()? {
            "stage" | "progress" => StageProgress::of_line(&line).map(Event::Stage),
            "result" if line.get("ok") == Some(&Value::Bool(true)) => {
                let is_result = |key: &String| !matches!(key.as_str(), "event" | "version" | "ok");
                Some(Event::Result(Ok(line.into_iter().find(|(key, _)| is_result(key)))))
            }
            "result" => read_error(line).map(|e| Event::Result(Err(e))),
            _ => None,
        }
    }
}

impl StageProgress {
    /// A number that is missing or odd is unknown. A stage of another release counts as work without progress.
    fn of_line(line: &Map<String, Value>) -> Option<StageProgress> {
        let number = |key| line.get(key).and_then(Value::as_u64);
        let percent = |key| number(key).and_then(|n| u8::try_from(n.min(100)).ok());
        Some(StageProgress {
            stage: Stage::deserialize(line.get("stage")?).unwrap_or(Stage::Install),
            state: line.get("state").and_then(|state| Edge::deserialize(state).ok()),
            percent: percent("percent"),
            bytes_done: number("bytes_done").unwrap_or(0),
            bytes_total: number("bytes_total"),
            rate: number("rate"),
            eta: number("eta"),
            job_percent: percent("job_percent"),
            job_eta: number("job_eta"),
            job_eta_is_least: line.get("job_eta_is_least") == Some(&Value::Bool(true)),
        })
    }
}

/// From its texts alone if another part is damaged or of another release: an error is never lost.
fn read_error(line: Map<String, Value>) -> Option<Error> {
    let is_text = |(key, value): &(String, Value)| {
        value.is_string() && matches!(key.as_str(), "code" | "message" | "object" | "hint" | "summary")
    };
    let read = |line: Map<String, Value>| serde_json::from_value(line.into()).ok();
    read(line.clone()).or_else(|| read(line.into_iter().filter(is_text).collect()))
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
    use crate::error::{Code, Effect};

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
            job_percent: Some(20),
            job_eta: Some(60),
            job_eta_is_least: true,
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
        let documented = r#"{"event":"result","version":1,"ok":false,"code":"target-mounted","message":"cannot flash \"x\"","object":"/dev/sda","hint":"unmount it first","effect":"written","summary":"cannot flash \"x\"","causes":[],"notes":[]}"#;
        assert_eq!(line, format!("{documented}\n"));
        let line = result(Err(Error::new(Code::NotRoot, "x")));
        assert!(line.contains(r#""object":null"#) && line.contains(r#""effect":"refused""#), "{line}");
    }

    #[test]
    fn progress_of_another_release_is_read() {
        let read = |line: &str| match Event::of_line(line) {
            Some(Event::Stage(progress)) => {
                (progress.stage, progress.percent, progress.bytes_done, progress.bytes_total, progress.eta)
            }
            other => panic!("{line}: {other:?}"),
        };
        let line = r#"{"event":"stage","version":1,"stage":"pull","state":"begin"}"#;
        assert_eq!(read(line), (Stage::Pull, None, 0, None, None));
        let line =
            r#"{"event":"progress","stage":"new","percent":50,"bytes_done":5,"bytes_total":9,"eta":1}"#;
        assert_eq!(read(line), (Stage::Install, Some(50), 5, Some(9), Some(1)));
        for (percent, expected) in [("300", Some(100)), ("-1", None), ("4.5", None), (r#""x""#, None)] {
            let line =
                format!(r#"{{"event":"progress","stage":"pull","percent":{percent},"bytes_done":null}}"#);
            assert_eq!(read(&line), (Stage::Pull, expected, 0, None, None));
        }
    }

    #[test]
    fn a_damaged_error_is_an_error() {
        let read = |line: &str| match Event::of_line(line) {
            Some(Event::Result(Err(e))) => e,
            other => panic!("{line}: {other:?}"),
        };
        let e = read(
            r#"{"event":"result","ok":false,"code":"slot-full","message":"m","object":5,"effect":"new","causes":1}"#,
        );
        assert_eq!((e.code(), e.message(), e.effect()), (Code::SlotFull, "m".to_owned(), Effect::Written));
        for line in [r#"{"event":"result","ok":false}"#, r#"{"event":"result","ok":5,"code":7,"message":{}}"#]
        {
            assert_eq!((read(line).code(), read(line).effect()), (Code::Io, Effect::Written), "{line}");
        }
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
