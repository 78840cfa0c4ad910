"""The dashboard server: pages are cached as bytes and rebuilt when the store changes."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

import kernelmark
from kernelmark.core.errors import KernelmarkError, NothingToDo, StoreError
from kernelmark.web import ingest, rendering
from kernelmark.web.ingest import Access, Headers, Refusal
from kernelmark.web.pages.parts import Field, Page
from kernelmark.web.rendering import VIEWS, View, server_url
from kernelmark.web.source import Source

_KEPT = 512  # pages
_KEPT_BYTES = 64 * 2**20
_BUILT = 8  # unrendered pages: a page's figure is requested right after the page
_SMALL = 1024  # bytes below which compression does not pay
_LONGEST = 300  # maximum characters of a parameter
_MOST_OFFSET = 10**9
_BUILDERS = 2  # threads that build pages: they share the GIL, so more would not help
_LISTENERS = 200
_LOOK_S = 1.0
_BEAT_S = 15.0
_TYPES = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "svg": "image/svg+xml",
}
_MAIN = b'<main id="main"'
_LOG = logging.getLogger(__name__)
FORMATS = tuple(_TYPES)
_FORMAT = Field(name="format", help="html, json, csv or svg: the figure", choices=FORMATS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A rendered page as bytes, with the stamp of the store it was built from."""

    stamp: str
    body: bytes
    packed: bytes
    etag: str
    type: str
    status: int


class _Pages:
    """A cache of pages by address; each is built once per change of the store."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._made: OrderedDict[tuple[object, ...], _Made] = OrderedDict()
        self._bytes = 0
        self._pending: dict[tuple[object, ...], asyncio.Future[_Made]] = {}
        self._threads = ThreadPoolExecutor(_BUILDERS, thread_name_prefix="page")
        self._drawing = ThreadPoolExecutor(1, thread_name_prefix="figure")
        self._built: OrderedDict[tuple[object, ...], tuple[Page, int]] = OrderedDict()
        self._building = threading.Lock()

    async def page(self, name: str, form: str, params: Mapping[str, str]) -> _Made:
        key = (name, form, *sorted(params.items()))
        stamp = self._source.stamp
        made = self._made.get(key)
        if made is not None and made.stamp == stamp:
            self._made.move_to_end(key)
            return made
        waiting = self._pending.get(key)
        if waiting is None:
            loop = asyncio.get_running_loop()
            threads = self._drawing if form == "svg" else self._threads
            waiting = loop.run_in_executor(threads, self._make, name, form, params, stamp)
            self._pending[key] = waiting
            waiting.add_done_callback(lambda _: self._pending.pop(key, None))
        made = await asyncio.shield(waiting)
        if made.status < 500:  # do not cache errors: a locked store may be free at the next request
            self._keep(key, made)
        return made

    def _keep(self, key: tuple[object, ...], made: _Made) -> None:
        old = self._made.pop(key, None)
        self._bytes += len(made.body) - (len(old.body) if old else 0)
        self._made[key] = made
        while len(self._made) > _KEPT or (self._bytes > _KEPT_BYTES and len(self._made) > 1):
            self._bytes -= len(self._made.popitem(last=False)[1].body)

    def _make(self, name: str, form: str, params: Mapping[str, str], stamp: str) -> _Made:
        whole = {**params, "rows": "all"} if form == "csv" else params
        page, status = self._page(name, whole, stamp)
        if form == "svg":
            return _figure(page, stamp, status)
        return _packed(self._render(name, form, page, params, status), stamp, form, status)

    def _page(self, name: str, params: Mapping[str, str], stamp: str) -> tuple[Page, int]:
        """Return the unrendered page and its HTTP status."""
        key = (stamp, name, *sorted(params.items()))
        with self._building:
            if key in self._built:
                return self._built[key]
        made = self._build(name, params)
        # Pages with all rows are too large to keep.
        if "rows" not in params and made[1] < 500:
            with self._building:
                self._built[key] = made
                while len(self._built) > _BUILT:
                    self._built.popitem(last=False)
        return made

    def _build(self, name: str, params: Mapping[str, str]) -> tuple[Page, int]:
        try:
            return VIEWS[name].build(self._source, server_url, params), 200
        except StoreError as error:
            return _problem(error, "store"), 503
        except NothingToDo as error:
            return _problem(error, "nothing"), 404
        except KernelmarkError as error:
            return _problem(error, "usage"), 404
        except Exception:
            _LOG.exception("page %s", name)
            return _problem(KernelmarkError("this page could not be made"), "internal"), 500

    def _render(
        self, name: str, form: str, page: Page, params: Mapping[str, str], status: int
    ) -> bytes:
        if form == "json":
            return rendering.json_bytes(page)
        if form == "csv":
            return rendering.csv_bytes(page)
        parts = [value for key, value in params.items() if "{" + key + "}" in VIEWS[name].path]
        query = {k: v for k, v in params.items() if "{" + k + "}" not in VIEWS[name].path}
        address = server_url(name, *parts, **query)
        join = "&" if "?" in address else "?"
        twins = {"JSON": f"{address}{join}format=json"}
        if page.get("tables"):
            twins["CSV"] = f"{address}{join}format=csv"
        figure_url = f"{address}{join}format=svg" if page.get("figures") else ""
        if figure_url:
            twins["SVG"] = figure_url
        if status != 200:
            return rendering.html("search", page, server_url)
        made = rendering.html(
            name, page, server_url, twins=twins, figure_url=figure_url, live="/events"
        )
        # The browser compares this digest to detect a changed page.
        return made.replace(_MAIN, b'%s data-digest="%s"' % (_MAIN, _digest(made).encode()), 1)


_TITLES = {"store": "The store does not answer", "internal": "Internal error"}


def _problem(error: KernelmarkError, code: str) -> Page:
    return {
        "title": _TITLES.get(code, "Not found"),
        "error": {"code": code, "message": str(error.message), "hint": str(error.hint or "")},
    }


def _figure(page: Page, stamp: str, status: int) -> _Made:
    """Return the page's figure as SVG, or an error as JSON."""
    if status == 200:
        try:
            drawn = rendering.svg_bytes(page)
        except KernelmarkError as error:
            page, status = _problem(error, "internal"), 500
        else:
            if drawn is not None:
                return _packed(drawn, stamp, "svg", status)
            page, status = _problem(NothingToDo("this page has no figure"), "nothing"), 404
    return _packed(_error_json(page), stamp, "json", status)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:24]


