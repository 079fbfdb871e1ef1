"""AsyncConsumer: reads topics together with a group, or chosen partitions, from any offset."""

import random
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from ottla.client.consumer.arrow import arrow_module, iteration_wait_ms, take_arrow
from ottla.client.consumer.fetcher import Fetcher
from ottla.client.consumer.iteration_buffer import IterationBuffer
from ottla.client.consumer.positions import PartitionState, Positions
from ottla.client.consumer.record_reader import RecordReader, WakeupError
from ottla.client.consumer.subscription import Subscription
from ottla.client.core import unclosed
from ottla.client.core.arguments import (
    ByPartition,
    OffsetLike,
    PartitionLike,
    Timeout,
    as_offset,
    as_partition,
    as_partitions,
    as_timeout_ms,
    as_times,
    check_columns,
    check_max_records,
    take_assignors,
)
from ottla.client.core.cluster_view import topic_failure
from ottla.client.core.interceptors import ConsumerInterceptor, check_interceptors, intercept_consume
from ottla.client.core.metrics import Metrics
from ottla.client.core.model import (
    EARLIEST,
    LATEST,
    CommittedOffset,
    ConsumerRecord,
    OffsetAndTimestamp,
    Records,
    TopicDescription,
)
from ottla.client.core.network import Network
from ottla.client.core.offset_lookup import list_offsets, why_missing
from ottla.client.core.setting_types import ConsumerSettings
from ottla.client.core.settings import ConsumerConfig, build
from ottla.client.group import group_calls
from ottla.client.group.consumer_coordinator import CommitCallback, ConsumerCoordinator
from ottla.client.transactions.requests import GroupMetadata
from ottla.clock import Clock, system_clock
from ottla.protocol.api import ApiKey
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AsyncConsumer", "PartitionLike", "WakeupError"]

CLOSE_TIMEOUT_MS = 30_000
LATE_CLOSE_MS = 3_000
"""How long a consumer that was not closed may take to leave its group."""


