#!/usr/bin/env python3
"""Benchmark of the D-Bus service: from its start to its first answer, and the memory it holds while idle.

    python3 benches/daemon.py [--rounds N] [--flood SECONDS] [--copal BINARY]

Needs dbus-daemon. The service runs on a bus of its own, for a device that is not there; it reads what it would of one.

- *first answer*: from exec of the service until a client that has waited for it holds the answer to `Status`. The client is
  on the bus before, and polls for the name's owner without a pause: none of its own start is counted.
- *idle*: `VmRSS` of /proc/PID/status, three seconds after the last call, the highest of all rounds; and of that what is not
  the program's own file, which other processes of copal share (`RssAnon`).
- *flood*: a user without rights calls `Status` without end and expects no reply (tests/daemon/flood.py; root only). Meanwhile root asks
  twice a second: the longest wait for that, `VmHWM` afterwards, and the time from SIGTERM to the end.
"""

import argparse
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

LIMIT_ANSWER, LIMIT_RSS = 0.050, 8 << 20
LIMIT_FLOOD_RSS, LIMIT_FLOOD_ANSWER, LIMIT_END = 24 << 20, 1, 2
FLOOD = pathlib.Path(__file__).parent.parent / "tests/daemon/flood.py"
NAME, PATH = "io.balena.Copal1", "/io/balena/Copal1"

