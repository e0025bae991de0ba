"""How the output of a test program is read."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import results
import suite

OUTPUT = """
running 4 tests
test one::good ... ok <0.004s>
test two::slow ... ok <12.250s>
test three::bad ... FAILED <0.100s>
test four::panics - should panic ... ok <0.001s>

successes:

---- two::slow stdout ----
not run: two::slow: needs zsh
left to prove: cuts: two::slow: 102 of 110 rounds; COPAL_SEED=5 repeats them

failures:

---- three::bad stdout ----
it is 4


failures:
    three::bad

test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.30s
"""


class Left(unittest.TestCase):
    def results_of(self, text: str) -> list[list[str]]:
        with tempfile.NamedTemporaryFile("r") as file, mock.patch.dict(os.environ, COPAL_RESULTS=file.name):
            outcome = suite.parsed("guest", 1, text, 0)
            suite.report(outcome)
            with mock.patch.object(suite, "sampled", return_value={("guests", "guest", "a::slow"), ("cuts", "guest", "a::many")}):
                suite.left_out([outcome])
            return results.read(Path(file.name))

    def text(self, *lines: str) -> str:
        tests = "".join(f"test a::{name} ... ok <0.1s>\n" for name in ("slow", "many", "plain"))
        return tests + "\n".join(lines) + "\ntest result: ok. 3 passed; 0 failed; 0 ignored\n"

    def test_a_test_that_has_tried_nothing_has_not_passed(self) -> None:
        found = self.results_of(self.text("left to prove: guests: slow; COPAL_SEED=5 draws the same", "left to prove: cuts: many: 3 of 9 cases; x"))
        self.assertEqual([words[1] for words in found if words[0] == "passed"], ["guest a::many", "guest a::plain"])
        self.assertEqual(sorted(words[2] for words in found if words[0] == "left"), ["guest a::many (but a sample)", "guest a::slow (whole)"])
        self.assertEqual([words for words in found if words[0] == "failed"], [])

    def test_one_that_cannot_run_here_has_neither_passed_nor_failed(self) -> None:
        found = self.results_of(self.text("not run: slow: no /x/system: cannot fetch it", "left to prove: cuts: many: 3 of 9 cases; x"))
        self.assertEqual([words[1] for words in found if words[0] == "passed"], ["guest a::many", "guest a::plain"])
        self.assertEqual([words[1] for words in found if words[0] == "failed"], [])
        self.assertEqual([words[1] for words in found if words[0] == "not-run"], ["slow: no /x/system: cannot fetch it"])

    def test_one_that_was_drawn_leaves_nothing(self) -> None:
        found = self.results_of(self.text("drawn from prove: guests: slow; COPAL_SEED=5 draws the same", "left to prove: cuts: many: 3 of 9 cases; x"))
        self.assertEqual([words[0] for words in found].count("passed"), 3)

    def test_what_the_table_does_not_name_or_names_in_vain_fails(self) -> None:
        found = self.results_of(self.text("left to prove: cuts: many: 3 of 9 cases; x", "left to prove: cuts: plain"))
        self.assertEqual([words[1] for words in found if words[0] == "failed"], ["guest a::plain", "guest a::slow"])


class Output(unittest.TestCase):
    def test_results_and_times(self) -> None:
        found = suite.parsed("flash", 12.5, OUTPUT, 101)
        self.assertEqual(found.passed, ["one::good", "two::slow", "four::panics"])
        self.assertEqual((found.failed, found.broken, found.good), (["three::bad"], "", False))
        self.assertEqual(found.times["two::slow"], 12.25)
        self.assertEqual(suite.NOT_RUN.findall(OUTPUT), ["two::slow: needs zsh"])
        self.assertEqual(suite.LEFT.findall(OUTPUT.replace("two::slow: 102", "slow: 102"))[0][:3], ("left to", "cuts", "slow"))

    def test_only_what_failed_is_shown(self) -> None:
        text = suite.shown(suite.parsed("flash", 12.5, OUTPUT, 101))
        self.assertIn("it is 4", text)
        self.assertNotIn("needs zsh", text)

    def test_a_program_that_breaks_off_is_no_success(self) -> None:
        found = suite.parsed("flash", 1, "test one::good ... ok <0.004s>\n", -11)
        self.assertFalse(found.good)
        self.assertIn("-11", found.broken)

    def test_a_result_that_its_lines_do_not_bear_out_is_no_success(self) -> None:
        self.assertFalse(suite.parsed("flash", 1, OUTPUT.replace("test one::good ... ok", "test one::good ... hm"), 0).good)
        self.assertFalse(suite.parsed("flash", 1, OUTPUT.replace("test three::bad ... FAILED <0.100s>\n", "").replace("1 failed", "0 failed"), 1).good)

    def test_the_longest_begin_first(self) -> None:
        self.assertEqual(suite.order(["cli", "update", "boot", "guest"]), ["guest", "update", "boot", "cli"])


if __name__ == "__main__":
    unittest.main()
