"""Results: what `run`, `bench` and `load` return, a sequence that prints as a table; and runs read
by name, from a store, a kernelmark file or a file of another tool.

The code for tables is imported on demand, because callers of km.bench may only want the number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from kernelmark.core.errors import CodecError, NothingToDo, UsageError, about
from kernelmark.core.files import user_path
from kernelmark.core.metric import Roof
from kernelmark.core.micro import is_micro
from kernelmark.core.reason import NAME_SETTINGS, prefixed
from kernelmark.core.result import Result, ResultSet, Run, Status
from kernelmark.core.text import markdown_cell
from kernelmark.core.timing import PRESETS, Timing
from kernelmark.stores import check_name as check_id
from kernelmark.stores import opened

if TYPE_CHECKING:
    from kernelmark.api.plot import Figure
    from kernelmark.compare.match import By
    from kernelmark.compare.verdicts import Comparison
    from kernelmark.core.files import Cell
    from kernelmark.report.results import ResultRow
    from kernelmark.report.tables import Table
    from kernelmark.stores import StoreArgument
    from kernelmark.stores.store import Store
    from kernelmark.workloads.importers import Overrides


class Results(Sequence[Result]):
    """The results of a run, in the order of the request, with the roofs they are compared with.

    A sequence of `Result`; it prints as a table, also in notebooks. `run` is the run itself,
    `roofs` the roofline ceilings, `notes` are remarks on the measurement.
    """

    def __init__(
        self, result_set: ResultSet, roofs: Sequence[Roof] = (), notes: Sequence[str] = ()
    ) -> None:
        self.result_set = result_set
        self.roofs = tuple(roofs) or result_set.roofs
        self.notes = tuple(notes)

    @functools.cached_property
    def rows(self) -> list[ResultRow]:
        """One table row per result, computed on first use."""
        from kernelmark.report.results import result_rows

        return result_rows(self.result_set, self.roofs, _canaries(self.run))

    @functools.cached_property
    def _results(self) -> list[Result]:
        """The results in the order of `rows`."""
        return self.result_set.ordered(_canaries(self.run))

    @property
    def run(self) -> Run:
        """The run: id, start, environment, label, state."""
        return self.result_set.run

    @property
    def timed(self) -> list[ResultRow]:
        """The rows of results whose metric is time."""
        return [row for row in self.rows if not is_micro(row.result.case)]

    @property
    def micro(self) -> list[Result]:
        """The results of microbenchmarks, in the order they were measured."""
        return [result for result in self.result_set.results if is_micro(result.case)]

    @property
    def table(self) -> Table:
        """The first table of `all_tables`."""
        return self.all_tables[0]

    @property
    def all_tables(self) -> list[Table]:
        """A table of times and one of metrics, if they have rows; at least the table of times."""
        if not self.micro:
            from kernelmark.report.results import results_table

            return [results_table(self.timed)]
        from kernelmark.report.micro import result_tables

        return result_tables(self.timed, self.result_set.results)

    @property
    def failed(self) -> bool:
        """Whether any case gave a wrong result, failed, or did not finish."""
        return any(result.status.failed for result in self)

    def best(self) -> list[Result]:
        """Return the fastest result of each problem that is correct and reliable."""
        best: dict[str, tuple[float, Result]] = {}
        for row in self.rows:
            key, measured = row.result.case.problem.key, row.result.measurement
            if row.ranks and measured is not None:
                now = measured.median_s, row.result
                best[key] = min(best.get(key, now), now, key=lambda pair: pair[0])
        return [result for _, result in best.values()]

    def ok(self) -> list[Result]:
        """Return the results whose status is `ok`."""
        return [result for result in self if result.status is Status.OK]

    def records(self) -> list[dict[str, Cell]]:
        """Return one flat record per result, in seconds and bytes, as in `to_csv` and `frame`."""
        from kernelmark.report.results import result_records

        return result_records(self.rows)

    def frame(self) -> Any:
        """Return `records` as a pandas DataFrame."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise UsageError(
                "a frame needs pandas, which is not installed",
                hint="pip install pandas, or use records()",
            ) from None
        return pandas.DataFrame(self.records())

    def compare(
        self, base: Results | ResultSet | str, *, rule: str = "robust", match: By = "case"
    ) -> Comparison:
        """Compare this run, as head, with `base`: `Results`, a `ResultSet`, or a file.

        `rule` is a preset (robust, golden-tot, ratio) or a TOML file.
        """
        from kernelmark.api.compare import compare

        other = base.result_set if isinstance(base, Results) else base
        if not isinstance(other, ResultSet | str):
            raise UsageError(
                f"base is not a run, but {type(base).__name__}",
                hint='give Results, as of km.load("latest"), or the name of a file',
            )
        return compare(other, self.result_set, rule=rule, match=match)

    def plot(self, kind: str, **options: Any) -> Figure:
        """Draw a figure of these results: `km.plot(kind, results, **options)`."""
        from kernelmark.api.plot import plot

        return plot(kind, self, **options)

    def roofline(self, *, dark: bool = False) -> Figure:
        """Draw the results under the roofs of their device."""
        return self.plot("roofline", dark=dark)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the run with its roofs as JSON, which `kmark import` reads without loss. Also
        write it to `path` if given."""
        from kernelmark.core import codec

        whole = dataclasses.replace(self.result_set, roofs=self.roofs)
        return _save(codec.dumps(whole) + "\n", path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return `records` as CSV. Also write it to `path` if given."""
        from kernelmark.core.files import csv_text
        from kernelmark.report.results import result_columns

        return _save(csv_text(self.records(), result_columns(self.rows)), path)

    def to_md(self, path: str | Path | None = None) -> str:
        """Return the tables and warnings as Markdown. Also write it to `path` if given."""
        from kernelmark.report import summary
        from kernelmark.report.tables import markdown

        failures = [failure.sentence for failure in summary.find_failures(self.rows)]
        warnings = list(map(str, summary.collect_warnings(self.rows)))
        mark = summary.mark_text(self.rows)
        lines = [f"- {markdown_cell(text)}\n" for text in failures]
        lines += [f"\n{mark}:\n\n"] if mark else []
        lines += [f"- {markdown_cell(text)}\n" for text in warnings]
        whole = "\n".join(map(markdown, self.all_tables))
        return _save("".join((whole, *(["\n"] if failures else []), *lines)), path)

    @overload
    def __getitem__(self, index: int) -> Result: ...

    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...

    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        return self._results[index]

    def __add__(self, other: object) -> Results:
        """Return the results of both under the first run, for one table or figure of a sweep."""
        if not isinstance(other, Results):
            return NotImplemented
        here, there = self.run.environment, other.run.environment
        if here.host != there.host:
            raise UsageError(
                f"results of {here.host!r} and {there.host!r} do not add up",
                hint="compare runs of two machines: head.compare(base)",
            )
        run = dataclasses.replace(self.run, cases=self.run.cases + other.run.cases)
        results = (*self.result_set.results, *other.result_set.results)
        return Results(
            ResultSet(run=run, results=results),
            tuple(dict.fromkeys((*self.roofs, *other.roofs))),
            tuple(dict.fromkeys((*self.notes, *other.notes))),
        )

    def __radd__(self, other: object) -> Results:
        """Let `sum` add results: it starts with 0."""
        return self if other == 0 else NotImplemented

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    def __str__(self) -> str:
        from kernelmark.report import summary
        from kernelmark.report.tables import printed

        warnings = summary.collect_warnings(self.rows)
        answers = "".join(f"{sentence}\n" for sentence in summary.answer(self.timed))
        lines = [f"{failure.sentence}\n" for failure in summary.find_failures(self.rows)]
        lines += [f"{mark}:\n"] if (mark := summary.mark_text(self.rows)) else []
        lines += [f"warning: {warning}\n" for warning in warnings]
        lines += [f"hint: {hint}\n"] if (hint := self._timing_hint()) else []
        lines += [f"note: {note}\n" for note in self.notes]
        return answers + "\n".join(map(printed, self.all_tables)) + "".join(lines)

    def _timing_hint(self) -> str:
        """Return how to give more time than the first result with a warning that names settings
        had; "" if there is none."""
        for result in self:
            warnings = result.measurement.warnings if result.measurement else ()
            if any(warning.code in NAME_SETTINGS for warning in warnings):
                timing = result.case.timing
                name = next(
                    (name for name, preset_timing in PRESETS.items() if preset_timing == timing),
                    "default",
                )
                preset = "" if name == "default" else f'.preset("{name}", '
                call = f"km.Timing{preset or '('}max_s={2 * timing.max_s:g})"
                return f"fields of Timing are given as timing={call}"
        return ""

    def __repr__(self) -> str:
        from kernelmark.report.summary import status_summary

        return f"<Results of run {self.run.id}: {status_summary(self.rows) or 'empty'}>"

    def _repr_html_(self) -> str:
        from kernelmark.report import summary
        from kernelmark.report.tables import html_list, html_table

        lines = [failure.sentence for failure in summary.find_failures(self.rows)]
        lines += filter(None, [summary.mark_text(self.rows)])
        lines += list(map(str, summary.collect_warnings(self.rows)))
        from kernelmark.report.results import sortable_table

        first, *more = self.all_tables
        timed = self.timed
        shown = (sortable_table(timed) if timed else html_table(first)) + "".join(
            map(html_table, more)
        )
        return html_list(summary.answer(self.timed)) + shown + html_list(lines)


