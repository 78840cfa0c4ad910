"""nvbench: JSON of NVBench, with the samples in its binary files (--jsonbin) if they exist.

Without them, the mean of the cold measurement is a bare mean.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.files import read_whole
from kernelmark.core.formats import FormatFacts
from kernelmark.core.reason import Reason
from kernelmark.core.result import ResultSet, Status
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    build_run,
    fields_of,
    items_of,
    json_object,
    number,
    problem_of,
    unexpected,
    whole,
)

# Any of these is enough: they depend on the version, and people shorten files.
_MARKS = (b'"nvbench"', b'"sm_version"', b'"nv/cold/')
_SAMPLES = "nv/json/bin:nv/cold/sample_times"
_MEAN = "nv/cold/time/gpu/mean"
# The cold measurement flushes the cache before each launch, and blocks the stream meanwhile.
_TIMING = Timing(cache=Cache.FLUSH, timer=Timer.GATE)


class NvBench(Importer):
    name = "nvbench"
    summary = "JSON of nvbench, with its binary samples if they are in the same folder"
    facts = FormatFacts(
        versions="JSON with nv/cold summaries",
        exactness="every sample if the binary files are present, else the mean",
        checked="samples of our own in tests",
    )

    def recognizes(self, name: str, head: bytes) -> bool:
        return name.endswith(".json") and b'"meta"' in head and any(word in head for word in _MARKS)

    def read(self, path: Path, given: Given) -> ResultSet:
        document = json_object(path)
        if not isinstance(document.get("benchmarks"), list):
            raise unexpected(f"{path}: benchmarks", "a list", document.get("benchmarks"))
        devices = {}
        for i, entry in enumerate(items_of(document.get("devices"), f"{path}: devices")):
            place = f"{path}: device {i + 1}"
            found = _device(fields_of(entry, place), i, place)
            devices[found.index] = found
        return build_run(
            path,
            given,
            _rows(path, document["benchmarks"], devices),
            method="nvbench cold",
            environment=Environment(devices=tuple(devices.values())),
        )


def _device(entry: Mapping[str, Any], number_in_file: int, place: str) -> DeviceInfo:
    version = whole(entry.get("sm_version", 0), f"{place}, sm_version")
    index = whole(entry.get("id", number_in_file), f"{place}, id")
    return DeviceInfo(
        name=f"cuda:{index}",
        kind="cuda",
        model=str(entry.get("name", "")),
        arch=f"sm_{version // 10}" if version else "",
        index=index,
        units=whole(entry.get("number_of_sms", 1), f"{place}, number_of_sms"),
    )


def _rows(path: Path, benchmarks: list[Any], devices: Mapping[int, DeviceInfo]) -> Iterator[Found]:
    for i, one in enumerate(benchmarks, 1):
        benchmark = fields_of(one, f"{path}: benchmark {i}")
        name = str(benchmark.get("name", "benchmark"))
        states = items_of(benchmark.get("states"), f"{path}: {name}, states")
        for j, entry in enumerate(states, 1):
            state = fields_of(entry, f"{path}: {name}, state {j}")
            place = f"{path}: {name} {state.get('name', '')}".rstrip()
            device = devices.get(whole(state.get("device") or 0, f"{place}, device"))
            axes = _axes(state, f"{place}, axis_values")
            skipped = bool(state.get("is_skipped"))
            why = state.get("skip_reason")
            yield Found(
                problem=problem_of(name, axes),
                backend="nvbench",
                timing=_TIMING,
                samples_s=() if skipped else _times(path, state, place),
                status=Status.SKIPPED if skipped else Status.OK,
                error=(str(why) if why else Reason("failure-unexplained")) if skipped else "",
                device=device.name if device else "cuda:0",
                arch=device.arch if device else "",
            )


def _axes(state: Mapping[str, Any], place: str) -> dict[str, str]:
    entries = [fields_of(one, place) for one in items_of(state.get("axis_values"), place)]
    if any("name" not in entry for entry in entries):
        raise CodecError(Reason("field-missing", where=place, name="name"))
    return {str(entry["name"]): str(entry.get("value")) for entry in entries}


def _times(path: Path, state: Mapping[str, Any], place: str) -> tuple[float, ...]:
    summaries: dict[str, dict[str, Any]] = {}
    for one in items_of(state.get("summaries"), f"{place}, summaries"):
        summary = fields_of(one, f"{place}, summaries")
        data = items_of(summary.get("data"), f"{place}, data of a summary")
        entries = [fields_of(entry, f"{place}, data of a summary") for entry in data]
        values = {str(entry.get("name")): entry.get("value") for entry in entries}
        summaries[str(summary.get("tag", summary.get("name")))] = values
    if _SAMPLES in summaries:
        found = _samples(path, summaries[_SAMPLES], place)
        if found:
            return found
    if _MEAN in summaries:
        return (number(summaries[_MEAN].get("value"), place),)
    return ()


def _samples(path: Path, sidecar: Mapping[str, Any], place: str) -> tuple[float, ...]:
    """Read samples: little-endian 32-bit floats, in a file relative to the JSON file; () if it is
    missing."""
    count = whole(sidecar.get("size"), f"{place}, size")
    name = Path(str(sidecar.get("filename")))
    candidates = [path.parent / name, path.parent.parent / name, path.parent / name.name]
    file = next((c for c in candidates if c.is_file()), None)
    if file is None:
        return ()
    size = file.stat().st_size
    if size != 4 * count:
        raise UsageError(
            Reason("file-size", where=place, file=file.name, size=size, expected=4 * count)
        )
    return struct.unpack(f"<{count}f", read_whole(file))


importer = NvBench()
