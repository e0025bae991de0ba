"""Partitions that the kernel is told of by hand, without a table: `blkpg.py add|del DEVICE NUMBER [START LENGTH]`, in sectors.

util-linux has had `addpart` and `delpart` for it; Debian 13 has them no longer. Numbers and layouts are those of
`include/uapi/linux/blkpg.h`.
"""

import ctypes
import fcntl
import os
import sys

BLKPG = 0x1269
ADD, DELETE = 1, 2


class Partition(ctypes.Structure):
    _fields_ = [
        ("start", ctypes.c_longlong),
        ("length", ctypes.c_longlong),
        ("number", ctypes.c_int),
        ("names", ctypes.c_char * 128),
    ]


class Argument(ctypes.Structure):
    _fields_ = [
        ("operation", ctypes.c_int),
        ("flags", ctypes.c_int),
        ("length", ctypes.c_int),
        ("data", ctypes.c_void_p),
    ]


what, device, *numbers = sys.argv[1:]
number, start, length = [int(n) for n in numbers] + [0] * (3 - len(numbers))
one = Partition(start * 512, length * 512, number)
operation = {"add": ADD, "del": DELETE}[what]
argument = Argument(operation, 0, ctypes.sizeof(one), ctypes.addressof(one))
at = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
fcntl.ioctl(at, BLKPG, bytes(argument))
