//! What a test needs of the machine it runs on.
#![allow(dead_code, unused_macros, unused_imports, unreachable_pub)] // no test program uses all of it

use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// The tests that did not run, each with the reason: a plain `cargo test` prints nothing of a test that ends.
const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/not-run.txt");

/// The name of the test that this stands in, as `cargo test` prints it.
macro_rules! test_name {
    () => {{
        fn here() {}
        // `program::module::test::here`, perhaps with a closure before the last word.
        let path: &'static str = std::any::type_name_of_val(&here);
        let name = path.split_once("::").map_or(path, |(_, name)| name);
        name.trim_end_matches("::here").split("::{{closure}}").next().unwrap_or(name)
    }};
}
pub(crate) use test_name;

/// Ends the test that this stands in where the machine lacks something. Each argument is a function that takes the name of a test, and says
/// where it may not run.
macro_rules! needs {
    ($($has:expr),+ $(,)?) => {
        let test = $crate::kit::needs::test_name!();
        if !($($has(test))&&+) {
            return;
        }
    };
}
pub(crate) use needs;

/// Whether this process may make loop devices and mounts, and has the tools for what is in them; says so where it may not.
pub fn can_run(test: &str) -> bool {
    is_root(test) && is_there(test, Path::new("/dev/loop-control").exists(), "loop devices") && tools(test)
}

/// The group `test` of `tools_of` in scripts/lib.sh, without what every Debian has, and without grub-editenv, which ./dev test unpacks and does not
/// install.
const TOOLS: &[&str] = &[
    "mkfs.vfat",
    "mcopy",
    "sgdisk",
    "sfdisk",
    "mke2fs",
    "losetup",
    "mkswap",
    "unshare",
    "setpriv",
    "script",
    "pkill",
    "cmp",
    "xxd",
    "strace",
    "dbus-daemon",
    "dtc",
    "openssl",
    "dash",
    "busybox",
    "gzip",
    "bzip2",
    "lz4",
    "zip",
    "xz",
    "zstd",
    "bmaptool",
    "python3",
    "git",
];

/// Whether the tools are there with which tests make what they look at, or look at what the program made; says so where one is missing.
pub fn tools(test: &str) -> bool {
    static MISSING: OnceLock<Option<&str>> = OnceLock::new();
    let is_missing = |tool: &str| match tool {
        "python3" => {
            let jsonschema = Command::new(tool).args(["-c", "import jsonschema"]).output();
            !jsonschema.is_ok_and(|done| done.status.success())
        }
        _ => !in_path(tool),
    };
    let missing = MISSING.get_or_init(|| TOOLS.iter().copied().find(|tool| is_missing(tool)));
    is_there(test, missing.is_none(), &format!("{}, as ./dev test installs it", missing.unwrap_or_default()))
}

/// Whether a program is installed; says so where it is not.
pub fn has(test: &str, program: &str) -> bool {
    is_there(test, in_path(program), program)
}

/// Whether a program is in the path.
fn in_path(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).exists()))
}

/// Whether this process is root; says so where it is not.
pub fn is_root(test: &str) -> bool {
    is_there(test, nix::unistd::geteuid().is_root(), "root")
}

/// Says so where something is not there.
pub fn is_there(test: &str, there: bool, what: &str) -> bool {
    if there {
        note(test, None);
    } else {
        not_run(test, &format!("needs {what}"));
    }
    there
}

/// Says that a test does not run, or not in full.
pub fn not_run(test: &str, why: &str) {
    eprintln!("not run: {test}: {why}");
    note(test, Some(why));
}

/// Puts the reason into the list, in place of the one before; without one, the test is not in it any more.
fn note(test: &str, why: Option<&str>) {
    let start = format!("{} {test}: ", env!("CARGO_CRATE_NAME"));
    if why.is_none() && !std::fs::read_to_string(LIST).is_ok_and(|list| list.contains(&start)) {
        return;
    }
    let changed = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(LIST)?;
        // Several programs run at once.
        file.lock()?;
        let mut list = String::new();
        file.read_to_string(&mut list)?;
        let mut lines: Vec<&str> = list.lines().filter(|line| !line.starts_with(&start)).collect();
        let own = why.map(|why| format!("{start}{why}"));
        lines.extend(own.as_deref());
        lines.sort_unstable();
        file.set_len(0)?;
        file.rewind()?;
        lines.iter().try_for_each(|line| writeln!(file, "{line}"))
    };
    if let Err(e) = changed() {
        eprintln!("cannot write {LIST}: {e}");
    }
}
