"""`ottla copy --verify`: compares the committed records of both clusters, partition by partition."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.cli.copy.checksums import COLUMNS, Checksum, LatestByKey
from ottla.cli.copy.copier import POLL_MS, has_records, offsets_of, read_ledger
from ottla.cli.copy.ledger import LEDGER_TOPIC, Copied, Ledger
from ottla.cli.copy.sides import Side
from ottla.cli.copy.topics import choose, is_compacted
from ottla.cli.output import CommandError
from ottla.client.admin.admin import AsyncAdmin
from ottla.client.core.model import EARLIEST, LATEST
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Compared:
    """One partition on both sides."""

    partition: TopicPartition
    source_records: int
    target_records: int
    compared: int
    """Records, or keys of a compacted topic."""
    checksums: tuple[str, str]
    problem: str = ""

    @property
    def is_equal(self) -> bool:
        return not self.problem


class Verifier:
    """Reads both sides up to the position of the copy, and compares them."""

    def __init__(self, source: Side, target: Side, pattern: str) -> None:
        self._source, self._target, self._pattern = source, target, pattern

    async def run(self, on_result: Callable[[Compared], None]) -> list[Compared]:
        results = []
        async with self._source.admin() as source, self._target.admin() as target:
            cluster = (await source.describe_cluster()).cluster_id
            topics = choose(await source.list_topics(), self._pattern)
            existing = {topic.name: len(topic.partitions) for topic in await target.list_topics(include_internal=True)}
            ledger = await read_ledger(self._target, cluster) if LEDGER_TOPIC in existing else Ledger(cluster)
            for topic in topics:
                sides = [source, target] if topic.name in existing else [source]
                compacted = [await is_compacted(each, topic.name) for each in sides]
                for p in topic.partitions:
                    partition = TopicPartition(topic.name, p.partition)
                    starts = (await offsets_of(source, [partition], EARLIEST))[partition]
                    ends = await offsets_of(source, [partition], LATEST)
                    copied = ledger.copied.get(partition)
                    is_there = p.partition < existing.get(topic.name, 0)
                    if copied is not None and not is_there:
                        result = Compared(partition, 0, 0, 0, ("", ""), "the target no longer has the partition")
                    elif copied is None and (
                        not is_there or await has_records(self._source, partition, starts, ends[partition])
                    ):
                        result = Compared(partition, 0, 0, 0, ("", ""), "not copied yet")
                    else:
                        known = copied or Copied(starts, 0)
                        result = await self._compare(partition, known, source, target, by_key=any(compacted))
                    results.append(result)
                    on_result(result)
        if not results:
            raise CommandError(f"no topic of the source matches {self._pattern}", "see: ottla topic list")
        return results

    async def _compare(
        self, partition: TopicPartition, copied: Copied, source: AsyncAdmin, target: AsyncAdmin, *, by_key: bool
    ) -> Compared:
        starts = [(await offsets_of(each, [partition], EARLIEST))[partition] for each in (source, target)]
        # A side that ends before the position of the copy was truncated or recreated: read only up to its end.
        ends = [(await offsets_of(each, [partition], LATEST))[partition] for each in (source, target)]
        sides = [
            (self._source, starts[0], min(copied.source, ends[0])),
            (self._target, starts[1], min(copied.target, ends[1])),
        ]
        if by_key:
            latest = LatestByKey(), LatestByKey()
            for found, side in zip(latest, sides, strict=True):
                async for batch in read(*side, partition):
                    found.add(batch)
            checksums = (latest[0].hexdigest(), latest[1].hexdigest())
            problem = "" if checksums[0] == checksums[1] else "the latest records of keys differ"
            return Compared(partition, latest[0].count, latest[1].count, latest[0].count, checksums, problem)
        counts = [sum([batch.num_rows async for batch in read(*side, partition, ["offset"])]) for side in sides]
        began = copied.points[0] if copied.points else None
        # Retention may have deleted the oldest records on one side: the rest is compared.
        may_lack = [began is not None and starts[0] > began.source, began is not None and starts[1] > began.target]
        lacking = 0 if counts[0] < counts[1] else 1
        if counts[0] != counts[1] and not may_lack[lacking]:
            side_name = ("source", "target")[lacking]
            problem = f"the {side_name} has {abs(counts[0] - counts[1])} records fewer"
            return Compared(partition, counts[0], counts[1], 0, ("", ""), problem)
        both = []
        for side, count in zip(sides, counts, strict=True):
            skipped, checksum = count - min(counts), Checksum()
            async for batch in read(*side, partition, COLUMNS):
                checksum.add(batch.slice(min(skipped, batch.num_rows)))
                skipped -= min(skipped, batch.num_rows)
            both.append(checksum.hexdigest())
        problem = "" if both[0] == both[1] else "the records differ"
        return Compared(partition, counts[0], counts[1], min(counts), (both[0], both[1]), problem)


async def read(
    side: Side, start: int, end: int, partition: TopicPartition, columns: list[str] | None = None
) -> "AsyncIterator[pa.RecordBatch]":
    """The committed records of a partition from `start` to before `end`."""
    wanted = [*(columns or COLUMNS)] + ([] if columns and "offset" in columns else ["offset"])
    if start >= end:
        return
    async with side.consumer() as consumer:
        await consumer.assign([partition])
        await consumer.seek(partition, start)
        while await consumer.position(partition) < end:
            batch = await consumer.poll_arrow(POLL_MS, columns=wanted)
            if not batch.num_rows:
                continue
            if batch.column("offset")[-1].as_py() >= end:
                below = sum(offset < end for offset in batch.column("offset").to_pylist())
                batch = batch.slice(0, below)
            yield batch.select(columns or COLUMNS)
