"""The advisories pass only against a current database that contains some."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import results

TOP = Path(__file__).resolve().parents[2]
DAY = 86400
# Stands in for cargo-deny, which may not be built yet: fails if the database has an advisory against a crate of Cargo.lock.
CARGO_DENY = """#!/bin/sh
for crate in target/advisory-dbs/advisory-db-3157b0e258782691/crates/*; do
    ! grep -qx "name = \\"${crate##*/}\\"" Cargo.lock || { echo "error: ${crate##*/}" >&2; exit 1; }
done
"""
ADVISORY = """```toml
[advisory]
id = "RUSTSEC-2026-9999"
package = "{crate}"
date = "2026-01-01"

[versions]
patched = []
```

# A made-up vulnerability

None.
"""


class Advisories(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.at = Path(directory.name)
        self.top = self.at / "checkout"
        self.top.mkdir()
        for path in TOP.iterdir():
            if path.name not in ("target", ".git"):
                (self.top / path.name).symlink_to(path)
        (self.at / "bin").mkdir()
        (self.at / "bin/cargo-deny").write_text(CARGO_DENY)
        (self.at / "bin/cargo-deny").chmod(0o755)

    def database(self, crate: str, days: int) -> Path:
        """A repository with an advisory against all versions of that crate, or without any; committed so many days ago."""
        at = self.at / "database"
        (at / "crates" / crate).mkdir(parents=True)
        (at / "crates" / crate / ("RUSTSEC-2026-9999.md" if crate else "README.md")).write_text(ADVISORY.format(crate=crate))
        subprocess.run(["git", "init", "--quiet", "--initial-branch=main", at], check=True)
        subprocess.run(["git", "-C", at, "add", "."], check=True)
        date = f"{int(time.time()) - days * DAY} +0000"
        who = {f"GIT_{role}_{what}": "test" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        subprocess.run(["git", "-C", at, "commit", "--quiet", "--message=one"], env={**os.environ, **who, "GIT_COMMITTER_DATE": date}, check=True)
        return at

    def check(self, database: Path | None) -> tuple[list[list[str]], str]:
        """The results other than the record, and what was printed."""
        # cargo-deny of this machine where it has been built; nothing is fetched.
        script = f"""set -eu
. scripts/lib.sh
. scripts/checks.sh
deadline 5
PATH=$PATH:$CACHE/cargo-deny-$CARGO_DENY/bin:{self.at}/bin
advisories"""
        found = self.at / "results"
        found.write_text("")
        environ = {**os.environ, "COPAL_RESULTS": str(found), "GIT_ALLOW_PROTOCOL": "file", "COPAL_ADVISORY_DB": str(database or "")}
        done = subprocess.run(["sh", "-c", script], cwd=self.top, env=environ, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [words for words in results.read(found) if words[0] != "record"], done.stdout + done.stderr

    def assert_not_run(self, database: Path | None, why: str) -> None:
        found, printed = self.check(database)
        self.assertEqual([words[0] for words in found], ["not-run"], printed)
        self.assertIn(why, found[0][1])

    def test_without_a_database_nothing_is_run(self) -> None:
        self.assert_not_run(None, "cannot clone https://")
        self.assert_not_run(self.at / "missing", "set COPAL_ADVISORY_DB")

    def test_a_database_without_advisories_is_no_pass(self) -> None:
        (self.at / "empty").mkdir()
        self.assert_not_run(self.at / "empty", "cannot clone")
        self.assert_not_run(self.database("", days=1), "contains no advisories")

    def test_an_advisory_against_another_crate_is_a_pass_and_the_record_names_the_date(self) -> None:
        database = self.database("no-crate-of-copal", days=1)
        found, printed = self.check(database)
        self.assertEqual(found, [["passed", "cargo deny: advisories"]], printed)
        day = subprocess.run(["git", "-C", database, "log", "-1", "--format=%cs"], capture_output=True, text=True, check=True).stdout.strip()
        self.assertIn(["record", "advisories", f"database of {day} with 1 advisories"], results.read(self.at / "results"))

    def test_a_bundle_is_a_database(self) -> None:
        bundle = self.at / "database.bundle"
        subprocess.run(["git", "-C", self.database("no-crate-of-copal", days=1), "bundle", "create", "--quiet", bundle, "main"], check=True)
        found, printed = self.check(bundle)
        self.assertEqual(found, [["passed", "cargo deny: advisories"]], printed)

    def test_an_outdated_database_is_no_pass(self) -> None:
        self.assert_not_run(self.database("no-crate-of-copal", days=31), "31 days old")

    def test_an_advisory_against_a_crate_is_a_failure_that_names_it_whatever_its_age(self) -> None:
        for days in (1, 31):
            with self.subTest(days=days):
                found, printed = self.check(self.database("tokio", days))
                self.assertEqual([words[0] for words in found], ["failed"], printed)
                self.assertIn("tokio", printed)
            shutil.rmtree(self.at / "database")


if __name__ == "__main__":
    unittest.main()
