"""torch-trace: GPU kernels in traces of the PyTorch profiler, by name and launch shape.

Each launch is a sample of one process. With --workload, the same file is a log of ops. Kernels
without an op, such as those of replayed graphs, are included here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.reason import Reason
from kernelmark.core.result import ResultSet
from kernelmark.workloads.importers._launches import SECONDS, Launch, found
from kernelmark.workloads.importers.base import Found, Given, Importer, build_run
from kernelmark.workloads.logs import opening
from kernelmark.workloads.logs.formats._kernels import duration_us
from kernelmark.workloads.logs.formats.torch_trace import reader
from kernelmark.workloads.logs.trace_events import events

_SHAPES = ("grid", "block")


class TorchTrace(Importer):
    name = "torch-trace"
    summary = "GPU kernels of a PyTorch profiler trace, by name and launch shape"
    facts = FormatFacts(
        versions="Kineto JSON, with and without schemaVersion 1",
        exactness="every kernel launch by name and launch shape",
        checked="sums of 21 traces of HolisticTraceAnalysis' tests against an independent reader",
    )
    packed = True
    is_log = True

    def recognizes(self, name: str, head: bytes) -> bool:
        # Other Chrome traces are lists, or have none of PyTorch's fields.
        return name.endswith(".json") and head.lstrip()[:1] == b"{" and reader.is_document(head)

    def read(self, path: Path, given: Given) -> ResultSet:
        return build_run(path, given, _rows(path), method="PyTorch profiler")


def _rows(path: Path) -> Iterator[Found]:
    groups: dict[Launch, list[float]] = {}
    with opening.opened(str(path)) as source:
        for line, event in events(source.chunks()):
            if isinstance(event, str) and source.complaint:
                break  # the compressed file is damaged or truncated here
            if isinstance(event, str):
                where, cause = f"{path}: line {line}", Reason.of(event)
                reason = Reason("line-refused", where=where, cause=cause)
                raise UsageError(reason, hint=Reason("document-cut"))
            if str(event.get("cat")).lower() != "kernel":
                continue
            groups.setdefault(_launch(event), []).append(duration_us(event) * SECONDS["us"])
        if source.complaint:
            cause = Reason.of(source.complaint)
            raise UsageError(Reason("in-file", file=str(path), cause=cause), hint="copy it again")
    if not groups:
        raise NothingToDo(
            Reason("file-without-kernels", file=str(path)),
            hint=f"its ops are a workload: kmark import {shlex.quote(str(path))} --workload DIR",
        )
    for launch, times in groups.items():
        yield found(launch, tuple(times), "torch-trace")


def _launch(event: Mapping[str, Any]) -> Launch:
    args = event.get("args")
    arguments = args if isinstance(args, dict) else {}
    sizes: list[tuple[str, int]] = []
    for name in _SHAPES:
        shape = arguments.get(name)
        if isinstance(shape, list):
            axes = zip("xyz", shape, strict=False)
            sizes += [(f"{name}_{axis}", size) for axis, size in axes if type(size) is int]
    device = arguments.get("device")
    return Launch(
        kernel=str(event.get("name")),
        sizes=tuple(sizes),
        device=f"cuda:{device}" if type(device) is int else "",
    )


importer = TorchTrace()
