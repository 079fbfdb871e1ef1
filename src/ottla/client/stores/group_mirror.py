"""Progress that is kept outside the group, shown as the offsets of one, so that its lag appears in every Kafka tool."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.core.model import CommittedOffset
from ottla.client.stores.mirroring import MARK, Mirroring
from ottla.errors import KafkaError, OttlaError
from ottla.types import TopicPartition

log = logging.getLogger("ottla.client")


class GroupMirror:
    """Commits to a group what an offset store has stored. Nobody reads it back: it is there to be looked at.

    Without `group` it is the consumer's own, and the commits are those of a member: a consumer that was replaced
    cannot touch them. Where an assignor gives one partition to several members they would overwrite each other, so
    there every member names a group of its own. A named group must have no members, and no offsets that were not
    mirrored: those are never replaced, and the log says why nothing is shown.

    >>> store = FileOffsetStore("positions.json")
    >>> store.mirror = GroupMirror(consumer)                          # `ottla group describe billing`
    >>> store.mirror = GroupMirror(consumer, "caches.worker-1")       # a member of a broadcast
    """

    def __init__(self, consumer: Any, group: str | None = None) -> None:
        """`consumer` is a Consumer or an AsyncConsumer."""
        self._consumer = consumer
        self._inner: AsyncConsumer = getattr(consumer, "_async", consumer)
        self._mirroring: Mirroring | None = None
        own = self._inner.config.group_id
        self.group = group or own or ""
        if group is None:
            if self._inner._group is None:
                raise OttlaError("the consumer has no group to show its progress in", "Name one: GroupMirror(…, group)")
            if shares_partitions(self._inner):
                raise OttlaError(
                    f"the members of group {own} read the same partitions, and would overwrite each other's progress",
                    'Name a group for each member: GroupMirror(consumer, "caches.worker-1").',
                )
            return
        if not group.strip():
            raise OttlaError("the name of a group must not be blank")
        if group == own:
            raise OttlaError(f"{group} is the consumer's own group", "Leave the name out, or take another one.")

    @property
    def refusal(self) -> str | None:
        """Why nothing is shown, where that is so."""
        return None if self._mirroring is None else self._mirroring.refusal

    def __call__(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.show(offsets)

    def show(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Shows these offsets. Does not wait; close() of the consumer does. What cannot be shown is only logged: the
        offsets themselves are stored, and whoever stored them shall not fail."""

        async def on_loop() -> None:
            self._show(offsets)

        try:
            if self._consumer is self._inner:
                self._show(offsets)
            else:
                self._consumer._call(on_loop())
        except OttlaError as error:  # the consumer is closed, or just now used by another thread
            log.info("progress was not shown as group %s: %s", self.group, error)

    def _show(self, offsets: Mapping[TopicPartition, int]) -> None:
        inner = self._inner
        inner._network.start()
        if self.group == inner.config.group_id:
            self._show_as_member(offsets)
            return
        if self._mirroring is None:
            network = inner._network
            self._mirroring = Mirroring(
                inner.config, self.group, network.view, backoff=network.backoff, jitter=network.jitter
            )
            for decider in self._mirroring.deciders:
                network.add(decider)
            mirroring = self._mirroring
            inner._unfinished.append(lambda: mirroring.is_idle)
        self._mirroring.show({p: CommittedOffset(at, metadata=MARK) for p, at in offsets.items()})
        inner._network.wake()

    def _show_as_member(self, offsets: Mapping[TopicPartition, int]) -> None:
        group = self._inner._group
        assert group is not None
        marked = {p: replace(group.with_epoch(p, at), metadata=MARK) for p, at in offsets.items()}

        def done(_: Any, error: KafkaError | None) -> None:
            if error is not None:
                log.info("progress was not shown as group %s: %s", self.group, error)

        try:
            group.add_commit(marked, self._inner.config.default_api_timeout_ms, done)
        except KafkaError as error:  # out of the group: whoever has the partitions now shows them
            done(None, error)


def shares_partitions(consumer: AsyncConsumer) -> bool:
    """Whether members of the consumer's group may read the same partition."""
    return consumer._group is not None and any(
        assignor.shares_partitions for assignor in consumer._group.membership.assignors.values()
    )
