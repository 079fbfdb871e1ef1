"""Finds the open transactions that hold back readers of a partition."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ottla.client.admin.transaction_model import ProducerState, TransactionListing
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


class _Admin(Protocol):
    """The two questions it takes."""

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerState]]: ...

    async def list_transactions(self, *, producer_ids: Iterable[int] = ()) -> list[TransactionListing]: ...


async def find_open_transactions(
    admin: _Admin, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[OpenTransaction]]:
    """For each partition its open transactions, the one that holds back readers first."""
    producers = await admin.describe_producers(partitions)
    opened = {
        partition: sorted(
            (each for each in found if each.transaction_start_offset >= 0),
            key=lambda each: each.transaction_start_offset,
        )
        for partition, found in producers.items()
    }
    ids = sorted({each.producer_id for found in opened.values() for each in found})
    listed = await admin.list_transactions(producer_ids=ids) if ids else []
    names = {listing.producer_id: listing.transactional_id for listing in listed}
    return {
        partition: [
            OpenTransaction(
                each.producer_id,
                each.producer_epoch,
                names.get(each.producer_id),
                each.transaction_start_offset,
                each.last_timestamp,
            )
            for each in found
        ]
        for partition, found in opened.items()
    }