def _canaries(run: Run) -> frozenset[str]:
    if not run.suite:
        return frozenset()
    from kernelmark.workloads.suites import added_canaries

    return added_canaries(run.suite)


def _save(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


_SUFFIXES = {".json", ".csv", ".txt", ".log", ".db", ".sqlite", ".gz"}
_HEAD_BYTES = 4096


def is_file(ref: str) -> bool:
    """Return whether `ref` names a file, not a run of the store: by its suffix, by a prefix such as
    `./`, or because it contains a slash and exists. A label may contain a slash."""
    if ref == "-" or Path(ref).suffix.lower() in _SUFFIXES:
        return True
    return ref.startswith(("/", "./", "../", "~/")) or ("/" in ref and Path(ref).is_file())


def check_name(name: str, what: str = "the label") -> None:
    """Raise UsageError for a label or pinned name that would be taken for a file."""
    if name and is_file(name):
        raise UsageError(
            f"{what} {name!r} would be taken for a file",
            hint="choose one without an ending like .json and without a path's beginning",
        )


def read_file(
    file_name: str, overrides: Overrides | None = None, form: str | None = None
) -> ResultSet:
    """Return the run in a file that `--json` or `export` wrote (`-`: stdin), or in any format that
    has an importer. `form` names the format (default: detected)."""
    if overrides is not None:
        check_name(overrides.label)
    if file_name == "-":
        if form is not None:
            raise UsageError(
                f"stdin is read as kernelmark's own JSON only, not as {form}",
                hint="write it to a file, and name that",
            )
        return _ours(sys.stdin.buffer.read(), file_name)
    from kernelmark.core.files import file_unreadable, read_whole
    from kernelmark.workloads import importers, source

    path = user_path(file_name)
    try:
        if form is None and importers.recognized(path) is None:
            with source.opened(str(path)) as file:
                head, is_packed = file.head[:_HEAD_BYTES], file.packed
            if path.suffix == ".json" or head.lstrip()[:1] in (b"{", b"["):
                ours = _ours(_unpacked(path) if is_packed else read_whole(path), file_name)
                label = overrides.label if overrides is not None else ""
                run = dataclasses.replace(ours.run, label=label or ours.run.label)
                return dataclasses.replace(ours, run=run)
    except FileNotFoundError:
        raise UsageError(f"there is no file {file_name}") from None
    except OSError as error:
        raise UsageError(file_unreadable(file_name, error)) from None
    return importers.read(path, overrides or importers.Overrides(), form)


def _unpacked(path: Path) -> bytes:
    from kernelmark.workloads.importers import ResultFile

    try:
        return ResultFile(path).text.encode()
    except UsageError as error:
        raise UsageError(prefixed(error.message, f"{path}: "), hint=error.hint) from None


@about("results-file")
def read_run(ref: str, store: Store | None) -> ResultSet:
    """Return the run that `ref` names: a file, or an id, label, pinned name, `latest` or `latest~1`
    in the store."""
    if is_file(ref):
        return read_file(ref)
    if store is None:
        raise UsageError(
            f"{ref!r} is not a file, and there is no store to look in",
            hint=f"a stored run is given as km.load({ref!r})",
        )
    return store.result_set(store.run(ref).id)


def _ours(data: bytes, name: str) -> ResultSet:
    from kernelmark.core import codec
    from kernelmark.core.micro import is_old, read_old
    from kernelmark.core.result import check_results

    ours = False
    try:
        document = codec.parse(data)
        ours = isinstance(document, dict) and "kernelmark" in document
        if document == []:
            raise NothingToDo(f"{name}: there are no results in it")
        old = is_old(document)
        results = read_old(document) if old else codec.from_document(document, ResultSet)
        check_id("run", check_results(results).run.id)
    except (CodecError, UsageError) as error:
        reason = prefixed(error.message, f"{name}: ")
        hint = (
            "it is a kernelmark file, but was changed, or written by another version; export the"
            " run again: kmark export RUN --json FILE"
        )
        raise CodecError(reason, hint=error.hint or (hint if ours else None)) from None
    return results


def load_timing(timing: str | Timing) -> Timing:
    """Return the timing of a preset or TOML file; a `Timing` unchanged."""
    if isinstance(timing, str):
        return Timing.load(timing)
    if not isinstance(timing, Timing):
        raise UsageError(
            f"timing={timing!r} is not a timing",
            hint='give "quick", "default", "full", a TOML file, or a Timing',
        )
    return timing


@contextlib.contextmanager
def loaded(
    ref: str | os.PathLike[str], store_argument: StoreArgument, problems: int | None = None
) -> Iterator[tuple[Results, Store | None]]:
    """Yield the results of a run with their roofs, and the open store; None instead of the store
    if the run is in a file. A `store_argument` of None is the user's own store. Of a stored run,
    `problems` limits the results as in `Store.result_set`."""
    if not isinstance(ref, str | os.PathLike):
        raise UsageError(
            f"ref={ref!r} is not the name of a run",
            hint='give a run\'s id, its label, "latest", "latest~1", or a JSON file',
        )
    ref = os.fspath(ref)
    if is_file(ref):
        yield Results(read_run(ref, None)), None
        return
    with opened(True if store_argument is None else store_argument, readonly=True) as store:
        if store is None:
            yield Results(read_run(ref, None)), None  # raises: `ref` is not a file
            return
        from kernelmark.api.roofs import stored_roofs

        result_set = store.result_set(store.run(ref).id, problems)
        yield Results(result_set, stored_roofs(store, result_set)), store


def load(ref: str | os.PathLike[str] = "latest", *, store: StoreArgument = True) -> Results:
    """Return a stored run as `Results`.

    ref: id, label or pinned name of a run, "latest", "latest~1", …, or a file.
    store: path, URL or open store (default: $KERNELMARK_STORE, or the user's store).
    """
    with loaded(ref, store) as (results, _):
        return results
