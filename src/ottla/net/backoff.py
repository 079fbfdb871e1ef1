"""Exponential back-off with jitter, and when to try again. Pure."""

from collections.abc import Callable
from typing import NamedTuple


class Backoff(NamedTuple):
    """Doubles from `initial_ms` to `max_ms`, with 20 % jitter so that clients do not retry in step (KIP-580).

    >>> Backoff(50, 1000).delay_ms(3, jitter=0.0)
    200
    """

    initial_ms: int
    max_ms: int

    def delay_ms(self, failures: int, jitter: float) -> int:
        """The delay after a number of failures in a row. `jitter` is between -1 and 1, for -20 % to +20 %."""
        if failures < 1:
            return 0
        bounded = min(self.max_ms, self.initial_ms * 2 ** min(failures - 1, 30))
        return int(bounded * (1 + jitter / 5))


class Retry:
    """When something may be tried again: immediately, or after a back-off that grows with each failure in a row.

    >>> retry = Retry(Backoff(50, 1000))
    >>> retry.failed(now=100)
    >>> retry.is_due(now=149), retry.is_due(now=150)
    (False, True)
    """

    __slots__ = ("_backoff", "_jitter", "at", "failures")

    def __init__(self, backoff: Backoff, jitter: Callable[[], float] = lambda: 0.0) -> None:
        self._backoff = backoff
        self._jitter = jitter
        self.at = 0
        """The earliest time. Owners with a rule of their own may change it."""
        self.failures = 0
        """In a row."""

    def is_due(self, now: int) -> bool:
        return now >= self.at

    def failed(self, now: int, at_most_ms: int | None = None) -> None:
        """Backs off, but not for longer than `at_most_ms`."""
        self.failures += 1
        self._wait(now, self.failures, at_most_ms)

    def succeeded(self) -> None:
        self.failures = 0

    def pause(self, now: int) -> None:
        """Waits as after a first failure."""
        self._wait(now, 1)

    def reset(self) -> None:
        """Forgets all failures: the next attempt may be made immediately."""
        self.at = self.failures = 0

    def _wait(self, now: int, failures: int, at_most_ms: int | None = None) -> None:
        delay_ms = self._backoff.delay_ms(failures, self._jitter())
        self.at = now + (delay_ms if at_most_ms is None else min(delay_ms, at_most_ms))
