"""Admin calls about transactional ids and producers: list, describe, end, fence."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from ottla.client.admin.all_coordinators import ask_all_coordinators
from ottla.client.admin.requests import ask, ask_coordinator, coordinators_of, fixed, retrying
from ottla.client.admin.transaction_model import (
    FencedProducer,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from ottla.client.core.arguments import as_names
from ottla.client.core.coordinator_lookup import TRANSACTION_KEY
from ottla.client.core.network import Network
from ottla.client.core.offset_lookup import leaders_of
from ottla.errors import ErrorCode, KafkaError, raise_for
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_producers import DescribeProducersRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.types import TRANSACTIONS_TOPIC, TopicPartition, partitions_by_topic

FENCING_TIMEOUT_MS = 1
"""The transaction timeout in a request that fences: nothing is ever written under the new epoch."""


async def list_transactions(
    network: Network,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    longer_than_ms: int | None = None,
    pattern: str | None = None,
) -> list[TransactionListing]:
    wanted_states, wanted_ids = list(states), list(producer_ids)

    def build(version: int) -> ListTransactionsRequest:
        if (longer_than_ms is not None and version < 1) or (pattern is not None and version < 2):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker does not support this filter of transactions")
        message = ListTransactionsRequest(state_filters=wanted_states, producer_id_filters=wanted_ids)
        if longer_than_ms is not None:
            message.duration_filter = longer_than_ms
        if pattern is not None:
            message.transactional_id_pattern = pattern
        return message

    async def of(node_id: int) -> list[TransactionListing]:
        response = await ask(network, ApiKey.LIST_TRANSACTIONS, build, node_id)
        raise_for(response.error_code, f"listing the transactions of broker {node_id}")
        return [
            TransactionListing(found.transactional_id, found.producer_id, found.transaction_state, node_id)
            for found in response.transaction_states
        ]

    # An id whose coordinator moves meanwhile may be listed by both brokers.
    by_id = {found.transactional_id: found for found in await ask_all_coordinators(network, TRANSACTIONS_TOPIC, of)}
    return [by_id[name] for name in sorted(by_id)]


async def describe_transactions(network: Network, transactional_ids: Sequence[str]) -> list[TransactionDescription]:
    names = as_names(transactional_ids, "transactional ids")

    async def describe(name: str) -> TransactionDescription:
        message = DescribeTransactionsRequest(transactional_ids=[name])

        async def attempt() -> TransactionDescription:
            node = (await coordinators_of(network, [name], TRANSACTION_KEY))[name]
            response = await ask(network, ApiKey.DESCRIBE_TRANSACTIONS, fixed(message), node.node_id)
            (found,) = response.transaction_states
            raise_for(found.error_code, f"describing transaction {name}")
            return TransactionDescription(
                name,
                node.node_id,
                found.transaction_state,
                found.producer_id,
                found.producer_epoch,
                found.transaction_timeout_ms,
                found.transaction_start_time_ms,
                tuple(sorted(TopicPartition(t.topic, p) for t in found.topics for p in t.partitions)),
            )

        return await retrying(network, attempt)

    return list(await asyncio.gather(*map(describe, names)))


async def describe_producers(
    network: Network, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[ProducerState]]:
    wanted = list(partitions)

    async def attempt() -> dict[TopicPartition, list[ProducerState]]:
        leaders = await leaders_of(network, dict.fromkeys(wanted, 0))
        by_node: dict[int, list[TopicPartition]] = {}
        for partition in wanted:
            by_node.setdefault(leaders[partition].node_id, []).append(partition)
        found: dict[TopicPartition, list[ProducerState]] = {}
        for node_id, led in by_node.items():
            found |= await _producers_on(network, node_id, partitions_by_topic(sorted(led)))
        return found

    return await retrying(network, attempt)


async def end_transaction(
    network: Network, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool
) -> None:
    message = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        committed=commit,
    )

    async def attempt() -> None:
        response = await ask_coordinator(network, ApiKey.END_TXN, fixed(message), transactional_id, TRANSACTION_KEY)
        doing = "committing" if commit else "aborting"
        raise_for(response.error_code, f"{doing} transaction {transactional_id}")

    await retrying(network, attempt)


async def fence_producers(network: Network, transactional_ids: Sequence[str]) -> dict[str, FencedProducer]:
    names = list(dict.fromkeys(as_names(transactional_ids, "transactional ids")))

    async def fence(name: str) -> FencedProducer:
        message = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=FENCING_TIMEOUT_MS)

        async def attempt() -> FencedProducer:
            response = await ask_coordinator(network, ApiKey.INIT_PRODUCER_ID, fixed(message), name, TRANSACTION_KEY)
            raise_for(response.error_code, f"fencing the producers of {name}")
            return FencedProducer(response.producer_id, response.producer_epoch)

        return await retrying(network, attempt)

    return dict(zip(names, await asyncio.gather(*map(fence, names)), strict=True))


async def _producers_on(
    network: Network, node_id: int, topics: Mapping[str, list[int]]
) -> dict[TopicPartition, list[ProducerState]]:
    asked = [DescribeProducersRequest.TopicRequest(name=t, partition_indexes=p) for t, p in topics.items()]
    message = DescribeProducersRequest(topics=asked)
    response = await ask(network, ApiKey.DESCRIBE_PRODUCERS, fixed(message), node_id)
    found = {}
    for topic in response.topics:
        for part in topic.partitions:
            partition = TopicPartition(topic.name, part.partition_index)
            raise_for(part.error_code, f"describing the producers of {partition}", part.error_message)
            found[partition] = [
                ProducerState(
                    p.producer_id,
                    p.producer_epoch,
                    p.last_sequence,
                    p.last_timestamp,
                    p.coordinator_epoch,
                    p.current_txn_start_offset,
                )
                for p in part.active_producers
            ]
    return found
