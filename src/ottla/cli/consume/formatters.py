"""Formatters for internal topics: `ottla consume __consumer_offsets --formatter offsets`.

A formatter converts a record to a line of text or to JSON, or returns None for a record of another kind.
Malformed bytes raise ProtocolError; the command reports the offset and continues.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ottla.cli.consume.transaction_formatter import transaction_json, transaction_text
from ottla.cli.output import bytes_json
from ottla.client.admin.group_model import read_assignment, read_subscription
from ottla.client.blocking import Admin
from ottla.client.core.model import ConsumerRecord
from ottla.errors import KafkaError, OttlaError
from ottla.protocol.framing import decode_record_key, decode_versioned
from ottla.protocol.messages.group_records import (
    KEYS,
    VALUES,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.schema import Message, Struct
from ottla.protocol.wire_values import CONSUMER
from ottla.types import ZERO_UUID, TopicPartition, partitions_by_topic, uuid_to_text

OFFSETS_RETENTION_MINUTES = 10_080
"""Kafka's default of `offsets.retention.minutes`, used if the broker does not report its own."""

Json = dict[str, Any]


class Formatter(NamedTuple):
    """Converts a record to text and to JSON. None: the record is of another kind and is skipped."""

    to_text: Callable[[ConsumerRecord], str | None]
    to_json: Callable[[ConsumerRecord], Json | None]


# Committed offsets


def offsets_formatter(retention_ms: int) -> Formatter:
    """Committed offsets.

    A stored commit has an expiry time only if the client requested one (OffsetCommit v2 to v4). All others expire
    `offsets.retention.minutes` after the commit, at the earliest.
    """

    def to_text(record: ConsumerRecord) -> str | None:
        read = _read_offset(record)
        if read is None:
            return None
        (group, topic, partition), value = read
        place = f"[{group},{topic},{partition}]"
        if value is None:
            return f"{place}::null"
        metadata = value.metadata or "NO_METADATA"
        return (
            f"{place}::[OffsetMetadata[{value.offset},{metadata}],"
            f"CommitTime {value.commit_timestamp},ExpirationTime {_expiration(value, retention_ms)}]"
        )

    def to_json(record: ConsumerRecord) -> Json | None:
        read = _read_offset(record)
        if read is None:
            return None
        (group, topic, partition), value = read
        shown: Json = {"group": group, "topic": topic, "partition": partition, "committed": None}
        if value is not None:
            shown["committed"] = {
                "offset": value.offset,
                "leader_epoch": value.leader_epoch,
                "metadata": value.metadata,
                "commit_timestamp": value.commit_timestamp,
                "expiration_timestamp": _expiration(value, retention_ms),
                "topic_id": None if value.topic_id == ZERO_UUID else uuid_to_text(value.topic_id),
            }
        return shown | {"record": _place(record)}

    return Formatter(to_text, to_json)


def _expiration(value: OffsetCommitValue, retention_ms: int) -> int:
    return value.expire_timestamp if value.expire_timestamp >= 0 else value.commit_timestamp + retention_ms


def _read_offset(record: ConsumerRecord) -> tuple[tuple[str, str, int], OffsetCommitValue | None] | None:
    key = _read_key(record)
    if not isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
        return None
    value = None if record.value is None else decode_versioned(OffsetCommitValue, record.value)
    return (key.group, key.topic, key.partition), value


# Group metadata


def _group_text(record: ConsumerRecord) -> str | None:
    key = _read_key(record)
    if not isinstance(key, GroupMetadataKey):
        return _other_text(record, key)
    if record.value is None:
        return f"[{key.group}]::null"
    value = decode_versioned(GroupMetadataValue, record.value)
    members = ",".join(_member_text(value, member) for member in value.members)
    return (
        f"[{key.group}]::[GroupMetadata[{value.generation},{value.protocol_type or 'NO_PROTOCOL_TYPE'},"
        f"{value.protocol or 'NO_PROTOCOL'},{value.leader or 'NO_LEADER'}],"
        f"StateTime {value.current_state_timestamp},Members[{members}]]"
    )


def _member_text(group: GroupMetadataValue, member: GroupMetadataValue.MemberMetadata) -> str:
    assigned = " ".join(map(str, _assigned(group, member)))
    instance = member.group_instance_id or "NO_INSTANCE_ID"
    return f"[{member.member_id},{instance},{member.client_id},{member.client_host},[{assigned}]]"


