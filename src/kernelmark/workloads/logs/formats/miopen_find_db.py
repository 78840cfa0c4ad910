"""miopen-find-db: problems in MIOpen's find-db: *.ufdb.txt of users, *.fdb.txt of systems.

    576-4-4-1x1-192-4-4-8-1x1-2x2-3x3-0-NCHW-FP32-F=ConvDirectNaiveConvFwd:0.05,0,miopen…

A line is a convolution with the solvers that were timed for it: channels and size of the input,
filter, channels and size of the output, images, padding, stride, dilation, bias, layouts, dtypes
and direction. The input of a backward pass is the gradient: it has the sizes of the output. Lengths
are in NCHW order for every layout (tensor.cpp). Problems have no counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernelmark import ops
from kernelmark.core.formats import FormatFacts
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.ops.conv import output_size
from kernelmark.workloads.logs.base import BadLine, Given, LogReader, Part
from kernelmark.workloads.workload import Call

_START = re.compile(rb"\d{1,18}(?:-\d{1,18}){2,3}-\d{1,18}x\d{1,18}")
_NUMBER = r"(\d{1,18})"
_PAIR = r"(\d{1,18}(?:x\d{1,18}){1,2})"
_KEY = re.compile(
    rf"{_NUMBER}-(\d{{1,18}}(?:-\d{{1,18}}){{1,2}})-{_PAIR}-{_NUMBER}-(\d{{1,18}}(?:-\d{{1,18}}){{1,2}})"
    rf"-{_NUMBER}-{_PAIR}-{_PAIR}-{_PAIR}-{_NUMBER}-([A-Z]+c?)(?:-([A-Z]+c?)-([A-Z]+c?))?"
    r"-([A-Z]+[0-9A-Z]*)-([FBW])((?:_[a-z]+[0-9A-Z]+)*)\Z"
)
_DTYPES = {"FP32": "f32", "FP16": "f16", "BF16": "bf16", "FP64": "f64", "INT8INT8INT32": "i8"}
_DIRECTIONS = {"F": "forward", "B": "backward_data", "W": "backward_weights"}
_AXES = ("d", "h", "w")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of the find-db; sizes are those of the forward pass, by the names of the op conv."""

    direction: str
    sizes: dict[str, int]
    output: tuple[int, ...]
    bias: bool
    layouts: tuple[str, ...]
    dtype: str
    more: str  # groups and casts, as written

    def problem(self) -> Problem:
        """Return the problem of the op conv; raise BadLine if the op does not compute it."""
        if self.direction != "forward":
            raise BadLine(Reason("call-no-op", kind="backward pass"))
        if "d" in self.sizes:
            raise BadLine(Reason("call-no-op", kind="3D convolution"))
        if len(set(self.layouts)) > 1 or self.layouts[0] not in ("NCHW", "NHWC"):
            layouts = "-".join(self.layouts)[:24]
            raise BadLine(Reason("call-unsupported", name="layout", given=layouts))
        if self.dtype not in _DTYPES or "_c" in self.more:
            dtypes = self.dtype[:24] + self.more[:24]
            raise BadLine(Reason("call-unsupported", name="dtype", given=dtypes))
        problem = ops.registry.get("conv").problem(
            **self.sizes, layout=self.layouts[0].lower(), dtype=_DTYPES[self.dtype]
        )
        if (computed := output_size(problem)) != self.output:
            raise BadLine(Reason("call-output", given=self.output, computed=computed))
        return problem


class MiopenFindDb(LogReader):
    name = "miopen-find-db"
    summary = "MIOpen's find-db: the convolutions of *.ufdb.txt and *.fdb.txt"
    facts = FormatFacts(
        versions="MIOpen 2d1fd997 (2024-10), find-db 1.0 and 2.0",
        exactness="exact for two-dimensional forward convolutions whose output size follows from "
        "the padding; others are rejected line by line; counts are not in the file",
        checked="compared with ProblemDescription::Serialize, DbRecord and tensor.cpp; 483,180 "
        "records of five of its own files, also NHWC, against an independent count",
    )

    def part(self, line: bytes) -> Part | None:
        found = _START.match(line)
        if found is None or b"=" not in line or b":" not in line:
            return None
        return "record", line.partition(b"=")[0].strip(), 1

    def calls(self, kind: str, part: bytes, given: Given) -> Iterator[Call]:
        key = parse_key(part.decode("utf-8", "replace"))
        yield Call(problem=key.problem(), lost=("bias",) if key.bias else ())

    def notes(self) -> tuple[str, ...]:
        return (Reason("read-as-one", format=self.name, names=("count",)),)


def parse_key(text: str) -> Key:
    """Parse the key of a record, the text before its `=`."""
    found = _KEY.match(text)
    if found is None:
        raise BadLine(Reason("call-unreadable", what="a key", given=text[:60]))
    channels, outputs, images, bias = (int(found[i]) for i in (1, 4, 6, 10))
    inputs, filters, output, pad, stride, dilation = (
        tuple(map(int, re.split("[-x]", found[i]))) for i in (2, 3, 5, 7, 8, 9)
    )
    rank = len(inputs)
    if any(len(one) != rank for one in (filters, output, pad, stride, dilation)):
        raise BadLine(Reason("call-unreadable", what="a key", given=text[:60]))
    if found[15] != "F":
        channels, outputs, inputs, output = outputs, channels, output, inputs
    groups = re.search(r"_g(\d{1,18})", found[16])
    sizes = {"n": images, "c": channels, "k": outputs, "groups": int(groups[1]) if groups else 1}
    axes = _AXES[-rank:]
    names = {"d": "t", "h": "r", "w": "s"}
    for i, axis in enumerate(axes):
        sizes |= {axis: inputs[i], names[axis]: filters[i], f"pad_{axis}": pad[i]}
        sizes |= {f"stride_{axis}": stride[i], f"dilation_{axis}": dilation[i]}
    layouts = tuple(word for word in (found[11], found[12], found[13]) if word)
    return Key(
        direction=_DIRECTIONS[found[15]],
        sizes=sizes,
        output=output,
        bias=bias != 0,
        layouts=layouts,
        dtype=found[14],
        more=found[16],
    )


reader = MiopenFindDb()
