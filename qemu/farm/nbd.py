"""A disk of QEMU that is served by this program, which sees each request, one after another.

The protocol is NBD, fixed newstyle: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path

_MAGIC = 0x4E42444D41474943  # "NBDMAGIC"
_OPTION = 0x49484156454F5054  # "IHAVEOPT"
_OPTION_REPLY = 0x0003E889045565A9
_REQUEST = 0x25609513
_REPLY = 0x67446698

_FIXED_NEWSTYLE, _NO_ZEROES = 1, 2
_OPT_EXPORT_NAME, _OPT_ABORT, _OPT_INFO, _OPT_GO = 1, 2, 6, 7
_REP_ACK, _REP_INFO = 1, 3
_REP_ERR_UNSUP = (1 << 31) + 1
_INFO_EXPORT, _INFO_BLOCK_SIZE = 0, 3
# has flags, takes flushes, FUA, trims, writes of zeroes
_EXPORT_FLAGS = 1 | 4 | 8 | 32 | 64
_READ, _WRITE, _DISCONNECT, _FLUSH, _TRIM, _WRITE_ZEROES = 0, 1, 2, 3, 4, 6
_EIO, _EINVAL, _ENOSPC = 5, 22, 28
_LARGEST = 32 << 20


class Served:
    """Serves the file `path` on the Unix socket `at`."""

    def __init__(self, path: Path, at: Path) -> None:
        self._file = os.open(path, os.O_RDWR)
        self._size = os.fstat(self._file).st_size
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(at))
        self._server.listen(1)
        self._peers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def write(self, offset: int, data: bytes) -> None:
        """A write of the guest."""
        os.pwrite(self._file, data, offset)

    def zero(self, offset: int, length: int) -> None:
        """A write of zeroes."""
        self.write(offset, bytes(length))

    def flush(self) -> None:
        """All that was written before has to last."""

    def close(self) -> None:
        """Ends it; QEMU must be gone, or its requests fail."""
        # A thread in accept() is not woken by close() alone.
        for peer in [*self._peers, self._server]:
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._thread.join(10)
        self._server.close()
        os.close(self._file)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            with peer:
                self._peers.append(peer)
                try:
                    if self._negotiate(peer):
                        self._requests(peer)
                except (OSError, EOFError):
                    # QEMU was killed, which is how a power cut looks from here.
                    pass
                self._peers.remove(peer)

    def _negotiate(self, peer: socket.socket) -> bool:
        peer.sendall(struct.pack(">QQH", _MAGIC, _OPTION, _FIXED_NEWSTYLE | _NO_ZEROES))
        _take(peer, 4)
        while True:
            magic, option, length = struct.unpack(">QII", _take(peer, 16))
            if magic != _OPTION or length > _LARGEST:
                raise EOFError
            _take(peer, length)
            if option == _OPT_EXPORT_NAME:
                peer.sendall(struct.pack(">QH", self._size, _EXPORT_FLAGS))
                return True
            if option in (_OPT_GO, _OPT_INFO):
                _answer(peer, option, _REP_INFO, struct.pack(">HQH", _INFO_EXPORT, self._size, _EXPORT_FLAGS))
                _answer(peer, option, _REP_INFO, struct.pack(">HIII", _INFO_BLOCK_SIZE, 1, 4096, _LARGEST))
                _answer(peer, option, _REP_ACK)
                if option == _OPT_GO:
                    return True
            elif option == _OPT_ABORT:
                _answer(peer, option, _REP_ACK)
                return False
            else:
                _answer(peer, option, _REP_ERR_UNSUP)

    def _requests(self, peer: socket.socket) -> None:
        while True:
            magic, flags, kind, handle, offset, length = struct.unpack(">IHHQQI", _take(peer, 28))
            if magic != _REQUEST or kind == _DISCONNECT:
                return
            data = _take(peer, length) if kind == _WRITE else b""
            error, out = self._carry_out(kind, offset, length, data)
            if flags & 1 and not error:
                self.flush()
            peer.sendall(struct.pack(">IIQ", _REPLY, error, handle) + out)

    def _carry_out(self, kind: int, offset: int, length: int, data: bytes) -> tuple[int, bytes]:
        if kind in (_READ, _WRITE, _TRIM, _WRITE_ZEROES) and offset + length > self._size:
            return (_EINVAL if kind == _READ else _ENOSPC), b""
        try:
            if kind == _READ:
                return 0, os.pread(self._file, length, offset)
            if kind == _WRITE:
                self.write(offset, data)
            elif kind == _WRITE_ZEROES:
                self.zero(offset, length)
            elif kind == _FLUSH:
                self.flush()
            elif kind != _TRIM:
                return _EINVAL, b""
        except OSError:
            return _EIO, b""
        return 0, b""


def _answer(peer: socket.socket, option: int, kind: int, data: bytes = b"") -> None:
    peer.sendall(struct.pack(">QIII", _OPTION_REPLY, option, kind, len(data)) + data)


def _take(peer: socket.socket, length: int) -> bytes:
    parts = []
    while length:
        part = peer.recv(min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
