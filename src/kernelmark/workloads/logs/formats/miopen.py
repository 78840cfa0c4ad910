"""miopen: the commands that MIOpen logs of each convolution (MIOPEN_ENABLE_LOGGING_CMD=1).

    MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver convfp16 -n 1 -c 3 -H 32 -W 32 …

A search for an algorithm is logged as LogCmdFindConvolution, with the same words: of a problem, the
kind with the most lines counts. Other drivers than conv are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernelmark import ops
from kernelmark.core.formats import FormatFacts
from kernelmark.workloads.logs import command
from kernelmark.workloads.logs.base import NOTHING, BadLine, Given, LogReader, Part
from kernelmark.workloads.logs.table import whole
from kernelmark.workloads.workload import Call

_DRIVER = b"MIOpenDriver "
_FIND = b"[LogCmdFindConvolution]"
_DTYPES = {"conv": "f32", "convfp16": "f16", "convbfp16": "bf16", "convint8": "i8"}
# The driver's letters and long names as the sizes of our op.
_SIZES = {
    "n": ("n", "batchsize"),
    "c": ("c", "in_channels"),
    "h": ("H", "in_h"),
    "w": ("W", "in_w"),
    "k": ("k", "out_channels"),
    "r": ("y", "fil_h"),
    "s": ("x", "fil_w"),
    "pad_h": ("p", "pad_h"),
    "pad_w": ("q", "pad_w"),
    "stride_h": ("u", "conv_stride_h"),
    "stride_w": ("v", "conv_stride_w"),
    "dilation_h": ("l", "dilation_h"),
    "dilation_w": ("j", "dilation_w"),
    "groups": ("g", "group_count"),
}
_LAYOUTS = (("in_layout", "I"), ("fil_layout", "f"), ("out_layout", "O"))
_EVERY, _FORWARD = 0, 1


class Miopen(LogReader):
    name = "miopen"
    summary = "MIOpen's log of commands: MIOpenDriver conv… lines"
    facts = FormatFacts(
        versions="MIOpen 0242120b",
        exactness="exact for two-dimensional forward convolutions; others are refused by line",
        checked="driver_arguments.cpp read, the lines of MIOpen's own tests; samples in tests",
    )

    def part(self, line: bytes) -> Part | None:
        at = line.find(_DRIVER)
        if at < 0 or line[:1] == b"#":
            return None
        words = line[at + len(_DRIVER) :].strip()
        if not words.startswith(b"conv"):
            return NOTHING
        return "find" if _FIND in line else "run", words, 1

    def calls(self, kind: str, part: bytes, given: Given) -> Iterator[Call]:
        driver, _, rest = part.decode("utf-8", "replace").partition(" ")
        if driver not in _DTYPES:
            raise BadLine(f"is of the driver {driver[:24]}, whose dtype is unknown")
        found = dict(command.options(rest))
        _refuse_others(found)
        sizes = {ours: _size(found, names) for ours, names in _SIZES.items()}
        layout, lost = _layout(found)
        problem = ops.registry.get("conv").problem(**sizes, layout=layout, dtype=_DTYPES[driver])
        if _first(found, ("b", "bias"), "0") != "0":
            lost.append("bias")
        yield Call(problem=problem, lost=tuple(lost))


def _refuse_others(found: Mapping[str, str]) -> None:
    if _first(found, ("spatial_dim", "_"), "2") != "2":
        raise BadLine("is a convolution of three dimensions, which no op computes")
    if _first(found, ("m", "mode"), "conv") != "conv":
        raise BadLine("is a transposed convolution, which no op computes")
    direction = _first(found, ("F", "forw"), str(_EVERY))
    passes = whole({"F": direction}, "F")
    if passes != _EVERY and not passes & _FORWARD:
        raise BadLine("is a backward pass, which no op computes")


def _size(found: Mapping[str, str], names: tuple[str, str]) -> int:
    text = _first(found, names, "")
    if not text:
        raise BadLine(f"has no -{names[0]}")
    return whole({names[0]: text}, names[0])


def _layout(found: Mapping[str, str]) -> tuple[str, list[str]]:
    """That of the images, and whether filters or output have another."""
    used = [_first(found, names, "NCHW").upper() for names in _LAYOUTS]
    if used[0] not in ("NCHW", "NHWC"):
        raise BadLine(f"has the layout {used[0][:12]}, which no op has")
    return used[0].lower(), [] if len(set(used)) == 1 else ["layout"]


def _first(found: Mapping[str, str], names: tuple[str, ...], default: str) -> str:
    return next((found[name] for name in names if name in found), default)


reader = Miopen()
