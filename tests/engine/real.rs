//! Against dockerd and a registry.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use copal::config::paths::Paths;
use copal::engine::archive;
use copal::engine::{Engine, Progress, Retry, Timeouts};
use copal::error::Code;
use copal::job::Stage;

use crate::archives::filter;
use crate::calls::fails;
use crate::kit::dockerd::Dockerd;
use crate::kit::image_archive::{Made, tar_of};
use crate::kit::needs::needs;
use crate::kit::registry::{AUTH, Page, Proxy, Registry};
use crate::kit::{needs, prove};

pub const TAG: &str = "hostapp:test";

const FAST: Retry = Retry { tries: 4, first: Duration::from_millis(200), longest: Duration::from_secs(1) };

pub fn can_run(test: &str) -> bool {
    needs::can_run(test)
        && ["dockerd", "docker-registry", "runc"].into_iter().all(|program| needs::has(test, program))
}

pub fn engine(dockerd: &Dockerd) -> Engine {
    // No credentials of whoever runs this.
    Engine::connect(&Paths::new(dockerd.root())).unwrap().with_retry(FAST).with_credentials(dockerd.root())
}

fn disk_use(folder: &Path) -> u64 {
    let text = Command::new("du").args(["-sk"]).arg(folder).output().unwrap().stdout;
    String::from_utf8(text).unwrap().split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn from_an_archive_to_the_end_of_the_hooks() {
    needs!(can_run);
    let dockerd = Dockerd::start(None);
    let engine = engine(&dockerd);
    assert_eq!(engine.data_root().unwrap(), dockerd.data());
    let empty = disk_use(dockerd.data());

    let hooks = "echo during $DURING_UPDATE; echo on stderr >&2; read below < /mnt/below/file; echo $below; \
                 test -e /dev/null && test -d /sys/class && test -e /run/engine.pid && echo mounts; \
                 busybox mount -t tmpfs none /mnt && echo mounted; exit 7";
    let image = Made::host_os(hooks, 3 << 20);
    let archive = dockerd.root().join("image.tar");
    image.save(&archive, &[TAG]);
    let mut seen = Vec::new();
    let loaded = engine.load(&archive::open(&archive).unwrap(), &mut |p: &Progress| seen.push(*p)).unwrap();
    assert_eq!((loaded.reference.as_str(), &loaded.id), (TAG, &image.id()));
    assert!(loaded.size > 3 << 20);
    assert!(seen.iter().any(|p| p.stage == Stage::Unpack && p.done > 3 << 20), "{seen:?}");
    assert!(seen.windows(2).all(|w| w[0].stage != w[1].stage || w[0].done <= w[1].done), "{seen:?}");

    let hostapp = engine.create_hostapp(&loaded).unwrap();
    assert_eq!(std::fs::read(hostapp.boot.join("vmlinuz")).unwrap(), b"kernel");
    assert!(hostapp.boot.starts_with(dockerd.data().join("volumes")), "{hostapp:?}");

    let mut said = Vec::new();
    let status = engine.run_hooks(&loaded, &[], &mut |l| said.push(l.to_owned())).unwrap();
    said.sort();
    assert_eq!(
        (status, said),
        (7, ["during 1", "mounted", "mounts", "on stderr", "seen"].map(str::to_owned).to_vec())
    );
    assert!(hostapp.boot.is_dir(), "the hooks' volumes go, not those of the host OS");

    // A name without hooks, and an image that is not there.
    let bare = Made::new(vec![tar_of(&[("etc/x", 0o644, b"x")])]);
    bare.save(&archive, &["bare:1"]);
    let bare = engine.load(&archive::open(&archive).unwrap(), &mut |_| {}).unwrap();
    fails(engine.run_hooks(&bare, &[], &mut |_| {}), Code::EngineFailed, &["bare:1", "hostapp-update-hooks"]);

    engine.remove_containers().unwrap();
    assert!(!hostapp.boot.exists());
    engine.remove_images().unwrap();
    engine.remove_images().unwrap();
    let left = disk_use(dockerd.data());
    assert!(left < empty + (1 << 20), "{empty} before, {left} after");
}

#[test]
fn what_no_archive_is() {
    needs!(can_run);
    let dockerd = Dockerd::start(None);
    let engine = engine(&dockerd);
    let image = Made::host_os("true", 1 << 20);
    let archive = dockerd.root().join("image.tar");
    let load = |bytes: &[u8]| {
        std::fs::write(&archive, bytes).unwrap();
        engine.load(&archive::open(&archive).unwrap(), &mut |_| {})
    };
    let whole = image.archive(&[TAG]);
    fails(load(b"this is no archive"), Code::ImageArchiveInvalid, &["image.tar"]);
    fails(load(&whole[..whole.len() / 2]), Code::ImageArchiveInvalid, &["image.tar"]);
    fails(load(&vec![0; 10240]), Code::ImageArchiveInvalid, &["image.tar"]);
    fails(load(&image.archive(&["a:1", "b:1"])), Code::ImageArchiveInvalid, &["a:1", "b:1"]);
    // Without a name the ID is what there is.
    let nameless = load(&image.archive(&[])).unwrap();
    assert_eq!((&nameless.id, &nameless.reference), (&image.id(), &image.id()));
}

#[test]
fn an_archive_loads_in_every_compression() {
    needs!(can_run);
    let dockerd = Dockerd::start(None);
    let engine = engine(&dockerd);
    let image = Made::host_os("true", 1 << 20);
    let path = dockerd.root().join("image.tar");
    let load = |name: &str, bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let found = archive::inspect(&archive::open(&path).unwrap(), u64::MAX, &[]).unwrap();
        engine.check_loadable(&found).unwrap();
        let loaded = engine.load(&archive::open(&path).unwrap(), &mut |_| {}).unwrap();
        assert_eq!((loaded.reference.as_str(), &loaded.id), (TAG, &image.id()), "{name}");
        engine.remove_images().unwrap();
    };
    load("plain", &image.archive(&[TAG]));
    for program in ["gzip", "bzip2", "xz", "zstd"] {
        load(program, &filter(program, &image.archive(&[TAG])));
    }
    for program in ["gzip", "bzip2"] {
        let mut members = image.members(&[TAG]);
        members[1].1 = filter(program, &members[1].1);
        load(program, &crate::kit::image_archive::pack(&members));
    }
}

