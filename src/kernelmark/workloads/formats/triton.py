"""triton-autotune: NAME.autotune.json in the cache of Triton's autotuner (cache_results), as times
or, with --key, as the problem that was tuned; tritonbench: CSV and JSON of TritonBench.

    {"key": [512, 1024, 2048, "torch.bfloat16", "torch.bfloat16", "torch.bfloat16"], …}

Every config has the median and two quantiles in milliseconds, or one time; inf is a config that
failed. The key has the values that the kernel is tuned by and the dtypes of its arguments, without
names (autotuner.py): the file does not show which value is M. As a workload the user gives the
names: `--key 'gemm m,n,k,a,b,c tb=t'`. A file is one problem.

A latency of TritonBench is a median; samples are not in the file. The CSV has a column for each
metric of an implementation, `{implementation}-{metric}`; the JSON of --output-json has a key,
`tritonbench_{operator}_{mode}[x_{x_val}-{implementation}]_{metric}`. Averages in both are ignored.
The reason of a failure is in the implementation's first metric.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kernelmark import ops
from kernelmark.core import codec
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import ConfigValue, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.workloads.blas import dtype_named
from kernelmark.workloads.calls import LogOptions, LogReader, Remark
from kernelmark.workloads.importers import (
    EACH_TABLE,
    Importer,
    Repeats,
    ResultFile,
    ResultRow,
    legal_name,
    name_words,
    problem_of,
    uneven_row,
)
from kernelmark.workloads.source import BadLine, Fields, unexpected
from kernelmark.workloads.workload import Call

# do_bench, of the autotuner and of TritonBench, flushes the cache before each launch.
_TIMING = Timing(cache=Cache.FLUSH)
_MS = 1e-3
_VERSIONS = "Triton 3.9"
_END = ".autotune.json"
_CONFIGS = "configs_timings"
_QUANTILES = ("q20_s", "q80_s")
_UNNAMED = "_"  # a value that is not a size of the op
_LATENCY = "-latency"
_NUMBER = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*(?:\(.*\)|ms)?\s*\Z")
_DAMAGED = re.compile(r"-?[0-9][0-9.,]*\s*[a-zµμ]{0,2}\Z")
# The name of an implementation is split at a hyphen: `[x_8-triton]_tma-latency`.
_KEY = re.compile(r"(tritonbench_[^\[]+)\[x_(.*)-([^\]-]*)\]_(.+)\Z", re.DOTALL)
_KEY_BYTES = re.compile(rb'"tritonbench_[^"\[]+\[')
# Rows of the table that are not inputs.
_NO_INPUTS = ("average", "hashes")


class TritonAutotuneKey(LogReader):
    name = "triton-autotune"
    summary = "*.autotune.json of Triton's cache: the problem that was tuned, with --key"
    facts = FormatFacts(
        versions=_VERSIONS,
        exactness="exact with the names and layouts that --key gives to the key's values; "
        "rejected without --key; counts are not in the file",
        checked="compared with autotuner.py; a file that Triton's own code wrote",
    )
    absent = ("count",)

    def is_document(self, head: bytes) -> bool:
        return head.lstrip()[:1] == b"{" and f'"{_CONFIGS}"'.encode() in head

    def document(
        self, chunks: Iterable[bytes], options: LogOptions
    ) -> Iterator[tuple[int, Call | str | Remark]]:
        try:
            document = json.loads(b"".join(chunks), object_pairs_hook=codec.once)
        except (ValueError, RecursionError) as error:
            yield 1, f"is not JSON: {error}"
            return
        key = document.get("key") if isinstance(document, dict) else None
        if not isinstance(key, list) or not key:
            yield 1, "has no key"
            return
        try:
            yield 1, Call(problem=named_problem(key, options.key))
        except UsageError as error:
            yield 1, error.message


def named_problem(key: list[object], names: str) -> Problem:
    """Return the problem of a key. `names`, such as `gemm m,n,k,a,b,c tb=t`, has an op, a name for
    each value (_ to ignore it), and further parameters. Dtypes at the end need no names if all are
    equal."""
    op, _, rest = names.strip().partition(" ")
    if not op:
        raise BadLine(f"has {len(key)} values without names: --key 'OP NAME,…' names them")
    listed, *more = rest.split() or [""]
    named = [name for name in listed.split(",") if name]
    values: dict[str, str | int | float | bool] = {}
    for word in more:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadLine(f"--key: {word!r} is not name=value")
        values[name] = value
    unnamed = key[len(named) :]
    if len(named) > len(key) or any(not isinstance(part, str) for part in unnamed):
        raise BadLine(f"has {len(key)} values, and --key names {len(named)}")
    for name, part in zip(named, key, strict=False):
        if name != _UNNAMED:
            values[name] = part if isinstance(part, int | float) else dtype_named(str(part))
    kinds = {dtype_named(str(part)) for part in unnamed}
    if len(kinds) > 1:
        raise BadLine(f"has several dtypes without names: {', '.join(sorted(kinds))}")
    for kind in kinds:
        values.setdefault("dtype", kind)
    return ops.parse(" ".join([op, *(f"{name}={value}" for name, value in values.items())]))


class TritonAutotune(Importer):
    name = "triton-autotune"
    summary = "*.autotune.json of Triton's cache: every config that its autotuner timed"
    facts = FormatFacts(
        versions=_VERSIONS,
        exactness="every config with its median; the key has no names",
        checked="a file that Triton's own code wrote: the best config is the same",
    )
    method = "Triton do_bench"

    def recognizes(self, name: str, head: bytes) -> bool:
        return name.endswith(".json") and f'"{_CONFIGS}"'.encode() in head

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        document = Fields.of(file.python_document(), "the file")
        problem = _unnamed_problem(file.name, document.list("key"))
        for config, times_ms in timed_configs(document):
            worked = math.isfinite(times_ms[0])
            quantiles = zip(_QUANTILES, times_ms[1:], strict=False)
            yield ResultRow(
                problem=problem,
                backend="triton",
                timing=_TIMING,
                config=FrozenDict(config),
                samples_s=(times_ms[0] * _MS,) if worked else (),
                status=Status.OK if worked else Status.RUNTIME_ERROR,
                error="" if worked else Reason("Triton could not time it"),
                also={name: ms * _MS for name, ms in quantiles if math.isfinite(ms)},
                # Of two configs that differ only in what Triton does not store.
                key=(repr(config),),
                repeats=Repeats.REFUSED,
            )


def timed_configs(document: Fields) -> Iterator[tuple[dict[str, ConfigValue], tuple[float, ...]]]:
    """Yield each config with its times in milliseconds, the median first."""
    for number, pair in enumerate(document.list(_CONFIGS), 1):
        where = f"config {number}"
        if not isinstance(pair, list) or len(pair) != 2:
            raise unexpected(where, "a config with its times", pair)
        stored, value = Fields.of(pair[0], where), pair[1]
        # Other fields depend on the version of Triton; configs with a hook are not stored.
        launch_options = {
            name: v for name, v in stored.items() if name not in ("kwargs", "pre_hook")
        }
        values = {**Fields.of(stored.get("kwargs"), stored.at("kwargs")), **launch_options}
        times: list[Any] = value if isinstance(value, list) else [value]
        if not times or not all(map(_is_number, times)):
            raise unexpected(where, "a time", value)
        yield (
            {name: _value(v) for name, v in values.items() if v is not None},
            tuple(float(ms) for ms in times),
        )


def _is_number(value: object) -> bool:
    """Return whether a value is a number that a float can be: a whole one of JSON may be larger."""
    if type(value) is int:
        return abs(value) < 10**18
    return type(value) is float  # inf is a config that failed


def _value(value: object) -> ConfigValue:
    return value if isinstance(value, str | int | float) else str(value)


def _unnamed_problem(file_name: str, key: list[Any]) -> Problem:
    """Return the problem of a key: `[512, "torch.float16"]` in _matmul.autotune.json is
    triton_matmul key=512 key_2=f16."""
    if not key:  # Triton writes no file without a key
        raise BadLine("key is missing")
    values: dict[str, str | int | float | bool] = {}
    for number, part in enumerate(key, 1):
        value: str | int | float | bool = part if isinstance(part, int | float) else str(part)
        if isinstance(value, str):
            with contextlib.suppress(BadLine):
                value = dtype_named(value)
        values["key" if number == 1 else f"key_{number}"] = value
    return problem_of(f"triton_{file_name.removesuffix(_END).strip('_')}", values)


class TritonBench(Importer):
    name = "tritonbench"
    summary = "CSV or JSON of tritonbench with latencies, in milliseconds"
    facts = FormatFacts(
        versions="tritonbench db2155c8 (2025-08): CSV between semicolons, JSON of --output-json "
        "and of its nightly runs",
        exactness="latencies as written; an implementation that failed is a failed result",
        checked="files that tritonbench's own BenchmarkOperatorResult wrote, CSV and JSON: every "
        "latency and failure",
    )
    method = "tritonbench latency"

    def recognizes(self, name: str, head: bytes) -> bool:
        if name.endswith(".json"):
            return bool(_KEY_BYTES.search(head))
        first = head.partition(b"\n")[0]
        return name.endswith(".csv") and b";" in first and _LATENCY.encode() in first

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        return _document(file) if file.text.lstrip()[:1] == "{" else _table(file)


def _table(file: ResultFile) -> Iterator[ResultRow]:
    header, rows = file.table(least=1, separator=";")
    if not any(name.endswith(_LATENCY) for name in header[1:]):
        raise UsageError(f"the table has no column *{_LATENCY}")
    operator = legal_name("_".join(name_words(file.name)) or file.name)
    seen: Counter[Problem] = Counter()
    for cells in rows:
        x_value, *columns = cells.values()
        if x_value.strip().lower() in _NO_INPUTS:
            continue
        if [x_value, *columns] == header:
            raise UsageError("the same table begins a second time", hint=EACH_TABLE)
        if len(cells) != len(header):
            raise uneven_row(len(cells), len(header))
        problem = _bench_problem(f"tritonbench_{operator}", x_value)
        seen[problem] += 1  # another input may be printed alike
        more = FrozenDict({"instance": seen[problem]} if seen[problem] > 1 else {})
        for row in _implementations(problem, zip(header[1:], columns, strict=True)):
            yield dataclasses.replace(row, config=more)


def _document(file: ResultFile) -> Iterator[ResultRow]:
    document = file.document()
    # TritonBench's nightly run writes the metrics of all operators to one file.
    metrics = document.object("metrics") if "metrics" in document else document
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for key, value in metrics.items():
        match = _KEY.match(key)
        if match and match[2] not in _NO_INPUTS:
            cell = "" if value is None else str(value)
            column = f"{match[3]}-{match[4]}"
            rows.setdefault((match[1], match[2]), []).append((column, cell))
    if not any(name.endswith(_LATENCY) for cells in rows.values() for name, _ in cells):
        raise UsageError(
            f"the file has no key tritonbench_*_{_LATENCY[1:]}",
            hint="run it with: --metrics latency",
        )
    for (operator, x_value), cells in rows.items():
        yield from _implementations(_bench_problem(operator, x_value), cells)


def _implementations(problem: Problem, cells: Iterable[tuple[str, str]]) -> Iterator[ResultRow]:
    """Yield a row per implementation of one input; `cells` are named
    `{implementation}-{metric}`."""
    row = {name: cell.strip() for name, cell in cells}
    for name, cell in row.items():
        if not name.endswith(_LATENCY):
            continue
        implementation = name.removesuffix(_LATENCY)
        match = _NUMBER.match(cell)
        if not match and _DAMAGED.match(cell):
            hint = "write the file again with tritonbench"
            raise unexpected(f"{problem.key}, {name}", "milliseconds", cell, hint)
        error = "" if match else cell or _failure(implementation, row)
        status = Status.OK if match else Status.RUNTIME_ERROR
        yield ResultRow(
            problem=problem,
            backend=implementation,
            timing=_TIMING,
            samples_s=(float(match[1]) * _MS,) if match else (),
            status=status if match or error else Status.SKIPPED,
            error=error if match or error else Reason("the file has no value"),
        )


def _failure(implementation: str, row: Mapping[str, str]) -> str:
    """Return the text in the first metric of an implementation, the reason of its failure; "" if
    there are numbers or nothing."""
    columns = [name for name in row if name.startswith(f"{implementation}-")]
    cells = [row[name] for name in columns if row[name]]
    return cells[0] if len(cells) == 1 and not _NUMBER.match(cells[0]) else ""


def _bench_problem(operator: str, x_value: str) -> Problem:
    """Return the problem of an input: `(256, 512, 64, None)` in gemm.csv is tritonbench_gemm x=256
    x_2=512 x_3=64 x_4=None."""
    sizes = [w.strip() for w in x_value.strip().strip("()[]").split(",") if w.strip()]
    values = {"x" if i == 1 else f"x_{i}": word for i, word in enumerate(sizes, 1)}
    return problem_of(operator, values)


readers = (TritonAutotuneKey(),)
importers = (TritonAutotune(), TritonBench())
