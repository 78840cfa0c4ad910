"""miopen: commands that MIOpen logs for each convolution (MIOPEN_ENABLE_LOGGING_CMD=1).

    MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver convfp16 -n 1 -c 3 -H 32 -W 32 …

A search for an algorithm is logged as LogCmdFindConvolution, with the same options: of each
problem, the kind with the most lines counts. Lengths are in NCHW order for every layout
(tensor.cpp), except layouts with vectors of channels. Commands written by people may leave out
options that have a default in the driver; logs never do.

miopen-find-db: problems in MIOpen's find-db, *.ufdb.txt of users and *.fdb.txt of systems, and the
times of its solvers in milliseconds.

    576-4-4-1x1-192-4-4-8-1x1-2x2-3x3-0-NCHW-FP32-F=ConvDirectNaiveConvFwd:0.05,0,miopen…

A line is a convolution with the solvers that were timed for it: channels and size of the input,
filter, channels and size of the output, images, padding, stride, dilation, bias, layouts, dtypes
and direction. The input of a backward pass is the gradient: it has the sizes of the output.
Problems have no counts. A record is KEY=SOLVER:TIME,WORKSPACE,ALGORITHM;SOLVER:…; files before
version 2.0 have ALGORITHM:SOLVER,TIME,WORKSPACE,… instead. A two-dimensional forward convolution is
a problem of the op conv; others are identified by their sizes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernelmark import ops
from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.registry import FormatFacts
from kernelmark.ops.conv import output_size
from kernelmark.workloads import calls
from kernelmark.workloads.calls import LogOptions, LogReader, Part
from kernelmark.workloads.importers import (
    CUT,
    Importer,
    Repeats,
    ResultFile,
    ResultRow,
    exact_problem,
    legal_word,
    problem_of,
)
from kernelmark.workloads.source import BadLine, Fields, parse_number, parse_whole, unexpected
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
# Options that change neither the convolution nor, of a forward pass, what it reads.
_HARMLESS = frozenset(
    (
        *(
            "i",
            "iter",
            "V",
            "verify",
            "t",
            "time",
            "s",
            "search",
            "P",
            "printconv",
            "o",
            "w",
            "wall",
        ),
        *("dump_output", "d", "in_data", "e", "weights", "D", "dout_data", "a", "in_bias", "h"),
        *("help", "S", "solution", "C", "verification_cache", "G", "gpualloc"),
        # Of depth, and of transposed convolutions, which are refused.
        *("!", "in_d", "@", "fil_d", "$", "pad_d", "#", "conv_stride_d", "^", "dilation_d"),
        *("Y", "trans_output_pad_h", "X", "trans_output_pad_w", "%", "trans_output_pad_d"),
    )
)
_LAYOUTS = (("in_layout", "I"), ("fil_layout", "f"), ("out_layout", "O"))
_EVERY, _FORWARD = 0, 1
_SOLVER = re.compile(r"Algorithm: \d+, Solution: \d+/(\S+)")
_WRONG = re.compile(r"\b(?:FAILED|Failed): ")
# Older drivers have x before y.
_STATS = (
    *("name", "n", "c", "ho", "wo", "y", "x", "k", "flopCnt", "bytesRead", "bytesWritten"),
    *("GFLOPs", "GB/s", "timeMs"),
)
_START = re.compile(rb"\d{1,18}(?:-\d{1,18}){2,3}-\d{1,18}x\d{1,18}")
_NUMBER = r"(\d{1,18})"
_PAIR = r"(\d{1,18}(?:x\d{1,18}){1,2})"
_KEY = re.compile(
    rf"{_NUMBER}-(\d{{1,18}}(?:-\d{{1,18}}){{1,2}})-{_PAIR}-{_NUMBER}-(\d{{1,18}}(?:-\d{{1,18}}){{1,2}})"
    rf"-{_NUMBER}-{_PAIR}-{_PAIR}-{_PAIR}-{_NUMBER}-([A-Z]+c?)(?:-([A-Z]+c?)-([A-Z]+c?))?"
    r"-([A-Z]+[0-9A-Z]*)-([FBW])((?:_[a-z]+[0-9A-Z]+)*)\Z"
)
_KEY_DTYPES = {"FP32": "f32", "FP16": "f16", "BF16": "bf16", "FP64": "f64", "INT8INT8INT32": "i8"}
_DIRECTIONS = {"F": "forward", "B": "backward_data", "W": "backward_weights"}
_AXES = ("d", "h", "w")
_ARCH_IN_NAME = re.compile(r"(gfx(?:[89][0-9a-f]{2}|1[0-9a-f]{3}))(?:_[0-9]+|[0-9a-f]+)\.")
_MS = 1e-3
_ENDS = (".fdb.txt", ".ufdb.txt")
_OLD = re.compile(r"miopenConvolution\w+Algo\w+\Z")


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
        arguments = line[driver.end() :].strip()
        logged = "log" if _LOGGED in line else "typed"
        return "find" if _FIND in line else logged, arguments, 1

    def calls(self, kind: str, part: bytes, options: LogOptions) -> Iterator[Call]:
        driver, _, rest = part.decode("utf-8", "replace").partition(" ")
        if not driver:
            raise BadLine("is cut off after MIOpenDriver")
        if driver not in _DTYPES:
            raise BadLine(f"is a MIOpenDriver command ({driver[:24]}), which no op computes")
        fields = next(calls.calls_of(calls.options(rest)))
        if kind != "typed":
            _refuse_cut(fields)
        _refuse_other_forms(fields)
        direction = _first(fields, ("F", "forw"), str(_EVERY))
        passes = parse_whole(direction, "-F")
        if passes != _EVERY and not passes & _FORWARD:
            raise BadLine("is a backward pass, which no op computes")
        sizes = {
            ours: parse_whole(_first(fields, names[:2], default), f"-{names[0]}")
            for ours, (*names, default) in _SIZES.items()
        }
        layout, lost = _layout(fields)
        problem = ops.registry.get("conv").problem(**sizes, layout=layout, dtype=_DTYPES[driver])
        if _first(fields, ("b", "bias"), "0") != "0":
            lost.append("bias")
        lost += [f"{name}={value}" for name, value in _unknown(fields).items()]
        yield Call(problem=problem, lost=tuple(lost))


def _refuse_other_forms(fields: Mapping[str, str]) -> None:
    if _first(fields, ("spatial_dim", "_"), "2") != "2":
        raise BadLine("is a 3D convolution, which no op computes")
    for what, (*names, plain) in _PLAIN.items():
        if (value := _first(fields, names, plain)) != plain:
            raise BadLine(f"{what} {value[:12]!r} is not supported")


def _refuse_cut(fields: Mapping[str, str]) -> None:
    for names in (*_SIZES.values(), ("F", "forw")):
        if not _first(fields, names[:2], ""):
            raise BadLine(f"has no -{names[0]}: the line is cut")


def _layout(fields: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the layout of the images, and `lost`: "layout" if filters or output differ."""
    used = [_first(fields, names, "NCHW").upper() for names in _LAYOUTS]
    if used[0] not in ("NCHW", "NHWC"):
        raise BadLine(f"layout {used[0][:12]!r} is not supported")
    return used[0].lower(), [] if len(set(used)) == 1 else ["layout"]


