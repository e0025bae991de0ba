"""What records the changes of a board."""

from __future__ import annotations

import socket
import struct
import sys
import tempfile
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import recorder  # noqa: E402
from recorder import DISK, TPM, VARIABLES, RecordedDisk, RecordedTpm, Recorder  # noqa: E402
from tests.test_lying import FLUSH, READ, WRITE, Client  # noqa: E402

WRITE_ZEROES = 6


def packet(code: int, rest: bytes = b"") -> bytes:
    """A command, or an answer."""
    return struct.pack(">HII", 0x8001, 10 + len(rest), code) + rest


class Recording(unittest.TestCase):
    """Stores of a board, used in turn."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.at = Path(folder.name)
        self.recorder = Recorder(self.at)

    def disk(self, store: str) -> Client:
        """Of 64 KiB."""
        (self.at / f"{store}.file").write_bytes(b"\xee" * (64 << 10))
        disk = RecordedDisk(self.at / f"{store}.file", self.at / f"{store}.socket", store, self.recorder)
        self.addCleanup(disk.close)
        client = Client(self.at / f"{store}.socket")
        self.addCleanup(client.socket.close)
        return client

    def test_requests_are_in_one_order_and_their_data_are_kept(self) -> None:
        disk, chip = self.disk(DISK), self.disk(VARIABLES)
        self.assertEqual(disk.ask(WRITE, 512, 4, b"disk")[0], 0)
        self.assertEqual(chip.ask(WRITE, 7, 1, b"c")[0], 0)
        self.assertEqual(disk.ask(WRITE_ZEROES, 1024, 2048)[0], 0)
        self.assertEqual(disk.ask(FLUSH, 0, 0)[0], 0)
        self.assertEqual(chip.ask(WRITE, 8, 2, b"hi")[0], 0)
        self.assertEqual(disk.ask(READ, 512, 600)[1], b"disk" + b"\xee" * 508 + bytes(88))
        self.recorder.save()
        changes = recorder.load(self.at)
        self.assertEqual([change.store for change in changes], [DISK, VARIABLES, DISK, DISK, VARIABLES])
        found = []
        with (self.at / "data").open("rb") as data:
            for change in changes:
                request = change.request
                assert request is not None
                data.seek(request.data)
                found.append((request.at, data.read(request.length), request.flush))
        self.assertEqual(found, [(512, b"disk", False), (7, b"c", False), (1024, bytes(2048), False), (0, b"", True), (8, b"hi", False)])

    def test_commands_of_the_tpm_pass_and_its_states_are_numbered(self) -> None:
        state = self.at / recorder.STATE
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(str(self.at / "swtpm"))
        server.listen(1)

        answered = threading.Event()

        def swtpm() -> None:
            """Answers each command with its code plus one; an even one changes its state. Then it waits: its end is that of every connection."""
            peer, _ = server.accept()
            peer.settimeout(10)
            peer.sendall(peer.recv(100)[::-1])
            data, descriptors, _, _ = socket.recv_fds(peer, 100, 1)
            peer.sendall(b"done")
            with socket.socket(fileno=descriptors[0]) as commands:
                for _ in range(3):
                    command = recorder.message(commands)
                    code = struct.unpack_from(">I", command, 6)[0]
                    if code % 2 == 0:
                        (self.at / "new").write_bytes(b"state %d" % code)
                        (self.at / "new").rename(state)
                    commands.sendall(packet(code + 1, command[10:]))
            answered.wait(10)
            peer.close()
            server.close()

        thread = threading.Thread(target=swtpm, daemon=True)
        thread.start()
        between = RecordedTpm(self.at / "tpm", self.at / "swtpm", self.at, self.recorder)
        self.addCleanup(between.close)
        qemu = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(qemu.close)
        qemu.settimeout(10)
        qemu.connect(str(self.at / "tpm"))
        qemu.sendall(b"control")
        self.assertEqual(qemu.recv(100), b"lortnoc")
        ours, its = socket.socketpair()
        self.addCleanup(ours.close)
        ours.settimeout(10)
        socket.send_fds(qemu, [struct.pack(">I", recorder.SET_DATAFD)], [its.fileno()])
        its.close()
        self.assertEqual(qemu.recv(100), b"done")
        for code in (1, 2, 3):
            ours.sendall(packet(code, b"rest"))
            self.assertEqual(recorder.message(ours), packet(code + 1, b"rest"))
        answered.set()
        thread.join(10)
        self.recorder.save()
        changes = recorder.load(self.at)
        self.assertEqual([(change.store, change.state) for change in changes], [(TPM, 0), (TPM, 1), (TPM, 1)])
        self.assertEqual((self.at / "tpm-1").read_bytes(), b"state 2")
        # The answers' codes are not 0: failed.
        self.assertEqual([recorder.code(change) for change in changes], [0, 0, 0])


if __name__ == "__main__":
    unittest.main()
