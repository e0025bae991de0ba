//! Plain files as targets.

use super::*;

#[test]
fn a_named_path_that_is_no_target() {
    let mut t = machine();
    t.folder("/data").file("/data/plain", "12345").mount("0:9", "/proc", "proc", "proc", "rw");
    t.link("/data/dangling", "new").link("/data/lost", "no/folder").link("/data/link", "/data/plain");
    t.file("/proc/trigger", "");
    let facts = Facts::gather(&t.paths()).unwrap();
    let named = |p: &str| select::named(Path::new(p), &facts, None, IMAGE);
    for bad in [
        "/data",
        "/data/",
        "/",
        "/none/x",
        "/data/lost",
        "/dev/sdz",
        "/proc/trigger",
        "/data/plain/x",
        "/data/x/",
    ] {
        assert_eq!(named(bad).unwrap_err().code(), Code::TargetMissing, "{bad}");
    }
    for (good, size) in [("/data/plain", 5), ("/data/link", 5), ("/data/dangling", 0), ("/data/new.img", 0)] {
        let target = named(good).unwrap();
        assert_eq!((target.kind, target.size, target.dev), (TargetKind::File, size, None), "{good}");
        assert_eq!((&target.name, &target.node), (&PathBuf::from(good), &PathBuf::from(good)));
    }
}

#[test]
fn the_image_is_never_its_own_target() {
    let mut t = machine();
    t.file("/data/image", "12345").link("/data/link", "image").loopback(
        "loop0",
        "7:0",
        8 * GIB,
        "/data/image",
    );
    std::fs::hard_link(t.paths().at("/data/image"), t.paths().at("/data/hard")).unwrap();
    let facts = Facts::gather(&t.paths()).unwrap();
    let image = t.paths().at("/data/hard");
    for name in ["/data/image", "/data/link", "/data/hard", "/dev/loop0"] {
        let e = select::named(Path::new(name), &facts, Some(&image), IMAGE).unwrap_err();
        assert_eq!(e.code(), Code::TargetIsImage, "{name}: {e}");
    }
}

#[test]
fn a_file_in_use_is_refused() {
    let mut t = machine();
    t.file("/data/swap", "").file("/data/disk", "").file("/data/idle", "").swap("/data/swap", "file");
    t.link("/data/s", "swap").loopback("loop0", "7:0", GIB, "/data/disk").loopback(
        "loop1",
        "7:1",
        GIB,
        "/data/idle",
    );
    t.mount("7:0", "/x", "ext4", "/dev/loop0", "rw");
    let facts = Facts::gather(&t.paths()).unwrap();
    let named = |p: &str| select::named(Path::new(p), &facts, None, IMAGE);
    assert_eq!(named("/data/s").unwrap_err().code(), Code::TargetSwap);
    let e = named("/data/disk").unwrap_err();
    assert_eq!(e.code(), Code::TargetMounted);
    assert!(e.message().contains("loop0") && e.message().contains("/x"), "{e}");
    named("/data/idle").unwrap();
}
