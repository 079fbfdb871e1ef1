"""The source's offsets as Spark keeps them, how far the next batch goes, and which task reads what. Pure.

An offset is a dict that Spark writes into the checkpoint as JSON. Topics have their names as keys, as with Spark's own
Kafka source; other state that must survive a restart has keys that no topic can have:

>>> {"orders": {"0": 120, "1": 98}, "@group": "ottla-source-orders-1f3a", "@ids": {"orders": "AAEC…"}}

`@start` holds the beginnings of partitions that the previous offset does not include: all of them in the first batch,
and new ones in a later batch. When Spark repeats the first batch it requests the initial offset again, which may differ
by then. Therefore the end offset of a batch determines what the batch reads. `@split` holds how the batch is split into
tasks, so that a repeated batch has the same tasks even if the options have changed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from ottla.client.core.lag import record_lag
from ottla.errors import OttlaError
from ottla.types import TopicPartition, offsets_by_topic, offsets_from_topics

GROUP, IDS, START, INITIAL, SPLIT = "@group", "@ids", "@start", "@initial", "@split"

METADATA_DELAY_S = 5.0
"""How long metadata of a topic may take to reach all brokers."""

Offsets = Mapping[TopicPartition, int]


class OffsetRange(NamedTuple):
    """What one task reads: the records of a partition from `start` on and before `end`."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets it spans. There may be fewer records: markers, aborted and compacted ones are not read."""
        return self.end - self.start


@dataclass(frozen=True)
class Split:
    """How a batch is split into tasks."""

    min_partitions: int | None = None
    """The approximate minimum number of tasks: large ranges are split."""
    max_records: int | None = None
    """No task reads more offsets than this."""
    min_records: int | None = None
    """Small ranges share a task until it has this many offsets."""

    def to_dict(self) -> dict[str, int]:
        """
        >>> Split(min_records=2000).to_dict()
        {'min_records': 2000}
        """
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class SourceOffset:
    """The position of a query in each partition."""

    positions: Offsets
    group: str = ""
    """The consumer group that the positions are committed to, for display."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Distinguishes a topic from a later one of the same name."""
    started: Offsets = field(default_factory=dict)
    """Where the batch that ends here began, for partitions that its start offset does not include."""
    is_initial: bool = False
    split: Split | None = None
    """How the batch that ends here is split into tasks. None in offsets of Spark's own source and of older versions."""

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {**offsets_by_topic(self.positions)}
        if self.group:
            found[GROUP] = self.group
        if self.topic_ids:
            found[IDS] = dict(sorted(self.topic_ids.items()))
        if self.started:
            found[START] = offsets_by_topic(self.started)
        if self.is_initial:
            found[INITIAL] = True
        if self.split is not None:
            found[SPLIT] = self.split.to_dict()
        return found

    @classmethod
    def from_dict(cls, found: Any) -> "SourceOffset":
        """The inverse of to_dict(). Also reads offsets of Spark's own Kafka source."""
        try:
            topics = {name: entries for name, entries in found.items() if not name.startswith("@")}
            return cls(
                positions=offsets_from_topics(topics),
                group=str(found.get(GROUP, "")),
                topic_ids={str(topic): str(topic_id) for topic, topic_id in found.get(IDS, {}).items()},
                started=offsets_from_topics(found.get(START, {})),
                is_initial=bool(found.get(INITIAL, False)),
                split=Split(**found[SPLIT]) if SPLIT in found else None,
            )
        except (AttributeError, TypeError, ValueError):
            raise OttlaError(
                f"the checkpoint has an offset of another source: {str(found)[:200]}",
                "It belongs to another query. Give this one its own checkpointLocation.",
            ) from None


# --- how far the next batch goes ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """The first and last offsets of every subscribed partition."""

    earliest: Offsets
    latest: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss:
    """Records that are gone before the query has read them; `text` describes what happened."""

    text: str


def advance(
    start: SourceOffset, found: Found, limit: int | None, split: Split | None = None
) -> tuple[SourceOffset, list[Loss]]:
    """The end of the next batch, and what is lost before it. `limit` is a number of offsets over all partitions.

    After a loss, `started` of the end says where to continue: a caller that accepts the loss uses the end as it is.
    """
    started, losses = where_it_begins(start, found)
    begins = {partition: started.get(partition, start.positions.get(partition, 0)) for partition in found.latest}
    # The beginning and the end of a partition were not looked up at the same moment.
    ends = {partition: max(latest, begins[partition]) for partition, latest in found.latest.items()}
    if limit is not None:
        ends = share_out(begins, ends, limit)
    if start.is_initial:
        started = begins  # Spark runs a first batch even without records
    elif not losses and ends == start.positions:
        return start, []
    topics = {partition.topic for partition in ends}
    topic_ids = {topic: topic_id for topic, topic_id in found.topic_ids.items() if topic in topics}
    end = replace(start, positions=ends, topic_ids=topic_ids, started=started, is_initial=False, split=split)
    return end, losses


