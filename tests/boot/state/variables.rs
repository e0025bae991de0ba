//! Variables beside the boot decision.

use copal::boot_state::envblock::{DECISION, EnvBlock};
use copal::boot_state::{self, Backend, Named, Variable};
use copal::error::{Code, Effect};
use copal::slot::Slot;

use super::cuts::Rigged;
use super::support::{Device, block, root, state};

const ABI: &str = "kernel_override_abi";
const DECIDED: &str = "bootcount=1\nresin_root_part=A\nupgrade_available=1\n";

fn backend(device: &Device) -> Box<dyn Backend> {
    boot_state::detect(&device.paths).unwrap()
}

fn value(device: &Device, name: &str) -> Option<String> {
    backend(device).variable(name).unwrap()
}

#[test]
fn they_are_read_without_what_is_around_them() {
    let lines = format!("{DECIDED}{ABI}= 12\t\r\nempty=\nblank=  \nodd=a\\\\b\n");
    let device = Device::new(&[("bootenv", &block(&lines))]);
    for (name, wanted) in
        [(ABI, Some("12")), ("empty", None), ("blank", None), ("odd", Some("a\\b")), ("none", None)]
    {
        assert_eq!(value(&device, name).as_deref(), wanted, "{name}");
    }
}

#[test]
fn others_and_the_decision_stay_as_they_are() {
    let lines = format!("first=1\n{DECIDED}{ABI}=12\n# a comment\nlast=z\n");
    let device = Device::new(&[("bootenv", &block(&lines))]);
    backend(&device).set_variables(&[(ABI, Some("1234")), ("new", Some("n"))]).unwrap();
    let wanted = lines.replace("abi=12", "abi=1234") + "new=n\n";
    assert_eq!(device.read("bootenv"), block(&wanted));
    backend(&device).set_variables(&[(ABI, None), ("none", None)]).unwrap();
    assert_eq!(device.read("bootenv"), block(&wanted.replace(&format!("{ABI}=1234\n"), "")));
    assert_eq!(backend(&device).read().unwrap(), state(Named::Slot(Slot::A), 1, true));
}

/// Nothing is written, not even what tidies up behind an earlier change.
fn refused(device: &Device, changes: &[Variable<'_>], why: &str) {
    let names = device.names();
    let before: Vec<Vec<u8>> = names.iter().map(|n| device.read(n)).collect();
    let backend = backend(device);
    let e = backend.set_variables(changes).unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::BootStateUnwritable, Effect::Refused), "{e}");
    assert!(e.message().contains(why), "{why}: {e}");
    assert_eq!(device.names(), names);
    assert_eq!(names.iter().map(|n| device.read(n)).collect::<Vec<_>>(), before);
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let full = format!("{DECIDED}own={}\n", "x".repeat(900));
    let left = "CPL00001.TMP";
    let device = Device::new(&[("bootenv", &block(&full)), (left, b"of an earlier change")]);
    refused(&device, &[(ABI, Some(&"1".repeat(64)))], "it has 1024");
    for name in DECISION {
        refused(&device, &[(ABI, None), (name, Some("B"))], "is part of the boot decision");
        refused(&device, &[(name, None)], "is part of the boot decision");
    }
    for name in ["", "#a", "a=b", "a\nb"] {
        refused(&device, &[(name, Some("1"))], "");
    }
    refused(&device, &[(ABI, Some(" 1"))], "no space for");

    // The bootloader reads no such thing where it takes its selection from.
    let uboot = Device::new(&[("resinOS_uEnv.txt", b"resin_root_part=2\n")]);
    refused(&uboot, &[(ABI, Some("1"))], "U-Boot has no other variables");
    assert_eq!(value(&uboot, "resin_root_part"), None);
    let legacy = Device::new(&[("grub.cfg", b"")]);
    std::fs::create_dir(legacy.at("grub")).unwrap();
    std::fs::write(legacy.at("grub/grub.cfg"), "linux /x root=LABEL=resin-rootA\n").unwrap();
    std::fs::remove_file(legacy.at("grub.cfg")).unwrap();
    let e = backend(&legacy).set_variables(&[(ABI, None)]).unwrap_err();
    assert!(e.message().contains("GRUB without rollback has no other variables"), "{e}");

    // A block without a selection makes GRUB take root B.
    let none = Device::new(&[]);
    let balena = boot_state::balena(&none.paths).unwrap();
    assert_eq!(balena.variable(ABI).unwrap(), None);
    assert_eq!(balena.set_variables(&[(ABI, Some("1"))]).unwrap_err().code(), Code::BootStateUnwritable);
    assert_eq!(none.names(), [""; 0]);
}