#[test]
fn pulls() {
    needs!(can_run);
    let (dockerd, registry) = (Dockerd::start(None), Registry::start(false));
    let engine = engine(&dockerd);
    let image = Made::host_os("true", 5 << 20);
    let digest = registry.push("host/os", "1", &image);
    registry.push("host/os", "latest", &image);
    let mut seen = Vec::new();
    let pulled = engine.pull(&registry.name("host/os:1"), &mut |p: &Progress| seen.push(*p)).unwrap();
    assert_eq!(pulled.id, image.id());
    for stage in [Stage::Pull, Stage::Unpack] {
        let of: Vec<_> = seen.iter().filter(|p| p.stage == stage).collect();
        assert!(of.last().is_some_and(|p| p.done > 5 << 20 && p.total == Some(p.done)), "{of:?}");
        assert!(of.windows(2).all(|w| w[0].done <= w[1].done), "{of:?}");
    }
    assert_eq!(
        engine.pull(&registry.name("host/os"), &mut |_| {}).unwrap().id,
        image.id(),
        "latest, and there already"
    );
    let by_digest = registry.name(&format!("host/os@{digest}"));
    assert_eq!(engine.pull(&by_digest, &mut |_| {}).unwrap().id, image.id());
    fails(engine.pull(&registry.name("host/os:no"), &mut |_| {}), Code::ImageUnknown, &["host/os:no"]);
    fails(engine.pull(&registry.name("no/os"), &mut |_| {}), Code::ImageUnknown, &["no/os"]);
    let port = registry.port;
    drop(registry);
    let began = Instant::now();
    fails(engine.pull(&format!("127.0.0.1:{port}/a"), &mut |_| {}), Code::RegistryUnreachable, &["refused"]);
    assert!(began.elapsed() >= Duration::from_millis(1400), "it was tried four times");
}

