"""The lifecycle that is cut: points, disks, counts, what is started."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cut  # noqa: E402
import recorded  # noqa: E402
import recorder  # noqa: E402
import scenario as scenarios  # noqa: E402
import lifecycle  # noqa: E402
import lifecycle_times  # noqa: E402
from place import FarmError  # noqa: E402
from recorder import DISK, MEDIUM, VARIABLES, Recorder  # noqa: E402
from verdict import CLASSES, DEAD, ITSELF, NEW, OLD, PERSON, Verdict  # noqa: E402

SIZE = 6 << 20
BOOT = 4 << 20


class Lifecycles(unittest.TestCase):
    """A record of random writes."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.at = Path(folder.name)
        (self.at / recorded.BEFORE).mkdir()
        (self.at / recorded.CHANGES).mkdir()
        draw = random.Random(1)
        for name in ("disk", "flash1"):
            (self.at / recorded.BEFORE / name).write_bytes(draw.randbytes(SIZE if name == "disk" else 4096))
        (self.at / "medium").write_bytes(bytes(SIZE))
        record = Recorder(self.at / recorded.CHANGES)
        marks = []
        for phase in lifecycle.VERSIONS:
            marks.append((len(record.changes), phase))
            for number in range(60):
                store = draw.choice((DISK, DISK, MEDIUM))
                if draw.random() < 0.1:
                    record.add_flush(store)
                elif number == 3 and phase in lifecycle.SPLIT:
                    # Late, of what was before.
                    record.add_write(DISK, BOOT, 512, bytes(512))
                # An update writes the boot partition in its second half only.
                elif number < 30 and phase in lifecycle.SPLIT:
                    record.add_write(DISK, draw.randrange(1000) * 512, 4096, draw.randbytes(4096))
                else:
                    record.add_write(store, BOOT + draw.randrange(1000) * 512, 4096, None if draw.random() < 0.1 else draw.randbytes(4096))
            record.add_write(VARIABLES, 8, 4, phase[:4].encode())
        record.save()
        (self.at / lifecycle.MARKS).write_text(json.dumps({"marks": marks, "seconds": {}}))
        self.record = lifecycle.Record(self.at, self.at / "medium")

    def test_an_update_is_two_phases(self) -> None:
        names = list(self.record.phases)
        self.assertEqual(len(names), len(lifecycle.VERSIONS) + len(lifecycle.SPLIT))
        layers, files = self.record.phases["update: layers"], self.record.phases["update: boot files and switch"]
        self.assertEqual(layers[1], files[0])
        self.assertGreaterEqual(layers[1] - layers[0], 30)
        first = self.record.changes[files[0]].request
        assert first is not None
        self.assertGreater(first.at + first.length, BOOT)

    def test_points_are_the_same_ones_in_each_story(self) -> None:
        points, again = self.record.points(100, 1), self.record.points(100, 1)
        self.assertEqual(points, again)
        self.assertNotEqual(points, self.record.points(100, 2))
        self.assertEqual(points[:20], self.record.points(20, 1))
        for point in points:
            begin, end = self.record.phases[point.phase]
            self.assertTrue(begin < point.after <= end)
            self.assertNotEqual(self.record.changes[point.after - 1].store, VARIABLES)
        # Longer phases of another lifecycle: the same share of them.
        self.record.phases = {name: (10 * begin, 10 * end) for name, (begin, end) in self.record.phases.items()}
        self.record.followed = list(range(10 * len(self.record.changes)))
        for point, other in zip(points, self.record.points(100, 1)):
            self.assertEqual((point.phase, point.seed), (other.phase, other.seed))
            self.assertLess(abs(other.after / 10 - point.after), 2)

    def test_disks_are_what_a_cut_makes_of_them(self) -> None:
        points = sorted(self.record.points(30, 1), key=lambda point: point.after)
        with tempfile.TemporaryDirectory() as folder:
            for store in (DISK, MEDIUM):
                made = lifecycle.Rebuilder(self.record, store, Path(folder))
                for point in points:
                    counts = made.rebuild(point, Path(folder) / "made")
                    wanted = Path(folder) / "wanted"
                    wanted.write_bytes(self.record.befores[store].read_bytes())
                    requests = self.record.requests[store][: self.record.count(store, point.after)]
                    same = cut.play(wanted, self.record.data, requests, cut.chance(point.seed))
                    self.assertEqual((Path(folder) / "made").read_bytes(), wanted.read_bytes())
                    self.assertEqual((counts["kept"], counts["lost"]), (same["kept"], same["lost"]))
                with self.assertRaises(FarmError):
                    made.rebuild(points[0], Path(folder) / "made")

    def test_the_chip_keeps_each_write(self) -> None:
        last = lifecycle.Point(0, "rollback", len(self.record.changes), 1)
        lifecycle.variables(self.record, last, self.at / "chip")
        self.assertEqual((self.at / "chip").read_bytes()[8:12], b"roll")

    def test_an_update_without_boot_files_is_an_error(self) -> None:
        self.record.changes = [recorder.Change(DISK, cut.Request(0, 512, 0, False, False, False))] * 10
        with self.assertRaises(FarmError):
            self.record.strata([(0, "update")])


