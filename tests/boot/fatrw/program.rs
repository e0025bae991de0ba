//! The program, as `balena-config-vars`, hooks and people call it.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::rig::{folder, only, see, side_name};
use crate::kit::needs::{can_run, is_root, needs};
use crate::kit::process::HANG;

const COPAL: &str = env!("CARGO_BIN_EXE_copal");

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(COPAL);
    command.arg("fatrw").args(args).env_remove("COPAL_LOG").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn run_with(args: &[&str], input: &[u8]) -> Output {
    let mut child =
        command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // One that refuses its arguments reads nothing.
    drop(child.stdin.take().unwrap().write_all(input));
    child.wait_with_output().unwrap()
}

/// Success that says nothing but `stdout`.
fn ok(out: &Output, stdout: &[u8]) {
    assert!(out.status.success() && out.stderr.is_empty() && out.stdout == stdout, "{out:?}");
}

/// A failure of one line.
fn fails(out: &Output, code: i32, error: &str) -> String {
    let text = String::from_utf8(out.stderr.clone()).unwrap();
    assert_eq!(out.status.code(), Some(code), "{text}");
    assert!(
        text.starts_with("[fatrw][ERROR] ") && text.lines().count() == 1 && text.contains(error),
        "{text}"
    );
    text
}

fn at(path: &Path, name: &str) -> String {
    path.join(name).to_str().unwrap().to_owned()
}

#[test]
fn writes_reads_and_copies_bytes() {
    let (_dir, path) = folder(&[]);
    let bytes: Vec<u8> = (0..253).cycle().take(700_000).collect();
    for content in [&bytes[..], b"no newline", b""] {
        ok(&run_with(&["write", &at(&path, "a")], content), b"");
        ok(&run(&["read", &at(&path, "a")]), content);
        ok(&run(&["copy", &at(&path, "a"), &at(&path, "b")]), b"");
        assert_eq!(
            see(&path),
            [("a".to_owned(), content.to_vec()), ("b".to_owned(), content.to_vec())].into()
        );
    }
    // A file that has no size, and a folder to be found from where the caller is.
    let out = command(&["copy", "/proc/sys/kernel/ostype", "c"]).current_dir(&path).output().unwrap();
    ok(&out, b"");
    ok(&command(&["read", "./c"]).current_dir(&path).output().unwrap(), b"Linux\n");
}

#[test]
fn options_stand_where_the_scripts_put_them() {
    let (_dir, path) = folder(&[]);
    ok(&run_with(&["-u", "write", "-m", "600", &at(&path, "a")], b"x"), b"");
    assert_eq!(std::fs::metadata(path.join("a")).unwrap().mode() & 0o777, 0o600);
    ok(&run_with(&["write", &at(&path, "b"), "--mode=0644"], b"x"), b"");
    assert_eq!(std::fs::metadata(path.join("b")).unwrap().mode() & 0o777, 0o644);
    ok(&run_with(&["write", "-m", "4755", &at(&path, "d")], b"x"), b"");
    assert_eq!(std::fs::metadata(path.join("d")).unwrap().mode() & 0o7777, 0o4755);
    ok(&run(&["--unsafe", "copy", &at(&path, "a"), &at(&path, "c")]), b"");
    assert_eq!(std::fs::metadata(path.join("c")).unwrap().mode() & 0o777, 0o600);
    for debug in ["-d", "--debug"] {
        let out = run(&[debug, "read", &at(&path, "a")]);
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success() && out.stdout == b"x" && text.contains("[fatrw][DEBUG] "), "{text}");
    }
}

#[test]
fn what_a_cut_off_write_has_left_is_read() {
    let side = side_name("config.json", "cfa9c461", b"new\n");
    let temporary = side.replace(".md5sum", ".tmp");
    let (dir, path) = folder(&[("config.json", b"ol"), (&side, b"new\n"), (&temporary, b"ne")]);
    let link = dir.path().join("link");
    symlink(path.join("config.json"), &link).unwrap();
    let out = run(&["read", link.to_str().unwrap()]);
    assert!(out.status.success() && out.stdout == b"new\n", "{out:?}");
    assert!(String::from_utf8(out.stderr).unwrap().contains("[fatrw][INFO] config.json: putting "));
    assert_eq!(see(&path), only("config.json", b"new\n"));
    assert!(link.is_symlink());

    // Also as the source of a copy.
    std::fs::write(path.join(&side), "new\n").unwrap();
    std::fs::write(path.join("config.json"), "old").unwrap();
    assert!(run(&["copy", &at(&path, "config.json"), &at(&path, "copy")]).status.success());
    assert_eq!(std::fs::read(path.join("copy")).unwrap(), b"new\n");
}

