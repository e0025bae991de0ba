//! What is told beside the work: the dashboard's program, and an LED.

use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use copal::config::paths::Paths;
use copal::progress::led::{Led, Pattern};
use copal::progress::sink::{Due, Sink, Snapshot};
use copal::progress::status::Status;
use copal::progress::{self, Progress, Stage, cloud, cloud::Cloud};

use crate::kit::alone::{in_own_process, is_alone};
use crate::kit::log::logged;
use crate::kit::needs::test_name;
use crate::kit::process::{HANG, Root, runs, soon};

const PROGRAM: &str = "/usr/bin/resin-device-progress";

/// A program that records its calls, begin and end, with the time in ms, and does `more` in between.
fn reporter(root: &Root, more: &str) {
    let log = root.at("calls");
    let text = format!(
        "#!/bin/bash\necho \"begin $(date +%s%3N) $# $*\" >>{0}\n{more}\necho \"end $(date +%s%3N)\" >>{0}\n",
        log.display()
    );
    root.program(PROGRAM, &text);
}

/// Time in ms, and arguments.
fn calls(root: &Root) -> Vec<(u64, String)> {
    let text = root.read("calls");
    let begins = text.lines().filter_map(|l| l.strip_prefix("begin ")?.split_once(' '));
    begins.map(|(at, args)| (at.parse().unwrap(), args.to_owned())).collect()
}

#[test]
fn the_dashboard_is_notified_one_at_a_time_and_not_too_often() {
    let root = Root::new();
    reporter(&root, "echo chatter; echo more >&2; sleep 0.5; exit 1");
    let cloud = Cloud::new(&Paths::new(root.path()), true);
    let meter = progress::for_journal();
    meter.also(cloud.sink());
    let began = Instant::now();
    meter.begin(Stage::Write, Some(1000));
    while began.elapsed() < Duration::from_millis(3800) {
        meter.advance(1);
        std::thread::sleep(Duration::from_millis(10));
    }
    meter.finish();
    cloud.report(100, cloud::POST_PROVISIONING);
    cloud.finish(Duration::from_secs(25));
    let calls = calls(&root);
    let told: Vec<&str> = calls.iter().map(|(_, args)| args.as_str()).collect();
    assert_eq!(told[0], "4 --percentage 0 --state Starting flashing balenaOS on internal media");
    assert!(told[1].ends_with(" --state Flashing balenaOS on internal media"), "{told:?}");
    assert_eq!(*told.last().unwrap(), "4 --percentage 100 --state Post-Provisioning");
    assert!(told.len() <= 4, "{told:?}");
    assert!(calls.windows(2).all(|w| w[1].0 - w[0].0 >= 1500), "{calls:?}");
    // It failed each time (`exit 1`), and that was nothing to anybody.
    assert!(!root.read("calls").contains("end "));
}

#[test]
fn a_dashboard_that_hangs_is_left() {
    let root = Root::new();
    reporter(
        &root,
        &format!("echo $$ >{}; trap '' TERM; sleep 1000 & wait; sleep 1000", root.at("pid").display()),
    );
    let cloud = Cloud::new(&Paths::new(root.path()), true);
    let began = Instant::now();
    cloud.report(0, cloud::STARTING);
    assert!(began.elapsed() < HANG);
    assert!(soon(|| !root.read("pid").is_empty()));
    cloud.finish(Duration::from_secs(25));
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(10) && took < HANG, "{took:?}");
    assert!(soon(|| !runs(&root.read("pid"))));
}

#[test]
fn without_a_fleet_or_the_program_no_program_is_called() {
    let root = Root::new();
    reporter(&root, "");
    let cloud = Cloud::new(&Paths::new(root.path()), false);
    cloud.report(100, cloud::NO_DEVICE);
    cloud.finish(Duration::from_secs(5));
    assert!(calls(&root).is_empty());
    let root = Root::new();
    let cloud = Cloud::new(&Paths::new(root.path()), true);
    cloud.report(100, cloud::NOT_SUPPORTED);
    cloud.finish(Duration::from_secs(5));
}

