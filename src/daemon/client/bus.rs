//! The client's connection to the bus: every call has a limit, and a failure says whether the daemon may have taken the call.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_core::Stream as _;
use serde::Serialize;
use zbus::wire::OwnedVariant;
use zbus::{
    Connection, DBusError as _, DynamicType, MatchRule, Message, MessageStream, connection::Builder, message,
};

use crate::daemon::{self, ERROR_PREFIX, JOB_INTERFACE, MANAGER_INTERFACE, NAME};

pub(super) const MANAGER: Object<'_> = Object { path: daemon::MANAGER, interface: MANAGER_INTERFACE };
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// For a connection, and for an answer of a running daemon.
pub(super) const SOON: Duration = Duration::from_secs(10);
/// For an answer of a daemon that systemd starts for it, beside the load of an update, on a slow board.
pub(super) const STARTING: Duration = Duration::from_secs(60);

pub(super) const GLANCE: Duration = Duration::from_millis(200);

/// Errors of the bus, or of the daemon's D-Bus library, which mean that the call was not carried out.
const NOT_TAKEN: [&str; 11] = [
    "ServiceUnknown",
    "NameHasNoOwner",
    "AccessDenied",
    "AuthFailed",
    "InteractiveAuthorizationRequired",
    "UnknownMethod",
    "UnknownObject",
    "UnknownInterface",
    "InvalidArgs",
    "NotSupported",
    "LimitsExceeded",
];

#[derive(Debug, Clone, Copy)]
pub(super) struct Object<'a> {
    pub path: &'a str,
    pub interface: &'a str,
}

#[derive(Debug)]
pub(super) enum Trouble {
    NotTaken(String),
    NoObject(String),
    Refused(String, Message),
    /// The daemon may have taken the call.
    Unclear(String),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::NotTaken(why) | Trouble::NoObject(why) | Trouble::Unclear(why) => f.write_str(why),
            Trouble::Refused(code, _) => f.write_str(code),
        }
    }
}

pub(super) struct Bus(Connection);

pub(super) fn session<T, F>(work: impl FnOnce(Bus) -> F) -> Result<T, Trouble>
where
    F: Future<Output = Result<T, Trouble>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|e| Trouble::NotTaken(e.to_string()))?;
    let result = runtime.block_on(async {
        let connection = within(SOON, Builder::system().build()).await;
        work(Bus(connection.map_err(|e| Trouble::NotTaken(e.to_string()))?)).await
    });
    // Without waiting for the connection to flush.
    runtime.shutdown_background();
    result
}

impl Bus {
    pub(super) async fn call<B>(
        &self,
        Object { path, interface }: Object<'_>,
        method: &str,
        body: &B,
        limit: Duration,
    ) -> Result<Message, Trouble>
    where
        B: Serialize + DynamicType,
    {
        let call = self.0.call_method(Some(NAME), path, Some(interface), method, body);
        within(limit, call).await
    }

    /// Starts the daemon where none runs; stops when `gives_up`.
    pub(super) async fn is_there(&self, gives_up: impl Fn() -> bool) -> Result<(), Trouble> {
        let object = Object { path: MANAGER.path, interface: PROPERTIES };
        let question = (MANAGER.interface, "Version");
        let mut call = std::pin::pin!(self.call(object, "Get", &question, STARTING));
        loop {
            match tokio::time::timeout(GLANCE, &mut call).await {
                Ok(answer) => return answer.map(drop),
                Err(_) if gives_up() => return Err(Trouble::NotTaken("a signal has come".to_owned())),
                Err(_) => {}
            }
        }
    }

    pub(super) async fn job(&self, path: &str) -> Result<HashMap<String, OwnedVariant>, Trouble> {
        let object = Object { path, interface: PROPERTIES };
        let answer = self.call(object, "GetAll", &(JOB_INTERFACE,), STARTING).await?;
        answer.body().deserialize().map_err(|e: zbus::Error| Trouble::Unclear(e.to_string()))
    }

