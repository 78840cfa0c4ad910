"""The process that serves requests: `python -m kernelmark.runners.worker --device cpu`.

JSON lines in, JSON lines out (see `protocol`). Needs the standard library and numpy; runs under
any interpreter that can import this package. Nothing a library prints can disturb the protocol:
standard output carries messages only, and prints go to standard error.

A kernel that replaced a clock or a function of kernelmark in this process is detected.

This finds what a file does by assignment. Native code, or a file that restores what it replaced,
can do anything to the process that it runs in: docs/checks.md lists the limits.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import BinaryIO

from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.reason import Reason, reason_document
from kernelmark.core.result import Case, Status
from kernelmark.host.processes import guard_own_group
from kernelmark.runners.protocol import OUT_OF_MEMORY_EXIT, PROTOCOL, Message, decode, encode

_LIBRARIES = ("time", "json", "math", "statistics")


class LoadedCode:
    """The functions of the clocks and of kernelmark, as they are when this object is created."""

    def __init__(self, *classes: type) -> None:
        self._modules = {
            name: module
            for name, module in sys.modules.items()
            if name in _LIBRARIES or name.startswith("kernelmark.")
        }
        # Looked up by these after each case: walking the modules again takes 7 ms.
        self._functions: list[tuple[str, Mapping[str, object], str, object, object]] = [
            (f"{owner}.{key}", namespace, key, value, _code(value))
            for owner, namespace in self._namespaces(classes)
            for key, value in namespace.items()
            if callable(value) or isinstance(value, property | staticmethod | classmethod)
        ]

    def replaced(self) -> str:
        """Return the name of a function or module that was replaced since; "" if none was."""
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                return name
        for name, namespace, key, value, code in self._functions:
            if namespace.get(key) is not value or _code(value) is not code:
                return name
        return ""

    def _namespaces(self, classes: Sequence[type]) -> Iterator[tuple[str, Mapping[str, object]]]:
        found = list(classes)
        for name, module in self._modules.items():
            yield name, vars(module)
            found += [
                value
                for value in vars(module).values()
                if isinstance(value, type) and value.__module__ == name
            ]
        for cls in found:
            yield f"{cls.__module__}.{cls.__qualname__}", vars(cls)


def _code(value: object) -> object:
    return value.__code__ if isinstance(value, FunctionType) else None


_PR_SET_PDEATHSIG = 1
# References are compared on a background thread. By default Python lets it run for 5 ms, half a
# block, before switching to the thread that enqueues the next block.
_SWITCH_S = 2e-4


class Server:
    """Serves requests one at a time on one device. `opened` is the device, or an object that a
    called function opened instead; it stays open until the process ends. In replies the device is
    called `name`."""

    def __init__(self, *, device: str, threads: int, out: BinaryIO, name: str = "") -> None:
        self.device = device
        self.name = name or device
        self.threads = threads
        self.out = out
        self.opened: object | None = None
        self.info: DeviceInfo
        self._code: LoadedCode
        self._request: Message = {}
        self._loaded: set[str] = set()
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="release")

    def open(self, *, touch: bool) -> None:
        """Find the device, and open it if `touch`. Without `touch`, `device` may be an
        architecture."""
        from kernelmark.runners.targets import find

        if not touch and self.device.startswith(("sm_", "gfx")):
            from kernelmark.gpu.architectures import absent

            self.info = absent(self.device)
            return
        kind, info = find(self.device)
        # Keep the parent's name: in a worker that sees a single GPU, its index is 0.
        self.info = dataclasses.replace(info, name=self.device)
        if touch:
            # Imported before any kernel file, whose code runs in this process.
            importlib.import_module("kernelmark.runners.execute")
            self._code = LoadedCode(Server)
            self.opened = opened = kind.open(info.index, self.threads)
            if opened.enqueues:
                sys.setswitchinterval(_SWITCH_S)

    def send(self, kind: str, **fields: object) -> None:
        about = {name: value for name, value in self._request.items() if name in ("id", "nonce")}
        self.out.write(encode({"kind": kind, **fields, **about}))
        self.out.flush()

    def send_phase(self, phase: str, **more: object) -> None:
        self.send("phase", phase=phase, at=time.monotonic(), **more)

    def send_waiting(self, holder: str) -> None:
        self.send_phase("waiting", holder=holder)

    def serve(self, request: Message) -> None:
        """Serve one request and send its reply."""
        self._request = request
        if request["kind"] == "confirm":
            self.send("reply")
        elif request["kind"] == "measure":
            self._measure([_case(request)], int(request.get("process", 0)))
        elif request["kind"] == "interleave":
            self._measure([codec.from_document(c, Case) for c in request["cases"]], 0)
        elif request["kind"] == "compile":
            self._compile(_case(request))
        elif request["kind"] == "environment":
            from kernelmark.runners.capture import environment

            names = [str(name) for name in request.get("backends", ())]
            info = dataclasses.replace(self.info, name=self.name)
            document = codec.to_document(environment([info], names, load=True))
            self.send("reply", environment=document)
        elif request["kind"] == "call":
            module, _, function = str(request["function"]).partition(":")
            reply = getattr(importlib.import_module(module), function)(self, request)
            self.send("reply", **reply)
        else:
            raise UsageError(f"unknown request {request['kind']!r}")

    def _measure(self, cases: Sequence[Case], process: int) -> None:
        from kernelmark.devices.base import Device
        from kernelmark.runners import external_timers
        from kernelmark.runners.execute import execute, execute_in_turns, failure
        from kernelmark.runners.locks import hold_lock

        profile_s = float(self._request.get("profile_s", external_timers.TIMEOUT_S))
        device = self.opened
        if not isinstance(device, Device):
            raise UsageError("this worker only compiles")
        with hold_lock(self.info, self.send_waiting):
            if len(cases) > 1:
                results = execute_in_turns(cases, device, self.send_phase)
            else:
                results = [
                    execute(
                        cases[0],
                        device,
                        process,
                        self.send_phase,
                        profile_s=profile_s,
                        cutoff_s=self._request.get("cutoff_s"),
                    )
                ]
            if replaced := self._code.replaced():
                error = Reason(f"the kernel's code replaced {replaced}: its result is not kept")
                status = Status.RUNTIME_ERROR
                results = [
                    failure(r.case, self.info, status, error, started=r.started) for r in results
                ]
            # Freeing the memory of a case takes 2.5 ms on an H200. Meanwhile the result is sent.
            # The next candidate of a search needs the same memory again.
            is_candidate = "cutoff_s" in self._request
            release = self._background.submit(
                device.keep_freed if is_candidate else device.release_freed
            )
            results = [dataclasses.replace(result, device=self.name) for result in results]
            documents = [codec.to_document(result) for result in results]
            single = self._request["kind"] == "measure"
            self.send("reply", **({"result": documents[0]} if single else {"results": documents}))
            release.result()  # an error ends this worker; the pool starts another for the next case
        if new := {case.backend for case in cases} - self._loaded:
            # Otherwise each collection scans the objects of a large library, which takes 0.1 s.
            self._loaded |= new
            gc.freeze()
        if any(result.status is not Status.OK for result in results):
            gc.collect()  # a failed case may have left its buffers in reference cycles

    def _compile(self, case: Case) -> None:
        from kernelmark.runners.execute import compile_ahead
        from kernelmark.runners.locks import hold_lock

        with contextlib.ExitStack() as stack:
            if self.info.kind == "cpu":
                stack.enter_context(hold_lock(self.info, self.send_waiting, shared=True))
            self.send_phase("compile")
            status, error, seconds, kernel = compile_ahead(case, self.info)
        self.send(
            "reply",
            status=status.value,
            error=reason_document(error),
            seconds=seconds,
            kernel=codec.plain(kernel),
        )


def main(arguments: list[str] | None = None) -> int:
    """Serve requests until standard input ends or `stop` is received."""
    parser = argparse.ArgumentParser(prog="kernelmark.runners.worker", description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--name", default="", help="the device's name in results")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--memory-bytes", type=int, default=0, help="cap on address space")
    parser.add_argument("--parent", type=int, default=0, help="end when this process ends")
    parser.add_argument("--leave-device", action="store_true", help="leave the device closed")
    options = parser.parse_args(arguments)
    requests, out = _own_stdin(), _own_stdout()
    _live_with(options.parent)
    _limit_memory(options.memory_bytes)
    server = Server(device=options.device, threads=options.threads, out=out, name=options.name)
    try:
        server.open(touch=not options.leave_device)
    except Exception as error:
        server.send("failed", protocol=PROTOCOL, error=_error_text(error))
        return 1
    server.send("ready", protocol=PROTOCOL, pid=os.getpid())
    for line in requests:
        try:
            request = decode(line)
            if request["kind"] == "stop":
                break
            server.serve(request)
        except KernelmarkError as error:
            server.send("failed", protocol=PROTOCOL, error=_error_text(error))
            return 1
        except MemoryError:  # sending a message would need memory too
            return OUT_OF_MEMORY_EXIT
    return 0


def _case(request: Message) -> Case:
    return codec.from_document(request.get("case"), Case)


def _error_text(error: BaseException) -> str:
    if isinstance(error, KernelmarkError):
        return error.message
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _own_stdin() -> BinaryIO:
    """Reserve standard input for requests; any other reader gets end-of-file."""
    mine = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return os.fdopen(mine, "rb")


def _own_stdout() -> BinaryIO:
    """Reserve standard output for messages; anything else printed goes to standard error."""
    sys.stdout.flush()
    mine = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(mine, "wb")


def _live_with(parent: int) -> None:
    """Ignore Ctrl-C, which the parent handles; exit with the parent; dump stacks on SIGUSR1."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    # The parent requests the stacks of a hanging case before it kills the worker.
    faulthandler.register(signal.SIGUSR1)
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)
    if parent:
        guard_own_group()  # children of kernels and compilers exit with the parent too


def _limit_memory(nbytes: int) -> None:
    if nbytes:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))


if __name__ == "__main__":
    # os._exit skips the destructors of libraries, which may hang or crash and free nothing that
    # process exit does not.
    code = 1
    try:
        code = main()
    finally:
        sys.stderr.flush()
        os._exit(code)
