#!/usr/bin/env python3
"""Finds words that docs/glossary.md replaces: in pages, in strings and comments of the program, in units, scripts and the farm."""

import re
import subprocess
import sys

# What to say instead. Each is a word that has a plain one in docs/glossary.md, or that a reader has to guess at.
INSTEAD = {
    r"mend(s|ed|ing)?": "repair, fix",
    r"anew": "again, rewrite",
    r"(tell|tells|telling|told)": "report, print, notify, detect",
    r"behind": "after, past the end of",
    r"(room|rooms)": "free space",
    r"(whoever|somebody|nobody)": "the caller, the operator, another process, no process",
    r"(go|goes|going|gone|went) back|way back": "roll back, rollback",
    r"(come|comes|came) back": "fall back, return",
    r"put back in its rights|select again": "restore the previous selection",
    r"dialects?": "backend",
    r"patience": "timeout",
    r"by hand": "manual, manually",
    r"(story|stories|milestones?)": "history record, event",
    r"ladder": "steps of the shutdown",
    r"leftovers?": "what it is: temporary file, half-written copy",
}
WRONG = re.compile(r"\b(" + "|".join(f"(?:{word})" for word in INSTEAD) + r")\b", re.IGNORECASE)
# Not ours: the user, what programs are called, messages of the scripts that copal replaces, names of functions of others.
QUOTED = re.compile(r"nobody[\".:]|no-tell-kernel|\.tell\(\)|`[^`]*`|“[^”]*”")
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs", "src", "systemd", "hooks", "recipes", "scripts", "qemu", "benches", "dev")


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z", *FILES], check=True, capture_output=True, text=True).stdout
    found = 0
    for name in sorted(listed.split("\0")):
        if not name or name == "scripts/words.py" or "/licenses/" in name or name.endswith((".lock", ".patch")):
            continue
        try:
            with open(name, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except (UnicodeDecodeError, IsADirectoryError):
            continue
        for number, line in enumerate(lines, 1):
            for match in WRONG.finditer(QUOTED.sub(lambda quoted: " " * len(quoted[0]), line)):
                word = match[0].lower()
                instead = next(plain for bad, plain in INSTEAD.items() if re.fullmatch(bad, word))
                print(f"{name}:{number}: {match[0]!r}: say {instead}")
                found += 1
    return 1 if found else 0


sys.exit(main())
