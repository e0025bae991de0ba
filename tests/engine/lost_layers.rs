//! Layers without an image, in the store of a real dockerd: how they arise, and that copal neither leaves nor uses them.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::kit::dockerd::Dockerd;
use crate::kit::image_archive::{Made, tar_of};
use crate::kit::needs::needs;
use crate::real::{TAG, can_run, engine};

#[test]
fn layers_of_a_cancelled_load_are_removed_when_the_engine_lets_them_go() {
    needs!(can_run);
    let dockerd = Dockerd::start(None);
    let engine = engine(&dockerd);
    // The first layer is there at once; the engine is at the second one for a while.
    let large = vec![7; 400 << 20];
    let image = Made::new(vec![
        tar_of(&[("small", 0o644, b"small".as_slice())]),
        tar_of(&[("large", 0o644, large.as_slice())]),
    ]);
    let archive = image.archive(&[TAG]);
    let mut load = UnixStream::connect(dockerd.socket()).unwrap();
    write!(load, "POST /images/load HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", archive.len())
        .unwrap();
    load.write_all(&archive).unwrap();
    let records = dockerd.data().join("image/overlay2/layerdb/sha256");
    let left = || std::fs::read_dir(&records).map_or(0, Iterator::count);
    let began = Instant::now();
    while left() == 0 {
        assert!(began.elapsed() < Duration::from_secs(300), "{}", dockerd.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(load);
    engine.remove_images().unwrap();
    engine.remove_lost_layers(dockerd.data()).unwrap();
    assert_eq!(left(), 0);
}

/// A power cut during a load: moby has flushed its records of the layers, and not their files.
#[test]
fn layers_that_a_power_cut_has_left_damaged_are_not_used_again() {
    needs!(can_run);
    let mut dockerd = Dockerd::start(None);
    let archive = dockerd.root().join("image.tar");
    let image = Made::host_os("echo whole", 1 << 20);
    image.save(&archive, &[TAG]);
    let load = |dockerd: &Dockerd| {
        engine(dockerd).load(&copal::engine::archive::open(&archive).unwrap(), &mut |_| {}).unwrap()
    };
    let hooks = |dockerd: &Dockerd| {
        let mut said = Vec::new();
        let ended = engine(dockerd).run_hooks(&load(dockerd), &[], &mut |l| said.push(l.to_owned()));
        (ended.ok(), said)
    };
    assert_eq!(hooks(&dockerd), (Some(0), vec!["whole".to_owned()]));
    let engine_here = engine(&dockerd);
    engine_here.remove_containers().unwrap();
    engine_here.remove_images().unwrap();
    engine_here.remove_lost_layers(dockerd.data()).unwrap();
    load(&dockerd);

    dockerd.kill();
    let store = dockerd.data().join("image/overlay2");
    let layers = |records: &str| std::fs::read_dir(store.join(records)).unwrap().count();
    assert_eq!(layers("layerdb/sha256"), 2);
    std::fs::remove_dir_all(store.join("imagedb")).unwrap();
    std::fs::remove_file(store.join("repositories.json")).unwrap();
    for layer in std::fs::read_dir(dockerd.data().join("overlay2")).unwrap() {
        let hooks = layer.unwrap().path().join("diff/bin/hostapp-update-hooks");
        if hooks.exists() {
            std::fs::write(hooks, "").unwrap();
        }
    }
    dockerd.run();
    // The engine itself takes them for whole.
    let (status, said) = hooks(&dockerd);
    assert!(status == Some(1) && said.iter().any(|l| l.contains("exec format error")), "{status:?} {said:?}");
    let engine_here = engine(&dockerd);
    engine_here.remove_containers().unwrap();

    dockerd.kill();
    std::fs::remove_dir_all(store.join("imagedb")).unwrap();
    // Another power cut, while the engine removed a layer: it does not know it any more, and leaves it.
    let removing = store.join("layerdb/sha256").join("0".repeat(64) + "-1-removing");
    std::fs::create_dir(&removing).unwrap();
    std::fs::write(removing.join("diff"), format!("sha256:{}", "0".repeat(64))).unwrap();
    dockerd.run();
    let engine_here = engine(&dockerd);
    engine_here.remove_images().unwrap();
    assert_eq!(layers("layerdb/sha256"), 3);
    engine_here.remove_lost_layers(dockerd.data()).unwrap();
    assert_eq!(layers("layerdb/sha256"), 1);
    assert_eq!(hooks(&dockerd), (Some(0), vec!["whole".to_owned()]));
}
