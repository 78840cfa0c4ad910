"""Rules that decide what counts as slower, one per file; `golden-tot` is golden_tot.py. Users
define their own in TOML.

rule = "robust"          the rule to start from: robust, golden-tot or ratio
delta = 0.02             settings of that rule

[[where]]                rows that are judged separately; the first table that matches a row counts
op = "attention"
backend = "iree"
problem = "m=1 "         a regular expression found in the problem's key
rule = "ratio"           default: the rule above with its settings
fail = 1.3
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelmark.compare.match import Pair
from kernelmark.compare.rules.base import Judgement, Preset, Rule
from kernelmark.core.errors import UsageError, about, located
from kernelmark.core.files import load_toml, user_path
from kernelmark.core.registry import Registry

registry: Registry[Preset] = Registry("kernelmark.compare.rules", "rule")


def names() -> list[str]:
    """Return the names of the presets as users type them."""
    return [name.replace("_", "-") for name in registry.names()]


def preset(name: str) -> Preset:
    """Return the rule of that name. Raise UsageError with the known names if there is none."""
    return registry.get(name.replace("-", "_"))


_SELECTORS = ("op", "backend", "problem")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A selection of rows and the rule that judges them; an empty selector matches every row."""

    rule: Preset
    op: str = ""
    backend: str = ""
    problem: str = ""

    @property
    def chosen(self) -> dict[str, str]:
        """The selectors that are set."""
        return {name: word for name in _SELECTORS if (word := getattr(self, name))}

    @property
    def selectors_text(self) -> str:
        """The selectors as written in TOML."""
        return ", ".join(f'{name} = "{word}"' for name, word in self.chosen.items())

    def fits(self, pair: Pair) -> bool:
        case = pair.shown.case
        return (
            self.op in ("", case.problem.op)
            and self.backend in ("", case.backend)
            and re.search(self.problem, case.problem.key) is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRule(Rule):
    """The rule of a TOML file. Each table's rows are a separate suite, with their own false
    discovery rate."""

    stem: str
    rest: Preset
    special: tuple[Where, ...] = ()

    @property
    def name(self) -> str:
        return self.stem

    @property
    def settings(self) -> dict[str, Any]:
        """The rules and selectors of the file, with defaults filled in."""
        where = [{**item.chosen, **_rule_document(item.rule)} for item in self.special]
        return {**_rule_document(self.rest), **({"where": where} if where else {})}

    def notes(self, pairs: Sequence[Pair]) -> list[str]:
        taken = {self._kind(pair) for pair in pairs}
        return [
            f"{self.stem}: where {number} ({where.selectors_text}) {_why_unused(where, pairs)}"
            for number, where in enumerate(self.special, 1)
            if number - 1 not in taken
        ]

    def holds(self, pair: Pair) -> bool:
        return self._rule(self._kind(pair)).holds(pair)

    def weigh(self, pairs: Sequence[Pair]) -> list[Judgement]:
        chosen = [self._kind(pair) for pair in pairs]
        judgements: dict[int, Judgement] = {}
        for kind in dict.fromkeys(chosen):
            rule = self._rule(kind)
            indices = [i for i, preset_of_pair in enumerate(chosen) if preset_of_pair == kind]
            judgements |= dict(zip(indices, rule.weigh([pairs[i] for i in indices]), strict=True))
        return [judgements[i] for i in range(len(pairs))]

    def _kind(self, pair: Pair) -> int:
        return next((i for i, where in enumerate(self.special) if where.fits(pair)), -1)

    def _rule(self, kind: int) -> Preset:
        return self.rest if kind < 0 else self.special[kind].rule


@about("rule-file")
def load_rule(name_or_path: str) -> Rule:
    """Return the preset of that name, or the rule of that TOML file."""
    if not name_or_path.endswith(".toml"):
        try:
            return preset(name_or_path)
        except UsageError as error:
            close = difflib.get_close_matches(name_or_path, names(), n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(
                error.message, hint=f"{meant}known: {', '.join(names())}, or a .toml file"
            ) from None
    path = user_path(name_or_path)
    missing = f"a rule is a TOML file, or one of {', '.join(names())}"
    document = load_toml(path, missing=missing)
    special = document.pop("where", [])
    if not isinstance(special, list) or not all(isinstance(t, dict) for t in special):
        raise UsageError(f"{path}: where is not a list of tables", hint="begin each with [[where]]")
    with located(str(path)):
        rest = _rule(document, None)
    where_tables = []
    for number, table in enumerate(special, 1):
        with located(f"{path}: where {number}"):
            where_tables.append(_where(table, rest))
    return FileRule(stem=path.stem, rest=rest, special=tuple(where_tables))


def _where(table: Mapping[str, Any], rest: Preset) -> Where:
    selectors = {name: table.get(name, "") for name in _SELECTORS}
    for name, word in selectors.items():
        if not isinstance(word, str):
            raise UsageError(f"{name}={word!r} is not text")
    settings = {name: value for name, value in table.items() if name not in _SELECTORS}
    rule = _rule(settings, rest)
    if not any(selectors.values()):
        raise UsageError("it fits every row", hint=f"give one of {', '.join(_SELECTORS)}")
    try:
        re.compile(selectors["problem"])
    except re.error as error:
        raise UsageError(f"{selectors['problem']!r} is not a regular expression: {error}") from None
    return Where(rule=rule, **selectors)


def _rule_document(rule: Preset) -> dict[str, Any]:
    return {"rule": rule.name, **rule.settings}


def _why_unused(where: Where, pairs: Sequence[Pair]) -> str:
    """Return why a table judges no row."""
    if any(where.fits(pair) for pair in pairs):
        return "takes no row: tables above it take those that fit"
    return "fits no row of this comparison"


def _rule(table: Mapping[str, Any], default: Preset | None) -> Preset:
    settings = dict(table)
    name = settings.pop("rule", None)
    if name is None:
        if default is None:
            raise UsageError("rule is missing", hint=f'rule = "{names()[-1]}"')
        start = default
    elif isinstance(name, str) and name in names():
        start = preset(name)
    else:
        raise UsageError(f"unknown rule {name!r}", hint=f"known: {', '.join(names())}")
    unknown = [name for name in settings if name not in start.settings]
    if unknown and default is not None:
        raise UsageError(
            f"unknown setting {unknown[0]!r} of {start.name}",
            hint=f"it has: {', '.join(start.settings)}; rows are chosen by: "
            f"{', '.join(_SELECTORS)}",
        )
    return start.changed(settings)
