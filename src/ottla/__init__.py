"""Kafka's little sister, in Python: a broker every Kafka client can talk to, and the tools around it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.broker.embedded import Broker
    from ottla.client.admin import AsyncAdmin
    from ottla.client.blocking import Admin, Consumer, Producer
    from ottla.client.consumer import AsyncConsumer
    from ottla.client.database_store import DatabaseOffsetStore
    from ottla.client.producer import AsyncProducer
    from ottla.client.rebalance_listener import RebalanceListener
    from ottla.client.topic_store import AsyncSnapshotStore, SnapshotStore
    from ottla.client.transaction_errors import TransactionAbortable, TransactionFatal
    from ottla.client.transform import Output, async_transform, transform
    from ottla.errors import ErrorCode, KafkaError, OttlaError

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncSnapshotStore",
    "Broker",
    "Consumer",
    "DatabaseOffsetStore",
    "ErrorCode",
    "KafkaError",
    "OttlaError",
    "Output",
    "Producer",
    "RebalanceListener",
    "SnapshotStore",
    "TransactionAbortable",
    "TransactionFatal",
    "__version__",
    "async_transform",
    "transform",
]

__version__ = "0.1.0"

# Where the public names live. Each is imported when it is first asked for, so that `import ottla` stays light.
_HOMES = {
    "Admin": "ottla.client.blocking",
    "AsyncAdmin": "ottla.client.admin",
    "AsyncConsumer": "ottla.client.consumer",
    "AsyncProducer": "ottla.client.producer",
    "AsyncSnapshotStore": "ottla.client.topic_store",
    "Broker": "ottla.broker.embedded",
    "Consumer": "ottla.client.blocking",
    "DatabaseOffsetStore": "ottla.client.database_store",
    "ErrorCode": "ottla.errors",
    "KafkaError": "ottla.errors",
    "OttlaError": "ottla.errors",
    "Output": "ottla.client.transform",
    "Producer": "ottla.client.blocking",
    "RebalanceListener": "ottla.client.rebalance_listener",
    "SnapshotStore": "ottla.client.topic_store",
    "TransactionAbortable": "ottla.client.transaction_errors",
    "TransactionFatal": "ottla.client.transaction_errors",
    "async_transform": "ottla.client.transform",
    "transform": "ottla.client.transform",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
