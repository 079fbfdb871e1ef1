"""Whether and when a failed driver is restarted. Pure."""

from dataclasses import dataclass, field

from ottla.net.backoff import Backoff
from ottla.pipeline.running.failures import Failure

BACKOFF = Backoff(1_000, 60_000)
HEALTHY_AFTER_S = 1800.0
"""A driver that ran this long was healthy, even if a query without records completed no batch."""


@dataclass
class Restarts:
    """Counts failures. Each one in a row doubles the delay; batches of the queries that failed reset it.

    A batch of another query does not: one sink may be unreachable while the other works.

    >>> restarts = Restarts(max_in_a_row=3)
    >>> [restarts.delay_after(Failure("unreachable")) for _ in range(4)]
    [1.0, 2.0, 4.0, None]
    """

    max_in_a_row: int
    total: int = 0
    in_a_row: int = 0
    unproven: set[str] = field(default_factory=set)
    """The queries that failed and have completed no batch since; "" for a driver that died as a whole."""

    def delay_after(self, failure: Failure, lived_s: float = 0.0) -> float | None:
        """How long to wait before the restart; None: do not restart."""
        if lived_s >= HEALTHY_AFTER_S:
            self._reset()
        if not failure.retriable or self.in_a_row >= self.max_in_a_row:
            return None
        self.in_a_row += 1
        self.total += 1
        self.unproven.add(failure.query)
        return BACKOFF.delay_ms(self.in_a_row, 0.0) / 1000

    def on_batch(self, query: str) -> None:
        self.unproven -= {query, ""}
        if not self.unproven:
            self._reset()

    def _reset(self) -> None:
        self.in_a_row = 0
        self.unproven.clear()
