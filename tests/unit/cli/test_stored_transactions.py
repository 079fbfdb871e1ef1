"""Records of __transaction_state: the timeline of a transactional id, and the formatter."""

from typing import Any

import pytest

from ottla.cli.consume.transaction_formatter import transaction_json, transaction_text
from ottla.client.admin.transaction_model import StoredTransaction, history_of
from ottla.client.core.model import ConsumerRecord
from ottla.protocol.primitives import ProtocolError
from ottla.types import TopicPartition


def stored(state: str, **more: Any) -> StoredTransaction:
    fields = {
        "transactional_id": "x",
        "state": state,
        "producer_id": 7,
        "producer_epoch": 0,
        "timeout_ms": 1_000,
        "partitions": (),
        "start_ms": 0,
        "update_ms": 0,
        "previous_producer_id": -1,
        "next_producer_id": -1,
        "next_producer_epoch": -1,
        "client_version": 0,
    }
    return StoredTransaction(**fields | more)  # type: ignore[arg-type]


def test_the_timeline_explains_each_step() -> None:
    where = (TopicPartition("t", 0),)
    life = [
        (0, stored("Ongoing", partitions=where)),
        (0, stored("Ongoing", partitions=where, next_producer_epoch=1, update_ms=10)),
        (0, stored("PrepareAbort", partitions=where, producer_epoch=1, update_ms=5_000)),
        (0, stored("CompleteAbort", producer_epoch=1, update_ms=5_001)),
        (0, stored("Ongoing", producer_epoch=1, update_ms=6_000, start_ms=6_000, partitions=where)),
        (0, stored("PrepareAbort", producer_epoch=2, update_ms=6_010, partitions=where)),
        (0, stored("CompleteAbort", producer_id=8, update_ms=6_020)),
        (9_000, None),
    ]
    assert [moment.what for moment in history_of(life)] == [
        "begun",
        "taken over by epoch 1, kept as prepared",
        "abort decided after its timeout",
        "completed",
        "begun",
        "abort decided, its producer fenced",
        "completed, continues as producer 8",
        "expired: not used any more",
    ]


def record(key: bytes | None, value: bytes | None) -> ConsumerRecord:
    return ConsumerRecord("__transaction_state", 6, 3, 1_700_000_000_000, key, value, ())


KEY = bytes.fromhex("0000000374786e")
VALUE = bytes.fromhex(
    "000100000000000003e800030000ea6001020274030000000000000001000000018bcfe569f40000018bcfe5680002000800000000000003e802020002"
)


def test_the_formatter_decodes_stored_transactions() -> None:
    """Spec: C5."""
    assert transaction_text(record(KEY, VALUE)) == (
        "txn::TransactionMetadata(transactionalId=txn,producerId=1000,producerEpoch=3,txnTimeoutMs=60000,state=Ongoing,"
        "topicPartitions=[t-0,t-1],txnStartTimestamp=1700000000000,txnLastUpdateTimestamp=1700000000500,"
        "clientTransactionVersion=2,previousProducerId=1000)"
    )
    assert transaction_text(record(KEY, None)) == "txn::null"
    assert transaction_text(record(b"\0\7future", b"")) is None
    shown = transaction_json(record(KEY, VALUE))
    assert shown is not None
    assert shown["transaction"]["partitions"] == ["t-0", "t-1"]
    for key, value in ((None, VALUE), (KEY, VALUE[:20]), (KEY[:4], VALUE)):
        with pytest.raises(ProtocolError):
            transaction_text(record(key, value))
