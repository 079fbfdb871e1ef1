"""Back-pressure from one peer: whether it reads its responses, and for how long it has read none."""

import asyncio
from collections.abc import Callable
from math import inf

WRITE_HIGH_BYTES = 64 * 1024
WRITE_LOW_BYTES = 16 * 1024
"""Small, because the kernel's buffer keeps the peer busy meanwhile, and because there may be thousands of peers."""


class FlowControl:
    """Follows the transport's write buffer. A peer that reads nothing for `max_stall_ms` is reported as stalled."""

    __slots__ = (
        "_loop",
        "_max_stall_ms",
        "_on_stalled",
        "_paused_at",
        "_room",
        "_size_at_pause",
        "_transport",
        "size_at_check",
        "timer",
        "write_paused",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        max_stall_ms: int,
        on_stalled: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._max_stall_ms = max_stall_ms
        self._on_stalled = on_stalled
        self._room: asyncio.Future[None] | None = None
        self._paused_at = 0.0
        self._size_at_pause = 0
        self.write_paused = False
        """Whether the transport's buffer is full."""
        self.timer: asyncio.TimerHandle | None = None
        self.size_at_check = 0
        transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)

    def pause_writing(self) -> None:
        self.write_paused = True
        self._paused_at = self._loop.time()
        self._size_at_pause = self._transport.get_write_buffer_size()
        self.watch()

    def resume_writing(self) -> None:
        self.write_paused = False
        self.stop_watching()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def speed(self, now: float) -> float:
        """Bytes per second that the peer has read since the buffer filled up. Infinite if it is not full.

        A peer that has just stopped counts as fast; one that reads nothing counts as slower every second.
        """
        if not self.write_paused:
            return inf
        read = self._size_at_pause - self._transport.get_write_buffer_size()
        return (WRITE_HIGH_BYTES + read) / (now - self._paused_at + 0.001)

    async def wait_for_room(self) -> None:
        """Returns once the peer has read most of what was written."""
        self._room = self._loop.create_future()
        await self._room

    def watch(self) -> None:
        """Starts to check that the write buffer shrinks."""
        if self.timer is None:
            self.size_at_check = self._transport.get_write_buffer_size()
            self.timer = self._loop.call_later(self._max_stall_ms / 1000, self.check)

    def stop_watching(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def close(self) -> None:
        """Drops the reference back to the closed connection, so that its memory is freed at once."""
        self.stop_watching()
        self._on_stalled = _nothing

    def check(self) -> None:
        """Reports a stalled peer. One that has read some bytes since the last check gets the full time again."""
        self.timer = None
        if 0 < self._transport.get_write_buffer_size() < self.size_at_check:
            self.watch()
        else:
            self._on_stalled()


def _nothing() -> None:
    pass
