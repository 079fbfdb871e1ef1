"""The records of `__consumer_offsets`, byte for byte Kafka's: keys and values both ways. Pure.

The offset commit is written and read by the hundred thousand, so its codec is written out here; the tests hold it
against the message tables.
"""

import struct
from typing import NamedTuple

from ottla.protocol.framing import decode_versioned, encode_record_key, encode_versioned
from ottla.protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.protocol.primitives import ProtocolError
from ottla.types import ZERO_UUID

OFFSET_COMMIT = OffsetCommitKey.api_key
LEGACY_OFFSET_COMMIT = LegacyOffsetCommitKey.api_key
GROUP_METADATA = GroupMetadataKey.api_key

OFFSET_VALUE_VERSION = 4
EXPLICIT_EXPIRY_VALUE_VERSION = 1
"""The one version that can say when an offset expires (OffsetCommit v2-4 with a retention time)."""
GROUP_VALUE_VERSION = 3

_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")
_offset_and_epoch = struct.Struct(">hqi")
_int64 = struct.Struct(">q")


class CommittedOffset(NamedTuple):
    """One committed position, as stored."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int
    """-1 unless the commit asked for a retention time of its own."""
    topic_id: bytes
    record_offset: int
    """Where in the log it stands: of two commits the later one wins, whatever the order they become visible in."""


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """
    >>> offset_key("g", "t", 0).hex()
    '000100016700017400000000'
    """
    group, name = group_id.encode(), topic.encode()
    return b"".join((b"\x00\x01", _int16.pack(len(group)), group, _int16.pack(len(name)), name, _int32.pack(partition)))


def read_offset_key(key: bytes) -> tuple[str, str, int]:
    """(group, topic, partition) of an offset key, legacy ones included."""
    try:
        end = 4 + _int16.unpack_from(key, 2)[0]
        group = key[4:end]
        start = end + 2
        end = start + _int16.unpack_from(key, start - 2)[0]
        return str(group, "utf-8"), str(key[start:end], "utf-8"), _int32.unpack_from(key, end)[0]
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"offset key: {error}") from None


def offset_value(committed: CommittedOffset) -> bytes:
    if committed.expire_timestamp >= 0:
        value = OffsetCommitValue(
            offset=committed.offset,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp,
            expire_timestamp=committed.expire_timestamp,
        )
        return encode_versioned(value, EXPLICIT_EXPIRY_VALUE_VERSION)
    metadata = committed.metadata.encode()
    if len(metadata) > 126:
        value = OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp,
            topic_id=committed.topic_id,
        )
        return encode_versioned(value, OFFSET_VALUE_VERSION)
    tags = b"\x00" if committed.topic_id == ZERO_UUID else b"\x01\x00\x10" + committed.topic_id
    return b"".join(
        (
            _offset_and_epoch.pack(OFFSET_VALUE_VERSION, committed.offset, committed.leader_epoch),
            bytes((len(metadata) + 1,)),
            metadata,
            _int64.pack(committed.commit_timestamp),
            tags,
        )
    )


def read_offset_value(value: bytes, record_offset: int) -> CommittedOffset:
    """Any version of a stored offset."""
    if value[:2] == b"\x00\x04" and len(value) > 24 and value[14] < 128:
        end = 14 + value[14]
        tags = end + 9
        if end >= 14 + 1 and len(value) == tags and value[end + 8] == 0:
            # What this coordinator writes when it knows no topic id.
            _, offset, leader_epoch = _offset_and_epoch.unpack_from(value)
            return CommittedOffset(
                offset,
                leader_epoch,
                str(value[15:end], "utf-8"),
                _int64.unpack_from(value, end)[0],
                -1,
                ZERO_UUID,
                record_offset,
            )
        if end >= 14 + 1 and len(value) == tags + 18 and value[end + 8 : tags + 2] == b"\x01\x00\x10":
            _, offset, leader_epoch = _offset_and_epoch.unpack_from(value)
            return CommittedOffset(
                offset,
                leader_epoch,
                str(value[15:end], "utf-8"),
                _int64.unpack_from(value, end)[0],
                -1,
                value[tags + 2 :],
                record_offset,
            )
    decoded = decode_versioned(OffsetCommitValue, value)
    return CommittedOffset(
        decoded.offset,
        decoded.leader_epoch,
        decoded.metadata,
        decoded.commit_timestamp,
        decoded.expire_timestamp,
        decoded.topic_id,
        record_offset,
    )


def group_key(group_id: str) -> bytes:
    return encode_record_key(GroupMetadataKey(group=group_id))


def read_group_key(key: bytes) -> str:
    return GroupMetadataKey.decode(key, 0, 2).group


def group_value(value: GroupMetadataValue) -> bytes:
    return encode_versioned(value, GROUP_VALUE_VERSION)


def read_group_value(value: bytes) -> GroupMetadataValue:
    return decode_versioned(GroupMetadataValue, value)
