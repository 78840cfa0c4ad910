"""Store: runs, results, roofs, pinned names and tokens in one SQL database."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

from sqlalchemy import ColumnElement, Select, func, or_, select
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from kernelmark.core.errors import NothingToDo, StoreError, UsageError
from kernelmark.core.metric import Roof
from kernelmark.core.micro import MICRO_SUITE, ROOFS_SUITE
from kernelmark.core.reason import Reason
from kernelmark.core.result import Result, ResultSet, Run, RunState, Status
from kernelmark.stores import engine as engines
from kernelmark.stores import migrations, reading, refs, writing
from kernelmark.stores import tokens as token_rows
from kernelmark.stores.engine import cases, explained, pins, results, runs
from kernelmark.stores.location import Location, locate
from kernelmark.stores.reading import CaseSelection, Selection
from kernelmark.stores.roofs import newest, recorded
from kernelmark.stores.values import Imported, Place, SeriesPoint, check_name
from kernelmark.stores.writing import clean

T = TypeVar("T")


class _Conflict(StoreError):
    """A row with the same key is stored already."""


class Store:
    """A database of runs, results with every sample, roofs and pinned names; see `open_store`.

    Threads may share a store, and processes may write to one database at the same time. A method
    that writes has written everything when it returns, and nothing if it raises. Methods that add
    results or roofs write in batches instead: if one raises, repeat the call.
    """

    def __init__(self, place: Location, engine: Engine, *, readonly: bool) -> None:
        self.where = place.shown
        self.readonly = readonly
        self._engine = engine
        self._decoder = reading.Decoder()
        self._catalogue = writing.Catalogue()
        self._run_numbers: dict[str, int] = {}
        self._watch = engines.Watch(engine)

    @classmethod
    def open(cls, where: str | os.PathLike[str] | None, *, readonly: bool = False) -> Store:
        """See `kernelmark.stores.open_store`."""
        place = locate(where)
        engine = engines.connect(place, readonly=readonly)
        try:
            with explained(place.shown):
                _prepare(engine, place, readonly=readonly)
        except BaseException:
            engine.dispose()
            raise
        return cls(place, engine, readonly=readonly)

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
            connection.execute(runs.insert().values(**writing.run_values(connection, run)))

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
            found = [column.icontains(clean(text), autoescape=True) for column in named]
            conditions.append(or_(*found))
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

    def environments(self) -> list[Place]:
        """Return the environments of all runs, the most recently used first."""
        return self._read(self._decoder.places)

    def run(self, ref: str = "latest") -> Run:
        """Return the run with this id, pinned name, label (the newest one), prefix of an id, or
        `latest`, `latest~1`, …, which count neither microbenchmarks nor roofs."""

        def find(connection: Connection) -> Run:
            query = reading.runs_query(runs.c.no == refs.resolve(connection, clean(ref)))
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
        found: dict[str, int] = dict(self._read(lambda c: _pairs(c, query)))
        return {status: found[status.value] for status in Status if status.value in found}

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
            numbers = self._catalogue.numbers(batch, self._write)
            rows = writing.result_rows(batch, numbers, number, process)
            insert = functools.partial(writing.insert_results, rows=rows, alone=alone)
            try:
                self._write(functools.partial(insert, replace=False))
            except _Conflict:
                self._write(functools.partial(insert, replace=True))
            count += len(batch)
        return count

    def results(self, run_id: str, **selection: Unpack[CaseSelection]) -> Iterator[Result]:
        """Yield the results of a run, exactly as they were added, in the same order."""
        query = reading.results_query(self._number(run_id), selection)
        with explained(self.where), engines.reading(self._engine) as connection:
            yield from self._decoder.results(connection, query)

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

    def result_set(self, run_id: str) -> ResultSet:
        """Return a run with its results, as `kmark export` writes it."""
        query = reading.runs_query(runs.c.no == self._number(run_id))
        run = self._read(lambda c: self._decoder.runs(c, query))[0]
        return ResultSet(run=run, results=tuple(self.results(run_id)))

    def add_result_set(self, new: ResultSet) -> Imported:
        """Add a run with its results, and return what was new. Stored data is not changed, so that
        adding a run twice has no effect."""
        known = self._known_run(new.run.id)
        if known is None:
            self.add_run(new.run)
            self.add_roofs(new.roofs, host=new.run.environment.host)
            self._add_positions(new.run.id, writing.positions(new.results))
            return Imported(run_id=new.run.id, added=len(new.results), known=0, changed=True)
        if (known.started, known.environment) != (new.run.started, new.run.environment):
            raise StoreError(
                Reason(
                    f"the store has another run with the id {new.run.id}",
                    "run-differs",
                    run=new.run.id,
                ),
                hint="give the run in the file another id",
            )
        there = self.positions(new.run.id)
        missing = {
            position: result
            for position, result in writing.positions(new.results).items()
            if position not in there
        }
        grown = known.state is RunState.RUNNING and new.run != known
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
        query = (
            select(cases.c.id, results.c.device, results.c.process)
            .join(cases, cases.c.no == results.c.case_no)
            .where(results.c.run_no == self._number(run_id))
        )
        return set(self._read(lambda c: [tuple(row) for row in c.execute(query)]))

    # History

    def series(self, series: str, limit: int | None = None) -> list[SeriesPoint]:
        """Return the points of a series, oldest first. `series` is a `Result.series`, followed by
        ` | ` and the name for a metric. `limit` keeps the points of the newest results."""
        for whole in (series, series.rpartition(" | ")[0]):  # the name of a metric comes last
            case_series, _, arch = whole.rpartition(" | ")
            case_id = hashlib.sha256(case_series.encode("utf-8", "surrogatepass")).hexdigest()[:16]
            found = self.history(limit=limit, case_id=case_id, arch=clean(arch))
            if found:
                return [point for point in found if point.series == series]
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
        for made in recorded(new, host):
            self.add_result_set(made)

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
        wanted = {"threads": threads, "host": host}
        suites = (ROOFS_SUITE, MICRO_SUITE) if every else (ROOFS_SUITE,)
        return self._read(
            lambda c: newest(
                self._decoder.roof_sources(c, suites, device=device, arch=arch), wanted, at
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

    def create_token(self, name: str, scope: token_rows.Scope) -> str:
        """Store a token and return its secret, which cannot be read again."""
        return self._write(lambda c: token_rows.create(c, name, scope))

    def tokens(self) -> list[token_rows.Token]:
        """Return all tokens, sorted by name."""
        return self._read(token_rows.listed)

    def revoke_token(self, name: str) -> None:
        """Revoke a token: requests that use it are rejected."""
        if not self._write(lambda c: token_rows.revoke(c, name)):
            raise UsageError(f"unknown token {name[:80]!r}", hint="'kmark token list' shows them")

    def find_token(self, secret: str) -> token_rows.Token | None:
        """Return the token with this secret."""
        return self._read(lambda c: token_rows.find(c, secret))

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
            self._run_numbers[run_id] = self._read(lambda c: refs.exact(c, clean(run_id)))
        return self._run_numbers[run_id]

    def _read(self, work: Callable[[Connection], T]) -> T:
        with explained(self.where), engines.reading(self._engine) as connection:
            return work(connection)

    def _write(self, work: Callable[[Connection], T]) -> T:
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


def _prepare(engine: Engine, place: Location, *, readonly: bool) -> None:
    """Check that the database is a store, and migrate it to the newest schema."""
    with engines.reading(engine) as connection:
        found = migrations.version(connection, place)
    current = migrations.is_current(found, place)
    if not readonly:
        engines.share(engine)
        if not current:
            with engines.writing(engine) as connection:
                migrations.migrate(connection, place)
        return
    if current:
        return
    if not found:
        raise NothingToDo(
            Reason(f"the store {place.shown} has no runs yet", "store-empty", store=place.shown),
            hint="`kmark run` adds results",
        )
    # A reader upgrades the store if it is also allowed to write to it.
    upgraded = engines.connect(place, readonly=False)
    try:
        _prepare(upgraded, place, readonly=False)
    finally:
        upgraded.dispose()


def _of_suites(suites: Sequence[str] | None) -> ColumnElement[bool]:
    return runs.c.suite != ROOFS_SUITE if suites is None else runs.c.suite.in_(suites)


def _pairs(connection: Connection, query: Select[Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in connection.execute(query)]
