"""The server process."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from kernelmark.core.errors import StoreError, UsageError
from kernelmark.stores import open_store
from kernelmark.stores.store import Store
from kernelmark.web.app import create_app
from kernelmark.web.ingest import LOCAL_NAMES
from kernelmark.web.pages.kernels import rows_of
from kernelmark.web.rendering import warm_up
from kernelmark.web.source import Source

_BACKLOG = 512
# A summary is hundreds of thousands of objects without cycles. With the default thresholds, the
# garbage collector traverses all of them every few runs read, which takes longer than reading a
# run.
_GC_THRESHOLDS = (20_000, 20, 50)
_READ_ONLY = ("store-read-only", "store-folder-read-only")
_END_S = 2  # for requests in flight when the server is stopped


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
    source = Source(store, tuning, prepare=rows_of)
    bound = _bind(host, port)
    app = create_app(
        source, local=host in LOCAL_NAMES, public=public, is_closing=lambda: server.should_exit
    )
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_graceful_shutdown=_END_S,
        backlog=_BACKLOG,
    )
    server = uvicorn.Server(config)
    gc.set_threshold(*_GC_THRESHOLDS)
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


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # asyncio disables Nagle's algorithm only for sockets with an explicit TCP protocol. With
        # Nagle, a response's body waits for the ACK of its headers, which clients delay by 40 ms.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(_BACKLOG)  # from here on clients queue instead of being refused
    except OSError as error:
        raise UsageError(
            f"cannot serve at {host}:{port}: {error.strerror or str(error)}",
            hint="choose another --port or --host",
        ) from None
    return made
