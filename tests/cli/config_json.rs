//! `config.json`: what is read, what is refused, and what the internal disk gets.

use crate::kit::process::HANG;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use copal::config::config_json::{self, ConfigJson};
use copal::config::paths::Paths;
use copal::error::{Code, Error};
use proptest::prelude::*;

fn json(text: &str) -> Result<ConfigJson, Error> {
    ConfigJson::parse(text.as_bytes(), Path::new("/c.json"))
}

fn copy(text: &str) -> String {
    String::from_utf8(json(text).unwrap().for_internal_disk()).unwrap()
}

#[test]
fn config_json_is_where_the_environment_or_the_medium_say() {
    let root = tempfile::tempdir().unwrap();
    let paths = Paths::new(root.path());
    let at = |p: &str| root.path().join(p);
    assert_eq!(config_json::locate(None, &paths), at("mnt/boot/config.json"));
    fs::create_dir_all(at("mnt/boot")).unwrap();
    fs::write(at("mnt/boot/balena-image-flasher"), "").unwrap();
    assert_eq!(config_json::locate(None, &paths), at("mnt/boottmp/config.json"));
    assert_eq!(config_json::locate(Some(Path::new("")), &paths), at("mnt/boottmp/config.json"));
    assert_eq!(config_json::locate(Some(Path::new("/x/c.json")), &paths), at("x/c.json"));
}

