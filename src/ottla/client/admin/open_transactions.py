"""Admin calls about open transactions in partitions: which block readers, which hang, and how to abort a hanging one.

A transaction hangs if no coordinator will ever end it (KIP-664).
"""

from collections.abc import Iterable

from ottla.client.admin.requests import ask, fixed, retrying
from ottla.client.admin.transaction_model import (
    OPEN_STATES,
    HangingTransaction,
    OpenTransaction,
    ProducerState,
    TransactionDescription,
)
from ottla.client.admin.transactions import describe_producers, describe_transactions, list_transactions
from ottla.client.core.network import Network
from ottla.client.core.offset_lookup import leaders_of
from ottla.errors import raise_for
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from ottla.types import TopicPartition


async def find_open_transactions(
    network: Network, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[OpenTransaction]]:
    opened = await _producers_with_open(network, partitions)
    names = await _transactional_ids(network, opened)
    return {
        partition: [
            OpenTransaction(
                each.producer_id,
                each.producer_epoch,
                names.get(each.producer_id),
                each.transaction_start_offset,
                each.last_timestamp,
            )
            for each in sorted(found, key=lambda each: each.transaction_start_offset)
        ]
        for partition, found in opened.items()
    }


async def find_hanging_transactions(network: Network, partitions: Iterable[TopicPartition]) -> list[HangingTransaction]:
    first = await _find_hanging(network, list(partitions))
    if not first:
        return []
    # Checked twice: a transaction that was just being completed is not hanging.
    again = {_identity(hanging) for hanging in first}
    second = await _find_hanging(network, sorted({hanging.partition for hanging in first}))
    return [hanging for hanging in second if _identity(hanging) in again]


async def abort_in_partition(network: Network, partition: TopicPartition, producer: ProducerState) -> None:
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        coordinator_epoch=max(0, producer.coordinator_epoch),
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])
        ],
    )
    message = WriteTxnMarkersRequest(markers=[marker])

    async def attempt() -> None:
        leaders = await leaders_of(network, {partition: 0})
        response = await ask(network, ApiKey.WRITE_TXN_MARKERS, fixed(message), leaders[partition].node_id)
        raise_for(response.markers[0].topics[0].partitions[0].error_code, f"writing an abort marker to {partition}")

    await retrying(network, attempt)


async def _find_hanging(network: Network, partitions: list[TopicPartition]) -> list[HangingTransaction]:
    opened = await _producers_with_open(network, partitions)
    names = await _transactional_ids(network, opened)
    described = {t.transactional_id: t for t in await describe_transactions(network, sorted(set(names.values())))}
    hanging = []
    for partition, found in sorted(opened.items()):
        for producer in found:
            name = names.get(producer.producer_id)
            reason = _why_hanging(partition, None if name is None else described[name])
            if reason is not None:
                hanging.append(HangingTransaction(partition, producer, name, reason))
    return hanging


async def _producers_with_open(
    network: Network, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[ProducerState]]:
    """The producers that have a transaction open, by partition."""
    producers = await describe_producers(network, partitions)
    return {p: [each for each in found if each.transaction_start_offset >= 0] for p, found in producers.items()}


async def _transactional_ids(network: Network, opened: dict[TopicPartition, list[ProducerState]]) -> dict[int, str]:
    """The transactional id of each of these producers that a coordinator knows, by producer id."""
    ids = sorted({each.producer_id for found in opened.values() for each in found})
    listed = await list_transactions(network, producer_ids=ids) if ids else []
    return {listing.producer_id: listing.transactional_id for listing in listed}


def _identity(hanging: HangingTransaction) -> tuple[TopicPartition, int, int]:
    return hanging.partition, hanging.producer.producer_id, hanging.producer.transaction_start_offset


def _why_hanging(partition: TopicPartition, known: TransactionDescription | None) -> str | None:
    """Why no coordinator will end the open transaction in the partition; None if one will."""
    if known is None:
        return "no coordinator knows the producer"
    if known.state not in OPEN_STATES:
        return f"its coordinator has it as {known.state}"
    if partition not in known.partitions:
        return "its coordinator does not include the partition"
    return None
