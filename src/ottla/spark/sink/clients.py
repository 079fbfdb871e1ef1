"""OWNER of the sink's clients in one Python process: Spark's workers live for many batches, and so do connections.

Nothing is made before it is needed, which is after Spark forked the worker, and a forked child starts with nothing.
"""

import asyncio
import os
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from ottla.client.admin.admin import AsyncAdmin
from ottla.client.blocking import LoopThread
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.core.model import EARLIEST, LATEST
from ottla.client.core.settings import AdminConfig, ConsumerConfig
from ottla.client.producer.producer import AsyncProducer
from ottla.clock import monotonic
from ottla.errors import ErrorCode, KafkaError
from ottla.spark.explaining import AWAY, BrokersAway
from ottla.spark.sink.decisions import Part, SinkState
from ottla.spark.sink.errors import SinkError
from ottla.spark.sink.ledger import LEDGER_PARTITIONS, Entry, Ledger, Names
from ottla.spark.sink.options import SinkOptions
from ottla.types import TopicPartition

T = TypeVar("T")

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}
PATIENCE_MS = 120_000
"""How long a broker may be away: as long as a producer keeps trying to deliver."""
TAIL = 64
"""So many of the last records of the decisions topic are read first: the newest decision is nearly always there."""

_loop = LoopThread()
_known: dict[tuple[tuple[str, str], ...], "Clients"] = {}


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on this process's loop and waits for it."""
    return _loop.call(coroutine)


def clients(options: SinkOptions) -> "Clients":
    """The clients of this process for brokers reached in this way."""
    key = tuple(sorted(options.kafka.items()))
    if key not in _known:
        _known[key] = Clients(options)
    return _known[key]


def _after_fork() -> None:
    _loop.__init__()  # type: ignore[misc]
    _known.clear()


os.register_at_fork(after_in_child=_after_fork)


