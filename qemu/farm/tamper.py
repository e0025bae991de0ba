"""Builds of copal with one of its promises taken out, to prove that the farm notices.

The product has no switch for this: a copy of the sources is changed and built. Which promise is broken is written into the
binary afterwards, so that one build is enough.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import board as boards

#: What a tampered copal leaves out, the scenario that has to fail then (with its board, where that is another one than is asked for), and
#: the step it has to fail at.
KINDS = {
    "read-back": ("flash-lying-disk", "wait until systemctl is-failed"),
    "first-mib-last": ("flash-power-cut", "expect no partition table"),
    "commit": ("update-healthy", "expect phase healthy"),
    "boot-count": ("orderly-reboots-not-counted", "boots 5.1.0 in B"),
    "pk-last": ("secure-cuts@qemu-amd64-secure", "judge a power cut"),
    "policy-first": ("secure-update@qemu-amd64-secure", "judge a power cut"),
    "carry": ("device-tree-kept@qemu-aarch64", "expect /proc/device-tree/model"),
}

# As long as the longest of them, with what no other part of the binary has.
_NONE = "copal-tamper=" + "none".ljust(20, "_")
_SWITCH = f'''//! Whether a promise is to be broken.

static KIND: &str = "{_NONE}";

/// Whether this one is.
pub(crate) fn is(kind: &str) -> bool {{
    std::hint::black_box(KIND).trim_end_matches('_').ends_with(kind)
}}
'''

# File, what is there once, what takes its place.
_CHANGES = [
    ("src/lib.rs", "pub mod version;\n", "mod tamper;\npub mod version;\n"),
    (
        "src/flash/write/mod.rs",
        "Step::VerifyBody => self.verify_body()?,",
        'Step::VerifyBody if crate::tamper::is("read-back") => {}\n'
        "                Step::VerifyBody => self.verify_body()?,",
    ),
    (
        "src/flash/write/verify.rs",
        "let mut buffer = Buffer::zeroed(0);\n        let mut bad = None;",
        'if crate::tamper::is("read-back") {\n            return Ok(None);\n        }\n'
        "        let mut buffer = Buffer::zeroed(0);\n        let mut bad = None;",
    ),
    (
        "src/flash/write/mod.rs",
        "let ranges = [Some(self.head.clone()), self.backup.clone()];",
        'let first = crate::tamper::is("first-mib-last");\n'
        "        let ranges = if first { [None, None] } else { [Some(self.head.clone()), self.backup.clone()] };",
    ),
    (
        "src/install/encryption/mod.rs",
        "        disk::write_table(&ready.prepared, &self.table, layout.sector, paths)?;\n",
        '        if let Some(own) = ready.secure_boot.as_ref().filter(|_| crate::tamper::is("pk-last")) {\n            own.enrol_pk()?;\n        }\n'
        "        disk::write_table(&ready.prepared, &self.table, layout.sector, paths)?;\n",
    ),
    (
        "src/install/encryption/mod.rs",
        "        if let Some(own) = &ready.secure_boot {\n            own.enrol_pk()?;\n",
        '        if let Some(own) = ready.secure_boot.as_ref().filter(|_| !crate::tamper::is("pk-last")) {\n            own.enrol_pk()?;\n',
    ),
    (
        "src/unlock/programs.rs",
        "            prepared.seal(paths, &later)?;\n",
        '            let is_last = crate::tamper::is("policy-first");\n            if !is_last {\n'
        "                prepared.seal(paths, &later)?;\n            }\n",
    ),
    (
        "src/unlock/programs.rs",
        "            files.put_in(&plain, direction)?;\n",
        "            files.put_in(&plain, direction)?;\n            if is_last {\n                prepared.seal(paths, &later)?;\n            }\n",
    ),
    (
        "src/rollback/clear_bootcount.rs",
        "    backend.clear_bootcount()?;\n",
        '    if crate::tamper::is("boot-count") {\n        return Ok(());\n    }\n    backend.clear_bootcount()?;\n',
    ),
    (
        "src/device_tree/carry.rs",
        "    let mut outcome = Outcome::default();\n    let mut steps = Vec::new();\n",
        '    let mut outcome = Outcome::default();\n    if crate::tamper::is("carry") {\n        return outcome;\n    }\n'
        "    let mut steps = Vec::new();\n",
    ),
    (
        "src/rollback/commit.rs",
        "    backend.set(running, false)?;\n",
        '    if crate::tamper::is("commit") {\n        return Ok(());\n    }\n    backend.set(running, false)?;\n',
    ),
]


def binaries(checkout: Path, cache: Path, kind: str, machines: set[str]) -> Path:
    """A folder with the binaries that leave this out, for these processors."""
    folder = cache / "tamper" / kind
    for machine in machines:
        made = _build(checkout, cache, f"{machine}-unknown-linux-musl")
        contents = made.read_bytes()
        if contents.count(_NONE.encode()) != 1:
            raise RuntimeError(f"{made}: the place for what is to be left out is there {contents.count(_NONE.encode())} times")
        folder.mkdir(exist_ok=True)
        path = folder / made.name
        path.write_bytes(contents.replace(_NONE.encode(), ("copal-tamper=" + kind.ljust(20, "_")).encode()))
        path.chmod(0o755)
    return folder


def _build(checkout: Path, cache: Path, target: str) -> Path:
    """The tampered binary for a Rust target; built where this very source was not built before.

    Raises RuntimeError where the sources are not as the changes expect them, or do not build.
    """
    work = cache / "tamper"
    source = work / "source"
    work.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(source, ignore_errors=True)
    parts = ["src", "build.rs", "Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo", "hooks", "systemd", "scripts", "benches", "examples"]
    for part in parts:
        if (checkout / part).is_dir():
            shutil.copytree(checkout / part, source / part)
        elif (checkout / part).exists():
            source.mkdir(exist_ok=True)
            shutil.copy2(checkout / part, source / part)
    (source / "src/tamper.rs").write_text(_SWITCH)
    for name, old, new in _CHANGES:
        path = source / name
        text = path.read_text()
        if text.count(old) != 1:
            raise RuntimeError(f"{name} has changed: correct qemu/farm/tamper.py, which looks for {old.strip()!r} there")
        path.write_text(text.replace(old, new))
    binary = work / f"copal-{target.split('-')[0]}"
    stamp = work / f"{binary.name}.stamp"
    digest = _digest(source)
    if binary.exists() and stamp.exists() and stamp.read_text() == digest:
        return binary
    # Speed of the build counts here, not that of the program.
    environment = dict(
        os.environ,
        CARGO_TARGET_DIR=str(work / "target"),
        CARGO_PROFILE_RELEASE_LTO="off",
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS="16",
        CARGO_PROFILE_RELEASE_OPT_LEVEL="1",
    )
    for name in ("RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"):
        environment.pop(name, None)
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--bin", "copal", "--target", target]
    done = subprocess.run(command, cwd=source, env=environment, timeout=1500)
    if done.returncode != 0:
        raise RuntimeError(f"the tampered copal does not build (in {source})")
    shutil.copy2(work / "target" / target / "release/copal", binary)
    stamp.write_text(digest)
    return binary


def _digest(tree: Path) -> str:
    """One digest over all files below a folder, with their names."""
    total = hashlib.sha256()
    for path in sorted(p for p in tree.rglob("*") if p.is_file()):
        total.update(f"{path.relative_to(tree)}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def prove(checkout: Path, cache: Path, board: str, kinds: list[str], say: Callable[[str], None]) -> int:
    """Runs each scenario with the binary that it has to find out; how many did not."""
    unnoticed = 0
    for kind in kinds:
        run, step = KINDS[kind]
        scenario, _, its_own = run.partition("@")
        on = boards.load(its_own or board)
        # The one of this machine fills the image's slot.
        folder = binaries(checkout, cache, kind, {on.arch, os.uname().machine})
        say(f"without {kind}: {scenario} has to fail")
        command = [sys.executable, str(Path(__file__).parent), "run", "--jobs", "1", f"{scenario}@{on.name}"]
        environment = dict(os.environ, COPAL_DIST=str(folder))
        # It is meant to fail.
        environment.pop("COPAL_RESULTS", None)
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=3000)
        # The scenario itself, and at the place where the promise is looked at: not for want of an image or a package.
        failed = re.search(rf"{scenario}\.scenario:\d+: `(.*?)`: ", done.stdout)
        if done.returncode == 1 and failed and failed[1].startswith(step):
            say(f"without {kind}: noticed, at `{failed[1]}`")
        else:
            unnoticed += 1
            say(done.stdout)
            say(f"without {kind}: NOT noticed by {scenario}")
    return unnoticed
