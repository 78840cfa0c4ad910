"""inductor: times of PyTorch's max-autotune, from its log or from TORCHINDUCTOR_MM_LOGGING_FILE.

A block of the log has the ten fastest choices, the best first, with times to 0.1 µs
(TORCHINDUCTOR_AUTOTUNE_NUM_CHOICES_DISPLAYED=all shows all). Processes that write to one log mix
their blocks; torchrun --tee prefixes each line with the process. The file has all choices, but
neither dtypes nor strides, so that its problems differ from those of a log.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmark.core.errors import CodecError, UsageError
from kernelmark.core.formats import FormatFacts
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem, parse_value
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue, ResultSet, Status
from kernelmark.core.timing import Cache, Timing
from kernelmark.workloads.importers._lines import CUT, lines_of
from kernelmark.workloads.importers.base import (
    Found,
    Given,
    Importer,
    build_run,
    fields_of,
    items_of,
    json_with_infinity,
    number,
    problem_of,
    text_of,
    unexpected,
)
from kernelmark.workloads.logs import base as logs
from kernelmark.workloads.logs import continued
from kernelmark.workloads.logs.formats.inductor import call_of

_BLOCK = re.compile(r"AUTOTUNE (\w+)\(([^()]*)\)")
_TIMED = re.compile(rb"AUTOTUNE \w+\([^()\n]*\)\s*\n(?:[^\n]*\n){0,63}?[^\n]* ms ")
_CHOICE = re.compile(
    r"\s+(\w\S*) (\d+\.\d+|inf|nan) ms (\d+\.\d%|nan%|<DIVIDED BY ZERO ERROR>) ?(.*)"
)
_BROKEN = re.compile(r"\s+\w\S* [0-9][0-9.,]*(?: [mun]?s [0-9.]+%.*)?\Z")
_PREFIX = re.compile(r"\[\w+\]:")  # the prefix of a launcher, such as [rank0]:
_END = re.compile(r"AUTOTUNE (?:benchmarking )?takes ")
_NUMBER = re.compile(r"_\d+\Z")
_SHAPE = re.compile(r"\((\d{1,18}), (\d{1,18}), (\d{1,18})\)\Z")
_LONGEST = 1000  # characters of a setting; Python refuses integers of 4300 digits
_JSON = re.compile(r"\s*\[\s*\{")
_KIND = "kernel_type"
# Inductor's benchmarker flushes the cache before each launch.
_TIMING = Timing(cache=Cache.FLUSH)
_MS = 1e-3


class Inductor(Importer):
    name = "inductor"
    summary = "PyTorch inductor's max-autotune log, and its GEMM file"
    facts = FormatFacts(
        versions="PyTorch 2.13, and older blocks without strides and dtypes",
        exactness="every choice in the log, to 0.1 µs; by default inductor logs the ten fastest; "
        "a problem that no op computes is named by its sizes; interleaved blocks of several "
        "processes are rejected unless each line names its process",
        checked="blocks that PyTorch's own log_results wrote: the same times and configs",
    )
    is_log = True

    def recognizes(self, name: str, head: bytes) -> bool:
        if name.endswith(".json"):
            return head.lstrip()[:1] == b"[" and f'"{_KIND}"'.encode() in head
        return _TIMED.search(head) is not None

    def read(self, path: Path, given: Given) -> ResultSet:
        rows = _file(path) if _JSON.match(text_of(path)) else _log(path)
        return build_run(path, given, rows, method="inductor max-autotune")


def _log(path: Path) -> Iterator[Found]:
    lines = lines_of(path)
    whole = [text.encode("utf-8", "surrogatepass") for text in lines.texts]
    blocks: dict[str, tuple[Problem, float | None]] = {}  # with the time of the last choice
    for texts, numbers in continued.joined([whole]):
        for text, line in zip(texts, numbers, strict=True):
            decoded = text.decode("utf-8", "surrogatepass")
            prefix = match[0] if (match := _PREFIX.match(decoded)) else ""
            if found := _BLOCK.search(decoded):
                blocks[prefix] = _problem(decoded[found.start() :].rstrip(), found), None
            elif _END.search(decoded):
                blocks.pop(prefix, None)
            elif prefix in blocks:
                problem, last_ms = blocks[prefix]
                place = f"{path}: line {line}"
                rest = decoded[len(prefix) :]
                cut = line == len(lines.texts) and not lines.ended
                if choice := _CHOICE.match(rest):
                    _check_order(choice, last_ms, place)
                    blocks[prefix] = problem, float(choice[2])
                    yield _row(problem, choice, place)
                if (cut and rest[:1].isspace()) or (not choice and _BROKEN.match(rest)):
                    raise unexpected(place, "a choice with its time", rest.strip(), CUT)


def _check_order(choice: re.Match[str], last_ms: float | None, place: str) -> None:
    """Raise UsageError for a choice from the block of another process: the choices of a block are
    sorted by time, and the first is the best (100 %)."""
    share = choice[3]
    begins = not share[:1].isdigit() or float(share.rstrip("%")) == 100
    if not begins if last_ms is None else float(choice[2]) < last_ms:
        raise UsageError(
            Reason("choices-mixed", where=place),
            hint="several processes wrote to this log: give each a log of its own",
        )


def _row(problem: Problem, choice: re.Match[str], place: str) -> Found:
    name, ms = choice[1], float(choice[2])
    worked = math.isfinite(ms)
    return Found(
        problem=problem,
        backend="triton" if name.startswith("triton_") else "inductor",
        timing=_TIMING,
        config=_config(name, choice[4], place),
        samples_s=(ms * _MS,) if worked else (),
        status=Status.OK if worked else Status.RUNTIME_ERROR,
        error="" if worked else Reason("not-timed", tool="inductor"),
    )


def _config(name: str, description: str, place: str) -> Config:
    """Parse `BLOCK_K=64, ALLOW_TF32=False` into a config. The number at the end of a name counts
    compilations, and is dropped."""
    found: dict[str, ConfigValue] = {"choice": _NUMBER.sub("", name)}
    # Inductor also writes a minus sign within a value as a comma.
    pieces = re.sub(r", (?!\w+=)", "-", description.strip())
    for pair in pieces.split(", ") if pieces else []:
        key, equals, value = pair.partition("=")
        if len(pair) > _LONGEST:
            raise unexpected(f"{place}, {key[:40]}", f"at most {_LONGEST} characters", pair)
        found[key if equals else "more"] = parse_value(value.strip("'")) if value else pair
    return FrozenDict(found)


def _problem(joined: str, block: re.Match[str]) -> Problem:
    with contextlib.suppress(UsageError):
        call = call_of(joined, logs.Given())
        if not call.lost:
            return call.problem
    # Not a known op, more than one op, or without dtypes: identified by the sizes.
    return problem_of(f"inductor_{block[1]}", {"sizes": block[2].replace(", ", "_") or "none"})


def _file(path: Path) -> Iterator[Found]:
    for index, entry in enumerate(items_of(json_with_infinity(path), str(path)), 1):
        place = f"{path}: entry {index}"
        fields = fields_of(entry, place)
        kind = str(fields.get(_KIND, "mm"))
        for key, choices in fields.items():
            if key == _KIND:
                continue
            shape = _SHAPE.match(key)
            if shape is None:
                raise unexpected(place, "(M, K, N)", key)
            m, k, n = map(int, shape.groups())
            problem = problem_of(f"inductor_{kind}", {"m": m, "n": n, "k": k})
            for choice in items_of(choices, place):
                if choice is not None:
                    yield _choice(problem, fields_of(choice, place), place)


def _choice(problem: Problem, choice: Mapping[str, Any], place: str) -> Found:
    kind = str(choice.get("type", ""))
    config = {name: value for name, value in choice.items() if name not in ("type", "time")}
    for name, value in config.items():
        if not isinstance(value, str | int | float):
            cause = Reason("not-a-value", name=name, given=repr(value)[:40])
            raise CodecError(Reason("at", where=place, cause=cause))
    ms = number(choice.get("time"), place) if choice.get("time") != math.inf else math.inf
    worked = math.isfinite(ms)
    return Found(
        problem=problem,
        backend="triton" if kind == "triton" else "inductor",
        timing=_TIMING,
        config=FrozenDict({"choice": kind, **config}),
        samples_s=(ms * _MS,) if worked else (),
        status=Status.OK if worked else Status.RUNTIME_ERROR,
        error="" if worked else Reason("not-timed", tool="inductor"),
    )


importer = Inductor()