def _group_json(record: ConsumerRecord) -> Json | None:
    key = _read_key(record)
    if not isinstance(key, GroupMetadataKey):
        return _other_json(record, key)
    shown: Json = {"group": key.group, "metadata": None}
    if record.value is not None:
        value = decode_versioned(GroupMetadataValue, record.value)
        shown["metadata"] = {
            "protocol_type": value.protocol_type,
            "generation": value.generation,
            "protocol": value.protocol,
            "leader": value.leader,
            "state_timestamp": value.current_state_timestamp,
            "members": [_member_json(value, member) for member in value.members],
        }
    return shown | {"record": _place(record)}


def _member_json(group: GroupMetadataValue, member: GroupMetadataValue.MemberMetadata) -> Json:
    subscription = read_subscription(member.subscription) if group.protocol_type == CONSUMER else None
    by_topic = partitions_by_topic(_assigned(group, member))
    readable = subscription is not None or not member.subscription
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": member.session_timeout,
        "rebalance_timeout_ms": member.rebalance_timeout,
        "topics": list(subscription.topics) if subscription is not None else None,
        "assignment": by_topic if readable else bytes_json(member.assignment),
    }


def _assigned(group: GroupMetadataValue, member: GroupMetadataValue.MemberMetadata) -> tuple[TopicPartition, ...]:
    return read_assignment(member.assignment) if group.protocol_type == CONSUMER else ()


# Other records of the same topic: groups of newer protocols, written by other brokers


def _other_text(record: ConsumerRecord, key: Message | None) -> str | None:
    shown = _other_json(record, key)
    if shown is None:
        return None
    names = [str(value) for name, value in shown.items() if name not in ("type", "value", "record")]
    value = "null" if shown["value"] is None else json.dumps(shown["value"], ensure_ascii=False)
    return f"[{','.join(names)}]::{shown['type']} {value}"


def _other_json(record: ConsumerRecord, key: Message | None) -> Json | None:
    if key is None or isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
        return None
    value = None if record.value is None else _plain(decode_versioned(VALUES[key.api_key], record.value))
    kind = type(key).__name__.removesuffix("Key")
    fields: Json = _plain(key)
    return {"type": kind} | fields | {"value": value, "record": _place(record)}


def _plain(value: Any, name: str = "") -> Any:
    if isinstance(value, Struct):
        return {field.name: _plain(getattr(value, field.name), field.name) for field in value._fields}
    if isinstance(value, list):
        return [_plain(item, name) for item in value]
    if isinstance(value, bytes):
        return uuid_to_text(value) if name.endswith("_id") and len(value) == 16 else bytes_json(value)
    return value


# Shared


def _read_key(record: ConsumerRecord) -> Message | None:
    """The record's key; None for an unknown kind."""
    if record.key is None:
        raise ProtocolError("the record has no key")
    return decode_record_key(KEYS, record.key)


def _place(record: ConsumerRecord) -> Json:
    return {"partition": record.partition, "offset": record.offset, "timestamp": record.timestamp}


def find_retention_ms(admin: Admin) -> int:
    """How long the cluster keeps offsets; Kafka's default if it cannot be queried."""
    minutes = OFFSETS_RETENTION_MINUTES
    try:
        brokers = admin.describe_cluster().brokers
        name = "offsets.retention.minutes"
        entries = admin.describe_configs("broker", str(brokers[0].node_id), names=[name]) if brokers else []
        minutes = next((int(entry.value) for entry in entries if entry.value is not None), minutes)
    except KafkaError:
        pass  # not authorized
    return minutes * 60_000


def _make_offsets_formatter(admin: Admin) -> Formatter:
    return offsets_formatter(find_retention_ms(admin))


def _make_group_formatter(admin: Admin) -> Formatter:
    return Formatter(_group_text, _group_json)


def _make_transaction_formatter(admin: Admin) -> Formatter:
    return Formatter(transaction_text, transaction_json)


FORMATTERS: Mapping[str, Callable[[Admin], Formatter]] = {
    "offsets": _make_offsets_formatter,
    "group-metadata": _make_group_formatter,
    "transactions": _make_transaction_formatter,
}
"""Formatters by name. Each is built with an Admin, to look up settings of the cluster."""


def check_formatter(name: str) -> None:
    if name not in FORMATTERS:
        raise OttlaError(f"unknown formatter {name}", f"use one of {', '.join(FORMATTERS)}")


def make_formatter(name: str, admin: Admin) -> Formatter:
    check_formatter(name)
    return FORMATTERS[name](admin)