class AsyncConsumer:
    """Reads records, as a member of a group or alone.

    >>> async with AsyncConsumer({"bootstrap.servers": "127.0.0.1:9092"}, group_id="billing") as consumer:
    ...     await consumer.subscribe(["orders"])         # or assign([("orders", 0)]), without a group
    ...     records = await consumer.poll(1000)          # waits up to a second for the first of them
    ...     for record in records:
    ...         print(record.partition, record.offset, record.value)
    ...     async for record in consumer:                # or forever, one at a time
    ...         ...
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        interceptors: Iterable[ConsumerInterceptor] = (),
        on_statistics: Callable[[Metrics], Any] | None = None,
        clock: Clock = system_clock,
        rng: random.Random | None = None,
        **keywords: Unpack[ConsumerSettings],
    ) -> None:
        chosen, by_keyword, assignors = take_assignors(settings, keywords)
        self.config = build(ConsumerConfig, chosen, by_keyword)
        self._network = Network(
            self.config, allow_auto_topic_creation=self.config.allow_auto_create_topics, clock=clock, rng=rng
        )
        view, backoff, jitter = self._network.view, self._network.backoff, self._network.jitter
        buffer = IterationBuffer()
        self._positions = Positions(self.config, view, on_left=buffer.drop, clock=clock, backoff=backoff, jitter=jitter)
        self._fetcher = Fetcher(self.config, self._positions, view, backoff=backoff, jitter=jitter)
        self._network.add(self._positions)
        self._network.add(self._fetcher)
        self._subscription = Subscription()
        self._reader = RecordReader(
            self.config, self._network, self._positions, self._fetcher, self._subscription, buffer
        )
        self._reader.interceptors = check_interceptors(interceptors, ConsumerInterceptor)
        self._group: ConsumerCoordinator | None = None
        if self.config.group_id is not None:
            self._group = self._reader.group = ConsumerCoordinator(
                self.config, assignors, self._network, self._positions, self._subscription, self._reader.consumed
            )
            self._group.commits.interceptors = self._reader.interceptors
        self._unfinished: list[Callable[[], bool]] = []
        """close() waits until each of these returns True, before it closes the connections they use."""
        self._network.add_statistics(on_statistics, self._snapshot())
        unclosed.register(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        # After an error, not every record that was returned has been processed: commit nothing.
        await self._close(CLOSE_TIMEOUT_MS, commits=failure is None)

    async def close(self, timeout_ms: Timeout | None = None) -> None:
        """Commits (if enable.auto.commit is on), leaves the group and closes the connections."""
        await self._close(CLOSE_TIMEOUT_MS if timeout_ms is None else as_timeout_ms(timeout_ms), commits=True)

    async def _close(self, timeout_ms: int, *, commits: bool) -> None:
        try:
            if self._group is not None and self._network.is_started and not self._network.is_closed:
                await self._group.close(timeout_ms, commits=commits)
            if self._unfinished and not self._network.is_closed:
                await self._network.until(lambda: all(is_done() for is_done in self._unfinished), timeout_ms)
        finally:
            await self._network.close()

    # --- what to read -------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: re.Pattern[str] | str | None = None,
        listener: Any = None,
    ) -> None:
        """Reads these topics, or all that match `pattern`, as a member of the group. Replaces the last subscription.

        An empty list unsubscribes. The group assigns partitions during the next calls of poll().

        >>> await consumer.subscribe(["orders"], listener=MyListener())
        >>> await consumer.subscribe(pattern=re.compile("orders-.*"))
        """
        if not group_calls.subscribe(self._network, self._group, topics, pattern, listener):
            await self.unsubscribe()

    async def unsubscribe(self) -> None:
        """Stops reading: commits (if enable.auto.commit is on) and leaves the group."""
        self._network.start()
        if self._group is not None:
            await self._group.unsubscribe(self.config.default_api_timeout_ms)
        else:
            self._subscription.clear()
            self._positions.assign([], self._network.now())

    async def subscription(self) -> set[str]:
        """The subscribed topics; for a pattern, the topics that are known to match."""
        return set(self._subscription.topics or ())

    async def assign(self, partitions: Iterable[PartitionLike]) -> None:
        """Reads exactly these partitions, without the group. Partitions that were assigned before keep their position.

        >>> await consumer.assign([TopicPartition("orders", 0), ("orders", 1)])
        """
        self._network.start()
        chosen = as_partitions(partitions)
        if not chosen:
            await self.unsubscribe()
            return
        self._subscription.assign()
        added = [partition for partition in chosen if partition not in self._positions.states]
        if self._group is not None:
            # Commit before partitions are dropped. No other member takes them over, so there is no need to wait.
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

    async def partitions_for(self, topic: str, timeout_ms: Timeout | None = None) -> TopicDescription:
        """A topic and its partitions. Raises UNKNOWN_TOPIC_OR_PARTITION if it does not exist."""
        network, view = self._network, self._network.view
        network.start()
        wait_ms = self._api_timeout_ms(timeout_ms)
        await network.until_connected(wait_ms)
        view.want(topic, network.now())
        network.wake()
        if not await network.until(lambda: topic in view.topics or topic in view.topic_errors, wait_ms):
            raise network.out_of_time(wait_ms, f"looking up topic {topic}")
        if topic not in view.topics:
            raise topic_failure(view.topic_errors[topic], topic)
        return view.topics[topic]

    async def pause(self, partitions: Iterable[PartitionLike]) -> None:
        """Skips these partitions until resume(). Records of them that were fetched already are kept."""
        states = {as_partition(partition): self._state(partition) for partition in partitions}
        for state in states.values():
            state.is_paused = True
        self._reader.buffer.hold(states)

    async def resume(self, partitions: Iterable[PartitionLike]) -> None:
        """Reads paused partitions again."""
        states = {as_partition(partition): self._state(partition) for partition in partitions}
        for state in states.values():
            state.is_paused = False
        self._reader.buffer.release(states)
        self._network.wake()

    async def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return {partition for partition, state in self._positions.states.items() if state.is_paused}

    # --- where to read ------------------------------------------------------------------------------------

    async def seek(self, partition: PartitionLike, offset: OffsetLike) -> None:
        """Continues with the record at `offset`.

        Pass what committed() returned to keep its leader epoch: then the consumer notices if the log has lost the
        records before it (KIP-320).
        """
        chosen = as_offset(offset, partition)
        self._state(partition).move_to(chosen.offset, epoch=chosen.leader_epoch)
        self._positions.clear_errors({as_partition(partition)})
        self._reader.buffer.drop({as_partition(partition)})
        self._network.wake()

    async def seek_to_beginning(self, partitions: Iterable[PartitionLike] = ()) -> None:
        """Continues with the first available record of these partitions, or of all."""
        self._reset(partitions, EARLIEST)

    async def seek_to_end(self, partitions: Iterable[PartitionLike] = ()) -> None:
        """Continues with the next record that is written to these partitions, or to all."""
        self._reset(partitions, LATEST)

    async def position(self, partition: PartitionLike, timeout_ms: Timeout | None = None) -> int:
        """The offset of the next record that poll() will return. Looks it up if it is not known yet."""
        wait_ms = self._api_timeout_ms(timeout_ms)
        state = self._state(partition)
        self._positions.raise_if_without_offset()
        known = await self._network.until(lambda: state.position is not None or bool(self._positions.errors), wait_ms)
        self._reader.raise_errors()
        if not known or state.position is None:
            missing = why_missing(self._network.view, as_partition(partition))
            doing = f"looking up the position of {as_partition(partition)}"
            raise missing or self._network.out_of_time(wait_ms, doing)
        return self._reader.consumed().get(as_partition(partition), state.position)

    async def lag(self, partition: PartitionLike) -> int | None:
        """The number of offsets between the position and the end, as of the last fetch; None before the first."""
        self._state(partition)
        return self._reader.lags().get(as_partition(partition))

    async def is_at_end(self) -> bool:
        """Whether all assigned partitions have been read to the end, as of the last fetch.

        False during a rebalance. A member that was assigned no partitions is at the end.

        >>> while not await consumer.is_at_end():
        ...     for record in await consumer.poll(1_000):
        ...         process(record)
        """
        lags, states = self._reader.lags(), self._positions.states
        if self._group is not None and not self._group.is_settled:
            return False
        has_share = bool(states) or not self._subscription.is_automatic
        return (bool(lags) or not has_share) and not any(lags.get(partition) != 0 for partition in states)

    async def beginning_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The first available offset of each partition."""
        return await self._offsets(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The offset after the last record that this consumer can see, of each partition."""
        return await self._offsets(partitions, LATEST)

    async def offsets_for_times(self, times: ByPartition[int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (milliseconds since 1970), of each partition; None if there is none.

        >>> await consumer.offsets_for_times({("orders", 0): 1_700_000_000_000})
        """
        return await list_offsets(self._network, as_times(times), isolation_level=self.config.isolation_level)

    # --- reading ------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: Timeout = 0, *, max_records: int | None = None) -> Records:
        """The next records: immediately if some were fetched already, else as soon as some arrive.

        Empty if none arrive within `timeout_ms`, a whole number of milliseconds or a timedelta. Rebalances happen
        during poll(), and it calls the listener.
        """
        records = await self._reader.poll_records(timeout_ms, max_records)
        return intercept_consume(self._reader.interceptors, records) if self._reader.interceptors else records

    async def poll_arrow(
        self,
        timeout_ms: Timeout = 0,
        *,
        max_records: int | None = None,
        timestamp_unit: str = "ms",
        columns: Sequence[str] | None = None,
    ) -> "pa.RecordBatch":
        """The next records as Arrow columns (`ottla.client.consumer.arrow.SCHEMA`), without a Python object per record.

        Like poll(), but returns everything that was fetched unless `max_records` is set: `max.poll.records` applies to
        poll() only. The batch has no rows if no records arrive. `columns` selects the columns.
        """
        take = self._arrow_taker(max_records, timestamp_unit, columns)
        taken = await self._reader.poll(timeout_ms, self._reader.rewind_buffer, take)
        if taken is not None:
            return taken
        arrow = arrow_module("arrow_batches")
        return arrow.empty(arrow.schema(timestamp_unit, columns))

    def _arrow_taker(
        self, max_records: int | None, timestamp_unit: str, columns: Sequence[str] | None
    ) -> "Callable[[], pa.RecordBatch | None]":
        check_columns(columns)
        arrow_module("arrow_batches").schema(timestamp_unit, columns)  # raises for unknown columns and units
        most = None if max_records is None else check_max_records(max_records)
        return lambda: take_arrow(self._fetcher, most, timestamp_unit=timestamp_unit, columns=columns)

    async def iter_arrow(
        self,
        *,
        timeout_ms: Timeout | None = None,
        until_end: bool = False,
        max_records: int | None = None,
        timestamp_unit: str = "ms",
        columns: Sequence[str] | None = None,
    ) -> "AsyncIterator[pa.RecordBatch]":
        """Calls poll_arrow() repeatedly and yields each batch that has rows.

        With `until_end` it ends when all assigned partitions have been read to the end. With `timeout_ms` it ends when
        no records arrive for that long, which may also mean that the broker is slow. Without either it never ends.
        """
        wait_ms = iteration_wait_ms(timeout_ms, until_end)
        while not (until_end and await self.is_at_end()):
            batch = await self.poll_arrow(
                wait_ms, max_records=max_records, timestamp_unit=timestamp_unit, columns=columns
            )
            if batch.num_rows:
                yield batch
            elif timeout_ms is not None:
                return

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yields record after record, and waits for new ones forever."""
        reader = self._reader
        while True:
            await reader.fill_buffer()
            while reader.buffer:
                yield reader.buffer.ready.popleft()

    async def wakeup(self) -> None:
        """Makes the running poll(), or the next one, raise WakeupError."""
        self._reader.wake_up()

    # --- the group ----------------------------------------------------------------------------------------

    async def commit(self, offsets: ByPartition[OffsetLike] | None = None, timeout_ms: Timeout | None = None) -> None:
        """Commits the offsets of all records returned so far, or `offsets`, and waits until they are stored.

        An offset is that of the next record to read: the last one processed, plus one. The leader epoch of the last
        record is stored with it, so that a later consumer notices if the log has lost that record (KIP-320).

        >>> await consumer.commit({("orders", 0): 42})
        """
        group = group_calls.require_group(self._group)
        wait_ms = self._api_timeout_ms(timeout_ms)
        try:
            await group.commit(group_calls.offsets_to_commit(group, offsets), wait_ms)
        finally:
            await group.run_callbacks()

    async def commit_async(
        self, offsets: ByPartition[OffsetLike] | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Commits without waiting. `callback(offsets, error)` is called in a later poll(), commit() or close()."""
        group = group_calls.require_group(self._group)
        self._network.start()
        group.commit_later(group_calls.offsets_to_commit(group, offsets), callback)

    async def committed(
        self, partitions: Iterable[PartitionLike], timeout_ms: Timeout | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """The group's committed offset of each of these partitions; None if it has none."""
        group_calls.require_group(self._group)
        return await group_calls.committed(self._network, self.config, partitions, self._api_timeout_ms(timeout_ms))

    async def group_metadata(self) -> GroupMetadata:
        """This consumer's identity in its group, for producer.send_offsets_to_transaction()."""
        return group_calls.require_group(self._group).metadata()

    async def enforce_rebalance(self, reason: str = "requested by the application") -> None:
        """Triggers a rebalance of the group in the next poll()."""
        group_calls.require_group(self._group).membership.request_rejoin(reason)
        self._network.wake()

    # --- metrics ------------------------------------------------------------------------------------------

    async def metrics(self) -> Metrics:
        """The consumer's metrics, under the names of the Java client."""
        return self._metrics_now()

    def _metrics_now(self) -> Metrics:
        """The same from any thread."""
        with self._network.lock:
            return self._snapshot()()

    def _snapshot(self) -> Callable[[], Metrics]:
        # Without a reference to the consumer, so that it can be dropped.
        reader, fetcher, positions, group = self._reader, self._fetcher, self._positions, self._group
        network = self._network

        def snapshot() -> Metrics:
            lags = {str(partition): float(lag) for partition, lag in reader.lags().items()}
            found: Metrics = {
                "records-consumed-total": fetcher.records_taken,
                "bytes-consumed-total": fetcher.bytes_fetched,
                "assigned-partitions": len(positions.states),
                "records-lag": lags,
                "records-lag-max": max(lags.values(), default=0.0),
                **network.requests.snapshot(),
                **network.requests.throttling(ApiKey.FETCH),
            }
            if group is not None:
                found["rebalance-total"] = group.membership.rebalances
                found["commit-total"] = group.commits.finished
                found["commit-error-total"] = group.commits.failed
            return found

        return snapshot

    # --- if it is not closed ------------------------------------------------------------------------------

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter shutdown globals may be None, and the exit handler has already closed open clients.
        if not is_finalizing():
            unclosed.dropped(self)

    def _open_network(self) -> Network | None:
        return self._network if self._network.is_abandoned else None

    def _unclosed_name(self) -> str:
        group = f" of group {self.config.group_id}" if self.config.group_id is not None else ""
        return f"consumer {self.config.client_id}{group}"

    def _unclosed_work(self) -> str:
        return ""

    def _close_late(self) -> Coroutine[Any, Any, None]:
        """Leaves the group, so that other members get the partitions immediately. Commits nothing: records may
        not have been processed."""
        return self._close(LATE_CLOSE_MS, commits=False)

    # --- helpers ------------------------------------------------------------------------------------------

    def _api_timeout_ms(self, timeout_ms: Timeout | None) -> int:
        return self.config.default_api_timeout_ms if timeout_ms is None else as_timeout_ms(timeout_ms)

    def _state(self, partition: PartitionLike) -> PartitionState:
        return self._positions.state(as_partition(partition))

    def _reset(self, partitions: Iterable[PartitionLike], to: int) -> None:
        chosen = as_partitions(partitions) or list(self._positions.states)
        for partition in chosen:
            self._positions.state(partition).await_reset(to)
        self._positions.clear_errors(set(chosen))
        self._reader.buffer.drop(set(chosen))
        self._network.wake()

    async def _offsets(self, partitions: Iterable[PartitionLike], at: int) -> dict[TopicPartition, int]:
        wanted = {as_partition(partition): at for partition in partitions}
        found = await list_offsets(self._network, wanted, isolation_level=self.config.isolation_level)
        return {partition: result.offset if result is not None else 0 for partition, result in found.items()}
