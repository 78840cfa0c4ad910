"""nvbench: its JSON, with the samples of the binary files beside it (--jsonbin) where there are.

Without them the mean of the cold measurement is taken, as a bare mean.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.result import ResultSet, Status
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    gathered,
    number,
    problem_of,
    text_of,
)

# Any of them is enough: which are there depends on its version, and people shorten files.
_MARKS = (b'"nvbench"', b'"sm_version"', b'"nv/cold/')
_SAMPLES = "nv/json/bin:nv/cold/sample_times"
_MEAN = "nv/cold/time/gpu/mean"
# Its cold measurement flushes the cache before each launch and holds the stream meanwhile.
_TIMING = Timing(cache=Cache.FLUSH, timer=Timer.GATE)


class NvBench(Importer):
    name = "nvbench"
    summary = "JSON of nvbench, with its binary samples where they lie beside it"

    def recognizes(self, name: str, head: bytes) -> bool:
        return name.endswith(".json") and b'"meta"' in head and any(word in head for word in _MARKS)

    def read(self, path: Path, given: Given) -> ResultSet:
        try:
            document = codec.parse(text_of(path))
        except CodecError as error:
            raise CodecError(f"{path}: {error.message}", hint=error.hint) from None
        if not isinstance(document, dict) or not isinstance(document.get("benchmarks"), list):
            raise CodecError(f"{path}: there is no list of benchmarks in it")
        devices = {
            int(entry.get("id", i)): _device(entry, i)
            for i, entry in enumerate(document.get("devices") or [])
            if isinstance(entry, dict)
        }
        return gathered(
            path,
            given,
            _rows(path, document["benchmarks"], devices),
            method="nvbench cold",
            environment=Environment(devices=tuple(devices.values())),
        )


def _device(entry: Mapping[str, Any], place: int) -> DeviceInfo:
    version = int(entry.get("sm_version", 0))
    index = int(entry.get("id", place))
    return DeviceInfo(
        name=f"cuda:{index}",
        kind="cuda",
        model=str(entry.get("name", "")),
        arch=f"sm_{version // 10}" if version else "",
        index=index,
        units=int(entry.get("number_of_sms", 1)),
    )


def _rows(path: Path, benchmarks: list[Any], devices: Mapping[int, DeviceInfo]) -> Iterator[Found]:
    for benchmark in benchmarks:
        for state in benchmark.get("states") or []:
            name = str(benchmark.get("name", "benchmark"))
            place = f"{path}: {name} {state.get('name', '')}".rstrip()
            device = devices.get(int(state.get("device") or 0))
            axes = {str(a["name"]): str(a.get("value")) for a in state.get("axis_values") or []}
            skipped = bool(state.get("is_skipped"))
            yield Found(
                problem=problem_of(name, axes),
                backend="nvbench",
                timing=_TIMING,
                samples_s=() if skipped else _times(path, state, place),
                status=Status.SKIPPED if skipped else Status.OK,
                error=str(state.get("skip_reason") or "no reason was given") if skipped else "",
                device=device.name if device else "cuda:0",
                arch=device.arch if device else "",
            )


def _times(path: Path, state: Mapping[str, Any], place: str) -> tuple[float, ...]:
    summaries: dict[str, dict[str, Any]] = {}
    for summary in state.get("summaries") or []:
        values = {str(d.get("name")): d.get("value") for d in summary.get("data") or []}
        summaries[str(summary.get("tag", summary.get("name")))] = values
    if _SAMPLES in summaries:
        found = _samples(path, summaries[_SAMPLES], place)
        if found:
            return found
    if _MEAN in summaries:
        mean = number(summaries[_MEAN].get("value"), place)
        return (mean,) if mean > 0 else ()
    return ()


def _samples(path: Path, told: Mapping[str, Any], place: str) -> tuple[float, ...]:
    """Little-endian 32-bit floats, in a file whose name is relative to the JSON's place."""
    count = int(number(told.get("size"), place))
    name = Path(str(told.get("filename")))
    candidates = [path.parent / name, path.parent.parent / name, path.parent / name.name]
    file = next((c for c in candidates if c.is_file()), None)
    if file is None:
        return ()
    data = file.read_bytes()
    if len(data) != 4 * count:
        raise UsageError(f"{place}: {file.name} holds {len(data)} bytes where {4 * count} belong")
    return tuple(t for t in struct.unpack(f"<{count}f", data) if t > 0)


importer = NvBench()
