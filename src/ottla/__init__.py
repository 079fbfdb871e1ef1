"""Kafka's little sister, in Python: a broker every Kafka client can talk to, and the tools around it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.broker.embedded import Broker
    from ottla.client.admin import AsyncAdmin
    from ottla.client.blocking import Admin, Consumer, Producer
    from ottla.client.consumer import AsyncConsumer, WakeupError
    from ottla.client.database_store import DatabaseOffsetStore
    from ottla.client.deserializing import AsyncDeserializingConsumer, DeserializingConsumer, RecordDeserializationError
    from ottla.client.group_mirror import GroupMirror
    from ottla.client.group_model import CommittedOffset
    from ottla.client.model import ConsumerRecord, NewTopic
    from ottla.client.offset_store import FileOffsetStore, OffsetStore
    from ottla.client.producer import AsyncProducer
    from ottla.client.rebalance_listener import RebalanceListener
    from ottla.client.stored_offsets import AsyncStoredOffsets, StoredOffsets
    from ottla.client.topic_store import AsyncSnapshotStore, SnapshotStore
    from ottla.client.transaction_errors import TransactionAbortable, TransactionFatal
    from ottla.client.transform import Output, async_transform, transform
    from ottla.errors import ErrorCode, KafkaError, OttlaError
    from ottla.types import TopicPartition

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncDeserializingConsumer",
    "AsyncProducer",
    "AsyncSnapshotStore",
    "AsyncStoredOffsets",
    "Broker",
    "CommittedOffset",
    "Consumer",
    "ConsumerRecord",
    "DatabaseOffsetStore",
    "DeserializingConsumer",
    "ErrorCode",
    "FileOffsetStore",
    "GroupMirror",
    "KafkaError",
    "NewTopic",
    "OffsetStore",
    "OttlaError",
    "Output",
    "Producer",
    "RebalanceListener",
    "RecordDeserializationError",
    "SnapshotStore",
    "StoredOffsets",
    "TopicPartition",
    "TransactionAbortable",
    "TransactionFatal",
    "WakeupError",
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
    "AsyncDeserializingConsumer": "ottla.client.deserializing",
    "AsyncProducer": "ottla.client.producer",
    "AsyncSnapshotStore": "ottla.client.topic_store",
    "AsyncStoredOffsets": "ottla.client.stored_offsets",
    "Broker": "ottla.broker.embedded",
    "CommittedOffset": "ottla.client.group_model",
    "Consumer": "ottla.client.blocking",
    "ConsumerRecord": "ottla.client.model",
    "DatabaseOffsetStore": "ottla.client.database_store",
    "DeserializingConsumer": "ottla.client.deserializing",
    "ErrorCode": "ottla.errors",
    "FileOffsetStore": "ottla.client.offset_store",
    "GroupMirror": "ottla.client.group_mirror",
    "KafkaError": "ottla.errors",
    "NewTopic": "ottla.client.model",
    "OffsetStore": "ottla.client.offset_store",
    "OttlaError": "ottla.errors",
    "Output": "ottla.client.transform",
    "Producer": "ottla.client.blocking",
    "RebalanceListener": "ottla.client.rebalance_listener",
    "RecordDeserializationError": "ottla.client.deserializing",
    "SnapshotStore": "ottla.client.topic_store",
    "StoredOffsets": "ottla.client.stored_offsets",
    "TopicPartition": "ottla.types",
    "TransactionAbortable": "ottla.client.transaction_errors",
    "TransactionFatal": "ottla.client.transaction_errors",
    "WakeupError": "ottla.client.consumer",
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
