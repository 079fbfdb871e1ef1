"""How many connections per second are accepted: from each address, on each listener, and by the broker. Pure.

As in Kafka, a connection from an address above its quota is closed after a delay, so that the client does not reconnect
at once. Connections above the rate of the broker or a listener are delayed, but served.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from ottla.security.quota_entities import DEFAULT
from ottla.security.quotas import Rate, Window

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ADDRESSES = 10_000
"""The most addresses whose rates are kept. Beyond it, the least recently connected are evicted."""


class Admission(NamedTuple):
    """How long to delay a new connection, in milliseconds, and why it is closed after that; empty if it is served."""

    delay_ms: int = 0
    refusal: str = ""


ADMITTED = Admission()


class ConnectionRates:
    """Decides whether new connections are served, delayed or closed."""

    def __init__(self, window: Window | None = None) -> None:
        self.window = window or Window()
        self.by_address: Mapping[str, float] = {}
        """Connections per second of each address; the default under the empty name."""
        self.by_listener: Mapping[str, float] = {}
        """Of each listener; of the broker under the empty name."""
        self._addresses: OrderedDict[str, Rate] = OrderedDict()
        self._listeners: dict[str, Rate] = {}
        self._served_at_ms: dict[str, float] = {}
        """When the last delayed connection of each listener is served."""
        self.refused = 0
        self.delayed = 0

    @property
    def has_any(self) -> bool:
        return bool(self.by_address or self.by_listener)

    def admit(self, address: str, listener: str, now_ms: int) -> Admission:
        """Counts a new connection, unless it is rejected."""
        limit = self.by_address.get(address, self.by_address.get(DEFAULT))
        if limit is not None:
            rate = self._of_address(address, now_ms)
            rate.record(1, now_ms)
            if throttle_ms := rate.throttle_ms(limit, now_ms):
                rate.record(-1, now_ms)
                self.refused += 1
                delay_ms = min(throttle_ms, self.window.sample_ms)
                return Admission(delay_ms, f"too many connections per second (connection_creation_rate={limit:g})")
        delay_ms = max(self._delay_ms(name, now_ms) for name in ("", listener))
        if delay_ms:
            self.delayed += 1
            return Admission(delay_ms)
        return ADMITTED

    def _delay_ms(self, listener: str, now_ms: int) -> int:
        """Delayed connections are served one after the other, as if they had not been accepted yet."""
        limit = self.by_listener.get(listener)
        if limit is None:
            return 0
        rate = self._listeners.get(listener)
        if rate is None:
            rate = self._listeners[listener] = Rate(self.window, now_ms)
        served_at_ms = max(now_ms, self._served_at_ms.get(listener, 0))
        rate.record(1, now_ms)
        if rate.throttle_ms(limit, now_ms):
            served_at_ms += 1000 / limit
            self._served_at_ms[listener] = served_at_ms
        return int(served_at_ms - now_ms)

    def _of_address(self, address: str, now_ms: int) -> Rate:
        rates = self._addresses
        rate = rates.get(address)
        if rate is None:
            rate = rates[address] = Rate(self.window, now_ms)
            if len(rates) > MAX_ADDRESSES:
                rates.popitem(last=False)
        else:
            rates.move_to_end(address)
        return rate
