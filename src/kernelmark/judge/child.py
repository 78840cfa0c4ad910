"""The process that runs a kernel which nobody trusts, forked by `judge.template`.

It gets its tensors as shared memory, and requests as single bytes; it answers each by one byte, and
nothing else that it writes is read by a program. Until the kernel's file is loaded it is trusted:
its first line on the bell, about what the host lacks, is written before.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmark import backends, devices
from kernelmark.backends.base import Kernel
from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, Unsupported
from kernelmark.core.problem import Problem
from kernelmark.core.tensor import TensorSpec
from kernelmark.core.timing import Timer
from kernelmark.devices.base import ArgumentSet, Buffer, Device, Replay, Tensor
from kernelmark.judge.sandbox import Policy, close_libraries, enter

# Requests of the parent, and the answers of this process.
PREPARE, RECORD, GO, DONE, UNSUPPORTED, RAISED = b"p", b"r", b"g", b"d", b"u", b"e"
# The page of orders, read-only here: what to prepare, how many launches, how many of them may be
# made by now, and their argument sets. The page of progress: the launches made.
BINDING, COUNT, REVEALED, ORDER = 0, 1, 2, 8


class Mapped:
    """Memory of the parent: a shared mapping, read-only for inputs."""

    def __init__(self, descriptor: int, nbytes: int, *, writable: bool) -> None:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._map = mmap.mmap(descriptor, nbytes, flags=flags, prot=access)
        self.array: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address: int = self.array.ctypes.data
        self.nbytes = nbytes
        os.close(descriptor)


class MappedOnDevice:
    """Memory of the parent on a GPU."""

    def __init__(self, device: Any, handle: str, nbytes: int) -> None:
        self.address: int = device.driver.open_ipc_handle(bytes.fromhex(handle))
        self.nbytes = nbytes


class _Kernels:
    """The kernel of every binding that the parent asked for, and the launches to make."""

    def __init__(
        self, setup: Mapping[str, Any], device: Device, descriptors: Mapping[int, int]
    ) -> None:
        self._device = device
        self._bindings: list[tuple[Problem, Sequence[ArgumentSet]]] = []
        memory = [_memory(device, segment, descriptors) for segment in setup["segments"]]
        for binding in setup["bindings"]:
            problem = codec.read(binding["problem"], Problem, "problem")
            specs = {s.name: s for s in (TensorSpec(**_spec(d)) for d in binding["tensors"])}
            sets = [
                {
                    name: Tensor(spec=specs[name], buffer=memory[segment], offset=offset)
                    for name, (segment, offset) in places.items()
                }
                for places in binding["sets"]
            ]
            self._bindings.append((problem, sets))
        self._config = setup["config"]
        self._backend_name = setup["backend"]
        self._kernel: Kernel | None = None
        self._replay: Replay | None = None
        pages = [
            Mapped(descriptors[fd], mmap.PAGESIZE * n, writable=w) for fd, n, w in setup["pages"]
        ]
        self._orders, self._progress = (page.array.view(np.int64) for page in pages[:2])
        self._facts = pages[2].array

    def answer(self, request: bytes) -> bytes:
        """Carry out a request, and return the answer."""
        try:
            {PREPARE: self._prepare, RECORD: self._record, GO: self._go}[request]()
        except Unsupported as error:
            sys.stderr.write(f"{error.message}\n")
            return UNSUPPORTED
        except KernelmarkError as error:
            sys.stderr.write(f"{error.message}\n")
            return RAISED
        except (Exception, SystemExit):
            traceback.print_exc()
            return RAISED
        return DONE

    def _prepare(self) -> None:
        backend = backends.find(self._backend_name)
        problem, sets = self._bindings[int(self._orders[BINDING])]
        info: DeviceInfo = self._device.info
        if info.kind not in backend.device_kinds:
            raise Unsupported(f"the kernel does not run on {info.kind}")
        reason = backend.available() or backend.supports(problem, info)
        if reason is not None:
            raise Unsupported(reason)
        self._replay = None
        self._kernel = backend.prepare(problem, self._config, self._device, sets)
        self._device.synchronize()
        if self._device.enqueues:
            self._write_facts()
        gc.collect()

    def _write_facts(self) -> None:
        """Leave the names of the kernels that a launch starts, for people: what runs here can
        change them."""
        assert self._kernel is not None
        facts = {
            "kernels": self._device.kernel_names(self._kernel.launch),
            "resources": dict(self._kernel.info.resources),
        }
        text = json.dumps(facts).encode()
        if len(text) < self._facts.size:
            self._facts[:] = 0
            self._facts[: len(text)] = np.frombuffer(text, np.uint8)

    def _record(self) -> None:
        assert self._kernel is not None
        order = self._order()
        if self._replay is not None:
            self._replay.close()
        self._replay = None
        if order and self._device.enqueues:
            self._replay = self._device.record(self._kernel.launch, order, Timer.AUTO)
            # The first launch of a graph uploads it, which takes longer for more launches.
            self._device.run_ahead([self._replay])()

    def _go(self) -> None:
        assert self._kernel is not None
        launch, orders, progress = self._kernel.launch, self._orders, self._progress
        stream = self._device.stream
        if self._replay is not None:
            self._device.run_ahead([self._replay])()
        elif orders[REVEALED] >= orders[COUNT]:
            for index in self._order():
                launch(stream, index)
        else:  # one by one, as the parent reveals them
            for done in range(int(orders[COUNT])):
                while orders[REVEALED] <= done:
                    pass
                launch(stream, int(orders[ORDER + done]))
                progress[0] = done + 1
        self._device.synchronize()

    def _order(self) -> list[int]:
        order: list[int] = self._orders[ORDER : ORDER + int(self._orders[COUNT])].tolist()
        return order


def _spec(document: Mapping[str, Any]) -> dict[str, Any]:
    return {**document, "shape": tuple(document["shape"])}


def _memory(device: Device, segment: Mapping[str, Any], descriptors: Mapping[int, int]) -> Buffer:
    if "handle" in segment:
        return MappedOnDevice(device, segment["handle"], segment["nbytes"])
    return Mapped(descriptors[segment["fd"]], segment["nbytes"], writable=segment["writable"])


def _load_helpers(device: Device, cache: str) -> None:
    """Load the device's own kernels from the judge's cache, which the sandbox hides: compiling them
    takes seconds."""
    own = os.environ["KERNELMARK_CACHE"]
    os.environ["KERNELMARK_CACHE"] = cache
    replay = device.record(lambda stream, index: None, (), Timer.AUTO)
    replay.run()
    replay.close()
    os.environ["KERNELMARK_CACHE"] = own


def main(setup: Mapping[str, Any], descriptors: Mapping[int, int]) -> int:
    """Answer requests until there are no more. `descriptors` are those here, by the judge's
    numbers of them, which `setup` has."""
    asked, bell = descriptors[setup["asked"]], descriptors[setup["bell"]]
    kind, _, index = str(setup["device"]).partition(":")
    # Opened before the sandbox: drivers and libraries read files then.
    device = devices.registry.get(kind).open(int(index or 0), setup["threads"])
    if device.enqueues:
        _load_helpers(device, setup["cache"])
    kernels = _Kernels(setup, device, descriptors)
    if not backends.is_file(setup["backend"]):
        backends.find(setup["backend"])  # a library of its own, found and loaded now
    lacks = enter(Policy(**{**setup["policy"], "readable": tuple(setup["policy"]["readable"])}))
    if setup["forbid_libraries"]:
        close_libraries()
    os.write(bell, json.dumps(lacks).encode() + b"\n")
    gc.disable()  # as `CpuReplay` does
    while request := os.read(asked, 1):
        answer = kernels.answer(request)
        if answer != DONE:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
        os.write(bell, answer)
    return 0
