"""Workers that are forked from a process that has imported all that a worker needs.

A worker's interpreter, numpy and kernelmark take a third of a second of CPU to start; a fork takes
a few milliseconds. From `worker.main` on, a forked worker is a worker like any other: a child of
this process with its own session, pipes and exit status.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kernelmark.host.processes import own_command
from kernelmark.runners import worker

_PR_SET_CHILD_SUBREAPER = 36
_MODULE = worker.__name__
_IMPORTED = (
    *("kernelmark.runners.execute", "kernelmark.runners.targets", "kernelmark.runners.capture"),
    *("kernelmark.runners.locks", "kernelmark.devices.fake", "kernelmark.devices.cpu"),
    *("kernelmark.backends.fake", "kernelmark.ops.gemm"),
    *("numpy", "numpy.random", "numpy.ma", "email.parser"),
)
# Variables that are read after a worker was forked. Any other may change how Python or a library
# starts.
_READ_LATE = ("KERNELMARK_", "PYTEST_", "COLUMNS")


class Origin:
    """The process that workers are forked from, while this process lives."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with other:
            command = [sys.executable, "-P", "-m", "kernelmark_dev.forked"]
            self.pid = subprocess.Popen(command, stdin=other.fileno(), env=environment).pid

    def fork(self, arguments: Sequence[str], files: list[int], **process: object) -> int:
        """Return the process ID of a new worker with these standard files, a child of ours."""
        request = {"arguments": list(arguments), **process}
        libc = ctypes.CDLL(None)
        # An orphan becomes the child of its closest living ancestor that adopts orphans.
        with self._lock:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], files)
                return int(self._socket.recv(64))
            finally:
                libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class ForkedProcess:
    """What `WorkerProcess` uses of `subprocess.Popen`."""

    def __init__(self, origin: Origin, arguments: Sequence[str], **process: object) -> None:
        (stdin, write), (out, stdout), (err, stderr) = os.pipe(), os.pipe(), os.pipe()
        try:
            self.pid = origin.fork(arguments, [stdin, stdout, stderr], **process)
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        self.returncode: int | None = None
        self._lock = threading.Lock()  # of two threads, the second would wait for no child
        self.stdin = os.fdopen(write, "wb", 0)
        self.stdout, self.stderr = (os.fdopen(number, "rb", 0) for number in (out, err))

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(_MODULE, timeout)
            time.sleep(0.001)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, 9)


class ForkingSubprocess:
    """The module `subprocess`, except that workers of this interpreter are forked where a start
    would be the same."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)

    @functools.cached_property
    def origin(self) -> Origin:
        return Origin(self._environment)

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, command: Sequence[str], **options: Any) -> Any:
        prefix = own_command(_MODULE)
        environment = dict(options["env"])
        differing = environment.items() ^ self._environment.items()
        if (
            sys.platform != "linux"
            or list(command[: len(prefix)]) != prefix
            or not all(name.startswith(_READ_LATE) for name, _ in differing)
        ):
            return subprocess.Popen(command, **options)
        folder = options["cwd"] or str(Path.cwd())
        arguments = command[len(prefix) :]
        return ForkedProcess(self.origin, arguments, environment=environment, folder=folder)


def main() -> None:
    """Fork a worker for each request on standard input."""
    for module in _IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=os.dup(0))
    while True:
        data, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not data:
            return
        begin, held = os.pipe()
        results, result = os.pipe()
        if (middle := os.fork()) == 0:
            os.close(held)
            if (pid := os.fork()) == 0:
                requests.close()
                os.read(begin, 1)  # ends when this process is an orphan
                for descriptor in (begin, results, result):
                    os.close(descriptor)
                _work(files, **json.loads(data))
            os.write(result, str(pid).encode())
            os._exit(0)
        os.close(begin)
        os.waitpid(middle, 0)
        requests.send(os.read(results, 64))
        for descriptor in (held, results, result, *files):
            os.close(descriptor)


def _work(
    files: list[int], arguments: list[str], environment: dict[str, str], folder: str
) -> NoReturn:
    """Be a worker, as `python start.py kernelmark.runners.worker` is."""
    code = 1
    try:
        os.setsid()
        for number, descriptor in enumerate(files):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv[1:] = arguments
        code = worker.main(arguments)
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
