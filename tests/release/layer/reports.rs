//! What the layer takes or does otherwise than a board may expect is reported by each build, and not only by the one that parses the recipe.

use serde_json::{Value, json};

use super::answers;

fn reports(values: Value) -> (Vec<String>, bool) {
    let answer = answers("flasher_conf.py", &[values]).remove(0);
    let said =
        answer["said"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect();
    (said, answer["cached"].as_bool().unwrap())
}

#[test]
fn a_warning_comes_from_a_parse_cache_too() {
    let old = json!({"OVERRIDES": "arm:board", "INTERNAL_DEVICE_KERNEL_board": "mmcblk0"});
    let (said, cached) = reports(old);
    assert!(said.len() == 1 && said[0].starts_with("warning: resin-init-flasher: "), "{said:?}");
    assert!(!cached, "the next build does not parse the recipe, and does not warn");

    let (said, cached) = reports(json!({"SIGN_API": "https://sign"}));
    assert!(said.len() == 1 && said[0].contains("does not install encrypted systems") && !cached, "{said:?}");
}

#[test]
fn a_task_does_not_repeat_a_warning() {
    let (said, _) = reports(json!({"SIGN_API": "https://sign", "BB_WORKERCONTEXT": "1"}));
    assert!(said.is_empty(), "{said:?}");
}

#[test]
fn a_recipe_without_a_warning_stays_in_the_parse_cache() {
    let (said, cached) = reports(json!({"OVERRIDES": "arm:board", "INTERNAL_DEVICE_KERNEL": "mmcblk0"}));
    assert!(said.is_empty() && cached, "{said:?}");
}
