//! What the registry is asked before a pull, and which answers refuse it.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use base64::Engine as _;
use copal::engine::Timeouts;
use copal::error::{Code, Effect, Error};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, SockaddrIn};

use crate::calls::{Bench, IMPATIENT, fails, says};
use crate::kit::process::HANG;
use crate::kit::stub_engine::{Kind, Script, Then};

const UNKNOWN_TAG: &str = include_str!("../kit/engine_streams/pull-unknown-tag.txt");

/// The message of a recorded refusal.
fn message(recorded: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(recorded.split_once(' ').unwrap().1).unwrap();
    value["message"].as_str().unwrap().to_owned()
}

fn refused(status: u16, text: &str) -> Kind {
    Kind::Status(status, text.to_owned())
}

/// The answer to the question for `image`, and the calls that it took.
fn asks(image: &str, change: impl FnOnce(Script) -> Script) -> (Result<(), Error>, Bench) {
    let bench = Bench::new(change);
    let result = bench.engine.check_pullable(image);
    (result, bench)
}

#[test]
fn what_the_registry_certainly_does_not_give_is_refused() {
    let unknown = message(UNKNOWN_TAG);
    let cases = [
        (404, "manifest unknown: manifest unknown", unknown.as_str(), Code::ImageUnknown),
        (
            404,
            "name unknown: repository name not known to registry",
            "repository r.example/a not found: name unknown: repository name not known to registry",
            Code::ImageUnknown,
        ),
        (
            401,
            "unauthorized: authentication required",
            "Head \"https://r.example/v2/a/manifests/1\": no basic auth credentials",
            Code::RegistryRefused,
        ),
        (
            403,
            "denied: requested access to the resource is denied",
            "pull access denied for r.example/a, repository does not exist or may require 'docker login': denied: requested access to the resource is denied",
            Code::RegistryRefused,
        ),
        (
            500,
            "Get \"https://r.example/v2/\": x509: certificate has expired or is not yet valid",
            "Get \"https://r.example/v2/\": x509: certificate has expired or is not yet valid",
            Code::RegistryUnreachable,
        ),
        (
            500,
            "error parsing HTTP 404 response body: invalid character '<' looking for beginning of value: \"<html>\"",
            "error parsing HTTP 404 response body: invalid character '<' looking for beginning of value: \"<html>\"",
            Code::ImageUnknown,
        ),
        (
            500,
            "Get \"https://r.example/v2/\": Proxy Authentication Required",
            "Get \"https://r.example/v2/\": Proxy Authentication Required",
            Code::RegistryUnreachable,
        ),
    ];
    for (status, asked, pulled, code) in cases {
        let (result, bench) = asks("r.example/a:1", |s| {
            s.fault("distribution", 0, refused(status, asked)).fault("pull", 0, refused(500, pulled))
        });
        assert_eq!(result.as_ref().unwrap_err().effect(), Effect::Refused);
        fails(result, code, &["cannot pull the image r.example/a:1", pulled]);
        assert_eq!(bench.stub.calls(), ["distribution", "pull"], "once, and confirmed by a pull that fails");
    }
}

#[test]
fn a_registry_that_cannot_be_reached_is_asked_for_some_time() {
    let reasons = [
        "dial tcp 10.0.0.1:443: connect: connection refused",
        "dial tcp: lookup r.example on 127.0.0.2:53: no such host",
        "dial tcp: lookup r.example on 127.0.0.2:53: server misbehaving",
        "dial tcp: lookup r.example: Temporary failure in name resolution",
        "dial tcp 10.0.0.1:443: connect: no route to host",
        "dial tcp 10.0.0.1:443: connect: network is unreachable",
        "dial tcp: lookup r.example on 127.0.0.2:53: read udp 127.0.0.1:9->127.0.0.2:53: i/o timeout",
        "proxyconnect tcp: dial tcp 10.0.0.9:3128: connect: connection refused",
        // Of a proxy that cannot connect to it.
        "Bad Gateway",
        "Service Unavailable",
        "Gateway Timeout",
    ];
    for reason in reasons {
        let text = format!("Get \"https://r.example/v2/\": {reason}");
        let began = Instant::now();
        let (result, bench) = asks("r.example/a:1", |s| {
            s.fault("distribution", 0, refused(500, &text)).fault("pull", 0, refused(500, &text))
        });
        fails(result, Code::RegistryUnreachable, &[reason]);
        let calls = bench.stub.calls();
        assert_eq!(calls.last().unwrap(), "pull");
        assert!(calls.len() >= 2 && began.elapsed() >= IMPATIENT.registry / 2, "{calls:?}");
    }
    // It comes back in time.
    let (result, bench) = asks("r.example/a:1", |s| s.fault("distribution", 1, refused(500, reasons[0])));
    result.unwrap();
    assert_eq!(bench.stub.calls(), ["distribution", "distribution"]);
}

