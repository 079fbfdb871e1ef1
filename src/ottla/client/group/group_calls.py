"""A consumer's calls about its group: subscribe, and which offsets to commit or look up. Functions over its parts."""

import asyncio
import re
from collections.abc import Iterable
from typing import Any

from ottla.checks import whole_number
from ottla.client.admin.group_offsets import list_group_offsets
from ottla.client.consumer.subscription import check_pattern, check_topics
from ottla.client.core.arguments import (
    OFFSETS_EXAMPLE,
    ByPartition,
    OffsetLike,
    PartitionLike,
    as_committed_offsets,
    as_partitions,
    by_partition,
    check_listener,
    no_group,
)
from ottla.client.core.model import CommittedOffset
from ottla.client.core.network import Network
from ottla.client.core.settings import ConsumerConfig
from ottla.client.group.consumer_coordinator import ConsumerCoordinator
from ottla.errors import ArgumentError
from ottla.types import TopicPartition


def require_group(group: ConsumerCoordinator | None) -> ConsumerCoordinator:
    if group is None:
        raise no_group('Pass group_id="…" to the consumer, or use assign() and seek().')
    return group


def subscribe(
    network: Network,
    group: ConsumerCoordinator | None,
    topics: Iterable[str] | None,
    pattern: re.Pattern[str] | str | None,
    listener: Any,
) -> bool:
    """Subscribes to topics or to a pattern. False if `topics` is empty: then the consumer has to unsubscribe."""
    if pattern is not None and topics is not None:
        raise ArgumentError("subscribe() takes topics or a pattern, not both", "Pass one of them.")
    check_listener(listener)
    if pattern is not None:
        checked = check_pattern(pattern)
        joined = require_group(group)
        network.start()
        joined.subscribe_pattern(checked, listener)
        return True
    names = check_topics(topics)
    if not names:
        return False
    joined = require_group(group)
    network.start()
    joined.subscribe_topics(names, listener)
    return True


async def committed(
    network: Network, config: ConsumerConfig, partitions: Iterable[PartitionLike], timeout_ms: int
) -> dict[TopicPartition, CommittedOffset | None]:
    """The committed offset of each partition; None where there is none."""
    network.start()
    wanted = as_partitions(partitions)
    if not wanted:
        return {}
    require_stable = config.isolation_level == "read_committed"
    assert config.group_id is not None
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            found = await list_group_offsets(network, config.group_id, wanted, require_stable=require_stable)
    except TimeoutError:
        raise network.out_of_time(timeout_ms, "reading the committed offsets") from None
    return {partition: found.get(partition) for partition in wanted}


def offsets_to_commit(
    group: ConsumerCoordinator, offsets: ByPartition[OffsetLike] | None
) -> dict[TopicPartition, CommittedOffset]:
    """The offsets that the user passed, or those of all records returned so far. Adds the leader epochs it knows."""
    if offsets is None:
        return group.consumed()
    chosen = as_committed_offsets(offsets)
    for partition, offset in by_partition(offsets, "offsets", OFFSETS_EXAMPLE).items():
        if whole_number(offset) is not None:
            chosen[partition] = group.with_epoch(partition, chosen[partition].offset)
    return chosen
