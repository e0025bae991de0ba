//! The host key of dropbear, and extensions: what runs programs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use copal::error::Code;

use super::machine::{Files, Machine, PLAIN, see};

const OLD: &str = "/mnt/state/root-overlay/etc/dropbear/dropbear_rsa_host_key";
const KEYS: &str = "/mnt/state/root-overlay/etc/ssh/hostkeys";
const MIGRATE: &str = "70-sshd_migrate_keys";
const COMMIT: &str = "85-fwd_commit_os-blocks-extensions";

fn install(machine: &Machine, program: &str, name: &str) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hooks/builtin/programs").join(program);
    fs::create_dir_all(machine.at("/usr/bin")).unwrap();
    let to = machine.at("/usr/bin").join(name);
    if to.is_symlink() {
        fs::remove_file(&to).unwrap();
    }
    symlink(here, to).unwrap();
}

fn with_key() -> Machine {
    let mut machine = Machine::new(PLAIN);
    machine.tree.file(OLD, "secret\n");
    machine
}

fn keys(machine: &Machine) -> Files {
    see(&machine.at(KEYS))
}

fn migrated() -> Files {
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n";
    [("ssh_host_rsa_key", key), ("ssh_host_rsa_key.pub", "ssh-rsa secret\n")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into()
}

#[test]
fn the_key_is_converted_once_and_no_other_user_can_read_it() {
    let machine = with_key();
    install(&machine, "dropbearconvert", "dropbearconvert");
    install(&machine, "ssh-keygen", "ssh-keygen");
    machine.run(MIGRATE, true).unwrap();
    assert_eq!(keys(&machine), migrated());
    let mode = |name: &str| fs::metadata(machine.at(KEYS).join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("ssh_host_rsa_key"), mode("ssh_host_rsa_key.pub")), (0o600, 0o644));
    // A key that is there is the owner's by now.
    fs::write(machine.at(KEYS).join("ssh_host_rsa_key"), "another").unwrap();
    machine.run(MIGRATE, true).unwrap();
    assert_eq!(keys(&machine)["ssh_host_rsa_key"], "another");
}

#[test]
fn nothing_is_done_without_a_key_of_dropbear() {
    let machine = Machine::new(PLAIN);
    machine.run(MIGRATE, true).unwrap();
    assert_eq!(machine.see(), Files::new());
}

#[test]
fn what_an_earlier_try_left_half_done_stops_no_later_one() {
    let mut machine = with_key();
    install(&machine, "dropbearconvert", "dropbearconvert");
    install(&machine, "ssh-keygen", "ssh-keygen");
    machine.tree.file(&format!("{KEYS}/.migrate/key"), "half").file(&format!("{KEYS}/ssh_host_rsa_key"), "");
    machine.tree.file(&format!("{KEYS}/ssh_host_rsa_key.pub"), "of another try");
    machine.run(MIGRATE, true).unwrap();
    assert_eq!(keys(&machine), migrated());
}

#[test]
fn a_conversion_that_fails_leaves_no_key_and_says_why() {
    for (convert, keygen, words) in [
        (None, Some("ssh-keygen"), "dropbearconvert is not installed"),
        (Some("dropbearconvert"), None, "ssh-keygen is not installed"),
        (Some("dropbearconvert-fails"), Some("ssh-keygen"), "status 3: Error: no such key"),
        (Some("dropbearconvert-empty"), Some("ssh-keygen"), "created no key"),
        (Some("dropbearconvert"), Some("ssh-keygen-fails"), "status 255: invalid format"),
    ] {
        let machine = with_key();
        for (program, name) in [(convert, "dropbearconvert"), (keygen, "ssh-keygen")] {
            if let Some(program) = program {
                install(&machine, program, name);
            }
        }
        let e = machine.run(MIGRATE, true).unwrap_err();
        assert_eq!(e.code(), Code::HookFailed);
        assert!(e.to_string().contains(words), "{e}");
        assert_eq!(keys(&machine), Files::new(), "{words}");
        install(&machine, "dropbearconvert", "dropbearconvert");
        install(&machine, "ssh-keygen", "ssh-keygen");
        machine.run(MIGRATE, true).unwrap();
        assert_eq!(keys(&machine), migrated(), "after {words}");
    }
}

#[test]
fn stale_extensions_go_where_there_is_a_manager_for_them() {
    let machine = Machine::new(PLAIN);
    machine.run(COMMIT, false).unwrap();
    machine.run("85-after_os-blocks-extensions", true).unwrap();
    install(&machine, "balena-extension-manager", "balena-extension-manager");
    machine.run(COMMIT, false).unwrap();
    assert_eq!(fs::read_to_string(machine.at("/called")).unwrap(), "cleanup --stale-os\n");
    install(&machine, "balena-extension-manager-fails", "balena-extension-manager");
    let e = machine.run(COMMIT, false).unwrap_err();
    assert_eq!(e.code(), Code::HookFailed);
    assert!(e.to_string().contains("engine is not there"), "{e}");
}