class Clients:
    """An admin that stays connected, and what is asked of it."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        settings = options.client_settings(AdminConfig)
        self.admin = AsyncAdmin({"default.api.timeout.ms": PATIENCE_MS, **settings})
        self._topics: set[str] = set()
        self._notes: AsyncProducer | None = None

    def notes(self) -> AsyncProducer:
        """A plain producer for records that may come twice."""
        if self._notes is None:
            settings = self.options.client_settings(AdminConfig)
            self._notes = AsyncProducer({**settings, "enable.idempotence": False, "acks": "all", "linger.ms": 0})
        return self._notes

    async def ensure_decisions(self, names: Names) -> None:
        """Makes the topic of the sink's decisions if it is not there."""
        if names.decisions in self._topics:
            return
        found = await self._partitions_of(names.decisions)
        if not found:
            await self._create_decisions(names)
        elif found < LEDGER_PARTITIONS:
            raise SinkError(
                f"the topic {names.decisions}, where the sink keeps its decisions, has {found} partitions",
                f"It takes {LEDGER_PARTITIONS}, and cleanup.policy=compact.",
            )
        self._topics.add(names.decisions)

    async def _partitions_of(self, topic: str) -> int:
        """0 where there is no such topic. Asked before making it, which not everybody may."""
        try:
            (found,) = await self.admin.describe_topics([topic])
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return 0
        return len(found.partitions)

    async def _create_decisions(self, names: Names) -> None:
        try:
            await self.admin.create_topic(names.decisions, partitions=LEDGER_PARTITIONS, configs=COMPACTED)
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:  # another task was quicker
                told = f"the topic {names.decisions}, where the sink keeps its decisions, cannot be made: {error}"
                if error.retriable or error.code in AWAY:
                    raise BrokersAway(told, f"Are the brokers at {self.options.bootstrap} there?") from None
                raise SinkError(
                    told,
                    f"Allow it, or make it yourself: {LEDGER_PARTITIONS} partitions, cleanup.policy=compact.",
                ) from None

    # --- the ledger ---------------------------------------------------------------------------------------

    async def read_ledger(self, names: Names, tasks: Iterable[int]) -> Ledger:
        """The entries of these tasks, as far as they are committed; an open transaction's entry is not there yet."""
        by_group = {names.group(task): task // LEDGER_PARTITIONS for task in tasks}
        found: dict[int, Entry] = {}

        async def read(group: str, number: int) -> None:
            for partition, committed in (await self.admin.list_group_offsets(group)).items():
                if partition.topic == names.decisions:
                    task = number * LEDGER_PARTITIONS + partition.partition
                    found[task] = Entry(committed.offset, committed.metadata)

        await asyncio.gather(*(read(group, number) for group, number in by_group.items()))
        return found

    async def commit_part(self, names: Names, part: Part) -> None:
        """Makes rows and ledger entry visible, in one; again is harmless. Raises KafkaError where the part is lost."""
        await self.admin.commit_prepared(part.prepared(names), timeout_ms=PATIENCE_MS)

    async def abort_part(self, names: Names, part: Part) -> None:
        """Drops a part; that it is gone already is just as good."""
        try:
            await self.admin.abort_prepared(part.prepared(names), timeout_ms=PATIENCE_MS)
        except KafkaError as error:
            if error.retriable:
                raise

    async def end_run(self, names: Names, run: str) -> None:
        """Notes that this run was aborted: a task of it that still runs, and only begins now, finds the note."""
        if not run:
            return  # Spark gave this run no id: a note would be for every such run there will ever be
        await self.admin.fence_producers([names.ended(run)])

    async def has_ended(self, names: Names, run: str) -> bool:
        """Whether this run was aborted.

        A task asks once it has taken its id over. Whoever aborts writes the note first and fences the ids second. So
        a task comes before the fence, and is shut out by it, or after the note, and reads it.
        """
        try:
            await self.admin.describe_transactions([names.ended(run)])
        except KafkaError as error:
            if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            return False
        return True

    async def fence(self, names: Names, tasks: Iterable[int]) -> None:
        """Ends what tasks that did not answer have open, and shuts them out should they still run."""
        await self.admin.fence_producers([names.task(task) for task in tasks])

    async def abort_leftovers(self, names: Names, keep: set[int]) -> list[str]:
        """Aborts what earlier attempts left open in this sink's name, but for the tasks to keep."""
        open_ones = await self.admin.list_transactions(states=["Ongoing"])
        tasks = {listing.transactional_id: names.task_of(listing.transactional_id) for listing in open_ones}
        left = [name for name, task in tasks.items() if task is not None and task not in keep]
        for found in await self.admin.describe_transactions(left):
            try:
                await self.admin.end_transaction(
                    found.transactional_id, found.producer_id, found.producer_epoch, commit=False
                )
            except KafkaError as error:
                if error.retriable:
                    raise
        return left

    # --- the decision -------------------------------------------------------------------------------------

    async def read_state(self, names: Names) -> SinkState:
        """What the decisions topic says, up to its end; a decision that is being written is waited for."""
        await self.ensure_decisions(names)
        partition = TopicPartition(names.decisions, 0)
        end = await self._stable_end(names, partition)
        first = (await self._offset(partition, EARLIEST)) if end else 0
        if first >= end:
            return SinkState()
        settings = {**self.options.client_settings(ConsumerConfig), "isolation.level": "read_committed"}
        async with AsyncConsumer(settings) as consumer:
            await consumer.assign([partition])
            tail = TAIL
            while True:
                begin = max(first, end - tail)
                state = await self._replay(consumer, partition, begin, end)
                if state.decision is not None or begin == first:
                    return state
                tail *= 16

    async def _replay(self, consumer: AsyncConsumer, partition: TopicPartition, begin: int, end: int) -> SinkState:
        await consumer.seek(partition, begin)
        state, deadline = SinkState(), monotonic() + PATIENCE_MS / 1000
        while await consumer.position(partition) < end:
            for record in await consumer.poll(100):
                if record.offset < end:
                    state = state.replay(record.key, record.value)
            if monotonic() > deadline:
                raise BrokersAway(
                    f"{partition} could not be read to its end within {PATIENCE_MS} ms",
                    f"Are the brokers at {self.options.bootstrap} there?",
                )
        return state

    async def _stable_end(self, names: Names, partition: TopicPartition) -> int:
        """The end of the topic, once no decision is half-written there."""
        end = await self._offset(partition, LATEST)
        deadline = monotonic() + 0.5
        while await self._offset(partition, LATEST, "read_committed") < end:
            if monotonic() > deadline:
                # A driver died while it wrote a decision. Taking its id over ends that, as a new driver would.
                async with driver_producer(self.options, names) as producer:
                    await producer.init_transactions(timeout_ms=PATIENCE_MS)
                deadline = monotonic() + 10
            await asyncio.sleep(0.01)
        return end

    async def _offset(self, partition: TopicPartition, at: int, isolation_level: str = "read_uncommitted") -> int:
        deadline = monotonic() + 10
        while True:
            try:
                found = await self.admin.list_offsets({partition: at}, isolation_level=isolation_level)
            except KafkaError as error:
                # A topic that was made a moment ago is not known to every broker yet.
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
                continue
            result = found[partition]
            assert result is not None
            return result.offset


def driver_producer(options: SinkOptions, names: Names) -> AsyncProducer:
    """The producer of the sink's decisions: its transactional id fences every other driver's."""
    return AsyncProducer(
        {
            **options.client_settings(AdminConfig),
            "transactional.id": names.driver,
            "transaction.timeout.ms": min(30_000, options.timeout_ms),
            "linger.ms": 0,
            "max.block.ms": PATIENCE_MS,
        }
    )
