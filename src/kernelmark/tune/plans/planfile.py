"""Reading and writing a TunePlan as a commented TOML file."""

from __future__ import annotations

import contextlib
import math
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from kernelmark import backends, ops
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.files import parse_toml, read_whole
from kernelmark.core.immutable import FrozenDict
from kernelmark.core.problem import Problem
from kernelmark.core.reason import Reason
from kernelmark.core.result import Config, ConfigValue
from kernelmark.core.units import time_text
from kernelmark.stats.paired import least_rounds
from kernelmark.tune import strategies
from kernelmark.tune.folder import TuningFolder, unreadable
from kernelmark.tune.plans.plan import ALPHA, Acceptance, Budget, TunePlan, value_text

_NAMES_A_FILE = re.compile(rb'\.(py|cu|hip)"')

_TOP = (
    *("name", "problem", "count", "share", "backend", "arch", "strategy", "seed"),
    *("reference", "budget", "acceptance", "space", "blas"),
)
_REFERENCE = ("backend", "time_s", "config")
_LEAST = {"seeds": 0, "neighbours": 0}
LEAST_ROUNDS = least_rounds(ALPHA)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_WIDTH = 100
Limits = TypeVar("Limits", Budget, Acceptance)


def text(plan: TunePlan, *, default: Config | None = None) -> str:
    """Return the TOML text of a plan. `default` is the config that the search starts from, which
    is written as a comment."""
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
        *_limits(plan),
        *_space(plan, default),
    ]
    if plan.blas:
        parts += ["\n[blas]  # the call as its log gave it, for files of libraries (kmark export)"]
        parts += table_text(plan.blas)
    return "\n".join(parts) + "\n"


def _limits(plan: TunePlan) -> list[str]:
    timed = time_text(plan.reference_s) if plan.reference_s else "not timed"
    asked = plan.acceptance
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
        f"finalists = {asked.finalists}",
        "# The fastest is re-measured against the reference in this many rounds: only these times",
        f"# count. At least {LEAST_ROUNDS} (fewer cannot be significant); odd numbers round up.",
        f"rounds = {asked.rounds}",
        "# A winner is kept if it is faster by this factor and by these microseconds per call,",
        f"min_ratio = {asked.min_ratio!r}",
        f"min_gain_us = {asked.min_gain_us!r}",
        "# and correct on this many new inputs and sizes next to the problem's.",
        f"seeds = {asked.seeds}",
        f"neighbours = {asked.neighbours}",
    ]


def _space(plan: TunePlan, default: Config | None) -> list[str]:
    combinations = math.prod(len(values) for values in plan.space.values())
    lines = ["\n[space]", "# Values that may be tried; delete some to narrow the search."]
    if plan.space:
        lines.append(f"# {combinations} combinations, of which the backend may forbid some.")
    if default:
        chosen = ", ".join(f"{name} = {value_text(value)}" for name, value in default.items())
        lines += _comment(f"The search starts from: {chosen}")
    return lines + [list_text(name, values) for name, values in plan.space.items()]


def _comment(words: str) -> list[str]:
    return textwrap.wrap(
        words,
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


def read(path: Path) -> TunePlan:
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
        known = ", ".join(strategies.registry.names())
        raise plan.error("strategy", f"{strategy!r} is not known", f"known: {known}")
    return TunePlan(
        name=name,
        problem=_problem(plan, backend),
        backend=backend,
        reference_backend=reference.backend(backend),
        reference_config=FrozenDict(reference.table("config").simple_values()),
        arch=plan.text("arch", ""),
        strategy=strategy,
        seed=plan.whole("seed", 1, least=0),
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
            if _NAMES_A_FILE.search(path.read_bytes()) and backends.is_file(target(path)[0]):
                backends.find(target(path)[0])


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
    if key.split(" ", 1)[0] not in ops.registry and backends.is_file(backend):
        backends.find(backend)  # its file may define the op
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
        if name not in backends.registry and not backends.is_file(name):
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
