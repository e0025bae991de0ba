"""Which figures are old."""

import subprocess
import tempfile
import unittest
from pathlib import Path

import figures

CODE = """fn write(disk: &Disk) {
    let first = disk.read(1);
    disk.put(first, 2);
}
"""


class Figures(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.top = Path(self.dir.name)
        self.git("init", "--quiet")
        self.put("src/flash/write.rs", CODE)
        self.measured = self.commit()
        self.put(figures.PAGE, f"# Benchmarks\n\n## Flash\n\nMeasured on 2026-11-29, commit {self.measured}, by `benches/flash.py`.\n")
        self.commit()

    def git(self, *words: str) -> str:
        own = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *own, "-C", self.top, *words], check=True, capture_output=True, text=True, timeout=60).stdout

    def put(self, path: str, text: str) -> None:
        (self.top / path).parent.mkdir(parents=True, exist_ok=True)
        (self.top / path).write_text(text)

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "--quiet", "--allow-empty", "-m", "x")
        return self.git("rev-parse", "HEAD").strip()

    def others(self, count: int) -> None:
        for _ in range(count):
            self.commit()

    def test_a_change_long_after_the_figures_is_told(self) -> None:
        self.others(figures.MOST - 1)
        self.put("src/flash/write.rs", CODE.replace("2", "3"))
        last = self.commit()
        [text] = figures.warnings(self.top)
        for words in ("`Flash`", f"{figures.MOST + 1} commits", last[:12], "./dev bench"):
            self.assertIn(words, text)
        # What does not count comes later.
        self.put("src/flash/write.rs", "// Why.\n" + CODE.replace("2", "3"))
        self.commit()
        self.assertIn(last[:12], figures.warnings(self.top)[0])

    def test_a_change_soon_after_them_is_not(self) -> None:
        self.put("src/flash/write.rs", CODE.replace("2", "3"))
        self.commit()
        self.others(figures.MOST + 10)
        self.assertEqual(figures.warnings(self.top), [])

    def test_comments_names_and_moves_do_not_count(self) -> None:
        self.others(figures.MOST + 10)
        for text in (CODE.replace("    let", "    // The first.\n    let"), CODE.replace("first", "start").replace("\n    disk", " disk")):
            self.put("src/flash/write.rs", text)
            self.commit()
        (self.top / "src/flash/write.rs").unlink()
        self.put("src/flash/place/body.rs", CODE)
        self.commit()
        self.put("src/update/mod.rs", "fn other() {}\n")
        self.commit()
        self.assertEqual(figures.warnings(self.top), [])

    def test_figures_of_an_unknown_commit_are_told(self) -> None:
        for text in ("of nothing\n", f"Measured on 2026-11-29, commit {'0' * 40}, by `benches/flash.py`.\n"):
            self.put(figures.PAGE, f"# Benchmarks\n\n## Flash\n\n{text}")
            self.assertIn("not known", figures.warnings(self.top)[0])
        self.put(figures.PAGE, "# Benchmarks\n\n## Something\n\n")
        self.assertIn("`Something`", figures.warnings(self.top)[0])


class Page(unittest.TestCase):
    def test_each_part_measures_what_is_there(self) -> None:
        for paths in figures.MEASURED.values():
            for path in paths:
                self.assertTrue((figures.TOP / path).exists(), path)
