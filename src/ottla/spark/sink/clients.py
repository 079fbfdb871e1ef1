"""OWNER of the sink's clients in one Python process: Spark reuses workers, so connections are kept between batches.

Clients are created on first use, which is after Spark forked the worker. A forked child starts without any.
"""

import asyncio
import os
import socket
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from ottla.client.admin.admin import AsyncAdmin
from ottla.client.blocking.loop import LoopThread
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.core.model import EARLIEST, LATEST
from ottla.client.core.settings import AdminConfig, ConsumerConfig
from ottla.client.producer.producer import AsyncProducer
from ottla.clock import monotonic, system_clock
from ottla.errors import ErrorCode, KafkaError
from ottla.spark.explaining import BrokersUnavailable, is_unavailable
from ottla.spark.sink.decisions import CLAIM_KEY, Part, Run, SinkState, check_claim, claimed
from ottla.spark.sink.errors import SinkError
from ottla.spark.sink.ledger import LEDGER_PARTITIONS, Entry, Ledger, Names
from ottla.spark.sink.options import SinkOptions
from ottla.spark.workers import SettingsKey, settings_key
from ottla.types import TopicPartition

T = TypeVar("T")

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}
FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
BROKER_TIMEOUT_MS = 120_000
"""How long to wait for a broker: as long as a producer retries (delivery.timeout.ms)."""
TAIL = 64
"""How many of the last records of the decisions topic are read first. They nearly always have the newest decision."""

_loop = LoopThread()
_known: dict[SettingsKey, "Clients"] = {}


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on this process's loop and waits for it."""
    return _loop.call(coroutine)


def clients(options: SinkOptions) -> "Clients":
    """The clients of this process for brokers with these settings."""
    key = settings_key(options.kafka)
    if key not in _known:
        _known[key] = Clients(options)
    return _known[key]


def _after_fork() -> None:
    _loop.__init__()  # type: ignore[misc]
    _known.clear()


os.register_at_fork(after_in_child=_after_fork)


