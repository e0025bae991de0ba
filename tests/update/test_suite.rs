//! What the OS's own test suite does to a device: meta-balena, `tests/suites/hup`, v8.0.2. The reboots that follow are in
//! `qemu/scenarios`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::copal::{Board, HOOKS, assert_pending, ready, release_of};
use crate::image::Release;
use crate::layout::assert_slot;
use crate::rig::{Rig, stderr};

/// Runs a command in a shell, and returns what it prints, as the suite does.
fn on_device(rig: &Rig, script: &str) -> String {
    let out = rig.run(&["bash", "-c", script]);
    assert_eq!(stderr(&out), "", "{script}");
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

/// Puts all that a device gets into a release, beside what a test has put there already.
fn install_everything(release: &Release) {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(top.join("scripts/contents.tsv")).unwrap();
    for line in list.lines().filter(|l| !l.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [_, kind, _, path, source] = columns[..] else { continue };
        let path = path.trim_start_matches('/');
        let to = release.root().join(path);
        // Manual pages and completions are made by the build, and nothing here reads them.
        let is_page = source.starts_with("man/") || source.starts_with("completions/");
        if is_page || path.starts_with(HOOKS) || to.symlink_metadata().is_ok() {
            continue;
        }
        if kind == "file" {
            release.put(path, fs::read(top.join(source)).unwrap());
        } else {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            symlink(source, to).unwrap();
        }
    }
}

#[test]
fn an_update_and_what_is_broken_before_the_reboot() {
    let Some(mut rig) = ready("an_update_and_what_is_broken_before_the_reboot", Board::Uboot) else { return };
    let release = release_of(Board::Uboot);
    install_everything(&release);
    // Of others, and broken by the suite.
    release.put("usr/bin/balena-engine", "an engine").put("usr/sbin/openvpn", "a VPN");
    release.archive("registry/os:2", &rig.at("mnt/data/os.tar"));
    rig.ok(&["mkdir", "-p", "/mnt/data/resin-data"]);
    rig.ok(&["sh", "-c", "gzip -c /mnt/data/os.tar > /mnt/data/resin-data/os.gz && rm /mnt/data/os.tar"]);
    on_device(&rig, "gzip -df /mnt/data/resin-data/os.gz");

    // Twice: each test of the suite updates, whatever the one before has left.
    for go in ["first", "second"] {
        rig.stop_engine();
        on_device(
            &rig,
            r#"find "/mnt/sysroot/inactive/balena" -mindepth 1 -maxdepth 1 -exec rm -r "{}" \; || true"#,
        );
        rig.engine();
        assert_eq!(on_device(&rig, "[[ -f /mnt/data/resin-data/os ]] && echo exists"), "exists", "{go}");
        on_device(
            &rig,
            r#"mkdir -p "/mnt/data/resin-data/tmp" "/mnt/sysroot/inactive/balena/tmp" ; mount --bind "/mnt/data/resin-data/tmp" "/mnt/sysroot/inactive/balena/tmp""#,
        );
        let out = rig.run(&["hostapp-update", "-f", "/mnt/data/resin-data/os"]);
        assert_eq!(out.status.code(), Some(0), "{go}: {}", stderr(&out));
        assert_slot(&rig, "5\n");
        assert_pending(&rig, Board::Uboot);
        rig.assert_tidy(go);
    }

    let found = on_device(&rig, r#"find /mnt/sysroot/inactive/ | grep "bin/rollback-health""#);
    assert_eq!(found.lines().count(), 1, "{found}");
    let edit = r#"sed -i -e "s/COUNT=.*/COUNT=3/g" -e "s/TIMEOUT=.*/TIMEOUT=10/g" $(find /mnt/sysroot/inactive/ | grep "bin/rollback-health") ; echo $?"#;
    assert_eq!(on_device(&rig, edit), "0");
    for name in [r"usr/bin/balena-engine$", r"bin/openvpn$"] {
        let null = format!(r#"ln -sf /dev/null $(find /mnt/sysroot/inactive/ | grep "{name}") ; echo $?"#);
        assert_eq!(on_device(&rig, &null), "0", "{name}");
    }
    let variables = "/mnt/state/rollback-health-variables";
    assert_eq!(rig.text(variables.trim_start_matches('/')), "BALENAOS_ROLLBACK_VPNONLINE=0\n");
    let online = format!(
        "sed 's/BALENAOS_ROLLBACK_VPNONLINE=0/BALENAOS_ROLLBACK_VPNONLINE=1/' -i {variables} && sync -f /mnt/state ; echo $?"
    );
    assert_eq!(on_device(&rig, &online), "0");
    assert_eq!(rig.text(variables.trim_start_matches('/')), "BALENAOS_ROLLBACK_VPNONLINE=1\n");
    for (file, there) in [("health-breadcrumb", "0"), ("health-triggered", "1"), ("altboot-triggered", "1")] {
        assert_eq!(
            on_device(&rig, &format!("test -f /mnt/state/rollback-{file} ; echo $?")),
            there,
            "{file}"
        );
    }

    // What the new system will see of it.
    let root = rig.ok(&["/mnt/sysroot/inactive/current/boot/init", "-sysroot", "/mnt/sysroot/inactive"]);
    let text = rig.ok(&["cat", &format!("{root}/usr/bin/rollback-health")]);
    assert!(text.lines().any(|l| l == "TIMEOUT=10") && text.lines().any(|l| l == "COUNT=3"), "{text}");
    assert!(!text.contains("60\n") && !text.contains("15\n"), "{text}");
    assert!(rig.run(&["test", "-x", &format!("{root}/usr/bin/rollback-health")]).status.success());
    assert_eq!(rig.ok(&["readlink", &format!("{root}/usr/bin/balena-engine")]), "/dev/null\n");
    rig.ok(&["umount", &root]);
    assert_eq!(on_device(&rig, "rm /mnt/sysroot/inactive/current/boot/init ; echo $?"), "0");
}
