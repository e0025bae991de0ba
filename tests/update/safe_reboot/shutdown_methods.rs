//! The ways to reboot, with a clock of their own.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use copal::error::{Code, Effect};
use copal::sys::shutdown::ShutdownRefusal;
use copal::update::safe_reboot::{Times, Ways, reboot};

/// What happens, in order, where systemd answers so.
fn story(systemd: &Result<(), ShutdownRefusal>) -> (Vec<String>, copal::error::Error) {
    let story = Arc::new(Mutex::new(Vec::new()));
    let note = |what: &str| story.lock().unwrap().push(what.to_owned());
    let in_kernel = story.clone();
    let ways = Ways {
        systemd: Box::new(|| {
            note("systemd");
            systemd.clone()
        }),
        forced: Box::new(|| {
            note("forced");
            systemd.clone()
        }),
        kernel: Box::new(move || {
            in_kernel.lock().unwrap().push("kernel".to_owned());
            Err(io::Error::from_raw_os_error(1))
        }),
        sysrq: Box::new(|| {
            note("sysrq");
            Ok(())
        }),
    };
    let e = reboot(ways, &Times::default(), || note("flush"), |time| note(&format!("{} s", time.as_secs())));
    assert_eq!((e.code(), e.effect()), (Code::RebootFailed, Effect::Completed));
    let story = story.lock().unwrap().clone();
    (story, e)
}

#[test]
fn each_way_has_its_time_and_flushed_disks() {
    let (story, e) = story(&Ok(()));
    let wanted = [
        "flush", "systemd", "120 s", "flush", "forced", "180 s", "flush", "kernel", "flush", "sysrq", "10 s",
    ];
    assert_eq!(story, wanted);
    assert!(e.message().contains("the kernel: Operation not permitted"), "{e}");
    // From the beginning.
    let [gently, by_force, in_kernel, _] = Times::default().timeouts;
    let begins = [gently, gently + by_force, gently + by_force + in_kernel];
    assert_eq!(begins, [120, 300, 600].map(Duration::from_secs));
}

#[test]
fn who_refuses_is_not_waited_for() {
    let wanted = ["flush", "systemd", "flush", "forced", "flush", "kernel", "flush", "sysrq", "10 s"];
    for answer in [ShutdownRefusal::NotHere, ShutdownRefusal::Failed("no bus".into())] {
        assert_eq!(story(&Err(answer)).0, wanted);
    }
}

#[test]
fn a_kernel_that_hangs_is_left() {
    let ways = Ways {
        systemd: Box::new(|| Err(ShutdownRefusal::NotHere)),
        forced: Box::new(|| Err(ShutdownRefusal::NotHere)),
        kernel: Box::new(|| {
            loop {
                std::thread::park();
            }
        }),
        sysrq: Box::new(|| Ok(())),
    };
    let timeouts = [Duration::from_millis(100); 4];
    let e = reboot(ways, &Times { timeouts, ..Times::default() }, || {}, |_| {});
    assert!(e.message().ends_with("the kernel: nothing happened; sysrq: nothing happened"), "{e}");
}
