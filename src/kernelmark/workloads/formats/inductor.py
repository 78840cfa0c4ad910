"""inductor: problems that PyTorch's compiler tunes with max-autotune, and their times.

    AUTOTUNE mm(512x1024, 1024x2048)
    strides: [1024, 1], [1, 1024]
    dtypes: torch.bfloat16, torch.bfloat16
      triton_mm_12 0.0512 ms 100.0% ACC_TYPE='tl.float32', ALLOW_TF32=False, BLOCK_K=64, …

Older versions write neither strides nor dtypes. A problem is tuned once, so each is one call: the
log has no counts.

A block of the log has the ten fastest choices, the best first, with times to 0.1 µs
(TORCHINDUCTOR_AUTOTUNE_NUM_CHOICES_DISPLAYED=all shows all). Processes that write to one log mix
their blocks; torchrun --tee prefixes each line with the process. TORCHINDUCTOR_MM_LOGGING_FILE has
all choices, but neither dtypes nor strides, so that its problems differ from those of a log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence

from kernelmark.core.errors import UsageError
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem, parse_value
from kernelmark.core.reason import Reason
from kernelmark.core.registry import FormatFacts
from kernelmark.core.result import Config, ConfigValue, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.workloads.calls import NO_DTYPE, NOTHING, LogOptions, LogReader, Part
from kernelmark.workloads.formats._aten import LEAVES, AtenInputs
from kernelmark.workloads.importers import CUT, Importer, ResultFile, ResultRow, problem_of
from kernelmark.workloads.source import BadLine, Continued, Fields, parse_number, unexpected
from kernelmark.workloads.workload import Call

_MARK = b"AUTOTUNE "
_JOINED_BLOCK = re.compile(r"AUTOTUNE (\w+)\(([^()]*)\)(?: strides: (.*?))?(?: dtypes: (.*))?\Z")
_CHOICE_BYTES = re.compile(rb"\s\w\S* (?:\d+\.\d+|inf|nan) ms [\d.<]")
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
_BLOCK = re.compile(r"AUTOTUNE (\w+)\(([^()]*)\)")
_TIMED = re.compile(rb"AUTOTUNE \w+\([^()\n]*\)\s*\n(?:[^\n]*\n){0,63}?[^\n]* ms ")
_CHOICE = re.compile(
    r"\s+(\w\S*) (\d+\.\d+|inf|nan) ms (\d+\.\d%|nan%|<DIVIDED BY ZERO ERROR>) ?(.*)"
)
_BROKEN = re.compile(r"\s+\w\S* [0-9][0-9.,]*(?: [mun]?s(?: [0-9.]+(?:%.*)?)?)?\Z")
_PREFIX = re.compile(r"\[\w+\]:")  # the prefix of a launcher, such as [rank0]:
_CUT_BLOCK = re.compile(r"AUTOTUNE \w*(?:\([^()]*)?\Z")
_END = re.compile(r"AUTOTUNE (?:benchmarking )?takes ")
_NUMBER = re.compile(r"_\d+\Z")
_SHAPE = re.compile(r"\((\d{1,18}), (\d{1,18}), (\d{1,18})\)\Z")
_LONGEST = 1000  # characters of a setting; Python refuses integers of 4300 digits
_JSON = re.compile(r"\s*\[\s*\{")
_KIND = "kernel_type"
# Inductor's benchmarker flushes the cache before each launch.
_TIMING = Timing(cache=Cache.FLUSH)
_MS = 1e-3


class InductorLog(LogReader):
    name = "inductor"
    summary = "PyTorch inductor's max-autotune log: AUTOTUNE blocks"
    facts = FormatFacts(
        versions="PyTorch 2.13, and older blocks without strides and dtypes",
        exactness="exact for mm, bmm, addmm, baddbmm, int_mm; alpha and beta are not logged: 1 "
        "is assumed; scaled_mm without its output's type; others are rejected block by block",
        checked="blocks that PyTorch's own log_results wrote; samples of our own in tests",
    )
    absent = ("count", "alpha", "beta")
    once = True

    def part(self, line: bytes) -> Part | None:
        if (at := line.find(_MARK)) >= 0 and line[at + len(_MARK) :].find(b"(") > 0:
            return "block", line[at:].strip(), 1
        if any(mark in line for mark in _ENDS) or (b" ms " in line and _CHOICE_BYTES.search(line)):
            return NOTHING
        return None

    def calls(self, kind: str, part: bytes, options: LogOptions) -> Iterator[Call]:
        yield _call_of(part.decode("utf-8", "replace"), options)


def _call_of(block: str, options: LogOptions) -> Call:
    """Return the call of a block whose name, strides and dtypes are joined to one line."""
    match = _JOINED_BLOCK.match(block)
    if match is None:
        raise BadLine("cannot be read: an AUTOTUNE block")
    name, texts = match[1], match[2].split(", ")
    if name not in _OPS:
        raise BadLine(f"unknown operation {name[:40]!r}")
    if not all(map(_SIZES.match, texts)):
        raise BadLine(f"cannot be read: sizes {match[2][:60]!r}")
    dims = [[int(size) for size in text.split("x")] if text else [] for text in texts]
    types = match[4].split(", ") if match[4] else [options.dtype] * len(dims)
    if not types[0]:
        raise BadLine(NO_DTYPE)
    strides = _strides(match[3] or "", dims)
    if len(types) != len(dims) or (match[3] and len(strides) != len(dims)):
        raise BadLine("has strides or dtypes that do not fit its shapes")
    op, lost, values = _OPS[name], [], [""] * 6
    if name == "scaled_mm":  # the output's type is not in the block
        values, lost = [*values, _BF16], ["d_type"]
    elif name in ("addmm", "baddbmm"):
        # The addend is expanded to the shape of the output: a bias has a stride of 0.
        if strides:
            dims[0] = [size if step else 1 for size, step in zip(dims[0], strides[0], strict=True)]
        else:
            op, lost, dims, types = "aten::mm", ["beta"], dims[1:], types[1:]
    call = LEAVES[op](AtenInputs(dims=dims, types=types, strides=strides, values=values))
    return dataclasses.replace(call, lost=(*call.lost, *lost))


def _strides(text: str, dims: Sequence[list[int]]) -> list[list[int]]:
    strides = [
        [int(step) for step in steps.split(", ") if step] for steps in _STRIDES.findall(text)
    ]
    if strides and [len(steps) for steps in strides] != [len(sizes) for sizes in dims]:
        raise BadLine("has strides or dtypes that do not fit its shapes")
    return strides


class InductorTimes(Importer):
    name = "inductor"
    summary = "PyTorch inductor's max-autotune log, and its GEMM file"
    facts = FormatFacts(
        versions="PyTorch 2.13, and older blocks without strides and dtypes",
        exactness="every choice in the log, to 0.1 µs; by default inductor logs the ten fastest; "
        "a problem that no op computes is named by its sizes; interleaved blocks of several "
        "processes are rejected unless each line names its process",
        checked="blocks that PyTorch's own log_results wrote: the same times and configs",
    )
    method = "inductor max-autotune"
    is_log = True

    def recognizes(self, name: str, head: bytes) -> bool:
        if name.endswith(".json"):
            return head.lstrip()[:1] == b"[" and f'"{_KIND}"'.encode() in head
        return _TIMED.search(head) is not None

    def rows(self, file: ResultFile) -> Iterator[ResultRow]:
        return _choices_in_file(file) if _JSON.match(file.text) else _choices_in_log(file)


def _choices_in_log(file: ResultFile) -> Iterator[ResultRow]:
    whole = [text.encode("utf-8", "surrogatepass") for text in file.texts]
    blocks: dict[str, tuple[Problem, float | None]] = {}  # with the time of the last choice
    for texts, numbers in Continued().joined([whole]):
        for encoded, line in zip(texts, numbers, strict=True):
            text = encoded.decode("utf-8", "surrogatepass")
            prefix = match[0] if (match := _PREFIX.match(text)) else ""
            if block := _BLOCK.search(text):
                blocks[prefix] = _problem(text[block.start() :].rstrip(), block), None
            elif _END.search(text):
                blocks.pop(prefix, None)
            elif _CUT_BLOCK.search(text):
                file.at = f"line {line}"
                raise BadLine("the name of a block is cut", hint=CUT)
            elif prefix in blocks:
                problem, last_ms = blocks[prefix]
                file.at = f"line {line}"
                rest = text[len(prefix) :]
                if choice := _CHOICE.match(rest):
                    _check_order(choice, last_ms)
                    blocks[prefix] = problem, float(choice[2])
                    name, ms = choice[1], float(choice[2])
                    config = _config(name, choice[4])
                    yield _row(problem, ms, config, triton=name.startswith("triton_"))
                # A cut config is of another kernel; a cut percentage is not read.
                is_cut = file.doubt and rest[:1].isspace() and not (choice and not choice[4])
                if is_cut or (not choice and _BROKEN.match(rest)):
                    raise unexpected("the block", "a choice with its time", rest.strip(), CUT)
    file.at = ""


def _check_order(choice: re.Match[str], last_ms: float | None) -> None:
    """Raise BadLine for a choice from the block of another process: the choices of a block are
    sorted by time, and the first is the best (100 %)."""
    share = choice[3]
    begins = not share[:1].isdigit() or float(share.rstrip("%")) == 100
    if not begins if last_ms is None else float(choice[2]) < last_ms:
        raise BadLine(
            "the choice is not in the order of its block",
            hint="several processes wrote to this log: give each a log of its own",
        )


def _row(problem: Problem, ms: float, config: Config, *, triton: bool) -> ResultRow:
    worked = math.isfinite(ms)
    return ResultRow(
        problem=problem,
        backend="triton" if triton else "inductor",
        timing=_TIMING,
        config=config,
        samples_s=(ms * _MS,) if worked else (),
        status=Status.OK if worked else Status.RUNTIME_ERROR,
        error="" if worked else Reason("inductor could not time it"),
    )


def _config(name: str, description: str) -> Config:
    """Parse `BLOCK_K=64, ALLOW_TF32=False` into a config. The number at the end of a name counts
    compilations, and is dropped."""
    config: dict[str, ConfigValue] = {"choice": _NUMBER.sub("", name)}
    # Inductor also writes a minus sign within a value as a comma.
    pieces = re.sub(r", (?!\w+=)", "-", description.strip())
    if pieces.endswith("="):
        raise BadLine(f"{pieces.rpartition(' ')[2]} has no value", hint=CUT)
    for pair in pieces.split(", ") if pieces else []:
        key, equals, value = pair.partition("=")
        if len(pair) > _LONGEST:
            raise unexpected(key[:40], f"at most {_LONGEST} characters", pair)
        config[key if equals else "more"] = parse_value(value.strip("'")) if value else pair
    return FrozenDict(config)


def _problem(joined: str, block: re.Match[str]) -> Problem:
    with contextlib.suppress(UsageError):
        call = _call_of(joined, LogOptions())
        if not call.lost:
            return call.problem
    # Not a known op, more than one op, or without dtypes: identified by the sizes.
    return problem_of(f"inductor_{block[1]}", {"sizes": block[2].replace(", ", "_") or "none"})


def _choices_in_file(file: ResultFile) -> Iterator[ResultRow]:
    document = Fields({"the file": file.python_document()})
    for index, entry in enumerate(document.objects("the file"), 1):
        file.at = f"entry {index}"
        kind = entry.text(_KIND, "mm")
        for key in entry:
            if key == _KIND:
                continue
            shape = _SHAPE.match(key)
            if shape is None:
                raise unexpected("the key", "(M, K, N)", key)
            m, k, n = map(int, shape.groups())
            problem = problem_of(f"inductor_{kind}", {"m": m, "n": n, "k": k})
            for choice in entry.list(key):
                if choice is not None:
                    yield _choice(problem, Fields.of(choice, key))


def _choice(problem: Problem, choice: Fields) -> ResultRow:
    kind = choice.text("type")
    config = {name: value for name, value in choice.items() if name not in ("type", "time")}
    for name, value in config.items():
        if not isinstance(value, str | int | float):
            raise unexpected(choice.at(name), "a word or a number", value)
    ms = choice.get("time")
    ms = ms if ms == math.inf else parse_number(ms, choice.at("time"))
    return _row(problem, ms, FrozenDict({"choice": kind, **config}), triton=kind == "triton")


readers = (InductorLog(),)
importers = (InductorTimes(),)
