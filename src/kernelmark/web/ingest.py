"""The API of the dashboard: tokens, runs that are pushed, and accepted regressions."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from kernelmark.api.compare import accept, history, unaccept
from kernelmark.core import codec
from kernelmark.core.errors import NothingToDo, StoreError, UsageError
from kernelmark.core.result import ResultSet
from kernelmark.stores.store import Scope, Store, Token
from kernelmark.web.receiving import Receiver, Refusal

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_FAILURES = 30  # failed tokens per address and minute
_REMEMBERED = 10_000
# Only same-origin scripts, styles, images and requests; no embedding in either direction.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class Limiter:
    """A rate limit of `most` events per key and window."""

    def __init__(self, most: int, window_s: float = 60.0) -> None:
        self._most = most
        self._window_s = window_s
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}

    def wait_s(self, key: str, *, count: int = 1) -> float:
        """Count an event and return the seconds to wait; 0 if it is within the limit."""
        now = time.monotonic()
        with self._lock:
            if len(self._seen) > _REMEMBERED:
                self._seen.clear()
            began, seen = self._seen.get(key, (now, 0))
            if now - began >= self._window_s:
                began, seen = now, 0
            self._seen[key] = (began, seen + count)
            return self._window_s - (now - began) if seen + count > self._most else 0.0


class Access:
    """Permissions of a request, by its origin and token."""

    def __init__(self, store: Store, *, local: bool, public: bool) -> None:
        self._store = store
        self._local = local
        self._public = public
        self._failures = Limiter(_FAILURES)

    def check_host(self, host: str) -> None:
        """Refuse foreign host names: by DNS rebinding to 127.0.0.1, scripts of another site could
        read a local server's pages."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self._local and name.strip("[]").lower() not in LOCAL_NAMES:
            raise Refusal(
                status=421, code="unknown-host", message="this server answers to localhost only"
            )

    def check_read(self, authorization: str, address: str) -> None:
        """Refuse reading without a token, except locally and in public mode."""
        if not (self._local or self._public):
            self._token(authorization, address, bearer_only=False)

    def check_write(self, authorization: str, address: str) -> Token:
        """Return the token of a push. CSRF is not possible: no form can set the header."""
        if self._public or self._store.readonly:
            raise Refusal(status=403, code="read-only", message="this server is read-only")
        token = self._token(authorization, address, bearer_only=True)
        if token.scope is not Scope.WRITE:
            raise Refusal(status=403, code="scope", message="this token may only read")
        return token

    def _token(self, authorization: str, address: str, *, bearer_only: bool) -> Token:
        secret = _secret(authorization, bearer_only=bearer_only)
        token = self._store.find_token(secret) if secret else None
        if token is not None:
            return token
        wait_s = self._failures.wait_s(address) if secret else 0.0
        if wait_s:
            raise too_many(wait_s)
        scheme = "Bearer" if bearer_only else 'Basic realm="kernelmark", charset="UTF-8"'
        raise Refusal(
            status=401,
            code="unknown-token" if secret else "token",
            message="this token is not known here, or was revoked"
            if secret
            else "a token is needed: kmark token create makes one",
            headers={"www-authenticate": scheme},
        )


def too_many(wait_s: float) -> Refusal:
    return Refusal(
        status=429,
        code="rate",
        message="too many requests",
        headers={"retry-after": str(int(wait_s) + 1)},
    )


