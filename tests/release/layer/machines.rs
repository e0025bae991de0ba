//! A machine that the release has no program for is built as if the layer were not there.

use serde_json::{Value, json};

use super::answers;
use crate::kit::needs::{needs, tools};

const X86_64: &str = "x86_64-unknown-linux-musl";
const AARCH64: &str = "aarch64-unknown-linux-musl";
const ARMV7: &str = "armv7-unknown-linux-musleabihf";

/// A machine of balena-raspberrypi, with the variables that its build has.
fn machine(name: &str, arch: &str, overrides: &str, features: &str, digests: &[&str], more: &Value) -> Value {
    let mut machine = json!({"MACHINE": name, "TARGET_ARCH": arch, "MACHINEOVERRIDES": overrides, "TUNE_FEATURES": features,
        "COPAL_SHA256": digests});
    machine.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    machine
}

fn first_raspberry_pi(digests: &[&str]) -> Value {
    // Its TUNE_FEATURES have no word of ARMv6.
    let features = "arm thumb vfp arm1176jzfs callconvention-hard";
    machine("raspberrypi", "arm", "rpi:armv6:raspberrypi", features, digests, &json!({}))
}

fn raspberry_pi_3(digests: &[&str], more: &Value) -> Value {
    let features = "arm vfp cortexa7 neon vfpv4 thumb callconvention-hard";
    machine("raspberrypi3", "arm", "rpi:armv7ve:raspberrypi3", features, digests, more)
}

fn raspberry_pi_4(digests: &[&str], more: &Value) -> Value {
    machine(
        "raspberrypi4-64",
        "aarch64",
        "aarch64:rpi:raspberrypi4-64",
        "aarch64 cortexa72 crc crypto",
        digests,
        more,
    )
}

/// Without the layer: no append, no provider chosen, no recipe; one line says so, in this build and in the next.
fn is_as_without_the_layer(machine: &Value, why: &str) {
    let name = machine["MACHINE"].as_str().unwrap().to_owned();
    let made = answers("machines.py", std::slice::from_ref(machine)).remove(0);
    assert_eq!(made["appends"], false, "{name}: {made}");
    assert_eq!(made["fatrw"], "", "{name}: {made}");
    assert_eq!(made["skipped"]["archive"], format!("{why} (parsed by each build)"), "{name}: {made}");
    assert!(made["skipped"]["source"].is_string(), "{name}: {made}");
    let said = made["said"].as_array().unwrap();
    assert_eq!(said, &[format!("note: copal: {name} is built as without this layer: {why}")], "{name}");
}

/// The configuration chooses the recipe that compiles the program.
fn from_source() -> Value {
    json!({"PREFERRED_VERSION_copal": "0.1.0+source"})
}

fn has_copal(machine: &Value) {
    let made = answers("machines.py", std::slice::from_ref(machine)).remove(0);
    assert_eq!((&made["appends"], &made["fatrw"]), (&json!(true), &json!("copal")), "{machine}: {made}");
    assert_eq!(made["skipped"]["archive"], Value::Null, "{machine}: {made}");
    assert_eq!(made["said"], json!([]), "{machine}");
}

#[test]
fn a_machine_without_a_program_is_built_as_without_the_layer() {
    needs!(tools);
    let release = [X86_64, AARCH64];
    let arm = "there is no copal for processors before ARMv7";
    is_as_without_the_layer(&first_raspberry_pi(&release), arm);
    is_as_without_the_layer(&first_raspberry_pi(&[X86_64, AARCH64, ARMV7]), arm);
    is_as_without_the_layer(&raspberry_pi_3(&release, &json!({})), "the release has no archive for ARMv7");
    let mips = machine("qemumips", "mips", "qemumips", "o32 bigendian fpu-hard", &release, &json!({}));
    is_as_without_the_layer(&mips, "there is no copal for mips");
    let out = json!({"COPAL_ENABLED": "0"});
    is_as_without_the_layer(&raspberry_pi_4(&release, &out), "COPAL_ENABLED is 0");
    // Its sources do not help it.
    let mut chosen = first_raspberry_pi(&release);
    chosen.as_object_mut().unwrap().extend(from_source().as_object().unwrap().clone());
    is_as_without_the_layer(&chosen, arm);
    let source = answers("machines.py", &[chosen]).remove(0)["skipped"]["source"].clone();
    assert_eq!(source, arm);
}