CONF = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><listen>unix:path={}</listen><auth>EXTERNAL</auth><policy context="default">
<allow user="*"/><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>"""


class Client:
    """As much of D-Bus as one call needs: nothing is started for it that would be measured."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.serial = 0
        self.socket.sendall(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\n")
        assert self.socket.recv(4096).startswith(b"OK")
        self.socket.sendall(b"BEGIN\r\n")
        bus = "org.freedesktop.DBus"
        self.call(bus, "/org/freedesktop/DBus", bus, "Hello")

    def call(self, to, path, interface, member, text=None):
        """Sends a call; the answer's type (2: returned, 3: an error) and its body."""
        self.serial += 1

        def string(value):
            return struct.pack("<I", len(value)) + value.encode() + b"\0"

        def aligned(data, to):
            return data + bytes(-len(data) % to)

        fields = b""
        for code, kind, value in [(1, b"o", path), (2, b"s", interface), (3, b"s", member), (6, b"s", to)]:
            fields = aligned(fields, 8) + bytes([code, 1]) + kind + b"\0" + string(value)
        body = b""
        if text is not None:
            fields = aligned(fields, 8) + bytes([8, 1]) + b"g\0" + bytes([1]) + b"s\0"
            body = string(text)
        head = b"l" + bytes([1, 0, 1]) + struct.pack("<III", len(body), self.serial, len(fields))
        self.socket.sendall(aligned(head + fields, 8) + body)
        while True:
            kind, serial, answer = self.receive()
            if kind in (2, 3) and serial == self.serial:
                return kind, answer

    def exactly(self, size):
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                sys.exit("the bus has gone")
            data += more
        return data

    def receive(self):
        head = self.exactly(16)
        length, _, fields = struct.unpack("<III", head[4:])
        fields = self.exactly(fields + -fields % 8)
        body, at, reply = self.exactly(length), 0, None
        while at < len(fields) and fields[at]:
            code, kind = fields[at], fields[at + 2 : at + 3]
            at += 4
            if kind == b"u":
                value = struct.unpack_from("<I", fields, at)[0]
                reply, at = (value if code == 5 else reply), at + 4
            elif kind == b"g":
                at += fields[at] + 2
            else:
                at += struct.unpack_from("<I", fields, at)[0] + 5
            at += -at % 8
        return head[1], reply, body


def memory(pid):
    """Bytes: all, and those of no file."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return [int(rows[key].split()[0]) << 10 for key in ("VmRSS", "RssAnon")]


def one(copal, folder, bus):
    client = Client(bus)
    env = {"PATH": "/usr/bin:/bin", "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={bus}"}
    start = time.perf_counter()
    service = subprocess.Popen([copal, "daemon", "--root", str(folder)], env=env)
    while client.call(*["org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus"], "NameHasOwner", NAME)[1] != b"\1\0\0\0":
        if service.poll() is not None:
            sys.exit("the service did not start")
    kind, status = client.call(NAME, PATH, f"{NAME}.Manager", "Status")
    answer = time.perf_counter() - start
    if kind != 2 or b"copal" not in status:
        sys.exit(f"no answer: {status}")
    for interface in ("org.freedesktop.DBus.Introspectable.Introspect", "org.freedesktop.DBus.ObjectManager.GetManagedObjects"):
        client.call(NAME, PATH, *interface.rsplit(".", 1))
    time.sleep(3)
    rss = memory(service.pid)
    service.terminate()
    service.wait()
    return answer, *rss


def flood(copal, folder, bus, seconds):
    """Seconds root waited at most, bytes the service had at most, seconds it took to end; how much was sent."""
    client = Client(bus)
    env = {"PATH": "/usr/bin:/bin", "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={bus}"}
    service = subprocess.Popen([copal, "daemon", "--root", str(folder)], env=env)
    while client.call(*["org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus"], "NameHasOwner", NAME)[1] != b"\1\0\0\0":
        time.sleep(0.01)
    sender = subprocess.Popen([sys.executable, str(FLOOD), str(bus), "silent", str(seconds)], stdout=subprocess.PIPE, text=True)
    longest = 0
    while sender.poll() is None:
        start = time.perf_counter()
        if client.call(NAME, PATH, f"{NAME}.Manager", "Status")[0] != 2:
            sys.exit("root has no answer")
        longest = max(longest, time.perf_counter() - start)
        time.sleep(0.5)
    status = pathlib.Path(f"/proc/{service.pid}/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) << 10
    start = time.perf_counter()
    service.terminate()
    service.wait()
    sent = sender.stdout.read().strip()
    if sent.startswith("0 "):
        sys.exit("the flood was none")
    return longest, peak, time.perf_counter() - start, sent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--flood", type=int, default=10, metavar="SECONDS")
    parser.add_argument("--copal", default=os.environ.get("COPAL", "target/dist/copal-x86_64"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        bus = folder / "bus"
        folder.chmod(0o755)
        (folder / "conf").write_text(CONF.format(bus))
        argv = ["dbus-daemon", f"--config-file={folder / 'conf'}", "--nofork", "--nopidfile", "--print-address=1"]
        daemon = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            daemon.stdout.readline()
            rounds = [one(asked.copal, folder / "root", bus) for _ in range(asked.rounds)]
            flooded = flood(asked.copal, folder / "root", bus, asked.flood) if os.getuid() == 0 else None
        finally:
            daemon.terminate()
            daemon.wait()
    answers, rss, anonymous = zip(*rounds)
    answer, rss, anonymous = statistics.median(answers), max(rss), max(anonymous)
    print(f"first answer  median {answer * 1e3:.1f} ms, worst {max(answers) * 1e3:.1f} ms (limit {LIMIT_ANSWER * 1e3:.0f} ms)")
    print(f"idle          {rss / (1 << 20):.1f} MiB, {anonymous / (1 << 20):.1f} MiB of them its own (limit {LIMIT_RSS >> 20} MiB)")
    missed = answer > LIMIT_ANSWER or rss > LIMIT_RSS
    if flooded:
        longest, peak, end, sent = flooded
        print(f"flood         {sent}")
        print(f"              root waits {longest * 1e3:.0f} ms at most (limit {LIMIT_FLOOD_ANSWER} s)")
        print(f"              peak {peak / (1 << 20):.1f} MiB (limit {LIMIT_FLOOD_RSS >> 20} MiB), ends in {end:.2f} s (limit {LIMIT_END} s)")
        missed |= longest > LIMIT_FLOOD_ANSWER or peak > LIMIT_FLOOD_RSS or end > LIMIT_END
    else:
        print("flood         not run: only root can call as another user")
    if missed:
        sys.exit("the service misses its limits")


if __name__ == "__main__":
    main()