#[test]
fn any_other_answer_refuses_nothing() {
    let page = "page not found";
    let cases = [
        ("an engine that does not know the question", refused(404, page)),
        ("another error", refused(500, "something new")),
        (
            "one that breaks off",
            refused(500, "read tcp 10.0.0.1:4->10.0.0.2:443: read: connection reset by peer"),
        ),
        ("one that ends too early", refused(500, "Get \"https://r.example/v2/\": EOF")),
        ("an answer that is none", says(&["oops"], Then::End)),
        ("an answer that is not whole", says(&["{\"Descriptor\":"], Then::Cut)),
        ("an engine that goes away", Kind::Close),
    ];
    for (what, kind) in cases {
        // A pull would fail for good: it must not even be tried.
        let (result, bench) = asks("r.example/a:1", |s| {
            s.fault("distribution", 0, kind).fault("pull", 0, refused(404, "manifest unknown"))
        });
        assert!(result.is_ok(), "{what}: {result:?}");
        assert_eq!(bench.stub.calls(), ["distribution"], "{what}");
    }
    let (result, bench) = asks("r.example/a:1", |s| s);
    result.unwrap();
    assert_eq!(bench.stub.calls(), ["distribution"], "the image is there");
}

/// The registry's answers that a server in trouble gives, or one with a limit.
const TROUBLE: [(u16, &str); 4] = [
    (500, "received unexpected HTTP status: 503 Service Unavailable"),
    (429, "toomanyrequests: You have reached your pull rate limit"),
    (
        500,
        "error parsing HTTP 429 response body: invalid character '<' looking for beginning of value: \"<html>\"",
    ),
    (500, "unexpected status from HEAD request to https://r.example/v2/a: 500 Internal Server Error"),
];

#[test]
fn a_registry_that_goes_on_failing_is_refused_at_once_and_with_its_status() {
    for (status, text) in TROUBLE {
        let (result, bench) = asks("r.example/a:1", |s| {
            s.fault("distribution", 0, refused(status, text)).fault("pull", 0, refused(500, text))
        });
        assert_eq!(result.as_ref().unwrap_err().effect(), Effect::Refused);
        fails(result, Code::RegistryUnreachable, &["cannot pull the image r.example/a:1", text]);
        assert_eq!(bench.stub.calls(), ["distribution", "pull", "pull", "pull"], "{text}");
        // The engine's own, or a mirror's: a pull begins well.
        let pulls = says(&["{\"status\":\"Pulling from a\",\"id\":\"1\"}\r\n"], Then::Hang);
        let (result, bench) = asks("r.example/a:1", |s| {
            s.fault("distribution", 0, refused(status, text)).fault("pull", 0, pulls)
        });
        result.unwrap();
        assert_eq!(bench.stub.calls(), ["distribution", "pull"]);
        // Something else each time.
        let other = refused(500, "received unexpected HTTP status: 502 Bad Gateway");
        let (result, bench) = asks("r.example/a:1", |s| {
            s.fault("distribution", 0, refused(status, text)).fault("pull", 1, other).fault(
                "pull",
                0,
                refused(500, text),
            )
        });
        result.unwrap();
        assert_eq!(bench.stub.calls(), ["distribution", "pull", "pull"]);
    }
}

