//! The board's variables for updates and device trees become the file that the program reads.

use copal::config::paths::Paths;
use copal::config::update_conf::{self, DeviceTreeKey, DeviceTreePlace, UpdateConf};
use serde_json::{Value, json};

use super::answers as answers_of;
use crate::kit::needs::{needs, tools};

fn answers(cases: &[Value]) -> Vec<Value> {
    answers_of("update_conf.py", cases)
}

/// What the program reads from the file that the layer makes.
fn read(answer: &Value) -> UpdateConf {
    let root = tempfile::tempdir().unwrap();
    let paths = Paths::new(root.path());
    std::fs::create_dir_all(paths.at("/etc/copal")).unwrap();
    std::fs::write(paths.at(update_conf::FILE), answer["conf"].as_str().expect("no file")).unwrap();
    UpdateConf::read(&paths).unwrap()
}

#[test]
fn the_program_reads_what_a_board_sets() {
    needs!(tools);
    let all = DeviceTreeKey::ALL.map(DeviceTreeKey::as_str).join("  ");
    let made = answers(&[
        json!({"COPAL_DEVICE_TREE_KEYS": all, "COPAL_DEVICE_TREE_PLACE": "boot-first", "COPAL_DEVICE_TREE_REQUIRED": "1",
            "COPAL_ALWAYS_READ_SLOT": "A", "COPAL_CARRY_BOOT": " fw.bin  cal/wifi-1.2_b.bin "}),
        json!({"COPAL_DEVICE_TREE_KEYS": ""}),
        json!({}),
        json!({"COPAL_CARRY_BOOT": "", "COPAL_DEVICE_TREE_PLACE": " "}),
        json!({"OWN": "ALWAYS_READ_SLOT=B\n"}),
    ]);
    let conf = read(&made[0]);
    assert_eq!(conf.device_tree_keys, DeviceTreeKey::ALL);
    assert_eq!(conf.device_tree_place, DeviceTreePlace::BootFirst);
    assert!(conf.device_tree_required);
    assert_eq!(conf.always_read_slot, Some("A"));
    assert_eq!(conf.carry_boot, ["fw.bin", "cal/wifi-1.2_b.bin"].map(std::path::PathBuf::from));
    assert_eq!(made[0]["arch"], "board", "the package is that of one machine");

    assert!(read(&made[1]).device_tree_keys.is_empty(), "no setting counts");
    for untouched in &made[2..4] {
        assert_eq!(untouched, &json!({"conf": "", "arch": "armv8a"}));
    }
    assert_eq!(made[4]["conf"], "ALWAYS_READ_SLOT=B\n", "the board's own file stays");
}

/// Whatever the program would take for the defaults on a device.
#[test]
fn a_wrong_value_stops_the_build_and_is_named() {
    needs!(tools);
    let rows = [
        ("COPAL_DEVICE_TREE_KEYS", "custom_fdt_file,fdtfile"),
        ("COPAL_DEVICE_TREE_KEYS", "fdtfile FDTDIR"),
        ("COPAL_DEVICE_TREE_PLACE", "both"),
        ("COPAL_DEVICE_TREE_PLACE", "root boot"),
        ("COPAL_DEVICE_TREE_REQUIRED", "yes"),
        ("COPAL_ALWAYS_READ_SLOT", "a"),
        ("COPAL_CARRY_BOOT", "/boot/x"),
        ("COPAL_CARRY_BOOT", "x ../y"),
        ("COPAL_CARRY_BOOT", "x/../y"),
        ("COPAL_CARRY_BOOT", ".."),
        ("COPAL_CARRY_BOOT", "."),
        ("COPAL_CARRY_BOOT", "folder/"),
        ("COPAL_CARRY_BOOT", "a$b"),
        ("COPAL_CARRY_BOOT", "a\\b"),
        ("COPAL_CARRY_BOOT", "a\"b"),
        ("COPAL_CARRY_BOOT", "a;b"),
        ("COPAL_CARRY_BOOT", "größe"),
    ];
    let cases: Vec<Value> = rows.iter().map(|(name, value)| json!({*name: value})).collect();
    for ((name, value), stopped) in rows.iter().zip(answers(&cases)) {
        let message = stopped.as_str().unwrap_or_else(|| panic!("{name} = {value}: {stopped}"));
        let worst = value.split(' ').next_back().unwrap();
        for word in [*name, worst, "docs/integrating.md"] {
            assert!(message.contains(word), "{name} = {value}: {word}: {message}");
        }
    }
}

/// Two packages with one file would end the build of the image.
#[test]
fn a_file_of_the_boards_own_beside_variables_stops_the_build() {
    needs!(tools);
    let case = json!({"OWN": "ALWAYS_READ_SLOT=B\n", "COPAL_DEVICE_TREE_PLACE": "boot"});
    let stopped = answers(&[case]).remove(0);
    let message = stopped.as_str().unwrap_or_else(|| panic!("{stopped}"));
    assert!(message.contains("COPAL_DEVICE_TREE_PLACE") && message.contains("update.conf"), "{message}");
}
