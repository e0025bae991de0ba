//! What the layer takes or does otherwise than a board may expect is reported by each build, and not only by the one that parses the recipe.

use serde_json::{Value, json};

use super::answers;
use crate::kit::needs::{needs, tools};

fn reports(values: Value) -> (Vec<String>, bool) {
    let answer = answers("flasher_conf.py", &[values]).remove(0);
    let said =
        answer["said"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect();
    (said, answer["cached"].as_bool().unwrap())
}

/// A machine whose layer has an override in the old syntax.
fn old(mut more: Value) -> Value {
    more["OVERRIDES"] = json!("arm:board");
    more["INTERNAL_DEVICE_KERNEL_board"] = json!("mmcblk0");
    more
}

#[test]
fn a_warning_comes_from_a_parse_cache_too() {
    needs!(tools);
    let (said, cached) = reports(old(json!({})));
    assert!(said.len() == 1 && said[0].starts_with("warning: resin-init-flasher: "), "{said:?}");
    assert!(!cached, "the next build does not parse the recipe, and does not warn");
}

#[test]
fn a_task_does_not_repeat_a_warning() {
    needs!(tools);
    let (said, _) = reports(old(json!({"BB_WORKERCONTEXT": "1"})));
    assert!(said.is_empty(), "{said:?}");
}

#[test]
fn a_recipe_without_a_warning_stays_in_the_parse_cache() {
    needs!(tools);
    let (said, cached) = reports(json!({"OVERRIDES": "arm:board", "INTERNAL_DEVICE_KERNEL": "mmcblk0"}));
    assert!(said.is_empty() && cached, "{said:?}");
}

#[test]
fn a_board_with_secure_boot_gets_the_tools_of_encrypted_installations() {
    needs!(tools);
    let made = answers(
        "flasher_conf.py",
        &[json!({"SIGN_API": "https://sign"}), json!({"SIGN_API": ""}), json!({})],
    );
    let tools: Vec<&Value> = made.iter().map(|answer| &answer["tools"]).collect();
    assert_eq!(tools, [&json!(["cryptsetup", "e2fsprogs-mke2fs"]), &json!([]), &json!([])]);
}

#[test]
fn the_configuration_names_the_kernel_where_copal_does_secure_boot_itself() {
    needs!(tools);
    let answer = |kernel: &str| {
        let taken = json!({"SIGN_API": "https://sign", "COPAL_TAKEN": "a:/a", "KERNEL_IMAGETYPE": kernel});
        answers("flasher_conf.py", &[taken]).remove(0)
    };
    let line = |answer: &Value| answer["conf"].as_str().unwrap().contains("\nKERNEL_IMAGETYPE=bzImage\n");
    assert!(line(&answer("bzImage")) && answer("bzImage")["wrong"] == json!([]));
    for bad in ["", "/boot/bzImage", "bzImage vmlinux", "$(reboot)"] {
        let wrong = answer(bad)["wrong"][0].as_str().unwrap_or_else(|| panic!("{bad} is taken")).to_owned();
        assert!(wrong.starts_with(&format!("KERNEL_IMAGETYPE = \"{bad}\"")), "{wrong}");
    }
    let without =
        answers("flasher_conf.py", &[json!({"SIGN_API": "https://sign", "KERNEL_IMAGETYPE": "bzImage"})])
            .remove(0);
    assert!(!line(&without));
}