/// In a process of its own: the worker's log is that of the whole program.
#[test]
fn without_a_fleet_the_log_says_it() {
    if !is_alone() {
        let text = in_own_process(test_name!(), &[]);
        let start = "[resin-init-flasher][INFO] Unprovisioned: ";
        let lines: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix(start)).collect();
        assert_eq!(
            lines,
            [
                "Percentage 0, status Flashing balenaOS on internal media",
                "Percentage 5, status Flashing balenaOS on internal media",
                "Percentage 10, status Flashing balenaOS on internal media",
                "Percentage 100, status Post-Provisioning",
            ],
            "{text}"
        );
        return;
    }
    copal::sys::log::start(copal::sys::log::Voice::Legacy("resin-init-flasher"));
    let root = Root::new();
    let cloud = Cloud::new(&Paths::new(root.path()), false);
    for percent in [0, 1, 4, 5, 6, 9, 10, 3] {
        cloud.report(percent, cloud::FLASHING);
        cloud.finish(Duration::from_secs(5));
    }
    cloud.report(100, cloud::POST_PROVISIONING);
    cloud.finish(Duration::from_secs(5));
}

#[test]
fn a_service_reports_its_state_and_its_log() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let keep = told.clone();
    let ((), log) = logged(|| {
        let meter = progress::for_journal();
        meter.also(Box::new(Status::new(move |text: &str| keep.lock().unwrap().push(text.to_owned()))));
        meter.begin(Stage::Verify, Some(1 << 20));
        for _ in 0..4 {
            pause(1100);
            meter.advance(1 << 18);
        }
        meter.finish();
        meter.close();
    });
    let told = told.lock().unwrap();
    assert_eq!(told[0], "verify: 1.0 MiB to do");
    assert!(told.last().unwrap().starts_with("verify: done, 1.0 MiB in 0:"), "{told:?}");
    // At most one a second between the two.
    assert!((3..=8).contains(&told.len()), "{told:?}");
    assert!(told.iter().any(|state| state.starts_with("50 %") && state.contains("; verify: ")), "{told:?}");
    // What is between the two is logged by a thread of the meter's own, which is not captured here.
    assert!(log.len() >= 2 && log[0] == "INFO verify: 1.0 MiB to do", "{log:#?}");
    assert!(log.last().unwrap().starts_with("INFO verify: done, 1.0 MiB in 0:"), "{log:#?}");
}

/// Takes only what comes after it was added.
#[test]
fn a_sink_that_comes_late_is_served_at_once() {
    struct Count(Arc<Mutex<u32>>);
    impl Sink for Count {
        fn show(&mut self, _: &Snapshot) -> Due {
            *self.0.lock().unwrap() += 1;
            Due { bytes: u64::MAX, after: Duration::MAX }
        }
    }
    let count = Arc::new(Mutex::new(0));
    let ((), _) = logged(|| {
        let meter = progress::for_journal();
        meter.begin(Stage::Write, Some(1 << 30));
        meter.also(Box::new(Count(count.clone())));
        (0..10).for_each(|_| meter.advance(1));
        assert_eq!(*count.lock().unwrap(), 1);
        meter.finish();
    });
    assert_eq!(*count.lock().unwrap(), 2);
}

// --- the LED ---

/// An LED whose writes can be read one after the other.
struct Recorded(std::fs::File);

impl Recorded {
    fn new(root: &Root) -> Self {
        let path = root.at("led");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
        Recorded(std::fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap())
    }

    fn take(&mut self) -> String {
        let mut bytes = [0; 4096];
        let n = self.0.read(&mut bytes).unwrap_or(0);
        String::from_utf8(bytes[..n].to_vec()).unwrap()
    }
}

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

