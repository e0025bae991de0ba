//! The service's connection to the bus, below the D-Bus library: only calls that [`Callers`] admits get through, since the library reads
//! messages of any length and starts a task for each.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::time::timeout;
use zbus::address::Address;
use zbus::address::transport::{Transport, UnixSocket};
use zbus::connection::socket::{ReadHalf, Socket, Split, WriteHalf};
use zbus::export::async_trait::async_trait;
use zbus::names::BusName;
use zbus::wire::serialized::{Context, Data};
use zbus::wire::{Endian, Variant};
use zbus::{Connection, Message};

use super::callers::{Call, Callers, MAX_CALL_BYTES, Verdict};

const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";

const PIECE: usize = 32 << 10;
/// Bytes of a header's fixed part (D-Bus specification, "Message Format").
const FIXED: usize = 16;
/// In bytes. Names have at most 255 bytes (ibidem, "Valid Names"), and the service's paths are short.
const MAX_HEADER_BYTES: usize = 16 << 10;
const NO_REPLY: u8 = 1;
const METHOD_CALL: u8 = 1;

const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Shared {
    callers: Arc<std::sync::Mutex<Callers>>,
    out: tokio::sync::Mutex<OwnedWriteHalf>,
    /// Admitted calls that have waited for their sender's user.
    identified: std::sync::Mutex<VecDeque<Vec<u8>>>,
    news: Notify,
    /// Another connection to the same bus, where no call delays replies. `None` admits no call.
    own: Option<Connection>,
}

