"""The page /metrics: the broker's counters in Prometheus' text form.

Counters are plain numbers kept where things happen (routes, the server, the logs) and are read only when they are
scraped. prometheus_client is imported only here, and only when metrics are enabled.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ottla.broker.dispatch import LATENCY_BOUNDS, Dispatcher
from ottla.broker.monitoring.cluster_metrics import ClusterCounters, cluster_families
from ottla.broker.monitoring.http_endpoint import Page
from ottla.net.server.server import Server

if TYPE_CHECKING:
    from ottla.broker.authentication.listeners import Listeners
    from ottla.broker.monitoring.watchdog import Watchdog
    from ottla.broker.services import Services


MISSING_LIBRARY = "metrics require prometheus_client: pip install 'ottla[metrics]'"


class Metrics:
    """Collects the counters when they are scraped. Raises ImportError without prometheus_client."""

    def __init__(self, dispatcher: Dispatcher, server: Server, services: "Services") -> None:
        import prometheus_client
        from prometheus_client import core, exposition

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
        self.security: Listeners | None = None

    def page(self) -> Page:
        """All metrics in Prometheus' text form."""
        return Page(self._exposition.generate_latest(self._registry), self._exposition.CONTENT_TYPE_LATEST)

    # --- what prometheus_client calls ---------------------------------------------------------------------

    def collect(self) -> Iterator[Any]:
        yield from self._requests()
        yield from self._network()
        yield from self._quotas()
        yield from self._authentication()
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
        malformed = core.CounterMetricFamily("ottla_malformed_requests", "Malformed requests.")
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
            ("ottla_unauthenticated_connections", "Connections not authenticated yet.", len(server.newcomers)),
            ("ottla_unread_response_bytes", "Memory for responses not read yet.", server.unread_responses.used),
            ("ottla_incomplete_request_bytes", "Memory for incomplete requests.", server.incomplete_requests.used),
        ):
            gauge = core.GaugeMetricFamily(name, doc)
            gauge.add_metric([], value)
            yield gauge

    def _quotas(self) -> Iterator[Any]:
        quotas, rates = self._services.quotas, self._server.rates
        if quotas is not None:
            core = self._families
            throttled = core.CounterMetricFamily(
                "ottla_throttled_requests", "Requests whose client was throttled.", labels=["quota"]
            )
            seconds = core.CounterMetricFamily(
                "ottla_throttle_seconds", "How long clients were throttled.", labels=["quota"]
            )
            for name, count in quotas.throttled.items():
                throttled.add_metric([name], count)
                seconds.add_metric([name], quotas.throttled_ms[name] / 1000)
            clients = core.GaugeMetricFamily("ottla_quota_meters", "Clients whose rates are kept for quotas.")
            clients.add_metric([], quotas.meter_count)
            yield from (throttled, seconds, clients)
        if rates is not None:
            for name, doc, value in (
                ("ottla_connections_delayed", "Connections delayed: too many per second.", rates.delayed),
                ("ottla_connections_rate_refused", "Connections refused: too many per second.", rates.refused),
            ):
                counter = self._families.CounterMetricFamily(name, doc)
                counter.add_metric([], value)
                yield counter

    def _authentication(self) -> Iterator[Any]:
        if self.security is None:
            return
        core = self._families
        handshakes = core.CounterMetricFamily("ottla_tls_handshake_failures", "TLS handshakes that failed.")
        handshakes.add_metric([], self._server.failed_handshakes)
        results = core.CounterMetricFamily(
            "ottla_authentications", "SASL authentications by their result.", labels=["listener", "result"]
        )
        again = core.CounterMetricFamily(
            "ottla_reauthentications", "Re-authentications by their result.", labels=["listener", "result"]
        )
        expired = core.CounterMetricFamily(
            "ottla_expired_sessions", "Connections closed because their session had expired.", labels=["listener"]
        )
        for name, listener in self.security.sasl.items():
            counters = listener.counters
            results.add_metric([name, "success"], counters.successful)
            results.add_metric([name, "failure"], counters.failed)
            again.add_metric([name, "success"], counters.successful_again)
            again.add_metric([name, "failure"], counters.failed_again)
            expired.add_metric([name], counters.expired)
        certificates = core.GaugeMetricFamily(
            "ottla_certificate_expiry_timestamp_seconds", "When a listener's certificate expires.", labels=["listener"]
        )
        for name, tls in self.security.tls.items():
            certificates.add_metric([name], tls.expires)
        yield from (handshakes, results, again, expired, certificates)

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
