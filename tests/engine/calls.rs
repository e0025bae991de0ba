//! Each call against an engine that misbehaves.

use std::path::PathBuf;
use std::time::Duration;

use copal::config::paths::Paths;
use copal::engine::archive;
use copal::engine::{Engine, Image, Progress, Retry, Timeouts};
use copal::error::{Code, Error};
use copal::job::Stage;

use crate::kit::image_archive::{Made, digest, tar_of};
use crate::kit::stub_engine::{Kind, Script, Stub, Then};

pub const IMPATIENT: Timeouts = Timeouts {
    look: Duration::from_millis(300),
    answer: Duration::from_secs(2),
    deaf: 2,
    stall: Duration::from_secs(2),
    registry: Duration::from_secs(2),
};

pub const FAST: Retry =
    Retry { tries: 3, first: Duration::from_millis(50), longest: Duration::from_millis(80) };

pub struct Bench {
    pub dir: tempfile::TempDir,
    pub stub: Stub,
    pub engine: Engine,
}

impl Bench {
    pub fn new(change: impl FnOnce(Script) -> Script) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let script = change(Script::new(dir.path().join("mnt/sysroot/inactive/balena")));
        let stub = Stub::start(&paths.at("/var/run/balena-host.sock"), script);
        let engine = Engine::connect(&paths).unwrap();
        let engine = engine.with_timeouts(IMPATIENT).with_retry(FAST).with_credentials(dir.path());
        Bench { dir, stub, engine }
    }

    pub fn archive(&self, size: usize) -> PathBuf {
        let path = self.dir.path().join("image.tar");
        std::fs::write(&path, vec![7; size]).unwrap();
        path
    }

    pub fn load(&self) -> Result<Image, Error> {
        self.engine.load(&archive::open(&self.archive(300_000))?, &mut |_| {})
    }
}

pub fn says(lines: &[&str], then: Then) -> Kind {
    Kind::Says(lines.iter().map(|&l| l.to_owned()).collect(), then)
}

