"""What the summary counts and shows."""

import unittest

import results

LINES = [
    ["passed", "a"],
    ["passed", "b"],
    ["failed", "c", "it met its time limit"],
    ["failed", "d"],
    ["not-run", "e: needs zsh"],
    ["not-run", "e: needs zsh"],
    ["left", "model", "uboot_dead"],
    ["left", "model", "grub_dead"],
    ["step", "75", "clippy"],
    ["scenario", "51.0", "flash qemu-amd64", "passed"],
    *[["test", str(n), f"test{n}"] for n in range(30)],
    ["note", "line coverage: 86 %"],
    ["record", "advisories", "database of 2026-11-28"],
]


class Summary(unittest.TestCase):
    def test_what_was_not_run_counts_only_where_everything_is_to_run(self) -> None:
        self.assertEqual(results.counted(LINES, False), (2, 2))
        self.assertEqual(results.counted(LINES, True), (2, 3))

    def test_the_table(self) -> None:
        text = results.table(LINES)
        for line in ["    1:15  clippy", "    51.0 s  flash qemu-amd64: passed", "  model: 2: grub_dead, uboot_dead", "line coverage: 86 %",
                     "advisories: database of 2026-11-28"]:
            self.assertIn(line, text)
        self.assertEqual(text[-3:], ["failed:", "  c: it met its time limit", "  d"])

    def test_the_slowest_come_first_and_the_fast_ones_not_at_all(self) -> None:
        shown = [line.split()[-1] for line in results.table(LINES) if " s  test" in line]
        self.assertEqual((shown[0], shown[-1], len(shown)), ("test29", "test10", results.SLOWEST))


if __name__ == "__main__":
    unittest.main()
