"""Finds the open transactions that hold back readers of a partition: DescribeProducers, then ListTransactions."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ottla.client.model import error_of
from ottla.client.network import Network
from ottla.client.offset_lookup import NO_RETRY, leaders_of
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_producers import DescribeProducersRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.types import TopicPartition


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has written to a partition and has not ended."""

    producer_id: int
    producer_epoch: int
    transactional_id: str | None
    """None where no coordinator knows the producer: the transaction hangs."""
    first_offset: int
    last_timestamp: int
    """When the producer last wrote to the partition."""


async def find_open_transactions(
    network: Network, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[OpenTransaction]]:
    """For each partition its open transactions, the one that holds back readers first."""
    wanted = list(partitions)

    async def attempt() -> dict[TopicPartition, list[OpenTransaction]]:
        producers = await _open_producers(network, wanted)
        ids = sorted({producer.producer_id for found in producers.values() for producer in found})
        names = await _transactional_ids(network, ids) if ids else {}
        return {
            partition: [
                OpenTransaction(
                    p.producer_id,
                    p.producer_epoch,
                    names.get(p.producer_id),
                    p.current_txn_start_offset,
                    p.last_timestamp,
                )
                for p in sorted(found, key=lambda p: p.current_txn_start_offset)
            ]
            for partition, found in producers.items()
        }

    return await network.retrying(attempt, final=NO_RETRY)


async def _open_producers(network: Network, partitions: list[TopicPartition]) -> dict[TopicPartition, list[Any]]:
    leaders = await leaders_of(network, dict.fromkeys(partitions, 0))
    by_node: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for partition in partitions:
        by_node[leaders[partition].node_id][partition.topic].append(partition.partition)
    found: dict[TopicPartition, list[Any]] = {}
    for node_id, topics in by_node.items():
        asked = [DescribeProducersRequest.TopicRequest(name=t, partition_indexes=p) for t, p in topics.items()]
        message = DescribeProducersRequest(topics=asked)
        answer = await network.request(ApiKey.DESCRIBE_PRODUCERS, lambda version, m=message: m, destination=node_id)  # type: ignore[misc]
        for topic in answer.message.topics:
            for p in topic.partitions:
                partition = TopicPartition(topic.name, p.partition_index)
                if p.error_code != ErrorCode.NONE:
                    raise KafkaError(error_of(p.error_code), f"describing the producers of {partition}")
                found[partition] = [each for each in p.active_producers if each.current_txn_start_offset >= 0]
    return found


async def _transactional_ids(network: Network, producer_ids: list[int]) -> dict[int, str]:
    """The name behind each producer id, as the transaction coordinators know it."""
    message = ListTransactionsRequest(producer_id_filters=producer_ids)
    answers = await asyncio.gather(
        *(
            network.request(ApiKey.LIST_TRANSACTIONS, lambda version: message, destination=node_id)
            for node_id in network.view.brokers
        )
    )
    names = {}
    for answer in answers:
        if answer.message.error_code != ErrorCode.NONE:
            raise KafkaError(error_of(answer.message.error_code), "listing transactions")
        for state in answer.message.transaction_states:
            names[state.producer_id] = state.transactional_id
    return names
