"""What counts the power cuts that lock a device out: phases, counts, the scenario."""

from __future__ import annotations

import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import scripts  # noqa: E402
from place import FarmError  # noqa: E402
from unlocking import LISTS, LOCKED  # noqa: E402

HOOK, DBX, POLICY = scripts.HOOKS


class Counting(unittest.TestCase):
    """Without a board."""

    def test_a_cut_is_locked_out_if_any_of_its_starts_is(self) -> None:
        count = scripts.Count()
        for wrong in (["", ""], [LOCKED, ""], [LOCKED, LISTS, LOCKED], [LOCKED]):
            count.add(wrong)
        self.assertEqual((count.cuts, count.locked, count.certain), (4, 3, 2))
        self.assertEqual(count.reasons, {LOCKED: 3, LISTS: 1})

    def test_a_phase_is_a_hook_or_the_restart_after_it(self) -> None:
        marks = [(0, "power on"), (10, f"within 9 s run DURING_UPDATE=1 /releases/enter {HOOK}"), (20, "reboot"), (25, "reboots"),
                 (30, f"run /releases/enter {DBX}"), (40, f"run /releases/enter {POLICY}"), (50, "reboot"), (60, "power off")]
        found = scripts.phases(marks)
        self.assertEqual([scripts.phase(found, number) for number in (10, 19, 20, 29, 30, 45, 50, 99)],
                         [HOOK, HOOK, f"restart after {HOOK}", f"restart after {HOOK}", DBX, POLICY, f"restart after {POLICY}", f"restart after {POLICY}"])

    def test_the_table_has_each_phase_and_all(self) -> None:
        rows = [scripts.Row("the scripts", scripts.BY_SCRIPTS, {HOOK: scripts.Count(1000, 30, 20, Counter({LOCKED: 30})), DBX: scripts.Count(234)})]
        text = scripts.table(rows)
        self.assertIn(f"| the scripts | {scripts.BY_SCRIPTS} | {DBX} | 234 | 0 | 0 |", text)
        self.assertIn(f"| the scripts | {scripts.BY_SCRIPTS} | **all** | 1,234 | 30 | 20 |", text)
        self.assertIn(f"30 cut points: {LOCKED}", text)

    def test_the_scenario_is_one_for_both(self) -> None:
        checkouts = scripts.Checkouts(Path("meta-balena"), Path("tcgtool"))
        both = [[step.text for step in scripts.scenario_of(of).steps] for of in (checkouts, None)]
        end = both[1].index("judge a power cut after each change")
        self.assertEqual(both[0][:end], both[1][:end])
        for name in scripts.HOOKS:
            self.assertEqual(sum(text.endswith(f" {name}") for text in both[1][:end]), 1)
        self.assertEqual(both[0].count("power goes where scripts would not unlock"), len(scripts.PROOFS))

    def test_a_folder_that_is_no_checkout_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(FarmError) as caught:
            scripts.Checkouts(Path(folder), Path(folder)).check()
        self.assertIn("name a checkout of balena-os/meta-balena", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
