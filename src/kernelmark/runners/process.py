"""LocalWorkers: workers as processes of this machine, and the detection of their loss.

On Linux a worker is killed when the thread that started it ends, so start it in the thread that
uses it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelmark.core.errors import CodecError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import Reason
from kernelmark.core.result import Status
from kernelmark.core.units import bytes_text
from kernelmark.devices._cores import oom_kills
from kernelmark.host.cache import cache_root
from kernelmark.host.processes import own_command
from kernelmark.runners.protocol import (
    OUT_OF_MEMORY_EXIT,
    PROTOCOL,
    Message,
    decode,
    encode,
    with_stderr,
)

TAIL_BYTES = 4096
# A reply of a million samples has 20 MB, but a kernel can also write to the pipe, endlessly.
_MAX_LINE_BYTES = 1 << 26
# The maximum pipe size: one read gets everything that an ended worker left in the pipe.
_MAX_READ_BYTES = 1 << 20
# The C++ runtime prints the exception that ended a process only here, in its last line.
_BAD_ALLOC = b"std::bad_alloc"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """How to start a worker. `variables` are set on top of this process's environment."""

    device: str
    threads: int = 0
    python: str = sys.executable
    variables: Mapping[str, str] = field(default_factory=FrozenDict)
    memory_bytes: int = 0
    folder: str = ""  # the working directory; this process's by default
    opens_device: bool = True  # False for a worker that only compiles
    name: str = ""  # the device's name in results, if it is on another machine

    @property
    def command(self) -> list[str]:
        arguments = own_command("kernelmark.runners.worker", python=self.python)
        arguments += ["--device", self.device, "--threads", str(self.threads)]
        arguments += ["--parent", str(os.getpid())]
        if self.name:
            arguments += ["--name", self.name]
        if self.memory_bytes:
            arguments += ["--memory-bytes", str(self.memory_bytes)]
        return arguments if self.opens_device else [*arguments, "--leave-device"]

    @property
    def environment(self) -> dict[str, str]:
        """Return the worker's variables. Empty entries of PYTHONPATH, which come from a careless
        `PYTHONPATH=$PYTHONPATH:…`, are left out: they mean the working directory."""
        # Workers share the parent's cache folder, even if it is a temporary one of this process.
        variables = {
            **os.environ,
            "KERNELMARK_CACHE": str(cache_root().absolute()),
            **self.variables,
        }
        path = filter(None, variables.pop("PYTHONPATH", "").split(os.pathsep))
        return variables | ({"PYTHONPATH": joined} if (joined := os.pathsep.join(path)) else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A worker that ended, or whose output is damaged. `error` has fields of `parse_stderr`."""

    status: Status
    error: Reason


class WorkerProcess:
    """A started worker. Nothing here blocks: `LocalWorkers.wait` waits for several at once."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.ready = False
        self.lost: Loss | None = None
        self._pending = b""
        self._tail = b""
        self._oom_kills = oom_kills()
        self._killed = False
        self._nonce: str | None = None  # of the current request
        self._is_measuring = False
        self._unconfirmed: Message | None = None  # the reply with a result
        self._process = subprocess.Popen(
            spec.command,
            env=spec.environment,
            cwd=spec.folder or None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C does not reach it, and its process group can be killed
        )
        self.pid = self._process.pid
        self.out, self.err = self._descriptors()
        self.err_open = True
        for descriptor in (self.out, self.err):
            os.set_blocking(descriptor, False)

    def _descriptors(self) -> tuple[int, int]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        return self._process.stdout.fileno(), self._process.stderr.fileno()

    def send(self, message: Message) -> None:
        """Send a request. If the worker is gone, `messages` returns its Loss."""
        assert self._process.stdin is not None
        self._tail = b""
        self._nonce = secrets.token_hex(16)
        self._is_measuring = message["kind"] == "measure"
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(encode({**message, "nonce": self._nonce}))
        # After writing: the device waits for the request, and a request cannot exhaust memory
        # before this is read.
        self._oom_kills = oom_kills()

    @property
    def alive(self) -> bool:
        if self.lost is not None or self._process.poll() is not None:
            return False
        # A killed process is a zombie, and cannot be waited for, until its threads have ended.
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:  # no /proc on this system
            return True
        return stat.rpartition(b")")[2].split(None, 1)[0] not in b"ZX"

    def messages(self) -> list[Message | Loss]:
        """Return the messages since the last call. A `Loss` is always the last one."""
        if self.lost is not None:
            return []
        self._read_errors()
        data, ended = _read_ready(self.out)
        *lines, self._pending = (self._pending + data).split(b"\n")
        messages: list[Message | Loss] = []
        for line in lines:
            item = self._parse(line)
            if item is not None:
                messages.append(item)
            if isinstance(item, Loss):
                return messages
        if ended:
            messages.append(self._lose(*self._cause_of_death()))
        elif len(self._pending) > _MAX_LINE_BYTES:
            error = Reason(f"a line of more than {bytes_text(_MAX_LINE_BYTES)}")
            messages.append(
                self._lose(Status.CRASHED, Reason(f"the worker's output is corrupted: {error}"))
            )
        return messages

    def _parse(self, line: bytes) -> Message | Loss | None:
        try:
            message = decode(line)
        except CodecError as error:
            if not self.ready:  # a wrapper around the interpreter may print first
                self._tail = (self._tail + line + b"\n")[-TAIL_BYTES:]
                return None
            return self._lose(
                Status.CRASHED, Reason(f"the worker's output is corrupted: {error.message}")
            )
        if message["kind"] == "failed":
            cause = Reason(str(message.get("error", "the worker failed")))
            return self._lose(Status.CRASHED, cause)
        if message["kind"] == "ready" and not self.ready:
            if message.get("protocol") != PROTOCOL:
                spoken, python = message.get("protocol"), self.spec.python
                return self._lose(
                    Status.CRASHED,
                    Reason(
                        f"the worker under {python} uses protocol {spoken}, this kernelmark "
                        f"{PROTOCOL}"
                    ),
                )
            self.ready = True
            return message
        # Only the worker's own code has the nonce. If anything else wrote this line, such as a
        # kernel, the worker's output can no longer be trusted.
        if self._nonce is None or message.get("nonce") != self._nonce:
            return self._lose(Status.CRASHED, Reason("the worker sent a reply to no request"))
        if message["kind"] == "phase":
            return message
        self._nonce = None
        if self._is_measuring:
            # A kernel can find the nonce in its callers' frames, and write a reply itself. The
            # worker is then still in the case, and its own reply would come next.
            self._unconfirmed = message
            self.send({"kind": "confirm"})
            return None
        if self._unconfirmed is not None:
            message, self._unconfirmed = self._unconfirmed, None
        return message

    def _lose(self, status: Status, error: Reason) -> Loss:
        self.kill()
        self.lost = Loss(status=status, error=error)
        return self.lost

    def _cause_of_death(self) -> tuple[Status, Reason]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            # The output can end a moment before the process does.
            self._process.wait(timeout=2.0)
        code = self._process.poll()
        self._read_errors()
        if code is None:
            return Status.CRASHED, Reason("the worker closed its output and did not end")
        killed = oom_kills() > self._oom_kills
        aborted = -code == signal.SIGABRT and _BAD_ALLOC in self._tail
        memory = code != 0 and (killed or aborted or code == OUT_OF_MEMORY_EXIT)
        status = Status.OUT_OF_MEMORY if memory else Status.CRASHED
        name = signal.strsignal(-code) or "unknown" if code < 0 else ""
        if code >= 0:
            reason = Reason(
                f"the worker ended by itself with exit code {code}", "worker-exited", exit_code=code
            )
        elif -code != signal.SIGKILL:
            reason = Reason(
                f"killed by signal {-code} ({name})", "worker-signalled", signal=-code, name=name
            )
        elif killed:
            reason = Reason(
                "killed (signal 9), by the kernel, out of memory",
                "worker-out-of-memory",
                signal=-code,
                name=name,
            )
        else:
            limit_s = resource.getrlimit(resource.RLIMIT_CPU)[1]
            own = "" if limit_s == resource.RLIM_INFINITY else f" ({limit_s} s here, ulimit -t)"
            reason = Reason(
                f"killed (signal 9): by another process, by a limit on CPU time{own}, or by a guard"
                " against lack of memory",
                "worker-killed",
                signal=-code,
                name=name,
            )
        return status, self.with_tail(reason)

    def dump_stacks(self) -> None:
        """Make a hanging worker write its Python stacks to standard error."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        time.sleep(0.1)
        self._read_errors()

    def with_tail(self, reason: Reason) -> Reason:
        """Add the last lines of the worker's standard error to `reason`."""
        _, _, rest = self._tail.partition(b"\n")
        whole = rest if len(self._tail) == TAIL_BYTES and rest.strip() else self._tail
        tail = whole.decode(errors="replace").strip()
        return with_stderr(reason, tail) if tail else reason

    def _read_errors(self) -> None:
        data, ended = _read_ready(self.err)
        self.err_open = not ended
        self._tail = (self._tail + data)[-TAIL_BYTES:]

    def stop(self) -> None:
        """Let the worker exit, and kill it after two seconds."""
        if self._process.poll() is None and self.lost is None:
            self.send({"kind": "stop"})
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2.0)
        self.kill()

    def kill(self) -> None:
        """Kill the worker and everything it started."""
        if self._killed:
            return  # its PID may have been reused
        self._killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            # A process stuck in a driver cannot be killed; do not wait for it forever.
            self._process.wait(timeout=5.0)

    def close(self) -> None:
        """Kill the worker and close the pipes."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class LocalWorkers:
    """Starts worker processes, and waits for them."""

    def start(self, spec: WorkerSpec) -> WorkerProcess:
        return _take_spare(spec) or WorkerProcess(spec)

    def wait(
        self, workers: Sequence[WorkerProcess], timeout_s: float | None
    ) -> list[tuple[WorkerProcess, Message | Loss]]:
        """Wait up to `timeout_s` seconds for messages, and return those of all `workers`."""
        with selectors.DefaultSelector() as selector:
            for worker in workers:
                if worker.lost is None:
                    selector.register(worker.out, selectors.EVENT_READ, worker)
                    if worker.err_open:
                        selector.register(worker.err, selectors.EVENT_READ, worker)
            active = {key.data.pid: key.data for key, _ in selector.select(timeout_s)}
        return [(worker, item) for worker in active.values() for item in worker.messages()]


# A started worker, reused by the next case of its kind: working directory, thread and process.
_spares: list[tuple[str, int, WorkerProcess]] = []


def keep_spare(worker: WorkerProcess, folder: str) -> None:
    """Let the next `LocalWorkers.start` with this worker's spec, folder and thread take it. The
    one before is ended."""
    while _spares:
        _spares.pop()[2].close()
    _spares.append((folder, threading.get_ident(), worker))


def _take_spare(spec: WorkerSpec) -> WorkerProcess | None:
    for spare in list(_spares):
        folder, thread, worker = spare
        if (folder, thread, worker.spec) == (str(Path.cwd()), threading.get_ident(), spec):
            _spares.remove(spare)
            return worker if worker.alive else None
    return None


def _read_ready(descriptor: int) -> tuple[bytes, bool]:
    """Return the bytes available now, and whether the other end is closed. Reads at most
    _MAX_READ_BYTES, so that endless output cannot delay the time limits."""
    data = b""
    while len(data) < _MAX_READ_BYTES:
        try:
            part = os.read(descriptor, 65536)
        except BlockingIOError:
            return data, False
        except OSError:
            return data, True
        if not part:
            return data, True
        data += part
    return data, False
