"""Formatter for `__transaction_state`: `ottla consume __transaction_state --formatter transactions`."""

from typing import Any

from ottla.cli.output import safe_text
from ottla.client.admin.transaction_model import StoredTransaction, read_key, read_value
from ottla.client.core.model import ConsumerRecord
from ottla.protocol.primitives import ProtocolError

Read = tuple[str, StoredTransaction | None]


def transaction_text(record: ConsumerRecord) -> str | None:
    """One line: the transactional id and its stored state."""
    read = _read(record)
    if read is None:
        return None
    name, stored = read
    if stored is None:
        return f"{safe_text(name)}::null"
    partitions = ",".join(map(str, stored.partitions))
    more = "".join(
        f",{label}={value}"
        for label, value in (
            ("previousProducerId", stored.previous_producer_id),
            ("nextProducerId", stored.next_producer_id),
            ("nextProducerEpoch", stored.next_producer_epoch),
        )
        if value >= 0
    )
    return (
        f"{safe_text(name)}::TransactionMetadata(transactionalId={safe_text(name)},producerId={stored.producer_id},"
        f"producerEpoch={stored.producer_epoch},txnTimeoutMs={stored.timeout_ms},state={stored.state},"
        f"topicPartitions=[{partitions}],txnStartTimestamp={stored.start_ms},"
        f"txnLastUpdateTimestamp={stored.update_ms},clientTransactionVersion={stored.client_version}{more})"
    )


def transaction_json(record: ConsumerRecord) -> dict[str, Any] | None:
    read = _read(record)
    if read is None:
        return None
    name, stored = read
    return {
        "transactional_id": name,
        "transaction": None if stored is None else stored_json(stored),
        "record": {"partition": record.partition, "offset": record.offset, "timestamp": record.timestamp},
    }


def stored_json(stored: StoredTransaction) -> dict[str, Any]:
    return {
        "state": stored.state,
        "producer_id": stored.producer_id,
        "producer_epoch": stored.producer_epoch,
        "timeout_ms": stored.timeout_ms,
        "partitions": [str(partition) for partition in stored.partitions],
        "start_timestamp": stored.start_ms,
        "last_update_timestamp": stored.update_ms,
        "previous_producer_id": stored.previous_producer_id,
        "next_producer_id": stored.next_producer_id,
        "next_producer_epoch": stored.next_producer_epoch,
        "client_transaction_version": stored.client_version,
    }


def _read(record: ConsumerRecord) -> Read | None:
    if record.key is None:
        raise ProtocolError("the record has no key")
    name = read_key(record.key)
    if name is None:
        return None
    return name, None if record.value is None else read_value(name, record.value)
