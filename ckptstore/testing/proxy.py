"""A TCP proxy that makes a network far away, or bad, in front of a real server."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

_PIECE = 1 << 18

Answer = Callable[[bytes], bytes | None]


class Proxy:
    """Forwards connections to a server, from a thread of its own; a context manager.

    All faults may be set while it runs.

    Args:
        server: its port on 127.0.0.1, or the path of its socket.
        latency: see below.

    Attributes:
        port: where it listens, on 127.0.0.1.
        latency: seconds that a message to the server takes longer; the way back takes none.
        answer: is shown each message to the server, and may give a reply that is sent instead of forwarding it; the
            connection ends then.
        lose_reply_to: is shown each message to the server; when it says True, that message is forwarded, and the
            connection is reset as soon as the server replies, so that nobody learns of it. Asked until it says True.
        held: while set, nothing is forwarded either way, as when a cable is cut; what is sent waits.
        connections: how many were made so far.
    """

    def __init__(self, server: int | str, latency: float = 0.0) -> None:
        self._server, self.latency = server, latency
        self.answer: Answer = lambda _: None
        self.lose_reply_to: Callable[[bytes], bool] = lambda _: False
        self.held = False
        self.connections = 0
        self._loop = asyncio.new_event_loop()
        self._links: list[_Link] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        started = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._listening = self._loop.run_until_complete(started)
        self.port: int = self._listening.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def reset(self) -> None:
        """Reset every connection there is; they are when this returns."""
        asyncio.run_coroutine_threadsafe(self._reset_all(), self._loop).result()

    async def _stop(self) -> None:
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._reset_all()

    async def _reset_all(self) -> None:
        for link in self._links:
            link.reset()
        await asyncio.gather(*(link.closed() for link in self._links))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        link = _Link(reader, writer, *await self._connect())
        self._links.append(link)
        self._tasks |= {asyncio.ensure_future(way) for way in (self._to_server(link), self._to_client(link))}

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._server, str):
            return await asyncio.open_unix_connection(self._server)
        return await asyncio.open_connection("127.0.0.1", self._server)

    async def _to_server(self, link: _Link) -> None:
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)
        sending = asyncio.ensure_future(self._send_when_due(due, link.server))
        self._tasks.add(sending)
        with suppress(OSError):
            while (data := await link.from_client.read(_PIECE)) and not await self._answered(link, data):
                if not link.doomed and self.lose_reply_to(data):
                    self.lose_reply_to = lambda _: False
                    link.doomed = True
                await due.put((self._loop.time() + self.latency, data))
            await due.put((0.0, b""))
            await sending
        link.client.close()

    async def _answered(self, link: _Link, data: bytes) -> bool:
        await self._while_held()
        reply = self.answer(data)
        if reply is not None:
            link.client.write(reply)
            await link.client.drain()
        return reply is not None

    async def _send_when_due(self, due: asyncio.Queue[tuple[float, bytes]], server: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while (item := await due.get())[1]:
                await asyncio.sleep(item[0] - self._loop.time())
                server.write(item[1])
                await server.drain()
        server.close()

    async def _to_client(self, link: _Link) -> None:
        with suppress(OSError):
            while data := await link.from_server.read(_PIECE):
                await self._while_held()
                if link.doomed:
                    link.reset()
                    break
                link.client.write(data)
                await link.client.drain()
        link.client.close()

    async def _while_held(self) -> None:
        while self.held:  # noqa: ASYNC110 - any thread may set it
            await asyncio.sleep(0.01)


@dataclass(eq=False)
class _Link:
    """A client's connection and the one made for it; `doomed` means that the server's next reply is lost."""

    from_client: asyncio.StreamReader
    client: asyncio.StreamWriter
    from_server: asyncio.StreamReader
    server: asyncio.StreamWriter
    doomed: bool = False

    def reset(self) -> None:
        """End both at once, without saying goodbye."""
        for writer in (self.client, self.server):
            if not writer.is_closing():
                at_once = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            writer.transport.abort()

    async def closed(self) -> None:
        """Wait until both are."""
        await asyncio.gather(self.client.wait_closed(), self.server.wait_closed(), return_exceptions=True)
