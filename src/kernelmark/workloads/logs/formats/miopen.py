"""miopen: commands that MIOpen logs for each convolution (MIOPEN_ENABLE_LOGGING_CMD=1).

    MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver convfp16 -n 1 -c 3 -H 32 -W 32 …

A search for an algorithm is logged as LogCmdFindConvolution, with the same options: of each
problem, the kind with the most lines counts. Lengths are in NCHW order for every layout
(tensor.cpp), except layouts with vectors of channels. Commands written by people may leave out
options that have a default in the driver; logs never do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from kernelmark import ops
from kernelmark.core.formats import FormatFacts
from kernelmark.core.reason import Reason
from kernelmark.workloads.logs import command
from kernelmark.workloads.logs.base import BadLine, Given, LogReader, Part
from kernelmark.workloads.logs.table import whole
from kernelmark.workloads.workload import Call

_DRIVER = re.compile(rb"MIOpenDriver(?:\.exe)? +")
_FIND = b"[LogCmdFindConvolution]"
_LOGGED = b"[LogCmd"
_DTYPES = {"conv": "f32", "convfp16": "f16", "convbfp16": "bf16", "convint8": "i8"}
# Sizes of the op conv by the driver's short and long options, with the driver's defaults.
_SIZES = {
    "n": ("n", "batchsize", "100"),
    "c": ("c", "in_channels", "3"),
    "h": ("H", "in_h", "32"),
    "w": ("W", "in_w", "32"),
    "k": ("k", "out_channels", "32"),
    "r": ("y", "fil_h", "3"),
    "s": ("x", "fil_w", "3"),
    "pad_h": ("p", "pad_h", "0"),
    "pad_w": ("q", "pad_w", "0"),
    "stride_h": ("u", "conv_stride_h", "1"),
    "stride_w": ("v", "conv_stride_w", "1"),
    "dilation_h": ("l", "dilation_h", "1"),
    "dilation_w": ("j", "dilation_w", "1"),
    "groups": ("g", "group_count", "1"),
}
# Other options that change the convolution, with the value that does not.
_PLAIN = {
    "mode": ("m", "mode", "conv"),
    "padding mode": ("z", "pad_mode", "default"),
    "vector of channels": ("Z", "tensor_vect", "0"),
    "input cast": ("U", "in_cast_type", "-1"),
    "filter cast": ("R", "wei_cast_type", "-1"),
    "output cast": ("T", "out_cast_type", "-1"),
}
_LAYOUTS = (("in_layout", "I"), ("fil_layout", "f"), ("out_layout", "O"))
_EVERY, _FORWARD = 0, 1


class Miopen(LogReader):
    name = "miopen"
    summary = "MIOpen's log of commands: MIOpenDriver conv… lines"
    facts = FormatFacts(
        versions="MIOpen 0242120b and 2d1fd997 (2024-10)",
        exactness="exact for two-dimensional forward convolutions, NCHW and NHWC; other calls "
        "are rejected line by line; a padding mode and 8-bit floats are not in MIOpen's log",
        checked="compared with driver_arguments.cpp, conv_driver.hpp, tensor.cpp and lines of "
        "MIOpen's own tests; samples in tests",
    )

    def part(self, line: bytes) -> Part | None:
        driver = _DRIVER.search(line)
        if driver is None or line[:1] == b"#":
            return None
        words = line[driver.end() :].strip()
        logged = "log" if _LOGGED in line else "typed"
        return "find" if _FIND in line else logged, words, 1

    def calls(self, kind: str, part: bytes, given: Given) -> Iterator[Call]:
        driver, _, rest = part.decode("utf-8", "replace").partition(" ")
        if driver not in _DTYPES:
            raise BadLine(Reason("call-no-op", kind="MIOpenDriver command", name=driver[:24]))
        found = dict(command.options(rest))
        if kind != "typed":
            _refuse_cut(found)
        _refuse_others(found)
        sizes = {
            ours: whole({names[0]: _first(found, names[:2], default)}, names[0])
            for ours, (*names, default) in _SIZES.items()
        }
        layout, lost = _layout(found)
        problem = ops.registry.get("conv").problem(**sizes, layout=layout, dtype=_DTYPES[driver])
        if _first(found, ("b", "bias"), "0") != "0":
            lost.append("bias")
        yield Call(problem=problem, lost=tuple(lost))


def _refuse_others(found: Mapping[str, str]) -> None:
    if _first(found, ("spatial_dim", "_"), "2") != "2":
        raise BadLine(Reason("call-no-op", kind="3D convolution"))
    for what, (*names, plain) in _PLAIN.items():
        if (value := _first(found, names, plain)) != plain:
            raise BadLine(Reason("call-unsupported", name=what, given=value[:12]))
    direction = _first(found, ("F", "forw"), str(_EVERY))
    passes = whole({"F": direction}, "F")
    if passes != _EVERY and not passes & _FORWARD:
        raise BadLine(Reason("call-no-op", kind="backward pass"))


def _refuse_cut(found: Mapping[str, str]) -> None:
    for names in (*_SIZES.values(), ("F", "forw")):
        if not _first(found, names[:2], ""):
            raise BadLine(Reason("call-lacks", name=f"-{names[0]}"))


def _layout(found: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the layout of the images, and `lost`: "layout" if filters or output differ."""
    used = [_first(found, names, "NCHW").upper() for names in _LAYOUTS]
    if used[0] not in ("NCHW", "NHWC"):
        raise BadLine(Reason("call-unsupported", name="layout", given=used[0][:12]))
    return used[0].lower(), [] if len(set(used)) == 1 else ["layout"]


def _first(found: Mapping[str, str], names: Sequence[str], default: str) -> str:
    return next((found[name] for name in names if name in found), default)


reader = Miopen()
