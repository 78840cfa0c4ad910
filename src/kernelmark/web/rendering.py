"""Pages as HTML, JSON and CSV, and their cells; the server and the static site share them."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import kernelmark
from kernelmark.compare.rules import preset
from kernelmark.core.files import csv_text
from kernelmark.core.text import printable
from kernelmark.core.units import duration_text, time_text, value_text, width_text
from kernelmark.report import vega
from kernelmark.report.compare import change_text
from kernelmark.report.figures import PALETTE
from kernelmark.report.results import MARK
from kernelmark.report.tables import NONE, date_text
from kernelmark.web.drawing import drawer
from kernelmark.web.pages import kernels, machines, runs
from kernelmark.web.pages.parts import BACKEND, OP, TABLE_FIELDS, Field, Page, Q, Urls

NUMBERS = (
    *("time", "value", "change", "interval", "share", "count", "width", "ratio", "duration"),
    *("right", "number"),
)
_AS_SHOWN = ("text", "name", "code")  # what a browser sorts by is the text of the cell
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
_EXACT = 1e5  # above, a number may be a date in seconds, of which six digits are days
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
# What Vega writes into an SVG without effect: half of a figure of ten points.
_IDLE = re.compile(
    r' (?:style="[^"]*"|pointer-events="none"|opacity="1"|stroke-width="1"|role="graphics-\w+")'
    r'|<path class="(?:fore|back)ground"(?: (?:aria-hidden|d|pointer-events|display)="[^"]*")*/>'
)
_GEOMETRY = re.compile(r' (?:d|transform|x2|y2)="[^"]*"')
_LONG = re.compile(r"\d+\.\d{3,}")


def table_row(
    row: Mapping[str, Any],
    columns: Sequence[Mapping[str, str]],
    *,
    sortable: bool,
    labels: bool = True,
) -> Markup:
    """Return a table row; `sortable` adds the values that a browser sorts by, `labels` the titles
    of columns, which narrow screens show in the cells. Built in Python, because a template takes
    several times as long."""
    cells: list[str] = []
    for column in columns:
        kind, key = column["kind"], column["key"]
        number = " num" if kind in NUMBERS else ""
        title = f' title="{_escaped(row["why"])}"' if not cells and row.get("why") else ""
        shown = kind in _AS_SHOWN and isinstance(row.get(key), str)
        by = f' data-v="{_escaped(_sort_text(row.get(key)))}"' if sortable and not shown else ""
        label = f' data-l="{_escaped(column["title"])}"' if labels else ""
        cells.append(f'<td class="k-{kind}{number}"{label}{by}{title}>{_cell(row, key, kind)}</td>')
    return Markup(f"<tr>{''.join(cells)}</tr>")


def _escaped(text: str) -> str:
    return escape(printable(text))


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
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < _EXACT else repr(value)
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
    logs = [math.log(value) for value in values if value and value > 0]
    if not logs:
        return NONE
    low, high = min(logs), max(logs)
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
    svg = _GEOMETRY.sub(lambda part: _LONG.sub(_rounded, part[0]), _IDLE.sub("", svg))
    return svg.replace(f'="{PALETTE[0]}"', f'="var(--chart, {PALETTE[0]})"')


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}"


FOLDER = Path(__file__).parent
STATIC = {
    path.name: path.read_bytes() for path in sorted((FOLDER / "static").iterdir()) if path.is_file()
}
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A kind of page: its URL path, its parameters and the function that builds it."""

    path: str  # {…} are passed to `build` by name
    build: Callable[..., Page]
    template: str = "page.html"
    fields: tuple[Field, ...] = ()
    menu: str = ""


def _field(name: str, help: str) -> Field:
    return Field(name=name, help=help)


