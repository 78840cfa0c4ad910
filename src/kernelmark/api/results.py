"""Results: what `run` and `bench` return; a sequence that prints as a table.

The code for tables is imported on demand, because callers of km.bench may only want the number.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from kernelmark.core.errors import UsageError
from kernelmark.core.metric import Roof
from kernelmark.core.micro import is_micro
from kernelmark.core.reason import NAME_SETTINGS
from kernelmark.core.result import Result, ResultSet, Run, Status
from kernelmark.core.text import markdown_cell
from kernelmark.core.timing import PRESETS

if TYPE_CHECKING:
    from kernelmark.compare.match import By
    from kernelmark.compare.verdicts import Comparison
    from kernelmark.core.files import Cell
    from kernelmark.report.results import ResultRow
    from kernelmark.report.tables import Table


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
        """Return the fastest correct result of each problem."""
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
        shown = "".join(map(html_table, self.all_tables))
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
