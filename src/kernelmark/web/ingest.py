"""Runs pushed by `kmark push`: authenticated, rate-limited, validated and idempotent.

A push is a results document as written by `kmark export`, with some of a run's results. Stored
results are never overwritten, so that a client that lost its connection can query what the server
has and send the rest.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from kernelmark.core import codec
from kernelmark.core.errors import KernelmarkError, StoreError, UsageError
from kernelmark.core.result import ResultSet
from kernelmark.core.validation import check_results
from kernelmark.stores.store import Store
from kernelmark.stores.values import check_name
from kernelmark.web.access import Access, Limiter, Refusal, too_many


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a request's size and of a token's rate."""

    body_bytes: int = 32 * 2**20
    requests_per_min: int = 1200


def add_routes(app: FastAPI, store: Store, access: Access, limits: Limits) -> None:
    """Add the routes for pushing runs."""
    rate = Limiter(limits.requests_per_min)
    writing = threading.Lock()  # one writer at a time, as in SQLite

    def check_writer(request: Request) -> None:
        access.check_host(request.headers.get("host", ""))
        address = request.client.host if request.client else ""
        token = access.check_write(request.headers.get("authorization", ""), address)
        if wait_s := rate.wait_s(token.name):
            raise too_many(wait_s)

    def stored(body: bytes) -> dict[str, Any]:
        new = _document(body)
        try:
            with writing:
                done = store.add_result_set(new)
        except StoreError as error:
            if error.message.code == "run-differs":
                raise Refusal(status=409, code="run-differs", message=str(error.message)) from None
            raise Refusal(status=503, code="store", message=str(error.message)) from None
        except UsageError as error:
            raise Refusal(status=400, code="document", message=str(error.message)) from None
        return {"run": done.run_id, "added": done.added, "known": done.known}

    def held(run_id: str) -> dict[str, Any]:
        try:
            found = sorted(store.positions(run_id))
        except StoreError as error:
            raise Refusal(status=503, code="store", message=str(error.message)) from None
        except UsageError as error:
            raise Refusal(status=404, code="nothing", message=str(error.message)) from None
        return {"run": run_id, "results": len(found), "positions": [list(item) for item in found]}

    @app.post("/api/runs", openapi_extra=_BODY, responses=_RESPONSES)
    async def push(request: Request) -> JSONResponse:
        """Store results of a run; results that are already stored are kept."""
        check_writer(request)
        body = await _body(request, limits.body_bytes)
        return JSONResponse(await asyncio.to_thread(stored, body))

    @app.get("/api/runs/{run_id}", responses=_RESPONSES)
    async def has(run_id: str, request: Request) -> JSONResponse:
        """Return which results of a run are stored: case, device and process of each."""
        check_writer(request)
        return JSONResponse(await asyncio.to_thread(held, run_id[:100]))


async def _body(request: Request, most: int) -> bytes:
    """Return the body, read up to the limit regardless of its Content-Length."""
    too_large = Refusal(
        status=413, code="too-large", message=f"a body has at most {most} bytes; send fewer results"
    )
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length[:20]) > most:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def _document(body: bytes) -> ResultSet:
    """Return the results of a body, validated as strictly as a file."""
    try:
        found = check_results(codec.loads(body, ResultSet))
        check_name("run", found.run.id)
    except KernelmarkError as error:
        raise Refusal(status=400, code="document", message=str(error.message)) from None
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
        text = f"not a results document: {type(error).__name__}"
        raise Refusal(status=400, code="document", message=text) from None
    return found


_BODY = {
    "requestBody": {
        "required": True,
        "description": "A results document, as kmark export --json writes it",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["kernelmark", "version", "run", "results"],
                    "properties": {
                        "kernelmark": {"const": "results"},
                        "version": {"const": codec.VERSION},
                        "run": {"type": "object"},
                        "results": {"type": "array", "items": {"type": "object"}},
                        "roofs": {"type": "array", "items": {"type": "object"}},
                    },
                }
            }
        },
    }
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text}
    for status, text in (
        (400, "Not a results document"),
        (401, "A token is needed"),
        (403, "The token may only read, or the server is read-only"),
        (404, "There is no such run"),
        (409, "The server has another run with this id"),
        (413, "The body is too large"),
        (421, "Another site's name for this machine"),
        (429, "Too many requests"),
        (503, "The store does not answer"),
    )
}
