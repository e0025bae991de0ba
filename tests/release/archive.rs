//! The archive: the same from everywhere, complete, and enough to make a root file system of.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use serde_json::Value;

use crate::contents::rows;
use crate::kit::needs::{needs, tools};
use crate::{files, pages, top};

const TARGET: &str = "x86_64-unknown-linux-musl";

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// All that packing reads, besides Rust and the crates.
const SOURCES: [&str; 7] =
    ["Cargo.toml", "Cargo.lock", "build.rs", "COMMIT", "LICENSE", "CHANGELOG.md", "rust-toolchain.toml"];

/// What is packed as the program: the beginning of one for x86-64, which is all that is looked at.
fn binary() -> PathBuf {
    static ONCE: Once = Once::new();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("copal-x86_64");
    ONCE.call_once(|| {
        fs::write(&path, b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0 and more").unwrap();
    });
    path
}

fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {} {error}", out.status);
    String::from_utf8(out.stdout).unwrap()
}

/// A copy of the sources as another person has them: other times, and no rights for anybody else.
fn checkout(at: &Path) {
    let copy = |file: &Path| {
        let to = at.join(file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(top().join(file), &to).unwrap();
        let mode = fs::metadata(&to).unwrap().permissions().mode() & 0o700;
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).unwrap();
    };
    SOURCES.iter().for_each(|name| copy(Path::new(name)));
    for folder in ["hooks", "systemd", "scripts", "scripts/licenses"] {
        files(folder).iter().filter(|f| top().join(f).is_file()).for_each(|f| copy(f));
    }
    // What cargo wants to see before it says what the program is made of.
    ["src/main.rs", "src/lib.rs"].iter().for_each(|name| copy(Path::new(name)));
}

/// Packs the sources in that folder with pages of its own; gives what was printed, and the archive.
fn pack(sources: &Path, out: &Path) -> (String, Vec<u8>) {
    pages::write(&sources.join("target/dist")).unwrap();
    let said = run(Command::new("python3")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .env("RUSTUP_TOOLCHAIN", std::env::var("RUSTUP_TOOLCHAIN").unwrap_or_default())
        .arg(sources.join("scripts/pack.py"))
        .args(["--target", TARGET, "--binary"])
        .arg(binary())
        .arg("--out")
        .arg(out));
    let name = said.trim().split_once("  ").unwrap().1;
    let bytes = fs::read(out.join(name)).unwrap();
    (said, bytes)
}

/// What is below a folder: files and links.
fn below(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            below(&path, into);
        } else {
            into.push(path);
        }
    }
}

/// Where a path leads to, with `root` as the root.
fn resolved(root: &Path, path: &Path) -> PathBuf {
    let mut at = root.to_owned();
    for part in path.components() {
        match part {
            Component::RootDir => at = root.to_owned(),
            Component::ParentDir => {
                at.pop();
            }
            Component::Normal(name) => at.push(name),
            _ => {}
        }
        if let Ok(to) = fs::read_link(&at) {
            at.pop();
            let inside = at.strip_prefix(root).unwrap().join(to);
            at = resolved(root, &inside);
        }
    }
    at
}

#[test]
fn packed_in_two_folders_it_is_the_same_and_makes_a_root() {
    needs!(tools);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    checkout(&at("some/where"));
    checkout(&at("else where"));
    let (said, one) = pack(&at("some/where"), &at("one"));
    let (said_again, two) = pack(&at("else where"), &at("two"));
    assert_eq!(said, said_again);
    assert!(one == two, "two archives with one digest");
    let name = format!("copal-{}-{TARGET}", env!("CARGO_PKG_VERSION"));
    let sum = run(Command::new("sha256sum").arg(format!("{name}.tar.zst")).current_dir(at("one")));
    assert_eq!(sum, said);

    // The comparison above can fail.
    fs::write(at("some/where/CHANGELOG.md"), "changed\n").unwrap();
    assert!(pack(&at("some/where"), &at("three")).1 != one, "a change that the archive does not show");

    let archive = at("one").join(format!("{name}.tar.zst"));
    let listed = run(Command::new("tar").args(["-tvf"]).arg(&archive).env("TZ", "UTC"));
    for line in listed.lines() {
        assert!(line.contains(" root/root ") && line.contains(" 2023-11-14 22:13 "), "{line}");
        assert!(line.contains(&format!(" {name}/")), "{line}");
    }
    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(dir.path()));
    let folder = at(&name);
    complete(&folder);
    installed(&archive, &at("root"));
    bill_of_materials(&folder);
    crate::recipe::licences_are_those_of_the_recipe(&folder);
}

