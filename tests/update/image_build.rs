//! The image of a release's root partition, made as builds of balenaOS make it: in a privileged container without state or systemd,
//! with an engine of its own, whose store becomes a file system.

use std::fs;
use std::os::unix::fs::symlink;

use crate::copal::program;
use crate::image::Release;
use crate::kit::needs::needs;
use crate::rig::{Rig, can_run, stderr, stdout, tool};

/// The first process of the container, which is no init and does not reap. The engine's options are those of the tests, where the
/// container has no network.
const CREATE: &str = r#"#!/bin/bash
set -e
root=/mnt/sysroot/inactive
test ! -e /mnt/sysroot/active && test ! -e /mnt/state && test ! -e /run/systemd && test -e /.dockerenv
test $$ -eq 1
dockerd --storage-driver=overlay2 --data-root=$root/balena -H unix:///var/run/balena-host.sock --iptables=false \
    --ip6tables=false --bridge=none --add-runtime=bare=/usr/sbin/runc >/output/engine.log 2>&1 &
engine=$!
for _ in $(seq 600); do
    docker -H unix:///var/run/balena-host.sock version >/dev/null 2>&1 && break
    kill -0 $engine
    sleep 0.1
done
hostapp-update -f /input -n
kill $engine
wait $engine || true
truncate -s 150M /output/root.ext4
mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 -i 8192 -d $root /output/root.ext4
"#;

/// An image in which nothing is but what it takes from the machine.
fn builder() -> Release {
    let release = Release::new();
    fs::remove_dir_all(release.root()).unwrap();
    for folder in ["usr", "mnt", "run", "tmp", "proc", "sys", "dev", "var", "etc", "root", "output", "native"]
    {
        fs::create_dir_all(release.root().join(folder)).unwrap();
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), release.root().join(name)).unwrap();
    }
    symlink("../run", release.root().join("var/run")).unwrap();
    release.put("create", CREATE);
    release.put("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
    release.put("etc/group", "root:x:0:\n");
    release
}

#[test]
fn a_container_without_anything_fills_a_slot() {
    needs!(can_run);
    let rig = Rig::ready();
    builder().archive("builder:1", &rig.at("mnt/data/builder.tar"));
    rig.ok(&["docker", "-H", "unix:///var/run/balena-host.sock", "load", "-i", "/mnt/data/builder.tar"]);
    // `hostapp-update-native` is one file, in the folder of native programs.
    rig.ok(&["sh", "-c", "mkdir /mnt/data/native /mnt/data/output"]);
    fs::copy(program(), rig.at("mnt/data/native/hostapp-update")).unwrap();
    let out = rig.docker(&[
        "run",
        "--privileged",
        "--network=none",
        "--rm",
        "--volume=/usr:/usr:ro",
        "--volume=/mnt/data/native:/native:ro",
        "--volume=/mnt/data/os.tar:/input:ro",
        "--volume=/mnt/data/output:/output",
        "--volume=/mnt/sysroot/inactive",
        "--env=PATH=/native:/usr/sbin:/usr/bin",
        "--env=COPAL_LOG=info",
        "builder:1",
        "/create",
    ]);
    let engine = fs::read_to_string(rig.at("mnt/data/output/engine.log")).unwrap_or_default();
    assert!(out.status.success(), "{}{}\n{engine}", stdout(&out), stderr(&out));
    assert!(stdout(&out).contains("updating the root of an image to /input"), "{}", stdout(&out));

    // What a bootloader goes through, read by another tool.
    let file = rig.dir.path().join("root.ext4");
    fs::copy(rig.at("mnt/data/output/root.ext4"), &file).unwrap();
    let debugfs = |request: &str| tool(&["debugfs", "-R", request, file.to_str().unwrap()]);
    tool(&["e2fsck", "-fn", file.to_str().unwrap()]);
    // A long link is in a block, a short one is not.
    let leads = |path: &str| {
        let text = debugfs(&format!("stat {path}"));
        let short = text.split("Fast link dest: \"").nth(1).map(|t| t.split('"').next().unwrap().to_owned());
        short.unwrap_or_else(|| debugfs(&format!("cat {path}")))
    };
    let current = leads("/current");
    let id = current.strip_prefix("hostapps/").unwrap();
    assert_eq!(id.len(), 64, "{id}");
    assert_eq!(leads("/boot"), "current/boot");
    assert_eq!(leads("/sbin/init"), "../current/boot/init");
    let boot = leads(&format!("/{current}/boot"));
    assert!(boot.starts_with("../../balena/volumes/") && boot.ends_with("/_data"), "{boot}");
    let init = debugfs(&format!("cat {}/init", boot.strip_prefix("../..").unwrap()));
    assert!(init.contains("-sysroot"), "{init}");
    assert_eq!(debugfs("cat /counter"), "1\n");
    assert_eq!(debugfs("cat /etc/machine-id"), "");
}
