#!/usr/bin/env python3
"""Sends the D-Bus service as many messages as the bus takes.

    flood.py SOCKET KIND SECONDS [CONNECTIONS]

It becomes the user 65534 first. KIND: `silent` calls of Status that expect no reply; `replies`, calls of Status whose replies are read; `deaf`, the same with
replies that nobody reads; `reconnect`, eight calls of Status on each connection, which is then closed and opened again: each time the service must ask for its user.
Prints how many messages were sent.
"""

import os
import select
import socket
import struct
import sys
import time

NAME, PATH = "io.balena.Copal1", "/io/balena/Copal1"
# Messages that are sent at once: each send is one system call.
BATCH = 500


def string(value):
    return struct.pack("<I", len(value)) + value + b"\0"


def aligned(data, to):
    return data + bytes(-len(data) % to)


def call(interface, member, body=(), to=NAME, path=PATH, reply=True, serial=1, signature=None):
    """A method call (D-Bus specification, "Message Format"); every argument in `body` is a string unless `signature` says else."""
    fields = b""
    for code, kind, value in [(1, b"o", path), (2, b"s", interface), (3, b"s", member), (6, b"s", to)]:
        fields = aligned(fields, 8) + bytes([code, 1]) + kind + b"\0" + string(value.encode())
    data = b""
    signature = signature or "s" * len(body)
    if signature:
        fields = aligned(fields, 8) + bytes([8, 1]) + b"g\0" + bytes([len(signature)]) + signature.encode() + b"\0"
    for value in body:
        data = aligned(data, 4) + (value if isinstance(value, bytes) else string(value.encode()))
    head = b"l" + bytes([1, 0 if reply else 1, 1]) + struct.pack("<III", len(data), serial, len(fields))
    return aligned(head + fields, 8) + data


def connect(path):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\n")
    assert connection.recv(4096).startswith(b"OK")
    bus = "org.freedesktop.DBus"
    hello = call(bus, "Hello", to=bus, path="/org/freedesktop/DBus")
    connection.sendall(b"BEGIN\r\n" + hello)
    connection.recv(65536)
    connection.setblocking(False)
    return connection


def messages(kind):
    if kind == "silent":
        return [call(f"{NAME}.Manager", "Status", reply=False)] * BATCH
    return [call(f"{NAME}.Manager", "Status", serial=n + 1) for n in range(BATCH)]


def reconnect(path, end, number):
    data, sent = b"".join(messages("replies")[:8]), 0
    while time.monotonic() < end:
        connections = [connect(path) for _ in range(number)]
        for connection in connections:
            connection.sendall(data)
        sent += 8 * number
        # They last until the service has read their calls, which come all at once.
        time.sleep(0.1)
        for connection in connections:
            connection.close()
    print(f"{sent} messages over {number} connections at once")


def main():
    path, kind, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    # An ordinary user. Here and not by the caller: that user may not be able to start this interpreter.
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    number = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    if kind == "reconnect":
        return reconnect(path, time.monotonic() + seconds, number)
    connections = [connect(path) for _ in range(number)]
    batch = messages(kind)
    data, sent = b"".join(batch), 0
    rest = {c: memoryview(data) for c in connections}
    end = time.monotonic() + seconds
    while time.monotonic() < end and rest:
        readable, writable, _ = select.select(list(rest) if kind != "deaf" else [], list(rest), [], 0.1)
        for connection in readable:
            try:
                if not connection.recv(1 << 20):
                    raise ConnectionError
            except BlockingIOError:
                pass
            except OSError:
                rest.pop(connection, None)
        for connection in writable:
            if connection not in rest:
                continue
            try:
                rest[connection] = rest[connection][connection.send(rest[connection]) :]
            except BlockingIOError:
                continue
            except OSError:
                del rest[connection]
                continue
            if not rest[connection]:
                rest[connection] = memoryview(data)
                sent += len(batch)
    print(f"{sent} messages over {len(connections)} connections, {len(connections) - len(rest)} of them closed by the bus")


if __name__ == "__main__":
    main()
