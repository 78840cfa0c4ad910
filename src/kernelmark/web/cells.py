"""Cells of a page as HTML, one function per kind of column, and figures as SVG."""

from __future__ import annotations

import functools
import html
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from kernelmark.core.printable import printable
from kernelmark.core.units import duration_text, time_text, value_text, width_text
from kernelmark.report import vega
from kernelmark.report.compare import change_text
from kernelmark.report.figures import PALETTE
from kernelmark.report.results import MARK
from kernelmark.report.tables import NONE, date_text

NUMBERS = (
    *("time", "value", "change", "interval", "share", "count", "width", "ratio", "duration"),
    *("right", "number"),
)
# Each state has a sign, so that colour is never the only distinction.
SIGNS = {
    "slower": "▲",
    "faster": "▼",
    "broken": "✕",
    "failed": "✕",
    "fixed": "✓",
    "running": "●",
    "new": "+",
    "gone": "−",
}
_SPARK_WIDTH, _SPARK_HEIGHT = 96, 20
_FLAT = 0.02  # a smaller range is drawn flat, so that noise is not magnified
_SIMPLE: dict[str, Callable[[Any], str]] = {
    "time": time_text,
    "date": date_text,
    "change": change_text,
    "duration": lambda value: duration_text(max(0.0, value)),
    "count": "{:,}".format,
    "number": "{:.3g}".format,
    "ratio": "{:.2f} ×".format,
}
_STYLE = re.compile(r'\sstyle="[^"]*"')


def table_row(
    row: Mapping[str, Any], columns: Sequence[Mapping[str, str]], *, sortable: bool
) -> Markup:
    """Return a table row; `sortable` adds the values that a browser sorts by. Built in Python,
    because a template takes several times as long."""
    cells: list[str] = []
    for column in columns:
        kind, key = column["kind"], column["key"]
        number = " num" if kind in NUMBERS else ""
        title = f' title="{_escaped(row["why"])}"' if not cells and row.get("why") else ""
        value = f' data-v="{_escaped(_sort_text(row.get(key)))}"' if sortable else ""
        cells.append(
            f'<td class="k-{kind}{number}" data-l="{_escaped(column["title"])}"{value}{title}>'
            f"{_cell(row, key, kind)}</td>"
        )
    return Markup(f"<tr>{''.join(cells)}</tr>")


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _cell(row: Mapping[str, Any], key: str, kind: str) -> str:
    """Return a cell's content, with the row's link for it if there is one."""
    value = row.get(key)
    if kind == "spark":
        return spark(value or ())
    href = (row.get("links") or {}).get(key)
    if kind == "state":
        badge = state(str(value), suppressed=bool(row.get("suppressed")))
        return f'<a href="{_escaped(href)}">{badge}</a>' if href else badge
    shown = _escaped(_text(value, kind, row))
    if kind in ("change", "interval") and value:
        shown = f'<span class="{_direction(row, float(value))}">{shown}</span>'
    if kind == "share" and value is not None:
        shown = _bar(float(value)) + shown
    if kind == "code" and value:
        shown = f"<code>{shown}</code>"
    return f'<a href="{_escaped(href)}">{shown}</a>' if href and value else shown


def _sort_text(value: Any) -> str:
    """Return the value that a browser sorts by."""
    if isinstance(value, list):
        return str(len(value))
    return "" if value is None else str(value)


def _text(value: Any, kind: str, row: Mapping[str, Any]) -> str:
    if value is None or value == "":
        return NONE
    if kind in _SIMPLE:
        return "best" if kind == "ratio" and value == 1.0 else _SIMPLE[kind](value)
    if kind == "value":
        return value_text(float(value), str(row.get("unit") or "s"))
    if kind == "interval":
        return change_text(value, row.get("low"), row.get("high"))
    if kind == "share":
        percent = f"{100 * value:.1f} %" if value < 0.0995 else f"{100 * value:.0f} %"
        return f"{percent} {row.get('bound') or ''}".rstrip()
    if kind == "width":
        return width_text(value) + (f" {MARK}" if row.get("warned") else "")
    return str(value)


def _direction(row: Mapping[str, Any], ratio: float) -> str:
    """Return the CSS class of a change; it is coloured only if the verdict is a change."""
    judged = row.get("verdict") or row.get("state")
    if judged in ("slower", "faster"):
        return str(judged)
    return "quiet" if judged else "slower" if ratio > 1 else "faster"


def _bar(share: float) -> str:
    width = max(0.0, min(share, 1.0)) * 40
    return (
        '<svg class="bar" viewBox="0 0 40 8" width="40" height="8" aria-hidden="true">'
        '<rect class="track" width="40" height="8" rx="2"/>'
        f'<rect class="fill" width="{width:.1f}" height="8" rx="2"/></svg>'
    )


def state(name: str, *, suppressed: bool = False) -> Markup:
    """Return a status or verdict as a badge."""
    more = " suppressed" if suppressed else ""
    kind = re.sub(r"[^a-z]", "-", name.lower())
    sign = f"{SIGNS[name]} " if name in SIGNS else ""
    text = _escaped(name.replace("_", " "))
    return Markup(f'<span class="badge is-{kind}{more}">{sign}{text}{more}</span>')


def spark(values: Sequence[float | None]) -> str:
    """Return the sparkline of a series; a failure is a cross at the bottom."""
    known = [math.log(value) for value in values if value and value > 0]
    if not known:
        return NONE
    low, high = min(known), max(known)
    spare = max(_FLAT - (high - low), 0.0) / 2 + 1e-9
    low, high = low - spare, high + spare
    step = (_SPARK_WIDTH - 6) / max(len(values) - 1, 1)
    points, marks = [], []
    for i, value in enumerate(values):
        x = 3 + i * step
        if value and value > 0:
            y = 3 + (_SPARK_HEIGHT - 6) * (high - math.log(value)) / (high - low)
            points.append(f"{x:.1f},{y:.1f}")
            last = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>'
        else:
            marks.append(f'<path class="miss" d="M{x - 2:.1f},14l4,4m0,-4l-4,4"/>')
    return (
        f'<svg class="spark" width="{_SPARK_WIDTH}" height="{_SPARK_HEIGHT}" role="img" '
        f'aria-label="trend over {len(values)} runs"><polyline points="{" ".join(points)}"/>'
        f"{''.join(marks)}{last}</svg>"
    )


def can_draw() -> bool:
    """Return whether the library that renders figures is installed."""
    return vega.missing() is None


def figure(spec: Mapping[str, Any]) -> Markup:
    """Return a Vega-Lite spec as an SVG element in the page's colours; "" without a renderer."""
    return Markup(_drawn(json.dumps(spec, sort_keys=True))) if can_draw() else Markup("")


@functools.lru_cache(maxsize=256)
def _drawn(spec: str) -> str:
    return with_page_colours(vega.svg(json.loads(spec)))


def with_page_colours(svg: str) -> str:
    """Return an SVG element for embedding: the page's policy forbids inline styles, and the dark
    blue is not visible on a dark page. A stand-alone SVG keeps its own colours."""
    return _STYLE.sub("", svg).replace(f'="{PALETTE[0]}"', f'="var(--chart, {PALETTE[0]})"')
