"""Pages as HTML, JSON and CSV; the server and the static site share the templates."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import kernelmark
from kernelmark.compare.rules import preset
from kernelmark.core.files import csv_text
from kernelmark.core.printable import printable
from kernelmark.report.compare import change_text
from kernelmark.report.tables import date_text
from kernelmark.web import cells
from kernelmark.web.drawing import drawer
from kernelmark.web.pages import kernels, machines, runs
from kernelmark.web.pages.parts import BACKEND, OP, TABLE_FIELDS, Field, Page, Q, Urls

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
        fields=(
            *(_RUN, OP, BACKEND),
            *(_field("dtype", "Dtype"), Q, *TABLE_FIELDS),
        ),
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
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Names come from files: remove control characters from everything that reaches a page.
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    made.globals |= {
        "table_row": cells.table_row,
        "state": cells.state,
        "figure": cells.figure,
        "can_draw": cells.can_draw,
        "date": date_text,
        "change": change_text,
        "numbers": cells.NUMBERS,
        "version": kernelmark.__version__,
    }
    return made


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
        menu=[one for one in menu if one["href"]],
        search=urls("search"),
        twins=twins or {},
        static=static,
        figure_url=figure_url,
        live=live,
    ).encode("utf-8", "backslashreplace")


def svg_bytes(page: Page) -> bytes | None:
    """Return the page's figure as SVG; None if it has none or cannot be rendered."""
    if not page.get("figures") or not cells.can_draw():
        return None
    drawn = cells.with_page_colours(drawer().svg(page["figures"][0]["spec"]))
    return drawn.encode("utf-8", "backslashreplace")


def warm_up() -> None:
    """Preload what is slow on first use: the renderer, the templates and the default rule."""
    for name in ("parts.html", *{view.template for view in VIEWS.values()}):
        _templates().get_template(name)
    preset(runs.RULES[0])
    if cells.can_draw():
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
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
