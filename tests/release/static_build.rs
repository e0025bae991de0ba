//! The release binaries are what the README promises: static, stripped, small, for the right machine, and they start.
//!
//! They are made by `./dev build`; `COPAL_DIST` names their folder where it is not `target/dist`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::kit::needs::not_run;
use crate::kit::prove;
use crate::top;

/// Bytes a binary may have: it goes into initramfs images of 32 MiB.
/// With secure boot, which adds half a MiB.
const MAX_PROGRAM_BYTES: usize = 11 << 19;

// Numbers of the ELF specification (System V ABI, chapters 4 and 5, and the processor supplements).
const EM_ARM: u64 = 40;
const EM_X86_64: u64 = 62;
const EM_AARCH64: u64 = 183;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const SHT_SYMTAB: u64 = 2;
const SHT_DYNAMIC: u64 = 6;
const SHT_DYNSYM: u64 = 11;

/// What of a little-endian ELF file matters here.
struct Elf {
    machine: u64,
    segments: Vec<u64>,
    sections: Vec<u64>,
}

fn number(data: &[u8], at: usize, len: usize) -> u64 {
    data[at..at + len].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

fn parse(data: &[u8]) -> Elf {
    assert_eq!(&data[..4], b"\x7fELF");
    assert_eq!(data[5], 1, "little-endian");
    let wide = match data[4] {
        1 => false,
        2 => true,
        other => panic!("ELF class {other}"),
    };
    // (offset of the table, size of an entry, entries); `kind` is where an entry holds its type.
    let table = |at: usize, len: usize, size: usize, count: usize, kind: usize| -> Vec<u64> {
        let start = usize::try_from(number(data, at, len)).unwrap();
        let entry = usize::try_from(number(data, size, 2)).unwrap();
        let entries = usize::try_from(number(data, count, 2)).unwrap();
        (0..entries).map(|i| number(data, start + i * entry + kind, 4)).collect()
    };
    let (segments, sections) = if wide {
        (table(32, 8, 54, 56, 0), table(40, 8, 58, 60, 4))
    } else {
        (table(28, 4, 42, 44, 0), table(32, 4, 46, 48, 4))
    };
    Elf { machine: number(data, 18, 2), segments, sections }
}

fn dist() -> PathBuf {
    std::env::var_os("COPAL_DIST")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/dist"), PathBuf::from)
}

fn binary(arch: &str) -> PathBuf {
    let path = dist().join(format!("copal-{arch}"));
    assert!(path.is_file(), "{} is not there: run ./dev build", path.display());
    path
}

fn check(path: &Path, machine: u64) {
    let data = std::fs::read(path).unwrap();
    let name = path.display();
    assert!(
        data.len() <= MAX_PROGRAM_BYTES,
        "{name} has {} bytes, more than {MAX_PROGRAM_BYTES}",
        data.len()
    );
    let elf = parse(&data);
    assert_eq!(elf.machine, machine, "{name}: machine");
    assert!(!elf.segments.is_empty(), "{name}: no program headers");
    assert!(!elf.segments.contains(&PT_INTERP), "{name} asks for an interpreter");
    assert!(!elf.segments.contains(&PT_DYNAMIC), "{name} has a dynamic segment");
    assert!(!elf.sections.contains(&SHT_DYNAMIC), "{name} has a dynamic section");
    assert!(!elf.sections.contains(&SHT_SYMTAB), "{name} has a symbol table");
    assert!(!elf.sections.contains(&SHT_DYNSYM), "{name} has dynamic symbols");
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Runs `--version`, under an emulator where this machine is another one.
fn starts(arch: &str) {
    let path = binary(arch);
    let mut command = if arch == std::env::consts::ARCH {
        Command::new(&path)
    } else {
        let names = [format!("qemu-{arch}-static"), format!("qemu-{arch}")];
        let Some(emulator) = names.iter().find_map(|name| in_path(name)) else {
            return not_run(&format!("copal-{arch} starts"), &format!("needs {}", names[0]));
        };
        let mut command = Command::new(emulator);
        command.arg(&path);
        command
    };
    // Nothing of the caller's environment: the place it runs in may be an initramfs.
    let mut child = command
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{} --version does not end", path.display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {} {said}", path.display(), output.status);
    // Of a checkout, of an archive, or of sources that nobody knows where they come from; not of a debug build.
    let commit = said.trim().strip_prefix(concat!("copal ", env!("CARGO_PKG_VERSION"), " ("));
    let commit = commit.and_then(|rest| rest.strip_suffix(')')).unwrap_or_else(|| panic!("{said}"));
    let digits = commit.strip_suffix("-modified").unwrap_or(commit);
    let is_one = digits.len() == 12 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(is_one || (commit == "commit unknown" && !top().join(".git").exists()), "{said}");
}

/// The points at which tests cut the program off are in the program that is built for tests, and in no other.
fn has_crash_point(path: &Path) -> bool {
    std::fs::read(path).unwrap().windows(12).any(|w| w == b"crash-point ")
}

#[test]
fn the_binaries_of_a_release_are_static_and_small_and_start() {
    const TEST: &str = "the_binaries_of_a_release_are_static_and_small_and_start";
    if !prove::runs("release", TEST) {
        return;
    }
    assert!(has_crash_point(Path::new(env!("CARGO_BIN_EXE_copal"))));
    let mut made = vec![("x86_64", EM_X86_64), ("aarch64", EM_AARCH64)];
    // Built only where Rust has the target; `./dev build` says where it does not.
    if dist().join("copal-armv7").exists() {
        made.push(("armv7", EM_ARM));
    } else {
        println!("armv7 was not built: see ./dev build");
    }
    for (arch, machine) in made {
        let path = binary(arch);
        check(&path, machine);
        assert!(!has_crash_point(&path), "{}", path.display());
        if machine != EM_ARM {
            starts(arch);
        }
    }
}

/// The checks above can fail: the program running this test is dynamically linked and has symbols.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_dynamic_program_is_recognised() {
    let elf = parse(&std::fs::read(std::env::current_exe().unwrap()).unwrap());
    assert!(elf.segments.contains(&PT_INTERP) && elf.segments.contains(&PT_DYNAMIC));
    assert!(elf.sections.contains(&SHT_DYNAMIC) && elf.sections.contains(&SHT_SYMTAB));
}
