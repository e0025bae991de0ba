"""Which lines of a console the demo shows."""

import contextlib
import io
import unittest
from collections.abc import Callable
from unittest import mock

import demo


def printed(columns: int, do: Callable[[demo.Screen], None]) -> list[str]:
    """The lines that a screen prints where the output is no terminal."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), mock.patch("shutil.get_terminal_size", return_value=mock.Mock(columns=columns)):
        do(demo.Screen())
    return out.getvalue().splitlines()


def shown(*lines: bytes) -> list[str]:
    """What is left of these lines where the output is no terminal."""
    def feed(screen: demo.Screen) -> None:
        console = demo.Console(screen)
        for line in lines:
            console.show(line)

    return [line.strip(" |") for line in printed(120, feed)]


class Shown(unittest.TestCase):
    def test_a_bar_is_a_line_for_every_tenth(self) -> None:
        bar = [f"\r\x1b[2Kwrite [==>  ] {n} %, 1.0 MiB of 2.0 MiB".encode() for n in range(0, 100)]
        found = shown(*bar, b"write: done\n", b"\rverify [>  ] 3 %\r", b"verify [>  ] 4 %\r")
        self.assertEqual(len(found), 12)
        self.assertIn("write [==>  ] 50 %", found[5])
        self.assertEqual(found[10], "write: done")
        self.assertIn("verify", found[11])

    def test_a_firmware_and_a_kernel_are_not_shown(self) -> None:
        dull = (b"[    1.234567] pci 0000:00:01.0\n", b"BdsDxe: starting Boot0001\n", b"\x1b[2J\n", b"\n", b"SELinux:  Could not open\n",
                b"\x1b[?2004hroot@board:~# \n")
        self.assertEqual(shown(*dull, b"copal-board: root 3, count 0\n"), ["copal-board: root 3, count 0"])

    def test_what_is_longer_than_a_line_goes_on_in_the_next(self) -> None:
        why = "rollback 2026-11-23T21:39:38Z: from 5.1.1 in slot A to 5.1.0 in slot B: the health checks failed 3 times: the engine is broken"
        lines = printed(80, lambda screen: (screen.heading(why), screen.line(" ", "  " + why)))
        self.assertLessEqual(max(map(len, lines)), 79)
        self.assertEqual(" ".join(" ".join(lines).split()).count(why), 2, lines)
        # Each further line begins a little after the first.
        first = next(n for n, line in enumerate(lines) if line.startswith(" " * 11 + "rollback"))
        self.assertTrue(all(line.startswith(" " * 13) for line in lines[first + 1 :]), lines)

    def test_after_a_while_without_a_word_it_says_what_it_waits_for(self) -> None:
        def quiet(screen: demo.Screen) -> None:
            screen.waiting("reboots")
            screen.spoken -= 2 * demo.QUIET
            screen.waiting("reboots: 30 s so far")
            screen.waiting("reboots: 31 s so far")

        self.assertEqual([line.strip() for line in printed(80, quiet)], ["… reboots: 30 s so far"])


if __name__ == "__main__":
    unittest.main()
