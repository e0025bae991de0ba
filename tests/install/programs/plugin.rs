//! Secure-boot plug-ins: shell files of the board in one bash.

use std::path::{Path, PathBuf};
use std::time::Duration;

use copal::config::paths::Paths;
use copal::error::{Code, Effect, Error};
use copal::install::board::Environment;
use copal::install::plugin::Plugin;

use crate::kit::log::logged;
use crate::kit::process::{Root, runs, soon};

const SECUREBOOT: &str = "/usr/libexec/balena-init-flasher-secureboot";
const DISKENC: &str = "/usr/libexec/balena-init-flasher-diskenc";
const FS: &str = "/usr/libexec/os-helpers-fs";
const LOGGING: &str = "/usr/libexec/os-helpers-logging";
const POWER: &str = "/usr/libexec/os-helpers-power";
const CONF: &str = "/etc/resin-init-flasher.conf";
const VARS: &str = "/usr/sbin/balena-config-vars";

/// What the helper of that name does, as far as it matters here.
const LOGGING_TEXT: &str = r#"
ME=$(basename "$0")
log() { printf '[%s][%s] %s\n' "$ME" "$1" "$2" >&2; }
info() { log INFO "$1"; }
error() { log ERROR "$1"; }
fail() { error "$1"; exit 1; }
"#;

fn environment(root: &Root) -> Environment {
    Environment::new(&Paths::new(root.path()), &root.at("/mnt/boot/config.json"))
        .with_target(Path::new("/dev/sdx"))
}

fn conf(root: &Root) -> Option<PathBuf> {
    Some(root.at(CONF)).filter(|c| c.exists())
}

fn start(root: &Root) -> Result<Plugin, Error> {
    Plugin::start(&environment(root), conf(root).as_deref(), Duration::from_millis(300))
}

/// A root with the logging helper and one plug-in.
fn with(plugin: &str) -> Root {
    let root = Root::new();
    root.program(LOGGING, LOGGING_TEXT);
    root.program(SECUREBOOT, plugin);
    root
}

/// What `secureboot_setup` comes to with this body.
fn setup(body: &str) -> (Result<(), Error>, Vec<String>) {
    let root = with(&format!("secureboot_setup() {{\n{body}\n}}\n"));
    logged(|| start(&root).unwrap().secureboot_setup(false))
}

#[test]
fn without_plugins_nothing_is_started() {
    let root = Root::new();
    // The helpers alone are no plug-in.
    root.program(LOGGING, "exit 1");
    let mut plugin = start(&root).unwrap();
    plugin.secureboot_setup(false).unwrap();
    plugin.bootloader_setup().unwrap();
    plugin.bootloader_postsetup().unwrap();
    // What nobody is there to do is refused, not left out.
    let e = plugin.secureboot_setup(true).unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::EncryptionNotInThisBuild, Effect::Refused));
}

#[test]
fn a_plugin_is_asked_whatever_the_owner_wishes() {
    for opted_in in [true, false] {
        let root = with("secureboot_setup() { touch \"$CONFIG_PATH.called\"; return 1; }");
        std::fs::create_dir_all(root.at("/mnt/boot")).unwrap();
        start(&root).unwrap().secureboot_setup(opted_in).unwrap();
        assert!(root.at("/mnt/boot/config.json.called").exists(), "{opted_in}");
    }
}

#[test]
fn the_owners_wish_is_refused_where_the_board_cannot_grant_it() {
    for root in [Root::new(), with("secureboot_bootloader_setup() { true; }")] {
        let mut plugin = start(&root).unwrap();
        let e = plugin.secureboot_setup(true).unwrap_err();
        assert_eq!((e.code(), e.effect()), (Code::EncryptionNotInThisBuild, Effect::Refused));
        assert_eq!(e.subject(), Some("installer.secureboot"));
        plugin.secureboot_setup(false).unwrap();
    }
}

