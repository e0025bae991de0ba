//! config.json, receipt and log.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use copal::boot_files::install::put;
use copal::error::{Code, Effect};

use super::support::{Rig, tree};

#[test]
fn config_json_loses_its_installer_and_nothing_else() {
    let rig = Rig::new(&[], &[("config.json", "old")]);
    let odd = "{\"big\":12345678901234567890.10,\"installer\":{\"secureboot\":true},\"x\":{\"b\":1,\"a\":[ 1,2]},\"ü\":\"\\u00e4\"}";
    let contents = rig.gather("").unwrap();
    // Read again at the moment of the copy, not when it was listed.
    std::fs::write(&rig.config, odd).unwrap();
    contents.deploy_config_json(&rig.open()).unwrap();
    let there = std::fs::read_to_string(rig.dest.join("config.json")).unwrap();
    for kept in ["\"big\": 12345678901234567890.10", "\"x\": {\"b\":1,\"a\":[ 1,2]}", "\"ü\": \"\\u00e4\""] {
        assert!(there.contains(kept), "{there}");
    }
    assert!(!there.contains("installer"), "{there}");
}

/// The name is that of the file, as CONFIG_PATH has it.
#[test]
fn it_keeps_its_name() {
    let mut rig = Rig::new(&[], &[]);
    rig.config = rig.dir.path().join("other.json");
    std::fs::write(&rig.config, "{}").unwrap();
    rig.gather("").unwrap().deploy_config_json(&rig.open()).unwrap();
    assert_eq!(rig.see(), tree(&[("other.json", "{}\n")]));
}

/// The device registers itself meanwhile: somebody truncates and rewrites the file again and again.
#[test]
fn a_config_json_that_is_being_rewritten_is_never_copied_torn() {
    let rig = Rig::new(&[], &[]);
    let contents = rig.gather("").unwrap();
    let filler = "x".repeat(20_000);
    let texts: Vec<String> =
        (0..2).map(|n| format!("{{\"n\": {n}, \"installer\": {{}}, \"filler\": \"{filler}\"}}")).collect();
    std::fs::write(&rig.config, &texts[0]).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (stop, path, texts) = (stop.clone(), rig.config.clone(), texts.clone());
        move || {
            use std::io::Write;
            for n in (0..2).cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let mut file = std::fs::File::create(&path).unwrap();
                for part in texts[n].as_bytes().chunks(4000) {
                    file.write_all(part).unwrap();
                    std::thread::sleep(std::time::Duration::from_micros(300));
                }
                drop(file);
                std::thread::sleep(std::time::Duration::from_millis(8));
            }
        }
    });
    let mut copied = 0;
    for _ in 0..40 {
        match contents.deploy_config_json(&rig.open()) {
            Ok(()) => copied += 1,
            Err(e) => assert!(matches!(e.code(), Code::ConfigJsonInvalid | Code::Busy), "{e}"),
        }
        let there = std::fs::read_to_string(rig.dest.join("config.json")).unwrap_or_else(|_| "{}".into());
        let value: serde_json::Value = serde_json::from_str(&there).unwrap();
        assert!(value.get("filler").is_none_or(|f| f.as_str() == Some(&filler)));
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    // On a busy machine the writer meets more of them.
    assert!(copied > 30, "{copied} of 40");
}

#[test]
fn one_that_stays_damaged_is_an_error_and_the_old_one_stays() {
    for (damage, code) in [
        (Some("{\"a\": "), Code::ConfigJsonInvalid),
        (Some("[]"), Code::ConfigJsonInvalid),
        (None, Code::ConfigJsonMissing),
    ] {
        let rig = Rig::new(&[], &[("config.json", "old")]);
        let contents = rig.gather("").unwrap();
        match damage {
            Some(text) => std::fs::write(&rig.config, text).unwrap(),
            None => std::fs::remove_file(&rig.config).unwrap(),
        }
        let e = contents.deploy_config_json(&rig.open()).unwrap_err();
        assert_eq!((e.code(), e.effect()), (code, Effect::Written));
        assert_eq!(rig.see(), tree(&[("config.json", "old")]));
    }
}

#[test]
fn receipt_and_log_go_into_the_top_folder_and_nowhere_else() {
    let rig = Rig::new(&[], &[("link", "-> ../config.json"), ("folder/", ""), ("flash-receipt.json", "old")]);
    let dest = rig.open();
    put(&dest, OsStr::new("flash-receipt.json"), b"{}\n").unwrap();
    put(&dest, OsStr::new("migration_20260102T0304"), b"log").unwrap();
    let wanted = tree(&[
        ("link", "-> ../config.json"),
        ("folder/", ""),
        ("flash-receipt.json", "{}\n"),
        ("migration_20260102T0304", "log"),
    ]);
    assert_eq!(rig.see(), wanted);
    for bad in ["../x", "folder/x", "/x", "..", ".", ""] {
        assert_eq!(put(&dest, OsStr::new(bad), b"x").unwrap_err().code(), Code::BootPathEscapes, "{bad}");
    }
    put(&dest, OsStr::new("link"), b"x").unwrap_err();
    put(&dest, OsStr::new("folder"), b"x").unwrap_err();
    assert_eq!(rig.see(), wanted);
}
