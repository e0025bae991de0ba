"""A disk that takes every write and forgets some of them, as counterfeit flash and firmware with faults do. QEMU has no driver that loses data
without an error.
"""

from __future__ import annotations

from pathlib import Path

from nbd import Served


class LyingDisk(Served):
    """Writes to the bytes from `start` to `end` are confirmed and dropped."""

    def __init__(self, path: Path, at: Path, start: int, end: int) -> None:
        self.lost = 0
        self.range = (start, end)
        super().__init__(path, at)

    def write(self, offset: int, data: bytes) -> None:
        start, end = self.range
        end_of_data = offset + len(data)
        head = data[: max(0, min(start, end_of_data) - offset)]
        tail_at = max(end, offset)
        self.lost += max(0, min(end, end_of_data) - max(start, offset))
        if head:
            super().write(offset, head)
        if tail_at < end_of_data:
            super().write(tail_at, data[tail_at - offset :])
