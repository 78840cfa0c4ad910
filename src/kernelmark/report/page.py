"""Reports of runs as a single file: Markdown, or HTML that needs no network and no script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from kernelmark.core.environment import Environment
from kernelmark.core.errors import NothingToDo
from kernelmark.core.metric import Roof
from kernelmark.core.micro import is_micro
from kernelmark.core.reason import shorten
from kernelmark.core.result import ResultSet
from kernelmark.core.text import markdown_cell, printable
from kernelmark.core.units import bytes_text
from kernelmark.report import figures, vega
from kernelmark.report.changes import Change, movers_table, ranked
from kernelmark.report.changes import answer as changes_answer
from kernelmark.report.micro import result_tables
from kernelmark.report.names import rerun
from kernelmark.report.results import ResultRow
from kernelmark.report.summary import (
    answer,
    collect_warnings,
    find_failures,
    mark_text,
    status_summary,
    wins_table,
)
from kernelmark.report.tables import Column, Table, date_text, html_table, markdown

_KINDS = ("roofline", "bars", "sweep", "heatmap")  # kinds with nothing to draw are left out
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --quiet: #59636e; --paper: #fbfbfc; --card: #fff;
  --line: #d9dee4; --soft: #f1f3f6; --mark: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7ebf0; --quiet: #9aa5b1; --paper: #0f1318; --card: #161b22; --line: #303843;
    --soft: #1d242d; --mark: #56b4e9; }
}
* { box-sizing: border-box; }
body { margin: 2rem auto; max-width: 80rem; padding: 0 1.25rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; letter-spacing: -.015em; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem; }
.answer { font-size: 1.1rem; margin: .7rem 0; padding: .8rem 1.1rem; background: var(--card);
  border: 1px solid var(--line); border-left: 5px solid var(--mark); border-radius: 10px; }
.wide, figure { overflow-x: auto; margin: 1rem 0; background: var(--card);
  border: 1px solid var(--line); border-radius: 10px; }
figure { padding: 1rem; } figure svg { display: block; max-width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: .87rem; }
th, td { padding: .35rem .65rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
td:first-child { white-space: normal; min-width: 11rem; overflow-wrap: anywhere; }
thead th { background: var(--soft); color: var(--quiet); font-size: .8rem; }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 8px;
  padding: .6rem .8rem;
  overflow-x: auto; font-size: .82rem; }
caption { text-align: left; font-weight: 600; padding: .6rem .65rem; }
@media (max-width: 40rem) { body { margin: 1rem auto; padding: 0 .85rem; }
  figure svg { max-width: none; } }
@media print { .wide, figure { break-inside: avoid; } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run of a report."""

    results: ResultSet
    rows: Sequence[ResultRow]
    roofs: Sequence[Roof] = ()
    # memory roofs that no percentage refers to: lines of the roofline only
    levels: Sequence[Roof] = ()
    notes: Sequence[str] = ()

    @property
    def timed(self) -> list[ResultRow]:
        """The rows whose metric is time."""
        return [row for row in self.rows if not is_micro(row.result.case)]

    @property
    def shown(self) -> list[Table]:
        """The tables of results, after the table of wins if backends are compared."""
        wins = wins_table(self.timed)
        tables = result_tables(self.timed, self.results.results)
        return tables if wins is None else [wins, *tables]

    @property
    def name(self) -> str:
        run = self.results.run
        return f"{run.label} ({run.id})" if run.label else run.id


def html_page(
    parts: Sequence[Part], title: str, *, drawn: bool = True, changes: Sequence[Change] = ()
) -> str:
    """Return the report as HTML. `drawn` adds figures, which need vl-convert; `changes` compare the
    last part with the first."""
    body = [f"<h1>{_escaped(title)}</h1>"]
    if changes:
        body.append(f"<h2>{_escaped(_compared(parts))}</h2>")
        body.append(f'<p class="answer">{_escaped(_capital(_answer(changes)))}.</p>')
        if moved := ranked(changes):
            body.append(f'<div class="wide">{html_table(movers_table(moved))}</div>')
        body += [f"<figure>{svg}</figure>" for svg in (_changes_figure(changes) if drawn else ())]
    for part in parts:
        body += _section(part, drawn=drawn)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_escaped(title)}</title><style>{_STYLE}</style></head>\n<body>"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _compared(parts: Sequence[Part]) -> str:
    return f"From {parts[0].name} to {parts[-1].name}"


def _answer(changes: Sequence[Change]) -> str:
    return shorten(changes_answer(changes))


def _changes_figure(changes: Sequence[Change]) -> list[str]:
    try:
        spec = figures.changes(changes)
    except NothingToDo:
        return []
    return [_inline(figures.themed(spec, title=figures.TITLES["changes"], inline=True))]