#[test]
fn the_plugin_decides_by_its_status() {
    for status in [1, 2, 126, 255] {
        setup(&format!("return {status}")).0.unwrap();
    }
    let e = setup("return 0").0.unwrap_err();
    assert_eq!(
        (e.code(), e.effect(), e.subject()),
        (Code::EncryptionNotInThisBuild, Effect::Refused, Some("secureboot_setup"))
    );
}

#[test]
fn a_plugin_that_gives_up_refuses() {
    for (body, why) in [
        ("exit 3", "it ended with status 3"),
        ("exit 0", "it ended with status 0"),
        ("fail 'keys are enrolled'", "it ended with status 1, after it said: keys are enrolled"),
        ("kill -9 $$", "it was ended by SIGKILL"),
        ("set -u; echo $undefined_variable", "undefined_variable: unbound variable"),
        ("exec true", "it ended with status 0"),
    ] {
        let e = setup(body).0.unwrap_err();
        assert_eq!((e.code(), e.effect()), (Code::PluginFailed, Effect::Refused), "{body}");
        assert!(e.message().starts_with("the secure-boot plug-in failed in secureboot_setup: "), "{e}");
        assert!(e.message().contains(why), "{body}: {e}");
        assert!(
            e.message()
                .ends_with("if it has started a reboot, the reboot continues; the installation stops here"),
            "{e}"
        );
    }
}

#[test]
fn set_e_does_not_end_a_function() {
    // In a condition: `false` is passed over, and the status is that of the last command.
    setup("false; set -e; false; return 1").0.unwrap();
    assert_eq!(setup("false; true").0.unwrap_err().code(), Code::EncryptionNotInThisBuild);
}

#[test]
fn what_it_prints_is_logged_and_what_it_reads_is_empty() {
    let body = "echo out; report_progress 5 'x y'; info fine; log WARN careful; error bad; read -r line; echo \"<$line>\"; cat
        head -c 200000 /dev/zero | tr '\\0' x; echo; set -x; echo 'secret=hunter2' >/dev/null; set +x; echo 5; return 1";
    let (result, log) = setup(body);
    result.unwrap();
    for line in [
        "INFO secure-boot plug-in: out",
        "INFO secure-boot plug-in: fine",
        "INFO secure-boot plug-in: Percentage 5, status x y",
        "WARN secure-boot plug-in: careful",
        "ERROR secure-boot plug-in: bad",
        "INFO secure-boot plug-in: <>",
        "INFO secure-boot plug-in: 5",
    ] {
        assert!(log.iter().any(|l| l == line), "{line}: {log:?}");
    }
    assert!(!log.iter().any(|l| l.contains("hunter2")));
    let long: usize = log
        .iter()
        .filter_map(|l| l.strip_prefix("INFO secure-boot plug-in: "))
        .filter(|l| l.len() > 99)
        .map(str::len)
        .sum();
    assert_eq!(long, 200_000);
    // All of it before the decision.
    assert!(log.last().unwrap().contains("without encryption (secureboot_setup: 1)"), "{log:?}");
}

#[test]
fn silence_is_warned_about() {
    let (result, log) = setup("sleep 1; return 1");
    result.unwrap();
    assert!(
        log.iter().filter(|l| l.starts_with("WARN secure-boot plug-in has been silent")).count() >= 2,
        "{log:?}"
    );
}

