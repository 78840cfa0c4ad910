"""Side: one kernel in a process of its own, as the process that judges it sees it.

Tensors belong to this process: on a CPU they are in memory files, of which the child maps inputs
read-only, and on a GPU in allocations that it opens by a handle. The child is stopped (SIGSTOP)
except while it carries out a request, so it can neither work between launches nor disturb another
side. A request ends when it rings: it writes one byte to a pipe. The clock is here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import mmap
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from kernelmark.core import codec
from kernelmark.core.errors import CaseError, OutOfMemory
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, Status
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.units import bytes_text, duration_text
from kernelmark.devices._cores import available_memory
from kernelmark.devices._host import HostBuffer
from kernelmark.devices.base import Device, Tensor
from kernelmark.devices.cpu import CpuDevice
from kernelmark.host.cache import cache_root
from kernelmark.judge import child
from kernelmark.judge.processes import Forked, Templates
from kernelmark.judge.sandbox import Policy, is_numeric_library, mapped_libraries, readable_folders
from kernelmark.measure.sets import Arena, make_arena

# Linux 5.1: no further writable mapping. Python has no name for it before 3.13.
_SEAL_FUTURE_WRITE = 0x0010
_PAGES = 4  # of orders: 8 bytes for a launch
_FACT_PAGES, _NAME_LENGTH = 2, 200
MOST_LAUNCHES = _PAGES * mmap.PAGESIZE // 8 - child.ORDER
# What a kernel and its libraries may take beyond the tensors, at least; or half of what is free.
_LEAST_MEMORY = 4 << 30
_LOG_BYTES, _SHOWN_BYTES = 1 << 20, 1500
_MOST_IN_FOLDER = 1 << 30
_FIRST_UID = 2_000_000_000
_KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "ROCM_PATH", "LANG"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)
# Set to the process's own folder.
_OWN_VARIABLES = ("HOME", "TMPDIR", "KERNELMARK_CACHE", "TRITON_CACHE_DIR")
_START_S = 120.0
_GPU_BLOCK = 2 << 20
_SPINS = 256  # between looks at the bell
_SPIN_S = 0.05


class Lost(CaseError):
    """A side that cannot go on: it raised, ended, did not answer, or broke a rule."""

    def __init__(self, status: Status, reason: Reason, hint: str | None = None) -> None:
        super().__init__(reason, hint)
        self.status = status


class SharedBuffer(HostBuffer):
    """Pages of a memory file, which another process can map too."""

    __slots__ = ("descriptor",)

    def __init__(self, nbytes: int) -> None:
        self.descriptor = os.memfd_create("kernelmark", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.capacity = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self.descriptor, self.capacity)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._map = mmap.mmap(self.descriptor, self.capacity, flags=flags)
        self.cut(self.capacity)

    def seal(self, *, read_only: bool) -> None:
        """Fix the size, which this process relies on, and let no other process write."""
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        if read_only:
            with contextlib.suppress(OSError):  # before Linux 5.1
                fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE)

    def close(self) -> None:
        super().close()
        os.close(self.descriptor)


class SharedCpu(CpuDevice):
    """The CPU, with tensors in memory files."""

    def allocate(self, nbytes: int) -> HostBuffer:
        if nbytes > self.free_bytes():
            raise OutOfMemory(
                f"{bytes_text(nbytes)} needed, {bytes_text(self.free_bytes())} free",
                hint="choose a smaller problem",
            )
        return SharedBuffer(nbytes)

    def free(self, buffer: Any) -> None:
        buffer.close()

    def reuses_freed(self, nbytes: int) -> bool:
        return False


class _OwnBlocks:
    """Allocates whole blocks: a GPU's IPC handle opens the block that an allocation is in, and with
    it the smaller allocations beside it."""

    def __init__(self, device: Device, more: int) -> None:
        self._device = device
        self._more = more

    def allocate(self, nbytes: int) -> Any:
        block = _GPU_BLOCK if self._device.enqueues else 1
        return self._device.allocate(-(-max(nbytes + self._more, 1) // block) * block)


def _shifted(tensors: Mapping[str, Tensor], shift: int) -> dict[str, Tensor]:
    return {
        name: dataclasses.replace(tensor, offset=tensor.offset + shift)
        for name, tensor in tensors.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A problem that the kernel is prepared for, on `sets` argument sets."""

    problem: Problem
    tensors: tuple[TensorSpec, ...]
    sets: int
    shift: int = 0  # bytes that every tensor lies beyond its usual alignment


