"""Bisect: the first commit, wheel or config that makes a kernel slower or break.

First the two ends are compared, over all pairs. The clearest change is then located by noisy binary
search (`stats.bisection`), each candidate in paired rounds against the good end. Finally the
candidate found is compared with the one before it, over all pairs that changed between the ends.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kernelmark.api.checkouts import BuildFailed
from kernelmark.core.errors import NothingToDo
from kernelmark.core.files import json_text, write_whole
from kernelmark.core.reason import Reason, shorten
from kernelmark.core.result import Case
from kernelmark.core.units import counted
from kernelmark.core.verdict import VerdictStatus
from kernelmark.host.cache import cache_root, digest
from kernelmark.host.permissions import private_folder
from kernelmark.report.changes import Change, of_pairs
from kernelmark.report.changes import comment as changes_comment
from kernelmark.runners.ab import Budget, Experiment, Measured, Opener, Pair, Row, Rule
from kernelmark.stats.changepoint import CONFIDENCE, MOST_ROUNDS, Search, SoughtStep
from kernelmark.stats.paired import Looks

# Changes that can be searched for, in order of preference.
_CHANGED = (VerdictStatus.BROKEN, VerdictStatus.SLOWER, VerdictStatus.FASTER)
_VERSION = 1

Tell = Callable[[str], None]


class Source(Protocol):
    """The candidates in order, from the good end to the bad end."""

    @property
    def names(self) -> Sequence[str]: ...
    def opener(self, base: int, head: int) -> Opener:
        """Return the opener that measures two candidates; raise BuildFailed if one does not
        build."""
        ...

    def case(self, case: Case, candidate: int) -> Case:
        """Return the case with the config of a candidate."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The cases to compare over the candidates, and the confidence to reach. `key` identifies an
    unfinished search: the same key resumes it."""

    cases: tuple[Case, ...]
    rule: Rule
    confidence: float = CONFIDENCE
    budget_s: float = math.inf
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a bisection: the step is at a candidate from `first` to `last` (equal if it was
    located), with `probability`. `rows` compare it with the candidate before. `state` is located,
    range (some candidates between cannot be measured), unconfirmed (the direct comparison does not
    show the step) or undecided (time or rounds ran out)."""

    state: str
    first: int
    last: int
    probability: float
    names: tuple[str, ...]
    change: Change  # between the two ends, in the pair that was searched
    rows: tuple[Row, ...]
    tests: int
    rounds: int

    @property
    def culprits(self) -> tuple[str, ...]:
        return self.names[self.first : self.last + 1]

    @property
    def answer(self) -> Reason:
        """The result in one sentence."""
        culprits = self.culprits
        named = culprits[0]
        if len(culprits) > 1:
            named += f" … {culprits[-1]} ({len(culprits)} candidates not distinguished)"
        shown = of_pairs(self.rows)
        own = next((c for c in shown if (c.problem, c.backend) == self._followed), None)
        return Reason(
            ("not decided; most probable: " if self.state == "undecided" else "")
            + f"{named}: {self.change.problem} by {self.change.backend}, "
            + f"{(own or self.change).reason}; {100 * self.probability:.0f} % probable"
            + (
                ", but the direct comparison with the candidate before does not show it"
                if self.state == "unconfirmed"
                else ""
            )
        )

    @property
    def _followed(self) -> tuple[str, str]:
        return self.change.problem, self.change.backend


def bisect(source: Source, question: Question, tell: Tell | None = None) -> Finding:
    """Search for the step. After Ctrl-C, the next call continues from what was measured."""
    if len(source.names) < 2:
        raise NothingToDo(
            "there is nothing between the good and the bad end", hint="name two candidates at least"
        )
    run = _Bisection(source, question, tell or (lambda text: None))
    return run.finding()


def forget(question: Question, names: Sequence[str]) -> None:
    """Delete the state of an unfinished search."""
    _StateFile(question, names).forget()


def document(finding: Finding) -> dict[str, Any]:
    """Return the result as JSON values."""
    return {
        "state": finding.state,
        "culprits": list(finding.culprits),
        "probability": finding.probability,
        "answer": finding.answer,
        "tests": finding.tests,
        "rounds": finding.rounds,
        "candidates": list(finding.names),
        "rows": [
            {
                "problem": change.problem,
                "backend": change.backend,
                "verdict": change.status.value,
                "before_s": change.base,
                "culprit_s": change.head,
                **{name: _finite(getattr(change, name)) for name in ("ratio", "low", "high")},
                "reason": change.reason,
            }
            for change in of_pairs(finding.rows)
        ],
    }


