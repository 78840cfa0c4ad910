"""hipblaslt: calls in the log of hipBLASLt, at every level that includes sizes.

HIPBLASLT_LOG_MASK=32         a `hipblaslt-bench …` command per call
HIPBLASLT_LOG_MASK=64, 128    a map per distinct call with its count, when the process ends; 128
                              adds the kernel. PyTorch's TunableOp writes shorter maps
HIPBLASLT_LOG_LEVEL=4         trace lines: `…[rocblaslt_matmul] A=… Adesc=[…] …`
HIPBLASLT_TUNING_FILE         a table, as hipblaslt-bench prints it
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelmark.core.formats import FormatFacts
from kernelmark.core.reason import Reason
from kernelmark.workloads.logs import blas, command, fields, flow_map, lt_trace
from kernelmark.workloads.logs.base import NOTHING, BadLine, Given, LogReader, Part, RowReader
from kernelmark.workloads.logs.table import BlasTable
from kernelmark.workloads.workload import Call

_COMMAND = b"hipblaslt-bench "
_MAPS = (b"- { function: m", b"- {function: m")
_PREFIX = 200  # bytes of a line before the name of the function
_LEVEL = b"[HIPBLASLT]"
_TRACED = b"[rocblaslt_matmul]"
_API = b"[Api]"
_TABLE = {"transA", "transB", "m", "n", "k"}
_RANK = re.compile(rb".*[\]:]")  # [0]: before a header; hipblaslt-bench 600 printed no colon
_GFLOPS = "hipblaslt-Gflops"
_OWN = {"grouped_gemm", "solution_index", _GFLOPS}
_POINTER = re.compile(rb"=0x[0-9a-f]+")
_COUNT = b"call_count:"
_INDEX = b"solution_index:"
_KERNEL = b"kernel_name:"
_SILENT = (b"Git Version:", b"hipBLASLt version:", b"hipBLASLt git version:", b"Rotating buffer")


class Hipblaslt(LogReader):
    name = "hipblaslt"
    summary = "hipBLASLt logs: masks 32, 64 and 128, trace lines, tuning files"
    facts = FormatFacts(
        versions="hipBLASLt 7d9fb683 (2024-10), rocm-libraries aec838a8 (2025-05)",
        exactness="exact; what a call does beyond the GEMM is listed; tables with only d_type "
        "are rejected unless --dtype is given",
        checked="compared with its logging and client code; samples of our own in tests",
    )

    def part(self, line: bytes) -> Part | None:
        # Test the most frequent prefixes first: this runs for a million lines.
        first = line[:1]
        if first == b"h" and line.startswith(_COMMAND):
            return "bench", command.without_solution(line), 1
        if first == b"-" and line.startswith(_MAPS):
            return _profile(line)
        if first == b"[" and line.find(_TRACED, 0, _PREFIX) >= 0:
            # Level 5 logs a call twice, first with pointers to its descriptors.
            api = line.find(_API, 0, _PREFIX) >= 0
            return NOTHING if api else ("trace", _without_pointers(line), 1)
        return self._anywhere(line)

    def _anywhere(self, line: bytes) -> Part | None:
        """Return the part of a call that follows other text: a time, a rank, a progress bar."""
        if (at := line.find(_COMMAND)) >= 0:
            if line.startswith(b"#"):
                return None
            return "bench", command.without_solution(line[at:]), command.count_before(line, at)
        if (at := line.find(b"{")) >= 0 and b"transA" in line:
            other = line.startswith(b"#") or b"TunableOp_" in line[:at]
            return None if other or b"rocblas_function" in line else _profile(line[at:])
        if _LEVEL in line:
            traced = _TRACED in line and _API not in line
            return ("trace", _without_pointers(line), 1) if traced else NOTHING
        return NOTHING if line.startswith(_SILENT) else None

    def calls(self, kind: str, part: bytes, given: Given) -> Iterator[Call]:
        text = part.decode("utf-8", "replace")
        if kind == "trace":
            yield blas.call(_traced(text), given.arch)
            return
        if kind == "cut":
            raise BadLine(Reason("call-cut", part="closing brace"))
        if kind == "bench":
            pairs = command.options(text.partition(" ")[2])
        else:
            pairs = flow_map.entries(text if "}" in text else text + "}")
        yield from (blas.call(_checked(one, kind), given.arch) for one in fields.calls_of(pairs))

    def table(self, line: bytes, place: str) -> RowReader | None:
        columns = _RANK.sub(b"", line, count=1).strip().decode("utf-8", "replace").split(",")
        found = set(columns)
        if _GFLOPS in found:  # M, N and K in 2022; in other tables, those of rocblas-gemm-tune
            found |= {name.lower() for name in columns}
        if not found >= _TABLE or not _OWN & found:
            return None
        return BlasTable(columns)


def _profile(line: bytes) -> Part:
    """Return the map up to the kernel and the count, if it ends with these; else use
    `_any_order`."""
    at = line.rfind(_COUNT)
    end = line[at + len(_COUNT) :]
    if at < 0 or b"}" not in end:
        return _any_order(line)
    try:
        count = int(end.rstrip(b"} \r"))
    except ValueError:
        return _any_order(line)
    chosen = line.rfind(_INDEX, 0, at)
    if chosen < 0:
        return "profile", line[:at], count
    if line.count(b",", chosen, at) == 3 and line.find(_KERNEL, chosen, at) >= 0:
        return "extended", line[:chosen], count
    return _any_order(line)


def _any_order(line: bytes) -> Part:
    """Return the part of a map that does not end with its count, from another version or tool."""
    if b"}" not in line:
        return "cut", b"", 1
    kind = "extended" if _KERNEL in line else "profile"
    part, count = flow_map.cut(line, _COUNT)
    for name in (_INDEX, b"solution_Name:", b"solution_name:", _KERNEL):
        part, _ = flow_map.cut(part, name)
    if not count:
        return kind, part, 1
    return (kind, part, int(count)) if count.isdigit() and len(count) < 18 else (kind, line, 1)


def _without_pointers(line: bytes) -> bytes:
    """Return only the descriptors and the factors: the rest differs in every line."""
    pieces = line.split(b"desc=[", 4)
    bias = pieces[-1].find(b" biasPointer=")
    if len(pieces) != 5 or bias < 0:
        return _POINTER.sub(b"", line)
    _, a, b, c, d = pieces
    factors = d.find(b" alpha", bias)
    stream = d.find(b" stream=", bias)
    return b"Adesc=[%b] Bdesc=[%b] Cdesc=[%b] Ddesc=[%b]%b" % (
        a[: a.find(b"]")],
        b[: b.find(b"]")],
        c[: c.find(b"]")],
        d[:bias],
        b"" if factors < 0 else d[factors : stream if stream > 0 else None],
    )


def _traced(text: str) -> dict[str, str]:
    """Return the fields of a call from its matrix descriptors, which have stored rows and
    columns."""
    matrices, compute, factors = lt_trace.descriptions(text)
    for name, matrix in zip("ABCD", matrices, strict=True):
        if (order := matrix.get("order", "col")) != "col":
            raise BadLine(Reason("call-unsupported", name=f"order of {name}", given=order[:24]))
    found = lt_trace.blas_fields(matrices, compute)
    found |= {name: factors[name] for name in ("alpha", "beta") if name in factors}
    if "alphaVector" in factors:
        found["scaleAlpha_vector"] = "1"
    return found


def _checked(found: dict[str, str], kind: str) -> dict[str, str]:
    """Return the fields with types and bias filled in. Command lines written by people may give one
    precision for all types; logs never do. Maps of PyTorch do not log `bias_vector`: with a bias,
    they have its type and no beta."""
    if kind != "bench":
        bias = "bias_type" in found and "beta" not in found and "bias_vector" not in found
        return found | {"bias_vector": "1"} if bias else found
    precision = found.get("precision") or found.get("r")
    if not precision:
        return found
    types = {f"{name}_type": precision for name in "abcd"}
    return {"transA": "N", "transB": "N", "compute_type": "f32_r"} | types | found


reader = Hipblaslt()
