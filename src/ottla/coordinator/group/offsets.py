"""Committed offsets of every group of one shard: commit, fetch, expire, delete. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from ottla.coordinator.effects import Effects
from ottla.coordinator.group.classic_group import CONSUMER, ClassicGroup, GroupState
from ottla.coordinator.group.config import GroupConfig
from ottla.coordinator.group.records import CommittedOffset, offset_key, read_offset_key, read_offset_value

Partition = tuple[str, int]
"""(topic, partition)."""


class Pending(NamedTuple):
    """An offset committed inside a transaction that has not ended."""

    group_id: str
    partition: Partition
    committed: CommittedOffset


class Offsets:
    """What groups have committed. Changed by `replay` and `replay_marker` alone."""

    def __init__(self, config: GroupConfig) -> None:
        self._config = config
        self._by_group: dict[str, dict[Partition, CommittedOffset]] = {}
        self._pending: dict[int, list[Pending]] = {}
        """By producer id: transactional commits wait here for their marker."""
        self._topics: dict[str, str] = {}

    # --- the log ------------------------------------------------------------------------------------------

    def replay(self, record_offset: int, key: bytes, value: bytes | None, producer_id: int) -> str:
        """Applies one offset record and gives the group it belongs to."""
        group_id, topic, partition = read_offset_key(key)
        # One copy of each topic name, however many groups commit to it.
        where = (self._topics.setdefault(topic, topic), partition)
        if value is None:
            committed = self._by_group.get(group_id)
            if committed is not None:
                committed.pop(where, None)
                if not committed:
                    del self._by_group[group_id]
            # A deleted offset takes along what open transactions hold for it.
            for held in self._pending.values():
                held[:] = [each for each in held if (each.group_id, each.partition) != (group_id, where)]
            return group_id
        stored = read_offset_value(value, record_offset)
        if producer_id >= 0:
            self._pending.setdefault(producer_id, []).append(Pending(group_id, where, stored))
        else:
            self._by_group.setdefault(group_id, {})[where] = stored
        return group_id

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        for pending in self._pending.pop(producer_id, []):
            if not commit:
                continue
            committed = self._by_group.setdefault(pending.group_id, {})
            visible = committed.get(pending.partition)
            # A plain commit made after the transactional one stays.
            if visible is None or visible.record_offset < pending.committed.record_offset:
                committed[pending.partition] = pending.committed

    # --- looking ------------------------------------------------------------------------------------------

    def of(self, group_id: str) -> dict[Partition, CommittedOffset]:
        return self._by_group.get(group_id, {})

    def find(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        committed = self._by_group.get(group_id)
        return None if committed is None else committed.get((topic, partition))

    def pending_of(self, group_id: str) -> set[Partition]:
        """The partitions for which an open transaction holds a commit of the group."""
        return {
            pending.partition for held in self._pending.values() for pending in held if pending.group_id == group_id
        }

    def count(self) -> int:
        return sum(map(len, self._by_group.values()))

    # --- forgetting ---------------------------------------------------------------------------------------

    def delete(self, group_id: str, partitions: Iterable[Partition], effects: Effects) -> int:
        """Tombstones for those of `partitions` that have an offset, committed or pending."""
        known = self.of(group_id).keys() | self.pending_of(group_id)
        found = [where for where in partitions if where in known]
        for topic, partition in found:
            effects.append(offset_key(group_id, topic, partition), None)
        return len(found)

    def delete_topics(self, topics: set[str], effects: Effects) -> None:
        """A deleted topic takes its committed offsets with it."""
        for group_id, committed in self._by_group.items():
            for topic, partition in committed:
                if topic in topics:
                    effects.append(offset_key(group_id, topic, partition), None)
        for held in self._pending.values():
            for pending in held:
                if pending.partition[0] in topics:
                    effects.append(offset_key(pending.group_id, *pending.partition), None)

    def expired(self, group_id: str, group: ClassicGroup | None, now: int) -> list[Partition]:
        """Which committed offsets of a group have had their time (KIP-211)."""
        retention_ms = self._config.offsets_retention_ms
        pending = self.pending_of(group_id)
        found = []
        for where, committed in self.of(group_id).items():
            if committed.expire_timestamp >= 0:
                due = committed.expire_timestamp
            else:
                since = _idle_since(group, where[0], committed)
                if since is None:
                    continue
                due = since + retention_ms
            if due <= now and where not in pending:
                found.append(where)
        return found


def _idle_since(group: ClassicGroup | None, topic: str, committed: CommittedOffset) -> int | None:
    """From when an offset's retention counts; None while somebody may be consuming."""
    if group is None or group.is_simple:
        return committed.commit_timestamp
    if group.state is GroupState.EMPTY:
        # Not from the commit: a group that consumed quietly for a month and stopped yesterday keeps its offsets.
        return group.state_timestamp if group.state_timestamp >= 0 else committed.commit_timestamp
    if group.state is GroupState.STABLE and group.protocol_type == CONSUMER and not group.is_subscribed(topic):
        return committed.commit_timestamp
    return None
