//! An error in JSON: in the result of a job, and in the history.

use serde::{Deserialize, Serialize};

use super::{Code, Effect, Error};

/// The keys of docs/json.md. Earlier releases wrote neither `summary` nor what follows it; their history has code and message alone.
#[derive(Serialize, Deserialize)]
pub(super) struct Wire {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
    object: Option<String>,
    hint: Option<String>,
    effect: Option<Effect>,
    summary: Option<String>,
    #[serde(default)]
    causes: Vec<String>,
    #[serde(default)]
    notes: Vec<String>,
}

impl From<Error> for Wire {
    fn from(e: Error) -> Wire {
        Wire {
            code: e.code_word().to_owned(),
            message: e.message(),
            object: e.object.map(String::from),
            hint: Some(e.hint.into()),
            effect: Some(e.effect),
            summary: Some(e.summary.into()),
            causes: e.causes,
            notes: e.notes,
        }
    }
}

impl From<Wire> for Error {
    fn from(wire: Wire) -> Error {
        let known = Code::named(&wire.code);
        let code = known.unwrap_or(Code::Io);
        Error {
            code,
            foreign_code: known.is_none().then(|| wire.code.into()),
            summary: wire.summary.unwrap_or(wire.message).into(),
            causes: wire.causes,
            notes: wire.notes,
            object: wire.object.filter(|object| !object.is_empty()).map(Into::into),
            hint: wire.hint.map_or_else(|| code.remedy().into(), Into::into),
            effect: wire.effect.unwrap_or(if code.never_after_write() {
                Effect::Refused
            } else {
                Effect::Written
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Error {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn what_is_written_is_read_back_equal() {
        let shapes: [fn(Code) -> Error; 4] = [
            |code| Error::new(code, "cannot do it"),
            |code| {
                Error::new(code, "cannot\ndo \"it\": [io]; x").object("/dev/sda").with_effect(Effect::Written)
            },
            |code| {
                Error::new(code, "")
                    .because(std::io::Error::other("why"))
                    .with_hint("do this")
                    .after_success()
            },
            |code| {
                Error::new(code, "a").because(Error::new(code, "b").because("c").and_also("d")).and_also("e")
            },
        ];
        for (&code, shape) in Code::ALL.iter().flat_map(|code| shapes.iter().map(move |shape| (code, shape)))
        {
            let error = shape(code);
            assert_eq!(read(&serde_json::to_string(&error).unwrap()), error);
        }
    }

    #[test]
    fn a_line_of_an_earlier_release_is_read() {
        let old =
            read(r#"{"code":"busy","message":"cannot: why","object":"","hint":"h","effect":"refused"}"#);
        assert_eq!(old, Error::new(Code::Busy, "cannot: why").with_hint("h"));
        let history = read(r#"{"code":"hook-failed","message":"the hook failed"}"#);
        assert_eq!(history, Error::new(Code::HookFailed, "the hook failed").after_write());
    }

    #[test]
    fn nothing_of_a_later_release_is_lost() {
        let line = r#"{"code":"cpu-missing","message":"no CPU: why","hint":"buy one","effect":"melted","summary":"no CPU","causes":["why"],"x":1}"#;
        let error = read(line);
        assert_eq!(error.to_string(), "no CPU: why [cpu-missing]; buy one");
        assert_eq!(error.effect(), Effect::Written);
        assert_eq!(read(&serde_json::to_string(&error).unwrap()), error);
    }
}