    pub(super) async fn changes(&self, path: &str) -> Result<MessageStream, Trouble> {
        let rule = MatchRule::builder()
            .msg_type(message::Type::Signal)
            .sender(NAME)
            .interface(PROPERTIES)
            .member("PropertiesChanged")
            .path(path)
            .add_arg(JOB_INTERFACE)
            .build()
            .map_err(Trouble::from)?
            .to_owned();
        within(SOON, MessageStream::for_match_rule(rule, &self.0, None)).await
    }
}

/// Waits at most `limit`; whether a change came. Takes all changes: the caller then reads the present state.
pub(super) async fn changed(changes: &mut MessageStream, limit: Duration) -> Result<bool, Trouble> {
    let next = poll_fn(|context| Pin::new(&mut *changes).poll_next(context));
    match tokio::time::timeout(limit, next).await {
        Ok(Some(Ok(_))) => {}
        Ok(_) => return Err(Trouble::Unclear("the bus has gone".to_owned())),
        Err(_) => return Ok(false),
    }
    poll_fn(|context| {
        while let Poll::Ready(Some(Ok(_))) = Pin::new(&mut *changes).poll_next(context) {}
        Poll::Ready(())
    })
    .await;
    Ok(true)
}

async fn within<T>(limit: Duration, work: impl Future<Output = zbus::Result<T>>) -> Result<T, Trouble> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result.map_err(Trouble::from),
        Err(_) => Err(Trouble::Unclear(format!("no answer in {limit:?}"))),
    }
}

impl From<zbus::Error> for Trouble {
    fn from(e: zbus::Error) -> Self {
        let text = e.to_string();
        let name = match &e {
            zbus::Error::MethodError(name, ..) => name.as_str().to_owned(),
            zbus::Error::FDO(e) => e.name().as_str().to_owned(),
            _ => return Trouble::Unclear(text),
        };
        match e {
            zbus::Error::MethodError(_, _, message) if name.starts_with(ERROR_PREFIX) => {
                let code = name.strip_prefix(ERROR_PREFIX).unwrap_or_default();
                Trouble::Refused(kebab(code), message)
            }
            _ => judge(&name, text),
        }
    }
}

fn judge(name: &str, text: String) -> Trouble {
    let short = name.rsplit('.').next().unwrap_or_default();
    // Errors of systemd are about a unit that cannot start.
    let by_systemd = name.starts_with("org.freedesktop.systemd1.");
    if short == "UnknownObject" {
        Trouble::NoObject(text)
    } else if by_systemd || name.contains(".Spawn.") || NOT_TAKEN.contains(&short) {
        Trouble::NotTaken(text)
    } else {
        Trouble::Unclear(text)
    }
}

/// `target-too-small` for `TargetTooSmall`.
fn kebab(camel: &str) -> String {
    let mut out = String::new();
    for c in camel.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn what_was_not_taken_is_known_for_sure() {
        let judged = |name: &str| judge(name, String::new());
        for name in [
            "org.freedesktop.DBus.Error.ServiceUnknown",
            "org.freedesktop.DBus.Error.AccessDenied",
            "org.freedesktop.DBus.Error.Spawn.ChildExited",
            "org.freedesktop.DBus.Error.LimitsExceeded",
            "org.freedesktop.systemd1.NoSuchUnit",
        ] {
            assert!(matches!(judged(name), Trouble::NotTaken(_)), "{name}");
        }
        for name in [
            "org.freedesktop.DBus.Error.NoReply",
            "org.freedesktop.DBus.Error.Timeout",
            "org.freedesktop.DBus.Error.Disconnected",
            "org.freedesktop.DBus.Error.Failed",
        ] {
            assert!(matches!(judged(name), Trouble::Unclear(_)), "{name}");
        }
        let gone = "org.freedesktop.DBus.Error.UnknownObject";
        assert!(matches!(judged(gone), Trouble::NoObject(_)));
    }

    #[test]
    fn every_code_survives_its_name_on_the_bus() {
        for code in Code::ALL {
            let camel: String =
                code.as_str().split('-').map(|w| w[..1].to_ascii_uppercase() + &w[1..]).collect();
            assert_eq!(kebab(&camel), code.as_str());
        }
    }
}