#[test]
fn a_machine_with_a_program_has_copal() {
    needs!(tools);
    has_copal(&raspberry_pi_4(&[X86_64, AARCH64], &json!({})));
    has_copal(&raspberry_pi_3(&[X86_64, AARCH64, ARMV7], &json!({})));
    // A 32-bit system on an ARMv8.
    has_copal(&machine("x", "arm", "armv8a:x", "armv8a", &[ARMV7], &json!({})));
}

/// It is not the machine that lacks something there: the build stops, and says to run `recipes/pin`.
#[test]
fn without_any_digest_no_machine_is_left_out() {
    needs!(tools);
    has_copal(&raspberry_pi_3(&[], &json!({})));
    has_copal(&raspberry_pi_4(&[], &json!({})));
}

/// A missing file would end the parse of all recipes, also of those that have nothing to do with copal.
#[test]
fn a_recipe_without_its_archive_is_left_out_until_the_archive_is_there() {
    needs!(tools);
    let folder = tempfile::tempdir().unwrap();
    let skipped = || {
        let archives = format!("file://{}", folder.path().display());
        let mut more = json!({"COPAL_ARCHIVES": archives, "HOST_ARCH": "aarch64"});
        more.as_object_mut().unwrap().extend(from_source().as_object().unwrap().clone());
        let machine = raspberry_pi_4(&[AARCH64], &more);
        answers("machines.py", &[machine]).remove(0)["skipped"].clone()
    };
    let archive = |kind: &str| folder.path().join(format!("copal-0.1.0-{kind}.tar.zst"));
    let before = skipped();
    for (recipe, kind) in [("archive", AARCH64), ("source", "source")] {
        let said = before[recipe].as_str().unwrap();
        assert!(
            said.starts_with(&format!("there is no {}: make it with", archive(kind).display())),
            "{said}"
        );
        assert!(said.contains("COPAL_ARCHIVES") && said.ends_with("(parsed by each build)"), "{said}");
        std::fs::write(archive(kind), "").unwrap();
    }
    assert_eq!(skipped(), json!({}));
}

#[test]
fn the_source_recipe_needs_no_archive_for_the_machine() {
    needs!(tools);
    let digests = [X86_64, AARCH64, "source"];
    has_copal(&raspberry_pi_3(&digests, &from_source()));
    has_copal(&raspberry_pi_3(&digests, &json!({"PREFERRED_VERSION:pn-copal": "0.1.0+source"})));
    let released = json!({"REQUIRED_VERSION_copal": "0.1.0", "PREFERRED_VERSION_copal": "0.1.0+source"});
    is_as_without_the_layer(&raspberry_pi_3(&digests, &released), "the release has no archive for ARMv7");
}