/// The archive of the sources is what git has of them, and the same wherever it is packed.
#[test]
fn the_sources_are_packed_from_two_folders_to_the_same_archive() {
    needs!(tools);
    let dir = tempfile::tempdir().unwrap();
    let packed = |name: &str| {
        let folder = dir.path().join(name);
        checkout(&folder);
        std::os::unix::fs::symlink("copal.service", folder.join("systemd/linked")).unwrap();
        run(Command::new("git").args(["init", "--quiet"]).arg(&folder));
        run(Command::new("git").args(["-C", folder.to_str().unwrap(), "add", "--force", "."]));
        fs::write(folder.join("not-in-git"), "").unwrap();
        pages::write(&folder.join("target/dist")).unwrap();
        let said = run(Command::new("python3")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .env("COPAL_COMMIT", COMMIT)
            .env("RUSTUP_TOOLCHAIN", std::env::var("RUSTUP_TOOLCHAIN").unwrap_or_default())
            .arg(folder.join("scripts/pack.py"))
            .args(["--source", "--out"])
            .arg(dir.path().join(format!("{name}-out"))));
        let name = said.trim().split_once("  ").unwrap().1.to_owned();
        (said, dir.path().join(format!("{}-out", folder.file_name().unwrap().to_str().unwrap())).join(name))
    };
    let (said, one) = packed("one");
    let (said_again, two) = packed("another");
    assert_eq!(said, said_again);
    assert!(fs::read(&one).unwrap() == fs::read(two).unwrap(), "two archives with one digest");
    let version = env!("CARGO_PKG_VERSION");
    assert!(said.ends_with(&format!("  copal-{version}-source.tar.zst\n")), "{said}");

    // It unpacks to the folder that the recipe compiles in, with what the recipe takes besides the program.
    run(Command::new("tar").arg("-xf").arg(&one).arg("-C").arg(dir.path()));
    let folder = dir.path().join(format!("copal-{version}"));
    for name in
        ["Cargo.toml", "Cargo.lock", "LICENSE", "src/main.rs", "scripts/contents.tsv", "hooks/1-bootfiles"]
    {
        assert!(fs::read(folder.join(name)).unwrap() == fs::read(top().join(name)).unwrap(), "{name}");
    }
    // Where there is no git, the program names this one (`commit.rs`).
    assert_eq!(fs::read_to_string(folder.join("COMMIT")).unwrap(), format!("{COMMIT}\n"));
    assert_eq!(fs::read_link(folder.join("systemd/linked")).unwrap(), Path::new("copal.service"));
    // What the recipe cannot make: it compiles for another machine.
    made_pages_are_in(&folder);
    assert!(!folder.join("target").exists());
    assert!(!folder.join("not-in-git").exists() && !folder.join(".git").exists());
}

/// The manual pages and completions of this program, and no others; their names.
fn made_pages_are_in(folder: &Path) -> BTreeSet<String> {
    let all = pages::all().unwrap();
    for (path, text) in &all {
        assert_eq!(&fs::read_to_string(folder.join(path)).unwrap(), text, "{path}");
    }
    let count = |part: &str| fs::read_dir(folder.join(part)).unwrap().count();
    assert_eq!(count("man") + count("completions"), all.len());
    all.into_keys().collect()
}

