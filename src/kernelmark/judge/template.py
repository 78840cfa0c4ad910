"""The process that has imported what kernels need, and forks the processes that run them.

Importing NumPy and kernelmark takes half a second, torch some seconds; a fork takes milliseconds.
It has no secret of the judge, and ends when the judge's end of its socket is closed. A forked
process is left to the judge, which is the nearest subreaper, so that the judge can wait for it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
import tempfile
from typing import Any

from kernelmark.judge import child

MOST_DESCRIPTORS = 253  # in one message, by Linux
_MESSAGE_BYTES = 1 << 16


def main() -> None:
    """Fork a process for each message, until the socket is closed."""
    own = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or collections would touch, and so copy, every page
    own.send(b"\n")
    while True:
        message, descriptors, _, _ = socket.recv_fds(own, _MESSAGE_BYTES, MOST_DESCRIPTORS)
        if not message:
            return
        pid = _forked(own, json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        own.send(f"{pid}\n".encode())


def _forked(own: socket.socket, message: dict[str, Any], descriptors: list[int]) -> int:
    """Fork a process whose parent has ended, and return its id."""
    end, start = os.pipe()
    between = os.fork()
    if not between:
        pid = os.fork()
        if not pid:
            os.close(end)
            os.close(start)
            own.close()
            status = 1
            try:
                status = _run(message, descriptors)
            finally:
                os._exit(status)
        os.write(start, str(pid).encode())
        os._exit(0)
    os.close(start)
    os.waitpid(between, 0)
    pid = int(os.read(end, 32))
    os.close(end)
    return pid


def _run(message: dict[str, Any], descriptors: list[int]) -> int:
    """Become the process of a kernel: `descriptors` are its set-up, its log, and those that the
    judge knows by the numbers in `message`."""
    os.setsid()
    setup_file, log, *others = descriptors
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.update(message["variables"])
    tempfile.tempdir = None
    os.chdir(message["folder"])
    with os.fdopen(setup_file, "rb") as file:
        setup = json.load(file)
    return child.main(setup, dict(zip(message["descriptors"], others, strict=True)))


if __name__ == "__main__":
    main()
