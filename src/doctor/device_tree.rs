//! Device trees that the owner's settings name, and the files that the owner has pinned.

use super::{Findings, Patient};
use crate::config::paths::Paths;
use crate::device_tree::live::Live;
use crate::device_tree::pins::Pins;
use crate::device_tree::{self, ExpectedFiles, Named};
use crate::error::{Code, Error};

pub(super) fn look(patient: &Patient<'_>, found: &mut Findings<'_>) {
    let expected = ExpectedFiles::read(patient.paths);
    for unread in &expected.unread {
        found.warn(unread, "repair or remove the file named here");
    }
    for refused in &expected.refused {
        let (key, name) = (refused.key, &refused.name);
        if name.ends_with('\r') {
            found.warn(
                format!(
                    "{key} names {name:?}, with the carriage return of its line: U-Boot finds no such file"
                ),
                "end the lines of the file with a newline alone",
            );
            continue;
        }
        let text = format!("{key} names {name:?}: that is not a plain path, and no update carries it");
        found.warn(text, "put the file below the boot folder, and name it without `..` and `/` in front");
    }
    for named in &expected.named {
        one(patient.paths, &expected, named, found);
    }
    if expected.named.is_empty() && expected.refused.is_empty() && expected.unread.is_empty() {
        found.ok("no setting names a device tree");
    }
    if let Ok(Some(Live { named: Some(name), is_named: Some(false), .. })) = Live::read(patient.paths) {
        found.warn(
            format!("the kernel has got another device tree than {name}, which a setting names"),
            "compare `dtc -I fs /proc/device-tree` with the file; restart the device if the file is new",
        );
    }
    pins(patient.paths, found);
}

fn one(paths: &Paths, expected: &ExpectedFiles, named: &Named, found: &mut Findings<'_>) {
    let name = named.path.display();
    if let Some(file) = named.file(paths) {
        if let Some(e) = device_tree::damage(named, &file) {
            return found.problem(&e);
        }
        return found.ok(format!("{} names {name}: it is {}", named.key, file.display()));
    }
    let places = named.places(paths, &device_tree::running_boot(paths));
    let places: Vec<_> = places.iter().filter_map(|p| Some(p.parent()?.display().to_string())).collect();
    let mut text = format!("{} names {name}, which is not in {}", named.key, places.join(" nor in "));
    if let Some(other) = named.elsewhere(paths) {
        text += &format!(" ({} is not where this bootloader looks)", other.display());
    }
    if expected.is_required(named) {
        let e = Error::new(Code::DeviceTreeMissing, format!("{text}: this board does not boot without it"));
        return found.problem(&e.object(name));
    }
    found.warn(
        format!("{text}: the bootloader does without it"),
        "copy the file there, or remove its name from the settings",
    );
}

fn pins(paths: &Paths, found: &mut Findings<'_>) {
    let pins = Pins::read(paths);
    for line in &pins.bad {
        found.warn(line.to_string(), "correct or remove the line: it pins nothing");
    }
    for path in &pins.paths {
        let name = path.display();
        let (root, boot) = (device_tree::running_boot(paths).join(path), paths.boot().join(path));
        let there: Vec<_> = [&root, &boot].into_iter().filter(|file| file.is_file()).collect();
        if there.is_empty() {
            found.warn(
                format!(
                    "the pin {name} is stale: neither {} nor {} is there",
                    root.display(),
                    boot.display()
                ),
                "remove its line from copal/keep on the boot partition",
            );
            continue;
        }
        let files: Vec<_> = there.iter().map(|file| file.display().to_string()).collect();
        let own = device_tree::content(&root).ok();
        let what = match device_tree::of_release(paths, path) {
            Some(release) if own.as_ref().is_some_and(|own| *own != release) => {
                ", and not the release's file"
            }
            _ => "",
        };
        found.ok(format!("the pin {name} keeps {}{what}", files.join(" and ")));
    }
}
