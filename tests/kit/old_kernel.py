#!/usr/bin/env python3
"""Runs a program as on Linux 4.4: whatever came to the kernel later is refused in the way in which 4.4 refuses it.

`old_kernel.py PROGRAM ARGUMENT…`: a seccomp filter, which every process that the program starts inherits. `uname` tells 2.6, which is
the only older one that the kernel can be made to tell.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

# `linux/audit.h`: the architecture; last system call of 4.4, which is mlock2; and ioctl, fallocate, getsockopt, setsockopt, fcntl,
# memfd_create, getrandom, madvise.
MACHINES = {
    "x86_64": (0xC000003E, 325, (16, 285, 55, 54, 72, 319, 318, 28)),
    "aarch64": (0xC00000B7, 284, (29, 47, 209, 208, 25, 279, 278, 233)),
}

# `linux/bpf_common.h`, `linux/seccomp.h`
LOAD, IF_EQUAL, IF_GREATER, IF_ANY, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
NUMBER, ARCHITECTURE = 0, 4

# Requests by the release that brought them: FICLONE, FICLONERANGE and FIDEDUPERANGE as calls of all file systems (4.5), NS_GET_USERNS
# to NS_GET_OWNER_UID (4.9, 4.11), LOOP_SET_BLOCK_SIZE (4.14), LOOP_CONFIGURE (5.8), BLKGETDISKSEQ (5.15).
IOCTLS = (0x40049409, 0x4020940D, 0xC0189436, 0xB701, 0xB702, 0xB703, 0xB704, 0x4C09, 0x4C0A, 0x80081280)
PUNCH_OR_ZERO = 0x02 | 0x10
SOL_SOCKET, SO_ATTACH_BPF = 1, 50
F_GET_SEALS = 1034
MFD_ALLOW_SEALING_AND_CLOEXEC = 0x3
GRND_NONBLOCK_AND_RANDOM = 0x3
MADV_DODUMP = 17

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER_MODE = 38, 22, 2
UNAME26 = 0x0020000


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One instruction; jumps count those that are passed over."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def argument(index: int) -> bytes:
    """Loads the lower half of an argument."""
    return instruction(LOAD, 16 + 8 * index)


def refuse(error: int) -> bytes:
    """Ends the call with this error."""
    return instruction(RETURN, ERRNO | error)


def call(number: int, body: bytes) -> bytes:
    """Comes to `body` for one system call alone; for every other the number stays loaded."""
    body += instruction(RETURN, ALLOW)
    return instruction(IF_EQUAL, number, 0, len(body) // 8) + body


def rules(machine: str) -> bytes:
    """The whole filter."""
    architecture, last, numbers = MACHINES[machine]
    ioctl, fallocate, getsockopt, setsockopt, fcntl, memfd_create, getrandom, madvise = numbers
    text = instruction(LOAD, ARCHITECTURE) + instruction(IF_EQUAL, architecture, 1, 0) + instruction(RETURN, KILL)
    text += instruction(LOAD, NUMBER) + instruction(IF_GREATER, last, 0, 1) + refuse(errno.ENOSYS)
    unknown = b"".join(instruction(IF_EQUAL, request, 0, 1) + refuse(errno.ENOTTY) for request in IOCTLS)
    text += call(ioctl, argument(1) + unknown)
    # Block devices know it from 4.9 on, files before; which of them it is cannot be seen here.
    text += call(fallocate, argument(1) + instruction(IF_ANY, PUNCH_OR_ZERO, 0, 1) + refuse(errno.ENODEV))
    option = argument(1) + instruction(IF_EQUAL, SOL_SOCKET, 0, 3)
    option += argument(2) + instruction(IF_GREATER, SO_ATTACH_BPF, 0, 1) + refuse(errno.ENOPROTOOPT)
    text += call(getsockopt, option) + call(setsockopt, option)
    for number, index, largest in [(fcntl, 1, F_GET_SEALS), (memfd_create, 1, MFD_ALLOW_SEALING_AND_CLOEXEC),
                                   (getrandom, 2, GRND_NONBLOCK_AND_RANDOM), (madvise, 2, MADV_DODUMP)]:
        text += call(number, argument(index) + instruction(IF_GREATER, largest, 0, 1) + refuse(errno.EINVAL))
    return text + instruction(RETURN, ALLOW)


def main(words: list[str]) -> None:
    """Becomes the program."""
    libc = ctypes.CDLL(None, use_errno=True)
    text = rules(os.uname().machine)
    program = Program(len(text) // 8, text)
    steps = [
        ("personality", libc.personality(UNAME26)),
        ("PR_SET_NO_NEW_PRIVS", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)),
        ("PR_SET_SECCOMP", libc.prctl(PR_SET_SECCOMP, FILTER_MODE, ctypes.byref(program), 0, 0)),
    ]
    for name, result in steps:
        if result < 0:
            sys.exit(f"old_kernel.py: {name}: {os.strerror(ctypes.get_errno())}")
    os.execvp(words[0], words)


if __name__ == "__main__":
    main(sys.argv[1:])
