//! What hooks find in their environment: of each kind the whole.

use std::collections::BTreeMap;

use copal::engine::HOST_VARIABLE;
use copal::hooks::{Phases, current, run};

use crate::kit::added::is_added;
use crate::support::{Site, program};

type Environment = BTreeMap<String, String>;

/// A program that writes down what it finds, in a file of this name below the root.
fn dumps(site: &Site, path: &str, name: &str) {
    program(&site.at(path), &format!("#!/bin/sh\nenv > {}\n", site.at(name).display()), "755");
}

fn seen(site: &Site, name: &str) -> Environment {
    let text = site.read(name);
    std::fs::remove_file(site.at(name)).unwrap();
    let pairs = text.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned()));
    pairs.filter(|(name, _)| !is_added(name)).collect()
}

/// Our own, and these.
fn ours_with(more: &[(&str, &str)]) -> Environment {
    let own = std::env::vars().filter(|(name, _)| !is_added(name) && name != "CRYPT");
    own.chain(more.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))).collect()
}

#[test]
fn the_host_engine_is_named_to_the_running_systems_hooks_by_an_update_alone() {
    let site = Site::new();
    let during = ("DURING_UPDATE", "0");
    assert_eq!(HOST_VARIABLE, ("DOCKER_HOST", "unix:///var/run/balena-host.sock"));
    // As a release installs them, and without these programs.
    dumps(&site, "usr/bin/hostapp-update-hooks", "of-program");
    dumps(&site, "usr/bin/hostapp-update-hooks-v2", "of-program");
    current::restore(&site.paths(), &[HOST_VARIABLE]).unwrap();
    assert_eq!(seen(&site, "of-program"), ours_with(&[HOST_VARIABLE, during]), "undo of an update");
    current::restore(&site.paths(), &[]).unwrap();
    assert_eq!(seen(&site, "of-program"), ours_with(&[during]), "altboot");
    current::commit(&site.paths()).unwrap();
    assert_eq!(seen(&site, "of-program"), ours_with(&[during]), "commit");

    for name in ["hostapp-update-hooks", "hostapp-update-hooks-v2"] {
        std::fs::remove_file(site.at("usr/bin").join(name)).unwrap();
    }
    let dir = site.at("etc/hostapp-update-hooks.d/").display().to_string();
    let dir = ("HOOKS_DIR", dir.as_str());
    dumps(&site, "etc/hostapp-update-hooks.d/1-x", "of-hook");
    dumps(&site, "etc/hostapp-update-hooks.d/2/commit", "of-commit");
    current::restore(&site.paths(), &[HOST_VARIABLE]).unwrap();
    assert_eq!(seen(&site, "of-hook"), ours_with(&[HOST_VARIABLE, during, dir]), "undo of an update");
    current::restore(&site.paths(), &[]).unwrap();
    assert_eq!(seen(&site, "of-hook"), ours_with(&[during, dir]), "altboot");
    current::commit(&site.paths()).unwrap();
    assert_eq!(seen(&site, "of-commit"), ours_with(&[during, dir]), "commit");
}

#[test]
fn with_the_helpers_for_a_tpm_its_tools_get_the_device_to_use() {
    let site = Site::new();
    dumps(&site, "hooks/1-x", "of-hook");
    let dir = format!("{}/", site.hooks().display());
    let expected =
        |more: &[(&str, &str)]| ours_with(&[&[("DURING_UPDATE", "0"), ("HOOKS_DIR", &dir)], more].concat());
    let found = || {
        run(&site.paths(), &site.run(Phases::FORWARD)).unwrap();
        seen(&site, "of-hook")
    };
    for helper in
        ["usr/sbin/balena-config-defaults", "usr/libexec/os-helpers-sb", "usr/libexec/os-helpers-tpm2"]
    {
        assert_eq!(found(), expected(&[]), "before {helper}");
        program(&site.at(helper), "# a helper\n", "755");
    }
    assert_eq!(found(), expected(&[("TPM2TOOLS_TCTI", "device:/dev/tpmrm0")]));
}
