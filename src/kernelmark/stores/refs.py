"""Resolve a ref to a run: an id or its prefix, a pinned name, a label, latest, latest~1."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.engine import Connection

from kernelmark.core.errors import NothingToDo, UsageError
from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE
from kernelmark.core.reason import Reason
from kernelmark.stores.engine import pins, runs

_LATEST = re.compile(r"latest(?:~(\d{1,9}))?\Z")
_SHOWN = 5
# Runs of roofs are a by-product: a prefix of an id names one only if no other run has it.
_ASKED_FOR = runs.c.suite != ROOFS_SUITE
# What `latest` counts: a comparison of cases with microbenchmarks has no row in common.
_OF_CASES = runs.c.suite.not_in((ROOFS_SUITE, MICRO_SUITE))


def resolve(connection: Connection, ref: str) -> int:
    """Return the number of the run that `ref` names; raise UsageError with candidates unless it is
    exactly one."""
    newest = _find(connection, _ASKED_FOR, limit=_SHOWN)
    match = _LATEST.match(ref)
    if not newest and (match or not _find(connection, limit=1)):
        raise NothingToDo(
            Reason("the store has no runs yet", "store-empty"), hint="`kmark run` adds results"
        )
    if match:
        return _latest(connection, int(match[1] or 0))
    for condition in (
        runs.c.id == ref,
        runs.c.no.in_(select(pins.c.run_no).where(pins.c.name == ref)),
        runs.c.label == ref,
    ):
        found = _find(connection, condition, limit=1) if ref else []
        if found:
            return int(found[0].no)
    begins = runs.c.id.startswith(ref, autoescape=True)
    begun = (_find(connection, begins, _ASKED_FOR) or _find(connection, begins)) if ref else []
    if len(begun) == 1:
        return int(begun[0].no)
    if begun:
        raise UsageError(
            Reason(
                f"{len(begun)} runs have an id that begins with {ref!r}",
                "run-ambiguous",
                ref=ref,
                count=len(begun),
            ),
            hint=f"candidates: {_listed(begun)}",
        )
    close = difflib.get_close_matches(ref[:80].partition("~")[0], ["latest"], cutoff=0.7)
    raise UsageError(
        Reason(
            f"no run has the id, label or pinned name {ref[:80]!r}",
            "run-unknown",
            ref=ref[:80],
            by=("id", "label", "pinned name"),
        ),
        hint=f"{'did you mean latest? ' if close else ''}newest runs: {_listed(newest)}",
    )


def exact(connection: Connection, run_id: str) -> int:
    """Return the number of the run with this id."""
    found = _find(connection, runs.c.id == run_id, limit=1)
    if not found:
        reason = Reason(
            f"no run has the id {run_id[:80]!r}", "run-unknown", ref=run_id[:80], by=("id",)
        )
        raise UsageError(reason, hint="`kmark list runs` shows what there is")
    return int(found[0].no)


def _latest(connection: Connection, back: int) -> int:
    found = _find(connection, _OF_CASES, limit=back + 1)
    if not found:
        raise NothingToDo(
            "the store has only runs of microbenchmarks",
            hint="`kmark micro show` shows the newest of them; `kmark run` adds runs of cases",
        )
    if len(found) <= back:
        raise UsageError(
            f"latest~{back} is before the first run: the store has {len(found)},"
            " not counting microbenchmarks and roofs",
            hint=f"newest runs: {_listed(found)}",
        )
    return int(found[back].no)


def _find(
    connection: Connection, *conditions: ColumnElement[bool], limit: int | None = None
) -> Sequence[Any]:
    query = (
        select(runs.c.no, runs.c.id, runs.c.label)
        .where(*conditions)
        .order_by(runs.c.started.desc(), runs.c.no.desc())
        .limit(limit)
    )
    return connection.execute(query).all()


def _listed(found: Sequence[Any]) -> str:
    names = [f"{row.id} ({row.label})" if row.label else row.id for row in found[:_SHOWN]]
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return ", ".join(names + more)