def _packed(body: bytes, stamp: str, form: str, status: int) -> _Made:
    return _Made(
        stamp=stamp,
        body=body,
        packed=gzip.compress(body, 5, mtime=0) if len(body) > _SMALL else b"",
        etag=f'"{_digest(body)}"',
        type=_TYPES[form],
        status=status,
    )


def _response(request: Request, made: _Made) -> Response:
    headers = {"etag": made.etag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if made.status == 200 and made.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    packed = made.packed and "gzip" in request.headers.get("accept-encoding", "")
    if packed:
        headers["content-encoding"] = "gzip"
    body = made.packed if packed else made.body
    return Response(body, status_code=made.status, media_type=made.type, headers=headers)


def _parse_params(request: Request, view: View) -> tuple[str, dict[str, str]]:
    """Return the format and the parameters of a request; refuse unknown or overlong ones."""
    known = {field.name: field for field in (*view.fields, _FORMAT)}
    params: dict[str, str] = {}
    for name, value in request.query_params.items():
        field = known.get(name)
        if field is None:
            raise Refusal(status=400, code="parameter", message=f"unknown parameter {name[:40]!r}")
        if len(value) > _LONGEST:
            raise Refusal(status=400, code="parameter", message=f"{name} is too long")
        if value and field.choices and value not in field.choices:
            choices = ", ".join(field.choices)
            raise Refusal(status=400, code="parameter", message=f"{name} is one of: {choices}")
        if value and field.whole and not (value.isascii() and value.isdigit()):
            raise Refusal(status=400, code="parameter", message=f"{name} is a whole number")
        if value and field.whole and int(value[:20]) > _MOST_OFFSET:
            raise Refusal(status=400, code="parameter", message=f"{name} is too large")
        if value:
            params[name] = value
    form = params.pop("format", "html")
    for name, value in request.path_params.items():
        if len(value) > _LONGEST:
            raise Refusal(status=400, code="parameter", message=f"{name} is too long")
        params[name] = value
    return form, params


def create_app(
    source: Source,
    *,
    local: bool = True,
    public: bool = False,
    limits: ingest.Limits | None = None,
    is_closing: Callable[[], bool] = lambda: False,
) -> FastAPI:
    """Return the application. `local` serves this machine only, without tokens; `public` serves
    everyone, read-only."""
    access = Access(source.store, local=local, public=public)
    made = _Pages(source)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        source.start()
        yield
        source.stop()

    app = FastAPI(
        title="kernelmark",
        version=kernelmark.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
    )
    app.add_middleware(Headers)

    def check_reader(request: Request) -> None:
        access.check_host(request.headers.get("host", ""))
        address = request.client.host if request.client else ""
        access.check_read(request.headers.get("authorization", ""), address)

    def add_page(name: str, view: View) -> None:
        async def page(request: Request) -> Response:
            check_reader(request)
            form, params = _parse_params(request, view)
            return _response(request, await made.page(name, form, params))

        async def twin(request: Request) -> Response:
            check_reader(request)
            _, params = _parse_params(request, view)
            return _response(request, await made.page(name, "json", params))

        parts = _path_parameters(view)
        described = [_described(field) for field in view.fields]
        json_path = "/index.json" if view.path == "/" else f"{view.path}.json"
        # Register the JSON route first: the last part of a path also matches names with dots.
        app.get(
            json_path,
            name=f"{name}_json",
            openapi_extra={"parameters": [*parts, *described]},
            responses=_ERRORS,
        )(twin)
        app.get(
            view.path,
            name=name,
            openapi_extra={"parameters": [*parts, *described, _described(_FORMAT)]},
            responses=_ERRORS,
        )(page)

    for name, view in VIEWS.items():
        add_page(name, view)

    @app.get("/static/{name}", responses=_ERRORS)
    async def static(name: str, request: Request) -> Response:
        access.check_host(request.headers.get("host", ""))
        if name not in rendering.STATIC:
            raise Refusal(status=404, code="nothing", message="there is no such file")
        body = rendering.STATIC[name]
        etag = f'"{_digest(body)}"'
        headers = {"etag": etag, "cache-control": "max-age=60"}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        kind = rendering.TYPES[f".{name.rpartition('.')[2]}"]
        return Response(body, media_type=kind, headers=headers)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "version": kernelmark.__version__}

    listeners = [0]

    @app.get("/events", include_in_schema=False)
    async def events(request: Request) -> Response:
        check_reader(request)
        if listeners[0] >= _LISTENERS:
            raise Refusal(status=503, code="busy", message="too many open pages")

        async def changes() -> AsyncIterator[str]:
            listeners[0] += 1
            try:
                last, quiet_s = source.stamp, 0.0
                yield f"retry: 3000\ndata: {last}\n\n"
                while not is_closing() and not await request.is_disconnected():
                    await asyncio.sleep(_LOOK_S)
                    quiet_s += _LOOK_S
                    if (now := source.stamp) != last:
                        last, quiet_s = now, 0.0
                        yield f"data: {now}\n\n"
                    elif quiet_s >= _BEAT_S:
                        quiet_s = 0.0
                        yield ": still here\n\n"
            finally:
                listeners[0] -= 1

        headers = {"cache-control": "no-store"}
        return StreamingResponse(changes(), media_type="text/event-stream", headers=headers)

    ingest.add_routes(app, source.store, access, limits or ingest.Limits())

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return _refused(request, error)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        message = "there is no such page" if error.status_code == 404 else str(error.detail)
        code = "nothing" if error.status_code == 404 else "request"
        refusal = Refusal(status=error.status_code, code=code, message=message)
        return _refused(request, refusal, dict(error.headers or {}))

    return app


