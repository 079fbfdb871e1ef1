"""How long to wait after failures in a row. Pure."""

from typing import NamedTuple


class Backoff(NamedTuple):
    """Doubles from `initial_ms` to `max_ms`, with a fifth of jitter either way so that clients do not march in step.

    >>> Backoff(50, 1000).delay_ms(3, jitter=0.0)
    200
    """

    initial_ms: int
    max_ms: int

    def delay_ms(self, failures: int, jitter: float) -> int:
        """`jitter` lies between -1 and 1 and moves the delay by up to a fifth."""
        if failures < 1:
            return 0
        bounded = min(self.max_ms, self.initial_ms * 2 ** min(failures - 1, 30))
        return int(bounded * (1 + jitter / 5))
