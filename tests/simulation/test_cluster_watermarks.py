"""What a replica may do while its high watermark is old: as a new leader for readers, as a follower with its log.

Each story also runs with its rule switched off, and must fail then. Spec: B10, R7
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla import NewTopic, TopicPartition
from ottla.broker.handler_support.fetching.reading import Reading
from ottla.errors import ErrorCode, KafkaError
from ottla.log import partition_log
from ottla.log.cleaning import log_cleaning
from ottla.log.cleaning.compaction import choose_cleanable
from ottla.log.cleaning.retention import segments_to_delete
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.replication import replica_manager
from ottla.replication.broker_peers import BrokerPeers
from ottla.replication.replica import Replica
from ottla.testing.cluster_world import ClusterWorld, SimBroker
from ottla.types import INT64_MAX
from tests.support.seeds import each_seed

T0 = TopicPartition("t", 0)
LATEST = -1
FIXED_SEED = 1
"""For stories whose rule is switched off."""
Story = Callable[[ClusterWorld], Awaitable[None]]


@pytest.fixture(autouse=True)
def _late_watermarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers learn of a new high watermark with the next records only, or after the time that a fetch waits."""
    monkeypatch.setattr(replica_manager, "WATERMARK_DELAY_SECONDS", 60)


def run(story: Story, seed: int) -> None:
    ClusterWorld(
        seed,
        min_insync_replicas="2",
        replica_fetch_wait_max_ms="20000",
        replica_lag_time_max_ms="60000",
        log_retention_check_interval_ms="500",
        log_cleaner_backoff_ms="100",
    ).run(story)


def fails(story: Callable[[int], None]) -> None:
    with pytest.raises(AssertionError):
        story(FIXED_SEED)


async def create(world: ClusterWorld, **configs: str) -> None:
    """A topic with six committed records on three brokers. The followers know of five; the leader is broker 0."""
    configs = {name.replace("_", "."): value for name, value in configs.items()}
    async with world.admin() as admin:
        await admin.create_topics([NewTopic("t", assignments={0: (0, 1, 2)}, configs=configs)])
    await send(world, *(f"{number}" for number in range(5)))
    await asyncio.sleep(1)  # A small segment.ms makes the last record start a new segment.
    await send(world, "5")
    await world.until(lambda: all(log(world, each).high_watermark >= 5 for each in (0, 1, 2)), "they know of five")


async def send(world: ClusterWorld, *values: str, acks: str = "all") -> None:
    # Compaction keeps the last batch of an idempotent producer, even without records.
    async with world.producer(acks=acks, enable_idempotence=False) as producer:
        for value in values:
            await producer.send("t", value.encode(), key=b"k")


def log(world: ClusterWorld, broker_id: int) -> partition_log.PartitionLog:
    broker = world.brokers[broker_id].broker
    assert broker is not None
    return broker.services.replicas.log_directory.logs[T0]


async def leads(world: ClusterWorld, broker_id: int) -> None:
    def does() -> bool:
        broker = world.brokers[broker_id].broker
        replica = None if broker is None else broker.services.replicas.find("t", 0)
        return replica is not None and replica.is_leader

    await world.until(does, f"broker {broker_id} leads")


class Reader:
    """Asks one broker, and does not try again."""

    def __init__(self, world: ClusterWorld, broker: SimBroker) -> None:
        self.world, self.broker = world, broker
        self.peers = BrokerPeers(-1)
        self.peers.apply(world.image)

    async def list_offsets(self, timestamp: int, *, isolation_level: int = 0, version: int = 11) -> tuple[int, int]:
        """The error code and the offset."""
        partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[partition])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[topic])
        answer = await self.peers.send(
            self.broker.id, ApiKey.LIST_OFFSETS, lambda _: request, max_version=version, timeout_ms=5000
        )
        found = answer.message.topics[0].partitions[0]
        return found.error_code, found.offset

    async def fetch(self, offset: int) -> tuple[int, int, int]:
        """The error code, the high watermark and how many bytes."""
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topic = FetchRequest.FetchTopic(topic_id=self.world.image.topics["t"].topic_id, partitions=[partition])
        request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=[topic])
        answer = await self.peers.send(self.broker.id, ApiKey.FETCH, lambda _: request, timeout_ms=5000)
        data = answer.message.responses[0].partitions[0]
        return data.error_code, data.high_watermark, len(data.records or b"")


