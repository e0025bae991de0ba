//! A real registry on the loopback interface, and a proxy in front of it that cuts connections.
#![allow(dead_code)] // no test program uses all of it

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::image_archive::{Made, digest};

/// The user `copal` with the password `secret?>~` (bcrypt, the only kind that the registry takes).
const USERS: &str = "copal:$2b$04$4mAFfxW.tnckJSXxfyt3dOqysTfui4insNioek/91sa6XmEAPne0y\n";
/// The same as an `Authorization` header would have it, and as config.json has it.
pub const AUTH: &str = "Y29wYWw6c2VjcmV0Pz5+";

/// Whether somebody listens there. Nobody does who is met by his own connection: that may be given the very port it asks for.
fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok_and(|s| s.local_addr().unwrap().port() != port)
}

pub struct Registry {
    dir: tempfile::TempDir,
    process: Child,
    pub port: u16,
    auth: bool,
}

impl Registry {
    /// An empty one; with `auth`, for the user `copal` only.
    pub fn start(auth: bool) -> Registry {
        let dir = tempfile::Builder::new().prefix("copal-registry-").tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        // Free at this moment; another program would have to be quick.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut config = format!(
            "version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n",
            at("data")
        );
        if auth {
            fs::write(at("users"), USERS).unwrap();
            config += &format!("auth:\n  htpasswd:\n    realm: copal\n    path: {}\n", at("users"));
        }
        fs::write(at("config.yml"), config).unwrap();
        let log = fs::File::create(at("log")).unwrap();
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "docker-registry", "serve", &at("config.yml")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let registry = Registry { dir, process, port, auth };
        let began = Instant::now();
        while !listens(port) {
            let said = || fs::read_to_string(registry.dir.path().join("log")).unwrap_or_default();
            assert!(began.elapsed() < Duration::from_secs(300), "docker-registry does not start: {}", said());
            thread::sleep(Duration::from_millis(50));
        }
        registry
    }

    /// The name of an image in it.
    pub fn name(&self, path: &str) -> String {
        format!("127.0.0.1:{}/{path}", self.port)
    }

    /// Puts an image into it and returns the digest of its manifest.
    pub fn push(&self, path: &str, tag: &str, image: &Made) -> String {
        let (manifest, blobs) = image.for_registry();
        for blob in &blobs {
            let (status, head) = self.call("POST", &format!("/v2/{path}/blobs/uploads/"), "", b"");
            assert_eq!(status, 202, "{head}");
            let line = head.lines().find(|l| l.to_ascii_lowercase().starts_with("location:")).unwrap();
            let target = line.split_once(':').unwrap().1.trim();
            let target =
                target.split_once("://").map_or(target, |(_, rest)| &rest[rest.find('/').unwrap()..]);
            let (status, head) = self.call(
                "PUT",
                &format!("{target}&digest=sha256:{}", digest(blob)),
                "application/octet-stream",
                blob,
            );
            assert_eq!(status, 201, "{head}");
        }
        let text = manifest.to_string();
        let kind = manifest["mediaType"].as_str().unwrap();
        let (status, head) = self.call("PUT", &format!("/v2/{path}/manifests/{tag}"), kind, text.as_bytes());
        assert_eq!(status, 201, "{head}");
        format!("sha256:{}", digest(text.as_bytes()))
    }

    fn call(&self, method: &str, target: &str, kind: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let auth = if self.auth { format!("Authorization: Basic {AUTH}\r\n") } else { String::new() };
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{auth}Content-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _status = self.process.wait();
    }
}

/// Passes connections on. While cuts are left, each connection ends after so many bytes of the answer.
pub struct Proxy {
    pub port: u16,
    left: Arc<AtomicI64>,
    pub cut: Arc<AtomicUsize>,
}

impl Proxy {
    /// One that cuts nothing, but passes nothing on before this time.
    pub fn late(to: u16, time: Duration) -> Proxy {
        Proxy::of(to, 0, 0, time)
    }

    pub fn start(to: u16, cuts: i64, bytes: usize) -> Proxy {
        Proxy::of(to, cuts, bytes, Duration::ZERO)
    }

    fn of(to: u16, cuts: i64, bytes: usize, late: Duration) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy {
            port: listener.local_addr().unwrap().port(),
            left: Arc::new(AtomicI64::new(cuts)),
            cut: Arc::default(),
        };
        let (left, cut) = (Arc::clone(&proxy.left), Arc::clone(&proxy.cut));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let (left, cut) = (Arc::clone(&left), Arc::clone(&cut));
                let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || {
                    thread::sleep(late);
                    pass(client, server, || false);
                });
                let mut count = 0;
                thread::spawn(move || {
                    pass(ends.1, ends.0, || {
                        count += 1;
                        let now = count * PIECE > bytes && left.fetch_sub(1, Ordering::SeqCst) > 0;
                        cut.fetch_add(usize::from(now), Ordering::SeqCst);
                        now
                    });
                });
            }
        });
        proxy
    }

    pub fn name(&self, path: &str) -> String {
        format!("127.0.0.1:{}/{path}", self.port)
    }

    /// From now on it cuts nothing.
    pub fn mend(&self) {
        self.left.store(0, Ordering::SeqCst);
    }
}

/// A web server that answers with a page for people; after some answers connections go to a registry.
pub struct Page {
    pub port: u16,
    left: Arc<AtomicI64>,
}

impl Page {
    /// `then`: after how many answers, and the port of the registry.
    pub fn serve(status: u16, then: Option<(i64, u16)>) -> Page {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let page = Page {
            port: listener.local_addr().unwrap().port(),
            left: Arc::new(AtomicI64::new(then.map_or(i64::MAX, |(answers, _)| answers))),
        };
        let left = Arc::clone(&page.left);
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let mut request = [0; PIECE];
                match then {
                    Some((_, to)) if left.load(Ordering::SeqCst) <= 0 => {
                        let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                        let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
                        thread::spawn(move || pass(client, server, || false));
                        thread::spawn(move || pass(ends.1, ends.0, || false));
                    }
                    _ => {
                        // A request without a body, in one piece. One that tries TLS gets no answer that it understands.
                        let begins = client.read(&mut request).unwrap_or(0);
                        let text = format!(
                            "<html><body><h1>{status}: manifest for denied unauthorized</h1></body></html>"
                        );
                        let answer = format!(
                            "HTTP/1.1 {status} It is so\r\nContent-Type: text/html\r\nRetry-After: 7\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                            text.len()
                        );
                        if request[..begins].starts_with(b"GET") {
                            left.fetch_sub(1, Ordering::SeqCst);
                        }
                        let body = if request[..begins].starts_with(b"HEAD") { "" } else { &text };
                        let _sent = client.write_all((answer + body).as_bytes());
                    }
                }
            }
        });
        page
    }

    /// The name of an image there.
    pub fn name(&self, path: &str) -> String {
        format!("127.0.0.1:{}/{path}", self.port)
    }

    /// Whether the page was given as often as it should be.
    pub fn is_used_up(&self) -> bool {
        self.left.load(Ordering::SeqCst) <= 0
    }
}

const PIECE: usize = 16 << 10;

fn pass(mut from: TcpStream, mut to: TcpStream, mut cut: impl FnMut() -> bool) {
    let mut piece = [0; PIECE];
    while let Ok(n @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..n]).is_err() || cut() {
            break;
        }
    }
    let _closed = from.shutdown(Shutdown::Both);
    let _closed = to.shutdown(Shutdown::Both);
}