#[test]
fn a_registry_that_answers_to_a_pull_alone_refuses_nothing() {
    // A mirror, one that knows manifests by their tags only, one without TLS: the engine pulls, and is stopped at once.
    for asked in [
        refused(404, "manifest unknown: manifest unknown"),
        refused(500, "http: dial tcp 10.0.0.1:80: connect: connection refused"),
    ] {
        let pulls = says(&["{\"status\":\"Pulling from a\",\"id\":\"1\"}\r\n"], Then::Hang);
        let (result, bench) =
            asks("r.example/a:1", |s| s.fault("distribution", 0, asked).fault("pull", 0, pulls));
        result.unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while bench.stub.given_up() == 0 {
            assert!(Instant::now() < end, "the pull goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    // It fails, but with what may pass.
    let busy = refused(500, "Get \"https://r.example/v2/\": EOF");
    let (result, _) = asks("r.example/a:1", |s| {
        s.fault("distribution", 0, refused(404, "manifest unknown")).fault("pull", 0, busy)
    });
    result.unwrap();
}

/// A socket that neither accepts nor refuses connections: its queue is full.
struct BlackHole {
    _socket: std::os::fd::OwnedFd,
    _queued: Vec<std::net::TcpStream>,
    port: u16,
}

impl BlackHole {
    fn new() -> BlackHole {
        let socket =
            socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        socket::bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
        socket::listen(&socket, Backlog::new(1).unwrap()).unwrap();
        let port =
            socket::getsockname::<SockaddrIn>(std::os::fd::AsRawFd::as_raw_fd(&socket)).unwrap().port();
        let address = ([127, 0, 0, 1], port).into();
        let connect = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300));
        let mut queued = Vec::new();
        while let Ok(one) = connect() {
            queued.push(one);
            assert!(queued.len() < 20, "the queue never fills");
        }
        BlackHole { _socket: socket, _queued: queued, port }
    }
}

#[test]
fn without_any_answer_it_counts_whether_the_registry_takes_connections() {
    let hang = |s: Script| s.fault("distribution", 0, Kind::Hang);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = format!("127.0.0.1:{}/os:1", listener.local_addr().unwrap().port());
    let (result, bench) = asks(&slow, hang);
    result.unwrap();
    assert_eq!(bench.stub.calls(), ["distribution"]);

    let hole = BlackHole::new();
    let dead = format!("127.0.0.1:{}/os:1", hole.port);
    let began = Instant::now();
    let (result, bench) = asks(&dead, hang);
    fails(result, Code::RegistryUnreachable, &["takes no connection within 2 s"]);
    assert!(began.elapsed() >= IMPATIENT.registry);
    assert_eq!(bench.stub.calls(), ["distribution"]);
    // A network that comes and goes: an error first, and then nothing.
    let flaps = |s: Script| {
        let text = "Get \"https://r.example/v2/\": dial tcp 10.0.0.1:443: connect: network is unreachable";
        hang(s.fault("distribution", 1, refused(500, text))).fault("pull", 0, Kind::Hang)
    };
    fails(asks(&dead, flaps).0, Code::RegistryUnreachable, &["network is unreachable"]);
    // A name that nobody knows.
    fails(asks("nobody.invalid/os:1", hang).0, Code::RegistryUnreachable, &["nobody.invalid"]);

    // The engine may have another way to it.
    for info in [r#""HttpsProxy":"http://10.0.0.9:3128""#, r#""HttpProxy":"http://10.0.0.9:3128""#] {
        let text = format!("{{\"DockerRootDir\":\"/x\",{info}}}");
        asks(&dead, |s| hang(s).fault("info", 0, says(&[&text], Then::End))).0.unwrap();
    }
    let mirrors = r#"{"RegistryConfig":{"Mirrors":["https://mirror.example/"]}}"#;
    asks("alpine", |s| hang(s).fault("info", 0, says(&[mirrors], Then::End))).0.unwrap();
}

#[test]
fn an_engine_that_answers_late_is_not_waited_for() {
    let bench = Bench::new(|s| s.fault("distribution", 0, Kind::Late(1_000_000)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let began = Instant::now();
    bench.engine.check_pullable(&format!("127.0.0.1:{}/a", listener.local_addr().unwrap().port())).unwrap();
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    assert_eq!(Timeouts::default().registry, Duration::from_secs(10), "on a device");
}

#[test]
fn it_is_asked_with_the_credentials_of_the_pull() {
    let bench = Bench::new(|s| s);
    let auth = base64::engine::general_purpose::STANDARD.encode("me:a?b>c");
    let config = format!(r#"{{"auths":{{"r.example":{{"auth":"{auth}"}}}}}}"#);
    std::fs::write(bench.dir.path().join("config.json"), config).unwrap();
    let digest = format!("sha256:{}", "0a".repeat(32));
    for image in ["r.example/a", "r.example/a:1", &format!("r.example/a@{digest}")] {
        bench.engine.check_pullable(image).unwrap();
    }
    bench.engine.pull("r.example/a", &mut |_| {}).unwrap();
    let secrets = bench.stub.secrets();
    assert_eq!((secrets.len(), secrets[0].is_some()), (4, true));
    assert!(secrets.iter().all(|s| *s == secrets[0]), "{secrets:?}");
    // No image has such a name.
    fails(bench.engine.check_pullable("no name"), Code::ImageUnknown, &["no name"]);
}