class Counts(unittest.TestCase):
    """Without a record."""

    def test_intervals_are_those_of_tables(self) -> None:
        for found, of, low, high in ((0, 300, 0.0, 0.0122), (1, 10, 0.0025, 0.4450), (5, 100, 0.0164, 0.1128), (10, 10, 0.6915, 1.0)):
            self.assertAlmostEqual(lifecycle.interval(found, of)[0], low, 4)
            self.assertAlmostEqual(lifecycle.interval(found, of)[1], high, 4)

    def test_the_table_counts_each_class(self) -> None:
        verdicts = [{"side": "scripts", "number": str(n), "phase": "flash" if n < 4 else "update: layers", "after": str(n), "class": kind,
                     "mixed": str(int(kind == OLD)), "why": "because", "alone": "nothing" if n < 4 else ""}
                    for n, kind in enumerate([ITSELF] * 4 + [OLD, OLD, DEAD, PERSON])]
        verdicts.append({**verdicts[0], "side": "copal", "class": NEW})
        text = lifecycle.table(verdicts, [{"side": "scripts", "number": "6", "class": DEAD}])
        self.assertIn("| scripts | flash | 4 | 0 | 0 | 4 | 0 | 0 | 0 |", text)
        self.assertIn("| scripts | **all** | 8 | 2 | 0 | 4 | 1 | 1 | 2 |", text)
        self.assertIn("scripts: lost 2 of 8", text)
        self.assertIn("copal: lost 0 of 1", text)
        self.assertIn("| scripts | dead | 1 | dead |", text)

    def test_ratios_of_times_are_those_of_rounds(self) -> None:
        fast, slow = dict.fromkeys(lifecycle_times.TIMED, 10.0), dict.fromkeys(lifecycle_times.TIMED, 40.0)
        text = lifecycle_times.times_table([{"scripts": fast, "copal": fast}, {"scripts": slow, "copal": fast}, {"scripts": slow, "copal": slow}])
        self.assertIn("| flash | 40.0 (10.0 to 40.0) | 10.0 (10.0 to 40.0) | 1.00 (0.25 to 1.00) |", text)
        self.assertIn("| update until it is healthy | 120.0 (30.0 to 120.0) |", text)

    def test_what_may_be_copals_defect_is_started_first(self) -> None:
        verdicts = [{"side": side, "number": str(n), "phase": "update", "class": kind} for n, (side, kind) in enumerate(
            [("scripts", OLD)] * 50 + [("scripts", DEAD)] * 50 + [("copal", DEAD)] + [("copal", NEW)])]
        chosen = lifecycle.choose(verdicts, set(), 4, 1)
        self.assertEqual(chosen[0], ("copal", 100))
        self.assertEqual({verdicts[number]["class"] for _, number in chosen}, {DEAD, OLD, NEW})
        self.assertEqual(lifecycle.choose(verdicts, set(chosen[:2]), 4, 1), chosen[2:])
        self.assertEqual(len(lifecycle.choose(verdicts, set(), 1000, 1)), len(verdicts))

    def test_a_flash_starts_again_unless_the_medium_is_broken(self) -> None:
        alone = Verdict(DEAD, "no table")
        self.assertEqual(lifecycle.flashes_again(alone, "").kind, ITSELF)
        self.assertEqual(lifecycle.flashes_again(alone, "the medium has lost a file").kind, DEAD)
        self.assertEqual(lifecycle.flashes_again(Verdict(NEW, "whole"), "the medium has lost a file").kind, NEW)

    def test_rows_are_kept_one_by_one(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.tsv"
            self.assertEqual(lifecycle.rows(path), [])
            for number in range(2):
                lifecycle.add(path, {"number": number, "why": "a\tb\nc"})
            self.assertEqual(lifecycle.rows(path), [{"number": "0", "why": "a b c"}, {"number": "1", "why": "a b c"}])

    def test_the_scenario_has_each_phase(self) -> None:
        parsed = scenarios.parse("lifecycle", lifecycle.SCENARIO.read_text(), "lifecycle", ["qemu-amd64"])
        self.assertEqual([step.arguments[0] for step in parsed.steps if step.method == "phase"], list(lifecycle.VERSIONS))
        timed = scenarios.parse("times", lifecycle_times.TIMES.read_text(), "times", ["qemu-amd64"])
        self.assertEqual([step.arguments[0] for step in timed.steps if step.method == "phase"], [*lifecycle_times.TIMED, "end"])
        scenarios.parse("across", lifecycle.ACROSS.read_text(), "across", ["qemu-amd64"])
        self.assertEqual(set(CLASSES), {OLD, NEW, ITSELF, PERSON, DEAD})


if __name__ == "__main__":
    unittest.main()
