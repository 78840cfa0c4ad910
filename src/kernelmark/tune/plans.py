"""TunePlan: how one problem is tuned, and its commented TOML file. `kmark tune plan` writes a file
for each problem of a summary, `kmark tune run` reads it, and users may edit it in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from kernelmark import backends, ops
from kernelmark.backends._memory import doublings
from kernelmark.backends.base import Backend
from kernelmark.core import codec
from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import KernelmarkError, Unsupported, UsageError
from kernelmark.core.files import parse_toml, read_whole
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import NO_REASON, Reason, prefixed, suffixed
from kernelmark.core.result import BACKEND, Case, Config, ConfigValue, Space, Status
from kernelmark.core.units import time_text
from kernelmark.host.cache import digest
from kernelmark.runners import kernel_files
from kernelmark.runners.forecast import work
from kernelmark.stats.paired import least_rounds
from kernelmark.tune import strategies
from kernelmark.tune.folder import FolderState, TuningFolder, unreadable, write_whole
from kernelmark.tune.folder import digest as text_digest
from kernelmark.tune.strategies.base import Points
from kernelmark.tune.summary import Cost, Summary, counted, counts, summary
from kernelmark.workloads.workload import Workload

ALPHA = 0.05  # significance level of the ratio in the final
# Fields that affect neither the candidates nor the decision.
_DESCRIPTIVE = ("count", "share", "reference_s", "blas", "arch", "follows")
_DECIDING = ("acceptance", "reference_backend", "reference_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a search, which ends at the first one reached; 0 minutes means no time limit."""

    evaluations: int = 100
    minutes: float = 0.0

    def __post_init__(self) -> None:
        if self.evaluations < 1 or self.minutes < 0:
            raise UsageError(
                "a budget is at least 1 evaluation and no negative time, not "
                f"{self.evaluations} and {self.minutes:g} minutes",
                hint="--evaluations 100; --minutes 0 is no limit",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The conditions for keeping a winner. `finalists` candidates are screened in two rounds; the
    best is then measured against the reference in `rounds` rounds. It must be faster by `min_ratio`
    and `min_gain_us`, and correct on new inputs (`seeds`) and on `neighbours` similar sizes."""

    finalists: int = 3
    rounds: int = 6
    min_ratio: float = 1.03
    min_gain_us: float = 0.5
    seeds: int = 2
    neighbours: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TunePlan:
    """How one problem is tuned.

    `space` narrows the backend's space: name → allowed values; empty allows all. `arch` is the
    architecture that the space was listed for, "" if unknown. A winner has to beat the reference,
    whose backend may differ. A plan that `follows` another one evaluates the best candidates of
    that one's family instead of searching its whole space."""

    name: str  # BBS_TN_0
    problem: Problem
    backend: str
    reference_backend: str
    arch: str = ""
    reference_config: Config = field(default_factory=FrozenDict)
    strategy: str = "kmark"
    seed: int = 1
    budget: Budget = field(default_factory=Budget)
    acceptance: Acceptance = field(default_factory=Acceptance)
    space: Mapping[str, tuple[ConfigValue, ...]] = field(default_factory=FrozenDict)
    count: int = 1
    share: float = 0.0
    reference_s: float = 0.0  # from the summary; 0 if not timed
    blas: Mapping[str, str] = field(default_factory=FrozenDict)
    follows: str = ""
    threads: int = 0  # of a CPU; 0: every core

    def device(self, info: DeviceInfo) -> DeviceInfo:
        """Return the device as the plan uses it: with as many cores as it has threads."""
        return used_by(info, self.threads)


def used_by(info: DeviceInfo, threads: int) -> DeviceInfo:
    """Return a CPU with as many cores as `threads`; 0 keeps all."""
    if not threads or info.kind != "cpu":
        return info
    return dataclasses.replace(info, units=min(threads, info.units))


def distance(problem: Problem, other: Problem) -> float:
    """Return the distance between sizes in doublings, infinite if anything else differs."""
    if (problem.op, problem.dtypes, problem.options) != (other.op, other.dtypes, other.options):
        return math.inf
    if problem.dims.keys() != other.dims.keys():
        return math.inf
    return math.sqrt(sum(doublings(problem.dims[n], other.dims[n]) ** 2 for n in problem.dims))


def search_digest(plan: TunePlan) -> str:
    """Return the digest of the fields that determine the candidates and their order."""
    return _digest(plan, (*_DESCRIPTIVE, *_DECIDING, "budget"))


def decision_digest(plan: TunePlan) -> str:
    """Return the digest of the fields that determine an outcome, except for the budget."""
    return _digest(plan, (*_DESCRIPTIVE, "budget"))


def plan_digest(plan: TunePlan) -> str:
    """Return the digest of all fields that affect the search or its outcome."""
    return _digest(plan, _DESCRIPTIVE)


def _digest(plan: TunePlan, without: tuple[str, ...]) -> str:
    names = [field.name for field in dataclasses.fields(plan) if field.name not in without]
    return digest(*(f"{name}={codec.plain(getattr(plan, name))}" for name in names))[:16]


def value_text(value: ConfigValue) -> str:
    """Return a value as TOML that parses back to the same value and type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON does not escape DEL; TOML requires it.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


_SHOWN = 12  # values of a parameter that a hint lists
# Values of a parameter that a plan's file lists; cuBLASLt has 19,000 algorithms for a GEMM.
_MOST_LISTED = 4096


def space_of(plan: TunePlan, info: DeviceInfo, file: str = "") -> Space:
    """Return the space of `plan` on a device; error messages name `file`."""
    file = file or plan.name
    backend = kernel_files.find(plan.backend)
    whole = backend.space(plan.problem, info)
    if whole is None:
        reason = Reason(
            f"{file}: {plan.backend} has nothing to tune for this problem on {info.name}"
        )
        cause = backend.untunable(plan.problem, info)
        raise UsageError(
            suffixed(reason, f": {cause}" if cause else ""),
            hint="kmark list backends says what there is",
        )
    if plan.reference_config:
        _check_reference(plan, info, file)
    return narrowed(whole, plan.space, file)


def _check_reference(plan: TunePlan, info: DeviceInfo, file: str) -> None:
    """Raise UsageError before the search if the reference config cannot be run.

    Its values need not be in the space that is searched, but must be of the same types."""
    try:
        whole = kernel_files.find(plan.reference_backend).space(plan.problem, info)
    except Unsupported:  # a library that is not installed cannot list its space
        return
    if whole is None:
        return
    for name, value in plan.reference_config.items():
        values = whole.parameters.get(name)
        if values is None:
            raise UsageError(
                f"{file}: reference.config.{name} is no parameter of "
                f"{plan.reference_backend} for this problem",
                hint=f"it has: {', '.join(whole.parameters)}",
            )
        if not any(_kind(value) is _kind(other) for other in values):
            shown = ", ".join(value_text(other) for other in values[:_SHOWN])
            raise UsageError(
                f"{file}: reference.config.{name} cannot be {value_text(value)}",
                hint=f"for example: {shown}",
            )


def _kind(value: ConfigValue) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def narrowed(
    space: Space, allowed: Mapping[str, tuple[ConfigValue, ...]], file: str = "plan"
) -> Space:
    """Return `space` with the `allowed` values only; parameters not in `allowed` keep all values.

    Raise UsageError for a value that is not in the space. The default config stays, even if its
    values are not allowed."""
    if space.alternatives:
        return _narrowed_union(space, allowed, file)
    parameters, known = dict(space.parameters), {**space.parameters, **space.opt_in}
    for name, values in allowed.items():
        if name not in known:
            raise UsageError(
                f"{file}: space.{name} is no parameter of this space",
                hint=f"it has: {', '.join(known)}",
            )
        own_values = [_own(value, known[name], file, f"space.{name}") for value in values]
        parameters[name] = tuple(dict.fromkeys(own_values))
    more = {name: values[0] for name, values in space.opt_in.items() if name in parameters}
    narrow = dataclasses.replace(
        space,
        parameters=FrozenDict(parameters),
        default=FrozenDict({**space.default, **more}),
        seeds=tuple(FrozenDict({**seed, **more}) for seed in space.seeds),
    )
    if is_empty(narrow):
        raise UsageError(
            f"{file}: space: every combination of these values is forbidden",
            hint="allow more values of a parameter",
        )
    return narrow


def _narrowed_union(
    space: Space, allowed: Mapping[str, tuple[ConfigValue, ...]], file: str
) -> Space:
    known = {*space.parameters, *space.opt_in}
    if unknown := [name for name in allowed if name not in known]:
        raise UsageError(
            f"{file}: space.{unknown[0]} is no parameter of this space",
            hint=f"it has: {', '.join(known)}",
        )
    every = tuple(space.alternatives)
    names = [_own(v, every, file, f"space.{BACKEND}") for v in allowed.get(BACKEND, every)]
    own = {
        str(name): {
            parameter.removeprefix(f"{name}."): values
            for parameter, values in allowed.items()
            if parameter.startswith(f"{name}.")
        }
        for name in names
    }
    return Space.union({n: narrowed(space.alternatives[n], own[n], file) for n in own})


def is_empty(space: Space) -> bool:
    """Return whether no combination of a space is legal."""
    if space.alternatives:
        return all(map(is_empty, space.alternatives.values()))
    if space.check is not None:  # too large to enumerate
        return not len(Points.of(space, limit=1))
    return next(iter(space), None) is None


def _own(value: ConfigValue, legal: tuple[ConfigValue, ...], file: str, key: str) -> ConfigValue:
    """Return the value of the space that equals `value`: 10 equals 10.0, but 1 does not equal
    true."""
    for candidate in legal:
        if candidate == value and isinstance(candidate, bool) == isinstance(value, bool):
            return candidate
    shown = ", ".join(value_text(candidate) for candidate in legal[:_SHOWN])
    more = f" and {len(legal) - _SHOWN} more" if len(legal) > _SHOWN else ""
    raise UsageError(
        f"{file}: {key}: {value_text(value)} is not in the space", hint=f"it has: {shown}{more}"
    )


_NAMES_A_FILE = re.compile(rb'\.(py|cu|hip)"')

_TOP = (
    *("name", "problem", "count", "share", "backend", "arch", "strategy", "seed", "follows"),
    "threads",
    *("reference", "budget", "acceptance", "space", "blas"),
)
_REFERENCE = ("backend", "time_s", "config")
_LEAST = {"seeds": 0, "neighbours": 0}
LEAST_ROUNDS = least_rounds(ALPHA)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_WIDTH = 100
Limits = TypeVar("Limits", Budget, Acceptance)


def plan_text(plan: TunePlan, *, space: Space | None = None) -> str:
    """Return the TOML text of a plan. The config that the search starts from, and the parameters
    that it may add, are comments with what the backend's `space` has."""
    parts = [
        f"# How {plan.name} is tuned by `kmark tune run`. Edit what you like: `kmark tune plan` "
        "leaves an\n# edited file alone unless it is given --force.\n",
        f"name = {value_text(plan.name)}  # that of the file",
        f"problem = {value_text(plan.problem.key)}",
        f"count = {plan.count}  # calls in the workload",
        f"share = {plan.share!r}  # of the workload's time with the reference, 0 to 1\n",
        "# What is tuned, and the architecture that [space] was listed for.",
        f"backend = {value_text(plan.backend)}",
        f"arch = {value_text(plan.arch)}\n",
        *_comment(f"How the space is searched: {', '.join(strategies.registry.names())}."),
        f"strategy = {value_text(plan.strategy)}",
        f"seed = {plan.seed}  # the same seed gives the same search",
        *([_follows_text(plan)] if plan.follows else []),
        *([f"threads = {plan.threads}  # one is timed by CPU time"] if plan.threads else []),
        *_limits(plan),
        *_space(plan, space or Space(parameters={})),
    ]
    if plan.blas:
        parts += ["\n[blas]  # the call as its log gave it, for files of libraries (kmark export)"]
        parts += table_text(plan.blas)
    return "\n".join(parts) + "\n"


def _follows_text(plan: TunePlan) -> str:
    line = f"follows = {value_text(plan.follows)}"
    return f'{line}  # evaluates the best candidates of its family; "" searches the whole space'


def _limits(plan: TunePlan) -> list[str]:
    timed = time_text(plan.reference_s) if plan.reference_s else "not timed"
    acceptance = plan.acceptance
    return [
        "\n[reference]  # what a winner has to beat; an empty config is the backend's own choice",
        f"backend = {value_text(plan.reference_backend)}",
        f"time_s = {plan.reference_s!r}  # from the summary: {timed}",
        "\n[reference.config]",
        *table_text(plan.reference_config),
        "\n[budget]  # the search ends after the first of these; 0 minutes are no limit",
        f"evaluations = {plan.budget.evaluations}",
        f"minutes = {plan.budget.minutes!r}",
        "\n[acceptance]",
        "# This many of the best are screened in two rounds with the reference, in new memory.",
        f"finalists = {acceptance.finalists}",
        "# The fastest is re-measured against the reference in this many rounds: only these times",
        f"# count. At least {LEAST_ROUNDS} (fewer cannot be significant); odd numbers round up.",
        f"rounds = {acceptance.rounds}",
        "# A winner is kept if it is faster by this factor and by these microseconds per call,",
        f"min_ratio = {acceptance.min_ratio!r}",
        f"min_gain_us = {acceptance.min_gain_us!r}",
        "# and correct on this many new inputs and sizes next to the problem's.",
        f"seeds = {acceptance.seeds}",
        f"neighbours = {acceptance.neighbours}",
    ]


def _space(plan: TunePlan, space: Space) -> list[str]:
    lines = ["\n[space]", "# Values that may be tried; delete some to narrow the search."]
    if plan.space:
        count = combinations({**space.parameters, **plan.space})
        lines.append(f"# {count} combinations, of which the backend may forbid some.")
    if space.default:
        chosen = ", ".join(f"{name} = {value_text(x)}" for name, x in space.default.items())
        lines += _comment(f"The search starts from: {chosen}")
    lines += [list_text(name, values) for name, values in plan.space.items()]
    lines += [
        f"# {name}: all of its {len(values)} values are tried"
        for name, values in space.parameters.items()
        if name not in plan.space and len(values) > _MOST_LISTED
    ]
    if more := [list_text(name, x) for name, x in space.opt_in.items() if name not in plan.space]:
        lines += ["# Not searched unless a line is added:", *(f"# {line}" for line in more)]
    return lines


def combinations(space: Mapping[str, tuple[ConfigValue, ...]]) -> int:
    """Return the number of combinations of a plan's values, those of several backends together."""
    if BACKEND not in space:
        return math.prod(map(len, space.values()))
    own = [
        [values for parameter, values in space.items() if parameter.startswith(f"{name}.")]
        for name in space[BACKEND]
    ]
    return sum(math.prod(map(len, each)) for each in own)


def _comment(sentence: str) -> list[str]:
    return textwrap.wrap(
        sentence,
        width=_WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def key_text(key: str) -> str:
    return key if _BARE_KEY.match(key) else value_text(key)


def list_text(key: str, values: Sequence[ConfigValue]) -> str:
    """Return `key = [a, b]`, wrapped if it is longer than a line."""
    line = f"{key_text(key)} = [{', '.join(map(value_text, values))}]"
    if len(line) <= _WIDTH:
        return line
    lines = [f"{key_text(key)} = ["]
    row = "   "
    for value in values:
        word = f" {value_text(value)},"
        if len(row) + len(word) > _WIDTH and row.strip():
            lines.append(row)
            row = "   "
        row += word
    return "\n".join([*lines, row, "]"])


def table_text(items: Mapping[str, ConfigValue]) -> list[str]:
    """Return the lines of a table's body."""
    return [f"{key_text(key)} = {value_text(value)}" for key, value in items.items()]


def read_plan(path: Path) -> TunePlan:
    """Load a plan; raise UsageError with the file and key if it is invalid."""
    plan = _Table(_document(path), path)
    plan.check_keys(_TOP)
    reference = plan.table("reference")
    reference.check_keys(_REFERENCE)
    name = plan.text("name", path.stem)
    if name != path.stem:
        raise UsageError(
            f"{path}: its name is {name!r}", hint=f'write name = "{path.stem}", or rename the file'
        )
    backend = plan.backend()
    strategy = plan.text("strategy", "kmark")
    if strategy not in strategies.registry:
        names = ", ".join(strategies.registry.names())
        raise plan.error("strategy", f"{strategy!r} is not known", f"known: {names}")
    return TunePlan(
        name=name,
        problem=_problem(plan, backend),
        backend=backend,
        reference_backend=reference.backend(backends.names_of(backend)[0]),
        reference_config=FrozenDict(reference.table("config").simple_values()),
        arch=plan.text("arch", ""),
        strategy=strategy,
        seed=plan.whole("seed", 1, least=0),
        follows=plan.text("follows", ""),
        threads=plan.whole("threads", 0, least=0),
        budget=plan.table("budget").numbers(Budget),
        acceptance=plan.table("acceptance").numbers(Acceptance),
        space=plan.table("space").lists(),
        count=plan.whole("count", 1, least=1),
        share=plan.real("share", 0.0, most=1.0),
        reference_s=reference.real("time_s", 0.0),
        blas=plan.table("blas").texts(),
    )


def target(path: Path) -> tuple[str, str]:
    """Return the backend and the architecture of a plan's file, without checking other keys."""
    plan = _Table(_document(path), path)
    return plan.backend(), plan.text("arch", "")


def learn_ops(folder: TuningFolder) -> None:
    """Register the ops that are defined by the kernel files of a folder's plans."""
    for name in folder.names():
        path = folder.plan(name)
        with contextlib.suppress(OSError, KernelmarkError):  # reported where the plan is needed
            if _NAMES_A_FILE.search(path.read_bytes()) and _files(target(path)[0]):
                kernel_files.find(target(path)[0])


def _files(backend: str) -> list[str]:
    """Return which of the backends of a plan are kernel files."""
    return [name for name in backends.names_of(backend) if backends.is_file(name)]


def too_few(rounds: int) -> Reason | None:
    """Return a reason if a final of `rounds` rounds is too short, else None."""
    if rounds >= LEAST_ROUNDS:
        return None
    return Reason(
        f"{rounds} rounds are too few: with less than {LEAST_ROUNDS} nothing"
        f" can be concluded at {100 * (1 - ALPHA):.3g} %"
    )


def _document(path: Path) -> dict[str, Any]:
    anew = f"'kmark tune plan {path.parent.parent} -b BACKEND' writes it anew"
    try:
        return parse_toml(read_whole(path).decode())
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}", hint=anew) from None
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text", hint=f"delete it: {anew}") from None
    except ValueError as error:
        raise UsageError(
            f"{path}: is not TOML: {error}", hint=f"fix that line, or delete the file: {anew}"
        ) from None


def _problem(plan: _Table, backend: str) -> Problem:
    key = plan.text("problem")
    if key.split(" ", 1)[0] not in ops.registry:
        for name in _files(backend):
            kernel_files.find(name)  # it may define the op
    try:
        return ops.parse(key)
    except KernelmarkError as error:
        hint = error.hint or "kmark list ops says what a problem may be"
        raise plan.error("problem", error.message, hint) from None


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a plan's file, whose values are checked when they are read."""

    values: Mapping[str, Any]
    path: Path
    prefix: str = ""

    def error(self, key: str, problem: str, hint: str) -> UsageError:
        return UsageError(f"{self.path}: {self.prefix}{key}: {problem}", hint=hint)

    def check_keys(self, names: Sequence[str]) -> None:
        for key in self.values:
            if key not in names:
                raise self.error(key, "is not a known key", f"known: {', '.join(names)}")

    def table(self, key: str) -> _Table:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, "is not a table", f"begin it with [{self.prefix}{key}]")
        return _Table(value, self.path, f"{self.prefix}{key}.")

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; without a default, it is required."""
        value = self.values.get(key, default)
        if value is None:
            anew = f"'kmark tune plan {self.path.parent.parent} -b BACKEND' writes it anew"
            raise self.error(key, "is missing", f"write it there, or delete the file: {anew}")
        if not isinstance(value, str):
            raise self.error(key, f"{value!r} is not text", f'write {key} = "{value}"')
        return value

    def texts(self) -> Mapping[str, str]:
        return FrozenDict({key: self.text(key) for key in self.values})

    def backend(self, default: str | None = None) -> str:
        name = self.text("backend", default)
        names = backends.names_of(name)
        if not names or not all(n in backends.registry or backends.is_file(n) for n in names):
            hint = f"known: {', '.join(backends.registry.names())}, or a .py, .cu or .hip file"
            raise self.error("backend", f"{name!r} is not known", f"{hint} of your own")
        return name

    def whole(self, key: str, default: int, *, least: int) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            problem = f"{value!r} is not a whole number of at least {least}"
            raise self.error(key, problem, f"usual is {key} = {default}")
        return value

    def real(self, key: str, default: float, *, most: float = math.inf) -> float:
        value = self.values.get(key, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # An integer of 400 digits overflows a float. The bounds also reject inf and nan.
        if not number or not 0 <= value <= min(most, sys.float_info.max):
            limits = "of at least 0" if math.isinf(most) else f"from 0 to {most:g}"
            problem = f"{repr(value)[:40]} is not a number {limits}"
            raise self.error(key, problem, f"usual is {key} = {default!r}")
        return float(value)

    def numbers(self, kind: type[Limits]) -> Limits:
        """Parse a Budget or Acceptance; each number has the type of its default."""
        self.check_keys([field.name for field in fields(kind)])
        numbers: dict[str, Any] = {}
        for key in self.values:
            default = getattr(kind(), key)
            if isinstance(default, int):
                numbers[key] = self.whole(key, default, least=_LEAST.get(key, 1))
            else:
                numbers[key] = self.real(key, default)
        if reason := too_few(numbers.get("rounds", LEAST_ROUNDS)):
            raise self.error("rounds", reason, f"write rounds = {LEAST_ROUNDS}, or more")
        return kind(**numbers)

    def lists(self) -> Mapping[str, tuple[ConfigValue, ...]]:
        for key, values in self.values.items():
            if not isinstance(values, list) or not values:
                hint = f"write {key} = [16, 32]; without the line all values may be tried"
                raise self.error(key, f"{values!r} is not a list of values", hint)
            for value in values:
                self._check_simple(key, value)
        return FrozenDict({key: tuple(values) for key, values in self.values.items()})

    def simple_values(self) -> Mapping[str, ConfigValue]:
        for key, value in self.values.items():
            self._check_simple(key, value)
        return self.values

    def _check_simple(self, key: str, value: object) -> None:
        simple = isinstance(value, str | int | float)
        if not simple or (isinstance(value, float) and not math.isfinite(value)):
            problem = f"{value!r} is not text, a number or a truth value"
            raise self.error(key, problem, 'write 16, "wide" or true')


_LETTERS = {
    "f64": "D",
    "f32": "S",
    "tf32": "X",
    "f16": "H",
    "bf16": "B",
    "f8e4m3": "F8",
    "f8e5m2": "B8",
    "f8e4m3fnuz": "F8N",
    "f8e5m2fnuz": "B8N",
    "f4e2m1": "F4",
    "i8": "I8",
    "i32": "I",
}
_SHORT = {"attention": "ATTN"}
_COUNTER = re.compile(r"(.+)_(\d+)\Z")


def stem(problem: Problem) -> str:
    """Return the name of a problem without its counter."""
    if problem.op == "gemm":
        return _gemm_name(problem)
    if problem.op == "batched_gemm":
        return f"BATCHED_{_gemm_name(problem)}"
    if problem.op == "batched_gemm_quant":
        scheme = str(problem.options["scheme"]).upper()
        return f"BATCHED_{scheme}_{_letter(problem.dtypes['c'])}"
    first = next(iter(problem.dtypes.values()), "")
    op = _SHORT.get(problem.op, problem.op.upper())
    return f"{op}_{first.upper()}" if first else op


def assign(problems: Iterable[Problem], known_names: Mapping[str, str]) -> dict[str, str]:
    """Return names by problem key: that in `known_names`, else the stem with the next free counter.

    A name in `known_names` is not reused, even if `problems` lacks the problem that has it."""
    taken = {name: key for key, name in known_names.items()}
    following: dict[str, int] = {}
    for name in taken:
        if match := _COUNTER.match(name):
            following[match[1]] = max(following.get(match[1], 0), int(match[2]) + 1)
    names: dict[str, str] = {}
    for problem in problems:
        if problem.key in known_names:
            names[problem.key] = known_names[problem.key]
        elif problem.key not in names:
            kind = stem(problem)
            number = following.get(kind, 0)
            following[kind] = number + 1
            names[problem.key] = f"{kind}_{number}"
    return names


def _gemm_name(problem: Problem) -> str:
    types, options = problem.dtypes, problem.options
    # BLAS computes the transpose of our row-major GEMM: its A is our B.
    a, b = _letter(types["b"]), _letter(types["a"])
    inputs = a if a == b else a + b
    layout = "".join("N" if options[name] == "n" else "T" for name in ("tb", "ta"))
    return f"{inputs}{_letter(types['c'])}{_letter(types['acc'])}_{layout}"


def _letter(dtype: str) -> str:
    return _LETTERS.get(dtype, dtype.upper())


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that all plans of one call share."""

    backend: str
    reference: str
    strategy: str = "kmark"
    seed: int = 1
    budget: Budget = field(default_factory=Budget)
    acceptance: Acceptance = field(default_factory=Acceptance)
    threads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A plan, with the space that it was listed from."""

    plan: TunePlan
    space: Space

    @property
    def combinations(self) -> int:
        return self.space.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A problem that no plan is written for, with the reason. `bare`: the backend has nothing to
    tune for it. `by_reference`: the reference is another backend, which cannot run it."""

    cost: Cost
    reason: Reason
    bare: bool = False
    by_reference: bool = False


