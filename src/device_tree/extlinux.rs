//! `extlinux/extlinux.conf`, as U-Boot's `sysboot` reads it (U-Boot 2026.10-rc2, `boot/pxe_utils.c`).

use super::{Files, Found, Key};

const EXTLINUX_CONF: &str = "extlinux/extlinux.conf";

/// What is in a label. Any other word ends it.
const IN_LABEL: [&str; 16] = [
    "menu",
    "kernel",
    "linux",
    "append",
    "initrd",
    "fdt",
    "devicetree",
    "fdtdir",
    "devicetreedir",
    "fdtoverlays",
    "devicetree-overlay",
    "localboot",
    "ipappend",
    "kaslrseed",
    "",
    "#",
];

pub(super) fn read(files: &mut Files<'_>, found: &mut dyn FnMut(Found)) {
    let content = files.read(EXTLINUX_CONF);
    let text = content.split(|b| *b == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let (mut labels, mut in_label, mut default) = (Vec::<Label>::new(), false, None);
    for line in text.split('\n') {
        let line = line.trim_matches([' ', '\t', '\r']);
        let (word, value) = line.split_once(|c: char| c.is_ascii_whitespace()).unwrap_or((line, ""));
        // A value begins with no `#`: that is a comment.
        let value = Some(value.trim()).filter(|v| !v.is_empty() && !v.starts_with('#'));
        let word = if word.starts_with('#') { "#" } else { &word.to_ascii_lowercase() };
        match (word, value) {
            ("label", Some(name)) => {
                labels.push(Label { name: name.to_owned(), fdt: None });
                in_label = true;
                continue;
            }
            ("default" | "ontimeout", Some(name)) => default = Some(name.to_owned()),
            ("menu", Some(what)) if in_label && what.eq_ignore_ascii_case("default") && default.is_none() => {
                default = labels.last().map(|label| label.name.clone());
            }
            ("fdt" | "devicetree", Some(fdt)) => {
                match labels.last_mut().filter(|l| in_label && l.fdt.is_none()) {
                    Some(label) => label.fdt = Some(fdt.to_owned()),
                    // Other loaders may take it.
                    None => say(fdt, false, found),
                }
            }
            _ => {}
        }
        in_label &= IN_LABEL.contains(&word);
    }
    // Without its default label, U-Boot tries all of them from the first one on.
    let first =
        default.and_then(|name| labels.iter().position(|label| label.name == name)).unwrap_or_default();
    for (number, fdt) in labels.iter().enumerate().filter_map(|(n, label)| Some((n, label.fdt.as_ref()?))) {
        say(fdt, number == first, found);
    }
}

struct Label {
    name: String,
    fdt: Option<String>,
}

/// A name without `/` in front begins at the folder of the file.
fn say(fdt: &str, sure: bool, found: &mut dyn FnMut(Found)) {
    // `-`: none. `default`: the board's own, for the U-Boot of Jetson (`sysboot-read-custom-fdt-from-env.patch`).
    if fdt == "-" || fdt.starts_with("default") {
        return;
    }
    let name = match (fdt.starts_with('/'), fdt.strip_prefix("../")) {
        (true, _) => fdt.to_owned(),
        (false, Some(above)) if !above.starts_with("../") => above.to_owned(),
        (false, _) => format!("extlinux/{fdt}"),
    };
    found(Found { key: Key::Fdt, name, sure });
}