#[test]
fn pulls_with_credentials() {
    needs!(can_run);
    let (dockerd, registry) = (Dockerd::start(None), Registry::start(true));
    let engine = engine(&dockerd);
    let image = Made::host_os("true", 0);
    registry.push("private", "1", &image);
    let name = registry.name("private:1");
    fails(engine.pull(&name, &mut |_| {}), Code::RegistryRefused, &["private"]);
    let config = |auth: &str| {
        let text = format!(r#"{{"auths":{{"127.0.0.1:{}":{{"auth":"{auth}"}}}}}}"#, registry.port);
        std::fs::write(dockerd.root().join("config.json"), text).unwrap();
    };
    config("Y29wYWw6d3Jvbmc=");
    fails(engine.pull(&name, &mut |_| {}), Code::RegistryRefused, &["private"]);
    config(AUTH);
    assert_eq!(engine.pull(&name, &mut |_| {}).unwrap().id, image.id());
}

#[test]
fn a_connection_that_breaks_in_the_middle_of_a_pull() {
    let test = "a_connection_that_breaks_in_the_middle_of_a_pull";
    if !prove::runs("engine", test) || !can_run(test) {
        return;
    }
    let (mut dockerd, registry) = (Dockerd::start(None), Registry::start(false));
    let image = Made::host_os("true", 8 << 20);
    registry.push("host/os", "1", &image);
    let proxy = Proxy::start(registry.port, 7, 2 << 20);
    let pulled = engine(&dockerd).pull(&proxy.name("host/os:1"), &mut |_| {}).unwrap();
    assert_eq!(pulled.id, image.id());
    assert!(proxy.cut.load(std::sync::atomic::Ordering::SeqCst) > 1, "it was cut");
    engine(&dockerd).remove_images().unwrap();

    // The engine goes in the middle, and comes back.
    let slow = Proxy::start(registry.port, 1000, 3 << 20);
    // For as long as dockerd may take to start.
    let engine = engine(&dockerd).with_retry(Retry { tries: 400, ..FAST });
    let name = slow.name("host/os:1");
    std::thread::scope(|scope| {
        let pulling = scope.spawn(|| engine.pull(&name, &mut |_| {}));
        std::thread::sleep(Duration::from_secs(1));
        dockerd.kill();
        slow.mend();
        dockerd.run();
        assert_eq!(pulling.join().unwrap().unwrap().id, image.id());
    });
}

#[test]
fn an_engine_that_goes_while_it_works() {
    needs!(can_run);
    let mut dockerd = Dockerd::start(None);
    let engine = engine(&dockerd);
    let image = Made::host_os("echo begun; while true; do busybox sleep 1; done", 0);
    let archive = dockerd.root().join("image.tar");
    image.save(&archive, &[TAG]);
    let loaded = engine.load(&archive::open(&archive).unwrap(), &mut |_| {}).unwrap();
    let (begun, wait) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let engine = &engine;
        let running =
            scope.spawn(move || engine.run_hooks(&loaded, &[], &mut |l| begun.send(l.to_owned()).unwrap()));
        assert_eq!(wait.recv_timeout(Duration::from_secs(300)).unwrap(), "begun");
        dockerd.kill();
        fails(running.join().unwrap(), Code::EngineUnreachable, &["hooks"]);
        assert!(engine.has_left_hooks(), "the container is left");
    });
    fails(
        engine.load(&archive::open(&archive).unwrap(), &mut |_| {}),
        Code::EngineUnreachable,
        &["image.tar"],
    );
    dockerd.run();
    engine.remove_containers().unwrap();
    engine.remove_images().unwrap();
}

