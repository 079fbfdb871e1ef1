"""ClientCollector: the metrics of clients for prometheus-client, which is an extra: pip install 'ottla[metrics]'."""

from collections.abc import Iterator
from typing import Any

from ottla.client.core.metrics import LABELS
from ottla.errors import ArgumentError, OttlaError

PREFIX = "ottla_client_"


class ClientCollector:
    """A collector for any number of producers, consumers and their async versions, distinguished by client id.

    >>> from prometheus_client import REGISTRY, start_http_server
    >>> REGISTRY.register(ClientCollector(producer, consumer))
    >>> start_http_server(8000)
    """

    def __init__(self, *clients: Any) -> None:
        try:
            import prometheus_client.core  # noqa: F401
        except ImportError:
            raise OttlaError(
                "metrics for Prometheus need prometheus-client", "Run pip install 'ottla[metrics]'."
            ) from None
        for client in clients:
            if not hasattr(_inner(client), "_metrics_now"):
                raise ArgumentError(f"{client!r} has no metrics", "Pass producers and consumers.")
        self._clients = clients

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for client in self._clients:
            inner = _inner(client)
            client_id = inner.config.client_id
            for name, value in inner._metrics_now().items():  # noqa: SLF001 - not part of the API of clients
                label = LABELS.get(name, "api") if isinstance(value, dict) else None
                labels = ["client_id"] if label is None else ["client_id", label]
                family = families.get(name)
                if family is None:
                    kind = CounterMetricFamily if name.endswith("-total") else GaugeMetricFamily
                    text = f"{name} of Kafka's clients"
                    family = families[name] = kind(PREFIX + name.replace("-", "_"), text, labels=labels)
                if isinstance(value, dict):
                    for key, number in value.items():
                        family.add_metric([client_id, key], number)
                else:
                    family.add_metric([client_id], value)
        yield from families.values()


def _inner(client: Any) -> Any:
    return getattr(client, "_async", client)
