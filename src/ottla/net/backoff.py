"""Exponential back-off with jitter. Pure."""

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