impl Shared {
    fn callers(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn identified(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.identified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        let out = self.out.lock().await;
        while !bytes.is_empty() {
            out.writable().await?;
            match out.try_write(bytes) {
                Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Asks the bus for the user of `sender`, and judges its waiting calls.
    async fn identify(self: Arc<Self>, own: Connection, sender: String) {
        let ask = own.call_method(Some(BUS), BUS_PATH, Some(BUS), "GetConnectionUnixUser", &sender);
        let answer = timeout(LIMIT, ask).await;
        let user =
            answer.as_ref().ok().and_then(|answer| answer.as_ref().ok()?.body().deserialize::<u32>().ok());
        let own = nix::unistd::geteuid().as_raw();
        let calls = self.callers().identify(&sender, user.map(|user| user == 0 || user == own));
        for (call, message) in calls {
            let verdict = match (&answer, user) {
                (_, Some(_)) => self.callers().judge(&call),
                (Err(_), None) if call.reply => Verdict::Refuse(UNNAMED),
                _ => Verdict::Drop,
            };
            match verdict {
                Verdict::Admit => self.identified().push_back(message),
                Verdict::Refuse(why) => {
                    // A failed write means a lost connection, which the reader notices.
                    drop(self.write(&refusal(&call, why)).await);
                }
                Verdict::Wait | Verdict::Later | Verdict::Drop => {}
            }
        }
        self.news.notify_one();
    }
}

pub(super) struct BusSocket {
    stream: UnixStream,
    callers: Arc<std::sync::Mutex<Callers>>,
    own: Option<Connection>,
}

impl BusSocket {
    /// Admits the calls that `callers` admits; the bus names their users over `own`. Without `own` every call is dropped.
    pub(super) async fn connect(
        callers: Arc<std::sync::Mutex<Callers>>,
        own: Option<Connection>,
    ) -> zbus::Result<BusSocket> {
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
        Ok(BusSocket { stream: UnixStream::connect(path).await?, callers, own })
    }
}

impl Socket for BusSocket {
    type ReadHalf = Reader;
    type WriteHalf = Writer;

    fn split(self) -> Split<Reader, Writer> {
        let (input, out) = self.stream.into_split();
        let shared = Arc::new(Shared {
            callers: self.callers,
            out: tokio::sync::Mutex::new(out),
            identified: std::sync::Mutex::default(),
            news: Notify::new(),
            own: self.own,
        });
        let reader = Reader {
            shared: shared.clone(),
            input: Input { socket: input, buffer: vec![0; PIECE], start: 0, end: 0 },
            is_binary: false,
            refusals: Vec::new(),
            ready: Vec::new(),
            taken: 0,
        };
        Split::new(reader, Writer(shared))
    }
}

#[derive(Debug)]
struct Input {
    socket: OwnedReadHalf,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    fn held(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// `false`: the bus has closed the connection.
    async fn fill(&mut self) -> io::Result<bool> {
        while self.start == self.end {
            self.socket.readable().await?;
            match self.socket.try_read(&mut self.buffer) {
                Ok(0) => return Ok(false),
                Ok(n) => (self.start, self.end) = (0, n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    fn take(&mut self, limit: usize) -> &[u8] {
        let from = self.start;
        self.start = self.end.min(from.saturating_add(limit));
        self.buffer.get(from..self.start).unwrap_or_default()
    }

    async fn read_up_to(&mut self, message: &mut Vec<u8>, length: usize) -> io::Result<()> {
        while message.len() < length {
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            message.extend_from_slice(self.take(length - message.len()));
        }
        Ok(())
    }

    async fn skip(&mut self, mut length: usize) -> io::Result<()> {
        while length > 0 {
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            length -= self.take(length).len();
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Reader {
    shared: Arc<Shared>,
    input: Input,
    /// Authentication has ended: messages follow.
    is_binary: bool,
    /// Replies to refused calls, sent together.
    refusals: Vec<u8>,
    ready: Vec<u8>,
    taken: usize,
}

impl Reader {
    /// The next line of the authentication, or the next message for the library; empty at the end of the connection.
    async fn next(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(message) = self.shared.identified().pop_front() {
                return Ok(message);
            }
            if self.input.held().is_empty() || self.refusals.len() > PIECE {
                self.shared.write(&std::mem::take(&mut self.refusals)).await?;
            }
            if self.input.held().is_empty() {
                match select(pin!(self.input.fill()), pin!(self.shared.news.notified())).await {
                    Either::Left((Ok(true), _)) => {}
                    Either::Left((Ok(false), _)) => return Ok(Vec::new()),
                    Either::Left((Err(e), _)) => return Err(e),
                    Either::Right(_) => continue,
                }
            }
            // No authentication line begins with a letter that names the byte order of a message.
            self.is_binary |= matches!(self.input.held().first(), Some(b'l' | b'B'));
            if !self.is_binary {
                let line =
                    self.input.held().split_inclusive(|&b| b == b'\n').next().unwrap_or_default().len();
                return Ok(self.input.take(line).to_vec());
            }
            if let Some(message) = self.message().await? {
                return Ok(message);
            }
        }
    }

    async fn message(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut message = Vec::new();
        self.input.read_up_to(&mut message, FIXED).await?;
        let lengths = Lengths::of(&message).ok_or(io::ErrorKind::InvalidData)?;
        if lengths.header > MAX_HEADER_BYTES {
            self.input.skip(lengths.header - FIXED + lengths.body).await?;
            return Ok(None);
        }
        self.input.read_up_to(&mut message, lengths.header).await?;
        let header = Header::parse(&message).ok_or(io::ErrorKind::InvalidData)?;
        let size = lengths.header + lengths.body;
        if header.kind != METHOD_CALL {
            if size > MAX_CALL_BYTES {
                self.input.skip(lengths.body).await?;
                return Ok(None);
            }
            self.input.read_up_to(&mut message, size).await?;
            return Ok(Some(message));
        }
        let (Some(sender), Some(own)) = (header.sender, self.shared.own.clone()) else {
            self.input.skip(lengths.body).await?;
            return Ok(None);
        };
        let call = Call { sender, serial: header.serial, size, reply: header.flags & NO_REPLY == 0 };
        let verdict = loop {
            let verdict = self.shared.callers().judge(&call);
            if verdict != Verdict::Later {
                break verdict;
            }
            // The bus answers over a connection of its own, so this cannot block for ever.
            self.shared.write(&std::mem::take(&mut self.refusals)).await?;
            self.shared.news.notified().await;
        };
        match verdict {
            Verdict::Admit | Verdict::Wait => {
                self.input.read_up_to(&mut message, size).await?;
                // The library replies to each call; the writer drops unexpected replies.
                message.iter_mut().skip(2).take(1).for_each(|flags| *flags &= !NO_REPLY);
            }
            Verdict::Refuse(_) | Verdict::Later | Verdict::Drop => self.input.skip(lengths.body).await?,
        }
        match verdict {
            Verdict::Admit => return Ok(Some(message)),
            Verdict::Wait => {
                let sender = call.sender.clone();
                if self.shared.callers().wait(call, message) {
                    tokio::spawn(self.shared.clone().identify(own, sender));
                }
            }
            Verdict::Refuse(why) => self.refusals.extend_from_slice(&refusal(&call, why)),
            Verdict::Later | Verdict::Drop => {}
        }
        Ok(None)
    }
}

const UNNAMED: &str = "the bus did not name the user of this connection within 10 s; call again";

fn refusal(call: &Call, why: &str) -> Vec<u8> {
    let build = || {
        let serial = NonZeroU32::new(call.serial).ok_or(zbus::Error::InvalidField)?;
        let refused = Message::method_call("/", "x").sender(call.sender.as_str()).serial(serial).build(&())?;
        Message::error(&refused.header(), "org.freedesktop.DBus.Error.LimitsExceeded").build(&why)
    };
    // The bus passes no call with an invalid sender or serial number.
    build().map(|error| error.data().to_vec()).unwrap_or_default()
}

#[async_trait]
impl ReadHalf for Reader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        if self.taken == self.ready.len() {
            self.ready = self.next().await?;
            self.taken = 0;
        }
        let rest = self.ready.get(self.taken..).unwrap_or_default();
        let n = rest.len().min(buffer.len());
        buffer.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        self.taken += n;
        Ok((n, Vec::new()))
    }
}

#[derive(Debug)]
pub(super) struct Writer(Arc<Shared>);

#[async_trait]
impl WriteHalf for Writer {
    async fn send_message(&mut self, message: &Message) -> zbus::Result<()> {
        let header = message.header();
        let (Some(serial), Some(BusName::Unique(caller))) = (header.reply_serial(), header.destination())
        else {
            return Ok(self.0.write(message.data()).await?);
        };
        let expected = self.0.callers().expects_reply(caller, serial.get());
        let written = if expected { self.0.write(message.data()).await } else { Ok(()) };
        self.0.callers().close(caller, serial.get());
        Ok(written?)
    }

    async fn sendmsg(&mut self, buffer: &[u8], _fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        self.0.write(buffer).await?;
        Ok(buffer.len())
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// In bytes.
struct Lengths {
    header: usize,
    body: usize,
}

impl Lengths {
    fn of(fixed: &[u8]) -> Option<Lengths> {
        let number = |at: usize| -> Option<usize> {
            let bytes = fixed.get(at..at + 4)?.try_into().ok()?;
            let number = if fixed.first() == Some(&b'l') {
                u32::from_le_bytes(bytes)
            } else {
                u32::from_be_bytes(bytes)
            };
            usize::try_from(number).ok()
        };
        let header = FIXED.checked_add(number(12)?)?.checked_next_multiple_of(8)?;
        Some(Lengths { header, body: number(4)? })
    }
}

struct Header {
    kind: u8,
    flags: u8,
    serial: u32,
    sender: Option<String>,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Header> {
        type Fields<'a> = Vec<(u8, Variant<'a>)>;
        const SENDER: u8 = 7;
        let data = Data::new(bytes, Context::new(endian(bytes), 0));
        let ((_, kind, flags, _, _, serial, fields), _) =
            data.deserialize::<(u8, u8, u8, u8, u32, u32, Fields<'_>)>().ok()?;
        let sender = fields.iter().find(|(code, _)| *code == SENDER).map(|(_, value)| value);
        let sender = sender.and_then(|v| v.downcast_ref::<&str>().ok()).map(str::to_owned);
        Some(Header { kind, flags, serial, sender })
    }
}

fn endian(message: &[u8]) -> Endian {
    if message.first() == Some(&b'l') { Endian::Little } else { Endian::Big }
}
