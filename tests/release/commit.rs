//! `build.rs`: which commit a release names, and that a debug build looks for none.
//!
//! It is the script of a program here that prints what `copal --version` does, and compiles in a moment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::needs::{needs, not_run, test_name, tools};
use crate::top;

/// A checkout of that program.
struct Place {
    _dir: tempfile::TempDir,
    top: PathBuf,
}

impl Place {
    /// In a folder of its own, in a checkout with one commit.
    fn new() -> Place {
        let place = Place::without_git("program");
        place.git(&["init", "--quiet"]);
        place.commit();
        place
    }

    fn without_git(folder: &str) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { top: dir.path().join(folder), _dir: dir };
        place.write(
            "Cargo.toml",
            "[package]\nname = \"copal\"\nversion = \"1.2.3\"\nedition = \"2024\"\n[workspace]\n",
        );
        place.write("src/main.rs", "fn main() { println!(\"{}\", env!(\"COPAL_VERSION\")); }\n");
        // As in copal's checkout: whatever else the script watches is there and stays as it is.
        for name in ["build.rs", "COMMIT", ".gitattributes", "rust-toolchain.toml", "scripts/no-unwinding.ld"]
        {
            place.write(name, &fs::read_to_string(top().join(name)).unwrap());
        }
        place.write(".cargo/config.toml", "");
        place.write(".gitignore", "/target\n");
        run(place.cargo("generate-lockfile"));
        place
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.top.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn git(&self, words: &[&str]) -> String {
        git(&self.top, words)
    }

    /// Everything that is there; gives the commit.
    fn commit(&self) -> String {
        self.git(&["add", "."]);
        self.git(&["commit", "--quiet", "--allow-empty", "-m", "a commit"]);
        self.head()
    }

    /// Its commit, as it is shown.
    fn head(&self) -> String {
        self.git(&["rev-parse", "--short=12", "HEAD"]).trim().to_owned()
    }

    fn cargo(&self, verb: &str) -> Command {
        let mut command = Command::new(env!("CARGO"));
        command
            .arg(verb)
            .arg("--offline")
            .current_dir(&self.top)
            .env("CARGO_TARGET_DIR", self.top.join("target"));
        for name in ["COPAL_COMMIT", "RUSTFLAGS", "CARGO_BUILD_TARGET", "RUSTC_WRAPPER"] {
            command.env_remove(name);
        }
        command
    }

    /// What the program says that `cargo run` makes with these words, and whether it was compiled for that.
    fn said_with(&self, words: &[&str], environment: &[(&str, &str)]) -> (String, bool) {
        let out = self.cargo("run").args(words).envs(environment.iter().copied()).output().unwrap();
        let log = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{log}");
        (String::from_utf8(out.stdout).unwrap().trim().to_owned(), log.contains("Compiling"))
    }

    /// What a release says.
    fn release(&self) -> String {
        self.said_with(&["--release"], &[]).0
    }
}

fn git(at: &Path, words: &[&str]) -> String {
    let who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"];
    let mut command = Command::new("git");
    command.args(who).args(words).current_dir(at);
    run(command)
}