def comment(finding: Finding, command: str) -> str:
    """Return the result as Markdown."""
    return changes_comment(
        of_pairs(finding.rows),
        heading=finding.answer,
        facts=[f"{finding.tests} of {len(finding.names)} candidates measured"],
        command=command,
    )


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


class _Bisection:
    def __init__(self, source: Source, question: Question, tell: Tell) -> None:
        self._source, self._question, self._tell = source, question, tell
        self._last = len(source.names) - 1
        self._budget = Budget(seconds=question.budget_s)
        self._file = _StateFile(question, source.names)
        self._followed = 0  # the case whose change is searched for
        self._changed: tuple[int, ...] = ()

    def finding(self) -> Finding:
        step, change = self._ends()
        search = Search(self._last, step, self._question.confidence)
        if stored := self._file.search:
            search.restore(**stored)
            count = len(search.rounds) + len(search.failed)
            self._tell(f"going on with a search of which {count} candidates are measured")
        rows: list[Row] = []
        state = "refuted"
        try:
            while state == "refuted":
                while (candidate := search.next) is not None and self._budget.left_s > 0:
                    self._test(search, candidate)
                    self._file.save(search)
                rows, state = self._confirmed(search)
        finally:
            self._file.save(search)
        first, last, probability = search.best
        if state != "undecided":
            self._file.forget()
        return Finding(
            state=state,
            first=first,
            last=last,
            probability=probability,
            names=tuple(self._source.names),
            change=change,
            rows=tuple(rows),
            tests=len(search.rounds) + len(search.failed),
            rounds=sum(map(len, search.rounds.values())),
        )

    # The ends

    def _ends(self) -> tuple[SoughtStep, Change]:
        ends = self._file.ends
        if ends is None:
            ends = self._compared_ends()
            self._file.ends = ends
            self._file.save(None)
            change, more_pairs = ends["change"], len(ends["changed"]) - 1
            more = f"; {counted(more_pairs, 'more pair')} changed" if more_pairs else ""
            pair = f"{change['problem']} by {change['backend']}: {change['reason']}"
            self._tell(f"following {pair}{more}")
        self._followed = ends["followed"]
        self._changed = tuple(ends["changed"])
        fields = {**ends["change"], "status": VerdictStatus(ends["change"]["status"])}
        fields["reason"] = Reason.of(fields["reason"])
        return SoughtStep(**ends["step"]), Change(**fields)

    def _compared_ends(self) -> dict[str, Any]:
        names = self._source.names
        self._tell(f"comparing the ends: {names[0]} and {names[-1]}")
        rows = self._compared(0, self._last, range(len(self._question.cases)))
        numbers = {_key(case): i for i, case in enumerate(self._question.cases)}
        changed = [(numbers[_key(r.pair.base)], r) for r in rows if r.status in _CHANGED]
        if not changed:
            raise NothingToDo(
                f"{names[-1]} is not slower than {names[0]}: {_worst(rows)}",
                hint="there is no step to search for; more --rounds find smaller ones",
            )
        # Broken pairs come first, then slower ones; the clearest of them is searched.
        followed, row = min(
            changed, key=lambda pair: (_CHANGED.index(pair[1].status), -_clarity(pair[1]))
        )
        (change,) = of_pairs([row])
        broken = row.status is VerdictStatus.BROKEN
        logs = _logs(row)
        step = SoughtStep(broken=True)
        if not broken and row.paired is not None:
            step = SoughtStep.of_rounds(logs, math.log(row.paired.ratio))
        return {
            "followed": followed,
            "changed": [i for i, _ in changed],
            "step": {"size": step.size, "spread": step.spread, "broken": step.broken},
            "change": {
                "problem": change.problem,
                "backend": change.backend,
                "ratio": change.ratio,
                "status": change.status.value,
                "reason": str(change.reason),
            },
        }

    # Candidates

    def _test(self, search: Search, candidate: int) -> None:
        """Measure a candidate against the good end until its side of the step is clear."""
        name = self._source.names[candidate]
        before = list(search.rounds.get(candidate, ()))
        logs: list[float] = []
        failed = False
        try:
            experiment = self._experiment(0, candidate, [self._followed], MOST_ROUNDS)
        except BuildFailed as error:
            self._tell(f"left out {name}: {shorten(error.message)}")
            search.skip(candidate)
            return
        try:
            with contextlib.closing(experiment.events()) as events:
                for event in events:
                    if isinstance(event, Row):
                        # A failure of both sides, or perhaps of the machine, is no answer.
                        failed = event.status is VerdictStatus.BROKEN
                        break
                    if not isinstance(event, Measured) or event.ratio is None:
                        continue  # its failed row follows
                    logs.append(math.log(event.ratio))
                    # Rounds come in pairs, one in each order of the sides.
                    if search.step.broken or (
                        len(logs) % 2 == 0 and search.step.is_settled([*before, *logs])
                    ):
                        break
        finally:
            whole = logs[: len(logs) // 2 * 2]
            if failed or whole or (search.step.broken and logs):
                search.add(candidate, whole, failed=failed)
        if not (failed or logs):
            if self._budget.left_s > 0:
                search.skip(candidate)  # the good end fails now, or the device is gone
            return
        after = failed if search.step.broken else search.step.odds([*before, *logs]) > 0
        left = counted(search.candidates, "candidate")
        self._tell(f"{name} is {'after' if after else 'before'} the step; {left} left")

    def _confirmed(self, search: Search) -> tuple[list[Row], str]:
        """Compare the candidate that was found with the one before it."""
        first, last, probability = search.best
        if probability < self._question.confidence:
            return [], "undecided"
        before = first - 1
        while before in search.untestable:
            before -= 1
        names = self._source.names
        self._tell(f"comparing {names[last]} with {names[before]}, the candidate before")
        rows = self._compared(before, last, self._changed)
        mine = self._question.cases[self._followed]
        row = next(
            (
                candidate_row
                for candidate_row in rows
                if _key(candidate_row.pair.base) == _key(mine)
            ),
            None,
        )
        expected = VerdictStatus.BROKEN if search.step.broken else _direction(search.step)
        if row is not None and row.status is expected:
            return rows, "located" if first == last else "range"
        if row is not None and row.status is VerdictStatus.SAME and first not in search.refuted:
            self._tell("the direct comparison shows no step there: measuring its neighbours again")
            search.refute(first)
            return rows, "refuted"
        return rows, "unconfirmed"

    def _compared(self, base: int, head: int, which: Sequence[int] | range) -> list[Row]:
        experiment = self._experiment(base, head, which)
        rows = [event for event in experiment.events() if isinstance(event, Row)]
        return [*rows, *experiment.open_rows()]

    def _experiment(
        self, base: int, head: int, which: Sequence[int] | range, rounds: int | None = None
    ) -> Experiment:
        source, rule = self._source, self._question.rule
        cases = [self._question.cases[i] for i in which]
        pairs = [Pair(base=source.case(c, base), head=source.case(c, head)) for c in cases]
        if rounds is not None:
            looks = Looks(rounds=(rounds,), alpha=rule.looks.alpha)
            rule = Rule(looks=looks, delta=rule.delta, seed=rule.seed + head)
        budget = Budget(seconds=self._budget.left_s, clock=self._budget.clock)
        return Experiment(pairs, rule, source.opener(base, head), budget=budget)


class _StateFile:
    """An unfinished search on disk."""

    def __init__(self, question: Question, names: Sequence[str]) -> None:
        self._key = digest(question.key, *names, *(case.id for case in question.cases))[:16]
        self._path = cache_root() / "bisect" / f"{self._key}.json"
        self.ends: dict[str, Any] | None = None
        self.search: dict[str, Any] | None = None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            document = json.loads(self._path.read_bytes())
            if document["version"] == _VERSION:
                self.ends, self.search = document["ends"], document["search"]

    def save(self, search: Search | None) -> None:
        """Write the state. If the folder is not writable, the search cannot be resumed."""
        search_document = None if search is None else search.document()
        document = {"version": _VERSION, "ends": self.ends, "search": search_document}
        with contextlib.suppress(OSError):
            private_folder(self._path.parent)
            write_whole(self._path, json_text(document).encode(), sync=True)

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def _key(case: Case) -> tuple[str, str]:
    """Return the key of a case, without the config, which may be what is searched over."""
    return case.problem.key, case.backend


def _direction(step: SoughtStep) -> VerdictStatus:
    return VerdictStatus.SLOWER if step.size > 0 else VerdictStatus.FASTER


def _logs(row: Row) -> list[float]:
    return [math.log(head / base) for base, head in zip(row.base_s, row.head_s, strict=False)]


def _clarity(row: Row) -> float:
    """Return the size of a change in units of its uncertainty."""
    paired = row.paired
    if paired is None or not math.isfinite(paired.high) or paired.low <= 0:
        return 0.0
    half = (math.log(paired.high) - math.log(paired.low)) / 2
    return abs(math.log(paired.ratio)) / max(half, 1e-9)


def _worst(rows: Sequence[Row]) -> str:
    """Return a summary of the pair that is most likely slower."""
    if not rows:
        return "nothing could be measured"
    timed = [row for row in rows if row.paired is not None]
    shown = max(timed or rows, key=lambda row: row.paired.ratio if row.paired else 0.0)
    (change,) = of_pairs([shown])
    return f"{change.problem} by {change.backend}: {shorten(change.reason)}"
