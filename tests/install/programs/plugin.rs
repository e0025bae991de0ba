//! Secure-boot plug-ins: shell files of the board in one bash.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use copal::config::paths::Paths;
use copal::error::{Code, Effect, Error};
use copal::install::board::Environment;
use copal::install::plugin::Plugin;
use proptest::prelude::*;

use crate::kit::log::logged;
use crate::kit::needs::needs;
use crate::kit::process::{HANG, Root, runs, soon, stderr};
use crate::rig::{Rig, can_run};

const SECUREBOOT: &str = "/usr/libexec/balena-init-flasher-secureboot";
const DISKENC: &str = "/usr/libexec/balena-init-flasher-diskenc";
const FS: &str = "/usr/libexec/os-helpers-fs";
const LOGGING: &str = "/usr/libexec/os-helpers-logging";
const POWER: &str = "/usr/libexec/os-helpers-power";
const CONF: &str = "/etc/resin-init-flasher.conf";
const VARS: &str = "/usr/sbin/balena-config-vars";
const DEFAULTS: &str = "/usr/sbin/balena-config-defaults";

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
fn setup(body: &str) -> (Result<bool, Error>, Vec<String>) {
    let root = with(&format!("secureboot_setup() {{\n{body}\n}}\n"));
    logged(|| start(&root).unwrap().secureboot_setup(false))
}

#[test]
fn without_plugins_nothing_is_started() {
    let root = Root::new();
    // The helpers alone are no plug-in.
    root.program(LOGGING, "exit 1");
    let mut plugin = start(&root).unwrap();
    assert!(!plugin.secureboot_setup(false).unwrap());
    plugin.bootloader_setup().unwrap();
    plugin.bootloader_postsetup().unwrap();
    // What nobody is there to do is refused, not left out.
    let e = plugin.secureboot_setup(true).unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::EncryptionNotAvailable, Effect::Refused));
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
        assert_eq!((e.code(), e.effect()), (Code::EncryptionNotAvailable, Effect::Refused));
        assert_eq!(e.subject(), Some("installer.secureboot"));
        plugin.secureboot_setup(false).unwrap();
    }
}

#[test]
fn the_plugin_decides_by_its_status() {
    for (status, encrypted) in [(0, true), (1, false), (2, false), (126, false), (255, false)] {
        assert_eq!(setup(&format!("return {status}")).0.unwrap(), encrypted, "{status}");
    }
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
    assert!(setup("false; true").0.unwrap());
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
    assert!(began.elapsed() < HANG);
    let pid = root.read("pid");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid.trim().parse().unwrap()),
        nix::sys::signal::SIGKILL,
    )
    .unwrap();
    assert!(soon(|| !runs(&pid)));
}

/// A word of bash: single quotes, and all else as it is.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[test]
fn each_byte_of_a_variable_is_read() {
    let bytes: Vec<u8> = (1..=255).collect();
    let escaped = |bytes: &[u8]| bytes.iter().map(|b| format!("\\x{b:02x}")).collect::<String>();
    let mut text = format!("ALL=$'{}'\n", escaped(&bytes));
    for byte in &bytes {
        writeln!(text, "V{byte}=$'{}'", escaped(&[b'a', *byte, b'b', *byte])).unwrap();
    }
    let root = with(&text);
    let mut plugin = start(&root).unwrap();
    for byte in &bytes {
        let expected = String::from_utf8_lossy(&[b'a', *byte, b'b', *byte]).into_owned();
        assert_eq!(plugin.get(&format!("V{byte}")).unwrap(), Some(expected), "{byte:#x}");
    }
    assert_eq!(plugin.get("ALL").unwrap(), Some(String::from_utf8_lossy(&bytes).into_owned()));
}

