"""geko: files of GEKO, hipBLASLt's kernel tuner, which succeeded TuningDriver.

    DataType: "B"                   the list (--list): one type of GEMM, sizes M, N, batch, K
    Sizes:
      - [2304, 1536, 1, 10752]

    transA,…,us_reference,…,us_tuned,…      results/raw_results.csv, final_results.csv
    transA,…,us,kernel,solution,solutionIdx winners.csv, summary.csv

The tables have the columns of hipblaslt-bench, and a mean in microseconds for each library: the
reference, and the one with tuned kernels. A tuned kernel that GEKO found to be wrong stays wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import yaml

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.reason import NO_REASON, Reason
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Status
from kernelmark.workloads import blas
from kernelmark.workloads.calls import LogOptions, LogReader, Remark
from kernelmark.workloads.formats.hipblaslt import (
    arguments_of,
    bench_timing,
    row_config,
    row_problem,
)
from kernelmark.workloads.importers import Importer, ResultFile, ResultRow
from kernelmark.workloads.source import BadLine, Fields, parse_whole
from kernelmark.workloads.workload import Call

_VERSIONS = "rocm-libraries 064700af to 6c3059e7 (2026)"
_loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LETTERS = {
    "B": "bf16_r",
    "H": "f16_r",
    "S": "f32_r",
    "D": "f64_r",
    "F8": "f8_r",
    "F8N": "f8_fnuz_r",
    "B8": "bf8_r",
    "B8N": "bf8_fnuz_r",
}
# Inputs rounded to xf32 are f32 in memory.
_ROUNDED = "X"
_TYPES = ("DataType", "DestDataType", "ComputeDataType")
_TRANS = ("TRANSA", "TRANSB")
_KNOWN = frozenset((*_TYPES, *_TRANS, "ARCH", "SIZE_OPTION", "GRID_DENSITY", "Sizes", "MX"))
_TRANSPOSED = {"T": "T", "N": "N", "true": "T", "false": "N"}
_OFF = ("", "0", "false", "none", "null", "~")
_SIDES = ("reference", "tuned")
_MARK = ("transA", "transB", "m", "n", "k", "a_type")


class GekoList(LogReader):
    name = "geko"
    summary = "a list of sizes for GEKO or TuningDriver (YAML with DataType and Sizes)"
    facts = FormatFacts(
        versions=_VERSIONS,
        exactness="exact; each size is one call; a key that is not known is listed; a grid "
        "(SIZE_OPTION 1), 4-bit floats and MX are rejected",
        checked="compared with schemas.py and sizes.py; the example list in its repository",
    )
    absent = ("count",)

    def is_document(self, head: bytes) -> bool:
        return b"\nSizes:" in head and all(f"{name}:".encode() in head for name in _TYPES)

    def document(
        self, chunks: Iterable[bytes], options: LogOptions
    ) -> Iterator[tuple[int, Call | str | Remark]]:
        # Composed, not loaded: texts of sizes stay as written, and have a line.
        try:
            root = yaml.compose(b"".join(chunks), Loader=_loader)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            yield 1, f"is not YAML: {(str(error).splitlines() or [''])[0]}"
            return
        nodes: dict[str, yaml.Node] = {}
        for key, node in root.value if isinstance(root, yaml.MappingNode) else ():
            name = str(key.value)
            # TuningDriver's lists have TransA.
            name = name.upper() if name.upper() in _TRANS else name
            if name in nodes:
                yield key.start_mark.line + 1, f"the key {name[:24]} occurs twice"
                return
            nodes[name] = node
        yield from _sizes(nodes, options)


def _sizes(nodes: dict[str, yaml.Node], options: LogOptions) -> Iterator[tuple[int, Call | str]]:
    """Yield the call of each size."""
    texts = {n: node.value for n, node in nodes.items() if isinstance(node, yaml.ScalarNode)}
    sizes = nodes.get("Sizes")
    if not isinstance(sizes, yaml.SequenceNode) or texts.get("SIZE_OPTION", "0") != "0":
        yield 1, "has no list of sizes: GEKO writes those that it makes up to gemms.csv"
        return
    try:
        call_type = _type(texts)
    except UsageError as error:
        yield 1, error.message
        return
    # What no version has, such as a bias, may change what is computed.
    others = {n: texts.get(n, "set") for n in nodes if n not in _KNOWN}
    more = [f"{n}={text[:24]}" for n, text in others.items() if text.lower() not in _OFF]
    seen = set()
    for node in sizes.value:
        line = node.start_mark.line + 1
        try:
            size = _size(node)
            if size not in seen:  # GEKO drops sizes that occur twice
                seen.add(size)
                named = dict(zip(("m", "n", "batch_count", "k"), map(str, size), strict=True))
                call = blas.call(call_type | named, options.arch)
                yield line, dataclasses.replace(call, lost=(*call.lost, *more))
        except UsageError as error:
            yield line, error.message


def _type(texts: dict[str, str]) -> dict[str, str]:
    """Return the letters and types of a list as those of a BLAS call."""
    if texts.get("MX", "false").lower() != "false":
        raise BadLine("has MX types, whose scales no op has")
    fields = {}
    for ours, theirs in (("transA", "TRANSA"), ("transB", "TRANSB")):
        text = texts.get(theirs, "")
        if text.lower() not in ("true", "false") and text not in _TRANSPOSED:
            raise BadLine(f"{theirs} is neither T nor N: {text[:24]!r}")
        fields[ours] = _TRANSPOSED.get(text) or _TRANSPOSED[text.lower()]
    data, output, compute = (texts.get(name, "") for name in _TYPES)
    if data == _ROUNDED:
        data, compute = "S", _ROUNDED
    first, second = _operands(data)
    fields |= {"a_type": first, "b_type": second}
    fields |= dict.fromkeys(("c_type", "d_type"), _token(output))
    return fields | {"compute_type": "xf32_r" if compute == _ROUNDED else _token(compute)}


def _operands(text: str) -> tuple[str, str]:
    """Return the types of A and B: one letter for both, or two."""
    if text in _LETTERS:
        return _LETTERS[text], _LETTERS[text]
    pairs = [(a, text.removeprefix(a)) for a in _LETTERS if text.startswith(a)]
    found = [(a, b) for a, b in pairs if b in _LETTERS]
    if len(found) != 1:
        raise BadLine(f"the type {text[:24]!r} is not known")
    return _token(found[0][0]), _token(found[0][1])


def _token(letter: str) -> str:
    if letter not in _LETTERS:
        raise BadLine(f"the type {letter[:24]!r} is not known")
    return _LETTERS[letter]


def _size(node: yaml.Node) -> tuple[int, ...]:
    parts = node.value if isinstance(node, yaml.SequenceNode) else ()
    texts = [part.value for part in parts if isinstance(part, yaml.ScalarNode)]
    if len(texts) != 4 or len(parts) != 4:
        raise BadLine("a size is [M, N, batch, K]")
    return tuple(parse_whole(text, "a size") for text in texts)


class GekoResults(Importer):
    name = "geko"
    summary = "raw, final and winners CSV of GEKO or TuningDriver: reference and tuned kernels"
    facts = FormatFacts(
        versions=_VERSIONS,
        exactness="every time of both libraries; a tuned kernel that was not valid is wrong",
        checked="compared with bench.py, optim.py and search.py; rows of our own",
    )
    method = "mean of hipblaslt-bench"
    is_log = True

    def recognizes(self, name: str, head: bytes) -> bool:
        columns = head.partition(b"\n")[0].decode("utf-8", "replace").strip().split(",")
        return set(_MARK) <= set(columns) and bool(_sides(columns))

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        columns, table = file.table()
        sides = _sides(columns)
        if not sides or not set(_MARK) <= set(columns):
            raise UsageError("line 1 is no header of GEKO's tables")
        for cells in table:
            problem = row_problem(cells, file.overrides.arch)
            arguments = Fields({name: cells[name] for name in arguments_of(cells)}, cells.where)
            more = row_config(arguments, problem)
            for side in sides:
                end = f"_{side}" if side else ""
                config: dict[str, str | int] = {"library": side} if side else {}
                if index := cells.text(f"solutionIdx{end}"):
                    config["solution_index"] = parse_whole(index, "the solution")
                wrong = side == "tuned" and bool(cells.text("valid")) and not cells.flag("valid")
                error = cells.text("error_tuned")[:24]
                yield ResultRow(
                    problem=problem,
                    backend="hipblaslt",
                    samples_s=(cells.number(f"us{end}") * 1e-6,),
                    timing=bench_timing(cells),
                    config=FrozenDict({**more, **config}),
                    status=Status.WRONG if wrong else Status.OK,
                    error=Reason(f"GEKO found an error of {error}") if wrong else NO_REASON,
                    kernel=cells.text(f"kernel{end}"),
                )


def _sides(columns: Sequence[str]) -> Sequence[str]:
    """Return the libraries that a table has times of: "" if there is one, without a name."""
    if all(f"us_{side}" in columns for side in _SIDES):
        return _SIDES
    return ("",) if {"us", "solutionIdx"} <= set(columns) else ()


readers = (GekoList(),)
importers = (GekoResults(),)
