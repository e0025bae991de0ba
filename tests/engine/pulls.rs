//! Pulling from an engine that misbehaves, and credentials.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine as _;
use copal::engine::Progress;
use copal::engine::credentials;
use copal::error::Code;
use copal::job::Stage;

use crate::calls::{Bench, fails, says};
use crate::kit::alone::{in_own_process, in_own_process_below, is_alone};
use crate::kit::needs::{is_root, needs, test_name};
use crate::kit::stub_engine::{Kind, Script, Then};

fn pull(script: impl FnOnce(Script) -> Script) -> (Result<String, copal::error::Error>, usize) {
    let bench = Bench::new(script);
    let result = bench.engine.pull("r.example/a", &mut |_| {}).map(|i| i.reference);
    let tries = bench.stub.calls().iter().filter(|c| *c == "pull").count();
    (result, tries)
}

#[test]
fn a_pull() {
    let bench = Bench::new(|s| s);
    let mut seen = Vec::new();
    let image = bench.engine.pull("r.example:5000/a/b", &mut |p: &Progress| seen.push(*p)).unwrap();
    assert_eq!(image.reference, "r.example:5000/a/b", "as it was asked for");
    assert!(image.id.starts_with("sha256:"));
    let at = |stage, done| Progress { stage, done, total: Some(2) };
    assert_eq!(seen, [at(Stage::Pull, 1), at(Stage::Pull, 2), at(Stage::Unpack, 2)]);
    let digest = format!("sha256:{}", "0a".repeat(32));
    for (name, pulled) in [("a:1", "a:1".to_owned()), (&format!("b@{digest}"), format!("b@{digest}"))] {
        assert_eq!(bench.engine.pull(name, &mut |_| {}).unwrap().reference, pulled);
    }
    fails(bench.engine.pull("no name", &mut |_| {}), Code::ImageUnknown, &["no name"]);
}

#[test]
fn a_pull_of_more_layers_than_the_engine_registers_ends_at_once() {
    let lines = |count: u32| -> Vec<String> {
        let line = |n| {
            format!("{{\"status\":\"Pulling fs layer\",\"progressDetail\":{{}},\"id\":\"{n:012x}\"}}\r\n")
        };
        (0..count).map(line).collect()
    };
    let begins = |count: u32, then: Then| {
        let lines = lines(count);
        says(&lines.iter().map(String::as_str).collect::<Vec<_>>(), then)
    };
    let (result, tries) = pull(|s| s.fault("pull", 0, begins(126, Then::Hang)));
    fails(result, Code::EngineFailed, &["more than 125 layers"]);
    assert_eq!(tries, 1);
    let (result, _) = pull(|s| s.fault("pull", 0, begins(125, Then::End)));
    fails(result, Code::EngineFailed, &["does not report"]);
}

/// What dockerd 20.10 makes of a page for people. It may have any word.
macro_rules! page {
    ($status:literal) => {
        concat!(
            "error parsing HTTP ",
            $status,
            " response body: invalid character '<' looking for beginning of value: \"<html>denied: manifest unknown, dial tcp</html>\""
        )
    };
}

