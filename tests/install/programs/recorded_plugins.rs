//! The stand-ins for the plug-ins of two board layers do what the real ones do: what these did was recorded.

use std::path::{Path, PathBuf};
use std::process::Command;

fn kit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kit/plugins")
}

/// The board's scenarios with these files: plug-ins, then helpers.
fn trace(board: &str, files: &[PathBuf]) -> String {
    let out = Command::new("bash").arg(kit().join("trace.sh")).arg(board).args(files).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The same files in checkouts of meta-balena and of the board layers; `COPAL_BOARD_LAYERS` is the folder with all three.
fn originals(board: &str, layers: &Path) -> Vec<PathBuf> {
    let (layer, helper) = match board {
        "rpi" => ("meta-balena-rpi-sb", &["os-helpers-otp", "os-helpers-sb"][..]),
        _ => ("meta-balena-hab", &["os-helpers-sb"][..]),
    };
    let recipes = layers.join(layer).join("recipes-support");
    let plugin = |name: &str| recipes.join(format!("resin-init/files/balena-init-flasher-{board}-{name}"));
    let own = helper.iter().map(|name| recipes.join("os-helpers/os-helpers").join(name));
    let common = layers.join("meta-balena/meta-balena-common/recipes-support/os-helpers/os-helpers");
    let common = ["os-helpers-fs", "os-helpers-logging"].map(|name| common.join(name));
    ["secureboot", "diskenc"].map(plugin).into_iter().chain(common).chain(own).collect()
}

fn assert_recorded(board: &str) {
    let recorded = std::fs::read_to_string(kit().join(format!("recorded/{board}.txt"))).unwrap();
    let (_commits, recorded) = recorded.split_once('\n').unwrap();
    let own = [format!("{board}/secureboot"), format!("{board}/diskenc")];
    let helpers = ["fs", "logging", "otp"].map(|name| format!("helpers/os-helpers-{name}"));
    let files: Vec<_> = own.iter().chain(&helpers).map(|file| kit().join(file)).collect();
    assert_same(&trace(board, &files), recorded, "the stand-ins");
    if let Some(layers) = std::env::var_os("COPAL_BOARD_LAYERS") {
        assert_same(&trace(board, &originals(board, Path::new(&layers))), recorded, "the originals");
    }
}

fn assert_same(found: &str, recorded: &str, whose: &str) {
    let differs = found.lines().zip(recorded.lines()).position(|(f, r)| f != r);
    let at = differs.unwrap_or_else(|| found.lines().count().min(recorded.lines().count()));
    let near = |text: &str| text.lines().skip(at.saturating_sub(12)).take(20).collect::<Vec<_>>().join("\n");
    assert!(found == recorded, "{whose}:\n{}\n\nrecorded:\n{}", near(found), near(recorded));
}

#[test]
fn a_raspberry_pi_is_stood_in_for_as_it_behaves() {
    assert_recorded("rpi");
}

#[test]
fn an_imx_is_stood_in_for_as_it_behaves() {
    assert_recorded("imx");
}
