//! The ways to reboot, with a clock of their own.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use copal::error::{Code, Effect};
use copal::sys::shutdown::ShutdownRefusal;
use copal::update::safe_reboot::{Times, Ways, reboot};

/// What happens, in order, where systemd answers so and no other work is under way.
fn story(systemd: &Result<(), ShutdownRefusal>) -> (Vec<String>, copal::error::Error) {
    story_while(systemd, || false)
}

/// The same, where an update or a verdict is under way.
fn story_while(
    systemd: &Result<(), ShutdownRefusal>,
    working: impl FnMut() -> bool,
) -> (Vec<String>, copal::error::Error) {
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
    let wait = |time: Duration| note(&format!("{} s", time.as_secs()));
    let e = reboot(ways, &Times::default(), working, || note("flush"), wait);
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

/// An orderly shutdown gives it five minutes; what kills every process must not come before them.
#[test]
fn a_reboot_by_force_waits_for_work_that_is_under_way() {
    let mut looks = 0;
    let (story, _) = story_while(&Ok(()), || {
        looks += 1;
        looks <= 200
    });
    assert_eq!(story[..3], ["flush", "systemd", "120 s"], "the first way is not kept back");
    assert!(story[3..203].iter().all(|s| s == "1 s"), "{story:?}");
    let rest = ["flush", "forced", "180 s", "flush", "kernel", "flush", "sysrq", "10 s"];
    assert_eq!(story[203..], rest);
}

#[test]
fn work_without_an_end_is_waited_for_once() {
    let (story, _) = story_while(&Ok(()), || true);
    let waited = story.iter().filter(|s| *s == "1 s").count();
    assert_eq!(waited, 330, "a job is killed after 300 s");
    assert!(story[3..333].iter().all(|s| s == "1 s"), "{story:?}");
    assert_eq!(story[333..336], ["flush", "forced", "180 s"]);
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
    let e = reboot(ways, &Times { timeouts, ..Times::default() }, || false, || {}, |_| {});
    assert!(e.message().ends_with("the kernel: nothing happened; sysrq: nothing happened"), "{e}");
}
