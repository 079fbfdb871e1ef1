"""Small values that every layer uses: topic-partitions, endpoints, ids. Pure."""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

ZERO_UUID = bytes(16)
"""The all-zero id, which means "none" in the protocol."""

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
METADATA_TOPIC = "__cluster_metadata"
"""The log of Kafka's controllers, which Ottla does not have. Requests and tools refer to it by this name."""
REBALANCES_TOPIC = "__ottla_rebalances"
"""A topic with the reason of every rebalance, as JSON with the group id as key."""

INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, REBALANCES_TOPIC})

BROKERS_ON_HOST_MAX = 100
"""How many brokers `serve --brokers` or an embedded cluster can have."""

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)


class TopicPartition(NamedTuple):
    """One partition of one topic.

    >>> str(TopicPartition("orders", 3))
    'orders-3'
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partition numbers of each topic, in the given order.

    >>> partitions_by_topic([TopicPartition("b", 1), TopicPartition("a", 0), TopicPartition("b", 0)])
    {'b': [1, 0], 'a': [0]}
    """
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found


def offsets_by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Offsets as JSON has them, and as Spark's own Kafka source writes them: by topic and partition, sorted.

    >>> offsets_by_topic({TopicPartition("orders", 1): 98, TopicPartition("orders", 0): 120})
    {'orders': {'0': 120, '1': 98}}
    """
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def offsets_from_topics(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """The inverse of offsets_by_topic(). Raises ValueError for an offset that is not a whole number.

    The same for a partition. Values of other shapes raise AttributeError or TypeError.

    >>> offsets_from_topics({"orders": {"0": 120}})
    {TopicPartition(topic='orders', partition=0): 120}
    """
    found = {}
    for topic, offsets in topics.items():
        for partition, offset in offsets.items():
            if type(offset) is not int:
                raise ValueError(f"offset {offset!r} of {topic}-{partition} is not a whole number")
            if not re.fullmatch("[0-9]+", partition):
                raise ValueError(f"{partition!r} of {topic} is not a partition")
            found[TopicPartition(topic, int(partition))] = offset
    return found


class Endpoint(NamedTuple):
    """The address of a broker, as advertised to clients."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def uuid_to_text(value: bytes) -> str:
    """Kafka's text form of an id: URL-safe base64 without padding, 22 characters.

    >>> uuid_to_text(bytes(range(16)))
    'AAECAwQFBgcICQoLDA0ODw'
    """
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def uuid_from_text(text: str) -> bytes:
    """The 16 bytes of an id in Kafka's text form. Raises ValueError for any other text, even if it is base64."""
    try:
        value = base64.urlsafe_b64decode(text + "==")
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != 16 or uuid_to_text(value) != text:
        raise ValueError(f"not a Kafka id: {text!r} (expected 22 characters of URL-safe base64)")
    return value


def uuid4_from(random: bytes) -> bytes:
    """16 random bytes as a random UUID: with the bits of version 4 set.

    >>> uuid4_from(bytes(16)).hex()
    '00000000000040008000000000000000'
    """
    value = bytearray(random)
    value[6] = value[6] & 0x0F | 0x40
    value[8] = value[8] & 0x3F | 0x80
    return bytes(value)


def compact_json(value: Any) -> bytes:
    """JSON without spaces, in ASCII, as stored records have it.

    >>> compact_json({"version": 1, "name": "é"})
    b'{"version":1,"name":"\\\\u00e9"}'
    """
    return json.dumps(value, separators=(",", ":")).encode()


def java_hash(text: str) -> int:
    """Java's String.hashCode as a signed 32-bit number: `31 * h + c` over UTF-16 code units.

    >>> java_hash("polygenelubricants")
    -2147483648
    """
    data = text.encode("utf-16-be", "surrogatepass")
    h = 0
    for i in range(0, len(data), 2):
        h = (31 * h + (data[i] << 8 | data[i + 1])) & 0xFFFFFFFF
    return h - 2**32 if h >= 2**31 else h


def partition_for(key: str, partition_count: int) -> int:
    """The partition of a coordinator topic that owns `key` (a group id or a transactional id).

    -2**31, which has no positive counterpart, counts as 0, as in Kafka.

    >>> partition_for("consumerGroupId", 50)
    20
    """
    h = java_hash(key)
    return (0 if h == -(2**31) else abs(h)) % partition_count


def others_needed_in_sync(replica_count: int, min_insync_replicas: int) -> int:
    """How many other replicas must be in sync before the broker of one replica may stop: enough for writes, or all
    others if there are fewer.

    >>> [others_needed_in_sync(*each) for each in ((3, 2), (3, 1), (2, 2), (1, 1))]
    [2, 1, 1, 0]
    """
    return min(max(1, min_insync_replicas), replica_count - 1)
