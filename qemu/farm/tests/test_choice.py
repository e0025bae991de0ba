"""What `./dev test` runs on virtual boards."""

import os
import subprocess
import sys
import tempfile
import unittest

import board as boards
import choice
import place
import scenario as scenarios

KNOWN = scenarios.all_in(place.SCENARIOS, boards.names())
RUNS = {f"{one.name}@{board}" for one in KNOWN for board in one.boards}
NAMES = [one.name for one in KNOWN if choice.BOARD in one.boards]


class Table(unittest.TestCase):
    def test_each_folder_of_the_program_is_in_it_and_no_other(self) -> None:
        folders = {f"src/{path.name}" for path in (place.TOP / "src").iterdir() if path.is_dir()} | {"hooks", "systemd"}
        self.assertEqual(set(choice.table()), folders)

    def test_it_names_scenarios_that_exist_and_leaves_none_out(self) -> None:
        named = {choice.on_its_board(name) for names in choice.table().values() for name in names}
        self.assertEqual(named - RUNS, set())
        self.assertEqual(set(NAMES) - {run.split("@")[0] for run in [*named, *choice.ALWAYS]}, set())

    def test_what_always_runs_exists(self) -> None:
        self.assertEqual(set(choice.ALWAYS + choice.OTHERS_ELSEWHERE + choice.NOT_CHOSEN) - RUNS, set())

    def test_what_this_board_cannot_run_has_its_turn_elsewhere(self) -> None:
        elsewhere = {one.name for one in KNOWN} - set(NAMES) - {run.split("@")[0] for run in choice.NOT_CHOSEN}
        self.assertEqual(elsewhere - {run.split("@")[0] for run in choice.OTHERS_ELSEWHERE}, set())


class Summary(unittest.TestCase):
    def test_what_the_summary_of_dev_gets(self) -> None:
        code = "import runpy, types; farm = runpy.run_path('qemu/farm/__main__.py', run_name='farm'); " \
               "farm['report']([(types.SimpleNamespace(name='flash'), 'qemu-amd64')], [None])"
        with tempfile.NamedTemporaryFile("r") as file:
            own = {**os.environ, "COPAL_RESULTS": file.name, "PYTHONPATH": "qemu/farm"}
            subprocess.run([sys.executable, "-B", "-c", code], cwd=place.TOP, env=own, check=True, timeout=60)
            self.assertEqual(file.read(), "failed\tflash qemu-amd64\tno time was left for it\n")


class Choice(unittest.TestCase):
    def test_four_turns_run_everything(self) -> None:
        seen: set[str] = set()
        for turn in range(100, 100 + choice.TURNS):
            seen.update(choice.choice(NAMES, [], turn, {}))
        self.assertEqual(seen, {f"{name}@{choice.BOARD}" for name in NAMES} | set(choice.ALWAYS) | set(choice.OTHERS_ELSEWHERE))

    def test_no_turn_has_what_is_left_to_the_proofs(self) -> None:
        for turn in range(choice.TURNS):
            found = choice.choice(NAMES, [f"{folder}/mod.rs" for folder in choice.table()], turn, choice.table())
            self.assertEqual(set(found) & set(choice.NOT_CHOSEN), set())

    def test_a_turn_is_a_quarter(self) -> None:
        one = choice.choice(NAMES, [], 7, {})
        others = len(NAMES) + len(choice.OTHERS_ELSEWHERE) + 2 - len(choice.ALWAYS)
        self.assertAlmostEqual(len(one) - len(choice.ALWAYS), others / 4, delta=1)

    def test_what_has_changed_comes_before_what_has_its_turn(self) -> None:
        table = {"src/engine": ["cut-loading"], "src/slot": ["update-repeat", "update-light@qemu-riscv"]}
        found = choice.choice(NAMES, ["README.md", "src/slot/mod.rs", "src/engine/load.rs", "src/enginex"], 0, table)
        at = len(choice.ALWAYS)
        self.assertEqual(found[at : at + 3], ["update-repeat@qemu-amd64", "update-light@qemu-riscv", "cut-loading@qemu-amd64"])
        self.assertEqual(len(found), len(set(found)))


if __name__ == "__main__":
    unittest.main()
