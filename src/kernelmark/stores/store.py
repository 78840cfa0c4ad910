"""Store: runs, results, roofs, marks, pinned names and tokens in one SQL database."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar, Unpack

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from kernelmark.core import codec
from kernelmark.core.errors import KernelmarkError, NothingToDo, StoreError, UsageError
from kernelmark.core.metric import Roof
from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result, ResultSet, Run, RunState, Status
from kernelmark.core.verdict import Mark, MarkKind
from kernelmark.stores import (
    Damage,
    Imported,
    SeriesPoint,
    StoredEnvironment,
    check_name,
    copying,
    migrations,
    reading,
    writing,
)
from kernelmark.stores import engine as engines
from kernelmark.stores.engine import (
    Location,
    cases,
    explained,
    locate,
    marks,
    pins,
    results,
    runs,
    tokens,
)
from kernelmark.stores.packing import SEAL_BYTES
from kernelmark.stores.reading import CaseSelection, Selection
from kernelmark.stores.roofs import newest, recorded
from kernelmark.stores.writing import clean


def read_marks(connection: Connection) -> dict[str, tuple[Mark, ...]]:
    """Return the marks of every series that has one."""
    marks_by_series: dict[str, tuple[Mark, ...]] = {}
    for row in connection.execute(select(marks).order_by(marks.c.series, marks.c.kind)):
        fields = {**row._mapping, "kind": MarkKind(row.kind)}
        marks_by_series[row.series] = (*marks_by_series.get(row.series, ()), Mark(**fields))
    return marks_by_series


def put_marks(connection: Connection, new: Iterable[Mark]) -> None:
    """Store marks, in place of those of the same series and kind."""
    for mark in new:
        remove_mark(connection, mark.series, mark.kind)
        values = {
            name: clean(str(value)) if isinstance(value, str) else value
            for name, value in dataclasses.asdict(mark).items()
        }
        connection.execute(marks.insert().values(**values))


def remove_mark(connection: Connection, series: str, kind: MarkKind) -> bool:
    """Remove the mark of this kind; return False if the series has none."""
    same = and_(marks.c.series == series, marks.c.kind == kind.value)
    return bool(connection.execute(marks.delete().where(same)).rowcount)


_LATEST = re.compile(r"latest(?:~(\d{1,9}))?\Z")
_SHOWN = 5
# Runs of roofs are a by-product: a prefix of an id names one only if no other run has it.
_ASKED_FOR = runs.c.suite != ROOFS_SUITE
# What `latest` counts: a comparison of cases with microbenchmarks has no row in common.
_OF_CASES = runs.c.suite.not_in((ROOFS_SUITE, MICRO_SUITE))


def resolve_ref(connection: Connection, ref: str) -> int:
    """Return the number of the run that `ref` names; raise UsageError with candidates unless it is
    exactly one."""
    newest = _find_run(connection, _ASKED_FOR, limit=_SHOWN)
    match = _LATEST.match(ref)
    if not newest and (match or not _find_run(connection, limit=1)):
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
        rows = _find_run(connection, condition, limit=1) if ref else []
        if rows:
            return int(rows[0].no)
    begins = runs.c.id.startswith(ref, autoescape=True)
    begun = (
        (_find_run(connection, begins, _ASKED_FOR) or _find_run(connection, begins)) if ref else []
    )
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
            hint=f"candidates: {_list_runs(begun)}",
        )
    close = difflib.get_close_matches(ref[:80].partition("~")[0], ["latest"], cutoff=0.7)
    raise UsageError(
        Reason(
            f"no run has the id, label or pinned name {ref[:80]!r}",
            "run-unknown",
            ref=ref[:80],
            by=("id", "label", "pinned name"),
        ),
        hint=f"{'did you mean latest? ' if close else ''}newest runs: {_list_runs(newest)}",
    )


def find_exactly(connection: Connection, run_id: str) -> int:
    """Return the number of the run with this id."""
    rows = _find_run(connection, runs.c.id == run_id, limit=1)
    if not rows:
        reason = Reason(
            f"no run has the id {run_id[:80]!r}", "run-unknown", ref=run_id[:80], by=("id",)
        )
        raise UsageError(reason, hint="`kmark list runs` shows what there is")
    return int(rows[0].no)


def _latest(connection: Connection, back: int) -> int:
    query = (
        select(runs.c.no, runs.c.id, runs.c.label, runs.c.document)
        .where(_OF_CASES)
        .order_by(runs.c.started.desc(), runs.c.no.desc())
        .execution_options(yield_per=20)
    )
    with connection.execute(query) as rows:
        latest = list(islice((row for row in rows if not _is_by_product(row)), back + 1))
    if not latest:
        raise NothingToDo(
            "the store has only runs of microbenchmarks and by-products, such as of tuning",
            hint="`kmark micro show` shows the newest of them; `kmark run` adds runs of cases",
        )
    if len(latest) <= back:
        raise UsageError(
            f"latest~{back} is before the first run: the store has {len(latest)},"
            " not counting microbenchmarks, roofs and runs of tune, gate and bisect",
            hint=f"newest runs: {_list_runs(latest)}",
        )
    return int(latest[back].no)


# Commands whose runs are by-products, as roofs are: what a person asked for is another answer.
_BY_PRODUCTS = ("tune", "gate", "bisect", "nightly-again")


def _is_by_product(row: Any) -> bool:
    argv = codec.parse(row.document).get("argv") or [""]
    return argv[0] in _BY_PRODUCTS


def _find_run(
    connection: Connection, *conditions: ColumnElement[bool], limit: int | None = None
) -> Sequence[Any]:
    query = (
        select(runs.c.no, runs.c.id, runs.c.label)
        .where(*conditions)
        .order_by(runs.c.started.desc(), runs.c.no.desc())
        .limit(limit)
    )
    return connection.execute(query).all()


def _list_runs(rows: Sequence[Any]) -> str:
    names = [f"{row.id} ({row.label})" if row.label else row.id for row in rows[:_SHOWN]]
    more = [f"and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return ", ".join(names + more)


_PREFIX = "kmark_"  # so that scanners for leaked secrets can find one
_BYTES = 32


class Scope(StrEnum):
    READ = "read"
    WRITE = "write"  # push runs, and read


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A stored token. `created` is in seconds since the epoch, UTC."""

    name: str
    scope: Scope
    created: float