def _section(part: Part, *, drawn: bool) -> list[str]:
    run = part.results.run
    sentences: Sequence[str] = answer(part.rows) or [status_summary(part.rows) or "no results"]
    lines = [
        f"<h2>Run {_escaped(part.name)}, {date_text(run.started)}</h2>",
        *(f'<p class="answer">{_escaped(_capital(line, part.rows))}.</p>' for line in sentences),
        f"<p>{_escaped(status_summary(part.rows) or 'no results')}</p>",
        *(f'<div class="wide">{html_table(table)}</div>' for table in part.shown),
    ]
    lines += [f"<figure>{svg}</figure>" for svg in (_figures(part) if drawn else ())]
    failures = find_failures(part.rows)
    if failures:
        lines.append("<h2>Failures</h2>")
    for failure in failures:
        again = _escaped("\n".join(failure.commands()))
        lines.append(
            f"<p>{_escaped(failure.sentence)}</p>" + (f"<pre>{again}</pre>" if again else "")
        )
    warned = _warnings(part)
    if warned:
        items = "".join(f"<li>{_escaped(text)}</li>" for text in warned)
        mark = mark_text(part.rows)
        lines.append(f"<h2>Warnings</h2>{f'<p>{mark}:</p>' if mark else ''}<ul>{items}</ul>")
    commands = [line for line in (rerun(row.result) for row in part.rows) if line]
    lines.append("<h2>Environment</h2>")
    lines.append(f'<div class="wide">{html_table(environment_table(run.environment))}</div>')
    if commands:
        shown = _escaped("\n".join(commands))
        lines.append(f"<h2>Commands that repeat each row</h2><pre>{shown}</pre>")
    return lines


def markdown_page(parts: Sequence[Part], title: str, changes: Sequence[Change] = ()) -> str:
    """Return the report as Markdown, without figures."""
    lines = [f"# {markdown_cell(title)}", ""]
    if changes:
        lines += [f"## {markdown_cell(_compared(parts))}", ""]
        lines += [f"**{markdown_cell(_capital(_answer(changes)))}.**", ""]
        if moved := ranked(changes):
            lines += [markdown(movers_table(moved)), ""]
    for part in parts:
        run = part.results.run
        sentences: Sequence[str] = answer(part.rows) or [status_summary(part.rows) or "no results"]
        lines += [f"## Run {markdown_cell(part.name)}, {date_text(run.started)}", ""]
        lines += [f"**{markdown_cell(_capital(line, part.rows))}.**" for line in sentences]
        for table in part.shown:
            lines += ["", markdown(table)]
        for failure in find_failures(part.rows):
            lines += [f"- {markdown_cell(failure.sentence)}"]
            lines += [f"  - `{markdown_cell(command)}`" for command in failure.commands()]
        if mark := mark_text(part.rows):
            lines += ["", f"{mark}:", ""]
        lines += [f"- {markdown_cell(text)}" for text in _warnings(part)]
        lines += ["", markdown(environment_table(run.environment))]
    return "\n".join(lines) + "\n"


def environment_table(environment: Environment) -> Table:
    """Return a table of the host, devices, libraries and variables of a run."""
    pairs = [("host", environment.host), ("os", environment.os), ("python", environment.python)]
    pairs += [("kernelmark", environment.kernelmark_version), ("container", environment.container)]
    pairs += [("commit", environment.commit + (" (changed)" if environment.dirty else ""))]
    for info in environment.devices:
        facts = [info.model, info.arch, f"{info.units} units", bytes_text(info.memory_bytes)]
        pairs.append((info.name, ", ".join(filter(None, facts))))
    pairs += list(environment.libraries.items()) + [
        (f"${k}", v) for k, v in environment.variables.items()
    ]
    return Table(
        columns=(Column(name="what"), Column(name="is")),
        rows=tuple((name, value) for name, value in pairs if value),
    )


def figure_specs(part: Part, *, inline: bool = False) -> dict[str, vega.Spec]:
    """Return the figures of a run by kind, without those that have nothing to draw."""
    specs = {}
    for kind in _KINDS:
        more = {"roofs": [*part.roofs, *part.levels]} if kind == "roofline" else {}
        try:
            spec = figures.RESULT_KINDS[kind](part.timed, **more)
        except NothingToDo:
            continue
        specs[kind] = figures.themed(
            spec, title=figures.TITLES[kind], subtitle=part.name, inline=inline
        )
    return specs


def _figures(part: Part) -> list[str]:
    return [_inline(spec) for spec in figure_specs(part, inline=True).values()]


def _inline(spec: vega.Spec) -> str:
    """Return a figure as SVG in the page's colours: the dark blue is hard to see on dark."""
    return vega.svg(spec).replace(f'="{figures.PALETTE[0]}"', '="var(--mark)"')


def _warnings(part: Part) -> list[str]:
    warnings = list(map(str, collect_warnings(part.rows)))
    return [*warnings, *part.notes]


def _escaped(text: str) -> str:
    """Return untrusted text as HTML, without control characters."""
    return html.escape("\n".join(map(printable, text.split("\n"))))


def _capital(line: str, rows: Sequence[ResultRow] = ()) -> str:
    """Return the line with a capital, unless it begins with the name of a backend of the rows."""
    named = any(line.startswith((f"{row.backend} ", f"{row.backend},")) for row in rows)
    return line if named else line[:1].upper() + line[1:]
