//! What is on the bus, and who may call it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::bus::{DONE, JOB, MANAGER, NAME, Place, TOP, has, until};
use crate::kit::needs::{is_root, needs};

/// Every member of an interface of ours in introspection data, with its types.
fn members(xml: &str) -> BTreeSet<String> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(xml, options).unwrap();
    let mut all = BTreeSet::new();
    for interface in document.descendants().filter(|n| n.has_tag_name("interface")) {
        let name = interface.attribute("name").unwrap();
        if !name.starts_with(NAME) {
            continue;
        }
        for member in interface.children().filter(roxmltree::Node::is_element) {
            let of = |n: &roxmltree::Node<'_, '_>| {
                let values = ["name", "type", "direction", "access", "value"];
                values.iter().filter_map(|a| n.attribute(*a)).collect::<Vec<_>>().join(" ")
            };
            let inner: Vec<String> =
                member.children().filter(roxmltree::Node::is_element).map(|n| of(&n)).collect();
            let tag = member.tag_name().name();
            all.insert(format!("{name} {tag} {} ({})", of(&member), inner.join(", ")));
        }
    }
    all
}

#[test]
fn what_is_shipped_is_what_is_served() {
    let Some(place) = Place::new("introspection") else { return };
    let _service = place.service(&[]);
    let job = place.update(&["sa{sv}", "a", "0"]).unwrap();
    let mut served = BTreeSet::new();
    for path in [TOP, "/io/balena/Copal1/slot/A", &job] {
        let out = Command::new("gdbus")
            .args(["introspect", "--xml", "--address", &place.address(), "--dest", NAME, "-o", path])
            .output()
            .unwrap();
        served.extend(members(&String::from_utf8(out.stdout).unwrap()));
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/io.balena.Copal1.xml");
    let shipped = members(&fs::read_to_string(file).unwrap());
    assert!(shipped.len() >= 30, "{shipped:#?}");
    assert_eq!(shipped, served);
    // The documentation has each by its name.
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/dbus.md")).unwrap();
    for member in shipped {
        let name = member.split(' ').nth(2).unwrap().trim_start_matches('(');
        assert!(text.contains(&format!("`{name}")), "{name} in dbus.md");
    }
}

#[test]
fn objects_are_where_they_are_said_to_be() {
    let Some(place) = Place::new("objects") else { return };
    let _service = place.service(&[]);
    let watch = place.watch();
    let job = place.update(&["sa{sv}", "a", "0"]).unwrap();
    place.wait_for_state(&job, "succeeded");
    let tree = String::from_utf8(place.busctl(&["tree", "--list", NAME]).output().unwrap().stdout).unwrap();
    let paths: Vec<&str> = tree.lines().map(str::trim).collect();
    for path in [TOP, "/io/balena/Copal1/slot/A", "/io/balena/Copal1/slot/B", &job] {
        assert!(paths.contains(&path), "{tree}");
    }
    let managed = place.call(TOP, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects", &[]).unwrap();
    for part in [&format!("\"{job}\""), "slot/A", "slot/B", JOB, "io.balena.Copal1.Slot", "\"Bootable\""] {
        assert!(managed.contains(part), "{part}: {managed}");
    }
    watch.wait_for("InterfacesAdded");
    place.update(&["sa{sv}", "a", "0"]).unwrap();
    watch.wait_for("InterfacesRemoved");
}

#[test]
fn where_nothing_is_known_nothing_is_said() {
    let Some(place) = Place::new("no device") else { return };
    let _service = place.service(&[]);
    for name in ["Phase", "BootSlot", "NextSlot", "LastError"] {
        assert_eq!(place.property(TOP, MANAGER, name), "", "{name}");
    }
    assert_eq!(place.property(TOP, MANAGER, "Version"), env!("CARGO_PKG_VERSION"));
    let slot = |name| place.property("/io/balena/Copal1/slot/B", "io.balena.Copal1.Slot", name);
    assert_eq!((slot("Name"), slot("State"), slot("Bootable")), ("B".into(), String::new(), "false".into()));
    let status = place.call(TOP, MANAGER, "Status", &[]).unwrap();
    assert!(status.contains(r#"\"problems\":[{"#), "{status}");
}

#[test]
fn only_root_may_call() {
    needs!(is_root, |test| has(test, &["setpriv"]));
    let Some(mut place) = Place::new("policy") else { return };
    let job = "/io/balena/Copal1/job/1";
    // By the bus's policy; then, where the bus lets everything through, by the service itself.
    for by_bus in [true, false] {
        place.says(&[DONE, "exit 0"]);
        place.go(0);
        let service = place.service(&[]);
        let id = if by_bus { job.to_owned() } else { "/io/balena/Copal1/job/2".to_owned() };
        assert_eq!(place.update(&["sa{sv}", "a", "0"]).unwrap(), id);
        let owner = place.owner().unwrap();
        // A call to the connection itself is not one to its name.
        let names = [NAME, owner.split('"').nth(1).unwrap()];
        let properties = "org.freedesktop.DBus.Properties";
        for (path, interface, method, args) in [
            (TOP, MANAGER, "Update", &["sa{sv}", "a", "0"][..]),
            (TOP, MANAGER, "Flash", &["a{sv}", "0"]),
            (TOP, MANAGER, "Plan", &["a{sv}", "0"]),
            (TOP, MANAGER, "MarkGood", &[]),
            (TOP, MANAGER, "Rollback", &[]),
            (TOP, MANAGER, "Status", &[]),
            (&id, JOB, "Cancel", &[]),
            (TOP, properties, "GetAll", &["s", MANAGER]),
            (&id, properties, "Get", &["ss", JOB, "Percent"]),
            (TOP, "org.freedesktop.DBus.Introspectable", "Introspect", &[]),
            (TOP, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects", &[]),
            (TOP, "org.freedesktop.DBus.Peer", "Ping", &[]),
        ] {
            for name in names {
                let out = Command::new("setpriv")
                    .args(["--reuid=65534", "--regid=65534", "--clear-groups", "busctl"])
                    .arg(format!("--address={}", place.address()))
                    .args([&["call", name, path, interface, method][..], args].concat())
                    .output()
                    .unwrap();
                let said = String::from_utf8(out.stderr).unwrap();
                assert!(!out.status.success() && out.stdout.is_empty(), "{method}");
                assert!(
                    said.contains("Access denied") || said.contains("only root may call"),
                    "{method}: {said}"
                );
            }
        }
        assert_eq!(place.property(&id, JOB, "State"), "running", "it was not cancelled");
        place.go(9);
        place.wait_for_state(&id, "succeeded");
        drop(service);
        until("its name is free", || place.owner().is_none());
        if by_bus {
            place.stop_bus();
            place.start_open_bus();
        }
    }
}