#[test]
fn config_json_reports_what_concerns_an_installation() {
    let c = json(r#"{"apiEndpoint":"https://api","installer":{"target_devices":"sda nvme?n?","secureboot":true,"whitelist_pcr2":false}}"#)
        .unwrap();
    assert_eq!(c.installer_target_devices().unwrap(), Some("sda nvme?n?"));
    assert!(c.installer_secureboot().unwrap() && !c.installer_whitelist_pcr2().unwrap());
    assert_eq!((c.api_endpoint(), c.is_provisioned()), (Some("https://api"), true));
    for empty in [
        "{}",
        r#"{"installer":null,"apiEndpoint":""}"#,
        r#"{"installer":{"target_devices":null,"secureboot":null}}"#,
    ] {
        let c = json(empty).unwrap();
        assert_eq!(c.installer_target_devices().unwrap(), None);
        assert!(!c.installer_secureboot().unwrap() && !c.is_provisioned(), "{empty}");
    }
}

#[test]
fn config_json_of_the_wrong_kind_names_the_key() {
    let subject = |e: Error| {
        assert_eq!(e.code(), Code::ConfigJsonInvalid);
        assert!(e.message().starts_with("/c.json: installer"), "{e}");
        e.subject().unwrap().to_owned()
    };
    for devices in ["\"\"", "\" \"", "5", "[\"sda\"]", "false"] {
        let c = json(&format!(r#"{{"installer":{{"target_devices":{devices}}}}}"#)).unwrap();
        assert_eq!(subject(c.installer_target_devices().unwrap_err()), "installer.target_devices");
    }
    for flag in ["\"true\"", "1", "0", "{}"] {
        let c = json(&format!(r#"{{"installer":{{"secureboot":{flag},"whitelist_pcr2":{flag}}}}}"#)).unwrap();
        assert_eq!(subject(c.installer_secureboot().unwrap_err()), "installer.secureboot");
        assert_eq!(subject(c.installer_whitelist_pcr2().unwrap_err()), "installer.whitelist_pcr2");
    }
    assert_eq!(
        subject(json(r#"{"installer":"sda"}"#).unwrap().installer_target_devices().unwrap_err()),
        "installer"
    );
}

#[test]
fn damaged_config_json_is_refused_with_its_place() {
    let deep = format!("{}{}", "{\"a\":".repeat(1000), "1".to_owned() + &"}".repeat(1000));
    let very_deep = "[".repeat(200_000);
    let cases: &[(&[u8], &str)] = &[
        (b"", "1:1: "),
        (b"nonsense", "1:2: "),
        (b"{\n  \"a\": 1,\n}", "3:1: "),
        ("{\"ä\":\"ü\" x}".as_bytes(), "1:10: "),
        (b"{\"a\":1", "1:"),
        (b"{} {}", "1:4: "),
        (b"\n [1]", "2:2: this is not a JSON object"),
        (b"\"x\"", "1:1: this is not a JSON object"),
        (b"{\"a\":\n\0}", "2:1: a NUL byte"),
        (b"\0\0\0\0", "1:1: a NUL byte"),
        (b"{\"\xc3\xa4\":\"\xff\"}", "1:7: this is not UTF-8"),
        (deep.as_bytes(), "1:"),
        (very_deep.as_bytes(), "1:"),
    ];
    for (text, place) in cases {
        let e = ConfigJson::parse(text, Path::new("/c.json")).unwrap_err();
        assert_eq!((e.code(), e.subject()), (Code::ConfigJsonInvalid, Some("/c.json")), "{e}");
        assert!(e.message().starts_with(&format!("/c.json:{place}")), "{place}: {e}");
        assert!(!e.message().contains(" at line "), "{e}");
    }
}

#[test]
fn the_copy_keeps_everything_but_the_installer() {
    let text = r#"{"z":1.0,"installer":{"target_devices":"sda"},"a":{"installer":1, "n":[1e400,-0,0.10,1E+2,18446744073709551616]},
        "u":"\u00e4\ud83d\ude00","a b\"":null,"":[],"installer":2}"#;
    assert_eq!(
        copy(text),
        r#"{
  "z": 1.0,
  "a": {"installer":1, "n":[1e400,-0,0.10,1E+2,18446744073709551616]},
  "u": "\u00e4\ud83d\ude00",
  "a b\"": null,
  "": []
}
"#
    );
    assert_eq!(copy(r#"{"installer":{}}"#), "{}\n");
    assert_eq!(copy(r#"{"\u0069nstaller":{}}"#), "{}\n");
}

/// JSON text with numbers of any length, written out by hand so that no library rounds them first.
fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|b| b.to_string()),
        "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?",
        any::<String>().prop_map(|s| serde_json::to_string(&s).unwrap()),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(|v| format!("[{}]", v.join(" , "))),
            any_members(inner).prop_map(|m| object(&m)),
        ]
    })
}

fn any_members(value: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec((prop_oneof![any::<String>(), Just("installer".to_owned())], value), 0..5)
}

fn object(members: &[(String, String)]) -> String {
    let member = |(k, v): &(String, String)| format!("{} :{v}", serde_json::to_string(k).unwrap());
    format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(",\n"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_copy_is_the_original_without_the_installer(members in any_members(any_json())) {
        let once = copy(&object(&members));
        let kept: Vec<_> = members.into_iter().filter(|(key, _)| key != "installer").collect();
        let lines: Vec<String> =
            kept.iter().map(|(k, v)| format!("  {}: {v}", serde_json::to_string(k).unwrap())).collect();
        let expected = if lines.is_empty() { "{}\n".to_owned() } else { format!("{{\n{}\n}}\n", lines.join(",\n")) };
        prop_assert_eq!(&once, &expected);
        prop_assert_eq!(copy(&once), once);
    }
}

#[test]
fn config_json_files_are_bounded_and_read_again_when_torn() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    let code = |p: &Path| ConfigJson::load(p).unwrap_err().code();
    let start = Instant::now();
    assert_eq!(code(&file), Code::ConfigJsonMissing);
    fs::write(&file, "{\"a\":").unwrap();
    assert_eq!(code(&file), Code::ConfigJsonInvalid);
    assert!(start.elapsed() < HANG, "the retries end");
    assert_eq!(code(dir.path()), Code::ConfigJsonInvalid);
    let late = file.clone();
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(60));
        fs::write(late, "{\"apiEndpoint\":\"x\"}").unwrap();
    });
    assert!(ConfigJson::load(&file).unwrap().is_provisioned());
    writer.join().unwrap();
    fs::write(&file, format!("{{\"a\":\"{}\"}}", "x".repeat(10 << 20))).unwrap();
    let e = ConfigJson::load(&file).unwrap_err();
    assert_eq!(e.code(), Code::ConfigJsonInvalid);
    assert!(e.message().contains("more than 1048576 bytes"), "{e}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_the_parser_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        text in "[\\[\\]{}:,\"\\\\ue0-9.+\\-a\n \0ntrfls]{0,80}",
    ) {
        for input in [bytes.as_slice(), text.as_bytes()] {
            if let Ok(config) = ConfigJson::parse(input, Path::new("f")) {
                prop_assert!(ConfigJson::parse(&config.for_internal_disk(), Path::new("f")).is_ok());
            }
        }
    }
}