/// What has to be in it.
fn complete(folder: &Path) {
    for name in
        ["README", "LICENSE", "CHANGELOG.md", "sbom.cdx.json", "licenses/THIRD-PARTY", "rootfs-install.sh"]
    {
        assert!(folder.join(name).metadata().is_ok_and(|m| m.len() > 0), "{name}");
    }
    assert_eq!(
        fs::read(folder.join("contents")).unwrap(),
        fs::read(top().join("scripts/contents.tsv")).unwrap()
    );
    assert!(fs::read(folder.join("copal")).unwrap() == fs::read(binary()).unwrap());
    let made = made_pages_are_in(folder);
    for row in rows().iter().filter(|r| r.kind == "file" && r.source != "copal" && !made.contains(&r.source))
    {
        let (packed, ours) = (folder.join(&row.source), top().join(&row.source));
        assert!(fs::read(&packed).unwrap() == fs::read(&ours).unwrap(), "{}", row.source);
    }
    // Whoever is named has his licence here, or it is the one of this program.
    let overview = fs::read_to_string(folder.join("licenses/THIRD-PARTY")).unwrap();
    let named: Vec<&str> =
        overview.lines().filter_map(|l| l.split(", see ").nth(1)?.split(' ').next()).collect();
    assert!(named.len() > 50, "{overview}");
    for place in named {
        let text = folder.join("licenses").join(place);
        let found = text.is_file() || fs::read_dir(&text).is_ok_and(|mut d| d.next().is_some());
        assert!(found, "{place}");
    }
}

/// The script puts everything where the list says, and nothing else anywhere.
fn installed(archive: &Path, root: &Path) {
    let mut packages: BTreeSet<String> = rows().into_iter().map(|r| r.package).collect();
    let install = |packages: &BTreeSet<String>| {
        let script = top().join("scripts/rootfs-install.sh");
        Command::new("sh").arg(script).arg(archive).arg(root).args(packages).output().unwrap()
    };
    for _ in 0..2 {
        let out = install(&packages);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    let mut found = Vec::new();
    below(root, &mut found);
    let found: BTreeSet<PathBuf> =
        found.into_iter().map(|p| Path::new("/").join(p.strip_prefix(root).unwrap())).collect();
    assert_eq!(found, rows().iter().map(|r| PathBuf::from(&r.path)).collect::<BTreeSet<_>>());
    for row in rows() {
        let at = root.join(&row.path[1..]);
        let is = fs::symlink_metadata(&at).unwrap();
        if row.kind == "file" {
            assert_eq!(format!("{:04o}", is.mode() & 0o7777), row.mode, "{}", row.path);
        } else {
            assert_eq!(fs::read_link(&at).unwrap(), Path::new(&row.source), "{}", row.path);
            assert!(resolved(root, Path::new(&row.path)).is_file(), "{} leads nowhere", row.path);
        }
    }
    packages.insert("no-such-package".to_owned());
    let out = install(&packages);
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("no-such-package"));
}

/// Every crate of the overview is in it, with a digest, and whatever it names is there.
fn bill_of_materials(folder: &Path) {
    let bill: Value = serde_json::from_slice(&fs::read(folder.join("sbom.cdx.json")).unwrap()).unwrap();
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let overview = fs::read_to_string(folder.join("licenses/THIRD-PARTY")).unwrap();
    let components = bill["components"].as_array().unwrap();
    let mut known = BTreeSet::from([bill["metadata"]["component"]["bom-ref"].as_str().unwrap()]);
    for part in components {
        let text = |key: &str| part[key].as_str().unwrap();
        assert!(known.insert(text("bom-ref")), "{part} twice");
        assert!(overview.contains(&format!("\n{} {}: ", text("name"), text("version"))), "{part}");
        assert!(part["licenses"][0]["expression"].is_string(), "{part}");
        if text("purl").starts_with("pkg:cargo/") {
            assert_eq!(part["hashes"][0]["content"].as_str().map(str::len), Some(64), "{part}");
        }
    }
    assert_eq!(overview.lines().filter(|l| l.contains(", see ")).count(), components.len());
    let dependencies = bill["dependencies"].as_array().unwrap();
    assert!(dependencies.len() > 50);
    for entry in dependencies {
        assert!(known.contains(entry["ref"].as_str().unwrap()), "{entry}");
        for on in entry["dependsOn"].as_array().unwrap() {
            assert!(known.contains(on.as_str().unwrap()), "{on}");
        }
    }
    let sum = run(Command::new("sha256sum").arg(binary()));
    assert!(sum.starts_with(bill["metadata"]["component"]["hashes"][0]["content"].as_str().unwrap()));
}