/// A damaged block is written anew, and keeps what can be read of it: but not instead of what is asked for.
#[test]
fn a_damaged_block_is_repaired_or_left() {
    let device = Device::new(&[("bootenv", format!("{DECIDED}own=1\n").as_bytes())]);
    backend(&device).set_variables(&[(ABI, Some("12"))]).unwrap();
    // The bootloader did not read the selection, and must not read it now.
    assert_eq!(device.read("bootenv"), block(&format!("own=1\n{ABI}=12\n")));
    let damaged = format!("{DECIDED}own={}\n", "x".repeat(950));
    let device = Device::new(&[("bootenv", damaged.as_bytes())]);
    refused(&device, &[(ABI, Some(&"1".repeat(64)))], "the block has no space for kernel_override_abi");
}

/// However long what stands before them becomes.
#[test]
fn the_boot_decision_stays_in_its_sector() {
    for length in [1, 300, 400, 430, 440, 450, 460, 500, 800] {
        let device = Device::new(&[("bootenv", &block(&format!("own=1\n{DECIDED}last=z\n")))]);
        let long = "x".repeat(length);
        backend(&device).set_variables(&[("own", Some(&long))]).unwrap();
        let new = device.read("bootenv");
        let first = String::from_utf8(new[..512].to_vec()).unwrap();
        for line in DECIDED.lines() {
            assert!(first.contains(&format!("\n{line}\n")), "{length}: {first}");
        }
        let read = EnvBlock::parse(&new).unwrap();
        assert_eq!((read.get("own"), read.get("last")), (Some(long.as_bytes()), Some(&b"z"[..])));
    }
}

/// Stopped before each call, for good or for this call only: the decision is as it was, each variable old or new; and a second
/// attempt succeeds.
#[test]
fn stopped_anywhere() {
    let filler = "x".repeat(420);
    let cases: [(&str, String, &[Variable<'_>]); 5] = [
        ("bootenv", format!("{DECIDED}{ABI}=12\n"), &[(ABI, Some("3456789"))]),
        ("bootenv", format!("{ABI}=12\n{DECIDED}last=z\n"), &[(ABI, None)]),
        // Both sectors, and a replacement.
        ("bootenv", format!("{DECIDED}own={filler}\n{ABI}=12\n"), &[(ABI, Some("3")), ("own", None)]),
        ("bootenv", format!("{ABI}=1\n{DECIDED}last=z\n"), &[(ABI, Some(&"y".repeat(480)))]),
        (
            "grub/grubenv",
            "bootcount=1\nresin_root_part=2\nupgrade_available=1\n".into(),
            &[("kernel_override_abi_committed_A", Some("12"))],
        ),
    ];
    let mut kinds = std::collections::BTreeSet::new();
    for (name, lines, changes) in &cases {
        let fresh = || Device::new(&[(*name, block(lines).as_slice())]);
        let device = fresh();
        let whole = backend(&device);
        let decided = whole.read().unwrap();
        let old: Vec<_> = changes.iter().map(|(n, _)| value(&device, n)).collect();
        let rigged = Rigged::new(usize::MAX, 0);
        whole.set_variables(changes).unwrap();
        let calls = rigged.calls();
        drop(rigged);
        kinds.insert(calls.iter().any(|call| call.starts_with("sector")));
        for (count, from) in [usize::MAX, 1].into_iter().flat_map(|c| (0..calls.len()).map(move |f| (c, f))) {
            let device = fresh();
            let cut = backend(&device);
            let rigged = Rigged::new(from, count);
            assert!(cut.set_variables(changes).is_err() && rigged.met());
            let context = format!("{name}: {count} from {from} of {:?}", rigged.calls());
            drop(rigged);
            assert_eq!(backend(&device).read().unwrap(), decided, "{context}");
            for ((name, new), old) in changes.iter().zip(&old) {
                let now = value(&device, name);
                assert!(now == *old || now.as_deref() == *new, "{context}: {name}={now:?}");
            }
            backend(&device).set_variables(changes).unwrap();
            for (name, new) in *changes {
                assert_eq!(value(&device, name).as_deref(), *new, "{context}");
            }
            assert_eq!(backend(&device).read().unwrap(), decided, "{context}");
        }
    }
    assert_eq!(kinds.len(), 2, "in place and by replacement");
    // What sets the selection afterwards finds a block as before.
    let device = Device::new(&[("bootenv", &block(&cases[0].1))]);
    backend(&device).set_variables(cases[0].2).unwrap();
    backend(&device).set(&root(Slot::B, 3), false).unwrap();
    assert_eq!(value(&device, ABI).as_deref(), Some("3456789"));
}
