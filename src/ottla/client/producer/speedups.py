"""The names of hot_path.py, from its compiled build `_hot_path` where there is one."""

from typing import TYPE_CHECKING, Any

from ottla.protocol.records._speedups import find_compiled

INTERFACE = 4
"""The INTERFACE of hot_path.py. A build with another number is outdated and ignored."""

if TYPE_CHECKING:
    from ottla.client.producer.hot_path import (
        AppendableBatch,
        BatchOutcome,
        BlockingSender,
        Delivery,
        PartitionQueue,
        RecordAppender,
        StickyPartition,
        TopicQueues,
        murmur2,
        partition_for_key,
        record_size,
    )
else:
    _hot_path: Any = find_compiled(f"{__package__}._hot_path", INTERFACE)
    if _hot_path is None:
        from ottla.client.producer import hot_path as _hot_path
    BatchOutcome = _hot_path.BatchOutcome
    Delivery = _hot_path.Delivery
    RecordAppender = _hot_path.RecordAppender
    PartitionQueue = _hot_path.PartitionQueue
    AppendableBatch = _hot_path.AppendableBatch
    BlockingSender = _hot_path.BlockingSender
    StickyPartition = _hot_path.StickyPartition
    TopicQueues = _hot_path.TopicQueues
    murmur2 = _hot_path.murmur2
    partition_for_key = _hot_path.partition_for_key
    record_size = _hot_path.record_size

__all__ = [
    "AppendableBatch",
    "BatchOutcome",
    "BlockingSender",
    "Delivery",
    "PartitionQueue",
    "RecordAppender",
    "StickyPartition",
    "TopicQueues",
    "murmur2",
    "partition_for_key",
    "record_size",
]
