"""The sockets that the dashboard listens on."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kernelmark.core.errors import StoreError
from kernelmark.stores import engine, location, open_store
from kernelmark.web.serving import _bind, open_served


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
    for module in (location, engine):  # root may write to a file of any mode
        monkeypatch.setattr(module, "may_write", lambda asked: asked != locked)
    with pytest.raises(StoreError):
        open_store(path)
    with open_served(str(path), public=False) as opened:
        assert opened.readonly
        assert opened.runs() == []
    path.write_bytes(b"no store")
    with pytest.raises(StoreError):
        open_served(str(path), public=False)
