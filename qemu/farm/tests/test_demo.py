"""Which lines of a console the demo shows."""

import contextlib
import io
import unittest
from unittest import mock

import demo


def shown(*lines: bytes) -> list[str]:
    """What is left of these lines where the output is no terminal."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), mock.patch("shutil.get_terminal_size", return_value=mock.Mock(columns=120)):
        console = demo.Console(demo.Screen())
        for line in lines:
            console.show(line)
    return [line.strip(" |") for line in out.getvalue().splitlines()]


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


if __name__ == "__main__":
    unittest.main()