def where_it_begins(start: SourceOffset, found: Found) -> tuple[dict[TopicPartition, int], list[Loss]]:
    """Where partitions begin that do not continue at their position in `start`, and the records lost by that."""
    started: dict[TopicPartition, int] = {}
    made_again = recreated_topics(start, found)
    losses = [Loss(recreated(topic)) for topic in sorted(made_again)]
    for partition, latest in sorted(found.latest.items()):
        position, earliest = start.positions.get(partition), found.earliest[partition]
        if partition.topic in made_again:
            started[partition] = earliest
        elif position is None:
            started[partition] = earliest
            if earliest > 0:
                losses.append(
                    Loss(f"{partition} is new to the query and its offsets 0 to {earliest - 1} no longer exist")
                )
        elif position < earliest:
            started[partition] = earliest
            losses.append(
                Loss(f"offsets {position} to {earliest - 1} of {partition} no longer exist; it begins at {earliest}")
            )
        elif position > latest and not start.is_initial:
            has_same_id = partition.topic in start.topic_ids and partition.topic in found.topic_ids
            started[partition] = latest if has_same_id else earliest
            losses.append(
                Loss(f"{partition} ends at offset {latest}, but the query is at {position}: its end was truncated")
            )
    gone = sorted(start.positions.keys() - found.latest.keys())
    if gone:
        losses.append(Loss(f"{', '.join(map(str, gone))} no longer {'exists' if len(gone) == 1 else 'exist'}"))
    return started, losses


def recreated_topics(start: SourceOffset, found: Found) -> set[str]:
    """The topics whose id differs from that of the topic with the query's offsets."""
    return {topic for topic, topic_id in found.topic_ids.items() if start.topic_ids.get(topic, topic_id) != topic_id}


def may_be_stale(start: SourceOffset, found: Found) -> bool:
    """Whether a topic or a partition seems to be deleted. A broker with stale metadata reports the same."""
    return not start.positions.keys() <= found.latest.keys() or bool(recreated_topics(start, found))


def recreated(topic: str) -> str:
    return f"topic {topic} was deleted and recreated, so the query's offsets are not valid for it"


def share_out(begins: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Ends that include `limit` offsets, each partition in proportion to its backlog.

    A partition whose share is less than one gets one, so that none starves; the total may then exceed the limit.
    """
    sizes = {partition: end - begins[partition] for partition, end in ends.items()}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    return {
        partition: begins[partition] + (min(size, max(1, limit * size // total)) if size else 0)
        for partition, size in sizes.items()
    }


def waiting(start: SourceOffset, found: Found) -> int:
    """How many offsets wait to be read."""
    started, _ = where_it_begins(start, found)
    return sum(
        record_lag(started.get(partition, start.positions.get(partition)), latest)
        for partition, latest in found.latest.items()
    )


# --- which task reads what ------------------------------------------------------------------------------------


def ranges_between(start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
    """What a batch reads. Depends only on its offsets, so that a repeated batch reads the same."""
    if start == end:
        return []
    found = []
    for partition, last in sorted(end.positions.items()):
        first = end.started.get(partition, start.positions.get(partition))
        if first is None:
            raise OttlaError(
                f"the checkpoint has no start offset for {partition}",
                "It belongs to another query. Give this one its own checkpointLocation.",
            )
        if first < last:
            found.append(OffsetRange(partition, first, last))
    return found


def tasks_of(ranges: Iterable[OffsetRange], split: Split) -> list[list[OffsetRange]]:
    """What each task of a batch reads. Depends only on the arguments, so that a repeated batch gets the same tasks."""
    return gather(pieces_of(ranges, split), split)


def pieces_of(ranges: Iterable[OffsetRange], split: Split) -> list[OffsetRange]:
    """Splits ranges so that there are about `min_partitions` and none is larger than `max_records`.

    >>> pieces_of([OffsetRange(TopicPartition("a", 0), 0, 10)], Split(min_partitions=3))     # three: 0-3, 3-6, 6-10
    """
    min_partitions, max_records = split.min_partitions, split.max_records
    found = [piece for piece in ranges if piece.size > 0]
    if max_records is not None:
        found = cut(found, lambda piece: -(-piece.size // max_records))
    if min_partitions is None or len(found) >= min_partitions:
        return found
    total = sum(piece.size for piece in found)
    small = [piece for piece in found if parts_of(piece.size, total, min_partitions) == 1]
    # Small ranges stay whole; only large ones are split.
    rest, wanted = total - sum(piece.size for piece in small), max(1, min_partitions - len(small))
    whole = set(small)
    return cut(found, lambda piece: 1 if piece in whole else parts_of(piece.size, rest, wanted))


def parts_of(size: int, total: int, wanted: int) -> int:
    return max(1, (2 * size * wanted + total) // (2 * total))  # rounded to the nearest


def cut(ranges: Iterable[OffsetRange], parts: Callable[[OffsetRange], int]) -> list[OffsetRange]:
    found: list[OffsetRange] = []
    for partition, start, end in ranges:
        count = min(parts(OffsetRange(partition, start, end)), end - start)
        edges = [start + (end - start) * number // count for number in range(count + 1)]
        found.extend(OffsetRange(partition, first, last) for first, last in pairwise(edges) if first < last)
    return found


def gather(pieces: Iterable[OffsetRange], split: Split) -> list[list[OffsetRange]]:
    """What each task reads: one range, or consecutive small ones until they have `min_records` offsets together.

    The ranges of a task are of different partitions.
    """
    least, most = split.min_records, split.max_records
    tasks: list[list[OffsetRange]] = []
    size = 0
    for piece in pieces:
        is_full = least is None or size >= least or (most is not None and size + piece.size > most)
        if not tasks or is_full:
            tasks.append([])
            size = 0
        before = tasks[-1][-1] if tasks[-1] else None
        if before is not None and (before.partition, before.end) == (piece.partition, piece.start):
            tasks[-1][-1] = OffsetRange(piece.partition, before.start, piece.end)
        else:
            tasks[-1].append(piece)
        size += piece.size
    return tasks
