"""Push runs to a dashboard in parts; after a lost connection, only missing results are sent."""

from __future__ import annotations

import dataclasses
import http.client
import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote, urlsplit

from kernelmark.api.roofs import stored_roofs
from kernelmark.core import codec
from kernelmark.core.errors import KernelmarkError, UsageError
from kernelmark.core.result import Result, ResultSet, RunState
from kernelmark.stores.store import Store
from kernelmark.stores.writing import Position, checksum_of, positions

PATIENCE_S = 120.0
_PART = 250  # results in one request
_TIMEOUT_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_AGAIN = (429, 500, 502, 503, 504)  # HTTP statuses worth another attempt
_LOCAL = ("localhost", "127.0.0.1", "::1")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The outcome of pushing a run: counts of results that were new to the server or known."""

    run_id: str
    added: int
    known: int


class _Refused(KernelmarkError):
    """A response that no further attempt will change."""

    def __init__(self, status: int, message: str, hint: str | None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


def push(
    store: Store,
    refs: Sequence[str],
    url: str,
    token: str,
    *,
    patience_s: float = PATIENCE_S,
    tell: Tell = lambda text: None,
) -> list[Pushed]:
    """Push runs to the server at `url`. Failing requests are repeated for `patience_s` seconds;
    results that the server has are not sent again."""
    server = _Server(url, token, patience_s, tell)
    run_ids = [store.run(ref).id for ref in refs]
    return [_push(server, store, run_id) for run_id in dict.fromkeys(run_ids)]


def _push(server: _Server, store: Store, run_id: str) -> Pushed:
    whole = store.result_set(run_id)
    every = positions(whole.results)
    there = server.checksums(run_id)
    missing = {position: result for position, result in every.items() if position not in there}
    # The server refuses these, if they are other results.
    changed = {
        position: result
        for position, result in every.items()
        if there.get(position) not in (None, checksum_of(run_id, result))
    }
    roofs = stored_roofs(store, whole)
    parts = list(_parts(every, missing | changed))
    for number, part in enumerate(parts, 1):
        # Only the last part may say that the run is complete: a push may break off before.
        state = whole.run.state if number == len(parts) else RunState.RUNNING
        run = dataclasses.replace(whole.run, state=state)
        server.send(ResultSet(run=run, results=tuple(part), roofs=roofs))
        roofs = ()
    after = server.checksums(run_id)
    if lost := every.keys() - after.keys():
        raise KernelmarkError(
            f"the server lacks {len(lost)} results of run {run_id} after the push",
            hint="push the run again",
        )
    return Pushed(run_id=run_id, added=len(missing), known=len(every) - len(missing))


def _parts(
    every: dict[Position, Result], missing: dict[Position, Result]
) -> Iterator[list[Result]]:
    """Yield the missing results in parts; one empty part, to update the state of the run, if none
    is missing. All results of one case on one device are sent together, known ones included: only
    their order identifies the process of each."""
    unsent = {position[:2] for position in missing}
    groups: dict[tuple[str, str], list[Result]] = {}
    for position, result in every.items():
        if position[:2] in unsent:
            groups.setdefault(position[:2], []).append(result)
    part: list[Result] = []
    for group in groups.values():
        part += group
        if len(part) >= _PART:
            yield part
            part = []
    if part or not groups:
        yield part


class _Server:
    """Requests to a dashboard, repeated while they fail."""

    def __init__(self, url: str, token: str, patience_s: float, tell: Tell) -> None:
        try:
            parts = urlsplit(url)
            parts.port  # noqa: B018  (raises for what is no number)
        except ValueError as error:
            raise UsageError(
                f"{url!r} is not the address of a dashboard: {error}",
                hint="write: https://host:8765",
            ) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{url!r} is not the address of a dashboard", hint="write: https://host:8765"
            )
        if parts.username or parts.password:
            raise UsageError(
                "an address with a user name or password is not accepted", hint="leave it out"
            )
        if parts.scheme == "http" and parts.hostname not in _LOCAL:
            tell(
                f"note: {parts.hostname} is reached by http, so others on the network can read the "
                "token"
            )
        self._url = url.rstrip("/")
        self._token = token
        self._patience_s = patience_s
        self._tell = tell
        # A redirect would send the token to another host.
        self._open = urllib.request.build_opener(_NoRedirect()).open

    def checksums(self, run_id: str) -> dict[Position, int | None]:
        """Return the checksums of the results of a run that the server has, as far as known."""
        try:
            answer = self._request(f"/api/runs/{quote(run_id, safe='')}")
        except _Refused as error:
            if error.status == 404:
                return {}
            raise
        positions = [(case, device, process) for case, device, process in answer["positions"]]
        # Servers of older versions send no checksums.
        return dict(zip_longest(positions, answer.get("checksums", ())))

    def send(self, part: ResultSet) -> None:
        self._request("/api/runs", codec.dumps(part).encode())

    def _request(self, path: str, body: bytes | None = None) -> Any:
        began, pause_s = monotonic(), _FIRST_PAUSE_S
        while True:
            try:
                return self._attempt(path, body)
            except _TryAgain as error:
                if monotonic() - began > self._patience_s:
                    raise KernelmarkError(
                        f"{self._url} does not answer: {error}",
                        hint="is the dashboard running? push again: it goes on where it stopped",
                    ) from None
                # Jitter: clients of one server must not all retry at the same moment.
                sleep(max(error.after_s, pause_s * random.uniform(0.5, 1.0)))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _attempt(self, path: str, body: bytes | None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data=body, headers=headers)
        try:
            with self._open(request, timeout=_TIMEOUT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise _error_of(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _TryAgain(str(getattr(error, "reason", error))) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


class _TryAgain(Exception):
    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


_HINTS = {
    401: "set KERNELMARK_TOKEN, or give --token-file; 'kmark token create' makes one there",
    403: "create a token that may write: kmark token create NAME --scope write",
    409: "the run there is another one, or has other results: it is not replaced",
}


def _error_of(error: urllib.error.HTTPError) -> Exception:
    """Return the exception for an HTTP error response."""
    try:
        message = str(json.loads(error.read())["error"]["message"])
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        message = str(error.reason)
    if error.code in _AGAIN:
        after = error.headers.get("retry-after", "")
        return _TryAgain(message, float(after) if after.isdigit() else 0.0)
    text = f"the dashboard refused ({error.code}): {message}"
    return _Refused(error.code, text, _HINTS.get(error.code))