#[test]
fn files_are_sourced_in_the_scripts_order_and_share_everything() {
    let root = Root::new();
    for (path, name) in [
        (FS, "fs"),
        (LOGGING, "logging"),
        (POWER, "power"),
        (SECUREBOOT, "secureboot"),
        (DISKENC, "diskenc"),
        (CONF, "conf"),
        (VARS, "vars"),
    ] {
        root.program(path, &format!("ORDER=\"$ORDER {name}\"\n"));
    }
    root.program(DISKENC, "ORDER=\"$ORDER diskenc\"\nhelper() { echo \"helped $1\"; }\n");
    root.program(
        SECUREBOOT,
        "ORDER=\"$ORDER secureboot\"
        secureboot_setup() { SEEN=yes; declare -g count=1; trap 'echo left' EXIT; return 1; }
        secureboot_bootloader_setup() { helper \"$SEEN\"; count=$((count + 1)); }
        secureboot_bootloader_postsetup() { echo \"$ORDER $count $# $0\"; echo \"$BOOT_ENTRY_LABEL $internal_dev $CRYPT\"; echo \"$CONFIG_PATH $EXTERNAL_DEVICE_BOOT_PART_MOUNTPOINT $INTERNAL_DEVICE_BOOT_PART_MOUNTPOINT $INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH\"; }\n",
    );
    root.program(
        CONF,
        "ORDER=\"$ORDER conf\"\nINTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH=\"/EFI/BOOT/grub.cfg\"\n",
    );
    let ((), log) = logged(|| {
        let mut plugin = start(&root).unwrap();
        plugin.secureboot_setup(false).unwrap();
        plugin.bootloader_setup().unwrap();
        plugin.bootloader_postsetup().unwrap();
    });
    let top = root.path().display();
    for line in [
        "helped yes".to_owned(),
        " fs logging power secureboot diskenc conf vars 2 0 resin-init-flasher".to_owned(),
        "balenaOS /dev/sdx 0".to_owned(),
        format!("{top}/mnt/boot/config.json {top}/mnt/boot {top}/tmp/internal_boot /EFI/BOOT/grub.cfg"),
        // It leaves in good order.
        "left".to_owned(),
    ] {
        assert!(log.contains(&format!("INFO secure-boot plug-in: {line}")), "{line}: {log:#?}");
    }
}

#[test]
fn missing_functions_are_no_operations_and_failing_ones_errors() {
    let root = with("secureboot_bootloader_setup() { echo gone wrong; return 7; }\n");
    let mut plugin = start(&root).unwrap();
    plugin.secureboot_setup(false).unwrap();
    let e = plugin.bootloader_setup().unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::PluginFailed, Effect::Written));
    assert_eq!(e.message(), "the secure-boot plug-in failed: secureboot_bootloader_setup returned 7");
    // The shell is still there.
    plugin.bootloader_postsetup().unwrap();

    let root = with("secureboot_bootloader_postsetup() { exit 1; }\n");
    let mut plugin = start(&root).unwrap();
    let e = plugin.bootloader_postsetup().unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::PluginFailed, Effect::Written));
    // Gone is gone: no later call is taken for done.
    assert!(plugin.bootloader_setup().is_err());
    assert!(plugin.secureboot_setup(false).is_err());
}

#[test]
fn a_file_that_ends_the_shell_refuses() {
    for (file, text, why) in [
        (
            VARS,
            "echo '[ERROR] config.json not found.'; exit 1",
            "status 1, after it said: [ERROR] config.json not found.",
        ),
        (FS, "false", "status 1"),
        (DISKENC, "if then", "syntax error"),
        (POWER, "kill -TERM $$; sleep 5", "SIGTERM"),
    ] {
        let root = with("");
        let path = root.program(file, text);
        let e = start(&root).err().unwrap();
        assert_eq!((e.code(), e.effect(), e.subject()), (Code::PluginFailed, Effect::Refused, path.to_str()));
        assert!(e.message().contains(why), "{e}");
    }
}

#[test]
fn what_a_function_leaves_running_does_not_hold_us() {
    let root = with("");
    let pid = root.at("pid");
    root.program(
        SECUREBOOT,
        &format!("secureboot_setup() {{ sleep 600 & echo $! >{}; exit 1; }}\n", pid.display()),
    );
    let began = std::time::Instant::now();
    assert!(start(&root).unwrap().secureboot_setup(false).is_err());
    assert!(began.elapsed() < Duration::from_secs(60));
    let pid = root.read("pid");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid.trim().parse().unwrap()),
        nix::sys::signal::SIGKILL,
    )
    .unwrap();
    assert!(soon(|| !runs(&pid)));
}
