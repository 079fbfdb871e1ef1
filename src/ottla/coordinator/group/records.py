"""The records of `__consumer_offsets`, byte for byte Kafka's: keys and values both ways. Pure.

There are hundreds of thousands of offset commits, so their codec is handwritten; tests compare it with the message
tables. In memory a commit stays in its stored form and is decoded when it is needed.
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

OFFSET_KEY_TYPES = frozenset(key.api_key.to_bytes(2, "big") for key in (OffsetCommitKey, LegacyOffsetCommitKey))
GROUP_KEY_TYPE = GroupMetadataKey.api_key.to_bytes(2, "big")
"""The first two bytes of a key."""

OFFSET_VALUE_VERSION = 4
EXPLICIT_EXPIRY_VALUE_VERSION = 1
"""The only version that stores when an offset expires (OffsetCommit v2-4 with a retention time)."""
GROUP_VALUE_VERSION = 3

_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")
_int64 = struct.Struct(">q")
_offset_and_epoch = struct.Struct(">hqi")
_offset_epoch_and_nothing = struct.Struct(">hqiB")
_uint64 = struct.Struct(">Q")

# Version 4: 2 bytes of version, 8 of offset, 4 of leader epoch, a compact string, 8 of commit time, tags.
V4_PREFIX = b"\x00\x04"
_METADATA = 14
_NO_TAGS = b"\x00"
_TOPIC_ID_TAG = b"\x01\x00\x10"
_SHORT = 127
"""The longest string whose length is a single byte, plus one."""


class CommittedOffset(NamedTuple):
    """One committed position."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1
    """-1 unless the commit set its own retention time."""
    topic_id: bytes = ZERO_UUID


# --- offset commits ---------------------------------------------------------------------------------------


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
        (group_length,) = _int16.unpack_from(key, 2)
        start = 4 + group_length
        (topic_length,) = _int16.unpack_from(key, start)
        end = start + 2 + topic_length
        if group_length < 0 or topic_length < 0:
            raise ProtocolError("offset key: a name has a negative length")
        # A key that is too short or too long fails here.
        (partition,) = _int32.unpack(key[end:])
        return str(key[4:start], "utf-8"), str(key[start + 2 : end], "utf-8"), partition
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
    if len(metadata) >= _SHORT:
        value = OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp,
            topic_id=committed.topic_id,
        )
        return encode_versioned(value, OFFSET_VALUE_VERSION)
    return b"".join(
        (
            _offset_and_epoch.pack(OFFSET_VALUE_VERSION, committed.offset, committed.leader_epoch),
            bytes((len(metadata) + 1,)),
            metadata,
            _int64.pack(committed.commit_timestamp),
            _NO_TAGS if committed.topic_id == ZERO_UUID else _TOPIC_ID_TAG + committed.topic_id,
        )
    )


class TopicCommit:
    """The records of one commit to one topic; what they have in common is encoded once."""

    __slots__ = ("_expires_at", "_key", "_now", "_tail", "_topic_id")

    def __init__(self, group_id: str, topic: str, topic_id: bytes, now: int, expires_at: int) -> None:
        self._key = offset_key(group_id, topic, 0)[:-4]
        self._topic_id = topic_id
        self._now = now
        self._expires_at = expires_at
        self._tail = _int64.pack(now) + (_NO_TAGS if topic_id == ZERO_UUID else _TOPIC_ID_TAG + topic_id)

    def record(self, partition: int, offset: int, leader_epoch: int, metadata: str) -> tuple[bytes, bytes]:
        """The key and the value."""
        key = self._key + _int32.pack(partition)
        if metadata or self._expires_at >= 0:
            committed = CommittedOffset(offset, leader_epoch, metadata, self._now, self._expires_at, self._topic_id)
            return key, offset_value(committed)
        return key, _offset_epoch_and_nothing.pack(OFFSET_VALUE_VERSION, offset, leader_epoch, 1) + self._tail


def _is_plain(value: bytes) -> bool:
    """Whether a value has the usual layout of `offset_value`, so that its parts are at known positions."""
    if value[:2] != V4_PREFIX or len(value) < _METADATA + 10 or not 0 < value[_METADATA] <= _SHORT:
        return False
    end = _METADATA + value[_METADATA]
    rest = len(value) - end - 8
    if rest == 1:
        return value[-1] == 0 and value[_METADATA + 1 : end].isascii()
    return rest == 19 and value[end + 8 : end + 11] == _TOPIC_ID_TAG and value[_METADATA + 1 : end].isascii()


def check_offset_value(value: bytes) -> None:
    """Raises ProtocolError where `read_offset_value` would."""
    if not _is_plain(value):
        decode_versioned(OffsetCommitValue, value)


def read_offset_value(value: bytes) -> CommittedOffset:
    """Any version of a stored offset."""
    if _is_plain(value):
        _, offset, leader_epoch = _offset_and_epoch.unpack_from(value)
        end = _METADATA + value[_METADATA]
        topic_id = ZERO_UUID if len(value) == end + 9 else value[end + 11 :]
        metadata = str(value[_METADATA + 1 : end], "ascii")
        return CommittedOffset(offset, leader_epoch, metadata, _int64.unpack_from(value, end)[0], -1, topic_id)
    decoded = decode_versioned(OffsetCommitValue, value)
    return CommittedOffset(
        decoded.offset,
        decoded.leader_epoch,
        decoded.metadata,
        decoded.commit_timestamp,
        decoded.expire_timestamp,
        decoded.topic_id,
    )


def read_commit_times(value: bytes) -> tuple[int, int]:
    """(when it was committed, when it expires or -1), without reading the rest."""
    if _is_plain(value):
        return _int64.unpack_from(value, _METADATA + value[_METADATA])[0], -1
    decoded = decode_versioned(OffsetCommitValue, value)
    return decoded.commit_timestamp, decoded.expire_timestamp


# --- offset commits in memory -----------------------------------------------------------------------------


def stored_form(value: bytes, record_offset: int) -> bytes:
    """The value followed by its offset in the log: one bytes object, which the garbage collector does not track."""
    return value + _uint64.pack(record_offset)


def value_of(stored: bytes) -> bytes:
    return stored[:-8]


def record_offset_of(stored: bytes) -> int:
    """Its offset in the log. The later of two commits wins, in whatever order they become visible."""
    offset: int = _uint64.unpack_from(stored, len(stored) - 8)[0]
    return offset


# --- group metadata ---------------------------------------------------------------------------------------


def group_key(group_id: str) -> bytes:
    return encode_record_key(GroupMetadataKey(group=group_id))


def read_group_key(key: bytes) -> str:
    return GroupMetadataKey.decode(key, 0, 2).group


def group_value(value: GroupMetadataValue) -> bytes:
    return encode_versioned(value, GROUP_VALUE_VERSION)


def read_group_value(value: bytes) -> GroupMetadataValue:
    return decode_versioned(GroupMetadataValue, value)
