"""What has been copied: the position in each source partition, and pairs of source and target offsets.

The ledger is a compacted topic of the target cluster. Its records are written in the same transaction as the copied
ones, so after a crash at any point it describes exactly what the target has. Pure.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.types import TopicPartition, compact_json

LEDGER_TOPIC = "ottla-copy-ledger"
POINT_DISTANCE = 10_000
"""The minimum number of source offsets between two points of a partition."""


class Point(NamedTuple):
    """The first record at or after the source offset has this target offset."""

    source: int
    target: int


@dataclass
class Copied:
    """How far one partition has been copied."""

    source: int
    """The next source offset to copy."""
    target: int
    """The target offset after the last copied record."""
    points: list[Point] = field(default_factory=list)
    """In order. The first is where the copy began."""
    topic_id: str = ""
    """Of the source topic (KIP-516). Empty if the source has none, and in ledgers of earlier versions."""

    def point_before(self, source: int) -> Point | None:
        """The last point at or before a source offset; None if the copy began after it."""
        place = bisect_right(self.points, source, key=lambda point: point.source)
        return self.points[place - 1] if place else None


class Range(NamedTuple):
    """Records of one partition that were copied together, and where they are stored."""

    first: int
    last: int
    """Source offsets."""
    stored_first: int
    stored_last: int


class Ledger:
    """The copied partitions of one source cluster."""

    def __init__(self, source_cluster: str) -> None:
        self._source_cluster = source_cluster
        self.copied: dict[TopicPartition, Copied] = {}
        self._forgotten: dict[TopicPartition, Copied] = {}

    def forget(self, partition: TopicPartition) -> None:
        """The target no longer has the copied records: the next records of the partition start over."""
        self._forgotten[partition] = self.copied.pop(partition)

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """Applies one record of the ledger. Those of other sources are skipped. A tombstone removes a point."""
        if key is None:
            return
        name = json.loads(key)
        if name["source"] != self._source_cluster:
            return
        partition = TopicPartition(name["topic"], name["partition"])
        if value is None:
            if partition in self.copied:
                points = self.copied[partition].points
                points[:] = [each for each in points if each.source != name.get("point")]
            return
        content = json.loads(value)
        copied = self.copied.setdefault(partition, Copied(0, 0))
        point = Point(content["source"], content["target"])
        if "point" in name:
            if point not in copied.points:
                copied.points.append(point)
                copied.points.sort()
        else:
            copied.source, copied.target = point
            copied.topic_id = content.get("topic_id", copied.topic_id)

    def is_other_topic(self, partition: TopicPartition, topic_id: str) -> bool:
        """Whether the copied records are not from the topic with this id, but from an earlier one of the same name."""
        copied = self.copied.get(partition)
        return copied is not None and "" not in (topic_id, copied.topic_id) and topic_id != copied.topic_id

    def records(
        self, partition: TopicPartition, copied: Range, topic_id: str = ""
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """The keys and values to write with these copied records."""
        topic_id = topic_id or (self.copied[partition].topic_id if partition in self.copied else "")
        known = self.copied.get(partition)
        name = {"source": self._source_cluster, "topic": partition.topic, "partition": partition.partition}
        if known is None and partition in self._forgotten:
            for old in self._forgotten.pop(partition).points:
                yield compact_json(name | {"point": old.source}), None
        if known is None or not known.points or copied.first - known.points[-1].source >= POINT_DISTANCE:
            point = {"source": copied.first, "target": copied.stored_first}
            yield compact_json(name | {"point": copied.first}), compact_json(point)
        position: dict[str, object] = {"source": copied.last + 1, "target": copied.stored_last + 1}
        yield compact_json(name), compact_json(position | ({"topic_id": topic_id} if topic_id else {}))


def transactional_id(source_cluster: str) -> str:
    """One for each source: a second copier of the same source fences the first instead of duplicating records."""
    return f"ottla-copy-{source_cluster}"