#[test]
fn slow_fast_solid_and_hands_off() {
    let root = Root::new();
    let mut file = Recorded::new(&root);
    let led = Led::at(&root.at("led"), &Paths::new(root.path())).unwrap();
    pause(50);
    assert_eq!(file.take(), "");
    led.show(Pattern::Slow);
    pause(2500);
    let slow = file.take();
    assert!(slow.len() <= 3 && slow.starts_with("10"), "{slow}");
    led.show(Pattern::Slow);
    led.show(Pattern::Solid);
    assert!(file.take().ends_with('1'));
    pause(1200);
    assert_eq!(file.take(), "");
    led.fail(Duration::from_millis(2100));
    let fast = file.take();
    assert!((5..=24).contains(&fast.len()) && fast.starts_with("10101"), "{fast}");
    led.show(Pattern::HandsOff);
    file.take();
    led.show(Pattern::Slow);
    let began = Instant::now();
    led.fail(Duration::from_secs(1000));
    assert!(began.elapsed() < HANG);
    pause(200);
    assert_eq!(file.take(), "");
}

#[test]
fn it_blinks_from_the_first_write_on() {
    let root = Root::new();
    let mut file = Recorded::new(&root);
    let led = Led::at(&root.at("led"), &Paths::new(root.path())).unwrap();
    let ((), _) = logged(|| {
        let meter = progress::for_journal();
        meter.also(led.sink());
        meter.begin(Stage::Check, None);
        pause(50);
        assert_eq!(file.take(), "");
        meter.begin(Stage::Write, None);
        assert!(soon(|| file.take() == "1"));
    });
}

#[test]
fn the_configured_led_is_used_and_a_broken_one_is_nothing() {
    let root = Root::new();
    let conf = |text: &str| {
        root.program("/etc/balena-supervisor/supervisor.conf", text);
        Led::configured(&Paths::new(root.path()))
    };
    std::fs::write(root.at("led"), "-").unwrap();
    let value = || root.read("led");
    for off in ["", "LED_FILE=\n", "LED_FILE=/dev/null\n", "LED_FILE=$(x)\n", "A=1\n"] {
        conf(off).show(Pattern::Solid);
    }
    Led::configured(&Paths::new("/no/such/root")).show(Pattern::Solid);
    Led::at(std::path::Path::new("/dev/null"), &Paths::default()).unwrap().show(Pattern::Solid);
    pause(100);
    assert_eq!(value(), "-");
    conf("SUPERVISOR_IMAGE=a/b\nLED_FILE=/led\n").show(Pattern::Solid);
    // At once: the program may end now.
    assert_eq!(value(), "1");

    // Never made where it is not.
    let led = Led::at(&root.at("none"), &Paths::new(root.path())).unwrap();
    led.show(Pattern::Fast);
    pause(300);
    led.show(Pattern::HandsOff);
    assert!(!root.at("none").exists());
}

#[test]
fn the_command_line_names_an_led() {
    let root = Root::new();
    std::fs::write(root.at("image"), vec![7_u8; 3 << 20]).unwrap();
    std::fs::write(root.at("led"), "").unwrap();
    let flash = |target: &str| {
        let began = Instant::now();
        let status = std::process::Command::new(env!("CARGO_BIN_EXE_copal"))
            .args(["flash", "--force-raw", "--image"])
            .env("COPAL_LED_DIRECTORY", root.path())
            .arg(root.at("image"))
            .arg("--target")
            .arg(target)
            .arg("--led")
            .arg(root.at("led"))
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        (status.success(), began.elapsed())
    };
    assert!(flash(root.at("disk").to_str().unwrap()).0);
    assert_eq!(root.read("led"), "1");
    // Refused: nothing was begun, nothing is shown, and nobody is kept waiting.
    std::fs::write(root.at("led"), "-").unwrap();
    let (success, _) = flash("/no/such/folder/disk");
    assert!(!success);
    assert_eq!(root.read("led"), "-");
}
