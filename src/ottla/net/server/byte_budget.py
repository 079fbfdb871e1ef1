"""Memory that all connections of a server share: how much each holds, and which are cut if it runs out. Pure.

One budget is for responses that peers have not read, one for requests that peers have not sent completely. While the
budget lasts, nobody is restricted. The less is left, the less a connection may hold; peers that make progress need
little. When it is overdrawn, the slowest peers are cut.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

Holder = TypeVar("Holder")

FREED_SHARE = 8
"""Cutting connections frees one part in this many of the budget, so that it is not repeated for every new
connection."""


class ByteBudget(Generic[Holder]):
    """Bytes held by connections, at most `limit` in the long run: what exceeds it is cut in the loop's next turn."""

    def __init__(self, limit: int, on_overdrawn: Callable[[], None]) -> None:
        """`on_overdrawn` is called by every `hold` that leaves the budget overdrawn."""
        self.limit = limit
        self.used = 0
        self.held: dict[Holder, int] = {}
        self._on_overdrawn = on_overdrawn

    def hold(self, holder: Holder, size: int) -> None:
        """`holder` now holds `size` bytes in all."""
        self.used += size - self.held.pop(holder, 0)
        if size:
            self.held[holder] = size
            if self.used > self.limit:
                self._on_overdrawn()

    def share(self, parts: int, least: int, most: int) -> int:
        """One of `parts` equal parts of what is left, within two bounds: how much a connection may take now."""
        return max(least, min(most, (self.limit - self.used) // parts))

    def excess(self, speed: Callable[[Holder], float]) -> list[Holder]:
        """The connections to cut so that the others fit: the slowest first, the larger of equally slow ones first."""
        if self.used <= self.limit:
            return []
        excess = self.used - (self.limit - self.limit // FREED_SHARE)
        chosen = []
        for holder in sorted(self.held, key=lambda holder: (speed(holder), -self.held[holder])):
            if excess <= 0:
                break
            excess -= self.held[holder]
            chosen.append(holder)
        return chosen
