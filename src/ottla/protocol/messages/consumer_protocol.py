"""The subscriptions and assignments that consumers exchange through a classic group. Pure.

Both start with their version as an int16 (see framing.py). A reader accepts newer versions than it knows.

v0   topics; assigned partitions
v1   the partitions that a member owns, for cooperative rebalancing (KIP-429)
v2   the generation in which it owned them (KIP-792)
v3   rack of the member (KIP-881)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ConsumerProtocolSubscription(Message, versions=range(0, 4)):
    topics:           list[str]    = field("[]string")
    user_data:        bytes | None = field("bytes", nullable="0+", default=None)
    owned_partitions: list[ConsumerProtocolSubscription.TopicPartition] = field("[]TopicPartition", "1+", ignorable=True)
    generation_id:    int          = field("int32", "2+", default=-1, ignorable=True)
    rack_id:          str | None   = field("string", "3+", nullable="0+", default=None, ignorable=True)

    class TopicPartition(Struct):
        topic:      str       = field("string", "1+")
        partitions: list[int] = field("[]int32", "1+")


class ConsumerProtocolAssignment(Message, versions=range(0, 4)):
    assigned_partitions: list[ConsumerProtocolAssignment.TopicPartition] = field("[]TopicPartition")
    user_data:           bytes | None = field("bytes", nullable="0+", default=None)

    class TopicPartition(Struct):
        topic:      str       = field("string")
        partitions: list[int] = field("[]int32")
