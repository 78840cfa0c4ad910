"""The summary of a run in a few sentences: which backends failed, which is fastest, by how much,
and which result is furthest from its roof."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from kernelmark.core.reason import Reason
from kernelmark.core.result import Measurement, Status
from kernelmark.report.names import first_names
from kernelmark.report.tables import Row, share_percent, share_text
from kernelmark.stats.estimators import t_quantile

_LEAST_PROBLEMS = 3  # minimum for an interval of the geometric mean
_LEVEL = 0.95

_Times = Mapping[str, Mapping[str, Measurement]]  # by backend, then by problem


def answer(rows: Sequence[Row]) -> list[Reason]:
    """Return sentences that summarise the rows; [] if there is nothing to compare."""
    asked = [row for row in rows if not row.sentinel]
    ranked = [row for row in asked if row.ranks]
    compared = _compared(asked)
    lines = _failures([row for row in asked if row.result.case.problem.key in compared])
    left_out = _left_out(asked, ranked)
    if len(compared) == len(_by_problem(asked)) == 1 and (lacking := _lacking(asked)):
        lines, left_out = [*lines, lacking], ()
    lines += _versus(_shared(ranked), len(compared), left_out)
    if len(compared) == 1 and lines and lines[0].code in ("answer-failed", "answer-unsupported"):
        if len(ranked) == 1 and ranked[0].result.measurement is not None:
            (row,), median_s = ranked, ranked[0].result.measurement.median_s
            lines.append(Reason("answer-alone", backend=row.backend, median_s=median_s))
        lines = [Reason("answer", findings=tuple(lines))]
    failed = tuple(line for line in lines if line.code == "answer-failed")
    if failed:
        lines = [Reason("answer", findings=failed), *lines[len(failed) :]]
    found = [row for row in ranked if row.share is not None]
    if len({share_percent(row.share) for row in found if row.share}) > 1:
        worst = min(found, key=lambda row: row.share.value if row.share else math.inf)
        lines.append(
            Reason(
                "answer-furthest",
                problem=worst.problem,
                backend=worst.backend,
                share=share_text(worst.share),
            )
        )
    return lines


def _compared(rows: Sequence[Row]) -> set[str]:
    """Return the keys of the problems that rows of several backends have."""
    found = _by_problem(rows).items()
    return {key for key, ones in found if len({row.backend for row in ones}) > 1}


def _by_problem(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.result.case.problem.key, []).append(row)
    return found


def _failures(rows: Sequence[Row]) -> list[Reason]:
    """Return in how many problems each backend failed, by status."""
    problems: dict[str, set[str]] = {}
    failed: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        problems.setdefault(row.backend, set()).add(_key(row))
        if row.result.status.failed:
            failed.setdefault((row.backend, row.result.status.value), set()).add(_key(row))
    several = len(set().union(*problems.values())) > 1
    return [
        Reason(
            "answer-failed",
            backend=backend,
            status=status,
            count=len(keys),
            of=len(problems[backend]) if several else 0,
        )
        for (backend, status), keys in failed.items()
    ]


def _lacking(rows: Sequence[Row]) -> Reason | None:
    """Return the backends that do not support the problem of the rows; None if several backends
    are ranked, or if unreliable times are why they are not."""
    names = first_names(row.backend for row in rows if row.result.status is Status.UNSUPPORTED)
    timed = [row for row in rows if row.timed]
    if not names or _compared(timed) or not all(row.ranks for row in timed):
        return None
    return Reason("answer-unsupported", backends=names, single=len(names) == 1)


def _left_out(asked: Sequence[Row], ranked: Sequence[Row]) -> tuple[Reason, ...]:
    """Count the problems requested of several backends with fewer than two backends ranked, by
    cause, except those in which a backend failed, which are counted as failures."""
    failed = {row.result.case.problem.key for row in asked if row.result.status.failed}
    keys = _compared(asked) - _compared(ranked) - failed
    only: Counter[str] = Counter()  # by the only backend that supports the problem, "" for none
    unranked: Counter[bool] = Counter()  # by whether a time is unreliable
    for key, rows in _by_problem(asked).items():
        if key not in keys:
            continue
        if all(row.ranks or row.result.status is Status.UNSUPPORTED for row in rows):
            only[next((row.backend for row in rows if row.ranks), "")] += 1
        else:
            unranked[any(row.timed and not row.ranks for row in rows)] += 1
    return (
        *(Reason("answer-only", count=only[name], backend=name) for name in only if name),
        *([Reason("answer-no-support", count=only[""])] if only[""] else []),
        *(Reason("answer-unranked", count=unranked[why], unreliable=why) for why in unranked),
    )


def _key(row: Row) -> str:
    return f"{row.result.case.problem.key} | {row.result.device}"


def _shared(rows: Sequence[Row]) -> dict[str, dict[str, Measurement]]:
    """Return measurements by backend and problem, for problems that several backends measured."""
    counts = Counter(row.result.case.problem.key for row in rows)
    found: dict[str, dict[str, Measurement]] = {}
    for row in rows:
        if counts[row.result.case.problem.key] > 1 and row.result.measurement is not None:
            found.setdefault(row.backend, {})[_key(row)] = row.result.measurement
    return found


def _versus(times: _Times, asked: int, left_out: tuple[Reason, ...]) -> list[Reason]:
    """Compare the backends; `asked` is the number of problems requested of several backends."""
    problems = dict.fromkeys(key for found in times.values() for key in found)
    if len(times) < 2:
        return [Reason("answer", findings=left_out)] if left_out else []
    clear = [_fastest(times, key) for key in problems]
    wins = Counter(name for name in clear if name)
    first = max(times, key=lambda name: (wins[name], len(times[name]), -_total(times[name])))
    others = [name for name in times if name != first and times[name].keys() & times[first].keys()]
    if not others:
        return []
    ratios = {name: _ratios(times, first, name) for name in others}
    others.sort(key=lambda name: (-len(ratios[name]), statistics.geometric_mean(ratios[name])))
    count = len(problems)
    if count == 1:
        (key,) = problems
        line = _one(first, times[first][key], {name: times[name][key] for name in others})
        where = 1 if asked > 1 else 0
    else:
        line, where = _several(first, others[0], times, clear), 0
    if not where and not left_out:
        return [line]
    return [Reason("answer-of", cause=line, problems=where, left_out=left_out)]


def _fastest(times: _Times, key: str) -> str:
    """Return the fastest backend if its interval lies below the runner-up's, else ""."""
    found = sorted((_s(times[name][key]), name) for name in times if key in times[name])
    if len(found) < 2:
        return found[0][1]
    (_, first), (_, second) = found[:2]
    return first if is_clear(times[first][key], times[second][key]) else ""


