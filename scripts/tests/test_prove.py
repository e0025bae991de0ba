"""Parts, their order, and what a complete run leaves."""

import os
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import parts
import prove
import results
from prove import Unit

LATER = time.monotonic() + 3600


class Table(unittest.TestCase):
    def read(self, text: str) -> dict[str, parts.Part]:
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
            file.write(text)
            file.flush()
            return parts.parts(Path(file.name))

    def test_the_tracked_one_is_read_and_each_part_has_rows(self) -> None:
        for part in parts.parts().values():
            self.assertTrue(part.rows, part.name)

    def test_rows_belong_to_a_part_that_has_begun(self) -> None:
        found = self.read("a\tabout\tfirst\na\ttest\tflash kill::x kill::y\n# c\nb\tabout\tsecond\nb\tscenarios\tqemu-amd64\n")
        self.assertEqual(found["a"].rows, [("test", ["flash", "kill::x", "kill::y"])])
        for bad in ("a\ttest\tflash x\n", "a\tabout\tone\na\tabout\ttwo\n", "a\tabout\tone\na\tstep\tx\n", "a\tabout\n"):
            with self.assertRaises(parts.PartError):
                self.read(bad)


class Runs(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.at = Path(folder.name)
        self.ran: list[str] = []
        self.states: dict[str, str] = {}
        self.tree = "tree1"
        for name, value in {"STATE": self.at, "PROVED": prove.TOP / "target/proved-in-a-test.tsv"}.items():
            patch = mock.patch.object(prove, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        prove.PROVED.parent.mkdir(exist_ok=True)
        self.addCleanup(prove.PROVED.unlink, missing_ok=True)
        for name, value in {"tree": lambda: self.tree, "units": self.units, "head": lambda: "c" * 40}.items():
            patch = mock.patch.object(prove, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        (self.at / "results").touch()
        patch = mock.patch.dict(os.environ, COPAL_RESULTS=str(self.at / "results"))
        patch.start()
        self.addCleanup(patch.stop)
        self.part = prove.parts()["older-rust"]

    def units(self, *_: object) -> list[Unit]:
        def unit(name: str) -> Unit:
            def run(_: float) -> str:
                self.ran.append(name)
                return self.states.get(name, "passed")

            return Unit(name, run)

        return [unit(name) for name in ("one", "two", "three")]

    def prove(self, end: float = LATER) -> bool:
        self.ran.clear()
        with mock.patch("builtins.print"):
            return prove.prove(self.part, end, dict)

    def test_a_complete_run_is_recorded(self) -> None:
        self.assertTrue(self.prove())
        self.assertEqual(sorted(self.ran), ["one", "three", "two"])
        self.assertEqual(prove.proved()["older-rust"][3], "tree1")
        self.assertIn("complete for this tree", prove.age("older-rust"))

    def test_the_record_has_the_facts_that_the_run_reported(self) -> None:
        results.add("record", "older-rust", "Rust 1.0")
        results.add("record", "dependencies", "another part")
        self.assertTrue(self.prove())
        self.assertEqual(prove.proved()["older-rust"][4:], ["Rust 1.0"])
        self.assertTrue(prove.age("older-rust").endswith("; Rust 1.0"), prove.age("older-rust"))

    def test_what_is_left_is_run_by_the_next_call_and_nothing_twice(self) -> None:
        self.states["two"] = "left"
        self.assertTrue(self.prove())
        self.assertEqual(prove.proved(), {})
        self.assertIn(["left", "older-rust", "1 of 3: two"], results.read(self.at / "results"))
        self.states.clear()
        self.assertTrue(self.prove())
        self.assertEqual(self.ran, ["two"])
        self.assertIn("older-rust", prove.proved())

    def test_another_tree_begins_again(self) -> None:
        self.states["two"] = "left"
        self.prove()
        self.tree = "tree2"
        self.prove()
        self.assertEqual(sorted(self.ran), ["one", "three", "two"])

    def test_a_failure_does_not_end_the_part_and_is_never_complete(self) -> None:
        self.states = {"one": "failed", "two": "failed", "three": "failed"}
        self.assertFalse(self.prove())
        self.assertEqual(len(self.ran), 3)
        self.states.clear()
        self.states["one"] = "failed"
        self.assertFalse(self.prove())
        self.assertEqual(prove.proved(), {})

    def test_a_failure_withdraws_the_record_of_its_tree_only(self) -> None:
        self.prove()
        self.states["one"] = "failed"
        self.tree = "tree2"
        self.prove()
        self.assertIn("older-rust", prove.proved())
        self.tree = "tree1"
        self.prove()
        self.assertEqual(prove.proved(), {})

    def test_what_is_not_committed_is_not_recorded(self) -> None:
        self.tree = "tree1+"
        self.assertTrue(self.prove())
        self.assertEqual(prove.proved(), {})

    def test_what_changes_meanwhile_is_not_recorded(self) -> None:
        trees = iter(["tree1", "tree2"])
        with mock.patch.object(prove, "tree", side_effect=lambda: next(trees, "tree2")):
            self.assertTrue(self.prove())
        self.assertEqual(prove.proved(), {})

    def test_no_time_is_no_failure(self) -> None:
        self.assertTrue(self.prove(time.monotonic() - 1))
        self.assertEqual(self.ran, [])
        self.assertEqual(prove.proved(), {})


class Commands(unittest.TestCase):
    def run_unit(self, script: str, end: float, limit: float) -> tuple[str, list[list[str]]]:
        with tempfile.NamedTemporaryFile("r") as file, mock.patch.dict(os.environ, COPAL_RESULTS=file.name):
            state = prove.command_unit("unit", ["sh", "-c", script], limit).run(end)
            return state, results.read(Path(file.name))

    def test_its_own_results_count(self) -> None:
        one = "printf 'passed\\tone\\n' >>\"$COPAL_RESULTS\""
        self.assertEqual(self.run_unit(one, LATER, 60), ("passed", [["passed", "one"]]))
        self.assertEqual(self.run_unit(f"{one}; exit 3", LATER, 60), ("failed", [["passed", "one"], ["failed", "unit", "it ended with 3"]]))

    def test_a_command_that_was_not_run_is_left(self) -> None:
        script = "printf 'not-run\\tno network\\n' >>\"$COPAL_RESULTS\""
        self.assertEqual(self.run_unit(script, LATER, 60), ("left", [["not-run", "no network"]]))

    def test_its_own_limit_is_a_failure_and_the_end_of_the_call_is_none(self) -> None:
        self.assertEqual(self.run_unit("sleep 1000", LATER, 0.5), ("failed", [["failed", "unit", "it met its time limit"]]))
        # What it has reported until then is not whole.
        broken = "printf 'failed\\tone\\n' >>\"$COPAL_RESULTS\"; sleep 1000"
        self.assertEqual(self.run_unit(broken, time.monotonic() + 1, 60), ("left", []))


class Turn(unittest.TestCase):
    def test_each_part_but_the_advisories_has_its_turn_and_a_wrong_name_is_refused(self) -> None:
        known = prove.parts()
        seen = set()
        for number in range(len(known)):
            with mock.patch.object(prove, "commits", return_value=1000 + number):
                seen.update(prove.wanted(known, []))
        self.assertEqual(seen, set(known) - {"advisories"})
        self.assertEqual(prove.wanted(known, ["all"]), list(known))
        with self.assertRaises(parts.PartError):
            prove.wanted(known, ["no-such-part"])


if __name__ == "__main__":
    unittest.main()