class Fate(StrEnum):
    """What was done with a plan's file."""

    NEW = "new"
    CHANGED = "changed"  # overwritten: the user had not edited it
    SAME = "same"
    EDITED = "edited"  # kept: the user edited it
    UNREADABLE = "unreadable"  # kept: the user edited it, and it is invalid now


def costs_of(workload: Workload, earlier: Summary | None, thr: float | None) -> list[Cost]:
    """Return all problems of the workload by contribution: timed ones by time, then untimed ones
    by calls × work.

    Counts come from the workload, so shares are correct after another log was imported. `thr` is in
    percent; None keeps the summary's selection. Problems that are not in the summary are then
    selected only if all problems in it are."""
    called = counts(workload)
    timed = {} if earlier is None else {cost.problem: cost for cost in earlier.costs}
    whole = all(cost.selected for cost in timed.values())
    costs = [
        counted(timed[problem], count)
        if problem in timed
        else Cost(problem=problem, count=count, selected=whole)
        for problem, count in called.items()
    ]
    if earlier is not None:
        costs = list(summary(earlier.basis, costs, thr=thr).costs)
    return sorted(costs, key=lambda cost: (-cost.total_s, -cost.count * _work(cost.problem)))


def drafts(
    costs: Iterable[Cost],
    *,
    names: Mapping[str, str],
    blas: Mapping[Problem, Mapping[str, str]],
    settings: Settings,
    info: DeviceInfo,
    timed_by: str = "",
) -> tuple[list[Draft], list[Refused]]:
    """Return a plan for each problem that can be tuned, in the order given, and the refused ones.

    `timed_by` is the backend that the costs were timed with. If it is the reference, its failures
    are refused and its times are the reference's; otherwise both are ignored."""
    backend, reference = kernel_files.find(settings.backend), kernel_files.find(settings.reference)
    drafted: list[Draft] = []
    refused: list[Refused] = []
    own, another = timed_by == settings.reference, settings.reference != settings.backend
    for cost in costs:
        failed = own and cost.status not in (None, Status.OK)
        if failed:
            role = "the reference " if another else ""
            reason = Reason(f"{role}{settings.reference} {cost.status}: {cost.reason}")
        else:
            reason = _refusal(reference, cost.problem, info, reference=another)
        if reason:
            refused.append(Refused(cost=cost, reason=reason, by_reference=another))
            continue
        reason = _refusal(backend, cost.problem, info)
        if reason:
            refused.append(Refused(cost=cost, reason=reason))
            continue
        space, reason = _listed_space(backend, cost.problem, info)
        if space is None:
            refused.append(Refused(cost=cost, reason=reason, bare=True))
            continue
        plan = TunePlan(
            name=names[cost.problem.key],
            problem=cost.problem,
            backend=settings.backend,
            reference_backend=settings.reference,
            arch=info.arch,
            strategy=settings.strategy,
            seed=settings.seed,
            threads=settings.threads,
            budget=settings.budget,
            acceptance=settings.acceptance,
            space=FrozenDict({n: v for n, v in space.parameters.items() if len(v) <= _MOST_LISTED}),
            count=cost.count,
            share=round(cost.share, 8),
            reference_s=float(f"{cost.time_s:.6g}") if own and cost.status is Status.OK else 0.0,
            blas=FrozenDict(blas.get(cost.problem, {})),
        )
        drafted.append(Draft(plan=plan, space=space))
    return drafted, refused


