//! As much of HTTP, and of the engine's names for its calls, as the pretended engine knows.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Then;

/// Size and first bytes of an archive as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    pub size: u64,
    pub head: Vec<u8>,
}

/// A request up to its body.
pub(super) struct Request {
    pub(super) method: String,
    /// Without version and query.
    pub(super) path: String,
    query: HashMap<String, String>,
    pub(super) headers: HashMap<String, String>,
}

impl Request {
    /// A word of the query; empty where it is not there.
    pub(super) fn asks(&self, name: &str) -> String {
        self.query.get(name).cloned().unwrap_or_default()
    }
}

/// What follows.
pub(super) enum Answer {
    Json(u16, Value),
    Text(String),
    Says(Vec<String>, Then),
    /// Lines with the seconds at which each of them comes.
    Recorded(String),
    /// The connection was taken over, or is to be closed.
    Nothing,
}

/// The name of a call and the object it is about.
pub(super) fn call_of(request: &Request) -> (&'static str, String) {
    let path = request.path.as_str();
    let middle = |before: &str, after: &str| {
        path.strip_prefix(before)
            .and_then(|p| p.strip_suffix(after))
            .filter(|m| !m.is_empty())
            .map(str::to_owned)
    };
    let method = request.method.as_str();
    let plain = match (method, path) {
        ("GET" | "HEAD", "/_ping") => "ping",
        ("GET", "/version") => "version",
        ("GET", "/info") => "info",
        ("GET", "/containers/json") => "containers",
        ("GET", "/images/json") => "images",
        ("POST", "/images/load") => "load",
        ("POST", "/images/create") => "pull",
        ("POST", "/containers/create") => "create",
        _ => "",
    };
    if !plain.is_empty() {
        return (plain, String::new());
    }
    let rows = [
        ("DELETE", "/containers/", "", "remove-container"),
        ("DELETE", "/images/", "", "remove-image"),
        ("GET", "/distribution/", "/json", "distribution"),
        ("GET", "/images/", "/json", "image"),
        ("GET", "/containers/", "/json", "inspect"),
        ("POST", "/containers/", "/attach", "attach"),
        ("POST", "/containers/", "/start", "start"),
        ("POST", "/containers/", "/wait", "wait"),
    ];
    for (of, before, after, name) in rows {
        if let (true, Some(id)) = (of == method, middle(before, after)) {
            return (name, id);
        }
    }
    ("unknown", String::new())
}

/// `None` where nobody asks any more.
pub(super) fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(None) };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    // `/v1.41` in front of a path says in which version it is meant.
    let unversioned = match path.strip_prefix("/v1.").and_then(|p| p.split_once('/')) {
        Some((_, rest)) => format!("/{rest}"),
        None => path.to_owned(),
    };
    let query =
        query.split('&').filter_map(|p| p.split_once('=')).map(|(k, v)| (k.to_owned(), decode(v))).collect();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.trim().to_owned()),
            None => break,
        };
    }
    Ok(Some(Request { method: method.to_owned(), path: decode(&unversioned), query, headers }))
}

fn decode(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digits = [bytes.next().unwrap_or(b'0'), bytes.next().unwrap_or(b'0')];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(out).unwrap()
}

/// What a request carries.
pub(super) enum Body {
    Text(Vec<u8>),
    Archive(Upload),
}

/// With `archive`, only its beginning is kept.
pub(super) fn read_body(
    request: &Request,
    reader: &mut impl BufRead,
    archive: bool,
) -> std::io::Result<Body> {
    let mut text = Vec::new();
    let mut size = 0;
    let mut take = |piece: &[u8]| {
        size += piece.len() as u64;
        if !archive || text.len() < 512 {
            text.extend_from_slice(piece);
        }
    };
    if request.headers.get("transfer-encoding").is_some_and(|t| t == "chunked") {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
            let mut piece = vec![0; length + 2];
            reader.read_exact(&mut piece)?;
            if length == 0 {
                break;
            }
            take(&piece[..length]);
        }
    } else if let Some(length) = request.headers.get("content-length") {
        let mut piece = vec![0; length.parse().map_err(std::io::Error::other)?];
        reader.read_exact(&mut piece)?;
        take(&piece);
    }
    Ok(if archive { Body::Archive(Upload { size, head: text }) } else { Body::Text(text) })
}

const CHUNKED: &str = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close";

pub(super) fn send(stream: &mut UnixStream, answer: Answer) -> std::io::Result<()> {
    let head = |status: u16, rest: &str| format!("HTTP/1.1 {status} Stub\r\n{rest}\r\n\r\n");
    match answer {
        Answer::Nothing => Ok(()),
        Answer::Text(text) => {
            let length = format!("Content-Length: {}\r\nConnection: close", text.len());
            stream.write_all((head(200, &length) + &text).as_bytes())
        }
        Answer::Json(204, _) => stream.write_all(head(204, "Connection: close").as_bytes()),
        Answer::Json(status, value) => {
            let text = value.to_string();
            let rest = format!(
                "Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close",
                text.len()
            );
            stream.write_all((head(status, &rest) + &text).as_bytes())
        }
        Answer::Recorded(text) => {
            stream.write_all(head(200, CHUNKED).as_bytes())?;
            let began = Instant::now();
            for line in text.lines() {
                let (time, line) = line.split_once(' ').unwrap();
                let time = Duration::from_secs_f64(time.parse().unwrap());
                thread::sleep(time.saturating_sub(began.elapsed()));
                stream.write_all(format!("{:x}\r\n{line}\r\n\r\n", line.len() + 2).as_bytes())?;
            }
            stream.write_all(b"0\r\n\r\n")
        }
        Answer::Says(pieces, then) => {
            stream.write_all(head(200, CHUNKED).as_bytes())?;
            for piece in pieces.iter().filter(|p| !p.is_empty()) {
                stream.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes())?;
                stream.flush()?;
                // Its own packet on the other side, as from an engine that has to think in between.
                thread::sleep(Duration::from_millis(2));
            }
            match then {
                Then::End => stream.write_all(b"0\r\n\r\n"),
                Then::Cut | Then::Hang => Ok(()),
            }
        }
    }
}
