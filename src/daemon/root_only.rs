//! The service's connection to the bus admits only calls of root, for every method and property.
//!
//! The bus's policy says the same. But the policy may be missing, and it protects a service only while the service has its name: a message
//! to the connection itself arrives before and after that, too.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use zbus::address::Address;
use zbus::address::transport::{Transport, UnixSocket};
use zbus::connection::socket::{ReadHalf, Socket, Split, WriteHalf};
use zbus::export::async_trait::async_trait;
use zbus::message::{Flags, Type};
use zbus::names::OwnedUniqueName;
use zbus::{Connection, Message};

use super::core::Core;
use super::dbus_error::DbusError;

const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";

/// The bus answers at once, unless it hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Callers whose user is remembered. After that many, the bus is asked again.
const MAX_KNOWN: usize = 1024;

/// The connection that sends refusals, while there is one. Its own reader holds this value: if it is not cleared, the connection stays open.
#[derive(Clone, Default)]
pub(super) struct Refusals(Arc<Mutex<Option<Connection>>>);

impl Refusals {
    pub(super) fn set(&self, connection: Option<Connection>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }

    fn connection(&self) -> Option<Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(super) struct RootOnly {
    stream: UnixStream,
    gate: Gate,
}

impl RootOnly {
    /// `own` is another connection to the same bus: there, the names of the callers' users never queue after calls.
    pub(super) async fn connect(
        core: Arc<Core>,
        own: Connection,
        refusals: Refusals,
    ) -> zbus::Result<RootOnly> {
        let address = Address::system()?;
        let path = match address.transport() {
            Transport::Unix(unix) => match unix.path() {
                UnixSocket::File(path) => path.clone(),
                // A path that begins with a zero byte is an abstract name (unix(7)).
                UnixSocket::Abstract(name) => {
                    PathBuf::from(OsString::from_vec([b"\0", name.as_encoded_bytes()].concat()))
                }
                _ => return Err(zbus::Error::Unsupported),
            },
            _ => return Err(zbus::Error::Unsupported),
        };
        let stream = UnixStream::connect(path).await?;
        Ok(RootOnly { stream, gate: Gate { core, own, refusals, known: HashMap::new() } })
    }
}

impl Socket for RootOnly {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let (input, output) = self.stream.into_split();
        Split::new(Reader { input: Input(input), gate: self.gate }, Writer(output))
    }
}

struct Gate {
    core: Arc<Core>,
    own: Connection,
    refusals: Refusals,
    /// Whether a connection is root's. The bus never uses a unique name twice.
    known: HashMap<OwnedUniqueName, bool>,
}

impl Gate {
    async fn admits(&mut self, call: &Message) -> bool {
        let header = call.header();
        let Some(sender) = header.sender() else { return false };
        if let Some(is_root) = self.known.get(sender.as_str()) {
            return *is_root;
        }
        // The service must not exit meanwhile: it would lose the call.
        let _call = self.core.begin_call();
        let ask = self.own.call_method(Some(BUS), BUS_PATH, Some(BUS), "GetConnectionUnixUser", sender);
        let Ok(Ok(answer)) = timeout(ANSWER_LIMIT, ask).await else { return false };
        let Ok(user) = answer.body().deserialize::<u32>() else { return false };
        // A service that does not run as root is one of a test, and its user may do with it what they like.
        let is_root = user == 0 || user == nix::unistd::geteuid().as_raw();
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(sender.to_owned().into(), is_root);
        is_root
    }

    async fn refuse(&self, call: &Message) {
        let header = call.header();
        if header.primary().flags().contains(Flags::NO_REPLY_EXPECTED) {
            return;
        }
        if let Some(connection) = self.refusals.connection() {
            // A failed write means a lost connection, which the reader notices.
            drop(connection.reply_dbus_error(&header, DbusError::denied()).await);
        }
    }
}

pub(super) struct Reader {
    input: Input,
    gate: Gate,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reader").field(&self.input).finish()
    }
}

#[async_trait]
impl ReadHalf for Reader {
    async fn receive_message(
        &mut self,
        seq: u64,
        received: &mut Vec<u8>,
        fds: &mut Vec<OwnedFd>,
    ) -> zbus::Result<Message> {
        loop {
            let message = self.input.receive_message(seq, received, fds).await?;
            if message.message_type() != Type::MethodCall || self.gate.admits(&message).await {
                return Ok(message);
            }
            self.gate.refuse(&message).await;
        }
    }

    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        self.input.recvmsg(buffer).await
    }
}

/// Has the library's way to put messages together.
#[derive(Debug)]
struct Input(OwnedReadHalf);

#[async_trait]
impl ReadHalf for Input {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        loop {
            self.0.readable().await?;
            match self.0.try_read(buffer) {
                Ok(n) => return Ok((n, Vec::new())),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Writer(OwnedWriteHalf);

#[async_trait]
impl WriteHalf for Writer {
    async fn sendmsg(&mut self, buffer: &[u8], _fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        loop {
            self.0.writable().await?;
            match self.0.try_write(buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}
