"""The values that clients return: nodes, topics, configs, offsets, records. Pure."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.errors import ErrorCode
from ottla.protocol.wire_values import EARLIEST as EARLIEST
from ottla.protocol.wire_values import LATEST as LATEST
from ottla.protocol.wire_values import MAX_TIMESTAMP as MAX_TIMESTAMP
from ottla.protocol.wire_values import ConfigSource
from ottla.types import Endpoint, TopicPartition, uuid_to_text

Headers = tuple[tuple[str, bytes | None], ...]
Bytes = bytes | bytearray | memoryview | str | None
"""A key or a value for a producer. Text is sent as UTF-8."""
HeadersLike = Mapping[str, Bytes] | Iterable[tuple[str, Bytes]] | None


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and its address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: its leader (-1 if there is none), replicas and in-sync replicas."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic and its partitions, in order."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]

    @property
    def id_text(self) -> str:
        return uuid_to_text(self.topic_id)

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 uses the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Partition -> the brokers of its replicas, instead of the two numbers above."""


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created. Numbers are -1 if an old broker does not return them."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers and the controller."""

    cluster_id: str
    controller_id: int
    brokers: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ApiVersionRange:
    """One API and the versions that a broker supports."""

    api_key: int
    name: str
    min_version: int
    max_version: int


CONFIG_SOURCES: Mapping[int, str] = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.DYNAMIC_BROKER: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "cluster default",
    ConfigSource.STATIC_BROKER: "broker's file",
    ConfigSource.DEFAULT: "default",
    ConfigSource.BROKER_LOGGER: "logger",
    ConfigSource.CLIENT_METRICS: "client metrics",
    ConfigSource.GROUP: "group",
}
"""Where the value of a setting comes from, by the number on the wire."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic or broker. `value` is None for a secret."""

    name: str
    value: str | None
    source: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    config_type: str
    documentation: str | None


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A resource that has settings: its kind and name, as `describe_configs` takes them."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """The quotas of one entity: {"user": "alice"}, {"client-id": None} for the default of client ids, or both types."""

    entity: Mapping[str, str | None]
    quotas: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the cluster: the levels that a broker supports, and the finalized one (0: none)."""

    name: str
    min_version: int
    max_version: int
    finalized: int


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """The size of one replica on a broker's disk."""

    partition: TopicPartition
    size_bytes: int
    offset_lag: int


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """One data directory of one broker. Disk sizes are -1 if the broker does not return them."""

    node_id: int
    path: str
    replicas: tuple[ReplicaSize, ...]
    total_bytes: int
    usable_bytes: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition that is being moved: its replicas now, those that are added, and those that will be removed."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """A user's credential, without its secrets."""

    mechanism: str
    """SCRAM-SHA-256 or SCRAM-SHA-512."""
    iterations: int


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """Who controls the cluster. `epoch` increases with every new controller."""

    controller_id: int
    epoch: int
    high_watermark: int
    """The number of metadata changes so far."""
    voters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """An offset, the timestamp of its record (-1 if none), and the leader epoch it was written in (-1: unknown)."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A position that a group committed. `leader_epoch` is -1 if the committer did not know it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class RecordMetadata(NamedTuple):
    """Where a record was stored. With acks=0 the offset is not known, and -1."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class ConsumerRecord(NamedTuple):
    """One record with its topic, partition and offset."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Records:
    """The records of one poll(). Iterate over all of them, or over the list of each partition.

    >>> for record in records:                    # record.topic, record.offset, record.value …
    >>> for partition, batch in records.by_partition.items():
    """

    __slots__ = ("by_partition",)

    def __init__(self, by_partition: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        self.by_partition = by_partition

    def __len__(self) -> int:
        return sum(len(records) for records in self.by_partition.values())

    def __bool__(self) -> bool:
        return bool(self.by_partition)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return itertools.chain.from_iterable(self.by_partition.values())

    def __repr__(self) -> str:
        counts = ", ".join(f"{partition}: {len(records)}" for partition, records in self.by_partition.items())
        return f"Records({counts})"