_ARCH = _field("arch", "Architecture")
_RUN = _field("run", "A run: id, label, pinned name or latest")
_METRIC = _field("metric", "Metric of a microbenchmark")
_DEVICE = _field("device", "Device")
_STATE = Field(name="state", help="State", choices=("changed", *kernels.STATES))
_RULE = Field(name="rule", help="Rule", choices=runs.RULES)
_SHOW = Field(name="show", help="Which rows", choices=("changed", "all"))
VIEWS: Mapping[str, View] = {
    "overview": View(path="/", build=kernels.overview, template="overview.html", menu="Overview"),
    "kernels": View(
        path="/kernels",
        build=kernels.kernels,
        fields=(Q, OP, BACKEND, _ARCH, _STATE, *TABLE_FIELDS),
        menu="Kernels",
    ),
    "runs": View(
        path="/runs",
        build=runs.runs,
        fields=(
            *(Q, _field("label", "Label"), _field("suite", "Suite"), _field("state", "State")),
            *TABLE_FIELDS[2:],
        ),
        menu="Runs",
    ),
    "run": View(
        path="/run/{run_id}",
        build=runs.run,
        fields=(Q, OP, BACKEND, _field("status", "Status"), *TABLE_FIELDS),
    ),
    "compare": View(
        path="/compare",
        build=runs.comparison,
        fields=(
            *(_field("base", "Base run"), _field("head", "Head run"), _RULE, _SHOW, Q),
            *TABLE_FIELDS,
        ),
        menu="Compare",
    ),
    "series": View(
        path="/series/{case_id}", build=kernels.series, fields=(_ARCH, _METRIC, *TABLE_FIELDS)
    ),
    "result": View(path="/result/{run_id}/{case_id}", build=runs.result, fields=(_DEVICE,)),
    "roofline": View(
        path="/roofline",
        build=runs.roofline,
        fields=(*(_RUN, OP, BACKEND), *(_field("dtype", "Dtype"), Q, *TABLE_FIELDS)),
        menu="Roofline",
    ),
    "charts": View(
        path="/charts",
        build=runs.charts,
        fields=(
            *(_RUN, Field(name="kind", help="Kind of chart", choices=runs.CHARTS), OP, BACKEND),
            *(_field("dtype", "Dtype"), _field("x", "Dim of the x axis")),
            *(_field("y", "Dim of the y axis"), _field("base", "Backend to compare with")),
            *(_field("head", "Backend that is compared"), Q, *TABLE_FIELDS),
        ),
        menu="Charts",
    ),
    "micro": View(
        path="/micro",
        build=machines.micro,
        template="micro.html",
        fields=(_DEVICE,),
        menu="Microbenchmarks",
    ),
    "tuning": View(path="/tuning", build=machines.tuning, menu="Tuning"),
    "session": View(path="/tuning/{name}", build=machines.session),
    "devices": View(path="/devices", build=machines.devices, fields=TABLE_FIELDS, menu="Devices"),
    "environment": View(path="/environment/{fingerprint}", build=machines.environment),
    "search": View(path="/search", build=kernels.search, fields=(Q,)),
}


def server_url(page: str, *parts: str, **query: str) -> str:
    """Return the URL of a page on the server."""
    path = VIEWS[page].path
    for part in parts:
        start, _, rest = path.partition("{")
        path = f"{start}{quote(part, safe='')}{rest.partition('}')[2]}"
    text = urlencode({name: value for name, value in query.items() if value})
    return f"{path}?{text}" if text else path


@functools.cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Names come from files: remove control characters from everything that reaches a page.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.globals |= {
        "table_row": table_row,
        "state": state,
        "figure": figure,
        "can_draw": can_draw,
        "date": date_text,
        "change": change_text,
        "numbers": NUMBERS,
        "version": kernelmark.__version__,
    }
    return environment


def html(
    name: str,
    page: Page,
    urls: Urls,
    *,
    static: Callable[[str], str] = "/static/{}".format,
    twins: Mapping[str, str | None] | None = None,
    figure_url: str = "",
    live: str = "",
) -> bytes:
    """Return the page as HTML. `live` is the URL of change events, `twins` are other formats of the
    page. The figure is loaded from `figure_url` after the page is shown, or embedded if that is
    ""."""
    menu = [
        {"text": view.menu, "href": urls(key), "current": key == name}
        for key, view in VIEWS.items()
        if view.menu
    ]
    template = _templates().get_template(VIEWS[name].template)
    return template.render(
        page={"notes": (), "filters": (), "tables": (), **page},
        name=name,
        menu=[item for item in menu if item["href"]],
        search=urls("search"),
        twins=twins or {},
        static=static,
        figure_url=figure_url,
        live=live,
    ).encode("utf-8", "backslashreplace")


def svg_bytes(page: Page) -> bytes | None:
    """Return the page's figure as SVG; None if it has none or cannot be rendered."""
    if not page.get("figures") or not can_draw():
        return None
    drawn = with_page_colours(drawer().svg(page["figures"][0]["spec"]))
    return drawn.encode("utf-8", "backslashreplace")


def warm_up() -> None:
    """Preload what is slow on first use: the renderer, the templates and the default rule."""
    for name in ("parts.html", *{view.template for view in VIEWS.values()}):
        _templates().get_template(name)
    preset(runs.RULES[0])
    if can_draw():
        drawer().svg({"data": {"values": []}, "mark": "point"})


def json_bytes(page: Page) -> bytes:
    """Return the page's data as JSON."""
    text = json.dumps(_finite(page), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def csv_bytes(page: Page) -> bytes:
    """Return the rows of the page's last table, its largest, as CSV."""
    table = page["tables"][-1] if page.get("tables") else {"rows": [], "columns": []}
    names = list(dict.fromkeys(name for row in table["rows"] for name in row if name != "links"))
    names = names or [column["key"] for column in table["columns"]]
    rows = [{name: _csv_cell(row.get(name)) for name in names} for row in table["rows"]]
    return csv_text(rows, names).encode("utf-8", "backslashreplace")


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return json.dumps(_finite(value)) if isinstance(value, list) else value


def _finite(value: Any) -> Any:
    """Return the value with None in place of non-finite floats, for JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(member) for key, member in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
