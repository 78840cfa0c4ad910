"""Retention: old runs are removed, old samples thinned, and what is referred to stays."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kernelmark.stores.store import Store

_DAY_S = 86400.0
_WEEK_S = 7 * _DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The ids of the runs that were removed, and of those whose samples were thinned."""

    removed: tuple[str, ...]
    thinned: tuple[str, ...]


def prune(
    store: Store,
    *,
    now: float,
    runs_days: float = 0.0,
    samples_days: float = 0.0,
    labels: Collection[str] | None = None,
    spares: Collection[str] = (),
    dry_run: bool = False,
) -> Pruned:
    """Remove runs older than `runs_days`, and keep only the median of each block of runs older than
    `samples_days`; 0 keeps everything. `labels` restricts it to runs with these labels.

    One run a week of each label, suite and set of devices stays, so that a series keeps its
    beginning, unless its label is one of `spares`. So do pinned runs, and the runs that a confirmed
    or accepted regression refers to.
    """
    referred = set(store.pins().values())
    for of_series in store.marks().values():
        referred |= {run_id for mark in of_series for run_id in (mark.run_id, mark.before_id)}
    kept: set[tuple[object, ...]] = set()
    removed, thinned = [], []
    for run in sorted(store.runs(), key=lambda run: run.started):
        age_days = (now - run.started) / _DAY_S
        if (labels is not None and run.label not in labels) or run.id in referred:
            continue
        devices = tuple(info.name for info in run.environment.devices)
        kind = (int(run.started // _WEEK_S), run.label, run.suite, run.environment.host, devices)
        if runs_days and age_days > runs_days and (kind in kept or run.label in spares):
            removed.append(run.id)
            if not dry_run:
                store.delete_run(run.id)
            continue
        kept.add(kind)
        if samples_days and age_days > samples_days and (dry_run or store.thin_samples(run.id)):
            thinned.append(run.id)
    return Pruned(removed=tuple(removed), thinned=tuple(thinned))