def plan_names(folder: TuningFolder, problems: Sequence[Problem]) -> dict[str, str]:
    """Return names by problem key, keeping existing ones. Names missing in the state are read from
    the plans."""
    names = dict(folder.read_state().names)
    taken = set(names.values())
    for name in folder.names():
        if name not in taken:
            names.setdefault(read_plan(folder.plan(name)).problem.key, name)
    return names | assign(problems, names)


def write_plans(
    folder: TuningFolder, drafted: Iterable[Draft], names: Mapping[str, str], *, force: bool = False
) -> dict[str, Fate]:
    """Write every plan to its file, except for files that the user edited (`force` overwrites
    these too)."""
    written = dict(folder.read_state().written)
    fates: dict[str, Fate] = {}
    for draft in drafted:
        name = draft.plan.name
        path, text = folder.plan(name), plan_text(draft.plan, space=draft.space)
        there = _text_at(path)
        if there == text:
            fates[name] = Fate.SAME
        elif there is not None and text_digest(there) != written.get(name) and not force:
            fates[name] = Fate.UNREADABLE if complaint(path) else Fate.EDITED
            continue
        else:
            fates[name] = Fate.NEW if there is None else Fate.CHANGED
            write_whole(path, text)
        written[name] = text_digest(text)
    folder.write_state(FolderState(names=FrozenDict(names), written=FrozenDict(written)))
    return fates


