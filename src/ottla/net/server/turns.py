"""Shares the event loop: work that is too long for one turn continues in later ones, between everybody else's.

A connection with many requests or a large response takes a turn of at most `max_turn_ms`, then queues for the next.
In each iteration of the loop the queue gets a few milliseconds, in order; the rest of the time belongs to connections
whose requests have just arrived.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from ottla.clock import monotonic

MAX_ITERATION_MS = 5.0
"""Time for all turns in one iteration of the loop. It is the delay that others see, however many connections queue."""


class Turns:
    """The queue of all connections of a server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_turn_ms: float) -> None:
        self._loop = loop
        self._max_turn = max_turn_ms / 1000
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        # uvloop's loop.time() does not advance during an iteration. In simulations only the loop knows the time.
        self.clock = loop.time if isinstance(loop, asyncio.BaseEventLoop) else monotonic

    def deadline(self) -> float:
        """When a turn that begins now is over, by `clock()`."""
        return self.clock() + self._max_turn

    def queue(self, work: Callable[[], None]) -> None:
        """Calls `work` when it is its turn, never at once."""
        self._waiting.append(work)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        waiting, clock = self._waiting, self.clock
        end = clock() + MAX_ITERATION_MS / 1000
        try:
            # Work queued meanwhile waits for the next iteration.
            for _ in range(len(waiting)):
                waiting.popleft()()
                if clock() >= end:
                    break
        finally:
            self._is_scheduled = bool(waiting)
            if waiting:
                self._loop.call_soon(self._run)