/// In a folder where every user may create names, such as /tmp.
#[test]
fn the_link_of_another_user_is_not_followed_there() {
    needs!(is_root);
    let (dir, path) = folder(&[("config.json", b"old")]);
    let shared = dir.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    for (name, to) in [("file", path.join("config.json")), ("folder", path.clone())] {
        symlink(to, shared.join(name)).unwrap();
        lchown(shared.join(name), Some(65534), None).unwrap();
    }
    for name in ["file", "folder/config.json"] {
        let by = at(&shared, name);
        fails(&run_with(&["write", &by], b"new"), 1, "belongs to another user");
        fails(&run(&["copy", "/proc/sys/kernel/ostype", &by]), 1, "belongs to another user");
        fails(&run(&["read", &by]), 1, "belongs to another user");
    }
    assert_eq!(see(&path), only("config.json", b"old"));
    // The same link in a folder of root.
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o755)).unwrap();
    ok(&run_with(&["write", &at(&shared, "folder/config.json")], b"new"), b"");
    assert_eq!(see(&path), only("config.json", b"new"));
}

#[test]
fn a_file_is_not_opened_to_more_users_than_before() {
    let (_dir, path) = folder(&[("secret", b"old"), ("public", b"new")]);
    let mode = || std::fs::metadata(path.join("secret")).unwrap().mode() & 0o777;
    std::fs::set_permissions(path.join("secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
    ok(&run_with(&["write", &at(&path, "secret")], b"newer"), b"");
    assert_eq!(mode(), 0o600);
    ok(&run(&["copy", &at(&path, "public"), &at(&path, "secret")]), b"");
    assert_eq!(mode(), 0o600);
    // Unless the caller says so.
    ok(&run_with(&["write", "--mode=644", &at(&path, "secret")], b"newest"), b"");
    assert_eq!(mode(), 0o644);
}

/// The original leaves such a side file where it is, and its next read puts it over the newer file.
#[test]
fn a_later_write_is_not_undone_by_what_an_earlier_one_has_left() {
    let side = side_name("config.json", "cfa9c461", b"of a write that was cut off");
    let (dir, path) = folder(&[("config.json", b"old"), (&side, b"of a write that was cut off")]);
    let file = at(&path, "config.json");
    ok(&run_with(&["write", &file], b"newer"), b"");
    ok(&run(&["read", &file]), b"newer");
    assert_eq!(see(&path), only("config.json", b"newer"));

    std::fs::write(path.join(&side), "of a write that was cut off").unwrap();
    let source = at(dir.path(), "source");
    std::fs::write(&source, "newest").unwrap();
    ok(&run(&["copy", &source, &file]), b"");
    ok(&run(&["read", &file]), b"newest");
    assert_eq!(see(&path), only("config.json", b"newest"));
}

#[test]
fn failures_are_one_line_and_change_nothing() {
    let (_dir, path) = folder(&[("a", b"a")]);
    let gone = at(&path, "gone");
    assert!(fails(&run(&["read", &gone]), 1, "[io]").contains(&gone));
    fails(&run(&["copy", &gone, &at(&path, "a")]), 1, "[io]");
    fails(&run_with(&["write", &at(&path, "no/such/folder")], b""), 1, "[io]");
    fails(&run_with(&["write", path.to_str().unwrap()], b"x"), 1, "[io]");
    fails(&run(&["read", "/"]), 1, "[io]");
    assert_eq!(see(&path), only("a", b"a"));
    for wrong in
        [&[][..], &["read"], &["write"], &["copy", "a"], &["remove", "a"], &["read", "a", "b"], &["--what"]]
    {
        assert!(fails(&run(wrong), 2, "[usage]").contains("fatrw --help"), "{wrong:?}");
    }
    for mode in ["888", "rw", "17777", ""] {
        fails(&run_with(&["write", "-m", mode, &at(&path, "a")], b"x"), 2, "octal");
    }
    assert_eq!(see(&path), only("a", b"a"));
}

#[test]
fn help_and_version() {
    for (args, start) in [
        (&["--help"][..], "Read and write files"),
        (&["-h"], "Read and write files"),
        (&["help", "write"], "Replace a file by what"),
        (&["--version"], "fatrw "),
        (&["-V"], "fatrw "),
    ] {
        let out = run(args);
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success() && out.stderr.is_empty() && text.starts_with(start), "{args:?}: {text}");
    }
}

#[test]
fn a_reader_may_leave_and_a_full_disk_is_reported() {
    let (_dir, path) = folder(&[("a", &vec![b'x'; 1 << 20])]);
    let mut child =
        command(&["read", &at(&path, "a")]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0; 1]).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let out = command(&["read", &at(&path, "a")]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    fails(&out, 1, "[output-failed]");
}

/// A small file system of its own.
struct Small(std::path::PathBuf);

impl Small {
    fn new(at: &Path, kib: u32) -> Small {
        std::fs::create_dir(at).unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "small"])
            .arg(at)
            .status();
        assert!(status.unwrap().success());
        Small(at.to_owned())
    }

    /// A test beside this one that starts a program holds every open file for a moment: the file system is busy then.
    fn remount(&self, how: &str) {
        let begun = Instant::now();
        let remounts = || {
            let status = Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&self.0).status();
            status.unwrap().success()
        };
        while !remounts() {
            assert!(begun.elapsed() < HANG, "{how}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(&self.0).status());
    }
}

