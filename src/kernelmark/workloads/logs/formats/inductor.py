"""inductor: problems that PyTorch's compiler tunes with max-autotune, from its stderr.

    AUTOTUNE mm(512x1024, 1024x2048)
    strides: [1024, 1], [1, 1024]
    dtypes: torch.bfloat16, torch.bfloat16
      triton_mm_12 0.0512 ms 100.0% ACC_TYPE='tl.float32', ALLOW_TF32=False, BLOCK_K=64, …

Older versions write neither strides nor dtypes. A problem is tuned once, so each is one call: the
log has no counts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from kernelmark.core.formats import FormatFacts
from kernelmark.core.reason import Reason
from kernelmark.workloads.logs.base import NOTHING, BadLine, Given, LogReader, Part
from kernelmark.workloads.logs.formats._aten import LEAVES, Inputs
from kernelmark.workloads.workload import Call

_MARK = b"AUTOTUNE "
_BLOCK = re.compile(r"AUTOTUNE (\w+)\(([^()]*)\)(?: strides: (.*?))?(?: dtypes: (.*))?\Z")
_CHOICE = re.compile(rb"\s\w\S* (?:\d+\.\d+|inf|nan) ms [\d.<]")
_ENDS = (b"AUTOTUNE benchmarking takes", b"Autotune Choices Stats:", b'{"num_choices"')
_SIZES = re.compile(r"(?:\d{1,18}(?:x\d{1,18})*)?\Z")
_STRIDES = re.compile(r"\[((?:\d{1,18}(?:, \d{1,18})*)?)\]")
_OPS = {
    "mm": "aten::mm",
    "bmm": "aten::bmm",
    "int_mm": "aten::_int_mm",
    "addmm": "aten::addmm",
    "baddbmm": "aten::baddbmm",
    "scaled_mm": "aten::_scaled_mm",
}
_BF16 = "15"  # c10::ScalarType


class Inductor(LogReader):
    name = "inductor"
    summary = "PyTorch inductor's max-autotune log: AUTOTUNE blocks"
    facts = FormatFacts(
        versions="PyTorch 2.13, and older blocks without strides and dtypes",
        exactness="exact for mm, bmm, addmm, baddbmm, int_mm; alpha and beta are not logged: 1 "
        "is assumed; scaled_mm without its output's type; others are rejected block by block",
        checked="blocks that PyTorch's own log_results wrote; samples of our own in tests",
    )
    once = True

    def part(self, line: bytes) -> Part | None:
        if (at := line.find(_MARK)) >= 0 and line[at + len(_MARK) :].find(b"(") > 0:
            return "block", line[at:].strip(), 1
        if any(mark in line for mark in _ENDS) or (b" ms " in line and _CHOICE.search(line)):
            return NOTHING
        return None

    def calls(self, kind: str, part: bytes, given: Given) -> Iterator[Call]:
        yield call_of(part.decode("utf-8", "replace"), given)

    def notes(self) -> tuple[str, ...]:
        return (Reason("read-as-one", format=self.name, names=("count", "alpha", "beta")),)


def call_of(block: str, given: Given) -> Call:
    """Return the call of a block whose name, strides and dtypes are joined to one line."""
    found = _BLOCK.match(block)
    if found is None:
        raise BadLine(Reason("call-unreadable", what="an AUTOTUNE block"))
    name, texts = found[1], found[2].split(", ")
    if name not in _OPS:
        raise BadLine(Reason("call-unknown", what="operation", given=name[:40]))
    if not all(map(_SIZES.match, texts)):
        raise BadLine(Reason("call-unreadable", what="sizes", given=found[2][:60]))
    dims = [[int(size) for size in text.split("x")] if text else [] for text in texts]
    types = found[4].split(", ") if found[4] else [given.dtype] * len(dims)
    if not types[0]:
        raise BadLine(Reason("call-without-dtype"))
    strides = _strides(found[3] or "", dims)
    if len(types) != len(dims) or (found[3] and len(strides) != len(dims)):
        raise BadLine(Reason("call-strides"))
    op, lost, values = _OPS[name], [], [""] * 6
    if name == "scaled_mm":  # the output's type is not in the block
        values, lost = [*values, _BF16], ["d_type"]
    elif name in ("addmm", "baddbmm"):
        # The addend is expanded to the shape of the output: a bias has a stride of 0.
        if strides:
            dims[0] = [size if step else 1 for size, step in zip(dims[0], strides[0], strict=True)]
        else:
            op, lost, dims, types = "aten::mm", ["beta"], dims[1:], types[1:]
    call = LEAVES[op](Inputs(dims=dims, types=types, strides=strides, values=values))
    return dataclasses.replace(call, lost=(*call.lost, *lost))


def _strides(text: str, dims: Sequence[list[int]]) -> list[list[int]]:
    found = [[int(step) for step in steps.split(", ") if step] for steps in _STRIDES.findall(text)]
    if found and [len(steps) for steps in found] != [len(sizes) for sizes in dims]:
        raise BadLine(Reason("call-strides"))
    return found


reader = Inductor()
