"""The records of `__share_group_state`, which share coordinators write (KIP-932). Pure.

A key starts with its type and a value with its version, both an int16 (see framing.py).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ShareSnapshotKey(Message, api_key=0, versions=range(0, 1)):
    group_id:  str   = field("string")
    topic_id:  bytes = field("uuid")
    partition: int   = field("int32")


class ShareSnapshotValue(Message, api_key=0, versions=range(0, 1), flexible_since=0):
    snapshot_epoch:          int = field("int32")
    state_epoch:             int = field("int32")
    leader_epoch:            int = field("int32")
    start_offset:            int = field("int64")
    delivery_complete_count: int = field("int32", default=-1, tag=0)
    create_timestamp:        int = field("int64")
    write_timestamp:         int = field("int64")
    state_batches:           list[ShareSnapshotValue.StateBatch] = field("[]StateBatch")

    class StateBatch(Struct):
        first_offset:   int = field("int64")
        last_offset:    int = field("int64")
        delivery_state: int = field("int8")
        delivery_count: int = field("int16")


class ShareUpdateKey(Message, api_key=1, versions=range(0, 1)):
    group_id:  str   = field("string")
    topic_id:  bytes = field("uuid")
    partition: int   = field("int32")


class ShareUpdateValue(Message, api_key=1, versions=range(0, 1), flexible_since=0):
    snapshot_epoch:          int = field("int32")
    leader_epoch:            int = field("int32")
    start_offset:            int = field("int64")
    delivery_complete_count: int = field("int32", default=-1, tag=0)
    state_batches:           list[ShareUpdateValue.StateBatch] = field("[]StateBatch")

    class StateBatch(Struct):
        first_offset:   int = field("int64")
        last_offset:    int = field("int64")
        delivery_state: int = field("int8")
        delivery_count: int = field("int16")


KEYS: dict[int, type[Message]] = {
    0: ShareSnapshotKey,
    1: ShareUpdateKey,
}
"""The class of a key by its type."""

VALUES: dict[int, type[Message]] = {
    0: ShareSnapshotValue,
    1: ShareUpdateValue,
}
"""The class of a value by the type of its key."""
