//! Another program changes an archive between its check and the end of its load.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use copal::engine::archive;
use copal::error::Code;

use crate::calls::{Bench, fails};

#[test]
fn an_archive_that_changes_is_not_taken_for_what_was_checked() {
    let changes: [fn(&Path); 3] = [
        |path| File::options().write(true).open(path).unwrap().set_len(100_000).unwrap(),
        |path| File::options().append(true).open(path).unwrap().write_all(b"more").unwrap(),
        |path| File::options().write(true).open(path).unwrap().write_all(b"other").unwrap(),
    ];
    for change in changes {
        let bench = Bench::new(|s| s);
        let path = bench.archive(300_000);
        // Between check and load.
        let opened = archive::open(&path).unwrap();
        change(&path);
        fails(bench.engine.load(&opened, &mut |_| {}), Code::ImageChanged, &["image.tar"]);
        assert!(bench.stub.uploads().is_empty());
        // During the load.
        let opened = archive::open(&path).unwrap();
        let mut changed = false;
        let loaded = bench.engine.load(&opened, &mut |_| {
            if !std::mem::replace(&mut changed, true) {
                change(&path);
            }
        });
        fails(loaded, Code::ImageChanged, &["image.tar"]);
    }
    // Another file of that name is another matter.
    let bench = Bench::new(|s| s);
    let path = bench.archive(300_000);
    let opened = archive::open(&path).unwrap();
    std::fs::write(path.with_extension("new"), b"another archive").unwrap();
    std::fs::rename(path.with_extension("new"), &path).unwrap();
    bench.engine.load(&opened, &mut |_| {}).unwrap();
    assert_eq!(bench.stub.uploads().last().unwrap().size, 300_000);
}
