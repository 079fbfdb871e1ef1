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
"""Called before the first batch of a transaction is appended to a partition. If the coordinator did not know the
partition, it would never write a marker there, and the transaction would hang (KIP-890). The result may be immediate,
which keeps the order of the connection, or awaited; the log itself rejects an append that a marker has overtaken in the
meantime, or that is out of sequence."""


def refuse_transactions(append: TransactionalAppend) -> Verdicts:
    """Rejects all transactions: there is no coordinator."""
    return dict.fromkeys(append.partitions, ErrorCode.INVALID_TXN_STATE)
