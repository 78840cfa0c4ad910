"""Reading and writing a TunePlan as a commented TOML file."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
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
from kernelmark.tune.plans.plan import ALPHA, Acceptance, Budget, TunePlan

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


def value_text(value: ConfigValue) -> str:
    """Return a value as TOML that parses back to the same value and type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON does not escape DEL; TOML requires it.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


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
    document = _document(path)
    file = str(path)
    _check_keys(document, _TOP, file, "")
    reference = _table(document, "reference", file)
    _check_keys(reference, _REFERENCE, file, "reference.")
    name = _text(document, "name", file, path.stem)
    if name != path.stem:
        raise UsageError(
            Reason("plan-name-differs", file=file, given=name),
            hint=f'write name = "{path.stem}", or rename the file',
        )
    backend = _backend(document, "backend", file, "")
    strategy = _text(document, "strategy", file, "kmark")
    if strategy not in strategies.registry:
        known = ", ".join(strategies.registry.names())
        raise UsageError(
            Reason("value-unknown", file=file, key="strategy", given=repr(strategy)),
            hint=f"known: {known}",
        )
    return TunePlan(
        name=name,
        problem=_problem(document, file, backend),
        backend=backend,
        reference_backend=_backend(reference, "backend", file, "reference.", backend),
        reference_config=_config(_table(reference, "config", file, "reference."), file),
        arch=_text(document, "arch", file, ""),
        strategy=strategy,
        seed=_whole(document, "seed", file, 1, least=0),
        budget=_numbers(Budget, _table(document, "budget", file), file, "budget"),
        acceptance=_numbers(Acceptance, _table(document, "acceptance", file), file, "acceptance"),
        space=_values(_table(document, "space", file), file),
        count=_whole(document, "count", file, 1, least=1),
        share=_real(document, "share", file, 0.0, most=1.0),
        reference_s=_real(reference, "time_s", file, 0.0, prefix="reference."),
        blas=_words(_table(document, "blas", file), file),
    )


def target(path: Path) -> tuple[str, str]:
    """Return the backend and the architecture of a plan's file, without checking other keys."""
    document, file = _document(path), str(path)
    return _backend(document, "backend", file, ""), _text(document, "arch", file, "")


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
    return Reason("final-too-few-rounds", rounds=rounds, least=LEAST_ROUNDS, level=1 - ALPHA)


def _document(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_whole(path).decode())
    except FileNotFoundError:
        raise UsageError(Reason("file-missing", file=str(path)), hint=_rewrite_hint(path)) from None
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise UsageError(
            Reason("file-not-utf8", file=str(path)), hint=f"delete it: {_rewrite_hint(path)}"
        ) from None
    except ValueError as error:
        raise UsageError(
            Reason("file-not-toml", file=str(path), error=str(error)),
            hint=f"fix that line, or delete the file: {_rewrite_hint(path)}",
        ) from None


def _rewrite_hint(path: Path) -> str:
    return f"'kmark tune plan {path.parent.parent} -b BACKEND' writes it anew"


def _check_keys(table: Mapping[str, Any], names: tuple[str, ...], file: str, prefix: str) -> None:
    for key in table:
        if key not in names:
            raise UsageError(
                Reason("key-unknown", file=file, key=f"{prefix}{key}"),
                hint=f"known: {', '.join(names)}",
            )


def _table(table: Mapping[str, Any], key: str, file: str, prefix: str = "") -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise UsageError(
            Reason("value-not-table", file=file, key=f"{prefix}{key}"),
            hint=f"begin it with [{prefix}{key}]",
        )
    return value


def _text(
    table: Mapping[str, Any], key: str, file: str, default: str | None, prefix: str = ""
) -> str:
    value = table.get(key, default)
    if value is None:
        raise UsageError(
            Reason("key-missing", file=file, key=f"{prefix}{key}"),
            hint=f"write it there, or delete the file: {_rewrite_hint(Path(file))}",
        )
    if not isinstance(value, str):
        raise UsageError(
            Reason("value-not-text", file=file, key=f"{prefix}{key}", given=repr(value)),
            hint=f'write {key} = "{value}"',
        )
    return value


