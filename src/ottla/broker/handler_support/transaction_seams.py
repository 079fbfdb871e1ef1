"""What Produce asks of the transaction coordinator before a transaction's first batch goes into a partition. Pure."""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from ottla.errors import ErrorCode
from ottla.types import TopicPartition


class TransactionalAppend(NamedTuple):
    """Batches of one transaction that are about to be appended, each the first of its transaction in its partition."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    produce_version: int
    """From Produce v12 on the request itself adds the partitions to the transaction (KIP-890)."""


Verdicts = Mapping[TopicPartition, ErrorCode]
"""For each partition: NONE if it is part of the transaction, otherwise the error code for the producer."""

TransactionVerifier = Callable[[TransactionalAppend], Verdicts | Awaitable[Verdicts]]
"""Asked before the first batch of a transaction goes into a partition: without the coordinator's knowledge it would
hang there for ever. The answer may come at once, which keeps the connection's order, or be awaited; the log
itself refuses an append that a marker overtook meanwhile, and one out of sequence."""


def refuse_transactions(append: TransactionalAppend) -> Verdicts:
    """No coordinator, no transaction."""
    return dict.fromkeys(append.partitions, ErrorCode.INVALID_TXN_STATE)
