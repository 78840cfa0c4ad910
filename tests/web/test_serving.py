"""The sockets that the dashboard listens on."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kernelmark.core.errors import StoreError, UsageError
from kernelmark.stores import engine, open_store
from kernelmark.web.app import _bind, open_served


def test_a_response_does_not_wait_for_acknowledgements():
    async def accepted() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken = writer.get_extra_info("socket")
            found.set_result(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        bound = _bind("127.0.0.1", 0)
        async with await asyncio.start_server(connected, sock=bound):
            _, writer = await asyncio.open_connection(*bound.getsockname())
            writer.close()
            return await found

    assert asyncio.run(accepted()) != 0


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_store_that_this_user_can_only_read_is_served(tmp_path, monkeypatch, what):
    path = tmp_path / "results.sqlite"
    open_store(path).close()
    locked = path if what == "file" else tmp_path
    # root may write to a file of any mode
    monkeypatch.setattr(engine, "may_write", lambda asked: asked != locked)
    with pytest.raises(StoreError):
        open_store(path)
    with open_served(str(path), public=False) as opened:
        assert opened.readonly
        assert opened.runs() == []
    path.write_bytes(b"no store")
    with pytest.raises(StoreError):
        open_served(str(path), public=False)


def test_idle_and_slow_connections_are_closed(tmp_path, monkeypatch):
    """200 connections that send nothing, or half a header, do not stop others."""
    import threading

    import uvicorn

    from kernelmark.stores import open_store
    from kernelmark.web import app
    from kernelmark.web.app import create_app
    from kernelmark.web.source import Source

    monkeypatch.setattr(app, "IDLE_S", 0.5)
    bound = _bind("127.0.0.1", 0)
    with open_store(tmp_path / "s.sqlite") as store:
        config = uvicorn.Config(
            create_app(Source(store)), http=app._Impatient, log_level="critical", lifespan="off"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            clients = [socket.create_connection(bound.getsockname()) for _ in range(200)]
            for client in clients[::2]:
                client.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            with socket.create_connection(bound.getsockname()) as other:
                other.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert other.recv(100).startswith(b"HTTP/1.1 200")
            for client in clients:
                client.settimeout(60)
                assert client.recv(100) == b""
                client.close()
        finally:
            server.should_exit = True
            thread.join()
            bound.close()


def test_a_host_that_is_no_name_is_a_usage_error():
    for host in ("a" * 70, "..", "\0"):
        with pytest.raises(UsageError):
            _bind(host, 0)


def test_the_health_is_that_of_the_database(client, store, monkeypatch):
    assert client.get("/healthz").json()["status"] == "ok"

    def lost(self):
        raise StoreError("the database does not answer")

    monkeypatch.setattr(type(store), "version", lost)
    assert client.get("/healthz").status_code == 503
