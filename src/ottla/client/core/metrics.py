"""Client metrics under the Java client's names, and a callback that reports them at intervals."""

import logging
from collections.abc import Callable
from typing import Any

from ottla.client.core.arguments import check_callable
from ottla.client.core.polling import Poll
from ottla.errors import ConfigError
from ottla.protocol.api import API

Metrics = dict[str, float | dict[str, float]]
"""A number, or one number per API or partition: {"record-send-total": 12, "records-lag": {"orders-0": 3}}."""

LABELS = {"records-lag": "partition"}
"""What a metric with several numbers is broken down by; by API if it is not listed."""

log = logging.getLogger("ottla.client")


class RequestMetrics:
    """Counts and latencies of requests, by API. Updated once per response."""

    __slots__ = ("_by_api",)

    def __init__(self) -> None:
        self._by_api: dict[int, list[float]] = {}

    def add(self, api_key: int, latency_ms: float, *, has_failed: bool) -> None:
        known = self._by_api.get(api_key)
        if known is None:
            known = self._by_api[api_key] = [0, 0, 0.0, 0.0, 0, 0]
        known[0] += 1
        known[1] += has_failed
        known[2] += latency_ms
        if latency_ms > known[3]:
            known[3] = latency_ms

    def add_throttle(self, api_key: int, throttle_ms: int) -> None:
        """A broker throttled this client in a response: it exceeds a quota."""
        known = self._by_api.setdefault(api_key, [0, 0, 0.0, 0.0, 0, 0])
        known[4] += throttle_ms
        known[5] = max(known[5], throttle_ms)

    def throttling(self, api_key: int) -> Metrics:
        """The throttle times in the responses of one API, as `produce-throttle-time-avg` for example."""
        known = self._by_api.get(api_key, (0, 0, 0.0, 0.0, 0, 0))
        prefix = f"{API[api_key].name.lower()}-throttle-time"
        return {f"{prefix}-avg": known[4] / max(1, known[0]), f"{prefix}-max": known[5]}

    def snapshot(self) -> Metrics:
        names = {api_key: API[api_key].name for api_key in self._by_api}
        return {
            "request-total": {names[key]: known[0] for key, known in self._by_api.items()},
            "request-error-total": {names[key]: known[1] for key, known in self._by_api.items()},
            "request-latency-avg": {names[key]: known[2] / max(1, known[0]) for key, known in self._by_api.items()},
            "request-latency-max": {names[key]: known[3] for key, known in self._by_api.items()},
        }


class Statistics:
    """A decider that calls `on_statistics(metrics)` every `interval_ms`. It sends nothing."""

    def __init__(
        self, on_statistics: Callable[[Metrics], Any], interval_ms: int, snapshot: Callable[[], Metrics], later: Any
    ) -> None:
        """`later(function, argument)` calls the user's function outside of the deciders."""
        self._on_statistics = on_statistics
        self._interval_ms = interval_ms
        self._snapshot = snapshot
        self._later = later
        self._due_at: int | None = None

    def poll(self, now: int) -> Poll:
        if self._due_at is None:
            self._due_at = now + self._interval_ms
        elif now >= self._due_at:
            self._due_at = now + self._interval_ms
            self._later(self._notify, self._snapshot())
        return Poll(wake_at=self._due_at)

    def _notify(self, metrics: Metrics) -> None:
        try:
            self._on_statistics(metrics)
        except Exception:
            log.exception("on_statistics failed")


def check_statistics(on_statistics: Any, interval_ms: int) -> bool:
    """Whether statistics are enabled. Raises if only the function was passed: it would never be called."""
    check_callable(on_statistics, "on_statistics", "It is called with a dict.")
    if on_statistics is None:
        return False
    if not interval_ms:
        raise ConfigError("on_statistics needs an interval", "Set statistics.interval.ms, for example to 10000.")
    return True