#[test]
fn errors_of_pulling() {
    let error = |text: &str| {
        format!("{}\r\n", serde_json::json!({ "errorDetail": { "message": text }, "error": text }))
    };
    let cases = [
        (
            "manifest for r.example/a:latest not found: manifest unknown: manifest unknown",
            Code::ImageUnknown,
            1,
        ),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", Code::ImageUnknown, 1),
        (
            "pull access denied for a, repository does not exist or may require 'docker login'",
            Code::RegistryRefused,
            1,
        ),
        ("Get \"https://r/v2/\": unauthorized: authentication required", Code::RegistryRefused, 1),
        ("Get \"http://r/v2/a\": no basic auth credentials", Code::RegistryRefused, 1),
        ("failed to register layer: write /x: no space left on device", Code::SlotFull, 1),
        (
            "Get \"https://r/v2/\": x509: certificate has expired or is not yet valid",
            Code::RegistryUnreachable,
            1,
        ),
        (
            "Get \"https://r/v2/\": dial tcp: lookup r on 10.0.0.2:53: no such host",
            Code::RegistryUnreachable,
            3,
        ),
        ("Get \"https://r/v2/\": net/http: TLS handshake timeout", Code::RegistryUnreachable, 3),
        ("received unexpected HTTP status: 503 Service Unavailable", Code::RegistryUnreachable, 3),
        ("read tcp 10.0.0.1:4->10.0.0.2:443: read: connection reset by peer", Code::RegistryUnreachable, 3),
        ("unexpected EOF", Code::RegistryUnreachable, 3),
        ("Get \"https://r/v2/\": Bad Gateway", Code::RegistryUnreachable, 3),
        (
            "unexpected status from HEAD request to https://r/v2/a: 503 Service Unavailable",
            Code::RegistryUnreachable,
            3,
        ),
        ("Get \"https://r/v2/\": Proxy Authentication Required", Code::RegistryUnreachable, 1),
        (
            "error unmarshalling content: invalid character '<' looking for beginning of value",
            Code::RegistryUnreachable,
            3,
        ),
        (page!(401), Code::RegistryRefused, 1),
        (page!(403), Code::RegistryRefused, 1),
        (page!(404), Code::ImageUnknown, 1),
        (page!(407), Code::RegistryUnreachable, 1),
        (page!(418), Code::EngineFailed, 1),
        (page!(429), Code::RegistryUnreachable, 3),
        (page!(503), Code::RegistryUnreachable, 3),
        (
            "failed to get digest sha256:0123: open /mnt/sysroot/inactive/balena/image/overlay2/imagedb/content/sha256/0123: no such file or directory",
            Code::DeltaBaseMissing,
            1,
        ),
        ("something new", Code::EngineFailed, 1),
    ];
    for (text, code, expected) in cases {
        for kind in [
            says(&["{\"status\":\"Pulling\",\"id\":\"a\"}\r\n", &error(text)], Then::End),
            Kind::Status(500, text.into()),
        ] {
            let (result, tries) = pull(|s| s.fault("pull", 0, kind));
            fails(result, code, &["r.example/a", text]);
            assert_eq!(tries, expected, "{text}");
        }
    }
    fails(
        pull(|s| s.fault("pull", 0, says(&["{\"status\":\"Pulling\"}\r\n"], Then::End))).0,
        Code::EngineFailed,
        &["does not report"],
    );
    fails(
        pull(|s| s.fault("pull", 0, says(&["oops\r\n"], Then::End))).0,
        Code::EngineFailed,
        &["cannot be parsed"],
    );
}

#[test]
fn a_lost_connection_is_tried_again_with_growing_pauses() {
    let lost = |times| {
        move |s: Script| {
            s.fault("pull", times, says(&["{\"status\":\"Downloading\",\"id\":\"1\",\"progressDetail\":{\"current\":1,\"total\":2}}\r\n"], Then::Cut))
        }
    };
    let began = Instant::now();
    let (result, tries) = pull(lost(2));
    assert_eq!((result.unwrap().as_str(), tries), ("r.example/a", 3));
    assert!(began.elapsed() >= Duration::from_millis(130), "50 ms, then 80");
    let (result, tries) = pull(lost(0));
    fails(result, Code::EngineUnreachable, &["r.example/a"]);
    assert_eq!(tries, 3);
    let (result, tries) = pull(|s| {
        s.fault("pull", 1, Kind::Close).fault("pull", 1, Kind::Status(500, "dial tcp: i/o timeout".into()))
    });
    assert_eq!((result.unwrap().as_str(), tries), ("r.example/a", 3));
}

#[test]
fn a_pull_that_stalls_is_given_up_though_the_engine_is_alive() {
    let (result, tries) = pull(|s| s.fault("pull", 1, says(&["{\"status\":\"Pulling\"}\r\n"], Then::Hang)));
    assert_eq!((result.unwrap().as_str(), tries), ("r.example/a", 2));
}