def create_token(connection: Connection, name: str, scope: Scope) -> str:
    """Store a token called `name` and return its secret, which is not stored."""
    check_name("token", name)
    if connection.execute(select(tokens.c.name).where(tokens.c.name == name)).first():
        raise UsageError(
            f"there is already a token {name!r}", hint=f"kmark token revoke {name}, or another name"
        )
    secret = _PREFIX + secrets.token_urlsafe(_BYTES)
    connection.execute(
        tokens.insert().values(
            name=name, digest=_digest(secret), scope=scope.value, created=time.time()
        )
    )
    return secret


def list_tokens(connection: Connection) -> list[Token]:
    """Return all tokens, sorted by name."""
    query = select(tokens.c.name, tokens.c.scope, tokens.c.created).order_by(tokens.c.name)
    return [Token(name=n, scope=Scope(s), created=c) for n, s, c in connection.execute(query)]


def revoke_token(connection: Connection, name: str) -> bool:
    """Remove a token; return False if there is none of this name."""
    return bool(connection.execute(tokens.delete().where(tokens.c.name == name)).rowcount)


def find_token(connection: Connection, secret: str) -> Token | None:
    """Return the token with this secret."""
    query = select(tokens.c.name, tokens.c.scope, tokens.c.created)
    row = connection.execute(query.where(tokens.c.digest == _digest(secret))).first()
    return Token(name=row[0], scope=Scope(row[1]), created=row[2]) if row else None


def _digest(secret: str) -> str:
    # A secret has 256 random bits: a slow hash would not make it safer.
    return hashlib.sha256(secret.encode("utf-8", "backslashreplace")).hexdigest()


T = TypeVar("T")


class _Conflict(StoreError):
    """A row with the same key is stored already."""


