//! Golden orders: each file of `order/` describes a hook directory, and what runs in it by which flags.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::support::{COPAL, STAND_IN, TELLS, clean, split};

struct Case {
    name: String,
    directory: String,
    differs: bool,
    entries: Vec<(String, PathBuf, PathBuf)>,
    runs: Vec<(Vec<String>, Vec<String>)>,
}

fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend(before.as_bytes());
        bytes.push(u8::from_str_radix(&after[..2], 16).unwrap());
        rest = &after[2..];
    }
    bytes.extend(rest.as_bytes());
    OsStr::from_bytes(&bytes).into()
}

fn parse(path: &Path) -> Case {
    let mut case = Case {
        name: path.file_name().unwrap().to_str().unwrap().to_owned(),
        directory: "hooks".into(),
        differs: false,
        entries: Vec::new(),
        runs: Vec::new(),
    };
    for line in
        std::fs::read_to_string(path).unwrap().lines().filter(|l| !l.is_empty() && !l.starts_with('#'))
    {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "run" => case.runs.push((rest.split_whitespace().map(str::to_owned).collect(), Vec::new())),
            _ if !case.runs.is_empty() => case.runs.last_mut().unwrap().1.push(line.to_owned()),
            "differs" => case.differs = true,
            "directory" => rest.clone_into(&mut case.directory),
            "link" => {
                let (name, to) = rest.split_once(' ').unwrap();
                case.entries.push((word.into(), unescape(name), to.into()));
            }
            "file" | "fifo" => case.entries.push((word.into(), unescape(rest), PathBuf::new())),
            _ => panic!("{}: {line}", case.name),
        }
    }
    case
}

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hooks/order");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.iter().map(|f| parse(f)).collect()
}

impl Case {
    /// The hook directory in a temporary folder.
    fn build(&self) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let hooks = dir.path().join(&self.directory);
        std::fs::create_dir_all(&hooks).unwrap();
        // Linked, not copied: a file that was open for writing here might not be run (ETXTBSY).
        let template = crate::support::program(&dir.path().join("template"), &tells(), "755");
        for (kind, name, to) in &self.entries {
            let path = hooks.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            match kind.as_str() {
                "link" => symlink(to, path).unwrap(),
                "fifo" => nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
                _ => std::fs::hard_link(&template, path).unwrap(),
            }
        }
        assert_eq!(template.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        (dir, hooks)
    }
}

fn tells() -> String {
    TELLS.replace("${HOOKS_DIR%hooks/}out", "$OUT")
}

/// What `program` with these arguments ran.
fn ran(program: &[&OsStr], args: &[String], dir: &Path, hooks: &Path) -> Vec<String> {
    let out = dir.join("out");
    let mut with_slash = hooks.as_os_str().to_owned();
    with_slash.push("/");
    let run = clean(program[0])
        .args(&program[1..])
        .args(args)
        .arg("--dir")
        .arg(&with_slash)
        .env("OUT", &out)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let told = split(&std::fs::read(&out).unwrap_or_default());
    drop(std::fs::remove_file(&out));
    told
}

#[test]
fn hooks_run_in_the_order_that_is_written_down() {
    let mut seen = 0;
    for case in cases() {
        let (dir, hooks) = case.build();
        for (args, expected) in &case.runs {
            let told = ran(&[COPAL.as_ref(), "hostapp-update-hooks-v2".as_ref()], args, dir.path(), &hooks);
            assert_eq!(&told, expected, "{}: {args:?}", case.name);
            seen += 1;
        }
    }
    assert!(seen >= 30, "{seen}");
}

#[test]
fn a_runner_of_another_release_runs_the_same() {
    let mut seen = 0;
    for case in cases().iter().filter(|c| !c.differs) {
        let (dir, hooks) = case.build();
        for (args, expected) in &case.runs {
            assert_eq!(
                &ran(&[STAND_IN.as_ref()], args, dir.path(), &hooks),
                expected,
                "{}: {args:?}",
                case.name
            );
            seen += 1;
        }
    }
    assert!(seen >= 15, "{seen}");
}

#[test]
fn the_list_is_what_runs() {
    for case in cases() {
        let (dir, hooks) = case.build();
        for (args, expected) in &case.runs {
            let list = clean(COPAL)
                .args(["hostapp-update-hooks", "--list"])
                .args(args)
                .arg("-d")
                .arg(&hooks)
                .output()
                .unwrap();
            let prefix = format!("{}/", hooks.display());
            // A name is one line, and controls no terminal.
            let shown = |n: &String| {
                let name = unescape(n).display().to_string();
                format!("{prefix}{}\n", name.replace('\n', "\\n").replace('\x1b', "\\u{1b}"))
            };
            let whole: String = expected.iter().map(shown).collect();
            assert_eq!(String::from_utf8(list.stdout).unwrap(), whole, "{}: {args:?}", case.name);
            assert!(!dir.path().join("out").exists());
        }
    }
}
