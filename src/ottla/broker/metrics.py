"""OWNER of the metrics endpoint: Prometheus text over minimal HTTP, on the broker's event loop.

Counters are plain numbers kept where things happen (routes, the server, the logs) and are read only when they are
scraped. prometheus_client is imported only here, and only when metrics are enabled.
"""

import asyncio
import logging
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ottla.broker.cluster_metrics import ClusterCounters, cluster_families
from ottla.broker.dispatch import LATENCY_BOUNDS, Dispatcher
from ottla.checks import port_from_text
from ottla.errors import ConfigError, OttlaError
from ottla.net.server import Server

if TYPE_CHECKING:
    from ottla.broker.services import Services
    from ottla.broker.watchdog import Watchdog

log = logging.getLogger("ottla.broker")

MAX_REQUEST_BYTES = 16 * 1024
IDLE_SECONDS = 60


class Metrics:
    """Answers GET /metrics."""

    def __init__(self, dispatcher: Dispatcher, server: Server, services: "Services") -> None:
        try:
            import prometheus_client
            from prometheus_client import core, exposition
        except ImportError:
            raise OttlaError(
                "ottla.metrics.listen requires prometheus_client", "pip install 'ottla[metrics]'"
            ) from None
        self._families = core
        self._exposition = exposition
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(self)
        prometheus_client.ProcessCollector(registry=self._registry)
        prometheus_client.GCCollector(registry=self._registry)
        self._dispatcher = dispatcher
        self._server = server
        self._services = services
        self._cluster = ClusterCounters(services.broker_id)
        services.metadata.subscribe(lambda image: self._cluster.apply(image, services.monotonic()))
        self.watchdog: Watchdog | None = None
        self._listener: asyncio.AbstractServer | None = None

    async def listen(self, address: str) -> int:
        """Listens on HOST:PORT and returns the port. Raises OSError."""
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Http(self), host or None, port)
        bound: int = self._listener.sockets[0].getsockname()[1]
        log.info("metrics at http://%s:%d/metrics", host or "localhost", bound)
        return bound

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def text(self) -> bytes:
        """All metrics in Prometheus' text form."""
        return self._exposition.generate_latest(self._registry)

    @property
    def content_type(self) -> str:
        return self._exposition.CONTENT_TYPE_LATEST

    # --- what prometheus_client calls ---------------------------------------------------------------------

    def collect(self) -> Iterator[Any]:
        yield from self._requests()
        yield from self._network()
        yield from self._event_loop()
        yield from self._partitions()
        yield from cluster_families(self._families, self._services, self._cluster)

    def describe(self) -> list[Any]:
        # Without this, registering would collect once, before the broker is ready.
        return []

    def _requests(self) -> Iterator[Any]:
        core = self._families
        labels = ["api", "version"]
        requests = core.CounterMetricFamily("ottla_requests", "Requests handled.", labels=labels)
        errors = core.CounterMetricFamily("ottla_request_errors", "Requests that failed as a whole.", labels=labels)
        latency = core.HistogramMetricFamily(
            "ottla_request_seconds", "From the request's last byte to its response.", labels=["api"]
        )
        by_api: dict[str, tuple[list[int], float]] = {}
        for route in self._dispatcher.routes.values():
            requests.add_metric([route.name, str(route.version)], route.requests)
            errors.add_metric([route.name, str(route.version)], route.errors)
            buckets, seconds = by_api.get(route.name, ([0] * len(route.buckets), 0.0))
            by_api[route.name] = (
                [a + b for a, b in zip(buckets, route.buckets, strict=True)],
                seconds + route.seconds,
            )
        bounds = [*map(str, LATENCY_BOUNDS), "+Inf"]
        for name, (buckets, seconds) in by_api.items():
            latency.add_metric([name], list(zip(bounds, accumulate(buckets), strict=True)), seconds)
        malformed = core.CounterMetricFamily("ottla_malformed_requests", "Requests that made no sense.")
        malformed.add_metric([], self._dispatcher.malformed)
        yield from (requests, errors, latency, malformed)

    def _network(self) -> Iterator[Any]:
        core, server = self._families, self._server
        for name, doc, value in (
            ("ottla_received_bytes", "Bytes received from clients.", server.bytes_in),
            ("ottla_sent_bytes", "Bytes sent to clients.", server.bytes_out),
            ("ottla_connections_accepted", "Connections accepted so far.", server.accepted),
            ("ottla_connections_refused", "Connections refused because of max.connections.", server.refused),
            ("ottla_connections_cut", "Slow connections closed because memory ran short.", server.cut),
        ):
            counter = core.CounterMetricFamily(name, doc)
            counter.add_metric([], value)
            yield counter
        for name, doc, value in (
            ("ottla_connections", "Open connections.", len(server.connections)),
            ("ottla_unread_response_bytes", "Memory for responses not read yet.", server.unread_responses.used),
            ("ottla_incomplete_request_bytes", "Memory for incomplete requests.", server.incomplete_requests.used),
        ):
            gauge = core.GaugeMetricFamily(name, doc)
            gauge.add_metric([], value)
            yield gauge

    def _event_loop(self) -> Iterator[Any]:
        if self.watchdog is None:
            return
        core = self._families
        longest = core.GaugeMetricFamily(
            "ottla_event_loop_longest_step_seconds", "The longest step of the event loop in the last minute or two."
        )
        longest.add_metric([], self.watchdog.longest_step)
        slow = core.CounterMetricFamily(
            "ottla_event_loop_slow_steps", "Steps of the event loop that took longer than ottla.slow.step.ms."
        )
        slow.add_metric([], self.watchdog.slow_steps)
        yield from (longest, slow)

    def _partitions(self) -> Iterator[Any]:
        core = self._families
        logs = self._services.replicas.log_directory.logs
        labels = ["topic", "partition"]
        count = core.GaugeMetricFamily("ottla_partitions", "Partitions on this broker.")
        count.add_metric([], len(logs))
        start = core.GaugeMetricFamily("ottla_log_start_offset", "First readable offset.", labels=labels)
        end = core.GaugeMetricFamily("ottla_log_end_offset", "Offset of the next record.", labels=labels)
        mark = core.GaugeMetricFamily("ottla_high_watermark", "Everything below is committed.", labels=labels)
        size = core.GaugeMetricFamily("ottla_log_size_bytes", "Bytes of records on disk.", labels=labels)
        for (topic, partition), stored in logs.items():
            names = [topic, str(partition)]
            start.add_metric(names, stored.log_start_offset)
            end.add_metric(names, stored.log_end_offset)
            mark.add_metric(names, stored.high_watermark)
            size.add_metric(names, stored.size_bytes)
        yield from (count, start, end, mark, size)


