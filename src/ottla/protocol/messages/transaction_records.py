"""The records of `__transaction_state`, and the entries of the aborted-transaction index. Pure.

A key starts with its type and a value with its version, both an int16 (see framing.py).
Value v0 belongs to transaction.version 0. v1 is flexible and belongs to later ones (KIP-890).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class TransactionLogKey(Message, api_key=0, versions=range(0, 1)):
    transactional_id: str = field("string")


class TransactionLogValue(Message, api_key=0, versions=range(0, 2), flexible_since=1):
    producer_id:                          int = field("int64")
    previous_producer_id:                 int = field("int64", "1+", default=-1, tag=0)
    next_producer_id:                     int = field("int64", "1+", default=-1, tag=1)
    producer_epoch:                       int = field("int16")
    next_producer_epoch:                  int = field("int16", "1+", default=-1, tag=3)
    transaction_timeout_ms:               int = field("int32")
    transaction_status:                   int = field("int8")
    transaction_partitions:               list[TransactionLogValue.PartitionsSchema] | None = field("[]PartitionsSchema", nullable="0+")
    transaction_last_update_timestamp_ms: int = field("int64")
    transaction_start_timestamp_ms:       int = field("int64")
    client_transaction_version:           int = field("int16", "1+", tag=2)

    class PartitionsSchema(Struct):
        topic:         str       = field("string")
        partition_ids: list[int] = field("[]int32")


class AbortedTxn(Message, versions=range(0, 1)):
    producer_id:        int = field("int64")
    first_offset:       int = field("int64")
    last_offset:        int = field("int64")
    last_stable_offset: int = field("int64")
