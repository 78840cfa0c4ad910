"""Classes 15, 16: the machine code of the C library's clocks is overwritten, so that every clock of
the process stands still; the kernel does its work four times."""

import ctypes
import mmap
import platform

import numpy as np

op = "gemm"
problem = "gemm m=128 n=128 k=128 dtype=f32"
work = 4
# Write two zeros to the second argument, and return 0.
CODE = {
    "x86_64": bytes.fromhex("48c70600000000 48c7460800000000 31c0 c3"),
    "aarch64": bytes.fromhex("3f7c00a9 00008052 c0035fd6"),
}


def stop_clock(name):
    libc = ctypes.CDLL(None, use_errno=True)
    code = CODE[platform.machine()]
    address = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
    first = address & -mmap.PAGESIZE
    size = ctypes.c_size_t(2 * mmap.PAGESIZE)
    # Readable, writable and executable: other functions of the page go on being called.
    if libc.mprotect(ctypes.c_void_p(first), size, 7) == 0:
        ctypes.memmove(address, code, len(code))


def prepare(problem, config, sets):
    stop_clock("clock_gettime")

    def launch(index):
        for _ in range(work):
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
