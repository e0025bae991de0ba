//! What the service survives, and what survives it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bus::{DONE, Ended, JOB, MANAGER, Place, TOP, has, progress, until};
use crate::kit::cgroup::Pids;
use crate::kit::process::HANG;
use crate::kit::systemd::Answer;

pub(crate) fn signal(service: &Ended, signal: Signal) {
    kill(Pid::from_raw(service.0.id().cast_signed()), signal).unwrap();
}

pub(crate) fn wait(service: &mut Ended) -> std::process::ExitStatus {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = service.0.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < end, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An update that stands at 30 %.
fn halfway(place: &Place) -> String {
    place.says(&[&progress("pull", 50), &progress("unpack", 50), DONE, "exit 0"]);
    place.go(1);
    let job = place.update(&["sa{sv}", "a", "0"]).unwrap();
    until("it has begun", || place.property(&job, JOB, "Percent") == "30");
    job
}

#[test]
fn a_job_outlives_the_service_in_whichever_way_that_ends() {
    let Some(place) = Place::new("service ends") else { return };
    for (n, how) in [Signal::SIGKILL, Signal::SIGTERM].into_iter().enumerate() {
        let mut service = place.service(&[]);
        let job = halfway(&place);
        signal(&service, how);
        wait(&mut service);
        until("its name is free", || place.owner().is_none());
        // What it does meanwhile is not lost.
        place.go(2);
        std::thread::sleep(Duration::from_millis(200));
        let mut service = place.service(&[]);
        assert_eq!(place.property(&job, JOB, "State"), "running", "{how}");
        assert_eq!(place.property(&job, JOB, "Percent"), "70");
        assert!(place.update(&["sa{sv}", "b", "0"]).unwrap_err().contains("[busy]"));
        let watch = place.watch();
        place.go(9);
        watch.wait_for(&format!("JobRemoved (uint32 {}, objectpath '{job}', 0, '')", n + 1));
        assert_eq!(place.property(&job, JOB, "State"), "succeeded");
        signal(&service, Signal::SIGTERM);
        wait(&mut service);
        until("its name is free", || place.owner().is_none());
    }
    assert_eq!(place.requests().len(), 2);
    assert_eq!(place.read("signals"), "", "nobody has ended a job");
}

#[test]
fn a_stop_answers_the_call_that_came_before_and_waits_for_nothing_else() {
    let Some(place) = Place::new("stop") else { return };
    // As systemd sees it: an orderly end.
    let mut service = place.service(&[]);
    signal(&service, Signal::SIGTERM);
    assert_eq!(format!("{:?}", wait(&mut service)), "ExitStatus(unix_wait_status(0))");
    until("its name is free", || place.owner().is_none());

    std::fs::create_dir_all(place.root().join("mnt/boot")).unwrap();
    std::fs::write(place.root().join("mnt/boot/balena-image-flasher"), "").unwrap();
    let mut service = place.service(&[]);
    place.says(&[r#"{"event":"result","version":1,"ok":true,"plan":{"target":"/dev/x"}}"#, "exit 0"]);
    place.go(0);
    let mut plan =
        place.busctl(&["call", "--timeout=60", "io.balena.Copal1", TOP, MANAGER, "Plan", "a{sv}", "0"]);
    let plan = plan.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the plan is being made", || place.requests().len() == 1);
    signal(&service, Signal::SIGTERM);
    until("its name is free", || place.owner().is_none());
    place.go(9);
    let out = plan.wait_with_output().unwrap();
    assert_eq!(format!("{:?}", wait(&mut service)), "ExitStatus(unix_wait_status(0))");
    let (said, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.contains("/dev/x"), "{said}{error}");
}

#[test]
fn a_job_that_ended_without_a_service_is_known_afterwards() {
    let Some(place) = Place::new("ended meanwhile") else { return };
    let mut service = place.service(&[]);
    let job = halfway(&place);
    signal(&service, Signal::SIGKILL);
    wait(&mut service);
    place.go(9);
    std::thread::sleep(Duration::from_millis(500));
    let _service = place.service(&[]);
    assert_eq!(place.property(&job, JOB, "State"), "succeeded");
    assert!(place.property(&job, JOB, "Result").contains("image"));
}

#[test]
fn a_job_of_an_earlier_service_can_be_cancelled() {
    let Some(place) = Place::new("cancel adopted") else { return };
    let mut service = place.service(&[]);
    let job = halfway(&place);
    signal(&service, Signal::SIGKILL);
    wait(&mut service);
    until("its name is free", || place.owner().is_none());
    let _service = place.service(&[]);
    place.call(&job, JOB, "Cancel", &[]).unwrap();
    place.wait_for_state(&job, "cancelled");
    assert_eq!(place.read("signals"), "TERM\n");
    assert!(place.property(&job, JOB, "Error").contains(r#""exit" "4""#));
}

#[test]
fn a_job_outlives_its_client() {
    let Some(place) = Place::new("client ends") else { return };
    let _service = place.service(&[]);
    place.says(&[&progress("pull", 50), DONE, "exit 0"]);
    place.go(1);
    // It follows the job, and is killed.
    let script = format!(
        "import subprocess, time\nsubprocess.run(['busctl', '--address={}', 'call', 'io.balena.Copal1', '{TOP}', \
         '{MANAGER}', 'Update', 'sa{{sv}}', 'a', '0'], check=True)\nopen('{}', 'w').close()\ntime.sleep(600)",
        place.address(),
        place.at("called").display()
    );
    let mut client = Ended(Command::new("python3").args(["-c", &script]).spawn().unwrap());
    until("it has called", || place.at("called").exists());
    client.0.kill().unwrap();
    client.0.wait().unwrap();
    let job = "/io/balena/Copal1/job/1";
    assert_eq!(place.property(job, JOB, "State"), "running");
    place.go(9);
    place.wait_for_state(job, "succeeded");
}

#[test]
fn a_bus_that_restarts_finds_the_job_at_its_place() {
    let Some(mut place) = Place::new("bus restarts") else { return };
    let mut service = place.service(&[]);
    let job = halfway(&place);
    place.stop_bus();
    place.go(2);
    std::thread::sleep(Duration::from_millis(400));
    place.start_bus();
    until("the service is back", || place.owner().is_some());
    assert!(service.0.try_wait().unwrap().is_none(), "it is the same one");
    assert_eq!(place.property(&job, JOB, "Percent"), "70");
    let watch = place.watch();
    place.go(9);
    watch.wait_for("JobRemoved");
    assert_eq!(place.property(&job, JOB, "State"), "succeeded");
    // Without a job there is nothing to come back for.
    place.stop_bus();
    wait(&mut service);
}

/// The service notices the lost bus only when it sends the end of the job.
#[test]
fn a_service_with_news_for_a_lost_bus_ends() {
    let Some(mut place) = Place::new("news for a lost bus") else { return };
    let mut service = place.service(&["--idle", "600"]);
    halfway(&place);
    signal(&service, Signal::SIGSTOP);
    place.go(9);
    until("the job has ended", || place.root().join("run/copal/job-1.end").exists());
    place.stop_bus();
    // Longer than the service waits between two checks of a job.
    std::thread::sleep(Duration::from_secs(1));
    signal(&service, Signal::SIGCONT);
    assert!(wait(&mut service).success());
}

/// A reading of the device takes longer than the bus waits for its clients.
#[test]
fn a_slow_medium_delays_the_state_and_not_the_service() {
    let Some(place) = Place::new("slow medium") else { return };
    if !has("slow medium", &["strace"]) {
        return;
    }
    let mut command = Command::new("strace");
    command.args(["-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=openat", "-e"]);
    command.arg("inject=openat:delay_enter=6000000").arg("-P").arg(place.root().join("sys/block"));
    command.arg(env!("CARGO_BIN_EXE_copal"));
    let mut service = place.service_of(command, &["--idle", "600"]);
    let began = Instant::now();
    assert_eq!(place.property(TOP, MANAGER, "Phase"), "");
    assert!(began.elapsed() > Duration::from_secs(1), "the medium is not slow: {:?}", began.elapsed());
    let job = place.update(&["sa{sv}", "a", "0"]).unwrap();
    place.wait_for_state(&job, "succeeded");
    signal(&service, Signal::SIGTERM);
    wait(&mut service);
}

#[test]
fn it_ends_when_idle_and_the_next_call_starts_it() {
    let Some(place) = Place::new("idle") else { return };
    // By the bus: nobody has started it.
    let status = place.call(TOP, MANAGER, "Status", &[]).unwrap();
    assert!(status.contains("copal"), "{status}");
    assert_eq!(place.read("starts").lines().count(), 1);
    // A call keeps it. On a machine with much else to do, it takes some time until the calls are close enough.
    let begun = Instant::now();
    let kept = std::iter::repeat(()).take_while(|()| begun.elapsed() < HANG).any(|()| {
        place.property(TOP, MANAGER, "Version");
        let (owner, began, mut longest) = (place.owner(), Instant::now(), Duration::ZERO);
        while began.elapsed() < Duration::from_secs(2) {
            let call = Instant::now();
            place.property(TOP, MANAGER, "Version");
            std::thread::sleep(Duration::from_millis(100));
            longest = longest.max(call.elapsed());
        }
        let in_time = longest < Duration::from_millis(400);
        assert!(!in_time || owner.is_some() && place.owner() == owner, "it ended between calls: {longest:?}");
        in_time
    });
    assert!(kept, "this machine is too slow");
    // A job keeps it.
    let job = halfway(&place);
    let owner = place.owner().unwrap();
    let starts = place.read("starts").lines().count();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(place.owner(), Some(owner), "a job needs it");
    place.go(9);
    until("it has ended", || place.owner().is_none());
    // The last job is still there for whoever comes late.
    assert_eq!(place.property(&job, JOB, "State"), "succeeded");
    assert_eq!(place.read("starts").lines().count(), starts + 1);
    assert_eq!(place.update(&["sa{sv}", "a", "0"]).unwrap(), "/io/balena/Copal1/job/2");
}

#[test]
fn no_call_is_lost_while_it_ends() {
    let Some(place) = Place::new("idle race") else { return };
    // Around the moment in which it ends, from before it to behind it.
    for n in 0..12 {
        place.property(TOP, MANAGER, "Version");
        std::thread::sleep(Duration::from_millis(940 + n * 20));
        place.call(TOP, MANAGER, "Status", &[]).unwrap();
    }
    assert!(place.read("starts").lines().count() > 1, "it never ended");
}

/// systemd may take longer to start a job than an idle service stays.
#[test]
fn a_call_that_starts_a_job_is_answered_before_it_ends() {
    let Some(place) = Place::new("idle start") else { return };
    let _service = place.service(&["--idle", "1"]);
    place.systemd.answer(Answer::Silence);
    let e = place.update(&["sa{sv}", "a", "0"]).unwrap_err();
    assert!(e.contains("[bus-unreachable]"), "{e}");
}

#[test]
fn without_a_bus_it_says_so() {
    let Some(mut place) = Place::new("no bus") else { return };
    place.stop_bus();
    let out = Command::new(env!("CARGO_BIN_EXE_copal"))
        .args(["daemon", "--root"])
        .arg(place.root())
        .env("DBUS_SYSTEM_BUS_ADDRESS", place.address())
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(3));
    assert!(String::from_utf8(out.stderr).unwrap().contains("[bus-unreachable]"));
    place.start_bus();
    let _service = place.service(&[]);
    let out = Command::new(env!("CARGO_BIN_EXE_copal"))
        .args(["daemon", "--root"])
        .arg(place.root())
        .env("DBUS_SYSTEM_BUS_ADDRESS", place.address())
        .output()
        .unwrap();
    assert!(String::from_utf8(out.stderr).unwrap().contains("another program has that name"));
}

#[test]
fn it_serves_on_the_oldest_kernel() {
    let Some(place) = Place::new("the oldest kernel") else { return };
    place.put("old_kernel.py", crate::kit::old_kernel::SCRIPT);
    let mut command = Command::new("python3");
    command.arg(place.at("old_kernel.py")).arg(crate::kit::old_kernel::program());
    let mut service = place.service_of(command, &[]);
    let filtered = std::fs::read_to_string(format!("/proc/{}/status", service.0.id())).unwrap();
    assert!(filtered.lines().any(|l| l.split_whitespace().eq(["Seccomp:", "2"])), "{filtered}");
    let watch = place.watch();
    let job = halfway(&place);
    place.go(9);
    watch.wait_for(&format!("JobRemoved (uint32 1, objectpath '{job}', 0, '')"));
    assert_eq!(place.property(&job, JOB, "State"), "succeeded");
    signal(&service, Signal::SIGTERM);
    wait(&mut service);
}

#[test]
fn a_record_that_is_no_small_file_does_not_keep_it_from_its_work() {
    let Some(place) = Place::new("record") else { return };
    let record = place.root().join("run/copal/job.json");
    std::fs::create_dir_all(record.parent().unwrap()).unwrap();
    nix::unistd::mkfifo(&record, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let mut service = place.service(&[]);
    signal(&service, Signal::SIGKILL);
    wait(&mut service);
    until("its name is free", || place.owner().is_none());
    std::fs::remove_file(&record).unwrap();
    std::fs::File::create(&record).unwrap().set_len(1 << 40).unwrap();
    let service = place.service(&[]);
    let job = place.update(&["sa{sv}", "a", "0"]).unwrap();
    place.wait_for_state(&job, "succeeded");
    drop(service);
    assert!(place.read("stderr").contains("the last job is unknown"), "{}", place.read("stderr"));
}

#[test]
fn a_time_without_new_threads_ends_no_service() {
    let Some(place) = Place::new("no threads") else { return };
    let Some(group) = Pids::new("no threads") else { return };
    let mut service = place.service_of(group.command(env!("CARGO_BIN_EXE_copal")), &[]);
    let status = || place.call(TOP, MANAGER, "Status", &[]);
    status().unwrap();
    // Not even for the one that reads the device, nor for those that wait for systemd.
    group.limit("1");
    until("a refusal", || status().is_err());
    let refused = place.update(&["sa{sv}", "a", "0"]).unwrap_err();
    assert!(refused.contains("[io]"), "{refused}");
    assert!(service.0.try_wait().unwrap().is_none(), "it has ended: {}", place.read("stderr"));
    group.limit("max");
    status().unwrap();
    let job = place.update(&["sa{sv}", "a", "0"]).unwrap();
    place.wait_for_state(&job, "succeeded");
    signal(&service, Signal::SIGTERM);
    wait(&mut service);
}
