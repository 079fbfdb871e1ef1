"""The responses of one connection that wait their turn, in request order. No socket: the connection writes them.

A response that is not finished is an awaitable. Awaitables are awaited one at a time, in order: a response never
overtakes an earlier one, and at most one late response of a connection is in memory.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable

from ottla.protocol.response_parts import ResponseParts

Response = bytes | bytearray | ResponseParts | None

FLUSH_BYTES = 128 * 1024
"""Responses gathered for one write are written early beyond this size, to see whether the peer keeps up."""


Unfinished = tuple[Awaitable[Response], int]
"""A response to await, and the size of the request whose memory it may still hold."""


class OrderedResponses:
    """A queue that begins with an unfinished response. It is full at a number of responses or of bytes, or with one
    that is sent in parts."""

    __slots__ = ("_in_parts", "_max_bytes", "_max_count", "items", "size_bytes")

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self.items: deque[bytes | bytearray | ResponseParts | Unfinished] = deque()
        self.size_bytes = 0
        self._in_parts = 0

    def put(self, response: Response | Awaitable[Response], request_bytes: int) -> None:
        """Adds a response behind the others. None means that the request gets no response."""
        if response is None:
            return
        if isinstance(response, (bytes, bytearray)):
            self.size_bytes += len(response)
            self.items.append(response)
        elif isinstance(response, ResponseParts):
            self._in_parts += 1
            self.items.append(response)
        else:
            self.size_bytes += request_bytes
            self.items.append((response, request_bytes))

    @property
    def is_full(self) -> bool:
        return len(self.items) >= self._max_count or self.size_bytes > self._max_bytes or self._in_parts > 0

    @property
    def is_half_empty(self) -> bool:
        """Handling resumes here, not at the first free slot: each resumption costs a turn of the loop."""
        return len(self.items) <= self._max_count // 2

    async def next_ready(self) -> list[bytes | bytearray] | ResponseParts:
        """Waits for the first response; returns it with the finished ones behind it, up to FLUSH_BYTES.

        A response in parts is returned alone, and keeps its place in the queue until `sent`.
        """
        items = self.items
        ready: list[bytes | bytearray] = []
        size = 0
        first = items[0]
        if isinstance(first, ResponseParts):
            return first
        if isinstance(first, tuple):
            # It stays in the queue while it is awaited, so that later responses line up behind it.
            response = await first[0]
            if isinstance(response, ResponseParts):
                self.size_bytes -= first[1]
                self._in_parts += 1
                items[0] = response
                return response
            items.popleft()
            size = first[1]
            if response is not None:
                ready.append(response)
        while items and size < FLUSH_BYTES:
            finished = items[0]
            if not isinstance(finished, (bytes, bytearray)):
                break
            items.popleft()
            size += len(finished)
            ready.append(finished)
        self.size_bytes -= size
        return ready

    def sent(self) -> None:
        """The response in parts at the head of the queue has been written completely."""
        self.items.popleft()
        self._in_parts -= 1

    def discard(self) -> None:
        """Drops everything; responses that were never awaited are cancelled."""
        for item in self.items:
            if isinstance(item, tuple):
                awaitable = item[0]
                if isinstance(awaitable, asyncio.Future):
                    awaitable.cancel()
                elif hasattr(awaitable, "close"):
                    awaitable.close()
        self.items.clear()
        self.size_bytes = self._in_parts = 0