class Store:
    """A database of runs, results with every sample, roofs and pinned names; see `open_store`.

    Threads may share a store, and processes may write to one database at the same time. A method
    that writes has written everything when it returns, and nothing if it raises. Methods that add
    results or roofs write in batches instead: if one raises, repeat the call.
    """

    def __init__(self, location: Location, engine: Engine, *, readonly: bool) -> None:
        self.where = location.shown
        self.location = location
        self.readonly = readonly
        self._engine = engine
        self._guard = engines.Guard(location)
        self._decoder = reading.Decoder()
        self._catalogue = writing.Catalogue()
        self._run_numbers: dict[str, int] = {}
        self._watch = engines.Watch(engine)

    @classmethod
    def open(
        cls, where: str | os.PathLike[str] | None, *, readonly: bool = False, check: bool = True
    ) -> Store:
        """See `kernelmark.stores.open_store`."""
        location = locate(where)
        engine = engines.connect(location, readonly=readonly)
        try:
            with explained(location.shown):
                _prepare(engine, location, readonly=readonly)
                if check:
                    engines.check_tables(engine, location.shown)
        except BaseException:
            engine.dispose()
            raise
        return cls(location, engine, readonly=readonly)

    def close(self) -> None:
        """Close the connections."""
        self._watch.close()
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self.readonly:
                self._guard.check(self._engine)
        finally:
            self.close()

    def version(self) -> str:
        """Return a text that changes with every commit to the store, by any process: while it is
        the same, what was read before is still valid."""
        with explained(self.where):
            return self._watch.version()

    # Runs

    def add_run(self, run: Run) -> None:
        """Store a new run without results; `add_results` adds them."""
        check_name("run", run.id)

        def add(connection: Connection) -> None:
            if connection.execute(select(runs.c.no).where(runs.c.id == run.id)).first():
                raise StoreError(
                    f"run {run.id} is already in the store {self.where}",
                    hint="resume it, or start one with a new id",
                )
            values = writing.run_values(connection, run)
            connection.execute(runs.insert().values(**values, tally=0))

        self._write(add)

    def update_run(self, run: Run) -> None:
        """Replace what is stored about a run (its state, when it finished, …), not its results."""
        number = self._number(run.id)
        self._write(
            lambda c: c.execute(
                runs.update().where(runs.c.no == number).values(**writing.run_values(c, run))
            )
        )

    def runs(
        self,
        limit: int | None = None,
        label: str | None = None,
        suites: Sequence[str] | None = None,
    ) -> list[Run]:
        """Return runs, newest first. Without `suites`, runs that measured roofs are left out."""
        conditions = [] if label is None else [runs.c.label == clean(label)]
        query = reading.runs_query(_of_suites(suites), *conditions).limit(limit)
        return self._read(lambda c: self._decoder.runs(c, query))

    def count_runs(self, suites: Sequence[str] | None = None) -> int:
        """Return the number of runs that `runs` returns without `limit` and `label`."""
        query = select(func.count()).select_from(runs).where(_of_suites(suites))
        return self._read(lambda c: int(c.execute(query).scalar() or 0))

    def find_runs(
        self, *, limit: int, offset: int = 0, text: str = "", **columns: str
    ) -> tuple[list[Run], int]:
        """Return runs, newest first, whose id, label or suite contains `text` and whose `columns`
        (label, suite, state) have these values; and their number without `limit`."""
        conditions = [runs.c[name] == clean(value) for name, value in columns.items() if value]
        if text:
            named = (runs.c.id, runs.c.label, runs.c.suite)
            matches = [column.icontains(clean(text), autoescape=True) for column in named]
            conditions.append(or_(*matches))
        query = reading.runs_query(*conditions).limit(limit).offset(offset)
        count = select(func.count()).select_from(runs).where(*conditions)
        return self._read(
            lambda c: (self._decoder.runs(c, query), int(c.execute(count).scalar() or 0))
        )

    def run_names(self) -> dict[str, list[str]]:
        """Return every label, suite and state that occurs in a run."""
        names = ("label", "suite", "state")
        queries = {name: select(runs.c[name]).distinct().order_by(runs.c[name]) for name in names}
        return self._read(
            lambda c: {name: list(c.execute(queries[name]).scalars()) for name in names}
        )

    def environments(self) -> list[StoredEnvironment]:
        """Return the environments of all runs, the most recently used first."""
        return self._read(self._decoder.environments)

    def run(self, ref: str = "latest") -> Run:
        """Return the run with this id, pinned name, label (the newest one), prefix of an id, or
        `latest`, `latest~1`, …, which count neither microbenchmarks, roofs nor by-products."""

        def find(connection: Connection) -> Run:
            query = reading.runs_query(runs.c.no == resolve_ref(connection, clean(ref)))
            return self._decoder.runs(connection, query)[0]

        return self._read(find)

    def run_before(self, run: Run) -> Run | None:
        """Return the newest run before this one with the same label and suite."""
        same = (runs.c.label == clean(run.label), runs.c.suite == clean(run.suite))
        query = reading.runs_query(*same, runs.c.started < run.started).limit(1)
        return next(iter(self._read(lambda c: self._decoder.runs(c, query))), None)

    def delete_run(self, run_id: str) -> int:
        """Delete a run with its results, roofs and pinned names. Return how many results it had.
        Problems, cases and environments stay, as other runs may share them."""
        number = self._number(run_id)

        def delete(connection: Connection) -> int:
            connection.execute(pins.delete().where(pins.c.run_no == number))
            gone = connection.execute(results.delete().where(results.c.run_no == number))
            connection.execute(runs.delete().where(runs.c.no == number))
            return int(gone.rowcount)

        count = self._write(delete)
        del self._run_numbers[run_id]
        return count

    def counts(self, run_id: str) -> dict[Status, int]:
        """Count the results of a run by status."""
        number = self._number(run_id)
        query = (
            select(results.c.status, func.count())
            .where(results.c.run_no == number)
            .group_by(results.c.status)
        )
        counts: dict[str, int] = dict(self._read(lambda c: _pairs(c, query)))
        return {status: counts[status.value] for status in Status if status.value in counts}

    def sizes(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Count the results of each of these runs."""
        query = (
            select(runs.c.id, func.count(results.c.run_no))
            .join(results, results.c.run_no == runs.c.no, isouter=True)
            .where(runs.c.id.in_(run_ids))
            .group_by(runs.c.id)
        )
        return dict(self._read(lambda c: _pairs(c, query)))

    def thin_samples(self, run_id: str) -> int:
        """Keep only the median of each block of a run; return how many results changed."""
        number = self._number(run_id)
        return self._write(lambda c: writing.thin_samples(c, self._decoder, number))

    def damage(self) -> Damage:
        """Check everything in the store: the database, references, checksums."""
        problems: list[str] = []
        count = 0
        with explained(self.where), engines.reading(self._engine) as connection:
            problems += engines.database_problems(connection)
            run_nos = list(connection.execute(select(runs.c.no).order_by(runs.c.no)).scalars())
            unchecked = select(func.count()).where(results.c.checksum.is_(None))
            older = int(connection.execute(unchecked).scalar() or 0)
            for run_no in run_nos:
                try:
                    with explained(self.where):
                        self._decoder.runs(connection, reading.runs_query(runs.c.no == run_no))
                        for _ in self._decoder.results(connection, run_no, {}):
                            count += 1
                except KernelmarkError as error:
                    problems.append(str(error.message))
        return Damage(problems=tuple(problems), runs=len(run_nos), results=count, unchecked=older)

    # Copies

    def copy_run(self, source: Store, run: Run) -> Imported:
        """Copy a run of another store with its results, exactly, and verify the copy. Of a run that
        is here already, add what is new, and refuse what differs."""
        known = self._known_run(run.id)
        if known is None:
            return self._copy_new(source, run)
        sums = source.checksums(run.id)
        if sums != self.checksums(run.id) or None in sums.values():
            outcome = self.add_result_set(source.result_set(run.id))
        else:
            outcome = Imported(run_id=run.id, added=0, known=len(sums), changed=False)
        if known != run:
            self.update_run(run)
        return outcome

    def _copy_new(self, source: Store, run: Run) -> Imported:
        number = source._number(run.id)
        with explained(source.where), engines.reading(source._engine) as connection:
            sent = self._write(
                lambda c: copying.insert_copy(c, connection, number, run, source._decoder)
            )
        copy_number = self._number(run.id)
        if sent != self._read(lambda c: copying.run_digest(c, copy_number)):
            self.delete_run(run.id)
            raise StoreError(
                f"the copy of run {run.id} in {self.where} differs from {source.where}, and was"
                " deleted again",
                hint="check both: kmark store check",
            )
        count = sum(self.counts(run.id).values())
        return Imported(run_id=run.id, added=count, known=0, changed=True)

    def copy_names(self, source: Store) -> None:
        """Copy pinned names, decisions about series and access tokens. Names and decisions replace
        those here, a token never does."""
        pinned_here = self.pins()
        for name, run_id in source.pins().items():
            if pinned_here.get(name) != run_id:
                self.pin(name, run_id)
        self.mark(mark for of_series in source.marks().values() for mark in of_series)
        rows = source._read(lambda c: [dict(row._mapping) for row in c.execute(select(tokens))])
        self._write(lambda c: writing.add_missing(c, tokens, rows))

    # Results

    def add_results(
        self, run_id: str, new: Iterable[Result], *, process: int = 0, alone: bool = False
    ) -> int:
        """Store results of a run, and return their number. A result replaces a stored one of the
        same case, device and `process`; a result that joins several processes has process 0. With
        `alone`, earlier results of the run for these cases are deleted, on any device."""
        number = self._number(run_id)
        count = 0
        for batch in writing.batches(new):
            # Unguarded: if the store was removed, these results are saved with all others.
            keys = self._catalogue.numbers(batch, self._commit)
            rows = writing.result_rows(batch, keys, (number, run_id), process)
            insert = functools.partial(writing.insert_results, rows=rows, alone=alone)
            try:
                self._write(functools.partial(insert, replace=False))
            except _Conflict:
                self._write(functools.partial(insert, replace=True))
            count += len(batch)
        return count

    def results(self, run_id: str, **selection: Unpack[CaseSelection]) -> Iterator[Result]:
        """Yield the results of a run, exactly as they were added, in the same order."""
        number = self._number(run_id)
        with explained(self.where), engines.reading(self._engine) as connection:
            yield from self._decoder.results(connection, number, selection)

    def last_result(self, run_id: str) -> Result | None:
        """Return the result of a run that was added last; None if it has none."""
        number = self._number(run_id)
        return self._read(lambda c: self._decoder.last_result(c, number))

    def finished(self, run_id: str, device: str | None = None) -> set[str]:
        """Return `Case.id` of every case that has a result in the run, failed ones included."""
        query = (
            select(cases.c.id)
            .join(results, results.c.case_no == cases.c.no)
            .where(results.c.run_no == self._number(run_id))
        )
        if device is not None:
            query = query.where(results.c.device == clean(device))
        return set(self._read(lambda c: c.execute(query).scalars().all()))

    def result_set(self, run_id: str, problems: int | None = None) -> ResultSet:
        """Return a run with its results, as `kmark export` writes it. With `problems`, only the
        results of the first so many problems, and all that are not ok."""
        number = self._number(run_id)
        query = reading.runs_query(runs.c.no == number)
        run = self._read(lambda c: self._decoder.runs(c, query))[0]
        found = self._read(lambda c: tuple(self._decoder.results(c, number, {}, problems)))
        return ResultSet(run=run, results=found)

    def binaries(self, run_id: str) -> set[str]:
        """Return the hashes of the binaries of a run's kernels, as far as backends record them."""
        number = self._number(run_id)
        return self._read(lambda c: self._decoder.binaries(c, number))

    def add_result_set(self, new: ResultSet) -> Imported:
        """Add a run with its results, and return what was new. Stored data is not changed, so that
        adding a run twice has no effect."""
        stored_run = self._known_run(new.run.id)
        if stored_run is None:
            self.add_run(new.run)
            self.add_roofs(new.roofs, host=new.run.environment.host)
            self._add_positions(new.run.id, writing.positions(new.results))
            return Imported(run_id=new.run.id, added=len(new.results), known=0, changed=True)
        if (stored_run.started, stored_run.environment) != (new.run.started, new.run.environment):
            raise StoreError(
                Reason(
                    f"the store has another run with the id {new.run.id}",
                    "run-differs",
                    run=new.run.id,
                ),
                hint="give the run in the file another id",
            )
        there = self.checksums(new.run.id)
        every = writing.positions(new.results)
        missing = {position: result for position, result in every.items() if position not in there}
        for (case_id, device, process), result in every.items():
            stored = there.get((case_id, device, process), 0)
            if (case_id, device, process) in missing or stored == writing.checksum_of(
                new.run.id, result
            ):
                continue
            # A row of an older version may have no checksum, or another form of the same.
            same = self.results(new.run.id, case_id=case_id, device=device)
            if not any(writing.is_same(old, result) for old in same):
                raise StoreError(
                    Reason(
                        f"the store has other results of the run {new.run.id}",
                        "run-differs",
                        run=new.run.id,
                    ),
                    hint="give the run in the file another id, or delete the stored one",
                )
        grown = stored_run.state is RunState.RUNNING and new.run != stored_run
        if grown:
            self.update_run(new.run)
        self._add_positions(new.run.id, missing)
        return Imported(
            run_id=new.run.id,
            added=len(missing),
            known=len(new.results) - len(missing),
            changed=grown or bool(missing),
        )

    def positions(self, run_id: str) -> set[writing.Position]:
        """Return (`Case.id`, device, process) of every result of a run."""
        return set(self.checksums(run_id))

    def checksums(self, run_id: str) -> dict[writing.Position, int | None]:
        """Return the checksum of every result of a run, as `writing.checksum_of` does; None if an
        older version stored it."""
        head = func.substr(results.c.detail, 1, SEAL_BYTES)
        columns = (results.c.device, results.c.process, results.c.checksum, head)
        query = (
            select(cases.c.id, *columns)
            .join(cases, cases.c.no == results.c.case_no)
            .where(results.c.run_no == self._number(run_id))
        )
        return self._read(
            lambda c: {
                (case_id, device, process): None
                if columns is None
                else writing.joint(columns, seal)
                for case_id, device, process, columns, seal in c.execute(query)
            }
        )

    # History

    def series(self, series: str, limit: int | None = None) -> list[SeriesPoint]:
        """Return the points of a series, oldest first. `series` is a `Result.series`, followed by
        ` | ` and the name for a metric. `limit` keeps the points of the newest results."""
        for whole in (series, series.rpartition(" | ")[0]):  # the name of a metric comes last
            case_series, _, arch = whole.rpartition(" | ")
            case_id = hashlib.sha256(case_series.encode("utf-8", "surrogatepass")).hexdigest()[:16]
            points = self.history(limit=limit, case_id=case_id, arch=clean(arch))
            if points:
                return [point for point in points if point.series == series]
        return []

    def history(
        self, *, limit: int | None = None, **selection: Unpack[Selection]
    ) -> list[SeriesPoint]:
        """Return the points of every series that matches, oldest run first; `limit` keeps the
        newest."""
        return self._read(lambda c: reading.history(c, selection, limit))

    def latest(self, **selection: Unpack[Selection]) -> list[SeriesPoint]:
        """Return the newest point of every series that matches."""
        return self._read(lambda c: reading.latest(c, selection))

    # Roofs

    def add_roofs(self, new: Iterable[Roof], *, host: str = "") -> None:
        """Store roofs that were measured elsewhere; `host` distinguishes machines that share a
        store. Roofs that are measured here are stored as results of microbenchmarks."""
        for result_set in recorded(new, host):
            self.add_result_set(result_set)

    def roofs(
        self,
        *,
        device: str | None = None,
        arch: str | None = None,
        threads: int | None = None,
        host: str | None = None,
        at: float = math.inf,
        every: bool = False,
    ) -> tuple[Roof, ...]:
        """Return the newest roof of each kind, name, unit, number of threads, device and host, from
        runs of `kmark roofs`; with `every` also from other runs of microbenchmarks. An unsteady
        roof never replaces a steady one. `at`, in seconds since the epoch, selects the roofs that
        were the newest at that time."""
        required = {"threads": threads, "host": host}
        suites = (ROOFS_SUITE, MICRO_SUITE) if every else (ROOFS_SUITE,)
        device, arch = device and clean(device), arch and clean(arch)
        return self._read(
            lambda c: newest(
                self._decoder.roof_sources(c, suites, device=device, arch=arch), required, at
            )
        )

    # Pinned names

    def pin(self, name: str, run_id: str) -> None:
        """Pin `name` to this run, instead of the run it may be pinned to."""
        check_name("pinned run", name)
        number = self._number(run_id)

        def write(connection: Connection) -> None:
            connection.execute(pins.delete().where(pins.c.name == name))
            connection.execute(pins.insert().values(name=name, run_no=number, pinned=time.time()))

        self._write(write)

    def unpin(self, name: str) -> None:
        """Remove a pinned name; the run stays."""
        self._write(lambda c: c.execute(pins.delete().where(pins.c.name == clean(name))))

    def pinned(self, name: str) -> str | None:
        """Return the id of the run that `name` is pinned to."""
        return self.pins().get(name)

    def pins(self) -> dict[str, str]:
        """Return every pinned name with the id of its run."""
        query = select(pins.c.name, runs.c.id).join(runs, runs.c.no == pins.c.run_no)
        return dict(self._read(lambda c: _pairs(c, query.order_by(pins.c.name))))

    # Tokens

    def create_token(self, name: str, scope: Scope) -> str:
        """Store a token and return its secret, which cannot be read again."""
        return self._write(lambda c: create_token(c, name, scope))

    def tokens(self) -> list[Token]:
        """Return all tokens, sorted by name."""
        return self._read(list_tokens)

    def revoke_token(self, name: str) -> None:
        """Revoke a token: requests that use it are rejected."""
        if not self._write(lambda c: revoke_token(c, name)):
            raise UsageError(f"unknown token {name[:80]!r}", hint="'kmark token list' shows them")

    def find_token(self, secret: str) -> Token | None:
        """Return the token with this secret."""
        return self._read(lambda c: find_token(c, secret))

    # Marks of series

    def marks(self) -> dict[str, tuple[Mark, ...]]:
        """Return the stored decisions about series, by series."""
        return self._read(read_marks)

    def mark(self, new: Iterable[Mark]) -> None:
        """Store decisions about series, in place of earlier ones of the same kind."""
        self._write(lambda c: put_marks(c, new))

    def unmark(self, series: str, kind: MarkKind) -> bool:
        """Remove a decision; return False if there is none."""
        return self._write(lambda c: remove_mark(c, series, kind))

    # Internal

    def _known_run(self, run_id: str) -> Run | None:
        query = reading.runs_query(runs.c.id == clean(run_id))
        return next(iter(self._read(lambda c: self._decoder.runs(c, query))), None)

    def _add_positions(self, run_id: str, new: dict[writing.Position, Result]) -> None:
        for process in sorted({position[2] for position in new}):
            of_process = (result for position, result in new.items() if position[2] == process)
            self.add_results(run_id, of_process, process=process)

    def _number(self, run_id: str) -> int:
        if run_id not in self._run_numbers:
            self._run_numbers[run_id] = self._read(lambda c: find_exactly(c, clean(run_id)))
        return self._run_numbers[run_id]

    def _read(self, work: Callable[[Connection], T]) -> T:
        with explained(self.where), engines.reading(self._engine) as connection:
            return work(connection)

    def _write(self, work: Callable[[Connection], T]) -> T:
        outcome = self._commit(work)
        with explained(self.where):
            self._guard.check(self._engine)
        return outcome

    def _commit(self, work: Callable[[Connection], T]) -> T:
        if self.readonly:
            raise StoreError(
                f"the store {self.where} was opened for reading only",
                hint="open it without readonly",
            )
        attempt = 0
        with explained(self.where):
            while True:
                try:
                    with engines.writing(self._engine) as connection:
                        return work(connection)
                except IntegrityError as error:
                    raise _Conflict(
                        f"the store {self.where} refused a row: {error.orig}"
                    ) from error
                except DBAPIError as error:
                    if not engines.retried(error, attempt):
                        raise
                    attempt += 1


def _prepare(engine: Engine, location: Location, *, readonly: bool) -> None:
    """Check that the database is a store, and migrate it to the newest schema."""
    with engines.reading(engine) as connection:
        schema = migrations.version(connection, location)
    current = migrations.is_current(schema, location)
    if not readonly:
        engines.share(engine)
        if not current:
            with engines.writing(engine) as connection:
                migrations.migrate(connection, location)
        return
    if current:
        return
    if not schema:
        raise NothingToDo(
            Reason(
                f"the store {location.shown} has no runs yet", "store-empty", store=location.shown
            ),
            hint="`kmark run` adds results",
        )
    # A reader upgrades the store if it is also allowed to write to it.
    upgraded = engines.connect(location, readonly=False)
    try:
        _prepare(upgraded, location, readonly=False)
    finally:
        upgraded.dispose()


def _of_suites(suites: Sequence[str] | None) -> ColumnElement[bool]:
    return runs.c.suite != ROOFS_SUITE if suites is None else runs.c.suite.in_(suites)


def _pairs(connection: Connection, query: Select[Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in connection.execute(query)]
