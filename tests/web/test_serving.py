"""The sockets that the dashboard listens on."""

from __future__ import annotations

import asyncio
import socket

from kernelmark.web.serving import _bind


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
