"""A Kafka-compatible streaming platform in Python: broker, client, Spark pipeline and command-line tools."""

import _thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.broker.embedded.broker import Broker
    from ottla.client.admin.admin import AsyncAdmin
    from ottla.client.blocking import Admin, Consumer, DeserializingConsumer, Producer, SerializingProducer
    from ottla.client.consumer.consumer import AsyncConsumer, WakeupError
    from ottla.client.consumer.deserializing import (
        AsyncDeserializingConsumer,
        RecordDeserializationError,
    )
    from ottla.client.consumer.positions import NoOffsetForPartitionError
    from ottla.client.core.interceptors import ConsumerInterceptor, ProducerInterceptor, ProducerRecord
    from ottla.client.core.model import CommittedOffset, ConsumerRecord, NewTopic
    from ottla.client.group.rebalance_listener import RebalanceListener
    from ottla.client.producer.producer import AsyncProducer
    from ottla.client.producer.serializing import AsyncSerializingProducer, RecordSerializationError
    from ottla.client.stores.database_store import DatabaseOffsetStore, OffsetsMovedError
    from ottla.client.stores.group_mirror import GroupMirror
    from ottla.client.stores.offset_store import FileOffsetStore, OffsetStore
    from ottla.client.stores.snapshot_store import AsyncSnapshotStore, SnapshotStore
    from ottla.client.stores.stored_offsets import AsyncStoredOffsets, StoredOffsets
    from ottla.client.transactions.errors import TransactionAbortable, TransactionFatal
    from ottla.client.transform import Output, async_transform, dead_letter, transform
    from ottla.errors import (
        ArgumentError,
        AuthenticationError,
        ConfigError,
        DeliveryTimeoutError,
        ErrorCode,
        KafkaError,
        OttlaError,
    )
    from ottla.security.acls import AccessControlEntry, AclBinding, AclBindingFilter, ResourcePattern
    from ottla.security.resources import Operation, PatternType, PermissionType, ResourceType
    from ottla.types import TopicPartition

__all__ = [
    "AccessControlEntry",
    "AclBinding",
    "AclBindingFilter",
    "Admin",
    "ArgumentError",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncDeserializingConsumer",
    "AsyncProducer",
    "AsyncSerializingProducer",
    "AsyncSnapshotStore",
    "AsyncStoredOffsets",
    "AuthenticationError",
    "Broker",
    "CommittedOffset",
    "ConfigError",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "DatabaseOffsetStore",
    "DeliveryTimeoutError",
    "DeserializingConsumer",
    "ErrorCode",
    "FileOffsetStore",
    "GroupMirror",
    "KafkaError",
    "NewTopic",
    "NoOffsetForPartitionError",
    "OffsetStore",
    "OffsetsMovedError",
    "Operation",
    "OttlaError",
    "Output",
    "PatternType",
    "PermissionType",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "RebalanceListener",
    "RecordDeserializationError",
    "RecordSerializationError",
    "ResourcePattern",
    "ResourceType",
    "SerializingProducer",
    "SnapshotStore",
    "StoredOffsets",
    "TopicPartition",
    "TransactionAbortable",
    "TransactionFatal",
    "WakeupError",
    "__version__",
    "async_transform",
    "dead_letter",
    "transform",
]

__version__ = "0.1.0"

# The module of each public name. It is imported on first use, so that `import ottla` stays fast.
_MODULE_OF = {
    "AccessControlEntry": "ottla.security.acls",
    "AclBinding": "ottla.security.acls",
    "AclBindingFilter": "ottla.security.acls",
    "Admin": "ottla.client.blocking.admin",
    "ArgumentError": "ottla.errors",
    "AsyncAdmin": "ottla.client.admin.admin",
    "AsyncConsumer": "ottla.client.consumer.consumer",
    "AsyncDeserializingConsumer": "ottla.client.consumer.deserializing",
    "AsyncProducer": "ottla.client.producer.producer",
    "AsyncSerializingProducer": "ottla.client.producer.serializing",
    "AsyncSnapshotStore": "ottla.client.stores.snapshot_store",
    "AsyncStoredOffsets": "ottla.client.stores.stored_offsets",
    "AuthenticationError": "ottla.errors",
    "Broker": "ottla.broker.embedded.broker",
    "CommittedOffset": "ottla.client.core.model",
    "ConfigError": "ottla.errors",
    "Consumer": "ottla.client.blocking.consumer",
    "ConsumerInterceptor": "ottla.client.core.interceptors",
    "ConsumerRecord": "ottla.client.core.model",
    "DatabaseOffsetStore": "ottla.client.stores.database_store",
    "DeliveryTimeoutError": "ottla.errors",
    "DeserializingConsumer": "ottla.client.blocking.consumer",
    "ErrorCode": "ottla.errors",
    "FileOffsetStore": "ottla.client.stores.offset_store",
    "GroupMirror": "ottla.client.stores.group_mirror",
    "KafkaError": "ottla.errors",
    "NewTopic": "ottla.client.core.model",
    "NoOffsetForPartitionError": "ottla.client.consumer.positions",
    "OffsetStore": "ottla.client.stores.offset_store",
    "OffsetsMovedError": "ottla.client.stores.database_store",
    "Operation": "ottla.security.resources",
    "OttlaError": "ottla.errors",
    "Output": "ottla.client.transform",
    "PatternType": "ottla.security.resources",
    "PermissionType": "ottla.security.resources",
    "Producer": "ottla.client.blocking.producer",
    "ProducerInterceptor": "ottla.client.core.interceptors",
    "ProducerRecord": "ottla.client.core.interceptors",
    "RebalanceListener": "ottla.client.group.rebalance_listener",
    "RecordDeserializationError": "ottla.client.consumer.deserializing",
    "RecordSerializationError": "ottla.client.producer.serializing",
    "ResourcePattern": "ottla.security.acls",
    "ResourceType": "ottla.security.resources",
    "SerializingProducer": "ottla.client.blocking.producer",
    "SnapshotStore": "ottla.client.stores.snapshot_store",
    "StoredOffsets": "ottla.client.stores.stored_offsets",
    "TopicPartition": "ottla.types",
    "TransactionAbortable": "ottla.client.transactions.errors",
    "TransactionFatal": "ottla.client.transactions.errors",
    "WakeupError": "ottla.client.consumer.consumer",
    "async_transform": "ottla.client.transform",
    "dead_letter": "ottla.client.transform",
    "transform": "ottla.client.transform",
}


_importing = _thread.RLock()
"""Held during an import: two threads that import the modules of one package in different orders could see a partially
initialized module."""


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    with _importing:
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
