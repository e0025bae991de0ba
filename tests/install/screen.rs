//! What a person sees who stands beside the device: the screen is a pseudo-terminal in the place of the first virtual terminal.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::kit::needs::needs;
use crate::rig::{Rig, can_run};
use crate::stderr;

/// A terminal that keeps all that is written to it.
struct Terminal {
    /// Holds it open.
    script: Child,
    node: String,
    shown: PathBuf,
}

impl Terminal {
    fn new(rig: &Rig, columns: u16) -> Terminal {
        let (name, shown) = (rig.beside("terminal"), rig.beside("shown"));
        let hold = format!(
            "stty cols {columns} rows 24 -opost; tty >{0}.new && mv {0}.new {0} && exec sleep 600",
            name.display()
        );
        let script = Command::new("script")
            .args(["-qefc", &hold])
            .arg(&shown)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while !name.exists() {
            assert!(Instant::now() < end, "there is no terminal");
            std::thread::sleep(Duration::from_millis(20));
        }
        let node = std::fs::read_to_string(name).unwrap().trim().to_owned();
        Terminal { script, node, shown }
    }

    /// Runs the flasher with this terminal as the device's. Returns what it shows from page to page, each once.
    fn flash(self, rig: &Rig) -> (std::process::Output, Vec<String>) {
        let script = format!("mount --bind {} /dev/tty1; exec /resin-init-flasher", self.node);
        let out = rig.run(&["sh", "-c", &script]);
        // script writes soon after it reads.
        let mut shown = String::new();
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let now = String::from_utf8_lossy(&std::fs::read(&self.shown).unwrap()).into_owned();
            if (now == shown && now.ends_with(REST)) || Instant::now() > end {
                break;
            }
            shown = now;
            std::thread::sleep(Duration::from_millis(200));
        }
        let mut pages: Vec<String> = shown.split(HOME).skip(1).map(page).collect();
        pages.dedup();
        (out, pages)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ignored = Command::new("pkill").args(["-P", &self.script.id().to_string()]).output();
        let _ignored = self.script.kill();
        let _ignored = self.script.wait();
    }
}

const HOME: &str = "\u{1b}[H";
const REST: &str = "\u{1b}[J";

/// The lines of a page. Nothing is on it but text.
fn page(drawn: &str) -> String {
    let drawn = drawn.split_once(REST).unwrap_or_else(|| panic!("not a whole page: {drawn:?}")).0;
    let text = drawn.replace("\u{1b}[K\r\n", "\n");
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    text
}

/// What the part below the facts begins with.
fn heading(page: &str) -> &str {
    page.split("\n\n").nth(2).unwrap().lines().next().unwrap()
}

/// In the folder `/etc`: whose name the title has.
fn with_release(rig: &Rig) {
    rig.put("etc/os-release", "NAME=balenaOS\nVERSION=6.1.2\nPRETTY_NAME=\"balenaOS 6.1.2\"\n");
}

/// What comes after the line of the device, whose text depends on the machine.
fn below_device(page: &str) -> String {
    let (first, rest) = page.split_once("\n\ndevice ").unwrap();
    assert_eq!(first.replace('\n', " "), "Installer of balenaOS 6.1.2");
    let rest = rest.split_once('\n').unwrap().1;
    // Its further lines.
    rest.lines().skip_while(|line| line.starts_with("   ")).fold(String::new(), |all, line| all + line + "\n")
}

#[test]
fn the_screen_tells_of_an_installation_from_start_to_end() {
    needs!(can_run);
    for columns in [80, 40, 20] {
        let rig = Rig::new();
        with_release(&rig);
        // No splash screen stays in front.
        rig.program("bin/plymouth", "#!/bin/sh\necho \"$@\" >>/etc/plymouth\n");
        let (out, pages) = Terminal::new(&rig, columns).flash(&rig);
        // The namespace ended when its first process switched it off.
        assert_eq!(out.status.signal(), Some(2), "{}", stderr(&out));
        for line in pages.iter().flat_map(|page| page.lines()) {
            assert!(line.len() < usize::from(columns), "{columns}: {line}");
        }
        let mut headings: Vec<&str> = pages.iter().map(|page| heading(page)).collect();
        headings.dedup();
        let (node, first, last) = (&rig.disk.node, &pages[0], &pages[pages.len() - 1]);
        println!("{first}\n{}\n{last}", pages[pages.len() / 2]);
        if columns == 80 {
            let stages = ["STARTING", "WRITING: DO NOT SWITCH OFF", "READING BACK: DO NOT SWITCH OFF"];
            assert_eq!(headings, [&stages[..], &["FINISHING: DO NOT SWITCH OFF", "DONE"]].concat());
            assert_eq!(
                below_device(last),
                "image    /opt/balena.img, 32.0 MiB\n\nDONE\n\nThe system is installed.\n\n\
                 The device switches off now. Take the installation medium out, and switch the\ndevice on.\n"
            );
            let erases = format!("erases   {node}, 48.0 MiB: all data on it is lost");
            assert!(pages.iter().filter(|page| page.contains(&erases)).count() >= 3, "{pages:#?}");
        } else {
            assert!(last.contains("\nDONE\n\nThe system is"), "{columns}: {last}");
        }
        assert!(pages.iter().any(|page| page.contains("] 0 %")), "{pages:#?}");
        assert_eq!(std::fs::read_to_string(rig.root().join("etc/plymouth")).unwrap(), "quit\n");
    }
}

