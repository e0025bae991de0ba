//! Device trees beside the tools that are made of libfdt and of the compiler.

use std::path::Path;
use std::process::{Command, Stdio};

use copal::device_tree::blob::Blob;

use crate::kit::device_tree::device_tree;
use crate::kit::needs::{needs, tools};
use crate::kit::prove;

const SOURCE: &str = r#"/dts-v1/;
/memreserve/ 0x1000 0x2000;
/ {
    model = "A board";
    #address-cells = <1>;
    a-property-name-that-is-longer-than-the-31-bytes-of-the-specification;
    chosen { bootargs = "console=ttyS0"; };
    a-node-name-that-is-longer-than-the-31-bytes-of-the-specification@0 { reg = <0>; data = [00 01 02]; };
    bus { one: device@1 { link = <&one>; inner { deep = "er"; }; }; };
};
"#;

/// Runs a tool on a tree. `None` where it refuses it: by its exit status, or by a word about an unknown tag, after which `fdtdump` goes on.
fn read_by(tool: &[&str], file: &Path) -> Option<Vec<u8>> {
    let ended = Command::new(tool[0]).args(&tool[1..]).arg(file).stdin(Stdio::null()).output().unwrap();
    let unknown = ended.stderr.windows(11).any(|w| w == b"Unknown tag");
    (ended.status.success() && !unknown).then_some(ended.stdout)
}

fn compiled(folder: &Path) -> Vec<u8> {
    let source = folder.join("tree.dts");
    std::fs::write(&source, SOURCE).unwrap();
    read_by(&["dtc", "-q", "-@", "-I", "dts", "-O", "dtb"], &source).expect("dtc compiles the tree")
}

fn properties(tree: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    Blob::check(tree).unwrap().properties(&mut |nodes, property| {
        let path = nodes.join(&b'/');
        all.push(format!("{}/{}", String::from_utf8_lossy(&path), String::from_utf8_lossy(property.name)));
    });
    all
}

#[test]
fn each_property_has_its_place() {
    needs!(tools);
    let folder = tempfile::tempdir().unwrap();
    let tree = compiled(folder.path());
    let all = properties(&tree);
    assert_eq!(all[..2], ["/model", "/#address-cells"]);
    assert!(all.contains(&"/bus/device@1/inner/deep".to_owned()), "{all:?}");
    assert!(all.iter().any(|name| name.len() > 60), "{all:?}");
    // A loader asks for more room behind the tree.
    assert_eq!(properties(&[&tree[..], &[0; 512]].concat()), all);
    for len in 0..tree.len() {
        assert!(Blob::check(&tree[..len]).is_err(), "{len} of {} bytes", tree.len());
    }
}

/// What is accepted, both tools read; what is refused, one of them refuses. Both ignore the size of the structure, in which libfdt keeps.
#[test]
fn damaged_trees_are_judged_as_the_tools_judge_them() {
    needs!(tools);
    let test = "damaged_trees_are_judged_as_the_tools_judge_them";
    let folder = tempfile::tempdir().unwrap();
    let tree = compiled(folder.path());
    let file = folder.path().join("damaged.dtb");
    let (mut accepted, mut refused) = (0, 0);
    for mut random in prove::draws("inputs", test, 10_000, 150) {
        let mut damaged = tree.clone();
        for _ in 0..random.usize(1..3) {
            // The header is a small part of the tree, and its fields are words.
            let most = if random.u8(..4) == 0 { 40 } else { damaged.len() };
            let at = random.usize(..most);
            damaged[at] = if random.bool() { random.u8(..) } else { damaged[at] ^ (1 << random.u32(..8)) };
        }
        if random.u8(..8) == 0 {
            damaged.truncate(random.usize(..damaged.len()));
        }
        std::fs::write(&file, &damaged).unwrap();
        let ours = Blob::check(&damaged).map(drop);
        let dump = read_by(&["fdtdump"], &file).is_some();
        let compiler = read_by(&["dtc", "-q", "-f", "-I", "dtb", "-O", "dts"], &file).is_some();
        match ours {
            Ok(()) => {
                accepted += 1;
                assert!(dump && compiler, "accepted by fdtdump: {dump}, by dtc: {compiler}; {damaged:02x?}");
            }
            Err(why) => {
                refused += 1;
                let smaller = damaged.get(36..40) < tree.get(36..40);
                assert!(!dump || !compiler || smaller, "{why}, and both tools read it: {damaged:02x?}");
            }
        }
    }
    assert!(accepted > 10 && refused > 10, "{accepted} accepted, {refused} refused");
}

/// A name without an end would be looked for again for each property.
#[test]
fn a_name_has_a_limit() {
    let name = |len: usize| {
        let name = "n".repeat(len);
        Blob::check(&device_tree(&[(&name, &[(&name, b"")])])).map(drop)
    };
    assert_eq!(name(255), Ok(()));
    assert!(name(256).is_err());
}