#[test]
fn an_empty_variable_is_not_a_missing_one() {
    let root = with(
        "EMPTY=; declare DECLARED; GONE=x; unset GONE; f() { local LOCAL=x; }; f; NUMBER=0; SIGN='=0'\n",
    );
    let mut plugin = start(&root).unwrap();
    for (name, value) in [
        ("EMPTY", Some("")),
        ("DECLARED", None),
        ("GONE", None),
        ("LOCAL", None),
        ("NEVER", None),
        // Neither is taken for the status.
        ("NUMBER", Some("0")),
        ("SIGN", Some("=0")),
        ("EMPTY", Some("")),
    ] {
        assert_eq!(plugin.get(name).unwrap().as_deref(), value, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(5) })]

    /// Whatever a shell, `printf` or the answers could take for something else.
    #[test]
    fn any_text_is_read_as_it_is(
        values in prop::collection::vec(
            prop::collection::vec(
                prop::sample::select(vec![
                    "\\", "\n", "\r", "'", "\"", "$(touch ran)", "`touch ran`", "$HOME", "%s", "%b", "&", "*", "~", "#", "!", "=",
                    "0", "n", "r", "x41", " ", "\t", "\u{1}", "\u{7f}", "ü", "日", "🦀", "{a,b}", "[", ";", "|", "\u{1b}[0m",
                ]),
                0..20,
            ),
            40,
        ),
    ) {
        let values: Vec<String> = values.iter().map(|parts| parts.concat()).collect();
        let lines: Vec<String> = values.iter().enumerate().map(|(n, v)| format!("V{n}={}\n", quoted(v))).collect();
        let root = with(&lines.concat());
        let mut plugin = start(&root).unwrap();
        for (n, value) in values.into_iter().enumerate() {
            prop_assert_eq!(plugin.get(&format!("V{n}")).unwrap(), Some(value));
        }
    }
}

#[test]
fn a_function_that_prints_or_answers_by_itself_disturbs_no_answer() {
    let body = "V=before; printf '7\\n=forged\\n'; echo 9 >&2; { echo 5; echo =x; } >&199; read -r stolen <&198; \
        (sleep 0.2; echo 3; echo =late) & V=after; return 4";
    let root =
        with(&format!("secureboot_setup() {{ {body}; }}\nsecureboot_bootloader_setup() {{ sleep 0.5; }}\n"));
    let (mut plugin, log) = logged(|| {
        let mut plugin = start(&root).unwrap();
        assert!(!plugin.secureboot_setup(false).unwrap());
        plugin
    });
    assert!(log.iter().any(|line| line.ends_with("(secureboot_setup: 4)")), "{log:#?}");
    assert_eq!(plugin.get("V").unwrap().as_deref(), Some("after"));
    // Meanwhile a process that it has left running prints.
    plugin.bootloader_setup().unwrap();
    assert_eq!(plugin.get("stolen").unwrap().as_deref(), None);
    assert_eq!(plugin.get("V").unwrap().as_deref(), Some("after"));
}

/// The bash of plug-ins without its Rust side: requests and answers as they are.
struct Driver(Child, BufReader<ChildStdout>);

impl Driver {
    fn start() -> Driver {
        let text = include_str!("../../../src/install/shell.sh");
        let mut bash = Command::new("bash");
        bash.args(["--noprofile", "--norc", "-c", text, "driver"]).env_remove("BASH_ENV");
        let mut child =
            bash.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Driver(child, answers)
    }