def _backend(
    table: Mapping[str, Any], key: str, file: str, prefix: str, default: str | None = None
) -> str:
    name = _text(table, key, file, default, prefix)
    if name not in backends.registry and not backends.is_file(name):
        known = ", ".join(backends.registry.names())
        raise UsageError(
            Reason("value-unknown", file=file, key=f"{prefix}{key}", given=repr(name)),
            hint=f"known: {known}, or a .py, .cu or .hip file of your own",
        )
    return name


def _problem(document: Mapping[str, Any], file: str, backend: str) -> Problem:
    key = _text(document, "problem", file, None)
    if key.split(" ", 1)[0] not in ops.registry and backends.is_file(backend):
        backends.find(backend)  # its file may define the op
    try:
        return ops.parse(key)
    except KernelmarkError as error:
        raise UsageError(
            Reason("value-refused", file=file, key="problem", cause=error.message),
            hint=error.hint or "kmark list ops says what a problem may be",
        ) from None


def _whole(
    table: Mapping[str, Any], key: str, file: str, default: int, *, least: int, prefix: str = ""
) -> int:
    value = table.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(
            Reason(
                "value-not-whole",
                file=file,
                key=f"{prefix}{key}",
                given=repr(value),
                least=least,
            ),
            hint=f"usual is {key} = {default}",
        )
    return value


def _real(
    table: Mapping[str, Any],
    key: str,
    file: str,
    default: float,
    *,
    most: float = math.inf,
    prefix: str = "",
) -> float:
    value = table.get(key, default)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # An integer of 400 digits overflows a float. The bounds also reject inf and nan.
    if not number or not 0 <= value <= min(most, sys.float_info.max):
        where = {"file": file, "key": f"{prefix}{key}", "given": repr(value)[:40]}
        raise UsageError(
            Reason("value-not-number", **where, least=0)
            if math.isinf(most)
            else Reason("value-out-of-range", **where, least=0, most=most),
            hint=f"usual is {key} = {default!r}",
        )
    return float(value)


def _numbers(kind: type[Limits], table: Mapping[str, Any], file: str, section: str) -> Limits:
    """Parse a table into a Budget or Acceptance; each number has the type of its default."""
    defaults = kind()
    prefix = f"{section}."
    _check_keys(table, tuple(field.name for field in fields(kind)), file, prefix)
    numbers: dict[str, Any] = {}
    for key in table:
        default = getattr(defaults, key)
        if isinstance(default, int):
            least = _LEAST.get(key, 1)
            numbers[key] = _whole(table, key, file, default, least=least, prefix=prefix)
        else:
            numbers[key] = _real(table, key, file, default, prefix=prefix)
    if reason := too_few(numbers.get("rounds", LEAST_ROUNDS)):
        raise UsageError(
            Reason("value-refused", file=file, key=f"{prefix}rounds", cause=reason),
            hint=f"write rounds = {LEAST_ROUNDS}, or more",
        )
    return kind(**numbers)


def _config(table: Mapping[str, Any], file: str) -> Config:
    for key, value in table.items():
        _check_simple(value, file, f"reference.config.{key}")
    return FrozenDict(table)


def _values(table: Mapping[str, Any], file: str) -> Mapping[str, tuple[ConfigValue, ...]]:
    for key, values in table.items():
        if not isinstance(values, list) or not values:
            raise UsageError(
                Reason("value-not-list", file=file, key=f"space.{key}", given=repr(values)),
                hint=f"write {key} = [16, 32]; without the line all values may be tried",
            )
        for value in values:
            _check_simple(value, file, f"space.{key}")
    return FrozenDict({key: tuple(values) for key, values in table.items()})


def _check_simple(value: object, file: str, key: str) -> None:
    if not isinstance(value, str | int | float) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise UsageError(
            Reason("value-not-simple", file=file, key=key, given=repr(value)),
            hint='write 16, "wide" or true',
        )


def _words(table: Mapping[str, Any], file: str) -> Mapping[str, str]:
    for key, value in table.items():
        if not isinstance(value, str):
            raise UsageError(
                Reason("value-not-text", file=file, key=f"blas.{key}", given=repr(value)),
                hint=f'write {key} = "{value}"',
            )
    return FrozenDict(table)