/// What the engine gets with a pull of `image`, given this config.json.
fn sent(config: &str, image: &str) -> Option<serde_json::Value> {
    let bench = Bench::new(|s| s);
    std::fs::write(bench.dir.path().join("config.json"), config).unwrap();
    bench.engine.pull(image, &mut |_| {}).unwrap();
    bench.stub.secrets().remove(0).map(|header| {
        let json = base64::engine::general_purpose::URL_SAFE.decode(header).expect("the URL-safe alphabet");
        serde_json::from_slice(&json).unwrap()
    })
}

#[test]
fn credentials_of_the_registry_are_sent() {
    let auth = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let config =
        |key: &str, text: &str| format!("{{\"auths\":{{\"{key}\":{{\"auth\":\"{}\"}}}}}}", auth(text));
    let user = |config: &str, image: &str| {
        sent(config, image)
            .map(|v| (v["username"].as_str().unwrap().to_owned(), v["password"].as_str().unwrap().to_owned()))
    };
    let known = Some(("me".to_owned(), "a:b".to_owned()));
    for (key, image) in [
        ("r.example:5000", "r.example:5000/a"),
        ("https://r.example", "r.example/a:1"),
        ("http://r.example/v2/", "r.example/a"),
        ("https://index.docker.io/v1/", "a"),
        ("https://index.docker.io/v1/", "docker.io/library/a"),
        ("docker.io", "index.docker.io/a/b"),
    ] {
        assert_eq!(user(&config(key, "me:a:b"), image), known, "{key}");
    }
    for (key, image) in
        [("r.example", "r.example:5000/a"), ("r.example", "a"), ("other.example", "r.example/a")]
    {
        assert_eq!(user(&config(key, "me:a:b"), image), None, "{key} for {image}");
    }
    let plain = r#"{"auths":{"r.example":{"username":"me","password":"a:b"}},"HttpHeaders":{"x":"y"}}"#;
    assert_eq!(user(plain, "r.example/a"), known);
    assert_eq!(user(r#"{"auths":{"r.example":{}}}"#, "r.example/a"), None);
    let token = r#"{"auths":{"r.example":{"identitytoken":"t"}}}"#;
    assert_eq!(sent(token, "r.example/a").unwrap()["identitytoken"], "t");
    // Characters whose bytes need both letters in which the alphabets differ.
    let odd = "ÿþ~~~???>>>ûï¾";
    assert_eq!(
        user(&config("r.example", &format!("me:{odd}")), "r.example/a"),
        Some(("me".into(), odd.into()))
    );
}

#[test]
fn a_broken_configuration_hinders_no_public_image() {
    for config in [
        "",
        "{",
        "[]",
        r#"{"auths":{"r.example":{"auth":"%%%"}}}"#,
        r#"{"auths":{"r.example":{"auth":"bm8="}}}"#,
        r#"{"credsStore":"../x"}"#,
    ] {
        assert_eq!(sent(config, "r.example/a"), None, "{config}");
    }
    let bench =
        Bench::new(|s| s.fault("pull", 0, Kind::Status(500, "unauthorized: authentication required".into())));
    let secret = "c2VjcmV0";
    std::fs::write(
        bench.dir.path().join("config.json"),
        format!(r#"{{"auths":{{"r.example":{{"auth":"{secret}"}}}}}}"#),
    )
    .unwrap();
    let error = bench.engine.pull("r.example/a", &mut |_| {}).unwrap_err();
    assert!(error.message().contains("config.json: an `auth` holds no user"), "{}", error.message());
    assert!(!error.to_string().contains(secret));
}

#[test]
fn a_credential_helper_is_asked() {
    if !is_alone() {
        let dir = tempfile::tempdir().unwrap();
        let search = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
        in_own_process(test_name!(), &[("PATH", &search), ("HELPERS", dir.path().to_str().unwrap())]);
        return;
    }
    let program = PathBuf::from(std::env::var("HELPERS").unwrap()).join("docker-credential-box");
    let install = |script: &str| {
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let config = r#"{"credHelpers":{"r.example":"box"},"auths":{"r.example":{}}}"#;
    install(r#"read s; echo "{\"ServerURL\":\"$s\",\"Username\":\"me-$1\",\"Secret\":\"at $s\"}""#);
    let got = sent(config, "r.example/a").unwrap();
    assert_eq!((&got["username"], &got["password"]), (&"me-get".into(), &"at r.example".into()));
    assert_eq!(sent(r#"{"credsStore":"box"}"#, "a").unwrap()["password"], "at https://index.docker.io/v1/");
    install(r#"cat >&2; echo '{"Username":"<token>","Secret":"t"}'"#);
    assert_eq!(sent(config, "r.example/a").unwrap()["identitytoken"], "t");
    let ask = || {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        credentials::below(dir.path(), "r.example").map(|c| c.is_some())
    };
    install("cat >&2; echo credentials not found in native keychain; exit 1");
    assert!(!ask().unwrap());
    install("cat >&2; echo hush; exit 1");
    fails(ask(), Code::RegistryRefused, &["docker-credential-box", "status 1"]);
    assert!(!ask().unwrap_err().to_string().contains("hush"));
    install("cat >&2; echo hush");
    fails(ask(), Code::RegistryRefused, &["docker-credential-box", "cannot be parsed"]);
    std::fs::remove_file(&program).unwrap();
    fails(ask(), Code::RegistryRefused, &["docker-credential-box"]);
}

#[test]
fn where_the_configuration_is() {
    let here = |folder: &std::path::Path, user: &str| {
        std::fs::create_dir_all(folder).unwrap();
        let config = format!(r#"{{"auths":{{"r.example":{{"username":"{user}","password":"x"}}}}}}"#);
        std::fs::write(folder.join("config.json"), config).unwrap();
    };
    if is_alone() {
        let found = credentials::find("r.example").unwrap();
        assert_eq!(found.is_some(), std::env::var("FOUND").unwrap() == "yes");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    here(&at("a"), "a");
    here(&at("home/.balena-engine"), "b");
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    let run = |variables: &[(&str, &str)]| drop(in_own_process(test_name!(), variables));
    run(&[("DOCKER_CONFIG", &path("a")), ("HOME", &path("no")), ("FOUND", "yes")]);
    run(&[("DOCKER_CONFIG", &path("no")), ("HOME", &path("home")), ("FOUND", "no")]);
    run(&[("DOCKER_CONFIG", ""), ("HOME", &path("home")), ("FOUND", "yes")]);
    run(&[("HOME", &path("a")), ("FOUND", "no")]);
}

#[test]
fn without_home_the_password_database_has_it() {
    if is_alone() {
        let found = credentials::find("r.example").unwrap();
        assert_eq!(found.is_some(), std::env::var("FOUND").unwrap() == "yes");
        return;
    }
    needs!(is_root);
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home of root");
    std::fs::create_dir_all(home.join(".balena-engine")).unwrap();
    let config = r#"{"auths":{"r.example":{"username":"me","password":"x"}}}"#;
    std::fs::write(home.join(".balena-engine/config.json"), config).unwrap();
    let database = dir.path().join("passwd");
    // It stands in the place of the machine's own, for this process alone.
    let script = "mount --bind \"$0\" /etc/passwd && exec \"$@\"";
    let starter =
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, database.to_str().unwrap()];
    let entry = |name: &str, id: u32, home: &std::path::Path| {
        format!("{name}:x:{id}:{id}::{}:/bin/sh\n", home.display())
    };
    let elsewhere = dir.path().join("elsewhere");
    for (text, variables, found) in [
        (entry("nobody", 65534, &elsewhere) + &entry("root", 0, &home), &[][..], "yes"),
        (entry("root", 0, &home), &[("HOME", "")], "yes"),
        (entry("root", 0, &home), &[("HOME", "/nowhere")], "no"),
        (entry("nobody", 65534, &home), &[], "no"),
        ("no database\n".to_owned(), &[], "no"),
    ] {
        std::fs::write(&database, text).unwrap();
        in_own_process_below(&starter, test_name!(), &[variables, &[("FOUND", found)]].concat());
    }
}
