"""Client quotas: which one applies to a client, the client's rate, and how long to throttle it. Pure.

Rates are measured as in Kafka, so that the same load is throttled for the same time: in samples of one second, over the
last eleven of them. Metadata changes arrive in bursts and use a token bucket instead (KIP-599).
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from ottla.security.quota_config import QuotaConfig
from ottla.security.quota_entities import (
    CLIENT_QUOTAS,
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    REQUEST_PERCENTAGE,
    Quotas,
)

MAX_METERS = 10_000
"""The most clients whose rates are kept. Beyond it, the least recently active are evicted."""


class Window(NamedTuple):
    """The samples that a rate is measured over."""

    samples: int = 11
    sample_ms: int = 1000

    @property
    def size_ms(self) -> int:
        return self.samples * self.sample_ms


class Rate:
    """How much was recorded per second, over a sliding window of samples."""

    __slots__ = ("_current", "_samples", "_window")

    def __init__(self, window: Window, now_ms: int) -> None:
        self._window = window
        self._current = 0
        self._samples = [[now_ms, now_ms, 0.0]]
        """When each sample started, when something was last recorded in it, and how much."""

    def record(self, value: float, now_ms: int) -> None:
        """A negative value undoes an earlier call."""
        window, samples = self._window, self._samples
        sample = samples[self._current]
        if now_ms - sample[0] >= window.sample_ms:
            self._current = (self._current + 1) % window.samples
            if self._current == len(samples):
                samples.append([now_ms, now_ms, 0.0])
            else:
                samples[self._current] = [now_ms, now_ms, 0.0]
            sample = samples[self._current]
        sample[1] = now_ms
        sample[2] += value

    def measure(self, now_ms: int) -> tuple[float, float]:
        """The rate per second, and the milliseconds that it was measured over.

        A new client is measured over at least all but one of the samples, as if it had been idle before, so that a
        burst does not look like a high rate.
        """
        samples, sample_ms, size_ms = self._window.samples, self._window.sample_ms, self._window.size_ms
        total, oldest = 0.0, now_ms
        for sample in self._samples:
            if now_ms - sample[1] >= size_ms:
                sample[:] = now_ms, now_ms, 0.0
            else:
                total += sample[2]
                oldest = min(oldest, int(sample[0]))
        elapsed = now_ms - oldest
        missing = samples - 1 - elapsed // sample_ms
        if missing > 0:
            elapsed += missing * sample_ms
        elapsed = max(elapsed, 1)
        return total * 1000 / elapsed, elapsed

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """How long to throttle the client until its rate is back at the bound; 0 if it is not above."""
        value, elapsed = self.measure(now_ms)
        return 0 if value <= bound else int((value - bound) / bound * elapsed + 0.5)

    def is_idle(self, now_ms: int) -> bool:
        """Whether all samples have expired: a new object would measure the same."""
        return now_ms - max(sample[1] for sample in self._samples) >= self._window.size_ms


class TokenBucket:
    """Tokens refilled at a rate, up to those of a whole window. A burst may overdraw the bucket once (KIP-599)."""

    __slots__ = ("_at_ms", "_tokens", "_window")

    def __init__(self, window: Window, bound: float, now_ms: int) -> None:
        self._window = window
        self._at_ms = now_ms
        self._tokens = self._burst(bound)

    def _burst(self, bound: float) -> float:
        return bound * self._window.size_ms / 1000

    def _refill(self, bound: float, now_ms: int) -> None:
        self._tokens = min(self._burst(bound), self._tokens + bound * (now_ms - self._at_ms) / 1000)
        self._at_ms = now_ms

    def record(self, value: float, bound: float, now_ms: int) -> None:
        self._refill(bound, now_ms)
        self._tokens -= value

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """How long until the bucket is no longer overdrawn; 0 if it is not."""
        self._refill(bound, now_ms)
        return 0 if self._tokens >= 0 else int(-self._tokens / bound * 1000 + 0.5)

    def is_idle(self, now_ms: int) -> bool:
        return now_ms - self._at_ms >= self._window.size_ms and self._tokens >= 0


class Limit(NamedTuple):
    """The quota of a client, and who shares it: all clients of a user, or all users of a client id, or neither."""

    name: str
    bound: float
    user: str
    client_id: str


class Limits(NamedTuple):
    """The quotas that apply to one client; None where it has none. In the order of CLIENT_QUOTAS."""

    produce: Limit | None
    fetch: Limit | None
    request: Limit | None
    mutation: Limit | None


class ClientQuotas:
    """The quotas of the cluster, and the rates of the clients that have one."""

    def __init__(self, config: QuotaConfig | None = None) -> None:
        config = config or QuotaConfig()
        self.window = Window(config.quota_window_num, config.quota_window_size_seconds * 1000)
        self._mutation_window = Window(
            config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1000
        )
        self._quotas: Quotas = {}
        self._by_name: dict[str, dict[tuple[str | None, str | None], float]] = {}
        self._limits: OrderedDict[tuple[str, str], Limits] = OrderedDict()
        self._meters: OrderedDict[Limit, Rate | TokenBucket] = OrderedDict()
        self._swept_at_ms = 0
        self.throttled = dict.fromkeys(CLIENT_QUOTAS, 0)
        """How many requests were throttled because of each quota."""
        self.throttled_ms = dict.fromkeys(self.throttled, 0)

    def apply(self, quotas: Quotas) -> None:
        """Replaces the quotas. Measured rates are kept."""
        if quotas == self._quotas:
            return
        self._quotas = quotas
        self._by_name = {name: {} for name in CLIENT_QUOTAS}
        for entity, values in quotas.items():
            for name, value in values.items():
                if name in self._by_name:
                    self._by_name[name][entity.user, entity.client_id] = value
        self._limits.clear()

    @property
    def has_any(self) -> bool:
        """Whether any user or client id has a quota."""
        return any(self._by_name.values())

    @property
    def meter_count(self) -> int:
        return len(self._meters)

    def limits(self, user: str, client_id: str) -> Limits:
        """The quotas of a client."""
        found = self._limits.get((user, client_id))
        if found is None:
            found = Limits(*(self._find(name, user, client_id) for name in CLIENT_QUOTAS))
            self._limits[user, client_id] = found
            if len(self._limits) > MAX_METERS:
                self._limits.popitem(last=False)
        return found

    def _find(self, name: str, user: str, client_id: str) -> Limit | None:
        """The most specific quota. A quota of users is shared by all their clients, one of client ids by all users."""
        quotas = self._by_name.get(name)
        if quotas:
            for entity, of_user, of_client_id in (
                ((user, client_id), user, client_id),
                ((user, DEFAULT), user, client_id),
                ((user, None), user, ""),
                ((DEFAULT, client_id), user, client_id),
                ((DEFAULT, DEFAULT), user, client_id),
                ((DEFAULT, None), user, ""),
                ((None, client_id), "", client_id),
                ((None, DEFAULT), "", client_id),
            ):
                bound = quotas.get(entity)
                if bound is not None:
                    return Limit(name, bound, of_user, of_client_id)
        return None

    # Usage

    def record(self, limit: Limit, value: float, now_ms: int) -> int:
        """Counts `value` and returns how long to throttle the client, in milliseconds."""
        meter = self._meter(limit, now_ms)
        assert isinstance(meter, Rate)
        meter.record(value, now_ms)
        return self._bounded(limit, meter.throttle_ms(limit.bound, now_ms))

    def throttle_ms(self, limit: Limit, now_ms: int) -> int:
        """How long to throttle the client for what it did before."""
        return self._bounded(limit, self._meter(limit, now_ms).throttle_ms(limit.bound, now_ms))

    def _bounded(self, limit: Limit, throttle_ms: int) -> int:
        # Clients are throttled for CPU time for one sample at most, as in Kafka: one slow request must not block a
        # client for minutes.
        return min(throttle_ms, self.window.sample_ms) if limit.name == REQUEST_PERCENTAGE else throttle_ms

    def admit(self, limit: Limit, value: float, now_ms: int) -> int:
        """Counts `value` and returns 0, or counts nothing and returns how long to throttle the client.

        For responses that are not sent if they exceed the quota. One that is larger than the quota of a whole window
        is admitted after an idle window: it would never be sent otherwise.
        """
        meter = self._meter(limit, now_ms)
        assert isinstance(meter, Rate)
        before, _ = meter.measure(now_ms)
        meter.record(value, now_ms)
        throttle_ms = meter.throttle_ms(limit.bound, now_ms)
        if throttle_ms and before > 0:
            meter.record(-value, now_ms)
            return throttle_ms
        return 0

    def window_share(self, limit: Limit) -> int:
        """The largest value that fits into a window at once."""
        return max(1, int(limit.bound * (self.window.samples - 1) * self.window.sample_ms / 1000))

    def draw(self, limit: Limit, permits: float, now_ms: int, *, strict: bool) -> int:
        """Takes permits for metadata changes. Returns how long to throttle the client. With `strict`, a throttled
        change is rejected and takes no permits."""
        meter = self._meter(limit, now_ms)
        assert isinstance(meter, TokenBucket)
        if strict and (throttle_ms := meter.throttle_ms(limit.bound, now_ms)):
            return throttle_ms
        meter.record(permits, limit.bound, now_ms)
        return 0 if strict else meter.throttle_ms(limit.bound, now_ms)

    def count(self, name: str, throttle_ms: int) -> None:
        """Counts a throttled request."""
        self.throttled[name] += 1
        self.throttled_ms[name] += throttle_ms

    def _meter(self, limit: Limit, now_ms: int) -> Rate | TokenBucket:
        # A changed quota keeps its measurements.
        key = limit._replace(bound=0.0)
        meters = self._meters
        meter = meters.get(key)
        if meter is None:
            self._sweep(now_ms)
            if limit.name == CONTROLLER_MUTATION_RATE:
                meter = TokenBucket(self._mutation_window, limit.bound, now_ms)
            else:
                meter = Rate(self.window, now_ms)
            meters[key] = meter
            if len(meters) > MAX_METERS:
                meters.popitem(last=False)
        else:
            meters.move_to_end(key)
        return meter

    def _sweep(self, now_ms: int) -> None:
        """Evicts clients that were idle for a window: their rate is zero, like that of a new client."""
        if now_ms - self._swept_at_ms < self.window.size_ms:
            return
        self._swept_at_ms = now_ms
        for key, meter in list(self._meters.items()):
            if meter.is_idle(now_ms):
                del self._meters[key]
            elif isinstance(meter, Rate):
                break  # those behind it were used later; an overdrawn bucket can be old


def connection_rates_of(quotas: Quotas) -> Mapping[str, float]:
    """The connections per second that each address may open; the default under the empty name."""
    return {
        entity.ip: values[CONNECTION_CREATION_RATE]
        for entity, values in quotas.items()
        if entity.ip is not None and CONNECTION_CREATION_RATE in values
    }
