"""AsyncConsumer: reads the partitions it is given, from any place in them."""

import random
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Self

from ottla.client.fetcher import Fetcher
from ottla.client.model import EARLIEST, LATEST, ConsumerRecord, OffsetAndTimestamp, Records, TopicDescription
from ottla.client.network import Network
from ottla.client.offset_lookup import list_offsets
from ottla.client.positions import PartitionState, Positions
from ottla.client.settings import ConsumerConfig, build
from ottla.clock import Clock, system_clock
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.types import TopicPartition

PartitionLike = TopicPartition | tuple[str, int]


class WakeupError(OttlaError):
    """poll() was broken off by wakeup()."""

    def __init__(self) -> None:
        super().__init__("poll() was woken up")


class AsyncConsumer:
    """Reads records of the partitions that it is assigned.

    >>> async with AsyncConsumer({"bootstrap.servers": "127.0.0.1:9092"}, auto_offset_reset="earliest") as consumer:
    ...     await consumer.assign([("orders", 0), ("orders", 1)])
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
        self.config = build(ConsumerConfig, settings, keywords)
        self._network = Network(
            self.config, allow_auto_topic_creation=self.config.allow_auto_create_topics, clock=clock, rng=rng
        )
        parts = {"backoff": self._network.backoff, "jitter": self._network.jitter}
        self._positions = Positions(self.config, self._network.view, **parts)  # type: ignore[arg-type]
        self._fetcher = Fetcher(self.config, self._positions, self._network.view, **parts)  # type: ignore[arg-type]
        self._network.add(self._positions)
        self._network.add(self._fetcher)
        self._woken = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._network.close()

    # --- what to read -------------------------------------------------------------------------------------

    async def assign(self, partitions: Iterable[PartitionLike]) -> None:
        """Reads exactly these partitions from now on. Those that it read already go on where they are.

        >>> await consumer.assign([TopicPartition("orders", 0), ("orders", 1)])
        """
        self._network.start()
        self._positions.assign([as_partition(partition) for partition in partitions], self._network.now())
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
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"nothing was learnt of topic {topic} in {timeout_ms} ms")
        if topic not in view.topics:
            raise KafkaError(view.topic_errors[topic], f"topic {topic}")
        return view.topics[topic]

    async def pause(self, partitions: Iterable[PartitionLike]) -> None:
        """Leaves these out until resume(); what was fetched of them already waits."""
        for partition in partitions:
            self._state(partition).is_paused = True

    async def resume(self, partitions: Iterable[PartitionLike]) -> None:
        """Reads paused partitions again."""
        for partition in partitions:
            self._state(partition).is_paused = False
        self._network.wake()

    async def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {partition for partition, state in self._positions.states.items() if state.is_paused}

    # --- where to read ------------------------------------------------------------------------------------

    async def seek(self, partition: PartitionLike, offset: int) -> None:
        """Goes on with the record at `offset`."""
        if offset < 0:
            raise OttlaError(f"seek offset must not be a negative number: {offset}", "Use seek_to_beginning().")
        self._state(partition).move_to(offset)
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
        self._raise_if_lost()
        known = await self._network.until(
            lambda: state.position is not None or bool(self._positions.errors), timeout_ms
        )
        self._raise_errors()
        if not known or state.position is None:
            detail = f"the position of {as_partition(partition)} was not found within {timeout_ms} ms"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)
        return state.position

    async def lag(self, partition: PartitionLike) -> int | None:
        """How many offsets lie between the position and the end, as of the last fetch; None before the first."""
        state = self._state(partition)
        committed_only = self.config.isolation_level == "read_committed"
        end = state.last_stable_offset if committed_only else state.high_watermark
        return None if end < 0 or state.position is None else max(0, end - state.position)

    async def beginning_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The first offset still there, of each partition."""
        return await self._offsets(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The offset after the last record that this consumer may see, of each partition."""
        return await self._offsets(partitions, LATEST)

    async def offsets_for_times(
        self, times: Mapping[PartitionLike, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (milliseconds since 1970), of each partition; None if there is none.

        >>> await consumer.offsets_for_times({("orders", 0): 1_700_000_000_000})
        """
        for partition, at in times.items():
            if at < 0:
                raise OttlaError(f"the time for {as_partition(partition)} is negative: {at}")
        return await self._list_offsets({as_partition(partition): at for partition, at in times.items()})

    # --- reading ------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 0, *, max_records: int | None = None) -> Records:
        """The next records: at once if there are any, else as soon as some come, else none after `timeout_ms`."""
        self._network.start()
        self._raise_if_lost()
        limit = self.config.max_poll_records if max_records is None else max_records
        deadline = self._network.now() + timeout_ms
        while True:
            self._raise_errors()
            taken = self._fetcher.take(limit)
            if taken:
                self._network.wake()  # fetches the next while the user works on these
                return Records(taken)
            remaining_ms = deadline - self._network.now()
            await self._network.until(self._is_worth_a_look, max(0, remaining_ms))
            if remaining_ms <= 0 and not self._is_worth_a_look():
                return Records({})

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        while True:
            for record in await self.poll(60_000):
                yield record

    async def wakeup(self) -> None:
        """Makes a poll() that waits, or the next one, raise WakeupError."""
        self._woken = True
        self._network.wake()

    # --- helpers ------------------------------------------------------------------------------------------

    def _is_worth_a_look(self) -> bool:
        return self._woken or bool(self._positions.errors) or self._fetcher.has_records

    def _raise_errors(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError()
        if self._positions.errors:
            raise self._positions.errors.pop(0)

    def _raise_if_lost(self) -> None:
        lost = self._positions.without_position()
        if lost and not self._positions.errors:
            names = ", ".join(map(str, sorted(lost)))
            raise OttlaError(
                f"no position for {names}, and auto.offset.reset is none",
                "Call seek(), or set auto.offset.reset to earliest or latest.",
            )

    def _state(self, partition: PartitionLike) -> PartitionState:
        return self._positions.state(as_partition(partition))

    def _reset(self, partitions: Iterable[PartitionLike], to: int) -> None:
        chosen = [as_partition(partition) for partition in partitions] or list(self._positions.states)
        for partition in chosen:
            self._positions.state(partition).move_to(None, to)
        self._network.wake()

    async def _offsets(self, partitions: Iterable[PartitionLike], at: int) -> dict[TopicPartition, int]:
        found = await self._list_offsets({as_partition(partition): at for partition in partitions})
        return {partition: result.offset if result is not None else 0 for partition, result in found.items()}

    async def _list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return await list_offsets(self._network, wanted, isolation_level=self.config.isolation_level)


def as_partition(partition: PartitionLike) -> TopicPartition:
    """A TopicPartition from one, or from a plain (topic, partition)."""
    if isinstance(partition, TopicPartition):
        return partition
    try:
        topic, index = partition
    except (TypeError, ValueError):
        topic = index = None  # type: ignore[assignment]
    if not isinstance(topic, str) or not isinstance(index, int):
        raise OttlaError(f"not a partition: {partition!r}", 'Write TopicPartition("orders", 0) or ("orders", 0).')
    return TopicPartition(topic, index)
