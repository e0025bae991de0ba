//! D-Bus connections and calls with a time limit.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use zbus::{Connection, DynamicType, Message, connection::Builder, fdo};

use super::SystemdError;

/// A working service needs a small part of this, even on the slowest board under full load.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct Bus {
    address: Option<String>,
    limit: Duration,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Object<'a> {
    pub service: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
}

pub(super) const SYSTEMD: Object<'_> = Object {
    service: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};

impl Bus {
    #[must_use]
    pub fn system() -> Self {
        Bus { address: None, limit: CALL_TIMEOUT }
    }

    /// A D-Bus address, such as `unix:path=/run/dbus/system_bus_socket`.
    pub fn at(address: impl Into<String>) -> Self {
        Bus { address: Some(address.into()), limit: CALL_TIMEOUT }
    }

    #[must_use]
    pub fn with_limit(self, limit: Duration) -> Self {
        Bus { limit, ..self }
    }

    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Runs `work` to its end with a new connection.
    pub(super) fn run<T: Send, F>(&self, work: impl FnOnce(Calls) -> F + Send) -> Result<T, SystemdError>
    where
        F: Future<Output = Result<T, SystemdError>>,
    {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .enable_time()
                .build()
                .map_err(|e| SystemdError::Unreachable(e.to_string()))?;
            let result = runtime.block_on(async { work(self.connect().await?).await });
            // Does not wait for pending output of the connection.
            runtime.shutdown_background();
            result
        };
        // On its own thread: `block_on` panics inside another runtime.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("dbus".into()).spawn_scoped(scope, run);
            let thread = thread.map_err(|e| SystemdError::Unreachable(e.to_string()))?;
            thread.join().unwrap_or_else(|_| Err(SystemdError::Unreachable("its thread panicked".into())))
        })
    }

    async fn connect(&self) -> Result<Calls, SystemdError> {
        let builder = match &self.address {
            Some(address) => Builder::address(address.as_str()),
            None => Builder::system(),
        };
        let connection = within(self.limit, builder.build()).await?;
        Ok(Calls { connection, limit: self.limit })
    }
}

pub(super) struct Calls {
    pub connection: Connection,
    pub limit: Duration,
}

impl Calls {
    pub(super) async fn call<B>(
        &self,
        object: Object<'_>,
        method: &str,
        body: &B,
    ) -> Result<Message, SystemdError>
    where
        B: Serialize + DynamicType,
    {
        let Object { service, path, interface } = object;
        let call = self.connection.call_method(Some(service), path, Some(interface), method, body);
        within(self.limit, call).await
    }
}

/// The result of `work`, if it comes in time.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = zbus::Result<T>>,
) -> Result<T, SystemdError> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result.map_err(SystemdError::from),
        Err(_) => Err(SystemdError::Silent(limit)),
    }
}

impl From<zbus::Error> for SystemdError {
    fn from(e: zbus::Error) -> Self {
        use fdo::Error as Fdo;
        let refused = |name: &str, text: &str| SystemdError::Refused(name.to_owned(), text.to_owned());
        match e {
            zbus::Error::MethodError(name, text, _) => {
                refused(name.as_str(), text.as_deref().unwrap_or_default())
            }
            zbus::Error::FDO(e) => match *e {
                Fdo::AccessDenied(text) => refused("org.freedesktop.DBus.Error.AccessDenied", &text),
                Fdo::InvalidArgs(text) => refused("org.freedesktop.DBus.Error.InvalidArgs", &text),
                Fdo::UnknownMethod(text) => refused("org.freedesktop.DBus.Error.UnknownMethod", &text),
                Fdo::Failed(text) => refused("org.freedesktop.DBus.Error.Failed", &text),
                other => SystemdError::Unreachable(other.to_string()),
            },
            other => SystemdError::Unreachable(other.to_string()),
        }
    }
}