def is_clear(fast: Measurement, slow: Measurement) -> bool:
    """Return whether the intervals are disjoint; else the table marks the ratio with ≈."""
    return fast.high_s < slow.low_s


def _one(first: str, fast: Measurement, others: Mapping[str, Measurement]) -> Reason:
    """Compare the fastest backend with the others, which are in order of their times."""
    second, slow = next(iter(others.items()))
    ratio = slow.median_s / fast.median_s
    width = ratio * math.hypot(_width(fast), _width(slow))
    if not width < ratio:
        return Reason("answer-noisy", first=first, second=second, ratio=ratio)
    tied = [name for name, other in others.items() if not is_clear(fast, other)]
    if not tied:
        return Reason("answer-ratio", first=first, second=second, ratio=ratio, width=width)
    most = max(others[name].median_s for name in tied) / fast.median_s
    return Reason("answer-tie", first=first, others=tuple(tied), ratio=most, several=len(tied) > 1)


def _several(first: str, second: str, times: _Times, clear: Sequence[str]) -> Reason:
    """Compare over several problems, given the fastest backend of each ("" within the noise)."""
    wins, problems = Counter(clear), len(clear)
    ratios = _ratios(times, first, second)
    one = len(ratios) == 1
    mean = _shared_one(first, second, times) if one else _geomean(first, second, ratios, problems)
    if wins[""] == problems:
        return Reason("answer-no-wins", problems=problems, geomean=mean)
    return Reason(
        "answer-wins",
        first=first,
        wins=wins[first],
        second=second,
        second_wins=wins[second],
        problems=problems,
        ties=wins[""],
        geomean=mean,
    )


def _shared_one(first: str, second: str, times: _Times) -> Reason:
    """Compare two backends in the only problem that both measured."""
    (key,) = times[first].keys() & times[second].keys()
    fast, slow = sorted((first, second), key=lambda name: _s(times[name][key]))
    line = _one(fast, times[fast][key], {slow: times[slow][key]})
    return Reason("shared-one", cause=line, but=fast != first and line.code == "answer-ratio")


def _geomean(first: str, second: str, ratios: Sequence[float], problems: int) -> Reason:
    mean = statistics.geometric_mean(ratios)
    fields = {"first": first, "second": second, "mean": mean}
    # 0: all of them
    fields["shared"] = 0 if len(ratios) == problems else len(ratios)
    if len(ratios) < _LEAST_PROBLEMS:
        return Reason("geomean", but=mean < 1, **fields)
    logs = [math.log(ratio) for ratio in ratios]
    quantile = t_quantile(0.5 + _LEVEL / 2, len(logs) - 1)
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(-half) * mean, math.exp(half) * mean
    fields |= {"low": low, "high": high, "level": _LEVEL}
    if low <= 1 <= high:
        return Reason("geomean-open", **fields)
    return Reason("geomean", but=mean < 1, **fields)


def _ratios(times: _Times, first: str, other: str) -> list[float]:
    both = times[first].keys() & times[other].keys()
    return [_s(times[other][key]) / _s(times[first][key]) for key in both]


def _width(measured: Measurement) -> float:
    return (measured.high_s - measured.low_s) / 2 / measured.median_s


def _total(found: Mapping[str, Measurement]) -> float:
    return sum(map(_s, found.values()))


def _s(measured: Measurement) -> float:
    return measured.median_s
