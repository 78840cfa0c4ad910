"""nvbench: JSON of NVBench, with the samples in its binary files (--jsonbin) if they exist.

Without them, the mean of the cold measurement is a bare mean.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.files import read_whole
from kernelmark.core.reason import Reason
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Status
from kernelmark.core.timing import Cache, Timer, Timing
from kernelmark.workloads.importers import Importer, ResultFile, ResultRow, legal_name, problem_of
from kernelmark.workloads.source import BadLine, Fields

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
        checked="samples of our own in tests; 88 means of two public files against the JSON",
    )
    method = "nvbench cold"

    def recognizes(self, name: str, head: bytes) -> bool:
        return name.endswith(".json") and b'"meta"' in head and any(word in head for word in _MARKS)

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        document = file.document()
        document.required("benchmarks")
        devices = {}
        for index, entry in enumerate(document.objects("devices")):
            device = _device(entry, index)
            devices[device.index] = device
        file.environment = Environment(devices=tuple(devices.values()))
        benchmarks = list(document.objects("benchmarks"))
        names = {benchmark.text("name", "benchmark") for benchmark in benchmarks}
        ops = Counter(map(legal_name, names))
        axes: dict[tuple[str, str], str] = {}  # as written, by the name of the problem's parameter
        for benchmark in benchmarks:
            name = benchmark.text("name", "benchmark")
            # Copy<int> and copy_int have one op.
            named = {"name": name} if ops[legal_name(name)] > 1 and legal_name(name) != name else {}
            for state in benchmark.objects("states"):
                for axis in _axes(state):
                    if axes.setdefault((name, legal_name(axis)), axis) != axis:
                        raise BadLine(
                            f"{name} has axes {axes[name, legal_name(axis)]} and {axis}",
                            hint="rename one of them: they would be one parameter",
                        )
                index = state.whole("device", 0)
                device_info = devices.get(index)
                skipped = bool(state.get("is_skipped"))
                why = state.get("skip_reason")
                yield ResultRow(
                    problem=problem_of(name, named | _axes(state)),
                    backend="nvbench",
                    timing=_TIMING,
                    samples_s=() if skipped else _times(file.path, state),
                    status=Status.SKIPPED if skipped else Status.OK,
                    error=(str(why) if why else Reason("no reason was recorded in the file"))
                    if skipped
                    else "",
                    device=f"cuda:{index}",
                    arch=device_info.arch if device_info else "",
                )


def _device(entry: Fields, number_in_file: int) -> DeviceInfo:
    version = entry.whole("sm_version", 0)
    index = entry.whole("id", number_in_file)
    return DeviceInfo(
        name=f"cuda:{index}",
        kind="cuda",
        model=entry.text("name"),
        arch=f"sm_{version // 10}" if version else "",
        index=index,
        units=entry.whole("number_of_sms", 1),
    )


def _axes(state: Fields) -> dict[str, str]:
    return {
        str(axis.required("name")): str(axis.get("value")) for axis in state.objects("axis_values")
    }


def _times(path: Path, state: Fields) -> tuple[float, ...]:
    summaries: dict[str, Fields] = {}
    for summary in state.objects("summaries"):
        data = {str(entry.get("name")): entry.get("value") for entry in summary.objects("data")}
        name = str(summary.get("tag", summary.get("name")))
        first = summaries.setdefault(name, Fields(data, summary.where))
        if name in (_SAMPLES, _MEAN) and dict(first) != data:
            raise BadLine(f"{summary.where}: a second summary {name}", hint="is the file edited?")
    if _SAMPLES in summaries and (samples := _samples(path, summaries[_SAMPLES])):
        return samples
    return (summaries[_MEAN].number("value"),) if _MEAN in summaries else ()


def _samples(path: Path, sidecar: Fields) -> tuple[float, ...]:
    """Read samples: little-endian 32-bit floats, in a file relative to the JSON file; () if it is
    missing."""
    count = sidecar.whole("size")
    name = Path(str(sidecar.get("filename")))
    candidates = [path.parent / name, path.parent.parent / name, path.parent / name.name]
    file = next((c for c in candidates if c.is_file()), None)
    if file is None:
        return ()
    size = file.stat().st_size
    if size != 4 * count:
        raise BadLine(f"{file.name} has {size} bytes, expected {4 * count} for {count} samples")
    return struct.unpack(f"<{count}f", read_whole(file))


importers = (NvBench(),)
