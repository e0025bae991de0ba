"""What a disk holds after a power cut."""

import struct
import tempfile
import unittest
from pathlib import Path

import cut
from place import FarmError

SECTOR = 512


def log(path: Path, *entries: tuple[int, bytes, int]) -> None:
    """A log of these requests: first sector, data, flags; a discard's data say how long it is."""

    def padded(data: bytes) -> bytes:
        return data + bytes(-len(data) % SECTOR)

    out = padded(struct.pack("<QQQI", cut.MAGIC, 1, len(entries), SECTOR))
    for sector, data, flags in entries:
        out += padded(struct.pack("<QQQQ", sector, len(data) // SECTOR, flags, 0))
        if not flags & cut.DISCARD:
            out += padded(data)
    path.write_bytes(out)


def sectors(letter: str, count: int = 1) -> bytes:
    return letter.encode() * (SECTOR * count)


class Cuts(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log, self.disk = Path(folder.name) / "log", Path(folder.name) / "disk"
        self.disk.write_bytes(sectors("-", 8))

    def held(self) -> str:
        data = self.disk.read_bytes()
        return "".join(chr(data[at]) if len(set(data[at : at + SECTOR])) == 1 else "?" for at in range(0, len(data), SECTOR))

    def test_what_was_flushed_stays_and_the_rest_is_lost(self) -> None:
        log(self.log, (0, sectors("a", 2), 0), (0, b"", cut.FLUSH), (1, sectors("b", 3), 0), (6, sectors("c"), 0))
        counts = cut.rebuild(self.disk, self.log, 4, lambda _, __: False)
        self.assertEqual(self.held(), "aa------")
        self.assertEqual((counts["safe"], counts["kept"], counts["lost"]), (2, 0, 4))

    def test_writes_are_torn_at_a_sector(self) -> None:
        log(self.log, (1, sectors("b", 3), 0), (6, sectors("c"), 0))
        cut.rebuild(self.disk, self.log, 2, lambda request, sector: request == 0 and sector < 2)
        self.assertEqual(self.held(), "-bb-----")

    def test_nothing_after_the_cut_is_there(self) -> None:
        log(self.log, (0, sectors("a"), 0), (1, sectors("b"), 0), (0, b"", cut.FLUSH))
        cut.rebuild(self.disk, self.log, 1, lambda _, __: True)
        self.assertEqual(self.held(), "a-------")
        cut.rebuild(self.disk, self.log, 0, lambda _, __: True)
        self.assertEqual(self.held(), "a-------")

    def test_a_request_past_the_cache_is_there_and_those_before_it_need_not_be(self) -> None:
        log(self.log, (0, sectors("a"), 0), (1, sectors("b"), cut.FUA))
        cut.rebuild(self.disk, self.log, 2, lambda _, __: False)
        self.assertEqual(self.held(), "-b------")

    def test_a_flush_does_not_cover_the_data_it_carries(self) -> None:
        log(self.log, (0, sectors("a"), 0), (1, sectors("b"), cut.FLUSH))
        cut.rebuild(self.disk, self.log, 2, lambda _, __: False)
        self.assertEqual(self.held(), "a-------")

    def test_a_discard_changes_nothing(self) -> None:
        log(self.log, (0, sectors("x", 4), cut.DISCARD), (4, sectors("a"), 0), (0, b"", cut.FLUSH))
        cut.rebuild(self.disk, self.log, 3, lambda _, __: False)
        self.assertEqual(self.held(), "----a---")

    def test_what_lies_behind_an_end_is_left_out(self) -> None:
        log(self.log, (0, sectors("a", 3), 0), (2, sectors("b"), 0), (1, sectors("c"), cut.FUA))
        cut.rebuild(self.disk, self.log, 3, lambda _, __: True, 2 * SECTOR)
        self.assertEqual(self.held()[:2], "ac")
        self.assertEqual(self.held()[2:], "a-----")

    def test_a_seed_repeats_itself_and_others_differ(self) -> None:
        data = [(number % 8, sectors("abcdefgh"[number % 8]), 0) for number in range(64)]
        log(self.log, *data)
        seen = set()
        for seed in range(20):
            found = []
            for _ in range(2):
                self.disk.write_bytes(sectors("-", 8))
                cut.rebuild(self.disk, self.log, 40, cut.chance(seed))
                found.append(self.held())
            self.assertEqual(found[0], found[1])
            seen.add(tuple(cut.chance(seed)(number, sector) for number in range(20) for sector in range(9)))
        self.assertEqual(len(seen), 20)

    def test_which_requests_touch_a_range(self) -> None:
        log(self.log, (0, sectors("a"), 0), (1, sectors("b", 2), 0), (2, sectors("x"), cut.DISCARD), (3, sectors("c"), 0))
        self.assertEqual(cut.touching(cut.read(self.log), 2 * SECTOR, SECTOR), [1])

    def test_what_is_no_log_is_refused(self) -> None:
        self.log.write_bytes(bytes(1024))
        with self.assertRaisesRegex(FarmError, "no write log"):
            cut.read(self.log)
        log(self.log, (0, sectors("a", 8), 0))
        self.log.write_bytes(self.log.read_bytes()[: SECTOR * 3])
        with self.assertRaisesRegex(FarmError, "ends within"):
            cut.read(self.log)


if __name__ == "__main__":
    unittest.main()
