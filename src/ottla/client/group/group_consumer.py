"""The consumer's calls about its group: subscribe, commit, committed. Mixed into AsyncConsumer and Consumer."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from ottla.client.admin.group_model import CommittedOffset
from ottla.client.admin.groups import AsyncGroupAdmin
from ottla.client.consumer.consumer_arguments import (
    ByPartition,
    OffsetLike,
    PartitionLike,
    as_offset,
    as_partition,
    check_listener,
    check_mapping,
)
from ottla.client.consumer.positions import Positions
from ottla.client.consumer.subscription import Subscription, check_pattern, check_topics
from ottla.client.core.network import Network
from ottla.client.core.settings import ConsumerConfig
from ottla.client.group.group_side import CommitCallback, GroupSide
from ottla.client.transactions.requests import GroupMetadata
from ottla.errors import OttlaError
from ottla.types import TopicPartition

__all__ = ["AsyncGroupConsumer", "GroupConsumer", "OffsetLike", "PartitionLike", "as_partition"]


class AsyncGroupConsumer:
    """The part of AsyncConsumer that is about groups."""

    config: ConsumerConfig
    _network: Network
    _positions: Positions
    _subscription: Subscription
    _group: GroupSide | None

    async def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: re.Pattern[str] | str | None = None,
        listener: Any = None,
    ) -> None:
        """Reads these topics, or all that match `pattern`, together with the group. Replaces what was before.

        An empty list unsubscribes. The group decides about partitions inside the next calls of poll().

        >>> await consumer.subscribe(["orders"], listener=MyListener())
        >>> await consumer.subscribe(pattern=re.compile("orders-.*"))
        """
        if pattern is not None and topics is not None:
            raise OttlaError("subscribe() takes topics or a pattern, not both")
        check_listener(listener)
        if pattern is not None:
            checked = check_pattern(pattern)
            group = self._group_side()
            self._network.start()
            group.subscribe_pattern(checked, listener)
            return
        names = check_topics(topics)
        if not names:
            await self.unsubscribe()
            return
        group = self._group_side()
        self._network.start()
        group.subscribe_topics(names, listener)

    async def unsubscribe(self) -> None:
        """Reads nothing any more: commits (where enable.auto.commit is on) and leaves the group."""
        self._network.start()
        if self._group is not None:
            await self._group.unsubscribe(self.config.default_api_timeout_ms)
        else:
            self._subscription.clear()
            self._positions.assign([], self._network.now())

    async def subscription(self) -> set[str]:
        """The topics subscribed to; for a pattern, those that match as far as is known."""
        return set(self._subscription.topics or ())

    async def commit(self, offsets: ByPartition[OffsetLike] | None = None, timeout_ms: int | None = None) -> None:
        """Commits everything given out so far, or these offsets, and waits until that is safe.

        An offset is the one of the next record to read: of the last one processed, plus one. The leader epoch of
        that last one is stored with it, so that whoever goes on there notices if the log has lost it since.

        >>> await consumer.commit({("orders", 0): 42})
        """
        group = self._group_side()
        timeout_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        try:
            await group.commit(self._offsets_to_commit(offsets), timeout_ms)
        finally:
            await group.run_callbacks()

    async def commit_async(
        self, offsets: ByPartition[OffsetLike] | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Commits without waiting. `callback(offsets, error)` is called in a later poll(), commit() or close()."""
        group = self._group_side()
        self._network.start()
        group.commit_later(self._offsets_to_commit(offsets), callback)

    async def committed(
        self, partitions: Iterable[PartitionLike], timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """What the group has committed, for each of these partitions; None where it has not."""
        self._group_side()
        self._network.start()
        wanted = [as_partition(partition) for partition in partitions]
        if not wanted:
            return {}
        admin = AsyncGroupAdmin()
        admin._network = self._network
        require_stable = self.config.isolation_level == "read_committed"
        assert self.config.group_id is not None
        timeout_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                found = await admin.list_group_offsets(self.config.group_id, wanted, require_stable=require_stable)
        except TimeoutError:
            raise self._network.out_of_time(timeout_ms, "reading the committed offsets") from None
        return {partition: found.get(partition) for partition in wanted}

    async def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group, for a producer that commits offsets in a transaction."""
        return self._group_side().metadata()

    async def enforce_rebalance(self, reason: str = "the application asked for it") -> None:
        """Has the group rebalance, in the next poll()."""
        self._group_side().membership.request_rejoin(reason)
        self._network.wake()

    def _group_side(self) -> GroupSide:
        if self._group is None:
            raise OttlaError(
                "To use the group management or offset commit APIs, you must provide a valid group.id",
                'Pass group_id="…" to the consumer, or use assign() and seek().',
            )
        return self._group

    def _offsets_to_commit(self, offsets: ByPartition[OffsetLike] | None) -> dict[TopicPartition, CommittedOffset]:
        group = self._group_side()
        if offsets is None:
            return group.consumed()
        chosen = {}
        for like, given in check_mapping(offsets, "offsets", '{("orders", 0): 42}').items():
            partition = as_partition(like)
            committed = as_offset(given, partition)
            if committed.offset < 0:
                raise OttlaError(f"a negative offset for {partition}: {committed.offset}")
            is_bare = not isinstance(given, CommittedOffset)
            chosen[partition] = group.with_epoch(partition, committed.offset) if is_bare else committed
        return chosen


class GroupConsumer:
    """The part of Consumer that is about groups: each call of AsyncGroupConsumer, waited for."""

    _async: Any
    _call: Callable[[Coroutine[Any, Any, Any]], Any]
    _here: Callable[[Any], Any]

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: re.Pattern[str] | str | None = None,
        listener: Any = None,
    ) -> None:
        """As AsyncConsumer.subscribe; the listener is called in the thread that polls, and may use the consumer."""
        check_listener(listener)
        here = None if listener is None else self._here(listener)
        return self._call(self._async.subscribe(topics, pattern=pattern, listener=here))

    def unsubscribe(self) -> None:
        return self._call(self._async.unsubscribe())

    def subscription(self) -> set[str]:
        return self._call(self._async.subscription())

    def commit(self, offsets: ByPartition[OffsetLike] | None = None, timeout_ms: int | None = None) -> None:
        return self._call(self._async.commit(offsets, timeout_ms))

    def commit_async(
        self, offsets: ByPartition[OffsetLike] | None = None, callback: CommitCallback | None = None
    ) -> None:
        here = None if callback is None else self._here(callback)
        return self._call(self._async.commit_async(offsets, here))

    def committed(
        self, partitions: Iterable[PartitionLike], timeout_ms: int | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        return self._call(self._async.committed(partitions, timeout_ms))

    def group_metadata(self) -> GroupMetadata:
        return self._call(self._async.group_metadata())

    def enforce_rebalance(self, reason: str = "the application asked for it") -> None:
        return self._call(self._async.enforce_rebalance(reason))