fn run(mut command: Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn a_release_names_the_commit_of_its_checkout() {
    needs!(tools);
    let place = Place::new();
    assert_eq!(place.release(), format!("1.2.3 ({})", place.head()));
    assert!(!place.said_with(&["--release"], &[]).1, "nothing has changed");
    // A later commit of a file that no program is made of, too.
    place.write("README", "new\n");
    let second = place.commit();
    assert_eq!(place.release(), format!("1.2.3 ({second})"));
    // What is compiled is not what was committed, and then it is again.
    let source = place.top.join("src/main.rs");
    let kept = fs::read_to_string(&source).unwrap();
    fs::write(&source, format!("{kept}// changed\n")).unwrap();
    assert_eq!(place.release(), format!("1.2.3 ({second}-modified)"));
    fs::write(&source, kept).unwrap();
    assert_eq!(place.release(), format!("1.2.3 ({second})"));
    // A linked worktree has its own HEAD; and where git starts a build, its variables are not of this checkout.
    place.git(&["worktree", "add", "--quiet", "--detach", "../linked", "HEAD~1"]);
    let linked =
        Place { top: place.top.parent().unwrap().join("linked"), _dir: tempfile::tempdir().unwrap() };
    let elsewhere = place.top.join(".git");
    let (said, _) = linked.said_with(&["--release"], &[("GIT_DIR", elsewhere.to_str().unwrap())]);
    assert_eq!(said, format!("1.2.3 ({})", linked.head()));
}

#[test]
fn a_debug_build_looks_for_no_commit() {
    needs!(tools);
    let place = Place::new();
    let built = |environment| place.said_with(&[], environment);
    assert_eq!(built(&[]), ("1.2.3 (debug build)".to_owned(), true));
    place.commit();
    assert_eq!(built(&[("COPAL_COMMIT", "0123456789abcdef")]), ("1.2.3 (debug build)".to_owned(), false));
}

/// What is given comes before what an archive says, and that before git.
#[test]
fn without_git_the_commit_is_that_of_the_archive() {
    needs!(tools);
    let place = Place::without_git("outer/unpacked");
    // Another checkout around the sources has nothing to say.
    let outer = place.top.parent().unwrap();
    git(outer, &["init", "--quiet"]);
    git(outer, &["commit", "--quiet", "--allow-empty", "-m", "not of copal"]);
    assert_eq!(place.release(), "1.2.3 (commit unknown)");

    place.write("COMMIT", "00112233445566778899aabbccddeeff00112233\n");
    assert_eq!(place.release(), "1.2.3 (001122334455)");
    place.write("COMMIT", "00112233445566778899aabbccddeeff00112233-modified\n");
    assert_eq!(place.release(), "1.2.3 (001122334455-modified)");
    let given = [("COPAL_COMMIT", "ffeeddccbbaa99887766554433221100ffeeddcc")];
    assert_eq!(place.said_with(&["--release"], &given).0, "1.2.3 (ffeeddccbbaa)");
    let out = place.cargo("build").arg("--release").env("COPAL_COMMIT", "main").output().unwrap();
    let log = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && log.contains("COPAL_COMMIT=main is no commit"), "{log}");
}

/// What a forge offers to download is made so.
#[test]
fn an_archive_made_by_git_has_the_commit() {
    needs!(tools);
    let place = Place::new();
    let head = place.head();
    place.git(&["archive", "--prefix=archive/", "--output=../archive.tar", "HEAD"]);
    let above = place.top.parent().unwrap();
    let mut tar = Command::new("tar");
    tar.args(["-xf", "archive.tar"]).current_dir(above);
    run(tar);
    let archive = Place { top: above.join("archive"), _dir: tempfile::tempdir().unwrap() };
    assert_eq!(archive.release(), format!("1.2.3 ({head})"));
}

/// A checkout of somebody else: git refuses to read it, and the build says why the program names no commit.
#[test]
fn git_of_another_user_is_not_read() {
    needs!(tools);
    let place = Place::new();
    let nobody = Some(65534);
    if std::os::unix::fs::chown(place.top.join(".git"), nobody, nobody).is_err() {
        return not_run(test_name!(), "needs root");
    }
    std::os::unix::fs::chown(&place.top, nobody, nobody).unwrap();
    let mut command = place.cargo("run");
    // No setting of this machine says that git may read it all the same.
    command
        .arg("--release")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env_remove("GIT_CONFIG_COUNT");
    let out = command.output().unwrap();
    let log = String::from_utf8_lossy(&out.stderr);
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "1.2.3 (commit unknown)", "{log}");
    assert!(log.contains("the program will not name its commit: "), "{log}");
}
