//! What hooks find in their environment, beside what those of meta-balena's updater find ([docs/hooks.md], "What a hook finds").

use std::collections::BTreeMap;

use crate::copal::{Board, ready};
use crate::kit::added::is_added;
use crate::kit::needs::needs;
use crate::rig::{Rig, can_run, stderr};

/// What the updater of meta-balena exports (`hostapp-update` of v8.0.2).
const HOST: (&str, &str) = ("DOCKER_HOST", "unix:///var/run/balena-host.sock");

type Environment = BTreeMap<String, String>;

/// What a hook has written to `/mnt/data/env-NAME`, without what nobody has given it.
fn seen(rig: &Rig, name: &str) -> Environment {
    let text = rig.text(&format!("mnt/data/env-{name}"));
    let pairs = text.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned()));
    pairs.filter(|(name, _)| !is_added(name)).collect()
}

/// What an update is called with, and these.
fn called_with(more: &[(&str, &str)]) -> Environment {
    let caller =
        [("PATH", "/usr/bin:/usr/sbin"), ("HOME", "/root"), ("COPAL_LOG", "info"), ("OF_THE_CALLER", "a b")];
    caller.iter().chain(more).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn dumps(name: &str) -> String {
    format!("env > /mnt/data/env-{name}\n")
}

/// An update that its caller has given another engine's address, and of which a hook fails in the end.
fn failing_update(rig: &Rig) {
    let mut command = rig.command(&["hostapp-update", "-f", "/mnt/data/os.tar"]);
    command.env("OF_THE_CALLER", "a b").env("DOCKER_HOST", "unix:///var/run/other.sock").env("CRYPT", "1");
    let out = crate::rig::wait(command.spawn().unwrap());
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
}

#[test]
fn every_hook_of_an_update_finds_what_the_script_gave_it() {
    needs!(can_run);
    let rig = Rig::ready();
    for at in ["before", "forward"] {
        rig.hook(at, &dumps(at));
    }
    rig.hook("after", &format!("{}exit 1\n", dumps("after")));
    rig.program(
        "hostapp-update-hooks",
        &format!(
            "#!/bin/sh\n{}printf 'resin_root_part=2\\nupgrade_available=0\\n' > /mnt/boot/resinOS_uEnv.txt\n",
            dumps("current")
        ),
    );
    failing_update(&rig);
    for (at, during) in [("before", "1"), ("after", "1"), ("current", "0")] {
        assert_eq!(seen(&rig, at), called_with(&[HOST, ("DURING_UPDATE", during)]), "{at}");
    }
    // In a container of the release there is what its image says, and what the engine adds.
    let forward = seen(&rig, "forward");
    let names: Vec<&str> = forward.keys().map(String::as_str).collect();
    assert_eq!(names, ["DURING_UPDATE", "HOME", "HOSTNAME", "PATH"]);
    assert_eq!((forward["DURING_UPDATE"].as_str(), forward["PATH"].as_str()), ("1", "/bin:/usr/bin"));
}

#[test]
fn so_do_hooks_that_copal_runs() {
    let Some(rig) = ready("so_do_hooks_that_copal_runs", Board::Uboot) else { return };
    let dir = "/etc/hostapp-update-hooks.d/";
    rig.put("etc/hostapp-update-hooks.d/0-env", format!("#!/bin/sh\n{}", dumps("current")));
    rig.ok(&["chmod", "755", "/etc/hostapp-update-hooks.d/0-env"]);
    // A hook of the release fails.
    rig.put("mnt/data/fail-999-fail", "");
    for runner in [true, false] {
        if !runner {
            rig.ok(&["rm", "/usr/bin/hostapp-update-hooks"]);
        }
        rig.ok(&["rm", "-f", "/mnt/data/env-current"]);
        failing_update(&rig);
        let expected = called_with(&[HOST, ("DURING_UPDATE", "0"), ("HOOKS_DIR", dir)]);
        assert_eq!(seen(&rig, "current"), expected, "with a runner: {runner}");
    }
}