def parse_address(address: str) -> tuple[str, int]:
    host, colon, text = address.rpartition(":")
    port = port_from_text(text)
    if not colon or port is None:
        raise ConfigError(
            f"Invalid value {address} for configuration ottla.metrics.listen", "write HOST:PORT, 127.0.0.1:9308"
        )
    return host.strip("[]"), port


class _Http(asyncio.Protocol):
    """Just enough HTTP for a scraper: one GET, one answer, then the connection is closed."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._received = b""
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._received += data
        if b"\r\n\r\n" in self._received:
            method, _, rest = self._received.partition(b" ")
            path = rest.partition(b" ")[0].partition(b"?")[0]
            self._answer(method, path)
        elif len(self._received) > MAX_REQUEST_BYTES:
            self._send(b"431 Request Header Fields Too Large", b"", "text/plain")

    def _answer(self, method: bytes, path: bytes) -> None:
        if method not in (b"GET", b"HEAD"):
            self._send(b"405 Method Not Allowed", b"GET only\n", "text/plain")
        elif path not in (b"/", b"/metrics"):
            self._send(b"404 Not Found", b"metrics are at /metrics\n", "text/plain")
        else:
            try:
                body = self._metrics.text()
            except Exception:
                log.exception("cannot collect metrics")
                self._send(b"500 Internal Server Error", b"internal error; see the broker's log\n", "text/plain")
            else:
                self._send(b"200 OK", b"" if method == b"HEAD" else body, self._metrics.content_type)

    def _send(self, status: bytes, body: bytes, content_type: str) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self._transport.write(head % (status, content_type.encode(), len(body)) + body)
        self._transport.close()
