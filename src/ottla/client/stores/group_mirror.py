"""GroupMirror: commits offsets that are stored elsewhere to a group, so that every Kafka tool shows the lag."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.core.arguments import no_group
from ottla.client.core.model import CommittedOffset
from ottla.client.stores.client_parts import (
    async_consumer,
    close_after,
    find_group,
    network_of,
    positions_of,
    run,
)
from ottla.client.stores.mirroring import MARK, Mirroring
from ottla.errors import ArgumentError, KafkaError, OttlaError
from ottla.types import TopicPartition

log = logging.getLogger("ottla.client")


class GroupMirror:
    """Commits the offsets of an offset store to a group. They are for monitoring only and never read back.

    Without `group` it is the consumer's own group, and the consumer commits as a member: one that has lost its
    partitions cannot overwrite them. If an assignor assigns a partition to several members, they would overwrite each
    other, so each member must name its own group. A named group must have no members and no offsets that were not
    mirrored: those are never overwritten, and a log message says why nothing is committed.

    >>> store = FileOffsetStore("positions.json")
    >>> store.mirror = GroupMirror(consumer)                          # `ottla group describe billing`
    >>> store.mirror = GroupMirror(consumer, "caches.worker-1")       # a member of a broadcast
    """

    def __init__(self, consumer: Any, group: str | None = None) -> None:
        """`consumer` is a Consumer or an AsyncConsumer."""
        self._consumer = consumer
        self._inner = async_consumer(consumer)
        self._mirroring: Mirroring | None = None
        own = self._inner.config.group_id
        self.group = group or own or ""
        if group is None:
            if find_group(self._inner) is None:
                raise no_group("Name one: GroupMirror(consumer, group).")
            if shares_partitions(self._inner):
                raise OttlaError(
                    f"members of group {own} may read the same partition and would overwrite each other's offsets",
                    'Name a group for each member: GroupMirror(consumer, "caches.worker-1").',
                )
            return
        if not group.strip():
            raise ArgumentError("the name of the group is blank", "Pass a name, or omit it.")
        if group == own:
            raise ArgumentError(f"{group} is the consumer's own group", "Omit the name, or use another one.")

    @property
    def is_closed(self) -> bool:
        """Whether the consumer is closed, so that nothing can be committed any more."""
        return network_of(self._inner).is_closed

    def reads(self, partition: TopicPartition) -> bool:
        """Whether the partition is assigned to the consumer."""
        return partition in positions_of(self._inner).states

    @property
    def refusal(self) -> str | None:
        """Why nothing is committed; None if nothing is wrong."""
        return None if self._mirroring is None else self._mirroring.refusal

    def __call__(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.show(offsets)

    def show(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits these offsets without waiting; the consumer's close() waits. Errors are only logged: the offsets
        are stored already, and the caller must not fail."""

        async def on_loop() -> None:
            self._show(offsets)

        try:
            if self._consumer is self._inner:
                self._show(offsets)
            else:
                run(self._consumer, on_loop())
        except OttlaError as error:  # the consumer is closed, or in use by another thread
            log.info("group %s: offsets were not mirrored: %s", self.group, error)

    def _show(self, offsets: Mapping[TopicPartition, int]) -> None:
        inner, network = self._inner, network_of(self._inner)
        network.start()
        if self.group == inner.config.group_id:
            self._show_as_member(offsets)
            return
        if self._mirroring is None:
            self._mirroring = Mirroring(
                inner.config, self.group, network.view, backoff=network.backoff, jitter=network.jitter
            )
            for decider in self._mirroring.deciders:
                network.add(decider)
            mirroring = self._mirroring
            close_after(inner, lambda: mirroring.is_idle)
        self._mirroring.show({p: CommittedOffset(at, metadata=MARK) for p, at in offsets.items()})
        network.wake()

    def _show_as_member(self, offsets: Mapping[TopicPartition, int]) -> None:
        group = find_group(self._inner)
        assert group is not None
        marked = {p: replace(group.with_epoch(p, at), metadata=MARK) for p, at in offsets.items()}

        def done(_: Any, error: KafkaError | None) -> None:
            if error is not None:
                log.info("group %s: offsets were not mirrored: %s", self.group, error)

        try:
            group.add_commit(marked, self._inner.config.default_api_timeout_ms, done)
        except KafkaError as error:  # not a member any more: the new owner of the partitions commits them
            done(None, error)


class MemberMirrors:
    """The mirrors of all consumers that use the same store object, at the same time or one after the other.

    Each commits the offsets of the partitions that its own consumer reads.
    """

    def __init__(self) -> None:
        self._mirrors: list[GroupMirror] = []

    def add(self, mirror: GroupMirror) -> None:
        self._mirrors = [*self._open(), mirror]

    def __call__(self, offsets: Mapping[TopicPartition, int]) -> None:
        mirrors = self._open()
        shares: dict[int, dict[TopicPartition, int]] = {}
        for partition, offset in offsets.items():
            owner = next((i for i, mirror in enumerate(mirrors) if mirror.reads(partition)), len(mirrors) - 1)
            shares.setdefault(owner, {})[partition] = offset
        for index, share in shares.items():
            if mirrors:
                mirrors[index].show(share)

    def _open(self) -> list[GroupMirror]:
        return [mirror for mirror in self._mirrors if not mirror.is_closed]


def shares_partitions(consumer: AsyncConsumer) -> bool:
    """Whether members of the consumer's group may read the same partition."""
    group = find_group(consumer)
    return group is not None and any(assignor.shares_partitions for assignor in group.membership.assignors.values())