#[test]
fn an_engine_that_is_killed_during_a_load_and_restarts() {
    needs!(can_run);
    let mut dockerd = Dockerd::start(None);
    // For as long as dockerd may take to start.
    let engine = engine(&dockerd).with_retry(Retry { tries: 400, ..FAST });
    let image = Made::host_os("true", 200 << 20);
    let archive = dockerd.root().join("image.tar");
    image.save(&archive, &[TAG]);
    let (half, there) = std::sync::mpsc::channel();
    // However fast it is, it does not take the whole archive.
    dockerd.freeze();
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let mut tries = 0;
            let loaded = engine.load(&archive::open(&archive).unwrap(), &mut |p: &Progress| {
                let is_part = p.stage == Stage::Load && p.total.is_some_and(|total| p.done < total);
                if is_part && tries == 0 {
                    tries = 1;
                    half.send(()).unwrap();
                }
            });
            (loaded, tries)
        });
        there.recv_timeout(Duration::from_secs(120)).expect("it is seen while it is under way");
        dockerd.kill();
        dockerd.run();
        let (loaded, tries) = loading.join().unwrap();
        assert_eq!((loaded.unwrap().id, tries), (image.id(), 1));
    });
}

#[test]
fn a_container_is_made_from_the_image_that_was_loaded_though_its_name_was_moved() {
    needs!(can_run);
    let dockerd = Dockerd::start(None);
    let engine = engine(&dockerd);
    let load = |hooks: &str| {
        let archive = dockerd.root().join("image.tar");
        Made::host_os(hooks, 0).save(&archive, &[TAG]);
        engine.load(&archive::open(&archive).unwrap(), &mut |_| {}).unwrap()
    };
    let container = |id: &str| -> serde_json::Value {
        let folder = dockerd.data().join("containers").join(id);
        serde_json::from_slice(&std::fs::read(folder.join("config.v2.json")).unwrap()).unwrap()
    };
    let ours = load("echo ours; exit 1");
    let made = container(&engine.create_hostapp(&ours).unwrap().id);
    assert_eq!((&made["Config"]["Image"], &made["Image"]), (&TAG.into(), &ours.id.as_str().into()));
    // Another process loads another image under the same name.
    let theirs = load("echo theirs; exit 2");
    assert_ne!(ours.id, theirs.id);
    let made = container(&engine.create_hostapp(&ours).unwrap().id);
    assert_eq!(made["Image"], ours.id.as_str());
    let mut said = Vec::new();
    assert_eq!(engine.run_hooks(&ours, &[], &mut |l| said.push(l.to_owned())).unwrap(), 1);
    assert_eq!(said, ["ours"]);
    let left = std::fs::read_dir(dockerd.data().join("containers")).unwrap().count();
    assert_eq!(left, 2, "those that were made from the wrong one are gone");
}

