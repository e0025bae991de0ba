//! Converts source and options of a call into the request of a job.

use std::collections::HashMap;
use std::path::PathBuf;

use zbus::OwnedVariant;

use super::dbus_error::DbusError;
use crate::job::{DEFAULT_PATH, FlashSpec, JobRequest, Source, Spec, UpdateSpec};

pub(super) type CallOptions = HashMap<String, OwnedVariant>;

const MAX_TOKEN_BYTES: usize = 64;
/// Of environment and credentials. The job reads its request at once.
const MAX_TEXT_BYTES: usize = 256 << 10;

/// Default of the option `program`.
const PROGRAM: &str = "copal daemon";

/// Known options are removed one by one. The remaining options are unknown.
struct OptionReader(CallOptions);

impl OptionReader {
    fn take<T: TryFrom<OwnedVariant>>(&mut self, key: &str) -> Result<Option<T>, DbusError> {
        let Some(value) = self.0.remove(key) else { return Ok(None) };
        T::try_from(value)
            .map(Some)
            .map_err(|_| DbusError::usage(format!("the option {key} has the wrong type")))
    }

    fn flag(&mut self, key: &str, default: bool) -> Result<bool, DbusError> {
        Ok(self.take(key)?.unwrap_or(default))
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, DbusError> {
        let text: Option<String> = self.take(key)?;
        match &text {
            Some(t) if t.is_empty() => Err(DbusError::usage(format!("the option {key} is empty"))),
            _ => Ok(text),
        }
    }

    fn path(&mut self, key: &str) -> Result<Option<PathBuf>, DbusError> {
        match self.text(key)? {
            Some(path) if !path.starts_with('/') => {
                Err(DbusError::usage(format!("the option {key} is not an absolute path: {path}")))
            }
            path => Ok(path.map(PathBuf::from)),
        }
    }

    /// Reads the options of all kinds of jobs.
    fn request(&mut self, spec: Spec) -> Result<JobRequest, DbusError> {
        let program = self.text("program")?.unwrap_or_else(|| PROGRAM.to_owned());
        let request = JobRequest::new(spec, program);
        let Some(mut environment) = self.take::<HashMap<String, String>>("environment")? else {
            return Ok(request);
        };
        if let Some(name) = environment.keys().find(|n| n.is_empty() || n.contains('=')) {
            return Err(DbusError::usage(format!("the environment has a variable named '{name}'")));
        }
        check_length(environment.iter().map(|(name, value)| name.len() + value.len()).sum(), "environment")?;
        environment.entry("PATH".to_owned()).or_insert_with(|| DEFAULT_PATH.to_owned());
        Ok(request.with_environment(environment))
    }

    fn end(self) -> Result<(), DbusError> {
        match self.0.into_keys().min() {
            Some(key) => Err(DbusError::usage(format!("unknown option {key}"))),
            None => Ok(()),
        }
    }
}

fn check_length(bytes: usize, key: &str) -> Result<(), DbusError> {
    if bytes > MAX_TEXT_BYTES {
        return Err(DbusError::usage(format!(
            "the option {key} is longer than {} KiB",
            MAX_TEXT_BYTES >> 10
        )));
    }
    Ok(())
}

pub(super) fn update(source: &str, options: CallOptions) -> Result<JobRequest, DbusError> {
    let mut options = OptionReader(options);
    let is_file = match options.text("type")?.as_deref() {
        None => source.starts_with('/'),
        Some("file") => true,
        Some("image") => false,
        Some(other) => {
            return Err(DbusError::usage(format!("the option type must be file or image, not {other}")));
        }
    };
    if source.is_empty() || (is_file && !source.starts_with('/')) {
        return Err(DbusError::usage(format!("the source is not an absolute path: '{source}'")));
    }
    let source = if is_file { Source::File(source.into()) } else { Source::Reference(source.to_owned()) };
    let default = UpdateSpec::new(source);
    let spec = UpdateSpec {
        hooks: options.flag("hooks", default.hooks)?,
        recover: options.flag("recover", default.recover)?,
        reboot: options.flag("reboot", default.reboot)?,
        force: options.flag("force", default.force)?,
        accept_loader_key: options.flag("accept_loader_key", default.accept_loader_key)?,
        ..default
    };
    let credentials: Option<String> = options.take("credentials")?;
    check_length(credentials.as_ref().map_or(0, String::len), "credentials")?;
    let token = options.text("token")?;
    if token.as_ref().is_some_and(|t| t.len() > MAX_TOKEN_BYTES) {
        return Err(DbusError::usage("the option token is too long"));
    }
    let mut request = options.request(Spec::Update(spec))?;
    options.end()?;
    (request.credentials, request.token) = (credentials, token);
    Ok(request)
}

pub(super) fn flash(options: CallOptions) -> Result<JobRequest, DbusError> {
    let mut options = OptionReader(options);
    let power_off = options.flag("power_off", true)?;
    let spec = FlashSpec { power_off, ..flash_spec(&mut options)? };
    let request = options.request(Spec::Flash(spec))?;
    options.end()?;
    Ok(request)
}

pub(super) fn plan(options: CallOptions) -> Result<JobRequest, DbusError> {
    let mut options = OptionReader(options);
    let spec = flash_spec(&mut options)?;
    let request = options.request(Spec::Plan(spec))?;
    options.end()?;
    Ok(request)
}

fn flash_spec(options: &mut OptionReader) -> Result<FlashSpec, DbusError> {
    Ok(FlashSpec {
        conf: options.path("conf")?,
        image: options.path("image")?,
        target: options.path("target")?,
        force_raw: options.flag("force_raw", false)?,
        single_pass: options.flag("single_pass", false)?,
        image_only: options.flag("image_only", false)?,
        power_off: false,
    })
}

/// The request of a call without options.
pub(super) fn without(spec: Spec) -> JobRequest {
    JobRequest::new(spec, PROGRAM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbus::{DBusError as _, Variant};

    fn options<const N: usize>(all: [(&str, Variant<'static>); N]) -> CallOptions {
        all.into_iter().map(|(k, v)| (k.to_owned(), v.try_into().unwrap())).collect()
    }

    fn spec(source: &str, options: CallOptions) -> UpdateSpec {
        let Spec::Update(spec) = update(source, options).unwrap().spec else { panic!() };
        spec
    }

    #[test]
    fn the_source_shows_what_it_is_unless_the_type_is_given() {
        assert_eq!(spec("/a/b", options([])), UpdateSpec::new(Source::File("/a/b".into())));
        assert_eq!(spec("a/b:1", options([])), UpdateSpec::new(Source::Reference("a/b:1".into())));
        assert_eq!(spec("/x", options([("type", "image".into())])).source, Source::Reference("/x".into()));
        for (source, kind) in [("a", "file"), ("/a", "folder"), ("", "image")] {
            let e = update(source, options([("type", kind.into())])).unwrap_err();
            assert_eq!(e.name().as_str(), "io.balena.Copal1.Error.Usage", "{source}");
        }
    }

    #[test]
    fn every_option_is_in_the_request() {
        let environment = HashMap::from([("A", "b"), ("NOTIFY_SOCKET", "x")]);
        let request = update(
            "a",
            options([
                ("hooks", false.into()),
                ("recover", false.into()),
                ("reboot", true.into()),
                ("force", true.into()),
                ("accept_loader_key", true.into()),
                ("environment", environment.into()),
                ("credentials", "{}".into()),
                ("program", "hostapp-update".into()),
                ("token", "abc".into()),
            ]),
        )
        .unwrap();
        let source = Source::Reference("a".into());
        let expected = UpdateSpec {
            source,
            hooks: false,
            recover: false,
            reboot: true,
            force: true,
            accept_loader_key: true,
        };
        assert_eq!(request.spec, Spec::Update(expected));
        assert_eq!(request.token.as_deref(), Some("abc"));
        assert_eq!(
            (request.program.as_str(), request.credentials.as_deref()),
            ("hostapp-update", Some("{}"))
        );
        let environment = request.environment().unwrap();
        assert_eq!(environment.len(), 2);
        assert_eq!((environment["A"].as_str(), environment["PATH"].as_str()), ("b", DEFAULT_PATH));

        let request = flash(options([("image", "/i".into())])).unwrap();
        let spec = FlashSpec { image: Some("/i".into()), power_off: true, ..FlashSpec::default() };
        assert_eq!((request.spec, request.program.as_str()), (Spec::Flash(spec), "copal daemon"));
        let request = flash(options([("single_pass", true.into()), ("power_off", false.into())])).unwrap();
        assert_eq!(request.spec, Spec::Flash(FlashSpec { single_pass: true, ..FlashSpec::default() }));
        assert_eq!(plan(options([])).unwrap(), without(Spec::Plan(FlashSpec::default())));
    }

    #[test]
    fn what_is_unknown_or_of_another_type_is_refused() {
        for (key, value) in [
            ("hook", Variant::from(true)),
            ("hooks", "no".into()),
            ("program", "".into()),
            ("token", "a".repeat(65).into()),
            ("environment", HashMap::from([("A=B", "c")]).into()),
        ] {
            assert!(update("a", options([(key, value)])).is_err(), "{key}");
        }
        assert!(flash(options([("image", "relative".into())])).is_err());
        assert!(plan(options([("power_off", true.into())])).is_err());
    }
}
