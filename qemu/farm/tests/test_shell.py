"""A shell in a board: one reader of its console, and every key reaches it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import socket
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

SPEC = importlib.util.spec_from_file_location("farm_main", Path(__file__).resolve().parents[1] / "__main__.py")
assert SPEC and SPEC.loader
farm = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(farm)


class Shell(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.sockets = Path(folder.name)

    def typed(self, keys: bytes, console_only: bool) -> tuple[bytes, mock.Mock]:
        """What reaches the console of a board whose shell is used with these keys, and the machine."""
        machine = mock.Mock()
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(server.close)
        server.bind(str(self.sockets / "console"))
        server.listen()
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        # The end of the keys ends the shell, as control-] does.
        os.write(write, keys)
        os.close(write)

        @contextlib.contextmanager
        def folder(_: str) -> Iterator[tuple[Path, Path]]:
            yield self.sockets, self.sockets

        state = mock.Mock(live=True, folder=self.sockets)
        options = argparse.Namespace(board="qemu-amd64", state="running", console=console_only, execute=None)
        with contextlib.ExitStack() as held:
            for module, name, value in ((farm.machines, "accelerator", lambda _: "tcg"), (farm.machines, "Machine", lambda *_: machine),
                                        (farm.states, "make", lambda *_: state), (farm.states, "plug", mock.Mock()),
                                        (farm.states, "hardware", mock.Mock()), (farm.states, "folder", folder),
                                        (farm.place, "guest_place", contextlib.nullcontext), (farm, "speaker", mock.Mock()),
                                        (farm.sys, "stdin", mock.Mock(fileno=lambda: read))):
                held.enter_context(mock.patch.object(module, name, value))
            self.assertEqual(farm.shell(options), 0)
        end, _ = server.accept()
        with end:
            return b"".join(iter(lambda: end.recv(1 << 16), b"")), machine

    def test_keys_go_to_the_shell_that_the_board_has(self) -> None:
        with mock.patch("shutil.get_terminal_size", return_value=os.terminal_size((90, 33))):
            got, machine = self.typed(b"copal status\r", console_only=False)
        self.assertEqual(got, b"stty rows 33 cols 90\rcopal status\r")
        machine.ready.assert_called_once()
        # A second shell there would take half of them.
        machine.must.assert_not_called()
        machine.call.assert_not_called()
        machine.kill.assert_called()

    def test_to_the_console_alone_nothing_is_typed(self) -> None:
        got, machine = self.typed(b"x", console_only=True)
        self.assertEqual(got, b"x")
        machine.ready.assert_not_called()


if __name__ == "__main__":
    unittest.main()