/// Runs the flasher, which must not succeed. Its last page is as expected, and the disk untouched, or unbootable where `state` is 0.
#[track_caller]
fn ends(rig: &Rig, code: i32, state: u8, expected: &str) -> Vec<String> {
    with_release(rig);
    let (out, pages) = Terminal::new(rig, 80).flash(rig);
    assert_eq!(out.status.code(), Some(code), "{}", stderr(&out));
    let last = below_device(pages.last().unwrap());
    let below = last.split_once("lost\n\n").map_or(last.trim_start(), |(_, below)| below);
    assert_eq!(below, expected.replace("DISK", &rig.disk.node), "{}", stderr(&out));
    assert!(rig.disk.boot_bytes().iter().all(|b| *b == state), "{last}");
    pages
}

#[test]
fn the_screen_ends_with_the_code_and_the_remedy() {
    needs!(can_run);
    let rig = Rig::new();
    std::fs::remove_file(rig.root().join("mnt/boot/grub.cfg_internal")).unwrap();
    std::fs::remove_file(rig.root().join("opt/balena.img")).unwrap();
    ends(
        &rig,
        1,
        0xA5,
        "REFUSED: image-missing\n\n\
         no image balena.img, plain or with .zst, .xz or .gz, on the file system of /tmp\n\
         or of /. Nothing was written.\n\n\
         Remedy: correct BALENA_IMAGE, or name the file with --image.\n",
    );
    let rig = Rig::new();
    rig.program("bin/resin-init-flasher-board", "#!/bin/sh\nexit 7\n");
    ends(
        &rig,
        1,
        0,
        "FAILED: board-program-failed\n\nthe board's program failed: /usr/bin/resin-init-flasher-board: it ended with\nstatus 7.\n\n\
         Remedy: read the program's lines in the log, and fix it in the board's recipe.\n",
    );
}

#[test]
fn a_question_that_cannot_be_asked_is_refused() {
    needs!(can_run);
    let rig = Rig::new();
    rig.put("mnt/boottmp/config.json", r#"{"installer": {"confirm": "maybe"}}"#);
    ends(
        &rig,
        1,
        0xA5,
        "REFUSED: config-json-invalid\n\n/mnt/boottmp/config.json: installer.confirm must be `none`, `countdown:SECONDS`\n\
         (1 to 3600) or `key`. Nothing was written.\n\nRemedy: correct it in config.json.\n",
    );
    let rig = Rig::new();
    rig.conf(&["INSTALLER_CONFIRM=key"]);
    let expected = "REFUSED: no-input-device\n\n\
         cannot ask before it erases the disk: the device has no keyboard. Nothing was\nwritten.\n\n\
         Remedy: plug in a keyboard, or set `installer.confirm` to `countdown:SECONDS`\nor `none`.\n";
    ends(&rig, 1, 0xA5, expected);
    // A caller who asks for the plan is told what is wrong with the value, and is not asked.
    let plan = rig.run(&["/copal", "flash", "--plan"]);
    assert!(plan.status.success(), "{}", stderr(&plan));
    rig.conf(&["INSTALLER_CONFIRM=countdown"]);
    let plan = rig.run(&["/copal", "flash", "--plan"]);
    assert!(stderr(&plan).contains("INSTALLER_CONFIRM: `countdown` is not one of"), "{}", stderr(&plan));
    assert_eq!(plan.status.code(), Some(3));
}

/// The owner's word counts before the board's.
#[test]
fn a_countdown_is_shown_and_runs_out() {
    needs!(can_run);
    let rig = Rig::new();
    with_release(&rig);
    rig.conf(&["INSTALLER_CONFIRM=key"]);
    rig.put("mnt/boottmp/config.json", r#"{"installer": {"confirm": "countdown:2"}}"#);
    let begun = Instant::now();
    let (out, pages) = Terminal::new(&rig, 80).flash(&rig);
    assert_eq!(out.status.signal(), Some(2), "{}", stderr(&out));
    assert!(begun.elapsed() > Duration::from_secs(2));
    let asked: Vec<String> =
        pages.iter().filter(|p| heading(p).contains(" s")).map(|p| below_device(p)).collect();
    let page = |seconds| {
        format!(
            "image    /opt/balena.img, 32.0 MiB\nerases   {}, 48.0 MiB: all data on it is lost\n\nERASING BEGINS IN {seconds} s\n\n\
             No keyboard is plugged in: to stop it, switch the device off.\n",
            rig.disk.node
        )
    };
    assert_eq!(asked, [page(2), page(1)]);
    assert!(heading(pages.last().unwrap()) == "DONE", "{pages:#?}");
}

/// The log of an operator's terminal is not a screen.
#[test]
fn nothing_is_shown_twice_to_an_operator() {
    needs!(can_run);
    let rig = Rig::new();
    let terminal = Terminal::new(&rig, 80);
    let script = format!("mount --bind {0} /dev/tty1; exec /resin-init-flasher 2>{0}", terminal.node);
    let out = rig.run(&["sh", "-c", &script]);
    assert_eq!(out.status.signal(), Some(2), "{}", stderr(&out));
    let shown = String::from_utf8_lossy(&std::fs::read(&terminal.shown).unwrap()).into_owned();
    assert!(shown.contains("[resin-init-flasher]") && !shown.contains(HOME), "{shown}");
}