#[test]
fn what_a_registry_does_not_give_is_known_before_the_pull() {
    needs!(can_run);
    let (dockerd, registry) = (Dockerd::start(None), Registry::start(true));
    let engine = engine(&dockerd);
    let image = Made::host_os("true", 0);
    let digest = registry.push("host/os", "1", &image);
    let config = |auth: &str| {
        let text = format!(r#"{{"auths":{{"127.0.0.1:{}":{{"auth":"{auth}"}}}}}}"#, registry.port);
        std::fs::write(dockerd.root().join("config.json"), text).unwrap();
    };
    let name = |path: &str| registry.name(path);
    fails(engine.check_pullable(&name("host/os:1")), Code::RegistryRefused, &["host/os:1"]);
    config("Y29wYWw6d3Jvbmc=");
    fails(engine.check_pullable(&name("host/os:1")), Code::RegistryRefused, &["host/os:1"]);
    config(AUTH);
    // By plain HTTP, which the engine allows on the loopback interface.
    engine.check_pullable(&name("host/os:1")).unwrap();
    engine.check_pullable(&name(&format!("host/os@{digest}"))).unwrap();
    engine.check_pullable(&name(&format!("host/os:any@{digest}"))).unwrap();
    let other = format!("host/os@sha256:{}", "0a".repeat(32));
    for unknown in ["host/os:no", "host/os", "no/os:1", &other] {
        fails(engine.check_pullable(&name(unknown)), Code::ImageUnknown, &[unknown]);
    }
    // Nothing was pulled for it.
    assert_eq!(
        std::fs::read_dir(dockerd.data().join("overlay2"))
            .unwrap()
            .filter(|e| e.as_ref().unwrap().file_name() != "l")
            .count(),
        0
    );
    let port = registry.port;
    drop(registry);
    let began = Instant::now();
    let gone = format!("127.0.0.1:{port}/host/os:1");
    fails(engine.check_pullable(&gone), Code::RegistryUnreachable, &["refused"]);
    assert!(began.elapsed() >= Duration::from_secs(8), "it is given time to come back");
    fails(engine.check_pullable("nobody.invalid/os:1"), Code::RegistryUnreachable, &["nobody.invalid"]);
}

#[test]
fn a_page_for_people_is_judged_by_its_status() {
    needs!(can_run);
    let dockerd = Dockerd::start(None);
    let engine = engine(&dockerd);
    let (unknown, forbidden) = (Page::serve(404, None), Page::serve(403, None));
    fails(engine.check_pullable(&unknown.name("os:1")), Code::ImageUnknown, &["404"]);
    fails(engine.check_pullable(&forbidden.name("os:1")), Code::RegistryRefused, &["403"]);
    // A server that is too busy, or a network that wants a log-in, may give the image after some pauses.
    let registry = Registry::start(false);
    let image = Made::host_os("true", 0);
    registry.push("host/os", "1", &image);
    for status in [200, 429, 502, 503] {
        let busy = Page::serve(status, Some((2, registry.port)));
        engine.check_pullable(&busy.name("host/os:1")).unwrap();
        let pulled = engine.pull(&busy.name("host/os:1"), &mut |_| {});
        assert_eq!(pulled.unwrap().id, image.id(), "{status}");
        assert!(busy.is_used_up(), "{status}");
        engine.remove_images().unwrap();
    }
}

#[test]
fn a_slow_registry_is_not_one_that_cannot_be_reached() {
    needs!(can_run);
    let (dockerd, registry) = (Dockerd::start(None), Registry::start(false));
    let timeout = Timeouts { registry: Duration::from_secs(2), ..Timeouts::default() };
    let engine = engine(&dockerd).with_timeouts(timeout);
    let image = Made::host_os("true", 0);
    registry.push("host/os", "1", &image);
    let slow = Proxy::late(registry.port, Duration::from_secs(3));
    engine.check_pullable(&slow.name("host/os:1")).unwrap();
    assert_eq!(engine.pull(&slow.name("host/os:1"), &mut |_| {}).unwrap().id, image.id());
}

#[test]
fn a_slot_without_space() {
    needs!(can_run);
    let registry = Registry::start(false);
    let image = Made::host_os("true", 60 << 20);
    registry.push("host/os", "1", &image);
    let slot = Slot::new(48);
    let mut dockerd = Dockerd::start(Some(&slot.point.join("balena")));
    let engine = engine(&dockerd);
    let archive = dockerd.root().join("image.tar");
    image.save(&archive, &[TAG]);
    fails(
        engine.load(&archive::open(&archive).unwrap(), &mut |_| {}),
        Code::SlotFull,
        &["no space left on device"],
    );
    fails(
        engine.pull(&registry.name("host/os:1"), &mut |_| {}),
        Code::SlotFull,
        &["no space left on device"],
    );
    engine.remove_images().unwrap();
    let small = Made::host_os("true", 1 << 20);
    small.save(&archive, &[TAG]);
    assert_eq!(
        engine.load(&archive::open(&archive).unwrap(), &mut |_| {}).unwrap().id,
        small.id(),
        "the room is given back"
    );
    dockerd.kill();
}

/// A small ext4 on a loop device.
struct Slot {
    _dir: tempfile::TempDir,
    point: std::path::PathBuf,
}

impl Slot {
    fn new(mib: u64) -> Slot {
        let dir = tempfile::tempdir().unwrap();
        let (file, point) = (dir.path().join("disk"), dir.path().join("slot"));
        std::fs::File::create(&file).unwrap().set_len(mib << 20).unwrap();
        std::fs::create_dir(&point).unwrap();
        let run = |words: &[&str]| {
            let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
            assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        run(&["mke2fs", "-q", "-t", "ext4", file.to_str().unwrap()]);
        run(&["mount", "-o", "loop", file.to_str().unwrap(), point.to_str().unwrap()]);
        Slot { _dir: dir, point }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("-l").arg(&self.point).output();
    }
}
