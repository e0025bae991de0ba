//! A file of meta-balena that copal was never compared with is not replaced in silence.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::answers as answers_of;
use crate::kit::needs::{needs, tools};

fn answer(case: Value) -> Value {
    answers_of("replace.py", &[case]).remove(0)
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn an_unknown_version_stops_the_build_until_it_is_accepted() {
    needs!(tools);
    let rows = [
        ("balena-rollback", "rollback-health"),
        ("balena-rollback", "rollback-health.service"),
        ("hostapp-update", "hostapp-update"),
        ("hostapp-update-hooks", "75-supervisor-db/75-forward_supervisor-db"),
        ("systemd", "resin_update_state_probe"),
    ];
    let mut cases = Vec::new();
    for (recipe, name) in rows {
        let known = json!({name.rsplit('/').next().unwrap(): "as it was"});
        let mut case = json!({"recipe": recipe, "sources": {name: "own"}, "known": known});
        if recipe == "systemd" {
            case["sources"]["65-resin-update-state.rules"] = json!("own");
        }
        cases.push(case.clone());
        case["accept"] = json!(format!("{name}:{}", digest("own")));
        cases.push(case.clone());
        // The next version is another one.
        case["texts"] = json!({name: "own, and more"});
        cases.push(case);
    }
    for ((_, name), said) in rows.iter().zip(answers_of("replace.py", &cases).chunks(3)) {
        let accept = format!("COPAL_ACCEPT_UPSTREAM += \"{name}:{}\"", digest("own"));
        let stopped = |said: &Value| {
            said.as_str().filter(|said| said.contains("COPAL_ACCEPT_UPSTREAM")).map(str::to_owned)
        };
        let first = stopped(&said[0]).unwrap_or_else(|| panic!("{name} is not stopped: {}", said[0]));
        for word in [*name, "v1.0.0 to v2.0.0", "./dev upstream", &accept] {
            assert!(first.contains(word), "{word}: {first}");
        }
        assert_eq!(stopped(&said[1]), None, "{name}");
        assert!(stopped(&said[2]).is_some(), "{name}: {}", said[2]);
    }
}

#[test]
fn a_file_that_went_to_another_recipe_stops_the_build() {
    needs!(tools);
    let mut case =
        json!({"recipe": "balena-rollback", "sources": {}, "known": {"rollback-health": "as it was"}});
    let said = answer(case.clone());
    assert!(said.as_str().unwrap().contains("the recipe has no rollback-health"), "{said}");
    case["accept"] = json!("rollback-health:none");
    assert_eq!(answer(case), json!({}));
}

/// What a board keeps as the shell file that it is, copal does not replace.
#[test]
fn hooks_that_stay_and_hooks_of_boards_may_have_any_version() {
    needs!(tools);
    let case = |owner: &str, keep: &str| json!({"recipe": "hostapp-update-hooks", "sources": {"80-rollback": owner}, "known": {"80-rollback": "as it was"}, "keep": keep});
    assert_eq!(answer(case("own", "80-rollback")), json!({"80-rollback": "own"}));
    assert_eq!(answer(case("board", "")), json!({"80-rollback": "board"}));
}

/// Of all that copal puts in the place of meta-balena's; in a range that ends with the release that the pages speak of.
#[test]
fn the_list_of_versions_has_each_file_that_copal_replaces() {
    let top = env!("CARGO_MANIFEST_DIR");
    let read = |name: &str| fs::read_to_string(format!("{top}/{name}")).unwrap();
    let list = read("recipes/conf/copal_upstream.inc");
    let mut listed = BTreeSet::new();
    for row in list.split("\nCOPAL_UPSTREAM[").skip(1) {
        let (name, digests) = row.split_once("] = \"").unwrap();
        assert!(listed.insert(name), "{name} is there twice");
        let digests: Vec<&str> =
            digests.split(['\\', '\n', ' ', '"']).filter(|word| !word.is_empty()).collect();
        assert!(!digests.is_empty(), "{name} has no digest");
        for digest in digests {
            assert!(
                digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{name}: {digest}"
            );
        }
    }
    // Copal's own; and what comes from a file with another name, or of boards alone.
    let ours = [
        "0-carry-boot",
        "copal-boot-check.service",
        "copal-commit-hooks.service",
        "hostapp-update-hooks-v2",
        "85-after_os-blocks-extensions",
    ];
    let packages = [
        "resin-init-flasher",
        "hostapp-update",
        "hostapp-update-hooks",
        "balena-rollback",
        "optional:uboot",
        "optional:grub",
        "optional:balena-bootloader",
        "optional:os-blocks-extensions",
        "optional:secure-boot",
        "optional:os-helpers-reboot",
        "optional:udev",
    ];
    let contents = read("scripts/contents.tsv");
    let replaced: BTreeSet<&str> = contents
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .filter(|row| packages.contains(&row[0]) && row[1] != "enable" && !row[3].contains("/man/"))
        .map(|row| row[3].rsplit('/').next().unwrap())
        .filter(|name| !ours.contains(name))
        .collect();
    // What copal takes the place of with its program alone, or with a file of another name.
    let taken = ["balena-init-flasher-efi", "balena-init-flasher-tpm", "cryptsetup-efi-tpm"];
    assert!(replaced.is_disjoint(&BTreeSet::from(taken)));
    assert_eq!(listed, &replaced | &BTreeSet::from(taken));
    let newest =
        list.split_once("COPAL_UPSTREAM_RELEASES = \"v2.103.0 to ").unwrap().1.split('"').next().unwrap();
    assert!(read("docs/compatibility.md").contains(&format!("(from meta-balena {newest})")), "{newest}");
}
