"""Copies consumer groups: translates committed source offsets to the target offsets of the same records.

Offsets differ: transaction markers and aborted or compacted records use offsets on one side only. The ledger has a pair
of offsets every few thousand records; from there, records are counted on both sides.
"""

import re
from collections.abc import Callable
from typing import Any

from ottla.cli.copy.copier import POLL_MS, Status, offsets_of
from ottla.cli.copy.ledger import Copied, Ledger
from ottla.cli.copy.sides import Side
from ottla.cli.copy.topics import is_compacted
from ottla.client.admin.admin import AsyncAdmin
from ottla.client.core.model import EARLIEST, LATEST, CommittedOffset
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.types import TopicPartition

HAS_MEMBERS = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND)


def group_matcher(pattern: str) -> Callable[[str], Any]:
    try:
        return re.compile(pattern).fullmatch
    except re.error as error:
        raise OttlaError(
            f"--groups {pattern} is not a regular expression: {error}", "for all groups: --groups '.*'"
        ) from None


class GroupCopier:
    """Translates and commits the offsets of the groups that match a pattern."""

    def __init__(self, source: Side, target: Side, pattern: str, status: Status) -> None:
        self._source, self._target = source, target
        self._matches = group_matcher(pattern)
        self._status = status
        self._done: dict[tuple[str, TopicPartition], int] = {}
        """Source offsets that are translated and committed already."""
        self.committed: dict[str, dict[TopicPartition, int]] = {}

    async def run(self, ledger: Ledger) -> None:
        async with self._source.admin() as source, self._target.admin() as target:
            for group in await source.list_groups():
                if self._matches(group.group_id) and not group.group_id.startswith("ottla-copy-"):
                    await self._copy(group.group_id, ledger, source, target)

    async def _copy(self, group: str, ledger: Ledger, source: AsyncAdmin, target: AsyncAdmin) -> None:
        committed = await source.list_group_offsets(group)
        offsets: dict[TopicPartition, int | CommittedOffset] = {}
        for partition, at in committed.items():
            copied = ledger.copied.get(partition)
            if copied is None or self._done.get((group, partition)) == at.offset:
                continue
            if at.offset > copied.source:
                self._status.note(f"group {group} is ahead of the copy of {partition}: run the copy again")
                continue
            translated = await self._translate(partition, at.offset, copied, source, target)
            offsets[partition] = CommittedOffset(translated, metadata=at.metadata)
        if not offsets:
            return
        try:
            await target.alter_group_offsets(group, offsets)
        except KafkaError as error:
            if error.code not in HAS_MEMBERS:
                raise
            self._status.note(f"group {group} has members in the target already: its offsets were not changed")
            return
        for partition in offsets:
            self._done[group, partition] = committed[partition].offset
        found = {partition: each.offset for partition, each in offsets.items() if isinstance(each, CommittedOffset)}
        self.committed.setdefault(group, {}).update(found)

    async def _translate(
        self, partition: TopicPartition, offset: int, copied: Copied, source: AsyncAdmin, target: AsyncAdmin
    ) -> int:
        """The target offset of the first record at or after a source offset. If it cannot be exact, it is lower:
        records may be read twice, but none is skipped."""
        if offset == copied.source:
            return copied.target
        begins = await offsets_of(target, [partition], EARLIEST)
        point = copied.point_before(offset)
        if point is None or point.target < begins[partition]:
            return begins[partition]
        if offset == point.source or await is_compacted(target, partition.topic):
            return point.target
        starts = await offsets_of(source, [partition], EARLIEST)
        ends = await offsets_of(target, [partition], LATEST)
        count = await self._count(partition, max(point.source, starts[partition]), offset)
        return await self._nth(partition, point.target, count, min(copied.target, ends[partition]))

    async def _count(self, partition: TopicPartition, first: int, end: int) -> int:
        """The number of committed records of the source from `first` to before `end`."""
        count = 0
        async with self._source.consumer() as consumer:
            await consumer.assign([partition])
            await consumer.seek(partition, first)
            while await consumer.position(partition) < end:
                batch = await consumer.poll_arrow(POLL_MS, columns=["offset"])
                count += sum(offset < end for offset in batch.column("offset").to_pylist())
        return count

    async def _nth(self, partition: TopicPartition, first: int, count: int, end: int) -> int:
        """The offset of the record after `count` records of the target from `first` on."""
        async with self._target.consumer() as consumer:
            await consumer.assign([partition])
            await consumer.seek(partition, first)
            while await consumer.position(partition) < end:
                batch = await consumer.poll_arrow(POLL_MS, columns=["offset"])
                if count < batch.num_rows:
                    found: int = batch.column("offset")[count].as_py()
                    return found
                count -= batch.num_rows
        return end
