"""The dashboard server: its process, and pages that are cached as bytes and rebuilt when the store
changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.auto import AutoHTTPProtocol

import kernelmark
from kernelmark.core.errors import KernelmarkError, NothingToDo, StoreError, UsageError
from kernelmark.stores import open_store
from kernelmark.stores.store import Store
from kernelmark.web import ingest, rendering
from kernelmark.web.ingest import LOCAL_NAMES, Access, Headers
from kernelmark.web.pages.kernels import judged_parts, rows_of
from kernelmark.web.pages.parts import Field, Page
from kernelmark.web.receiving import Refusal
from kernelmark.web.rendering import VIEWS, View, server_url, warm_up
from kernelmark.web.source import Source, Summary

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
class _Rendered:
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
        self._rendered: OrderedDict[tuple[object, ...], _Rendered] = OrderedDict()
        self._bytes = 0
        self._pending: dict[tuple[object, ...], asyncio.Future[_Rendered]] = {}
        self._threads = ThreadPoolExecutor(_BUILDERS, thread_name_prefix="page")
        self._drawing = ThreadPoolExecutor(1, thread_name_prefix="figure")
        self._built: OrderedDict[tuple[object, ...], tuple[Page, int]] = OrderedDict()
        self._building = threading.Lock()

    async def page(self, name: str, form: str, params: Mapping[str, str]) -> _Rendered:
        key = (name, form, *sorted(params.items()))
        stamp = self._source.stamp
        made = self._rendered.get(key)
        if made is not None and made.stamp == stamp:
            self._rendered.move_to_end(key)
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

    def _keep(self, key: tuple[object, ...], rendered: _Rendered) -> None:
        old = self._rendered.pop(key, None)
        self._bytes += len(rendered.body) - (len(old.body) if old else 0)
        self._rendered[key] = rendered
        while len(self._rendered) > _KEPT or (
            self._bytes > _KEPT_BYTES and len(self._rendered) > 1
        ):
            self._bytes -= len(self._rendered.popitem(last=False)[1].body)

    def _make(self, name: str, form: str, params: Mapping[str, str], stamp: str) -> _Rendered:
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
        page = self._build(name, params)
        # Pages with all rows are too large to keep.
        if "rows" not in params and page[1] < 500:
            with self._building:
                self._built[key] = page
                while len(self._built) > _BUILT:
                    self._built.popitem(last=False)
        return page

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
        html = rendering.html(
            name, page, server_url, twins=twins, figure_url=figure_url, live="/events"
        )
        # The browser compares this digest to detect a changed page.
        return html.replace(_MAIN, b'%s data-digest="%s"' % (_MAIN, _digest(html).encode()), 1)


_TITLES = {"store": "The store does not answer", "internal": "Internal error"}


def _problem(error: KernelmarkError, code: str) -> Page:
    return {
        "title": _TITLES.get(code, "Not found"),
        "error": {"code": code, "message": str(error.message), "hint": str(error.hint or "")},
    }


def _figure(page: Page, stamp: str, status: int) -> _Rendered:
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


def _packed(body: bytes, stamp: str, form: str, status: int) -> _Rendered:
    return _Rendered(
        stamp=stamp,
        body=body,
        packed=gzip.compress(body, 5, mtime=0) if len(body) > _SMALL else b"",
        etag=f'"{_digest(body)}"',
        type=_TYPES[form],
        status=status,
    )


def _response(request: Request, rendered: _Rendered) -> Response:
    headers = {"etag": rendered.etag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if rendered.status == 200 and rendered.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    packed = rendered.packed and "gzip" in request.headers.get("accept-encoding", "")
    if packed:
        headers["content-encoding"] = "gzip"
    body = rendered.packed if packed else rendered.body
    return Response(body, status_code=rendered.status, media_type=rendered.type, headers=headers)


def _parse_params(request: Request, view: View) -> tuple[str, dict[str, str]]:
    """Return the format and the parameters of a request; refuse unknown or overlong ones."""
    fields = {field.name: field for field in (*view.fields, _FORMAT)}
    params: dict[str, str] = {}
    for name, value in request.query_params.items():
        field = fields.get(name)
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
    pages = _Pages(source)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        source.start()
        yield
        source.stop()
        receiver.close()

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
            return _response(request, await pages.page(name, form, params))

        async def twin(request: Request) -> Response:
            check_reader(request)
            _, params = _parse_params(request, view)
            return _response(request, await pages.page(name, "json", params))

        parts = _path_parameters(view)
        described = [_described(field) for field in view.fields]
        json_path = "/index.json" if view.path == "/" else f"{view.path}.json"
        # Register the JSON route first: the last part of a path also matches names with dots.
        app.get(
            json_path,
            name=f"{name}_json",
            openapi_extra={"parameters": [*parts, *described]},
            responses=_responses("json"),
        )(twin)
        app.get(
            view.path,
            name=name,
            openapi_extra={"parameters": [*parts, *described, _described(_FORMAT)]},
            response_class=Response,  # else JSON would be one of its types
            responses=_responses(*FORMATS),
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
    def healthz() -> dict[str, str]:
        try:
            source.store.version()
        except StoreError as error:
            raise Refusal(status=503, code="store", message=str(error.message)) from None
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

    receiver = ingest.add_routes(app, source.store, access, limits or ingest.Limits())

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
    all_headers = {**(headers or {}), **error.headers, "cache-control": "no-store"}
    return Response(body, status_code=error.status, media_type=_TYPES[form], headers=all_headers)


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


def _responses(*forms: str) -> dict[int | str, dict[str, Any]]:
    content: dict[str, Any] = {_TYPES[form].partition(";")[0]: {} for form in forms}
    return {200: {"description": "The page", "content": content}, **_ERRORS}


def _described(field: Field) -> dict[str, Any]:
    kind: dict[str, Any] = {"type": "string", "maxLength": _LONGEST}
    if field.choices:
        # A form sends an empty value for what was not chosen.
        kind = {"type": "string", "enum": ["", *filter(None, field.choices)]}
    if field.whole:
        kind = {"type": "integer", "minimum": 0, "maximum": _MOST_OFFSET}
    return {"name": field.name, "in": "query", "description": field.help, "schema": kind}


def _path_parameters(view: View) -> list[dict[str, Any]]:
    names = [part.partition("}")[0] for part in view.path.split("{")[1:]]
    kind = {"type": "string", "minLength": 1, "maxLength": _LONGEST}
    return [{"name": name, "in": "path", "required": True, "schema": kind} for name in names]


_BACKLOG = 512
_READ_ONLY = ("store-read-only", "store-folder-read-only")
IDLE_S = 15.0
_END_S = 2  # for requests in flight when the server is stopped


def _prepare(summary: Summary) -> None:
    """Compute what pages derive from a summary, before it replaces the last one."""
    rows_of(summary)
    judged_parts(summary, server_url)


def open_served(where: str | None, *, public: bool) -> Store:
    """Return the store to serve; read-only in public mode or without write permission."""
    try:
        return open_store(where, readonly=public)
    except StoreError as error:
        if error.message.code not in _READ_ONLY:
            raise
        return open_store(where, readonly=True)


def serve(
    store: Store,
    *,
    host: str,
    port: int,
    public: bool,
    tuning: Sequence[Path],
    on_message: Callable[[str], None],
) -> int:
    """Serve until a signal arrives; return the exit code 0."""
    source = Source(store, tuning, prepare=_prepare)
    bound = _bind(host, port)
    app = create_app(
        source, local=host in LOCAL_NAMES, public=public, is_closing=lambda: server.should_exit
    )
    config = uvicorn.Config(
        app,
        http=_Impatient,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_graceful_shutdown=_END_S,
        backlog=_BACKLOG,
    )
    server = uvicorn.Server(config)
    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
    shown = f"[{host}]" if ":" in host else host
    on_message(
        f"serving {store.where} at http://{shown}:{bound.getsockname()[1]}/ (Ctrl-C ends it)"
    )
    try:
        server.run(sockets=[bound])
    except KeyboardInterrupt:  # uvicorn re-raises the signal after it has shut down
        pass
    finally:
        bound.close()
    return 0


class _Impatient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Closes a connection on which no request began for a while, because it is idle or its headers
    arrive slowly; uvicorn has a limit only between the requests of a connection."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(IDLE_S, self._look, self.cycle)

    def _look(self, before: object) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is before:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(IDLE_S, self._look, self.cycle)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # asyncio disables Nagle's algorithm only for sockets with an explicit TCP protocol. With
        # Nagle, a response's body waits for the ACK of its headers, which clients delay by 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # from here on clients queue instead of being refused
    except (OSError, ValueError) as error:  # ValueError: a label that is too long, or NUL
        cause = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot serve at {host}:{port}: {cause}", hint="choose another --port or --host"
        ) from None
    return listener
