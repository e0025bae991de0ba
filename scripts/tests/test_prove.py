"""Rows, what makes their records stale, their order, and what a run leaves."""

import os
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import guards
import inputs
import prove_main as prove
import record
import results
import run
import table
from table import Row

LATER = time.monotonic() + 3600


def row(name: str, part: str = "part", **more: object) -> Row:
    return Row(part, "command", (name,), **more)


class Table(unittest.TestCase):
    def read(self, text: str) -> dict[str, table.Part]:
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
            file.write(text)
            file.flush()
            return table.parts(Path(file.name))

    def test_the_tracked_one_has_rows_with_names_of_their_own(self) -> None:
        rows = [row for part in table.parts().values() for row in part.rows({board: ["x"] for board in ("qemu-amd64", "qemu-aarch64", "qemu-amd64-secure", "qemu-amd64-secure-4096")})]
        self.assertEqual(len({row.name for row in rows}), len(rows))
        for part in table.parts().values():
            self.assertIn(part.name, {row.part for row in rows})

    def test_each_test_scenario_and_share_is_a_row(self) -> None:
        found = self.read("a\tabout\tfirst\na\tlong\twhy\na\ttest\tflash kill::x kill::y/2\tflash disk\n# c\nb\tabout\tsecond\nb\tscenarios\tqemu-amd64\n")
        rows = found["a"].rows({})
        self.assertEqual([row.name for row in rows], ["flash kill::x", "flash kill::y 1/2", "flash kill::y 2/2"])
        self.assertEqual({(row.guards, row.minutes) for row in rows}, {(("flash", "disk"), table.LONG_LIMIT)})
        self.assertEqual([row.name for row in found["b"].rows({"qemu-amd64": ["s", "t"]})], ["s@qemu-amd64", "t@qemu-amd64"])
        found = self.read("b\tabout\tsecond\nb\tscenarios\tqemu-amd64\nb\tcommand\tt 1\nb\tcommand\tt 2\n")
        self.assertEqual([row.name for row in found["b"].rows({"qemu-amd64": ["s", "t"]})], ["s@qemu-amd64", "t 1", "t 2"])
        for bad in ("a\ttest\tflash x\n", "a\tabout\tone\na\tabout\ttwo\n", "a\tabout\tone\na\tstep\tx\n", "a\tabout\n", "a\tabout\tone\na\ttest\tflash x/0\n"):
            with self.assertRaises(table.TableError):
                self.read(bad)


