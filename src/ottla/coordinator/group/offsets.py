"""Committed offsets of all groups of one shard: stored, made visible, expired, deleted. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ottla.coordinator.effects import Effects
from ottla.coordinator.group.classic_group import ClassicGroup, GroupState
from ottla.coordinator.group.config import GroupConfig
from ottla.coordinator.group.records import (
    V4_PREFIX,
    CommittedOffset,
    check_offset_value,
    offset_key,
    read_commit_times,
    read_offset_key,
    read_offset_value,
    record_offset_of,
    stored_form,
    value_of,
)
from ottla.protocol.wire_values import CONSUMER
from ottla.types import ZERO_UUID

Partition = tuple[str, int]
"""(topic, partition)."""

_NONE: Mapping[str, dict[int, bytes]] = MappingProxyType({})
NAMES_KEPT_LOADING = 200_000
NAMES_KEPT_LIVE = 1_000
"""How many decoded keys are cached, during a load and afterwards."""


class Offsets:
    """What groups have committed, in its stored form. Only `replay` and `replay_marker` change it."""

    def __init__(self, config: GroupConfig) -> None:
        self._config = config
        self._by_group: dict[str, dict[str, dict[int, bytes]]] = {}
        """Group, topic, partition."""
        self._pending: dict[int, dict[tuple[str, str, int], bytes]] = {}
        """By producer id: transactional commits wait here for their marker."""
        self._open: dict[str, dict[Partition, set[int]]] = {}
        """By group: the partitions with pending commits, and the producers that hold them."""
        self._names: dict[str, str] = {}
        """One copy of each topic name, however many groups commit to it."""
        self._has_explicit_expiry = False
        self._is_loaded = False
        self._names_of: dict[bytes, tuple[str, str]] = {}
        """Cache of (group, topic) by key without partition: groups commit the same partitions repeatedly."""
        # Where the last offset was stored.
        self._last_prefix = b""
        self._last_group = ""
        self._last_partitions: dict[int, bytes] = {}

    # --- the log ------------------------------------------------------------------------------------------

    def replay(self, record_offset: int, key: bytes, value: bytes | None, producer_id: int) -> str:
        """Applies one offset record and returns the group it belongs to."""
        prefix = key[:-4]
        if prefix == self._last_prefix and value is not None and producer_id < 0 and value[:2] == V4_PREFIX:
            # A commit of many partitions is looked up once.
            if not self._is_loaded:
                check_offset_value(value)
            self._last_partitions[int.from_bytes(key[-4:], "big", signed=True)] = stored_form(value, record_offset)
            return self._last_group
        known = self._names_of.get(prefix)
        if known is not None:
            group_id, topic = known
            partition = int.from_bytes(key[-4:], "big", signed=True)
        else:
            group_id, topic, partition = read_offset_key(key)
            topic = self._names.setdefault(topic, topic)
            if len(self._names_of) >= (NAMES_KEPT_LIVE if self._is_loaded else NAMES_KEPT_LOADING):
                self._names_of.clear()
            self._names_of[prefix] = group_id, topic
        if value is None:
            self._forget(group_id, topic, partition)
            for holder in self._open.get(group_id, {}).pop((topic, partition), ()):
                # Deleting an offset also deletes what open transactions hold for it.
                self._drop_pending(holder, (group_id, topic, partition))
            self._close_if_done(group_id)
            return group_id
        if not self._is_loaded:
            # Live values were encoded by this broker.
            check_offset_value(value)
        if value[:2] != V4_PREFIX:
            self._has_explicit_expiry = True
        stored = stored_form(value, record_offset)
        if producer_id >= 0:
            self._pending.setdefault(producer_id, {})[group_id, topic, partition] = stored
            self._open.setdefault(group_id, {}).setdefault((topic, partition), set()).add(producer_id)
        else:
            self._last_partitions = self._keep(group_id, topic, partition, stored)
            self._last_prefix, self._last_group = prefix, group_id
        return group_id

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        for (group_id, topic, partition), stored in self._pending.pop(producer_id, {}).items():
            holders = self._open[group_id][topic, partition]
            holders.discard(producer_id)
            if not holders:
                del self._open[group_id][topic, partition]
                self._close_if_done(group_id)
            if commit:
                visible = self._by_group.get(group_id, {}).get(topic, {}).get(partition)
                # A plain commit that was made after the transactional one stays.
                if visible is None or record_offset_of(visible) < record_offset_of(stored):
                    self._keep(group_id, topic, partition, stored)

    def _keep(self, group_id: str, topic: str, partition: int, stored: bytes) -> dict[int, bytes]:
        """Stores an offset and returns the partitions of its topic."""
        topics = self._by_group.get(group_id)
        if topics is None:
            topics = self._by_group[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        partitions[partition] = stored
        return partitions

    def _forget(self, group_id: str, topic: str, partition: int) -> None:
        topics = self._by_group.get(group_id)
        partitions = None if topics is None else topics.get(topic)
        if topics is None or partitions is None:
            return
        partitions.pop(partition, None)
        if not partitions:
            self._last_prefix = b""
            del topics[topic]
            if not topics:
                del self._by_group[group_id]

    def _drop_pending(self, producer_id: int, where: tuple[str, str, int]) -> None:
        held = self._pending[producer_id]
        del held[where]
        if not held:
            del self._pending[producer_id]

    def _close_if_done(self, group_id: str) -> None:
        if not self._open.get(group_id, True):
            del self._open[group_id]

    def hard_state(self) -> dict[str, object]:
        """Every offset in its stored form, committed or pending."""
        committed = {
            f"offset {group_id} {topic}-{partition}": stored
            for group_id, topics in self._by_group.items()
            for topic, partitions in topics.items()
            for partition, stored in partitions.items()
        }
        pending = {
            f"pending {producer_id} {group_id} {topic}-{partition}": stored
            for producer_id, held in self._pending.items()
            for (group_id, topic, partition), stored in held.items()
        }
        return {**committed, **pending}

    def on_loaded(self) -> None:
        """Drops what was only needed for loading."""
        self._names_of = {}
        self._is_loaded = True

    # --- looking ------------------------------------------------------------------------------------------

    def of(self, group_id: str) -> Mapping[str, Mapping[int, bytes]]:
        """Everything a group has committed: topic, partition, stored form."""
        return self._by_group.get(group_id, _NONE)

    def find(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        stored = self.of(group_id).get(topic, {}).get(partition)
        return None if stored is None else read_offset_value(value_of(stored))

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction holds a commit of the group for the partition."""
        held = self._open.get(group_id)
        return held is not None and (topic, partition) in held

    def has_pending(self, group_id: str) -> bool:
        return group_id in self._open

    def is_used_by(self, group_id: str) -> bool:
        """Whether the group has offsets, committed or pending."""
        return group_id in self._by_group or group_id in self._open

    def partitions_of(self, group_id: str) -> Iterator[Partition]:
        """Every partition with a commit of the group, visible or pending."""
        known = self.of(group_id)
        for topic, partitions in known.items():
            for partition in partitions:
                yield topic, partition
        for topic, partition in self._open.get(group_id, ()):
            if partition not in known.get(topic, ()):
                yield topic, partition

    def count(self) -> int:
        return sum(len(partitions) for topics in self._by_group.values() for partitions in topics.values())

    # --- forgetting ---------------------------------------------------------------------------------------

    def delete(self, group_id: str, partitions: Iterable[Partition], effects: Effects[Any]) -> None:
        """Tombstones for those of `partitions` that have an offset, committed or pending."""
        known = self.of(group_id)
        for topic, partition in partitions:
            if partition in known.get(topic, ()) or self.is_pending(group_id, topic, partition):
                effects.append(offset_key(group_id, topic, partition), None)

    def topics(self) -> Iterable[str]:
        """Every topic with commits here, now or in the past."""
        return self._names

    def groups(self) -> list[str]:
        """Every group that has offsets, committed or pending."""
        return [*self._by_group, *(group_id for group_id in self._open if group_id not in self._by_group)]

    def delete_topics(self, group_id: str, topics: Mapping[str, bytes], effects: Effects[Any]) -> None:
        """Deletes a group's offsets of deleted topics (name to id), but not those of a newer topic of the same name."""
        known = self.of(group_id)
        for topic, deleted_id in topics.items():
            for partition, stored in known.get(topic, {}).items():
                if self._is_of(stored, deleted_id):
                    effects.append(offset_key(group_id, topic, partition), None)
        for (topic, partition), holders in self._open.get(group_id, {}).items():
            if topic in topics and partition not in known.get(topic, ()):
                held = (self._pending[holder][group_id, topic, partition] for holder in holders)
                if any(self._is_of(stored, topics[topic]) for stored in held):
                    effects.append(offset_key(group_id, topic, partition), None)

    @staticmethod
    def _is_of(stored: bytes, topic_id: bytes) -> bool:
        return read_offset_value(value_of(stored)).topic_id in (ZERO_UUID, topic_id)

    def expired(self, group: ClassicGroup, now: int) -> list[Partition]:
        """Which committed offsets of a group have expired (KIP-211)."""
        retention_ms = self._config.offsets_retention_ms
        known = self.of(group.group_id)
        if not known or not _may_expire(group, now - retention_ms, self._has_explicit_expiry):
            return []
        found = []
        for topic, partitions in known.items():
            if group.state is GroupState.STABLE and group.is_subscribed(topic):
                continue
            for partition, stored in partitions.items():
                committed_at, expires_at = read_commit_times(value_of(stored))
                if expires_at < 0:
                    expires_at = _idle_since(group, committed_at) + retention_ms
                if expires_at <= now and not self.is_pending(group.group_id, topic, partition):
                    found.append((topic, partition))
        return found


def _may_expire(group: ClassicGroup, before: int, has_explicit_expiry: bool) -> bool:
    """False if no offset of the group can have expired, whenever it was committed."""
    if group.is_simple:
        return True
    if group.state is GroupState.EMPTY:
        return has_explicit_expiry or group.state_timestamp <= before
    return group.state is GroupState.STABLE and group.protocol_type == CONSUMER and group.subscribed_topics is not None


def _idle_since(group: ClassicGroup, committed_at: int) -> int:
    """When the retention time of an offset starts."""
    if group.state is GroupState.EMPTY and not group.is_simple and group.state_timestamp >= 0:
        # Not at the commit: a group that consumed for a month without new commits and stopped yesterday keeps them.
        return group.state_timestamp
    return committed_at