@each_seed(1)
def test_a_new_leader_with_an_old_high_watermark_keeps_readers_waiting(seed: int) -> None:
    """The dead leader has told readers that six records are committed. The new one knows of five, until it is asked."""

    async def story(world: ClusterWorld) -> None:
        await create(world)
        old, new, other = world.brokers.values()
        assert await Reader(world, old).list_offsets(LATEST) == (0, 6)
        world.part(new, other)
        old.kill()
        await leads(world, new.id)
        assert (log(world, new.id).high_watermark, log(world, new.id).log_end_offset) == (5, 6)
        reader = Reader(world, new)
        not_available = (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        assert await reader.list_offsets(LATEST) == not_available
        assert await reader.list_offsets(LATEST, isolation_level=1) == not_available
        assert await reader.list_offsets(INT64_MAX - 1) == not_available
        assert await reader.list_offsets(LATEST, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert await reader.list_offsets(-2) == (0, 0)
        assert await reader.fetch(6) == (0, 5, 0), "a reader that has everything waits"
        assert await reader.fetch(5) == (0, 5, 0), "what may not be committed is not read"
        assert (await reader.fetch(7))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
        world.heal()
        await world.until(lambda: log(world, new.id).high_watermark == 6, "the new leader knows the high watermark")
        assert await reader.list_offsets(LATEST) == (0, 6)
        assert (await reader.fetch(5))[:2] == (0, 6)

    run(story, seed)


def test_without_the_rule_a_new_leader_returns_an_old_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "is_high_watermark_current", lambda self, high_watermark: True)
    fails(test_a_new_leader_with_an_old_high_watermark_keeps_readers_waiting)


def test_without_the_rule_a_reader_above_the_high_watermark_is_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Reading._read  # noqa: SLF001

    def strict(self: Reading, topic: Any, asked: Any, *rest: Any) -> Any:
        replica = self.topics[topic].replicas[asked.partition]
        if asked.fetch_offset > self._end(replica):
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return read(self, topic, asked, *rest)

    monkeypatch.setattr(Reading, "_read", strict)
    fails(test_a_new_leader_with_an_old_high_watermark_keeps_readers_waiting)


@each_seed(1)
def test_a_follower_keeps_expired_records_that_may_not_be_committed(seed: int) -> None:
    """It is cut off, and its leader deletes everything. Retention on the follower ends at its own high watermark."""

    async def story(world: ClusterWorld) -> None:
        await create(world, segment_ms="100", retention_ms="5000", file_delete_delay_ms="0")
        leader, _, follower = world.brokers.values()
        for other in world.brokers.values():
            if other is not follower:
                world.part(follower, other)
        await asyncio.sleep(10)
        assert log(world, leader.id).log_start_offset == 6, "everything is old enough"
        mine = log(world, follower.id)
        assert (mine.log_start_offset, mine.high_watermark, mine.log_end_offset) == (5, 5, 6)
        world.heal()
        await world.until(lambda: log(world, follower.id).log_start_offset == 6, "the follower deletes the last one")

    run(story, seed)


def test_without_the_rule_a_follower_deletes_what_may_not_be_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = segments_to_delete
    monkeypatch.setattr(
        log_cleaning, "segments_to_delete", lambda *facts, **rest: decide(*facts, **rest | {"high_watermark": 1 << 60})
    )
    fails(test_a_follower_keeps_expired_records_that_may_not_be_committed)


@each_seed(1)
def test_a_follower_does_not_compact_what_may_not_be_committed(seed: int) -> None:
    """Otherwise the older value of the key is gone, and then the newer one too: the next leader does not have it."""

    async def story(world: ClusterWorld) -> None:
        await create(world, segment_ms="100", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        leader, next_leader, follower = world.brokers.values()
        world.part(leader, next_leader)
        await send(world, "not committed", acks="1")
        await world.until(lambda: log(world, follower.id).log_end_offset == 7, "one follower has the record")
        await asyncio.sleep(3)
        mine = log(world, follower.id)
        assert mine.high_watermark == 6
        assert mine.first_dirty_offset >= 5, "nothing was compacted"
        leader.kill()
        await leads(world, next_leader.id)
        await world.until(lambda: log(world, follower.id).log_end_offset == 6, "the record is dropped")
        next_leader.kill()
        await leads(world, follower.id)
        assert (await Reader(world, follower).fetch(0))[2] > 0, "no value of the key is left"

    run(story, seed)


def test_without_the_rule_a_follower_loses_the_value_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = choose_cleanable

    def reckless(finished: Any, config: Any, first_dirty_offset: int, _: int, now: int) -> Any:
        return choose(finished, config, first_dirty_offset, 1 << 60, now)

    monkeypatch.setattr(log_cleaning, "choose_cleanable", reckless)
    fails(test_a_follower_does_not_compact_what_may_not_be_committed)
