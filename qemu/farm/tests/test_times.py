"""The parts of a flash's time."""

import unittest
from typing import Any

import times
from place import FarmError

RECEIPT: dict[str, Any] = {
    "write": {"seconds": 20.0},
    "verify": {"seconds": 10.0},
    "timeline": [{"step": "wait", "at": 0.0, "seconds": 5.0}, {"step": "look", "at": 5.0, "seconds": 0.1}, {"step": "write", "at": 5.0, "seconds": 35.0}],
}


class Times(unittest.TestCase):
    def test_parts_add_up(self) -> None:
        line = times.report(100.0, times.Begun(102.0, 117.0), 160.0, RECEIPT)
        for part in (
            "60.0 s from power-on to power-off",
            "firmware and bootloader 2.0 s, kernel and services 15.0 s, flasher 40.0 s, switching off 3.0 s",
            "The flasher's share is 67%: wait 5.0 s, write 35.0 s (of that, writing 20.0 s and reading back 10.0 s)",
        ):
            self.assertIn(part, line)

    def test_what_cannot_be_is_said(self) -> None:
        with self.assertRaisesRegex(FarmError, "switching off took -7.0 s"):
            times.report(100.0, times.Begun(102.0, 117.0), 150.0, RECEIPT)
        with self.assertRaisesRegex(FarmError, "no timeline"):
            times.report(100.0, times.Begun(102.0, 117.0), 160.0, RECEIPT | {"timeline": []})