/// Bitbake takes the only recipe that is left, whatever its DEFAULT_PREFERENCE is: the build would go on with another program than the
/// released one, and say nothing.
#[test]
fn a_missing_archive_is_not_replaced_by_a_program_compiled_from_source() {
    needs!(tools);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("copal-0.1.0-source.tar.zst"), "").unwrap();
    let skipped = |name: &str, more: &[(&str, &str)]| {
        let archives = format!("file://{}", folder.path().display());
        let mut machine = raspberry_pi_4(
            &[AARCH64, "source"],
            &json!({"PN": name, "COPAL_ARCHIVES": archives, "HOST_ARCH": "aarch64"}),
        );
        for (variable, value) in more {
            machine[*variable] = json!(value);
        }
        answers("machines.py", &[machine]).remove(0)["skipped"].clone()
    };
    let reason = |name: &str| {
        format!(
            "it compiles copal only where the configuration has PREFERRED_VERSION_{name} = \"0.1.0+source\""
        )
    };
    // Released, or of another recipe.
    let nothing: [&[(&str, &str)]; 4] = [
        &[],
        &[("PREFERRED_VERSION_copal", "0.1.0")],
        &[("PREFERRED_VERSION_copal-native", "0.1.0+source")],
        &[("PREFERRED_VERSION_copal", "0.1.0+source"), ("REQUIRED_VERSION_copal", "0.1.0")],
    ];
    for chosen in nothing {
        let said = skipped("copal", chosen);
        assert_eq!(said["source"], reason("copal"), "{chosen:?}: {said}");
        assert!(said["archive"].as_str().unwrap().starts_with("there is no "), "{chosen:?}: {said}");
    }
    for variable in ["PREFERRED_VERSION_copal", "PREFERRED_VERSION:pn-copal", "REQUIRED_VERSION_copal"] {
        assert_eq!(skipped("copal", &[(variable, "0.1.0+source")])["source"], Value::Null, "{variable}");
    }
    assert_eq!(skipped("copal", &[("PREFERRED_VERSION_copal", "0.1.0+%")])["source"], Value::Null);
    // The machine that builds follows, unless the configuration says otherwise.
    let native = |more: &[(&str, &str)]| skipped("copal-native", more)["source"].clone();
    assert_eq!(native(&[]), reason("copal-native"));
    assert_eq!(native(&[("PREFERRED_VERSION_copal", "0.1.0+source")]), Value::Null);
    let apart = [("PREFERRED_VERSION_copal", "0.1.0+source"), ("PREFERRED_VERSION_copal-native", "0.1.0")];
    assert_eq!(native(&apart), reason("copal-native"));
}

#[test]
fn the_source_recipe_is_left_out_where_rust_is_older_than_copal_needs() {
    needs!(tools);
    let skipped = |rust: &str| {
        let mut machine = raspberry_pi_4(&[AARCH64], &from_source());
        machine["RUSTVERSION"] = json!(rust);
        answers("machines.py", &[machine]).remove(0)["skipped"]["source"].clone()
    };
    let needed = env!("CARGO_PKG_RUST_VERSION");
    // Those of kirkstone, scarthgap and wrynose.
    for (rust, number) in [("1.59%", "1.59"), ("1.75%", "1.75")] {
        assert_eq!(skipped(rust), format!("copal needs Rust {needed} to be compiled, and this is {number}"));
    }
    assert_eq!(skipped("1.94.1%"), Value::Null);
    assert_eq!(skipped(needed), Value::Null);
}

#[test]
fn without_meta_balena_nothing_is_appended_and_nothing_reported() {
    needs!(tools);
    let mut machine = first_raspberry_pi(&[X86_64]);
    machine["BBFILE_COLLECTIONS"] = json!("core");
    let mut other = raspberry_pi_4(&[X86_64], &json!({}));
    other["BBFILE_COLLECTIONS"] = json!("core");
    for made in answers("machines.py", &[machine, other]) {
        assert_eq!((&made["appends"], &made["said"]), (&json!(false), &json!([])), "{made}");
    }
}

/// A branch with a text of a licence (wrynose has Unicode-3.0) ends its build where a recipe brings another text. A branch without one ends it
/// where the recipe brings none.
#[test]
fn the_recipes_bring_the_text_of_a_licence_where_the_core_layer_has_none() {
    needs!(tools);
    let folder = tempfile::tempdir().unwrap();
    let mut more = from_source();
    more["COMMON_LICENSE_DIR"] = json!(folder.path());
    let machine = raspberry_pi_4(&[AARCH64], &more);
    let texts = || answers("machines.py", std::slice::from_ref(&machine)).remove(0)["texts"].clone();
    let (archive, source) = ("licenses/TEXTS", "scripts/licenses/TEXTS");
    assert_eq!(texts(), json!({"archive": [archive, archive], "source": [source, source]}));
    std::fs::write(folder.path().join("Unicode-3.0"), "").unwrap();
    assert_eq!(texts(), json!({"archive": [null, archive], "source": [null, source]}));
    std::fs::write(folder.path().join("bzip2-1.0.6"), "").unwrap();
    assert_eq!(texts(), json!({"archive": [null, null], "source": [null, null]}));
}
