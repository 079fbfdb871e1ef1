"""AsyncConsumer: reads topics together with a group, or partitions of one's own choice, from any place in them."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ottla.client.consumer.arrow import arrow_module, iteration_wait_ms, take_arrow
from ottla.client.consumer.backlog import Backlog
from ottla.client.consumer.consumer_arguments import (
    ByPartition,
    OffsetLike,
    PartitionLike,
    as_offset,
    as_partition,
    as_times,
    check_columns,
    check_max_records,
    check_timeout,
    take_assignors,
)
from ottla.client.consumer.fetcher import Fetcher
from ottla.client.consumer.positions import PartitionState, Positions
from ottla.client.consumer.subscription import Kind, Subscription
from ottla.client.core.model import EARLIEST, LATEST, ConsumerRecord, OffsetAndTimestamp, Records, TopicDescription
from ottla.client.core.network import Network
from ottla.client.core.offset_lookup import list_offsets, why_missing
from ottla.client.core.settings import ConsumerConfig, build
from ottla.client.group.group_consumer import AsyncGroupConsumer
from ottla.client.group.group_side import GroupSide
from ottla.clock import Clock, system_clock
from ottla.errors import KafkaError, OttlaError
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AsyncConsumer", "PartitionLike", "WakeupError", "as_partition"]

CLOSE_TIMEOUT_MS = 30_000

T = TypeVar("T")


class WakeupError(OttlaError):
    """poll() was broken off by wakeup()."""

    def __init__(self) -> None:
        super().__init__("poll() was woken up")


class AsyncConsumer(AsyncGroupConsumer):
    """Reads records, together with the other members of its group or alone.

    >>> async with AsyncConsumer({"bootstrap.servers": "127.0.0.1:9092"}, group_id="billing") as consumer:
    ...     await consumer.subscribe(["orders"])         # or assign([("orders", 0)]), without a group
    ...     records = await consumer.poll(1000)          # waits up to a second for the first of them
    ...     for record in records:
    ...         print(record.partition, record.offset, record.value)
    ...     async for record in consumer:                # or for ever, one at a time
    ...         ...
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        clock: Clock = system_clock,
        rng: random.Random | None = None,
        **keywords: Any,
    ) -> None:
        settings, keywords, assignors = take_assignors(settings, keywords)
        self.config = build(ConsumerConfig, settings, keywords)
        self._network = Network(
            self.config, allow_auto_topic_creation=self.config.allow_auto_create_topics, clock=clock, rng=rng
        )
        parts = {"backoff": self._network.backoff, "jitter": self._network.jitter}
        self._backlog = Backlog()
        self._positions = Positions(
            self.config,
            self._network.view,
            on_left=self._backlog.drop,
            clock=clock,
            **parts,  # type: ignore[arg-type]
        )
        self._fetcher = Fetcher(self.config, self._positions, self._network.view, **parts)  # type: ignore[arg-type]
        self._network.add(self._positions)
        self._network.add(self._fetcher)
        self._subscription = Subscription()
        self._group: GroupSide | None = None
        if self.config.group_id is not None:
            self._group = GroupSide(
                self.config, assignors, self._network, self._positions, self._subscription, self._consumed
            )
        self._woken = False
        self._is_polling = False
        self._unfinished: list[Callable[[], bool]] = []
        """Each tells whether something on our connections is done; close() waits for it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        # Whoever leaves with an error has not processed all it was given: nothing is committed for it.
        await self._close(CLOSE_TIMEOUT_MS, commits=failure is None)

    async def close(self, timeout_ms: int | None = None) -> None:
        """Commits (where enable.auto.commit is on), leaves the group, closes the connections."""
        await self._close(CLOSE_TIMEOUT_MS if timeout_ms is None else timeout_ms, commits=True)

    async def _close(self, timeout_ms: int, *, commits: bool) -> None:
        try:
            if self._group is not None and self._network.is_started and not self._network.is_closed:
                await self._group.close(timeout_ms, commits=commits)
            if self._unfinished and not self._network.is_closed:
                await self._network.until(lambda: all(is_done() for is_done in self._unfinished), timeout_ms)
        finally:
            await self._network.close()

    # --- what to read -------------------------------------------------------------------------------------

    async def assign(self, partitions: Iterable[PartitionLike]) -> None:
        """Reads exactly these partitions from now on. Those that it read already go on where they are.

        >>> await consumer.assign([TopicPartition("orders", 0), ("orders", 1)])
        """
        self._network.start()
        chosen = [as_partition(partition) for partition in partitions]
        if not chosen:
            await self.unsubscribe()
            return
        self._subscription.assign()
        added = [partition for partition in chosen if partition not in self._positions.states]
        if self._group is not None:
            # What is about to be left is committed; as the partitions are ours alone, nobody waits for it.
            self._group.auto_commit_now()
            self._group.commits.forget(added)
        self._positions.assign(chosen, self._network.now())
        if self._group is not None:
            for partition in added:
                self._group.lookup.begin(partition)
        self._network.wake()

    async def assignment(self) -> set[TopicPartition]:
        """The partitions being read."""
        return set(self._positions.states)

    async def partitions_for(self, topic: str, timeout_ms: int | None = None) -> TopicDescription:
        """What is known of a topic's partitions; raises UNKNOWN_TOPIC_OR_PARTITION if there is no such topic."""
        network, view = self._network, self._network.view
        network.start()
        timeout_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        await network.until_connected(timeout_ms)
        view.want(topic, network.now())
        network.wake()
        if not await network.until(lambda: topic in view.topics or topic in view.topic_errors, timeout_ms):
            raise network.out_of_time(timeout_ms, f"asking for topic {topic}")
        if topic not in view.topics:
            raise KafkaError(view.topic_errors[topic], f"topic {topic}")
        return view.topics[topic]

    async def pause(self, partitions: Iterable[PartitionLike]) -> None:
        """Leaves these out until resume(); what was fetched of them already waits."""
        states = {as_partition(partition): self._state(partition) for partition in partitions}
        for state in states.values():
            state.is_paused = True
        self._backlog.hold(states)

    async def resume(self, partitions: Iterable[PartitionLike]) -> None:
        """Reads paused partitions again."""
        states = {as_partition(partition): self._state(partition) for partition in partitions}
        for state in states.values():
            state.is_paused = False
        self._backlog.release(states)
        self._network.wake()

    async def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {partition for partition, state in self._positions.states.items() if state.is_paused}

    # --- where to read ------------------------------------------------------------------------------------

    async def seek(self, partition: PartitionLike, offset: OffsetLike) -> None:
        """Goes on with the record at `offset`.

        What committed() gave may be passed as it is: with its leader epoch it is noticed if the log has lost since what
        lay before.
        """
        given = as_offset(offset, partition)
        if given.offset < 0:
            raise OttlaError(f"seek offset must not be a negative number: {given.offset}", "Use seek_to_beginning().")
        self._state(partition).move_to(given.offset, epoch=given.leader_epoch)
        self._positions.begins_somewhere({as_partition(partition)})
        self._backlog.drop({as_partition(partition)})
        self._network.wake()

    async def seek_to_beginning(self, partitions: Iterable[PartitionLike] = ()) -> None:
        """Goes on with the first record still there, of these partitions or of all."""
        self._reset(partitions, EARLIEST)

    async def seek_to_end(self, partitions: Iterable[PartitionLike] = ()) -> None:
        """Goes on with the next record to be written, of these partitions or of all."""
        self._reset(partitions, LATEST)

    async def position(self, partition: PartitionLike, timeout_ms: int | None = None) -> int:
        """The offset of the next record that poll() will give; looks it up if need be."""
        timeout_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        state = self._state(partition)
        self._positions.raise_if_lost()
        known = await self._network.until(
            lambda: state.position is not None or bool(self._positions.errors), timeout_ms
        )
        self._raise_errors()
        if not known or state.position is None:
            missing = why_missing(self._network.view, as_partition(partition))
            doing = f"looking up the position of {as_partition(partition)}"
            raise missing or self._network.out_of_time(timeout_ms, doing)
        return self._consumed().get(as_partition(partition), state.position)

    async def lag(self, partition: PartitionLike) -> int | None:
        """How many offsets lie between the position and the end, as of the last fetch; None before the first."""
        self._state(partition)
        return self._lags().get(as_partition(partition))

    async def is_at_end(self) -> bool:
        """Whether all that is assigned has been read to its end, as of the last fetch.

        False while the group shares partitions out. Once it has, a member that got none is at its end as well.

        >>> while not await consumer.is_at_end():
        ...     for record in await consumer.poll(1_000):
        ...         process(record)
        """
        lags, states = self._lags(), self._positions.states
        if self._group is not None and not self._group.is_settled:
            return False
        has_share = bool(states) or not self._subscription.is_automatic
        return (bool(lags) or not has_share) and not any(lags.get(partition) != 0 for partition in states)

    def _lags(self) -> dict[TopicPartition, int]:
        """Of those partitions whose position and end are known."""
        states, committed_only = self._positions.states, self.config.isolation_level == "read_committed"
        ends = {p: s.last_stable_offset if committed_only else s.high_watermark for p, s in states.items()}
        return {p: max(0, ends[p] - at) for p, at in self._consumed().items() if ends[p] >= 0}

    async def beginning_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The first offset still there, of each partition."""
        return await self._offsets(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The offset after the last record that this consumer may see, of each partition."""
        return await self._offsets(partitions, LATEST)

    async def offsets_for_times(self, times: ByPartition[int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (milliseconds since 1970), of each partition; None if there is none.

        >>> await consumer.offsets_for_times({("orders", 0): 1_700_000_000_000})
        """
        return await self._list_offsets(as_times(times))

    # --- reading ------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 0, *, max_records: int | None = None) -> Records:
        """The next records: at once if there are any, else as soon as some come, else none after `timeout_ms`.

        Rebalances of the group happen in here, and so do the calls of the listener.
        """
        most = self._most_records(max_records)
        taken = await self._poll(
            timeout_ms, lambda: Records(self._backlog.take(most)), lambda: Records(self._fetcher.take(most))
        )
        return taken or Records({})

    def _most_records(self, max_records: int | None) -> int:
        return self.config.max_poll_records if max_records is None else check_max_records(max_records)

    def _take_records(self, max_records: int | None) -> Records:
        return Records(self._fetcher.take(self._most_records(max_records)))

    async def poll_arrow(
        self,
        timeout_ms: int = 0,
        *,
        max_records: int | None = None,
        timestamp_unit: str = "ms",
        columns: Sequence[str] | None = None,
    ) -> "pa.RecordBatch":
        """The next records as Arrow columns (`ottla.client.consumer.arrow.SCHEMA`), without an object for any of them.

        As poll() in everything else, but it gives all that has been fetched unless `max_records` says otherwise:
        `max.poll.records` is for records as objects. No rows when nothing came. `columns` names those to make.
        """
        take = self._arrow_taker(max_records, timestamp_unit, columns)
        taken = await self._poll(timeout_ms, self._rewind_backlog, take)
        if taken is not None:
            return taken
        arrow = arrow_module("arrow_batches")
        return arrow.empty(arrow.schema(timestamp_unit, columns))

    def _arrow_taker(
        self, max_records: int | None, timestamp_unit: str, columns: Sequence[str] | None
    ) -> "Callable[[], pa.RecordBatch | None]":
        check_columns(columns)
        arrow_module("arrow_batches").schema(timestamp_unit, columns)  # refuses what there is not, before anything else
        most = None if max_records is None else check_max_records(max_records)
        return lambda: take_arrow(self._fetcher, most, timestamp_unit=timestamp_unit, columns=columns)

    async def iter_arrow(
        self,
        *,
        timeout_ms: int | None = None,
        until_end: bool = False,
        max_records: int | None = None,
        timestamp_unit: str = "ms",
        columns: Sequence[str] | None = None,
    ) -> "AsyncIterator[pa.RecordBatch]":
        """poll_arrow() again and again: for ever; or `until_end`, until all that is assigned has been read to its end;
        or until nothing came for `timeout_ms`, which may also mean that the broker was slow.
        """
        wait_ms = iteration_wait_ms(timeout_ms, until_end)
        while not (until_end and await self.is_at_end()):
            batch = await self.poll_arrow(
                wait_ms,
                max_records=max_records,
                timestamp_unit=timestamp_unit,
                columns=columns,
            )
            if batch.num_rows:
                yield batch
            elif timeout_ms is not None:
                return

    async def _poll(
        self, timeout_ms: int, take_backlog: Callable[[], T | None], take: Callable[[], T | None]
    ) -> T | None:
        """Whatever `take` finds, at once or as soon as something comes; None after `timeout_ms`."""
        check_timeout(timeout_ms)
        self._network.start()
        if self._is_polling:
            raise OttlaError("poll() is already running", "Give each task its own consumer.")
        self._is_polling = True
        if self._group is not None:
            self._group.membership.enter_poll(self._network.now())
        try:
            return await self._wait_for(timeout_ms, take_backlog, take)
        finally:
            self._is_polling = False
            if self._group is not None:
                self._group.membership.leave_poll(self._network.now())

    def _take_here(self, take: Callable[[], T | None]) -> T | None:
        """What poll() would give at once, for the thread of a blocking caller: nothing goes to the loop and back.

        None where there is anything else to do than to take what has come. Then it is poll() who does it.
        """
        network, group, fetcher = self._network, self._group, self._fetcher
        with network.lock:
            if not network.is_at_rest or self._is_polling or self._woken or self._backlog:
                return None
            if self._positions.errors or self._positions.without_position():
                return None
            if group is not None:
                now = network.now_elsewhere()
                if group.needs_user or group.commits.is_auto_near(now):
                    return None
                group.membership.leave_poll(now)
            waiting = fetcher.begin_to_take()
            try:
                taken = take()
            except (KafkaError, OttlaError):
                raise
            except BaseException:  # Ctrl-C: nothing was given out
                fetcher.take_back()
                self._backlog.ready.clear()
                raise
            if fetcher.waiting != waiting and fetcher.is_due:
                network.wake()  # fetches the next while the user works on these
            return taken

    async def _wait_for(
        self, timeout_ms: int, take_backlog: Callable[[], T | None], take: Callable[[], T | None]
    ) -> T | None:
        if self._subscription.kind is Kind.NONE:
            raise OttlaError(
                "Consumer is not subscribed to any topics or assigned any partitions", "Call subscribe() or assign()."
            )
        self._positions.raise_if_lost()
        if self._network.is_about_to_run:
            # Whoever polls and works without ever waiting would keep the next fetch from being sent.
            await asyncio.sleep(0)
        deadline = self._network.now() + timeout_ms
        if self._group is not None:
            self._group.auto_commit_if_due(self._network.now())
        is_late = False
        while True:
            self._raise_errors()
            if self._group is not None:
                await self._group.take_part()
                self._raise_errors()
            waiting = self._fetcher.begin_to_take()
            taken = (take_backlog() if self._backlog else None) or take()
            if taken:
                if self._fetcher.waiting != waiting and self._fetcher.is_due:
                    self._network.wake()  # fetches the next while the user works on these
                return taken
            remaining_ms = deadline - self._network.now()
            if self._is_worth_a_look():
                await asyncio.sleep(0)  # whatever it is, nobody else on this loop waits for it
            else:
                await self._network.until(self._is_worth_a_look, max(0, remaining_ms))
            if remaining_ms <= 0 and (is_late or not self._is_worth_a_look()):
                return None
            is_late = remaining_ms <= 0

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        while True:
            await self._fill_backlog()
            while self._backlog:
                yield self._backlog.ready.popleft()

    async def _fill_backlog(self) -> None:
        """Waits for records to iterate over. A commit meanwhile counts only those that were given out."""
        if not self._backlog:
            self._backlog.extend(await AsyncConsumer.poll(self, 60_000))  # a subclass may give out something else
            self._given_out()

    def _take_into_backlog(self) -> bool:
        """For `_take_here`: what there is to iterate over."""
        self._backlog.extend(self._take_records(None))
        return bool(self._backlog)

    def _rewind_backlog(self) -> None:
        """Goes back to what an iteration that was broken off has left, to have it as columns."""
        for partition, offset in self._consumed().items():
            state = self._positions.states[partition]
            if state.position != offset:
                state.go_back_to(offset)
        self._backlog.clear()

    def _given_out(self) -> None:
        """What was taken last has reached the user."""
        self._fetcher.given_out()
        self._backlog.given_out()

    async def _give_back(self) -> None:
        """What was taken last has not: the user's thread was broken off. It comes again."""
        self._fetcher.take_back()
        self._backlog.take_back()

    def _consumed(self) -> dict[TopicPartition, int]:
        """How far the user is: past everything that poll() or the iterator has given out."""
        states = self._positions.states
        consumed = {partition: state.position for partition, state in states.items() if state.position is not None}
        for topic, partition, offset, *_ in reversed(list(self._backlog)):
            if (topic, partition) in consumed:
                consumed[TopicPartition(topic, partition)] = offset
        return consumed

    async def wakeup(self) -> None:
        """Makes a poll() that waits, or the next one, raise WakeupError."""
        self._woken = True
        self._network.wake()

    # --- helpers ------------------------------------------------------------------------------------------

    def _is_worth_a_look(self) -> bool:
        if self._group is not None and self._group.needs_user:
            return True
        return self._woken or bool(self._positions.errors) or self._fetcher.has_records

    def _raise_errors(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError()
        if self._positions.errors:
            raise self._positions.errors.pop(0)
        if self._group is not None:
            self._group.raise_errors()

    def _state(self, partition: PartitionLike) -> PartitionState:
        return self._positions.state(as_partition(partition))

    def _reset(self, partitions: Iterable[PartitionLike], to: int) -> None:
        chosen = [as_partition(partition) for partition in partitions] or list(self._positions.states)
        for partition in chosen:
            self._positions.state(partition).move_to(None, to)
        self._positions.begins_somewhere(set(chosen))
        self._backlog.drop(set(chosen))
        self._network.wake()

    async def _offsets(self, partitions: Iterable[PartitionLike], at: int) -> dict[TopicPartition, int]:
        found = await self._list_offsets({as_partition(partition): at for partition in partitions})
        return {partition: result.offset if result is not None else 0 for partition, result in found.items()}

    async def _list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return await list_offsets(self._network, wanted, isolation_level=self.config.isolation_level)