class Side:
    """A kernel in its process. `arenas` are the argument sets of each binding."""

    def __init__(
        self,
        *,
        device: Device,
        backend: str,
        bindings: Sequence[Binding],
        config: Config,
        threads: int = 0,
        readable: Sequence[Path] = (),
        limit_s: float = 60.0,
        templates: Templates,
        modules: Sequence[str] = (),
        forbid_libraries: bool = False,
    ) -> None:
        self._device = device
        self._templates = templates
        self._modules = modules
        self._forbid_libraries = forbid_libraries
        self._libraries_before: set[str] = set()
        self.backend = backend
        self._limit_s = limit_s
        self._threads = threads
        self._readable = readable
        self.wall_s = 0.0  # of the last request
        # CPU time of the child, read from here: other work on its core does not count. Only of one
        # thread, as that of several is not the time of a launch.
        self._by_cpu_time = threads == 1 and not device.enqueues
        self._closing = contextlib.ExitStack()
        self.lost: Lost | None = None
        try:
            rng = np.random.default_rng()
            self.arenas = [self._arena(binding, rng) for binding in bindings]
            self._orders = self._page(_PAGES, read_only=True)
            self._progress = self._page(1, read_only=False)
            self._facts = self._page(_FACT_PAGES, read_only=False)
            self._orders_view = self._orders.array.view(np.int64)
            self._progress_view = self._progress.array.view(np.int64)
            self.lacks: list[str] = []
            self._start(bindings, config, threads)
        except BaseException:
            self.close()
            raise

    # -- memory

    def _arena(self, binding: Binding, rng: np.random.Generator) -> Arena:
        inputs = [spec for spec in binding.tensors if spec.role == "in"]
        outputs = [spec for spec in binding.tensors if spec.role == "out"]
        sets: list[dict[str, Any]] = [{} for _ in range(binding.sets)]
        buffers = []
        for specs in (inputs, outputs):
            if not specs:
                continue
            place = cast(Device, _OwnBlocks(self._device, binding.shift))
            buffer, tensors = make_arena(place, specs, binding.sets, rng)
            if binding.shift:
                tensors = tuple(_shifted(tensors_of, binding.shift) for tensors_of in tensors)
            self._closing.callback(self._device.free, buffer)
            if isinstance(buffer, SharedBuffer):
                buffer.seal(read_only=specs is inputs)
            buffers.append(buffer)
            for whole, part in zip(sets, tensors, strict=True):
                whole |= part
        return Arena(buffer=buffers[-1], sets=tuple(sets), numbers=[0] * binding.sets)

    def _page(self, count: int, *, read_only: bool) -> SharedBuffer:
        page = SharedBuffer(count * mmap.PAGESIZE)
        self._closing.callback(page.close)
        page.seal(read_only=read_only)
        return page

    # -- the process

    def _start(self, bindings: Sequence[Binding], config: Config, threads: int) -> None:
        ask_end, self._asking = os.pipe()
        self._bell, bell_end = os.pipe()
        self._log = os.memfd_create("kernelmark-log", os.MFD_CLOEXEC)
        for descriptor in (self._asking, self._bell, self._log):
            self._closing.callback(os.close, descriptor)
        self.folder = tempfile.mkdtemp(prefix="kmark-judge-")
        self._closing.callback(shutil.rmtree, self.folder, ignore_errors=True)
        uid = _FIRST_UID + os.getpid() if os.geteuid() == 0 else 0
        if uid:
            os.chown(self.folder, uid, uid)
        segments, placed = self._segments()
        descriptors = [s["fd"] for s in segments if "fd" in s]
        pages = [
            (self._orders, _PAGES, False),
            (self._progress, 1, True),
            (self._facts, _FACT_PAGES, True),
        ]
        policy = Policy(
            readable=readable_folders(self._readable),
            folder=self.folder,
            uid=uid,
            memory_bytes=0 if self._device.enqueues else self._memory_bytes(segments),
            gpu=self._device.enqueues,
        )
        setup = {
            "device": self._device.info.name,
            "threads": threads,
            "backend": self.backend,
            "forbid_libraries": self._forbid_libraries,
            "config": dict(config),
            "asked": ask_end,
            "bell": bell_end,
            "segments": segments,
            "pages": [(page.descriptor, count, writable) for page, count, writable in pages],
            "policy": dataclasses.asdict(policy),
            "bindings": [
                {
                    "problem": codec.plain(binding.problem),
                    "tensors": [_spec_document(spec) for spec in binding.tensors],
                    "sets": sets,
                }
                for binding, sets in zip(bindings, placed, strict=True)
            ],
        }
        if self._device.enqueues:
            setup["cache"] = str(cache_root())
        kind, _, index = self._device.info.name.partition(":")
        self.pid = self._templates.fork(
            variables=_environment(kind, int(index or 0), threads),
            own=dict.fromkeys(_OWN_VARIABLES, self.folder),
            modules=self._modules,
            folder=self.folder,
            setup=setup,
            log=self._log,
            descriptors=[ask_end, bell_end, *descriptors, *(p.descriptor for p, _, _ in pages)],
        )
        self._process = Forked(self.pid)
        self._closing.callback(self._kill)
        os.close(ask_end)
        os.close(bell_end)
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/oom_score_adj").write_text("1000")

    def wait_until_ready(self) -> None:
        """Wait until the process is in its sandbox, and stop it. Nothing of the kernel has run."""
        line = b""
        while not line.endswith(b"\n"):
            line += self._ring(_START_S, 65536)
        self.lacks = json.loads(line)
        self._libraries_before = mapped_libraries(self.pid)
        self._freeze()

    def _segments(self) -> tuple[list[dict[str, Any]], list[list[dict[str, tuple[int, int]]]]]:
        """Return the buffers of all arenas for the child, and where its tensors are in them."""
        segments: list[dict[str, Any]] = []
        numbers: dict[int, int] = {}
        placed = []
        for arena in self.arenas:
            sets = []
            for tensors in arena.sets:
                places = {}
                for name, tensor in tensors.items():
                    buffer = cast(Any, tensor.buffer)
                    if id(buffer) not in numbers:
                        numbers[id(buffer)] = len(segments)
                        segments.append(self._segment(buffer, writable=tensor.spec.role == "out"))
                    places[name] = (numbers[id(buffer)], tensor.offset)
                sets.append(places)
            placed.append(sets)
        return segments, placed

    def _segment(self, buffer: Any, *, writable: bool) -> dict[str, Any]:
        if isinstance(buffer, SharedBuffer):
            return {"fd": buffer.descriptor, "nbytes": buffer.nbytes, "writable": writable}
        handle = cast(Any, self._device).driver.ipc_handle(buffer.address)
        return {"handle": handle.hex(), "nbytes": buffer.nbytes}

    def _memory_bytes(self, segments: Sequence[Mapping[str, Any]]) -> int:
        shared = sum(int(segment["nbytes"]) for segment in segments)
        return shared + max(_LEAST_MEMORY, available_memory() // 2)

    # -- requests

    def _now(self) -> float:
        if not self._by_cpu_time:
            return time.perf_counter()
        with contextlib.suppress(OSError):  # it has ended
            return time.clock_gettime((~self.pid << 3) | 2)
        return 0.0

    def cpu_s(self) -> float:
        """Return the seconds of CPU time of all threads so far."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def prepare(self, binding: int) -> str | None:
        """Prepare the kernel for a binding; return why it does not support it, or None."""
        self._orders_view[child.BINDING] = binding
        answer = self._request(child.PREPARE, self._limit_s)[0]
        if answer == child.UNSUPPORTED:
            return self.log_tail() or "the kernel does not support it"
        self.check_leftovers()
        return None

    def arm(self, order: Sequence[int]) -> None:
        """Set the launches of the next `go`; a GPU records them."""
        count = len(order)
        self._orders_view[child.ORDER : child.ORDER + count] = order
        self._orders_view[child.COUNT] = self._orders_view[child.REVEALED] = count
        if self._device.enqueues:
            self._request(child.RECORD, self._limit_s)

    def go(self, at_ring: Callable[[], object] | None = None) -> float:
        """Make the armed launches; return the seconds from the request to the ring, of CPU time if
        the child has one thread. `at_ring` is
        called right after it, before the process is stopped."""
        return self._request(child.GO, self._limit_s, at_ring)[1]

    def step_by_step(self, order: Sequence[int], fill: Callable[[int], None]) -> list[float]:
        """Make launches one by one, each revealed after `fill(set)`; return the seconds of each. No
        launch can then do the work of a later one."""
        orders, progress = self._orders_view, self._progress_view
        progress[0] = orders[child.REVEALED] = 0
        orders[child.COUNT] = len(order)
        seconds: list[float] = []

        def reveal() -> None:
            deadline = time.perf_counter() + self._limit_s
            for done, index in enumerate(order):
                fill(index)
                orders[child.ORDER + done] = index
                start = time.perf_counter()
                orders[child.REVEALED] = done + 1
                spins = 0
                while progress[0] <= done:
                    spins += 1
                    if spins % _SPINS == 0 and (self._poll(0.0) or time.perf_counter() > deadline):
                        return
                seconds.append(time.perf_counter() - start)

        with self._on_other_cores():
            self._request(child.GO, self._limit_s, meanwhile=reveal)
        return seconds

    @contextlib.contextmanager
    def _on_other_cores(self) -> Iterator[None]:
        """Keep this process off the cores of the child, which it would wait for there."""
        cores = list(getattr(self._device, "cores", ()))
        if not 0 < self._threads < len(cores):
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores[self._threads :])
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def idle(self, seconds: float) -> None:
        """Let the process run without a request."""
        self._thaw()
        time.sleep(seconds)
        self._freeze()

    def _request(
        self,
        request: bytes,
        limit_s: float,
        at_ring: Callable[[], object] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[bytes, float]:
        if self.lost is not None:
            raise self.lost
        if self._poll(0.0):
            self._lose(Status.CRASHED, Reason("the process rang without a request"))
        begun, start = time.perf_counter(), self._now()
        self._thaw()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._asking, request)
        if meanwhile is not None:
            meanwhile()
        answer = self._ring(limit_s, 64)
        elapsed_s = self._now() - start
        self.wall_s = time.perf_counter() - begun
        if at_ring is not None:
            at_ring()
        self._freeze()
        if self._by_cpu_time:  # exact only now: a running process is counted at its next tick
            elapsed_s = self._now() - start
        if answer == child.RAISED:
            text = self.log_tail() or "the kernel raised an error"
            last = text.splitlines()[-1]
            raise Raised(Status.RUNTIME_ERROR, Reason(last, "raised", text=text, type="", place=""))
        if answer not in (child.DONE, child.UNSUPPORTED):
            self._lose(Status.CRASHED, Reason("the process rang in a way that nobody asked"))
        return answer, elapsed_s

    def _poll(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        return bool(poll.poll(1e3 * seconds))

    def _spin(self) -> None:
        """Wait for the bell without sleeping for a while: a process that sleeps is woken tens of
        microseconds late. A GPU's host has other cores for the child."""
        end = time.perf_counter() + _SPIN_S
        while not self._poll(0.0) and time.perf_counter() < end:
            pass

    def _ring(self, limit_s: float, most: int) -> bytes:
        """Return what the child wrote to the bell."""
        if self._device.enqueues:
            self._spin()
        if not self._poll(limit_s):
            self._lose(
                Status.TIMEOUT, Reason(f"no answer within {duration_text(limit_s)}", "no-answer")
            )
        answer = os.read(self._bell, most)
        if not answer:
            self._lose(*self._cause_of_death())
        return answer

    def _cause_of_death(self) -> tuple[Status, Reason]:
        end = time.monotonic() + 2.0
        while (code := self._process.poll()) is None and time.monotonic() < end:
            time.sleep(0.001)
        tail = self.log_tail()
        after = f"; its last words: {tail}" if tail else ""
        if code is None:
            return Status.CRASHED, Reason("the process closed the bell")
        if code < 0:
            name = signal.strsignal(-code) or "unknown"
            return Status.CRASHED, Reason(
                f"killed by signal {-code} ({name}){after}",
                "worker-signalled",
                signal=-code,
                name=name,
            )
        return Status.CRASHED, Reason(
            f"the process ended by itself with exit code {code}{after}",
            "worker-exited",
            exit_code=code,
        )

    def _lose(self, status: Status, reason: Reason) -> None:
        self._kill()
        self.lost = Lost(status, reason)
        raise self.lost

    # -- stopping and continuing

    def _freeze(self) -> None:
        """Stop all threads of the process, and wait until they are."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        peek = os.WSTOPPED | os.WEXITED | os.WNOWAIT
        try:
            info = os.waitid(os.P_PID, self.pid, peek)
        except ChildProcessError:  # it has ended, and was waited for
            return
        if info is not None and info.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED):
            os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def _thaw(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def check_leftovers(self) -> None:
        """Lose the side if it has left other processes, or filled its folder."""
        self._check_folder()
        if others := [pid for pid in _in_session(self.pid) if pid != self.pid]:
            for pid in others:
                Forked(pid).kill()
            self._lose(Status.WRONG, Reason(f"it left {len(others)} other processes running"))

    def _check_folder(self) -> None:
        size = sum(
            file.lstat().st_size for file in Path(self.folder).rglob("*") if not file.is_dir()
        )
        if size > _MOST_IN_FOLDER:
            self._lose(
                Status.OUT_OF_MEMORY, Reason(f"it wrote {bytes_text(size)} to its temporary folder")
            )

    def threads(self) -> int:
        """Return the number of threads of the process."""
        try:
            return sum(1 for _ in Path(f"/proc/{self.pid}/task").iterdir())
        except OSError:
            return 0

    def numeric_libraries(self) -> list[str]:
        """Return the names of the numeric libraries that were mapped since the process started."""
        files = map(Path, mapped_libraries(self.pid) - self._libraries_before)
        return sorted({file.name for file in files if is_numeric_library(file)})

    def peak_memory_bytes(self) -> int:
        """Return the most memory that the process held, its tensors included."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            status = Path(f"/proc/{self.pid}/status").read_text()
            return int(status.partition("VmHWM:")[2].split()[0]) << 10
        return 0

    def facts(self) -> tuple[list[str], dict[str, int]]:
        """Return the names of the kernels of a launch, and their resources, as the process left
        them: it can have changed them."""
        text = self._facts.array.tobytes().partition(b"\0")[0]
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            facts = json.loads(text)
            names = [_printable(str(name))[:_NAME_LENGTH] for name in facts["kernels"]]
            resources = {_printable(str(k))[:32]: int(v) for k, v in facts["resources"].items()}
            return names, resources
        return [], {}

    def log_tail(self) -> str:
        """Return the end of what the process wrote to standard output and error: text for people,
        which the kernel can forge."""
        size = os.fstat(self._log).st_size
        text = os.pread(self._log, _SHOWN_BYTES, max(0, size - _SHOWN_BYTES)).decode(
            errors="replace"
        )
        lines = [line.rstrip() for line in _printable(text).strip().splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def _kill(self) -> None:
        others = [pid for pid in _in_session(self.pid) if pid != self.pid]
        self._process.kill()
        for pid in others:
            Forked(pid).kill()

    def close(self) -> None:
        """Kill the process and free its memory."""
        self._orders_view = self._progress_view = np.zeros(0, np.int64)
        self._closing.close()


class Raised(Lost):
    """A kernel that raised an error; its process can go on."""


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _spec_document(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype, "role": spec.role}


def _environment(kind: str, index: int, threads: int) -> dict[str, str]:
    """Return a template's variables: of this process's, only those of libraries."""
    from kernelmark import devices

    variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # Not those that restrict a worker to its GPU: the index is this process's.
    if kind == "cpu":
        variables |= devices.registry.get(kind).worker_variables(index, threads)
    return variables | {"PYTHONDONTWRITEBYTECODE": "1"}


def _in_session(session: int) -> Iterator[int]:
    """Yield the processes of a session that have not ended."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) == session and fields[0] not in (b"Z", b"X"):
                yield int(folder.name)