def _secret(authorization: str, *, bearer_only: bool) -> str:
    """Return the token of a header: `Bearer TOKEN`, or the password of `Basic`, for browsers."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() != "basic" or bearer_only:
        return ""
    try:
        return base64.b64decode(rest, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


class Headers:
    """Middleware that adds the security headers to every response, and answers HEAD."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        # HEAD is answered as GET without the body; the stream of events has no end.
        head = scope.get("method") == "HEAD" and scope["path"] != "/events"

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given: Iterable[tuple[bytes, bytes]] = message.get("headers", ())
                message["headers"] = [*given, *HEADERS]
            elif head and message["type"] == "http.response.body":
                message["body"] = b""
            await send(message)

        await self._app({**scope, "method": "GET"} if head else scope, receive, with_headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a request's size and duration, of all bodies together, and of a token's rate."""

    body_bytes: int = 32 * 2**20
    body_s: float = 60.0
    bodies_bytes: int = 128 * 2**20
    requests_per_min: int = 1200


def add_routes(app: FastAPI, store: Store, access: Access, limits: Limits) -> Receiver:
    """Add the routes for pushing runs and for accepting regressions; return what stores runs, to be
    closed."""
    rate = Limiter(limits.requests_per_min)
    receiver = Receiver(store)
    bodies = _Bodies(limits)
    # Its own thread: pages do not wait for pushes, which are stored one at a time.
    threads = ThreadPoolExecutor(1, thread_name_prefix="push")

    def check_writer(request: Request) -> Token:
        access.check_host(request.headers.get("host", ""))
        address = request.client.host if request.client else ""
        token = access.check_write(request.headers.get("authorization", ""), address)
        if wait_s := rate.wait_s(token.name):
            raise too_many(wait_s)
        return token

    def stored_results(run_id: str) -> dict[str, Any]:
        try:
            stored = store.checksums(run_id)
        except StoreError as error:
            raise Refusal(status=503, code="store", message=str(error.message)) from None
        except UsageError as error:
            raise Refusal(status=404, code="nothing", message=str(error.message)) from None
        run_ids = sorted(stored)
        return {
            "run": run_id,
            "results": len(run_ids),
            "positions": [list(item) for item in run_ids],
            "checksums": [stored[item] for item in run_ids],
        }

    @app.post("/api/runs", openapi_extra=_BODY, responses=_RESPONSES)
    async def push(request: Request) -> JSONResponse:
        """Store results of a run; results that are already stored are kept."""
        check_writer(request)
        async with bodies.read(request) as body:
            loop = asyncio.get_running_loop()
            return JSONResponse(await loop.run_in_executor(threads, receiver.receive, body))

    def decide(document: Mapping[str, Any], author: str) -> dict[str, Any]:
        series, reason = document.get("series"), document.get("reason", "")
        if not isinstance(series, str) or not isinstance(reason, str):
            raise Refusal(status=400, code="document", message="series and reason are texts")
        try:
            series_story = next((s for s in history(store).stories if s.series == series), None)
            if series_story is None:
                raise Refusal(status=404, code="nothing", message="there is no such series")
            if document.get("accepted", True):
                accept(store, [series_story], reason, author)
            else:
                unaccept(store, series_story)
        except StoreError as error:
            raise Refusal(status=503, code="store", message=str(error.message)) from None
        except NothingToDo as error:
            raise Refusal(status=409, code="nothing", message=str(error.message)) from None
        except UsageError as error:
            raise Refusal(status=400, code="document", message=str(error.message)) from None
        return {"series": series, "accepted": bool(document.get("accepted", True))}

    @app.post("/api/acceptances", openapi_extra=_ACCEPTANCE, responses=_RESPONSES)
    async def decided(request: Request) -> JSONResponse:
        """Accept the regression of a series, or undo that."""
        token = check_writer(request)
        async with bodies.read(request, most=_MOST_DECISION) as body:
            try:
                document = json.loads(body)
            except (ValueError, RecursionError):
                document = None
        if not isinstance(document, dict):
            raise Refusal(status=400, code="document", message="the body is a JSON object")
        loop = asyncio.get_running_loop()
        return JSONResponse(await loop.run_in_executor(threads, decide, document, token.name))

    @app.get("/api/runs/{run_id}", responses=_RESPONSES)
    async def has(run_id: str, request: Request) -> JSONResponse:
        """Return which results of a run are stored: case, device and process of each."""
        check_writer(request)
        return JSONResponse(await asyncio.to_thread(stored_results, run_id[:100]))

    return receiver


class _Bodies:
    """Reads bodies of requests within limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._total = 0  # bytes of all bodies that are in memory

    @contextlib.asynccontextmanager
    async def read(self, request: Request, *, most: int | None = None) -> AsyncIterator[bytes]:
        """Yield the body, read up to the limit regardless of its Content-Length."""
        size, most = 0, self._limits.body_bytes if most is None else most
        too_large = Refusal(
            status=413,
            code="too-large",
            message=f"a body has at most {most} bytes; send fewer results",
        )
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length[:20]) > most:
            raise too_large
        try:
            parts = []
            async with asyncio.timeout(self._limits.body_s):
                async for part in request.stream():
                    size += len(part)
                    self._total += len(part)
                    if size > most:
                        raise too_large
                    if self._total > self._limits.bodies_bytes:
                        raise Refusal(
                            status=503,
                            code="busy",
                            message="too many runs are pushed at once",
                            headers={"retry-after": "2"},
                        )
                    parts.append(part)
            body = b"".join(parts)
            del parts
            yield body
        except TimeoutError:
            text = f"the body did not arrive within {self._limits.body_s:g} s"
            raise Refusal(status=408, code="request", message=text) from None
        finally:
            self._total -= size


_MOST_DECISION = 64 * 1024  # bytes of a decision
_ACCEPTANCE = {
    "requestBody": {
        "required": True,
        "description": "A series of kmark history --json, and why its regression is accepted",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["series"],
                    "properties": {
                        "series": {"type": "string"},
                        "reason": {"type": "string", "maxLength": 500},
                        "accepted": {"type": "boolean", "description": "false undoes it"},
                    },
                }
            }
        },
    }
}
_BODY = {
    "requestBody": {
        "required": True,
        "description": "A results document, as kmark export --json writes it",
        "content": {"application/json": {"schema": codec.json_schema(ResultSet)}},
    }
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text}
    for status, text in (
        (400, "Not a results document"),
        (401, "A token is needed"),
        (403, "The token may only read, or the server is read-only"),
        (404, "There is no such run"),
        (408, "The body did not arrive in time"),
        (409, "The server has another run with this id, or other results of it"),
        (413, "The body is too large"),
        (421, "Another site's name for this machine"),
        (429, "Too many requests"),
        (503, "The store does not answer"),
    )
}