    fn ask(&mut self, request: &str) -> String {
        writeln!(self.0.stdin.as_mut().unwrap(), "{request}").unwrap();
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// As `Shell::set` asks.
    fn set(&mut self, name: &str, value: &[u8]) -> String {
        let escaped: String = value.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        self.ask(&format!("set {name} {escaped}"))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        drop(self.0.wait());
    }
}

#[test]
fn the_shell_takes_any_value_and_any_argument_once() {
    let root = Root::new();
    let file = root.program(
        "/functions",
        "show() { printf '%s\\0' \"$#\" \"$@\" \"$V\" \"${U-unset}\" >\"$OUT\"; return 3; }\n",
    );
    let out = root.at("out");
    let mut driver = Driver::start();
    assert_eq!(driver.ask(&format!("source {}", file.display())), "0");
    assert_eq!(driver.set("OUT", out.as_os_str().as_encoded_bytes()), "0");
    let all: Vec<u8> = (1..=255).collect();
    let values: [&[u8]; 8] = [
        &all,
        b"",
        b"a b  c",
        b"* ?",
        b"line\nline\n\n",
        b"\\x41 %s %b \\n \\",
        b"$(touch ran) `id` ' \"",
        b"\xff\\",
    ];
    for count in 0..=values.len() {
        for (i, value) in values[..count].iter().enumerate() {
            assert_eq!(driver.set(&format!("__copal_arguments[{i}]"), value), "0");
        }
        let value = values[count % values.len()];
        assert_eq!(driver.set("V", value), "0");
        // The first call has the arguments, and the second one none of them, though the first one failed.
        for arguments in [&values[..count], &[]] {
            assert_eq!(driver.ask("call show"), "3");
            let number = arguments.len().to_string();
            let shown = [&[number.as_bytes()], arguments, &[value, b"unset"]].concat();
            let found = std::fs::read(&out).unwrap();
            assert_eq!(
                found,
                shown.iter().flat_map(|v| [v, &b"\0"[..]].concat()).collect::<Vec<u8>>(),
                "{count}"
            );
        }
    }
    assert_ne!(driver.set("no-name", b"2"), "0");
    assert_eq!(driver.ask("nothing that is known"), "2");
    assert_eq!(driver.ask("has show"), "0", "it still answers");
}

/// The function of an encrypted installation that can be called first.
fn encrypting(label: &str, body: &str) -> Root {
    with(&format!("{label}\ndiskenc_setup() {{ {body}\n}}\n"))
}

#[test]
fn the_label_beside_resin_boot_is_one_that_fat_can_have() {
    let incomplete = |line: &str, why: &str| {
        let root = encrypting(line, "true");
        let e = start(&root).unwrap().encrypt().unwrap_err();
        assert_eq!((e.code(), e.effect()), (Code::PluginIncomplete, Effect::Refused), "{line}");
        assert_eq!(e.subject(), Some("BALENA_NONENC_BOOT_LABEL"));
        assert!(e.message().contains(why), "{line}: {e}");
    };
    let named = |label: &str| format!("BALENA_NONENC_BOOT_LABEL={}", quoted(label));
    for line in ["", "BALENA_NONENC_BOOT_LABEL=", "declare BALENA_NONENC_BOOT_LABEL"] {
        incomplete(line, "has not set BALENA_NONENC_BOOT_LABEL");
    }
    incomplete(&named("resin-boot"), "is that of the encrypted one");
    incomplete(&named("twelve-chars"), "has more than 11 characters");
    for c in "\"*+,./:;<=>?[\\]| \t\n\u{7f}ü".chars() {
        incomplete(&named(&format!("a{c}b")), "has characters that a FAT label cannot have");
    }
    for label in ["flash-boot", "x", "eleven-char", "RESIN-BOOT", "!#$%&'()-@", "^_`{}~09"] {
        let root = encrypting(&named(label), "true");
        assert_eq!(start(&root).unwrap().encrypt().unwrap(), label);
    }
}

#[test]
fn an_encrypted_installation_is_known_to_the_plugin_alone() {
    let root = encrypting(
        "BALENA_NONENC_BOOT_LABEL=flash-boot",
        "echo \"crypt $CRYPT, a child ${1:-$(bash -c 'echo ${CRYPT-unset}')}\"",
    );
    let ((), log) = logged(|| {
        let mut plugin = start(&root).unwrap();
        plugin.diskenc_setup().unwrap();
        plugin.encrypt().unwrap();
        plugin.diskenc_setup().unwrap();
    });
    let said: Vec<_> = log.iter().filter_map(|l| l.strip_prefix("INFO secure-boot plug-in: ")).collect();
    assert_eq!(said, ["crypt 0, a child unset", "crypt 1, a child unset"]);
}

#[test]
fn the_defaults_are_read_again_for_an_encrypted_installation() {
    let root = encrypting("", "true");
    let defaults = root.at(DEFAULTS);
    root.program(VARS, &format!(". {}\n", defaults.display()));
    let text = "READ=$READ$CRYPT\nif [ \"$CRYPT\" = 1 ]; then BALENA_NONENC_BOOT_LABEL=flash-boot; fi\n";
    root.program(DEFAULTS, text);
    let mut plugin = start(&root).unwrap();
    assert_eq!(plugin.get("BALENA_NONENC_BOOT_LABEL").unwrap(), None);
    assert_eq!(plugin.encrypt().unwrap(), "flash-boot");
    assert_eq!(plugin.get("READ").unwrap().as_deref(), Some("01"));

    root.program(VARS, "");
    for (text, why) in [("echo no device type; exit 1", "no device type"), ("false", "status 1")] {
        let path = root.program(DEFAULTS, text);
        let e = start(&root).unwrap().encrypt().unwrap_err();
        assert_eq!((e.code(), e.effect(), e.subject()), (Code::PluginFailed, Effect::Refused, path.to_str()));
        assert!(e.message().contains(why), "{e}");
    }
}

/// `Plugin::set` with every byte that a path can have, and line ends last.
#[test]
fn the_plugin_gets_the_place_of_the_image_byte_by_byte() {
    needs!(can_run);
    let rig = Rig::new();
    let names: Vec<u8> = (1..=255).filter(|b| *b != b'/').collect();
    let place = [b"/opt/", &names[..127], b"/", &names[127..], b"\n\n"].concat();
    let inside = rig.root().join(OsStr::from_bytes(&place[1..]));
    std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
    std::fs::rename(rig.root().join("opt/balena.img"), &inside).unwrap();
    rig.put("place", &place);
    rig.program(
        "libexec/balena-init-flasher-secureboot",
        "secureboot_setup() { printf %s \"$BALENA_IMAGE\" >/seen; exit 1; }\n",
    );
    let script = "image=$(cat /place; echo x); exec /copal flash --no-power-off --image \"${image%x}\"";
    let out = rig.run(&["sh", "-c", script]);
    assert!(stderr(&out).contains("[plugin-failed]"), "{}", stderr(&out));
    assert_eq!(std::fs::read(rig.root().join("seen")).unwrap(), place);
}

#[test]
fn a_variable_that_may_not_change_is_named() {
    let root = encrypting("readonly CRYPT BALENA_NONENC_BOOT_LABEL=flash-boot", "true");
    let e = start(&root).unwrap().encrypt().unwrap_err();
    assert_eq!((e.code(), e.effect(), e.subject()), (Code::PluginIncomplete, Effect::Refused, Some("CRYPT")));
}

#[test]
fn a_value_is_read_whole_or_not_at_all() {
    // With the sign before it, its own line end in two bytes, and the end of the line: 8192 bytes.
    let longest = format!("{}\n", "x".repeat(8188));
    let root = with(
        "LONGEST=$(printf %08188d 0 | tr 0 x)$'\n'; LONGER=$LONGEST.; WIDE=$(printf %04096d 0); WIDE=${WIDE//0/ü}\n",
    );
    let mut plugin = start(&root).unwrap();
    for name in ["LONGER", "WIDE"] {
        let e = plugin.get(name).unwrap_err();
        assert_eq!(
            (e.code(), e.effect(), e.subject()),
            (Code::PluginIncomplete, Effect::Refused, Some(name))
        );
    }
    assert_eq!(plugin.get("LONGEST").unwrap(), Some(longest), "it still answers");
}