def _refused(
    request: Request, error: Refusal, headers: Mapping[str, str] | None = None
) -> Response:
    page: Page = {
        "title": "Refused" if error.status != 404 else "Not found",
        "error": {"code": error.code, "message": error.message, "hint": ""},
    }
    wants_page = "text/html" in request.headers.get("accept", "")
    plain = request.url.path.startswith("/api/") or request.url.path.endswith(".json")
    form = "html" if wants_page and not plain else "json"
    body = rendering.html("search", page, server_url) if form == "html" else _error_json(page)
    given = {**(headers or {}), **error.headers, "cache-control": "no-store"}
    return Response(body, status_code=error.status, media_type=_TYPES[form], headers=given)


def _error_json(page: Page) -> bytes:
    return rendering.json_bytes({"error": page["error"]})


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text}
    for status, text in (
        (400, "An unknown or impossible parameter"),
        (401, "A token is needed"),
        (404, "There is no such thing"),
        (421, "Another site's name for this machine"),
        (429, "Too many requests"),
        (503, "The store does not answer"),
    )
}


def _described(field: Field) -> dict[str, Any]:
    kind: dict[str, Any] = {"type": "string", "maxLength": _LONGEST}
    if field.choices:
        kind = {"type": "string", "enum": list(field.choices)}
    if field.whole:
        kind = {"type": "integer", "minimum": 0, "maximum": _MOST_OFFSET}
    return {"name": field.name, "in": "query", "description": field.help, "schema": kind}


def _path_parameters(view: View) -> list[dict[str, Any]]:
    names = [part.partition("}")[0] for part in view.path.split("{")[1:]]
    kind = {"type": "string", "minLength": 1, "maxLength": _LONGEST}
    return [{"name": name, "in": "path", "required": True, "schema": kind} for name in names]