class Clients:
    """An admin client that stays connected, and the requests of a sink."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        settings = options.client_settings(AdminConfig)
        self.admin = AsyncAdmin({"default.api.timeout.ms": BROKER_TIMEOUT_MS, **settings})
        self._topics: set[str] = set()
        self._notes: AsyncProducer | None = None

    def notes(self) -> AsyncProducer:
        """A plain producer for records that may be duplicated."""
        if self._notes is None:
            settings = self.options.client_settings(AdminConfig)
            self._notes = AsyncProducer({**settings, "enable.idempotence": False, "acks": "all", "linger.ms": 0})
        return self._notes

    async def ensure_decisions(self, names: Names) -> None:
        """Creates the sink's decisions topic if it does not exist."""
        if names.decisions in self._topics:
            return
        found = await self._partitions_of(names.decisions)
        if not found:
            await self._create_decisions(names)
        elif found < LEDGER_PARTITIONS:
            raise SinkError(
                f"topic {names.decisions}, which holds the sink's decisions, has {found} partitions",
                f"It needs {LEDGER_PARTITIONS} partitions and cleanup.policy=compact.",
            )
        self._topics.add(names.decisions)

    async def _partitions_of(self, topic: str) -> int:
        """0 if there is no such topic. Checked before creating it, because not every user may create topics."""
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
            if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                return  # another task has created it
            text = f"topic {names.decisions}, which holds the sink's decisions, cannot be created: {error}"
            if error.retriable or is_unavailable(error):
                raise BrokersUnavailable(text, f"Are the brokers at {self.options.bootstrap} running?") from None
            raise SinkError(
                text,
                f"Allow it, or create the topic: {LEDGER_PARTITIONS} partitions, cleanup.policy=compact.",
            ) from None

    # --- the ledger ---------------------------------------------------------------------------------------

    async def read_ledger(self, names: Names, tasks: Iterable[int]) -> Ledger:
        """The committed entries of these tasks. The entry of an open transaction is not included."""
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
        """Makes rows and ledger entry visible atomically. Idempotent. Raises KafkaError if the part is lost."""
        await self.admin.commit_prepared(part.prepared(names), timeout_ms=BROKER_TIMEOUT_MS)

    async def abort_part(self, names: Names, part: Part) -> None:
        """Aborts a part. It is not an error if the transaction has ended already."""
        try:
            await self.admin.abort_prepared(part.prepared(names), timeout_ms=BROKER_TIMEOUT_MS)
        except KafkaError as error:
            if error.retriable:
                raise

    async def end_run(self, names: Names, run: str) -> None:
        """Records that this run was aborted, for those of its tasks that have not begun to write."""
        if not run:
            return  # Spark gave this run no id: the record would apply to every such run
        await self.admin.fence_producers([names.ended(run)])

    async def has_ended(self, names: Names, run: str) -> bool:
        """Whether this run was aborted.

        A task checks this after it has taken over its transactional id. An abort writes the record first and fences the
        ids second. So a task that starts before the fence is fenced, and one that starts later reads the record.
        """
        try:
            await self.admin.describe_transactions([names.ended(run)])
        except KafkaError as error:
            if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            return False
        return True

    async def fence(self, names: Names, tasks: Iterable[int]) -> None:
        """Aborts the open transactions of tasks that did not return, and fences them if they still run."""
        await self.admin.fence_producers([names.task(task) for task in tasks])

    async def abort_leftovers(self, names: Names, keep: set[int]) -> list[str]:
        """Aborts open transactions of earlier attempts of this sink, except those of the tasks in `keep`."""
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

    async def claim(self, names: Names, state: SinkState, run: str) -> None:
        """Records that this run begins to write, so that an older run can report why it has lost its parts."""
        claim = claimed(state.claim, Run(run, system_clock(), socket.gethostname()))
        if claim is not None:
            producer = self.notes()
            await (await producer.send(names.decisions, claim.to_bytes(), key=CLAIM_KEY, partition=0))

    async def check_still_owner(self, names: Names, run: str) -> None:
        """Raises NotOwner if another run has begun to write after this one."""
        check_claim((await self.read_state(names)).claim, run)

    # --- the decision -------------------------------------------------------------------------------------

    async def read_state(self, names: Names) -> SinkState:
        """The content of the decisions topic. Waits for a decision that is being written."""
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
        state, deadline = SinkState(), monotonic() + BROKER_TIMEOUT_MS / 1000
        while await consumer.position(partition) < end:
            for record in await consumer.poll(100):
                if record.offset < end:
                    state = state.replay(record.key, record.value)
            if monotonic() > deadline:
                raise BrokersUnavailable(
                    f"{partition} could not be read to its end within {BROKER_TIMEOUT_MS} ms",
                    f"Are the brokers at {self.options.bootstrap} running?",
                )
        return state

    async def _stable_end(self, names: Names, partition: TopicPartition) -> int:
        """The end of the topic, once no transaction is open there."""
        end = await self._offset(partition, LATEST)
        deadline = monotonic() + 0.5
        while await self._offset(partition, LATEST, "read_committed") < end:
            if monotonic() > deadline:
                # A driver died while it wrote a decision. Take over its id, like a new driver: that aborts it.
                async with driver_producer(self.options, names) as producer:
                    await producer.init_transactions(timeout_ms=BROKER_TIMEOUT_MS)
                deadline = monotonic() + 10
            await asyncio.sleep(0.01)
        return end

    async def _offset(self, partition: TopicPartition, at: int, isolation_level: str = "read_uncommitted") -> int:
        deadline = monotonic() + 10
        while True:
            try:
                found = await self.admin.list_offsets({partition: at}, isolation_level=isolation_level)
            except KafkaError as error:
                # A new topic is not known to every broker yet.
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
            "max.block.ms": BROKER_TIMEOUT_MS,
        }
    )
