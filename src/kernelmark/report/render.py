"""Tables as text, Markdown and HTML; results as flat records."""

from __future__ import annotations

import html
import json
import math
import shutil
import sys
from collections.abc import Mapping, Sequence

from kernelmark.core.files import Cell
from kernelmark.core.micro import is_micro
from kernelmark.core.problem import Option
from kernelmark.core.result import Measurement, Result, ResultSet, config_key
from kernelmark.core.text import markdown_cell
from kernelmark.report.draw import draw
from kernelmark.report.tables import BESIDE, Row, Table

# Columns of every CSV of results, before those of the parameters.
COLUMNS = (
    *("run", "label", "case", "started", "op", "problem", "backend", "config", "device", "arch"),
    *("cache", "timer", "strain", "duty", "threads", "status", "median_s", "low_s", "high_s"),
    *("modes", *BESIDE, "clock_mhz", "blocks", "samples", "stop", "method", "flops", "bytes"),
    *("flops_per_s", "bytes_per_s", "roof_share", "roof_bound", "roof_per_s", "error_worst"),
    *("kernel", "compile_s", "warnings", "error"),
)
METRIC_COLUMNS = ("metric", "value", "unit")  # last, if any result has metrics
_TAKEN = frozenset((*COLUMNS, *METRIC_COLUMNS))


def text(table: Table) -> str:
    """Return aligned columns for a pipe or a file; cells of several lines stay in their column."""
    return "".join(f"{line.text}\n" for line in draw(table))


def printed(table: Table) -> str:
    """Return a table for `print`, folded to the terminal's width if stdout is a terminal."""
    terminal = getattr(sys.stdout, "isatty", lambda: False)()
    width = shutil.get_terminal_size().columns if terminal else math.inf
    return "".join(f"{line.text}\n" for line in draw(table, width))


def markdown(table: Table) -> str:
    """Return a GitHub Markdown table."""
    rule = ["---:" if column.align == "right" else "---" for column in table.columns]
    lines = [f"### {markdown_cell(table.title)}", ""] if table.title else []
    lines += [_pipes([column.name for column in table.columns]), _pipes(rule)]
    lines += [_pipes(row) for row in table.rows]
    return "\n".join(lines) + "\n"


def html_table(table: Table) -> str:
    """Return an HTML table element with escaped cells."""

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f'<{tag} style="text-align:{column.align}">{html.escape(value)}</{tag}>'
            for column, value in zip(table.columns, values, strict=True)
        )

    head = cells("th", [column.name for column in table.columns])
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in table.rows)
    caption = f"<caption>{html.escape(table.title)}</caption>" if table.title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_list(items: Sequence[str]) -> str:
    """Return an HTML list element with escaped items; "" without items."""
    made = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f"<ul>{made}</ul>" if made else ""


def records(results: ResultSet, rows: Sequence[Row]) -> list[dict[str, Cell]]:
    """Return one flat record per result, in seconds and bytes, with the union of all problems'
    parameters after the common columns. If any result has metrics: one record per metric, time
    included."""
    parameters = _parameter_columns(rows)
    every = [_record(results, row, parameters) for row in rows]
    if not any(row.result.metrics for row in rows):
        return every
    pairs = zip(every, rows, strict=True)
    return [record | value for record, row in pairs for value in _metrics(row.result)]


def columns(rows: Sequence[Row]) -> list[str]:
    """Return the names in `records`, which a run without results has too."""
    metrics = METRIC_COLUMNS if any(row.result.metrics for row in rows) else ()
    return [*COLUMNS, *_parameter_columns(rows).values(), *metrics]


def _parameter_columns(rows: Sequence[Row]) -> dict[str, str]:
    """Return the column of each parameter: its name, or `param_NAME` if NAME is another column."""
    names: dict[str, None] = {}
    for row in rows:
        problem = row.result.case.problem
        names |= dict.fromkeys((*problem.dims, *problem.dtypes, *problem.options))
    found = {}
    for name in names:
        column = name
        while column in _TAKEN or (column != name and column in names):
            column = f"param_{column}"
        found[name] = column
    return found


def _metrics(result: Result) -> list[dict[str, Cell]]:
    """Return the metrics of a result, or its time; the value of a failure is None."""
    if result.metrics:
        return [{"metric": m.name, "value": m.value, "unit": m.unit} for m in result.metrics]
    median = result.measurement.median_s if result.measurement else None
    name = None if is_micro(result.case) else "time"
    return [{"metric": name, "value": median, "unit": "s" if name else None}]


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(markdown_cell, cells))} |"


def _record(results: ResultSet, row: Row, parameters: Mapping[str, str]) -> dict[str, Cell]:
    result, case = row.result, row.result.case
    measured, problem = result.measurement, result.case.problem
    values: dict[str, Cell] = {**problem.dims, **problem.dtypes}
    values |= {name: _option(value) for name, value in problem.options.items()}
    record: dict[str, Cell] = {
        "run": results.run.id,
        "label": results.run.label,
        "case": case.id,
        "started": result.started,
        "op": problem.op,
        "problem": problem.key,
        "backend": case.backend,
        "config": config_key(case.config),
        "device": result.device,
        "arch": result.arch,
        "cache": case.timing.cache.value,
        "timer": case.timing.timer.value,
        "strain": case.timing.strain.value,
        "duty": case.timing.duty.value,
        "threads": case.timing.threads,
        "status": result.status.value,
        "median_s": measured.median_s if measured else None,
        "low_s": measured.low_s if measured else None,
        "high_s": measured.high_s if measured else None,
        "modes": _modes(measured) if measured and measured.modes else None,
        **{name: measured.also.get(name) if measured else None for name in BESIDE},
        "clock_mhz": measured.clock_mhz if measured else None,
        "blocks": len(measured.blocks) if measured else 0,
        "samples": measured.samples if measured else 0,
        "stop": measured.stop.value if measured else None,
        "method": measured.method if measured else None,
        "flops": result.flops,
        "bytes": result.bytes,
        "flops_per_s": result.flops_per_s,
        "bytes_per_s": result.bytes_per_s,
        "roof_share": row.share.value if row.share else None,
        "roof_bound": row.share.bound if row.share else None,
        "roof_per_s": row.share.roof.value if row.share else None,
        "error_worst": result.check.worst if result.check else None,
        "kernel": result.kernel.name,
        "compile_s": result.kernel.compile_s,
        "warnings": json.dumps(measured.warnings, ensure_ascii=False) if measured else None,
        "error": result.error,
    }
    return record | {column: values.get(name) for name, column in parameters.items()}


def _modes(measured: Measurement) -> str:
    """Return [seconds, share] of each mode, as JSON."""
    return json.dumps([[mode.value_s, mode.share] for mode in measured.modes])


def _option(value: Option) -> Cell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value
