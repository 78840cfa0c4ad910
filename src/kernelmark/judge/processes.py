"""Processes for kernels, forked from templates that have imported what they need."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from kernelmark.core.errors import UsageError
from kernelmark.host.processes import own_command

_PR_SET_CHILD_SUBREAPER = 36
_START_S = 120.0


class Templates:
    """Templates by their variables and the modules that they have imported; started on demand."""

    def __init__(self) -> None:
        self._templates: dict[tuple[object, ...], _Template] = {}

    def fork(
        self,
        *,
        variables: Mapping[str, str],
        own: Mapping[str, str],
        modules: Sequence[str],
        folder: str,
        setup: Mapping[str, Any],
        log: int,
        descriptors: Sequence[int],
    ) -> int:
        """Start a process with `variables` and its `own` ones in `folder`, which gets the
        `descriptors`; return its id. It is a child of this process."""
        key = (*sorted(variables.items()), None, *modules)
        if key not in self._templates:
            self._templates[key] = _Template(variables, modules)
        document = os.memfd_create("kernelmark-setup", os.MFD_CLOEXEC)
        try:
            with open(document, "wb", closefd=False) as file:
                file.write(json.dumps(setup).encode())
            os.lseek(document, 0, os.SEEK_SET)
            message = {"variables": dict(own), "folder": folder, "descriptors": list(descriptors)}
            return self._templates[key].fork(message, [document, log, *descriptors])
        finally:
            os.close(document)

    def close(self) -> None:
        """End the templates; the processes that they forked go on."""
        for template in self._templates.values():
            template.close()
        self._templates.clear()

    def __enter__(self) -> Templates:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Template:
    def __init__(self, variables: Mapping[str, str], modules: Sequence[str]) -> None:
        # The parent of an orphan is then this process, which waits for it.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
        self._own, other = socket.socketpair()
        self._own.settimeout(_START_S)
        with other:
            self._process = subprocess.Popen(
                own_command("kernelmark.judge.template", *modules),
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=dict(variables),
                start_new_session=True,
            )
        self._is_ready = False

    def fork(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        try:
            if not self._is_ready:
                self._read()
                self._is_ready = True
            socket.send_fds(self._own, [json.dumps(message).encode()], descriptors)
            return int(self._read())
        except (OSError, ValueError):
            code = self._process.poll()
            ended = "does not answer" if code is None else f"ended with exit code {code}"
            raise UsageError(
                f"the process that starts kernels {ended}",
                hint="is there enough memory, and room for processes?",
            ) from None

    def _read(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            part = self._own.recv(64)
            if not part:
                raise OSError
            line += part
        return line

    def close(self) -> None:
        self._own.close()
        self._process.kill()
        self._process.wait()


class Forked:
    """A process of a kernel, which is a child of this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or the negative number of a signal; None while it runs."""
        if self._code is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def kill(self) -> None:
        """Kill it, and wait until it has ended."""
        if self._code is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
