"""What a terminal shows, and how it is drawn."""

import re
import unittest
import xml.etree.ElementTree as ET

import screen
from screen import THEMES, Scene, Screen, Unknown, drawing

SVG = "{http://www.w3.org/2000/svg}"

#: A bar that is drawn three times, at a command's prompt, and a last line.
BAR = Scene("a disk", [(5.0, "# "), (5.5, "flash\r\n"), (6.0, "\r\x1b[K[>  ] 1 %"), (7.0, "\r\x1b[K[=> ] 50 %"), (8.0, "\r\x1b[Kdone  <&>\r\n# ")])


class Shown(unittest.TestCase):
    def lines(self, text: str) -> list[str]:
        shown = Screen()
        shown.feed(text)
        return shown.lines

    def test_a_line_is_written_again_and_erased(self) -> None:
        self.assertEqual(self.lines("abc\rx"), ["xbc"])
        self.assertEqual(self.lines("abc\r\x1b[Kx\r\ny"), ["x", "y"])
        self.assertEqual(self.lines("\x1b[?2004h# \x1b[?2004l\r\n"), ["# ", ""])

    def test_a_long_line_goes_on_in_the_next_one(self) -> None:
        self.assertEqual(self.lines("x" * screen.COLUMNS), ["x" * screen.COLUMNS])
        self.assertEqual(self.lines("x" * screen.COLUMNS + "y"), ["x" * screen.COLUMNS, "y"])

    def test_what_it_does_not_know_is_an_error(self) -> None:
        for text in ("\x1b[2J", "\x1b[31m", "\x1bc", "\x1b", "\x1b[", "\a", "\t"):
            with self.subTest(text), self.assertRaises(Unknown):
                self.lines(f"a{text}")


class Drawn(unittest.TestCase):
    def drawn(self, *scenes: Scene) -> list[tuple[str, bool]]:
        """The texts, and whether they stay."""
        found = []
        for theme in THEMES:
            root = ET.fromstring(drawing(theme, "a title", "about", "made", list(scenes)))
            found.append([(text.text or "", text.get("aria-hidden") is None) for text in root.iter(f"{SVG}text")])
        self.assertEqual(found[0], found[1])
        return found[0]

    def test_the_end_stays_and_all_else_is_hidden(self) -> None:
        texts = self.drawn(BAR)
        self.assertEqual([text for text, stays in texts if stays], ["a disk", "# flash", "done  <&>", "#"])
        self.assertEqual([text for text, stays in texts if not stays], ["#", "[>  ] 1 %", "[=> ] 50 %"])

    def test_an_earlier_scene_makes_room(self) -> None:
        texts = self.drawn(BAR, Scene("later", [(0.0, "# "), (1.0, "status\r\nfine")]))
        self.assertEqual([text for text, stays in texts if stays], ["later", "# status", "fine"])
        self.assertIn(("done  <&>", False), texts)

    def test_what_takes_long_is_shown_faster_and_says_so(self) -> None:
        slow = Scene("a disk", [(number * 10.0, f"{number}\r\n") for number in range(10)])
        self.assertEqual(self.drawn(slow)[0], ("a disk, shown 5 times as fast", True))

    def test_nothing_moves_for_who_does_not_want_it_nor_for_ever(self) -> None:
        text = drawing(THEMES[0], "a title", "about", "made", [BAR])
        before, moving = text.split("@media (prefers-reduced-motion:no-preference){")
        self.assertNotIn("animation", before)
        self.assertNotIn("infinite", text)
        # Each that moves has its keyframes.
        classes = set(re.findall(r'class="[^"]*\b(a\d+)\b', text))
        self.assertEqual(classes, set(re.findall(r"\.(a\d+)\{animation-name", moving)))
        self.assertGreater(len(classes), 3)


if __name__ == "__main__":
    unittest.main()