class Inputs(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.top = Path(self.dir.name)
        self.put("src/lib.rs", "mod flash; mod disk; mod update;\n")
        self.put("src/flash/mod.rs", "use crate::disk::{Disk, Io};\n")
        self.put("src/disk.rs", 'pub const NAME: &str = "// a disk";\n')
        self.put("src/update.rs", "use crate::{flash, disk};\n")
        self.put("Cargo.lock", "one")
        self.put("tests/flash/main.rs", '#[path = "../kit"]\nmod kit {\n    pub mod loops;\n}\n')
        self.put("tests/kit/loops.rs", "")
        self.row = Row("part", "test", ("flash", "kill"), guards=("flash",))

    def put(self, path: str, text: str) -> None:
        (self.top / path).parent.mkdir(parents=True, exist_ok=True)
        (self.top / path).write_text(text)

    def digest(self) -> str:
        inputs.tokens.cache_clear()
        inputs.modules.cache_clear()
        return inputs.digest(self.row, self.top)

    def test_what_the_guarded_modules_use_is_an_input_and_the_rest_is_not(self) -> None:
        before = self.digest()
        self.assertEqual(inputs.closure(self.top, ["update"]), ["disk", "flash", "update"])
        for path, text in (("src/update.rs", "fn x() {}\n"), ("tests/kit/other.rs", "fn x() {}"), ("qemu/farm/disk.py", "x = 1\n")):
            self.put(path, text)
            self.assertEqual(self.digest(), before, path)
        for path, text in (("src/disk.rs", 'pub const NAME: &str = "// another";\n'), ("Cargo.lock", "two"), ("tests/kit/loops.rs", "fn x() {}"), ("tests/flash/kill.rs", "fn x() {}")):
            self.put(path, text)
            self.assertNotEqual(self.digest(), before, path)
            before = self.digest()

    def test_comments_and_blanks_age_nothing(self) -> None:
        before = self.digest()
        self.put("src/flash/mod.rs", "//! About.\n\nuse crate::disk::{\n    Disk, Io};  // why\n/* more */\n")
        # A comment names no module either.
        self.put("src/disk.rs", '// crate::update\npub const NAME: &str = "// a disk";\n')
        self.put("src/flash/mod.rs", "//! About.\n\nuse crate::disk::{Disk, Io};  // why\n/* more */\n")
        self.assertEqual(self.digest(), before)

    def test_a_module_that_is_not_there_is_noticed(self) -> None:
        self.row = Row("part", "test", ("flash", "kill"), guards=("nothing",))
        with self.assertRaises(KeyError):
            self.digest()

    def test_each_tracked_row_has_inputs(self) -> None:
        for one in prove.rows_of(["all"]):
            self.assertTrue(list(inputs.files(run.TOP, inputs.patterns(one, run.TOP))), one.name)


    def test_boards_and_guests_want_binaries_and_a_model_does_not(self) -> None:
        def wants(*words: str, kind: str = "test") -> bool:
            return inputs.wants_binaries(Row("part", kind, words), run.TOP)

        self.assertTrue(wants("guest", "x") and wants("s", "qemu-amd64", kind="scenario") and wants("tamper", "x", kind="command"))
        self.assertFalse(wants("model", "x") or wants("tpm", "x") or wants("fuzz", "uenv", kind="command") or wants("dependencies", kind="command"))


class Order(unittest.TestCase):
    def test_failures_then_what_has_no_record_then_what_has_changed_the_oldest_first(self) -> None:
        rows = {name: row(name) for name in ("done", "new", "stale", "old", "failed", "failed-before")}

        def known(name: str, result: str, day: int, digest: str) -> record.Record:
            return record.Record(name, result, "c", f"2026-11-{day}", 1, "m", digest)

        records = {one.row: one for one in (
            known("done", "passed", 1, "now"), known("stale", "passed", 20, "then"), known("old", "passed", 10, "then"),
            # A failure stays one, whatever has changed since.
            known("failed", "failed", 12, "then"), known("failed-before", "failed", 11, "now"))}
        due = record.due(rows.values(), records, dict.fromkeys(rows.values(), "now"))
        self.assertEqual([one.name for one in due], ["failed-before", "failed", "new", "old", "stale"])
        # A guard of what has changed comes before the others, but not before a failure.
        due = record.due(rows.values(), records, dict.fromkeys(rows.values(), "now"), {"stale", "failed", "done"})
        self.assertEqual([one.name for one in due], ["failed-before", "failed", "stale", "new", "old"])

    def test_where_records_are_not_kept_other_rows_come_first_at_each_commit(self) -> None:
        rows = [row(str(n)) for n in range(5)]
        for turn in range(12):
            names = [one.name for one in record.due(rows, {}, dict.fromkeys(rows, ""), turn=turn)]
            self.assertEqual((names[0], sorted(names)), (str(turn % 5), ["0", "1", "2", "3", "4"]))


class Guards(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.top = Path(directory.name)
        self.history = guards.History(self.top)
        self.history.git("init", "--quiet")

    def commit(self, path: str, text: str) -> str:
        (self.top / path).parent.mkdir(parents=True, exist_ok=True)
        (self.top / path).write_text(text)
        self.history.git("add", "-A")
        self.history.git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "--allow-empty", "-m", "x")
        return self.history.git("rev-parse", "HEAD").stdout.strip()[:12]

    def records(self, **commits: str) -> dict[str, record.Record]:
        return {name: record.Record(name, "passed", commit, "2026-11-01", 1, "m", "d") for name, commit in commits.items()}

    def test_a_guard_is_due_from_a_change_of_its_directory_until_its_next_record(self) -> None:
        known = {"src/a": ["one", "both"], "src/b": ["two", "both"], "src/c": ["never"]}
        before = self.commit("src/a/mod.rs", "1")
        records = self.records(one=before, two=before, both=before, never=before)
        self.assertEqual(guards.due(records, self.history, known), set())
        after = self.commit("src/b/mod.rs", "1")
        self.assertEqual(guards.due(records, self.history, known), {"two", "both"})
        self.assertEqual(guards.due({**records, **self.records(two=after)}, self.history, known), {"both"})
        # Of a commit that was rewritten nothing is known.
        self.assertEqual(guards.due(records | self.records(one="0123456789ab"), self.history, known), {"one", "two", "both"})
        del records["never"]
        self.assertIn("never", guards.due(records, self.history, known))

    def test_one_that_has_not_run_for_long_is_named(self) -> None:
        known = {"src/a": ["changed"], "src/b": ["same"], "src/c": ["none"]}
        before = self.commit("src/a/mod.rs", "0")
        for n in range(1, guards.RECENT + 1):
            self.commit("src/a/mod.rs", str(n))
        records = self.records(changed=before, same=before)
        self.assertEqual(guards.overdue(records, self.history, known), ["none"])
        self.commit("README.md", "x")
        self.assertEqual(guards.overdue(records, self.history, known), ["changed", "none"])

    def test_the_table_has_each_directory_of_the_program_and_rows_that_there_are(self) -> None:
        known = guards.table()
        wanted = {f"src/{path.name}" for path in (run.TOP / "src").iterdir() if path.is_dir()}
        self.assertEqual(set(known), wanted | {"hooks", "systemd", "qemu/os", "recipes"})
        self.assertEqual({name for names in known.values() for name in names} - {one.name for one in prove.rows_of(["all"])}, set())

    def test_a_line_without_a_row_or_for_a_directory_that_has_one_is_refused(self) -> None:
        for text in ("src/a\n", "src/a\tflash\nsrc/a\tflash\n"):
            path = self.top / "guards.tsv"
            path.write_text(text)
            with self.assertRaises(table.TableError):
                guards.table(path)


class Runs(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.at = Path(folder.name)
        self.proved = self.at / "proved.tsv"
        self.ran: list[str] = []
        self.ends: dict[str, str] = {}
        self.rows = [row(name) for name in ("one", "two", "three")]
        (self.at / "results").touch()
        for what, name, value in ((run, "LOCK", self.at / "lock"), (run, "run", self.row_runs), (prove, "head", lambda: "c" * 40), (inputs, "digest", lambda one, _: one.name)):
            patch = mock.patch.object(what, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        patch = mock.patch.dict(os.environ, COPAL_RESULTS=str(self.at / "results"))
        patch.start()
        self.addCleanup(patch.stop)

    def row_runs(self, one: Row, *_: object) -> run.Ended:
        self.ran.append(one.name)
        ended = self.ends.get(one.name, "passed")
        if ended == "killed":
            raise KeyboardInterrupt
        return ended, "a fact"

    def prove(self, again: bool = False, end: float = LATER) -> bool:
        self.ran.clear()
        with mock.patch("builtins.print"):
            due = prove.due_of(self.rows, self.proved)
            return prove.prove(due or (self.rows if again else []), end, self.proved, dict)

    def recorded(self) -> dict[str, str]:
        return {name: one.result for name, one in record.read(self.proved).items()}

    def test_each_row_is_recorded_and_not_run_again(self) -> None:
        self.assertTrue(self.prove())
        self.assertEqual(self.recorded(), dict.fromkeys(("one", "two", "three"), "passed"))
        one = record.read(self.proved)["one"]
        self.assertEqual((one.commit, one.digest, one.facts), ("c" * 12, "one", "a fact"))
        self.prove()
        self.assertEqual(self.ran, [])
        # But where they are asked for by name.
        self.prove(again=True)
        self.assertEqual(sorted(self.ran), ["one", "three", "two"])

    def test_a_killed_turn_keeps_what_was_done_before(self) -> None:
        self.ends["two"] = "killed"
        with self.assertRaises(KeyboardInterrupt):
            self.prove()
        before = set(self.recorded())
        self.assertNotIn("two", before)
        self.ends.clear()
        self.prove()
        self.assertEqual(set(self.ran), {"one", "two", "three"} - before)

    def test_a_failure_is_recorded_and_comes_first(self) -> None:
        self.ends["three"] = "failed"
        self.assertFalse(self.prove())
        self.assertEqual(self.recorded()["three"], "failed")
        self.rows.append(row("four"))
        self.ends.clear()
        self.assertTrue(self.prove())
        self.assertEqual(self.ran, ["three", "four"])
        self.assertEqual(self.recorded()["three"], "passed")

    def test_what_is_cut_off_or_cannot_run_here_stays_as_it_was(self) -> None:
        self.ends |= {"one": "left", "two": "not-run"}
        self.assertTrue(self.prove())
        self.assertEqual(self.recorded(), {"three": "passed"})

    def test_nothing_begins_after_the_end(self) -> None:
        self.prove(end=time.monotonic() - 1)
        self.assertEqual((self.ran, self.recorded()), ([], {}))

    def test_a_long_row_begins_only_where_it_can_end(self) -> None:
        self.rows.append(row("long", minutes=60))
        self.prove(end=time.monotonic() + 1800)
        self.assertNotIn("long", self.ran)
        # It took less than a minute before.
        record.write(self.proved, self.rows[-1], "failed", "d" * 40, 50, "x")
        self.prove(end=time.monotonic() + 1800)
        self.assertEqual(self.ran, ["long"])

    def test_a_call_without_a_failure_has_passed_whatever_is_left(self) -> None:
        self.ends |= dict.fromkeys(("one", "two", "three"), "left")
        self.prove()
        self.assertEqual(results.counted(results.read(self.at / "results"), True), (1, 0))

    def test_a_line_that_is_no_record_is_an_error(self) -> None:
        self.proved.write_text("one\tpassed\n")
        with self.assertRaisesRegex(table.TableError, "no record"):
            self.prove()

    def test_another_line_of_the_table_that_was_written_meanwhile_stays(self) -> None:
        record.write(self.proved, row("other"), "passed", "d" * 40, 5, "x")
        self.prove()
        self.assertEqual(len(self.recorded()), 4)


class Rows(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.results = Path(self.dir.name) / "results"
        self.results.touch()
        patch = mock.patch.dict(os.environ, COPAL_RESULTS=str(self.results))
        patch.start()
        self.addCleanup(patch.stop)

    def end(self, script: str, seconds: float = 60) -> run.Ended:
        part = Path(self.dir.name) / "part.sh"
        part.write_text(script)
        (Path(self.dir.name) / "step.py").write_text((run.HERE / "step.py").read_text())
        with mock.patch.object(run, "HERE", Path(self.dir.name)):
            return run.run(row("x"), time.monotonic() + seconds, dict, 1)

    def test_how_a_command_ends(self) -> None:
        report = r'printf "%b\n" "$1" >>"$COPAL_RESULTS"; '
        for script, ended in (
            ("exit 0", ("passed", "")),
            (f'set -- "record\\tx\\tof today"; {report} exit 0', ("passed", "of today")),
            (f'set -- "not-run\\tno network"; {report} exit 0', ("not-run", "")),
            ("exit 1", ("failed", "")),
        ):
            self.assertEqual(self.end(script), ended, script)
        self.assertEqual(results.failures(results.read(self.results)), ["x: it ended with 1"])

    def test_one_that_is_cut_off_by_the_end_of_the_call_is_left(self) -> None:
        self.assertEqual(self.end("sleep 60", 1), ("left", ""))
        self.assertEqual(results.failures(results.read(self.results)), [])

    def test_one_that_takes_longer_than_a_row_may_is_told(self) -> None:
        with mock.patch.object(table, "LIMIT", 0):
            found = run.run(row("x", minutes=0), LATER, dict, 1)
        self.assertEqual(found, ("left", ""))
        self.assertIn("cut it into shares", self.results.read_text())


if __name__ == "__main__":
    unittest.main()