def _unknown(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the options that are not known, which may change the convolution."""
    names = [*(names[:2] for names in _SIZES.values()), *(n[:-1] for n in _PLAIN.values())]
    known = {"F", "forw", "b", "bias", "spatial_dim", "_", "r", "pad_val", "L", "vector_length"}
    known |= {name for some in (*names, *_LAYOUTS) for name in some}
    usual = {"r": "0", "pad_val": "0", "L": "1", "vector_length": "1"}
    return {
        name: value
        for name, value in fields.items()
        if name not in _HARMLESS | known or value != usual.get(name, value)
    }


def _first(fields: Mapping[str, str], names: Sequence[str], default: str) -> str:
    return next((fields[name] for name in names if name in fields), default)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
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
            raise BadLine("is a backward pass, which no op computes")
        if "d" in self.sizes:
            raise BadLine("is a 3D convolution, which no op computes")
        if len(set(self.layouts)) > 1 or self.layouts[0] not in ("NCHW", "NHWC"):
            layouts = "-".join(self.layouts)[:24]
            raise BadLine(f"layout {layouts!r} is not supported")
        if self.dtype not in _KEY_DTYPES or "_c" in self.more:
            dtypes = self.dtype[:24] + self.more[:24]
            raise BadLine(f"dtype {dtypes!r} is not supported")
        problem = ops.registry.get("conv").problem(
            **self.sizes, layout=self.layouts[0].lower(), dtype=_KEY_DTYPES[self.dtype]
        )
        if (computed := output_size(problem)) != self.output:
            raise BadLine(f"has the output {self.output}, computed is {computed}")
        return problem


class FindDbProblems(LogReader):
    name = "miopen-find-db"
    summary = "MIOpen's find-db: the convolutions of *.ufdb.txt and *.fdb.txt"
    facts = FormatFacts(
        versions="MIOpen 2d1fd997 (2024-10), find-db 1.0 and 2.0",
        exactness="exact for two-dimensional forward convolutions whose output size follows from "
        "the padding; others are rejected line by line; counts are not in the file",
        checked="compared with ProblemDescription::Serialize, DbRecord and tensor.cpp; 483,180 "
        "records of five of its own files, also NHWC, against an independent count",
    )

    absent = ("count",)

    def part(self, line: bytes) -> Part | None:
        match = _START.match(line)
        if match is None or b"=" not in line or b":" not in line:
            return None
        return "record", line.partition(b"=")[0].strip(), 1

    def calls(self, kind: str, part: bytes, options: LogOptions) -> Iterator[Call]:
        key = _parse_key(part.decode("utf-8", "replace"))
        yield Call(problem=key.problem(), lost=("bias",) if key.bias else ())


def _parse_key(text: str) -> _Key:
    """Parse the key of a record, the text before its `=`."""
    match = _KEY.match(text)
    if match is None:
        raise BadLine(f"cannot be read: a key {text[:60]!r}")
    channels, outputs, images, bias = (int(match[i]) for i in (1, 4, 6, 10))
    inputs, filters, output, pad, stride, dilation = (
        tuple(map(int, re.split("[-x]", match[i]))) for i in (2, 3, 5, 7, 8, 9)
    )
    rank = len(inputs)
    if any(len(item) != rank for item in (filters, output, pad, stride, dilation)):
        raise BadLine(f"cannot be read: a key {text[:60]!r}")
    if match[15] != "F":
        channels, outputs, inputs, output = outputs, channels, output, inputs
    groups = re.search(r"_g(\d{1,18})", match[16])
    sizes = {"n": images, "c": channels, "k": outputs, "groups": int(groups[1]) if groups else 1}
    axes = _AXES[-rank:]
    names = {"d": "t", "h": "r", "w": "s"}
    for i, axis in enumerate(axes):
        sizes |= {axis: inputs[i], names[axis]: filters[i], f"pad_{axis}": pad[i]}
        sizes |= {f"stride_{axis}": stride[i], f"dilation_{axis}": dilation[i]}
    layouts = tuple(word for word in (match[11], match[12], match[13]) if word)
    return _Key(
        direction=_DIRECTIONS[match[15]],
        sizes=sizes,
        output=output,
        bias=bias != 0,
        layouts=layouts,
        dtype=match[14],
        more=match[16],
    )


class FindDbTimes(Importer):
    name = "miopen-find-db"
    summary = "MIOpen's find-db: the times of its solvers in *.ufdb.txt and *.fdb.txt"
    facts = FormatFacts(
        versions="MIOpen 2d1fd997 (2024-10), find-db 1.0 and 2.0",
        exactness="every solver of every record, with its single stored time",
        checked="compared with DbRecord and FindDbData; 1,331,862 times of five of its own files "
        "against an independent count",
    )
    method = "MIOpen find"
    is_log = True

    def recognizes(self, name: str, head: bytes) -> bool:
        first = head.partition(b"\n")[0]
        is_record = b"miopenConvolution" in first and _find_db.part(first) is not None
        return name.endswith(_ENDS) or is_record

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        arch = _ARCH_IN_NAME.match(file.name)
        for line in file.lines():
            if not line.strip():
                continue
            key, equals, record = line.partition("=")
            if not equals or not record:
                raise unexpected("the record", "KEY=SOLVER:TIME,…", line, CUT)
            problem = _any_problem(_parse_key(key))
            for solver, ms in _times(record):
                yield ResultRow(
                    problem=problem,
                    backend="miopen",
                    config=FrozenDict({"solver": solver}),
                    samples_s=(ms * _MS,),
                    arch=arch[1] if arch else "",
                    # readonlyramdb.cpp
                    key=(key, solver),
                    repeats=Repeats.FIRST,
                )


def _times(record: str) -> Iterator[tuple[str, float]]:
    """Yield (solver, milliseconds). The first entry of a solver counts, as in MIOpen."""
    seen = set()
    for item in record.split(";"):
        name, _, text = item.partition(":")
        values = text.split(",")
        if _OLD.match(name):
            name, *values = values
        if not name or len(values) < 3:
            raise unexpected("the record", "a solver with its time", item, CUT)
        if name not in seen:
            seen.add(name)
            yield name, parse_number(values[0], name)


def _any_problem(key: _Key) -> Problem:
    """Return the problem of the op conv; if it does not compute the key, one of its sizes."""
    with contextlib.suppress(UsageError):
        problem = key.problem()
        if not key.bias:
            return problem
    values: dict[str, str | int | float | bool] = dict(key.sizes)
    values |= {f"out_{i}": size for i, size in enumerate(key.output)}
    values |= {"layout": "-".join(key.layouts), "dtypes": key.dtype + key.more, "bias": key.bias}
    return problem_of(f"miopen_conv_{key.direction}", values)


_find_db = FindDbProblems()


class DriverTimes(Importer):
    name = "miopen"
    summary = "output of MIOpenDriver: the mean of each `stats:` line"
    facts = FormatFacts(
        versions="MIOpenDriver of MIOpen 2 and 3",
        exactness="exact with the command that the driver prints first; without it, and if sizes "
        "differ from it, the file is rejected; passes other than forward are named by their sizes",
        checked="the layout of lines in public logs, with rows of our own",
    )
    method = "mean of MIOpenDriver"
    is_log = True

    def recognizes(self, name: str, head: bytes) -> bool:
        return b"stats: " in head and b"MIOpenDriver" in head

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        command, solution = "", ""
        for text in file.lines():
            if match := _DRIVER.search(text.encode()):
                command, solution = text[match.end() :].strip(), ""
            elif solver := _SOLVER.search(text):
                solution = solver[1]
            elif _WRONG.search(text):
                hint = "measure it again, or take it out of the log"
                raise BadLine("the driver's own check found a wrong result", hint=hint)
            elif text.startswith("stats: name"):
                if not text.rstrip().endswith(_STATS[-1]):
                    raise unexpected("the last column", _STATS[-1], text.rpartition(", ")[2])
            elif text.startswith("stats: "):
                cells = [cell.strip() for cell in text.removeprefix("stats: ").split(",")]
                if len(cells) != len(_STATS):
                    raise BadLine(f"{len(cells)} values for {len(_STATS)} columns", hint=CUT)
                stats = Fields(dict(zip(_STATS, cells, strict=True)))
                yield ResultRow(
                    problem=_measured(command, stats),
                    backend="miopen",
                    samples_s=(stats.number("timeMs") * _MS,),
                    config=FrozenDict({"solver": legal_word(solution)} if solution else {}),
                    kernel=solution,
                )
                solution = ""  # of this pass
            elif file.doubt and text.strip():
                raise BadLine("the file ends within a line", hint=CUT)


def _measured(command: str, stats: Fields) -> Problem:
    """Return the problem of a command, if the line of statistics is of it."""
    driver, _, rest = command.partition(" ")
    if driver not in _DTYPES:
        raise BadLine("stands below no command of a convolution", hint="keep the driver's output")
    fields = next(calls.calls_of(calls.options(rest)))
    sizes = {
        ours: parse_whole(_first(fields, names[:2], default), f"-{names[0]}")
        for ours, (*names, default) in _SIZES.items()
    }
    for name in ("n", "c", "k"):
        if stats.whole(name) != sizes[name]:
            raise BadLine(f"{name} is {stats[name]}, and {sizes[name]} in the command above")
    if not stats["name"].startswith("fwd-"):
        _refuse_other_forms(fields)
        layouts = {name: _first(fields, names, "NCHW") for names in _LAYOUTS for name in names[:1]}
        named: dict[str, str | int] = {**sizes, "dtype": _DTYPES[driver], **layouts}
        named |= {f"option {name}": value for name, value in _unknown(fields).items()}
        return problem_of(f"miopen_{stats['name'].partition('-')[0]}", named)
    (call,) = Miopen().calls("typed", command.encode(), calls.NO_LOG_OPTIONS)
    printed = stats.whole("ho"), stats.whole("wo")
    if printed != (computed := output_size(call.problem)):
        raise BadLine(f"the output is {printed}, and {computed} of the command above", hint=CUT)
    return exact_problem(call)


readers = (Miopen(), _find_db)
importers = (FindDbTimes(), DriverTimes())