#[test]
fn without_space_only_unsafe_writes_in_place() {
    needs!(can_run);
    let dir = tempfile::tempdir().unwrap();
    let small = Small::new(&dir.path().join("small"), 256);
    let file = at(&small.0, "kernel");
    let (old, new) = (vec![b'o'; 200 << 10], vec![b'n'; 180 << 10]);
    ok(&run_with(&["write", &file], &old), b"");
    assert!(fails(&run_with(&["write", &file], &new), 1, "[io]").contains("free space"));
    ok(&run(&["read", &file]), &old);
    let out = run_with(&["-u", "write", &file], &new);
    assert!(out.status.success(), "{out:?}");
    assert_eq!(see(&small.0), only("kernel", &new));
    // Too large even so.
    for file in [&file, &at(&small.0, "other")] {
        let out = run_with(&["-u", "write", file], &vec![b'l'; 400 << 10]);
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(
            out.status.code() == Some(1) && text.lines().count() == 2 && text.contains("[io]; free space"),
            "{text}"
        );
    }
    assert_eq!(see(&small.0), only("kernel", &new));

    // Nor is there room to put a side file over the file: it is read as it is; unsafe, it takes the name.
    let side = side_name("kernel", "cfa9c461", b"side");
    std::fs::write(small.0.join(&side), "side").unwrap();
    std::fs::write(small.0.join("filler"), vec![0; 72 << 10]).unwrap();
    let out = run(&["read", &file]);
    assert!(out.status.success() && out.stdout == b"side", "{out:?}");
    assert_eq!(see(&small.0).len(), 3);
    let out = run(&["-u", "read", &file]);
    assert!(out.status.success() && out.stdout == b"side", "{out:?}");
    assert_eq!(see(&small.0).len(), 2);
}

#[test]
fn a_side_file_is_read_where_nothing_can_be_written() {
    needs!(can_run);
    let dir = tempfile::tempdir().unwrap();
    let small = Small::new(&dir.path().join("small"), 256);
    let (side, half) = (side_name("a", "cfa9c461", b"side"), side_name("b", "cfa9c461", b"whole"));
    for (name, text) in [("a", "old"), ("b", "old"), (&side, "side"), (&half, "who")] {
        std::fs::write(small.0.join(name), text).unwrap();
    }
    small.remount("ro");
    for (name, text) in [("a", "side"), ("b", "old")] {
        let out = run(&["read", &at(&small.0, name)]);
        assert!(out.status.success() && out.stdout == text.as_bytes(), "{out:?}");
    }
    fails(&run_with(&["write", &at(&small.0, "a")], b"x"), 1, "read-write");
}