/// A failing call, its code and what its message must contain.
pub fn fails<T: std::fmt::Debug>(result: Result<T, Error>, code: Code, words: &[&str]) {
    let error = result.unwrap_err();
    let message = error.message();
    assert_eq!(error.code(), code, "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

#[test]
fn nobody_listens() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths::new(dir.path());
    fails(Engine::connect(&paths), Code::EngineUnreachable, &["/var/run/balena-host.sock", "no such socket"]);
    let socket = paths.at("/var/run/balena-host.sock");
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    fails(Engine::connect(&paths), Code::EngineUnreachable, &["refused"]);
}

#[test]
fn versions() {
    let connect = |api: &str| {
        let dir = tempfile::tempdir().unwrap();
        let script = Script { api: api.to_owned(), ..Script::new(dir.path().join("balena")) };
        let stub = Stub::start(&dir.path().join("s"), script);
        Engine::at(&stub.socket).map(|e| e.data_root().unwrap() == dir.path().join("balena"))
    };
    for good in ["1.40", "1.41", "1.100", "2.0"] {
        assert!(connect(good).unwrap(), "{good}");
    }
    fails(connect("1.39"), Code::EngineUnreachable, &["1.39", "older than 1.40"]);
    fails(connect("new"), Code::EngineUnreachable, &["\"new\""]);
}

#[test]
fn an_archive_goes_to_the_engine_whole() {
    let bench = Bench::new(|s| s);
    let archive = bench.archive(3_000_001);
    let mut seen = Vec::new();
    let image =
        bench.engine.load(&archive::open(&archive).unwrap(), &mut |p: &Progress| seen.push(*p)).unwrap();
    assert_eq!(image.reference, "hostapp:latest");
    assert!(image.id.starts_with("sha256:"), "{image:?}");
    assert_eq!(bench.stub.uploads()[0].size, 3_000_001);
    let at = |stage, done| Progress { stage, done, total: Some(3_000_001) };
    assert!(seen.contains(&at(Stage::Load, 3_000_001)), "{seen:?}");
    assert_eq!(
        seen.last(),
        Some(&at(Stage::Unpack, 2)),
        "it is not known yet that there are no other layers"
    );
}

#[test]
fn what_an_archive_was_loaded_as() {
    let line = |text: &str| format!("{}\r\n", serde_json::json!({ "stream": text }));
    let (one, id) = (line("Loaded image: hostapp:latest\n"), line("Loaded image ID: hostapp:latest\n"));
    let bench = |pieces: &[&str]| {
        let bench = Bench::new(|s| {
            s.fault("load", 1, Kind::Status(500, "first".into())).fault("load", 1, says(pieces, Then::End))
        });
        fails(bench.load(), Code::EngineFailed, &["first"]);
        bench
    };
    // The stub knows the image only if it was loaded before: the third call, without a fault, comes last there.
    let with_image = |pieces: &[&str]| {
        let bench = Bench::new(|s| s.fault("load", 0, says(pieces, Then::End)));
        let images = bench.dir.path().join("mnt/sysroot/inactive/balena/stub/images/x");
        std::fs::write(images, r#"{"Id":"sha256:abc","name":"hostapp:latest"}"#).unwrap();
        bench.load().map(|i| i.id)
    };
    assert_eq!(with_image(&[&one]).unwrap(), "sha256:abc");
    assert_eq!(with_image(&[&id]).unwrap(), "sha256:abc");
    assert_eq!(with_image(&[&one, &one]).unwrap(), "sha256:abc", "said twice");
    let bytes: Vec<String> = one.chars().map(String::from).collect();
    let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
    assert_eq!(with_image(&bytes).unwrap(), "sha256:abc", "byte by byte");
    assert_eq!(with_image(&[one.trim_end(), "\r", "\n"]).unwrap(), "sha256:abc");
    let split = [line("Loaded im"), line("age: hostapp:"), line("latest")].concat();
    assert_eq!(with_image(&[&split]).unwrap(), "sha256:abc", "over several messages, in one piece");
    fails(
        with_image(&[&one, &line("Loaded image: other:1\n")]),
        Code::ImageArchiveInvalid,
        &["hostapp:latest", "other:1"],
    );

    fails(bench(&[&line("The image is fine\n")]).load(), Code::EngineFailed, &["does not report"]);
    fails(bench(&["{}\r\n"]).load(), Code::EngineFailed, &["does not report"]);
    fails(bench(&[]).load(), Code::EngineFailed, &["does not report"]);
    fails(
        bench(&[&line("Loaded image: never:seen\n")]).load(),
        Code::EngineFailed,
        &["never:seen", "No such image"],
    );
}

#[test]
fn errors_of_loading() {
    let error = |text: &str| {
        format!("{}\r\n", serde_json::json!({ "errorDetail": { "message": text }, "error": text }))
    };
    let load = |kind: Kind| Bench::new(|s| s.fault("load", 0, kind)).load();
    let loaded = "{\"stream\":\"Loaded image: hostapp:latest\\n\"}\r\n";
    let cases = [
        (error("write /x: no space left on device"), Code::SlotFull),
        (error("archive/tar: invalid tar header"), Code::ImageArchiveInvalid),
        (error("unexpected EOF"), Code::ImageArchiveInvalid),
        (error("something new"), Code::EngineFailed),
        ("{\"errorDetail\":{\"code\":1,\"message\":\"old form\"}}".to_owned(), Code::EngineFailed),
        ("what?\r\n".to_owned(), Code::EngineFailed),
        ("{\"stream\":7}\r\n".to_owned(), Code::EngineFailed),
    ];
    for (text, code) in cases {
        fails(load(says(&[&text], Then::End)), code, &["image.tar"]);
        fails(load(says(&[loaded, &text], Then::End)), code, &["image.tar"]);
    }
    fails(load(Kind::Status(500, "no room: no space left on device".into())), Code::SlotFull, &["no room"]);
    fails(load(says(&[loaded], Then::Cut)), Code::EngineUnreachable, &["image.tar"]);
    fails(load(Kind::Close), Code::EngineUnreachable, &["image.tar"]);
    let bench = Bench::new(|s| s);
    fails(archive::open(&bench.dir.path().join("no")), Code::ImageMissing, &["/no"]);
    fails(archive::open(bench.dir.path()), Code::ImageNotRegular, &["a folder"]);
}

#[test]
fn an_engine_that_dies_during_a_load_is_waited_for_and_the_load_repeated() {
    let loaded = "{\"stream\":\"Loaded image: hostapp:latest\\n\"}\r\n";
    let bench = Bench::new(|s| s.fault("load", 1, Kind::Close).fault("load", 1, says(&[loaded], Then::Cut)));
    let archive = bench.archive(300_000);
    let mut seen = Vec::new();
    let image =
        bench.engine.load(&archive::open(&archive).unwrap(), &mut |p: &Progress| seen.push(*p)).unwrap();
    assert_eq!(image.reference, "hostapp:latest");
    assert_eq!(bench.stub.uploads().len(), 1, "the last one is whole");
    assert_eq!(bench.stub.uploads()[0].size, 300_000);
    let of_load: Vec<_> = bench.stub.calls().into_iter().filter(|c| c == "load").collect();
    assert_eq!(of_load.len(), 3);

    // Gone between the load and the question for the image.
    let bench = Bench::new(|s| s.fault("image", 1, Kind::Close));
    bench.load().unwrap();
    assert_eq!(bench.stub.calls(), ["load", "image", "load", "image"]);

    // An engine that is stopped reports the end of what unpacks for it.
    let text = "ApplyLayer signal: terminated stdout:  stderr: ";
    let stopped = format!("{}\r\n", serde_json::json!({ "errorDetail": { "message": text }, "error": text }));
    let bench = Bench::new(|s| s.fault("load", 1, says(&[&stopped], Then::End)));
    bench.load().unwrap();
    assert_eq!(bench.stub.calls(), ["load", "load", "image"]);

    // For good: as often as a pull is tried.
    let bench = Bench::new(|s| s.fault("load", 0, Kind::Close));
    fails(bench.load(), Code::EngineUnreachable, &["image.tar"]);
    assert_eq!(bench.stub.calls(), ["load", "load", "load"]);
    // What time does not change is not repeated.
    let bench = Bench::new(|s| s.fault("load", 0, Kind::Status(500, "something new".into())));
    fails(bench.load(), Code::EngineFailed, &["something new"]);
    assert_eq!(bench.stub.calls(), ["load"]);
}

#[test]
fn a_delta_that_an_earlier_try_has_made_an_image_of_is_that_image() {
    let target = r#"{"rootfs":{"diff_ids":[]}}"#;
    let id = format!("sha256:{}", digest(target.as_bytes()));
    // balenaEngine names nothing then.
    let there = "{\"stream\":\"Target image already exists locally, no need to load it.\\n\"}\r\n";
    let known = format!("{{\"Id\":\"{id}\",\"Size\":1}}");
    let bench = Bench::new(|s| {
        s.fault("load", 1, Kind::Lost).fault("load", 1, says(&[there], Then::End)).fault(
            "image",
            1,
            says(&[&known], Then::End),
        )
    });
    let delta = bench.dir.path().join("delta.tar");
    let base = format!("sha256:{}", digest(b"the image before"));
    std::fs::write(&delta, Made::delta(&base, target).archive(&["a:1"])).unwrap();
    // An engine that starts again may have removed the archive.
    let image = bench
        .engine
        .load(&archive::open(&delta).unwrap(), &mut |_| drop(std::fs::remove_file(&delta)))
        .unwrap();
    assert!(!delta.exists());
    assert_eq!(image.id, id);
    assert_eq!(bench.stub.calls(), ["load", "load", "image"]);

    // An archive that is not a delta does not say which image that would be.
    let image = bench.dir.path().join("image.tar");
    std::fs::write(
        &image,
        Made::new(vec![tar_of(&[("boot/init", 0o755, b"#!/bin/sh\n")])]).archive(&["a:1"]),
    )
    .unwrap();
    let bench = Bench::new(|s| s.fault("load", 0, says(&[there], Then::End)));
    fails(
        bench.engine.load(&archive::open(&image).unwrap(), &mut |_| {}),
        Code::EngineFailed,
        &["not which"],
    );
}

#[test]
fn an_archive_that_loses_its_name_is_loaded_again_nevertheless() {
    let bench = Bench::new(|s| s.fault("load", 1, Kind::Lost));
    let archive = bench.archive(300_000);
    let mut removed = false;
    bench
        .engine
        .load(&archive::open(&archive).unwrap(), &mut |_| {
            if !std::mem::replace(&mut removed, true) {
                std::fs::remove_file(&archive).unwrap();
            }
        })
        .unwrap();
    assert!(removed);
    assert_eq!(bench.stub.uploads().last().unwrap().size, 300_000);
}

#[test]
fn an_engine_that_hangs_is_given_up_and_one_that_is_busy_is_not() {
    let hang = |s: Script| s.fault("load", 0, Kind::Hang).fault("ping", 0, Kind::Hang);
    fails(Bench::new(hang).load(), Code::EngineUnreachable, &["not answered"]);
    Bench::new(|s| s.fault("load", 0, Kind::Late(3000))).load().unwrap();
}

#[test]
fn removal_tries_everything_and_tolerates_what_is_gone() {
    let busy = || Kind::Status(409, "removal of container x is already in progress".into());
    let bench = Bench::new(|s| {
        s.fault("remove-container", 1, Kind::Status(404, "No such container: x".into()))
            .fault("remove-container", 1, busy())
            .fault("remove-container", 1, Kind::Status(500, "device or resource busy".into()))
            .fault("remove-image", 1, Kind::Status(409, "image has dependent child images".into()))
    });
    let image = bench.load().unwrap();
    let three: Vec<_> = (0..3).map(|_| bench.engine.create_hostapp(&image).unwrap()).collect();
    assert!(three.iter().all(|h| h.boot.is_dir()));
    bench.engine.remove_containers().unwrap();
    assert!(three.iter().all(|h| !h.boot.exists()), "volumes go with their containers");
    bench.engine.remove_images().unwrap();
    bench.engine.remove_containers().unwrap();
    bench.engine.remove_images().unwrap();

    let stuck = Bench::new(|s| {
        s.fault("remove-container", 2, Kind::Status(500, "stuck".into())).fault(
            "remove-image",
            0,
            Kind::Close,
        )
    });
    let image = stuck.load().unwrap();
    let kept = [stuck.engine.create_hostapp(&image).unwrap(), stuck.engine.create_hostapp(&image).unwrap()];
    stuck.engine.remove_containers().unwrap();
    assert!(kept.iter().all(|h| !h.boot.exists()));
    fails(stuck.engine.remove_images(), Code::EngineUnreachable, &["image"]);

    let stuck = Bench::new(|s| s.fault("remove-container", 0, Kind::Status(500, "stuck".into())));
    let image = stuck.load().unwrap();
    stuck.engine.create_hostapp(&image).unwrap();
    fails(stuck.engine.remove_containers(), Code::EngineFailed, &["container", "stuck"]);
}

#[test]
fn the_hostapp_is_a_bare_container_with_a_boot_volume() {
    let bench = Bench::new(|s| s);
    let image = bench.load().unwrap();
    let hostapp = bench.engine.create_hostapp(&image).unwrap();
    assert!(hostapp.boot.starts_with(bench.engine.data_root().unwrap().join("volumes")));
    let wish = bench.stub.created().remove(0);
    assert_eq!(wish["Image"], "hostapp:latest", "as it was loaded");
    assert_eq!(wish["HostConfig"]["Runtime"], "bare");
    assert_eq!(wish["Volumes"], serde_json::json!({ "/boot": {} }));
    assert_eq!(wish["Cmd"], serde_json::json!(["/bin/sh"]));

    let odd = |mounts: &str| {
        let text = format!("{{\"Id\":\"x\",\"Image\":\"sha256:abc\",\"Mounts\":{mounts}}}");
        let bench = Bench::new(|s| s.fault("inspect", 0, says(&[&text], Then::End)));
        let image = bench.load().unwrap();
        bench.engine.create_hostapp(&Image { id: "sha256:abc".into(), ..image })
    };
    for mounts in [
        "[]",
        "null",
        r#"[{"Destination":"/boot2","Source":"/a"}]"#,
        r#"[{"Destination":"/boot","Source":""}]"#,
        r#"[{"Destination":"/boot","Source":"a/b"}]"#,
        r#"[{"Destination":"/boot","Source":"/a/../../b"}]"#,
    ] {
        fails(odd(mounts), Code::EngineFailed, &["/boot"]);
    }
    let gone = Image { id: "sha256:no".into(), reference: "no:1".into(), ..image };
    fails(bench.engine.create_hostapp(&gone), Code::EngineFailed, &["No such image"]);
}

#[test]
fn a_container_is_made_from_the_image_that_was_checked_whatever_its_name_means_by_then() {
    let image_of = |bench: &Bench, file: &str, id: &str, name: &str| {
        let folder = bench.dir.path().join("mnt/sysroot/inactive/balena/stub/images");
        std::fs::write(folder.join(file), serde_json::json!({ "Id": id, "name": name }).to_string()).unwrap();
    };
    for name_is_taken in [true, false] {
        let bench = Bench::new(|s| s);
        let image = bench.load().unwrap();
        // Another process moves the name, or takes it away.
        image_of(&bench, image.id.strip_prefix("sha256:").unwrap(), &image.id, "other:1");
        if name_is_taken {
            image_of(&bench, "another", "sha256:another", "hostapp:latest");
        }
        bench.engine.create_hostapp(&image).unwrap();
        assert_eq!(bench.engine.run_hooks(&image, &[], &mut |_| {}).unwrap(), 0);
        let made_of =
            |calls: &[&str]| bench.stub.calls().windows(calls.len()).filter(|w| *w == calls).count();
        let by_name = bench.stub.created().iter().filter(|w| w["Image"] == "hostapp:latest").count();
        let by_id = bench.stub.created().iter().filter(|w| w["Image"] == image.id.as_str()).count();
        assert_eq!((by_name, by_id), (if name_is_taken { 2 } else { 0 }, 2));
        let undone = ["create", "inspect", "remove-container", "create", "inspect"];
        assert_eq!(made_of(&undone), by_name, "the wrong one goes: {:?}", bench.stub.calls());
    }
}

fn hooks(script: &str) -> Vec<String> {
    ["sh", "-c", script].map(str::to_owned).to_vec()
}

#[test]
fn hooks_are_created_attached_started_waited_for_and_removed() {
    let bench = Bench::new(|s| Script {
        hooks: hooks("echo during $DURING_UPDATE; printf 'a\\nb' >&2; exit 3"),
        ..s
    });
    let image = bench.load().unwrap();
    let mut said = Vec::new();
    assert_eq!(bench.engine.run_hooks(&image, &["MORE=1"], &mut |l| said.push(l.to_owned())).unwrap(), 3);
    assert_eq!(said, ["during 1", "a", "b"]);
    let calls = bench.stub.calls();
    assert_eq!(calls[2..], ["create", "inspect", "attach", "start", "wait", "remove-container"], "{calls:?}");
    let wish = bench.stub.created().remove(0);
    assert_eq!(wish["Image"], "hostapp:latest");
    assert_eq!(wish["Cmd"], serde_json::json!(["hostapp-update-hooks"]));
    assert_eq!(wish["Env"], serde_json::json!(["DURING_UPDATE=1", "MORE=1"]));
    assert_eq!(wish["HostConfig"]["Privileged"], true);
    assert_eq!(
        wish["HostConfig"]["Binds"],
        serde_json::json!(["/dev:/dev", "/mnt:/mnt", "/sys:/sys", "/run:/run"])
    );
    assert_eq!(wish["HostConfig"].get("NetworkMode"), None);
    assert_eq!(wish["HostConfig"].get("Runtime"), None);
}

#[test]
fn hooks_that_take_long_and_hooks_that_fail_to_run() {
    let run = |change: &dyn Fn(Script) -> Script| {
        let bench = Bench::new(change);
        let image = bench.load().unwrap();
        let result = bench.engine.run_hooks(&image, &[], &mut |_| {});
        assert!(!bench.engine.has_left_hooks(), "the container was removed, or nothing runs in it any more");
        (result, bench.stub.calls())
    };
    let slow = |s: Script| Script { hooks: hooks("sleep 4"), ..s };
    assert_eq!(run(&slow).0.unwrap(), 0, "no limit while the engine is alive");
    for call in ["attach", "start"] {
        let (result, calls) = run(&|s| s.fault(call, 0, Kind::Status(500, "not in $PATH".into())));
        fails(result, Code::EngineFailed, &["not in $PATH"]);
        assert_eq!(calls.last().unwrap(), "remove-container");
    }
    let (result, _) = run(&|s| s.fault("wait", 0, Kind::Close));
    fails(result, Code::EngineUnreachable, &["hooks"]);
    let says_error = says(&["{\"StatusCode\":0,\"Error\":{\"Message\":\"lost it\"}}"], Then::End);
    fails(run(&|s| s.fault("wait", 0, says_error.clone())).0, Code::EngineFailed, &["lost it"]);
    fails(run(&|s| s.fault("wait", 0, says(&[], Then::End))).0, Code::EngineFailed, &["exit status"]);
    let (result, _) = run(&|s| s.fault("remove-container", 0, Kind::Status(500, "stuck".into())));
    assert_eq!(result.unwrap(), 0, "a container that is left does not spoil the update");
    let silent = |s: Script| slow(s).fault("ping", 0, Kind::Hang).fault("wait", 0, Kind::Hang);
    fails(
        run(&|s| Script { hooks: hooks("sleep 60"), ..silent(s) }).0,
        Code::EngineUnreachable,
        &["not answered"],
    );
}

/// A container that runs, as long as nobody has ended it.
const ONE: &str = r#"[{"Id":"c0ffee"}]"#;

#[test]
fn hooks_that_were_left_are_ended_by_an_engine_that_restarts() {
    let lost = |s: Script| s.fault("wait", 0, Kind::Close).fault("remove-container", 0, Kind::Close);
    let bench = Bench::new(lost);
    let image = bench.load().unwrap();
    fails(bench.engine.run_hooks(&image, &[], &mut |_| {}), Code::EngineUnreachable, &["hooks"]);
    assert!(bench.engine.has_left_hooks());

    let socket = bench.stub.socket.clone();
    drop(bench.stub);
    let limit = Duration::from_millis(100);
    fails(Engine::end_running(&socket, limit), Code::EngineUnreachable, &["no such socket"]);
    let back = std::thread::scope(|scope| {
        let ending = scope.spawn(|| Engine::end_running(&socket, Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(300));
        let root = bench.dir.path().join("again");
        let back = Stub::start(&socket, Script::new(root).fault("containers", 1, says(&[ONE], Then::End)));
        ending.join().unwrap().unwrap();
        back
    });
    assert_eq!(back.calls(), ["containers", "remove-container", "containers"]);
}

#[test]
fn hooks_of_an_update_that_was_killed_are_ended_where_there_is_an_engine() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths::new(dir.path());
    Engine::end_hooks_of_the_dead(&paths).unwrap();
    let script = Script::new(dir.path().join("balena")).fault("containers", 1, says(&[ONE], Then::End));
    let stub = Stub::start(&paths.at("/var/run/balena-host.sock"), script);
    Engine::end_hooks_of_the_dead(&paths).unwrap();
    assert_eq!(stub.calls(), ["containers", "remove-container", "containers"]);
}
