//! Board layers that are older than their bitbake, which takes `NAME_machine` for the name of another variable.

use serde_json::{Value, json};

use super::answers;
use crate::kit::needs::{needs, tools};

const KERNEL_VARIABLE: &str = "INTERNAL_DEVICE_KERNEL";

/// What the layer makes of each set of variables of a Kontron board: its target, and the warnings.
fn made(sets: &[Value]) -> Vec<(String, Vec<String>)> {
    let machine = |set: &Value| {
        let mut set = set.clone();
        set["OVERRIDES"] = json!("linux:arm:mx8mm:kontron-mx8mm");
        set
    };
    let of = |answer: Value| {
        assert_eq!(answer["wrong"], json!([]), "{answer}");
        let conf = answer["conf"].as_str().unwrap();
        let kernel = conf.lines().find_map(|line| line.strip_prefix(&format!("{KERNEL_VARIABLE}=")));
        (
            kernel.unwrap().trim_matches('"').to_owned(),
            serde_json::from_value(answer["said"].clone()).unwrap(),
        )
    };
    answers("flasher_conf.py", &sets.iter().map(machine).collect::<Vec<_>>()).into_iter().map(of).collect()
}

/// A line that has been dead since honister must not move the disk that is erased.
#[test]
fn the_value_of_bitbake_beats_an_override_that_it_ignores() {
    needs!(tools);
    let rows = [
        json!({KERNEL_VARIABLE: "mmcblk0", "INTERNAL_DEVICE_KERNEL_kontron-mx8mm": "mmcblk7"}),
        json!({"INTERNAL_DEVICE_KERNEL:mx8mm": "mmcblk0", "INTERNAL_DEVICE_KERNEL_kontron-mx8mm": "mmcblk7"}),
    ];
    for (target, said) in made(&rows) {
        assert_eq!(target, "mmcblk0");
        assert_eq!(said.len(), 1, "{said:?}");
        for line in
            ["INTERNAL_DEVICE_KERNEL = \"mmcblk0\"", "INTERNAL_DEVICE_KERNEL_kontron-mx8mm = \"mmcblk7\""]
        {
            assert!(said[0].contains(line), "{line}: {said:?}");
        }
    }
}

/// Boards in the field have nothing else (balena-asus-tinker-board, balena-allwinner).
#[test]
fn an_override_that_bitbake_ignores_is_taken_where_bitbake_has_no_value() {
    needs!(tools);
    let old = "INTERNAL_DEVICE_KERNEL_kontron-mx8mm";
    let rows = [
        json!({old: "mmcblk7"}),
        json!({KERNEL_VARIABLE: "", old: "mmcblk7"}),
        json!({KERNEL_VARIABLE: " ", old: "mmcblk7"}),
        json!({"INTERNAL_DEVICE_KERNEL:kontron-mx8mm": "", old: "mmcblk7"}),
        // The nearest one, and an empty one is none.
        json!({"INTERNAL_DEVICE_KERNEL_arm": "mmcblk1", old: "mmcblk7"}),
        json!({"INTERNAL_DEVICE_KERNEL_arm": "mmcblk7", old: ""}),
    ];
    for (row, (target, said)) in rows.iter().zip(made(&rows)) {
        assert_eq!(target, "mmcblk7", "{row}");
        assert!(
            said.len() == 1 && said[0].contains("is taken for INTERNAL_DEVICE_KERNEL"),
            "{row}: {said:?}"
        );
    }
}

#[test]
fn lines_of_other_machines_are_named_at_once() {
    needs!(tools);
    let set = json!({KERNEL_VARIABLE: "sda", "INTERNAL_DEVICE_KERNEL_tinker": "mmcblk1", "INTERNAL_DEVICE_KERNEL_nano-air": "mmcblk2",
        "BOOTLOADER_FLASH_DEVICE_1_tinker": "mmcblk1", "BOOTLOADER_FLASH_DEVICE_1": ""});
    let (target, said) = made(&[set]).remove(0);
    assert_eq!((target.as_str(), said.len()), ("sda", 1), "{said:?}");
    let names =
        "BOOTLOADER_FLASH_DEVICE_1_tinker, INTERNAL_DEVICE_KERNEL_nano-air, INTERNAL_DEVICE_KERNEL_tinker.";
    assert!(said[0].ends_with(names), "{said:?}");
}

#[test]
fn where_lines_agree_or_are_in_the_new_syntax_nothing_is_said() {
    needs!(tools);
    let sets = [
        json!({KERNEL_VARIABLE: "sda", "INTERNAL_DEVICE_KERNEL_kontron-mx8mm": "sda"}),
        json!({KERNEL_VARIABLE: "mmcblk0", "INTERNAL_DEVICE_KERNEL:kontron-mx8mm": "sda", "INTERNAL_DEVICE_KERNEL:other": "sdb"}),
        json!({KERNEL_VARIABLE: "sda", "INTERNAL_DEVICE_KERNEL_kontron-mx8mm": ""}),
    ];
    assert_eq!(made(&sets), vec![("sda".to_owned(), Vec::new()); 3]);
}