def complaint(path: Path) -> str:
    """Return the error in a plan's file, "" if it is valid."""
    try:
        read_plan(path)
    except KernelmarkError as error:
        return error.message
    return ""


def _text_at(path: Path) -> str | None:
    """Return the text of a file, None if it does not exist."""
    try:
        # A file that is not UTF-8 differs from what was written, so it counts as edited.
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from None


def _refusal(
    backend: Backend, problem: Problem, info: DeviceInfo, *, reference: bool = False
) -> Reason:
    rule: Callable[[Problem, DeviceInfo], str | None] = backend.supports
    if not _is_present(info):  # then the libraries that run the backend need not be installed
        rule = getattr(backend, "refuses", rule)
    cause = rule(problem, info)
    if cause is None:
        return NO_REASON
    return prefixed(cause, ("the reference " if reference else "") + f"{backend.name}: ")


def _is_present(info: DeviceInfo) -> bool:
    # A device that is known by its architecture alone has no memory size.
    return info.memory_bytes > 0


def tunable(problem: Problem, info: DeviceInfo) -> list[str]:
    """Return the backends with something to tune for a problem; `fake` only on a fake device."""
    names = []
    for name in backends.registry.names():
        try:
            backend = kernel_files.find(name)
            able = info.kind in backend.device_kinds and not _refusal(backend, problem, info)
            able = able and (name != "fake" or info.kind == "fake")
            if able and _listed_space(backend, problem, info)[0]:
                names.append(name)
        except KernelmarkError:
            continue
    return names


def _listed_space(
    backend: Backend, problem: Problem, info: DeviceInfo
) -> tuple[Space | None, Reason]:
    try:
        space = backend.space(problem, info)
    except KernelmarkError as error:
        # A backend that compiles ahead lists its candidates without the GPU.
        ahead = type(backend).compile is not Backend.compile
        if _is_present(info) or ahead or backends.is_file(backend.name):
            reason = prefixed(error.message, f"{backend.name}: ")
            return None, suffixed(reason, f"; {error.hint}" if error.hint else "")
        return None, Reason(
            f"{backend.name} cannot list its candidates here ({error.message}):"
            " plan it on the machine with the GPU"
        )
    if space is None or is_empty(space):
        reason = Reason(
            f"{backend.name} has nothing to tune for it on {info.arch}",
            "nothing-to-tune",
            backend=backend.name,
            arch=info.arch,
        )
        cause = backend.untunable(problem, info)
        return None, suffixed(reason, f": {cause}" if cause else "")
    return space, NO_REASON


def _work(problem: Problem) -> float:
    return work(Case(problem=problem, backend="")) or 0.0
