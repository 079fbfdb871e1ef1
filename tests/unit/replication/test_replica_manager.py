"""The replica manager: replicas follow the image, requests wait for commits, timers run only when needed."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.log.config import TopicConfig
from ottla.log.partition_log import Origin
from ottla.metadata.image import NO_IMAGE, TopicImage
from ottla.protocol.records.record_batch import Codec, build_batch, iter_batches, read_records
from ottla.replication.config import ReplicaConfig
from ottla.testing.sim_disk import SimDisk, SimPlatter
from ottla.testing.sim_loop import SimLoop
from ottla.types import TopicPartition
from tests.support.wire.damaged import damaged
from tests.support.worlds.data_world import DataWorld, batch_of, topic_id_of

if TYPE_CHECKING:
    import asyncio

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def world(tmp_path: Any) -> Iterator[DataWorld]:
    world = DataWorld(str(tmp_path))
    yield world
    world.close()


@pytest.fixture
def platter() -> SimPlatter:
    """A simulated disk, for tests that make it fail or cut its power."""
    return SimPlatter(SimLoop())


def directories(world: DataWorld) -> list[str]:
    return sorted(name for name in os.listdir(world.directory) if os.path.isdir(f"{world.directory}/{name}"))


# -- the image --


def test_an_image_creates_the_logs_assigned_to_this_broker(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    world.topic("elsewhere", replicas=(1, 2))
    assert directories(world) == ["orders-0", "orders-1"]
    assert [str(replica.topic_partition) for replica in world.replicas.replicas()] == ["orders-0", "orders-1"]


def test_new_partitions_are_added_to_the_existing_ones(world: DataWorld) -> None:
    world.topic("orders", partitions=1)
    world.append("orders", "kept")
    before = world.replica("orders", 0)
    world.topic("orders", partitions=3)
    assert world.replica("orders", 0) is before
    assert directories(world) == ["orders-0", "orders-1", "orders-2"]


def test_unchanged_topics_are_skipped(world: DataWorld) -> None:
    asked: list[str] = []
    topic_config = world.replicas.topic_config

    def noting(topic: TopicImage) -> TopicConfig:
        asked.append(topic.name)
        return topic_config(topic)

    world.replicas.topic_config = noting
    for name in ("a", "b", "c"):
        world.topic(name)
    asked.clear()
    world.topic("b", configs={"retention.ms": "5"})
    assert asked == ["b"]


def test_changed_settings_are_applied_to_the_log(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1), isr=(0,))
    world.topic("orders", replicas=(0, 1), isr=(0,), configs={"retention.ms": "5", "min.insync.replicas": "2"})
    assert world.log("orders").config.retention_ms == 5
    with pytest.raises(KafkaError) as caught:
        world.replicas.append(ORDERS, batch_of("a"), acks=-1)
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_deleted_topic_is_removed_immediately_and_its_files_after_the_delay(world: DataWorld) -> None:
    world.topic("orders", configs={"file.delete.delay.ms": "60000"})
    world.append("orders", "a")
    world.delete_topic("orders")
    with pytest.raises(KafkaError) as caught:
        world.replicas.leader(ORDERS)
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (renamed,) = directories(world)
    assert renamed.startswith("orders-0.")
    assert renamed.endswith("-delete")
    world.wait(59_000)
    assert directories(world) == [renamed]
    world.wait(2_000)
    assert directories(world) == []


def test_files_of_deleted_topics_are_removed_each_after_its_own_delay(world: DataWorld) -> None:
    world.topic("slow", configs={"file.delete.delay.ms": "60000"})
    world.topic("quick", partitions=100, configs={"file.delete.delay.ms": "1000"})
    world.delete_topic("slow")
    world.delete_topic("quick")
    world.wait(2_000)
    left = [name for name in os.listdir(world.directory) if name.endswith("-delete")]
    assert [name.partition("-")[0] for name in left] == ["slow"]
    world.wait(60_000)
    assert not any(name.endswith("-delete") for name in os.listdir(world.directory))


def test_deleted_partitions_that_an_earlier_run_left_over_are_removed_in_the_background(world: DataWorld) -> None:
    world.topic("orders", partitions=100)
    world.delete_topic("orders")
    world.restart()
    world.wait(1_000)
    assert not any(name.endswith("-delete") for name in os.listdir(world.directory))


def test_a_topic_can_be_recreated_before_its_old_files_are_removed(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "old")
    world.topic("orders", generation=1)
    assert world.log("orders").log_end_offset == 0
    assert world.log("orders").topic_id == topic_id_of("orders", 1)
    world.append("orders", "new")
    world.wait(61_000)
    assert directories(world) == ["orders-0"]
    assert world.log("orders").log_end_offset == 1


def test_a_topic_recreated_while_the_broker_was_down_starts_empty(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "old")
    world.stop()
    topic = world.image.topics["orders"]._replace(topic_id=topic_id_of("orders", 1))
    object.__setattr__(world.image, "topics", {"orders": topic})
    world.start()
    assert world.log("orders").log_end_offset == 0


def test_a_stray_directory_is_renamed_and_never_deleted(world: DataWorld) -> None:
    world.topic("orders")
    world.topic("kept")
    world.append("orders", "precious")
    world.stop()
    topics = dict(world.image.topics)
    del topics["orders"]
    object.__setattr__(world.image, "topics", topics)
    world.start()
    world.wait(3_600_000)
    kept, aside = directories(world)
    assert kept == "kept-0"
    assert aside.startswith("orders-0.")
    assert aside.endswith("-stray")
    assert os.path.getsize(f"{world.directory}/{aside}/{0:020d}.log") == len(batch_of("precious"))
    world.restart()
    assert directories(world) == [kept, aside], "and it is not loaded either"


def test_the_initial_empty_image_makes_no_directory_a_stray(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "precious")
    world.stop()
    image, world.image = world.image, NO_IMAGE
    world.start()
    world.publish(image)
    assert world.log("orders").log_end_offset == 1


def test_a_partition_moved_to_other_brokers_is_removed_here(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    world.change_partitions(lambda p: p._replace(replicas=(1,), leader=1, isr=(1,)) if p.index == 0 else p)
    assert world.replicas.find("orders", 0) is None
    assert world.replicas.find("orders", 1) is not None
    with pytest.raises(KafkaError) as caught:
        world.replicas.leader(ORDERS)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_restart_keeps_records_and_starts_a_new_epoch_after_them(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "a", "b")
    world.restart()
    log = world.log("orders")
    assert (log.log_end_offset, log.high_watermark) == (2, 2)
    world.append("orders", "c")
    assert log.leader_epochs.entries() == [(0, 0), (1, 2)]


def test_a_log_that_cannot_be_opened_is_offline_and_the_others_work(platter: SimPlatter) -> None:
    world = DataWorld("/data", disk=platter.disk(), loop=platter.loop)
    world.topic("good")
    platter.fail_next("open")
    world.topic("orders")
    with pytest.raises(KafkaError) as caught:
        world.replicas.leader(ORDERS)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    world.append("good", "a")
    world.wait(2_000)
    assert world.replicas.leader(ORDERS).log.log_end_offset == 0, "it is opened again without a restart"


# -- waiting for a commit --


def test_waiting_for_a_committed_offset_returns_immediately(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "a")
    world.run(committed(world, 1, 1_000))
    assert world.loop.time() == 0


async def committed(world: DataWorld, next_offset: int, timeout_ms: int) -> None:
    """Returns when all below `next_offset` is committed."""
    outcome: asyncio.Future[list[ErrorCode]] = world.loop.create_future()
    world.replicas.waits.when_committed([(world.replica("orders"), next_offset)], timeout_ms, outcome.set_result)
    (code,) = await outcome
    if code != ErrorCode.NONE:
        raise KafkaError(code)


def waiting_for(world: DataWorld, next_offset: int, timeout_ms: int = 1_000) -> "asyncio.Task[None]":
    task = world.loop.create_task(committed(world, next_offset, timeout_ms))
    world.wait()
    assert not task.done()
    return task


def fails_with(task: "asyncio.Task[None]") -> ErrorCode:
    error = task.exception()
    assert isinstance(error, KafkaError)
    return error.code


def test_a_wait_ends_when_the_offset_is_committed(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a")
    task = waiting_for(world, 1)
    world.replicas.follower_fetched(world.replica("orders"), 1, 1, 0)
    world.wait()
    assert task.done()
    assert task.exception() is None


def test_waiting_for_a_commit_times_out(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a")
    task = waiting_for(world, 1, timeout_ms=400)
    world.wait(401)
    assert fails_with(task) == ErrorCode.REQUEST_TIMED_OUT
    assert len(world.replica("orders").waits.commits) == 0  # type: ignore[union-attr]


def test_waits_fail_when_leadership_is_lost(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a")
    task = waiting_for(world, 1)
    world.change_partitions(lambda p: p._replace(leader=1, leader_epoch=1))
    world.wait()
    assert fails_with(task) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_stopping_ends_all_waits(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a")
    task = waiting_for(world, 1, timeout_ms=600_000)
    world.stop()
    assert fails_with(task) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.loop.time() < 10


# -- background work --


def timers(world: DataWorld) -> int:
    scheduled: list[asyncio.TimerHandle] = world.loop._scheduled  # type: ignore[attr-defined]  # noqa: SLF001
    return sum(not timer.cancelled() for timer in scheduled)


def test_a_thousand_idle_partitions_need_one_timer(world: DataWorld) -> None:
    world.topic("many", partitions=1_000)
    world.wait(30_000)
    assert timers(world) == 1, "the next retention check"


def test_checkpoints_are_written_only_some_seconds_after_a_change(world: DataWorld) -> None:
    world.topic("orders")
    world.wait(10_000)
    path = f"{world.directory}/replication-offset-checkpoint"
    written = []
    plan = world.log_directory.plan_checkpoint
    world.log_directory.plan_checkpoint = lambda *changed: (written.append(1), plan(*changed))[1]  # type: ignore[method-assign,func-returns-value]
    world.wait(60_000)
    assert written == []
    for value in "abc":
        world.append("orders", value)
    world.wait(6_000)
    assert written == [1]
    with open(path) as file:
        assert "orders 0 3" in file.read()


def test_a_failed_checkpoint_is_retried_after_the_next_change(platter: SimPlatter) -> None:
    world = DataWorld("/data", disk=platter.disk(), loop=platter.loop)
    world.topic("orders")
    world.wait(10_000)
    world.append("orders", "a")
    platter.fail_next("write_file")
    world.wait(10_000)
    world.append("orders", "b")
    world.wait(10_000)
    assert b"orders 0 2" in bytes(platter.files["/data/replication-offset-checkpoint"].content)


def test_retention_runs_at_its_check_interval(world: DataWorld) -> None:
    world.topic("orders", configs={"retention.ms": "1000"})
    world.append("orders", "old", timestamp=world.clock())
    world.log("orders").roll()
    world.append("orders", "new", timestamp=world.clock() + 1_000_000)
    world.wait(299_000)
    assert world.log("orders").log_start_offset == 0
    world.wait(2_000)
    assert world.log("orders").log_start_offset == 1


def test_retention_checks_every_one_of_many_logs(world: DataWorld) -> None:
    world.topic("many", partitions=250, configs={"retention.ms": "1000"})
    for partition in range(250):
        world.append("many", "old", partition=partition, timestamp=world.clock() - 5_000)
    world.wait(301_000)
    assert all(replica.log.log_start_offset == 1 for replica in world.replicas.replicas())


def test_idle_producers_expire(tmp_path: Any) -> None:
    config = ReplicaConfig(producer_id_expiration_ms=1_000_000)
    world = DataWorld(str(tmp_path), config=config)
    world.topic("orders")
    world.append("orders", "a", producer_id=7, producer_epoch=0, base_sequence=0)
    world.wait(900_000)
    assert len(world.log("orders").producers) == 1
    world.wait(1_000_000)
    assert len(world.log("orders").producers) == 0


def test_flush_messages_syncs_after_that_many_records(world: DataWorld) -> None:
    world.topic("orders", configs={"flush.messages": "3"})
    world.append("orders", "a", "b")
    world.wait(100)
    assert world.log("orders").flushed_offset == 0
    world.append("orders", "c")
    world.wait(100)
    assert world.log("orders").flushed_offset == 3


def test_flush_ms_syncs_after_that_time(world: DataWorld) -> None:
    world.topic("orders", configs={"flush.ms": "5000"})
    world.append("orders", "a")
    world.wait(4_900)
    assert world.log("orders").flushed_offset == 0
    world.wait(200)
    assert world.log("orders").flushed_offset == 1
    world.wait(60_000)
    assert timers(world) == 1, "nothing is due while nothing is written"


def test_finished_segments_are_synced_soon(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "a")
    world.log("orders").roll()
    world.append("orders", "b")
    world.wait(6_000)
    assert world.log("orders").flushed_offset >= 1
    world.append("orders", "c")
    world.wait(6_000)
    assert world.log("orders").flushed_offset < 3, "the active segment is left to the operating system"


def keyed(*pairs: str) -> bytes:
    return build_batch([(1_700_000_000_000, pair[0].encode(), pair[1:].encode() or None, ()) for pair in pairs])


def write(world: DataWorld, topic: str, *pairs: str, partition: int = 0) -> None:
    async def append() -> None:
        world.replicas.append(TopicPartition(topic, partition), keyed(*pairs), acks=1)

    world.run(append())


def contents(world: DataWorld, topic: str, partition: int = 0) -> list[str]:
    log = world.log(topic, partition)
    found, offset = [], log.log_start_offset
    while data := log.read(offset, 1 << 20, upper_bound=log.high_watermark):
        for position, header in iter_batches(data):
            found += [(r.key or b"").decode() + (r.value or b"").decode() for r in read_records(data, position, header)]
            offset = header.next_offset
    return found


COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


def test_compaction_keeps_the_last_record_of_each_key(world: DataWorld) -> None:
    world.topic("latest", partitions=3, configs=COMPACTED)
    for partition in range(3):
        write(world, "latest", "a1", "b1", partition=partition)
        write(world, "latest", "a2", partition=partition)
        world.log("latest", partition).roll()
        write(world, "latest", "c1", partition=partition)
    world.wait(20_000)
    for partition in range(3):
        assert contents(world, "latest", partition) == ["b1", "a2", "c1"]
    world.wait(400_000)
    assert timers(world) == 1, "a clean log is not compacted"


def test_compaction_can_be_disabled(tmp_path: Any) -> None:
    world = DataWorld(str(tmp_path), config=ReplicaConfig(log_cleaner_enable=False))
    world.topic("latest", configs=COMPACTED)
    write(world, "latest", "a1", "a2")
    world.log("latest").roll()
    world.wait(400_000)
    assert contents(world, "latest") == ["a1", "a2"]


def test_a_topic_that_becomes_compacted_is_compacted(world: DataWorld) -> None:
    world.topic("latest")
    write(world, "latest", "a1", "a2")
    world.log("latest").roll()
    world.wait(20_000)
    assert contents(world, "latest") == ["a1", "a2"]
    world.topic("latest", configs=COMPACTED)
    world.wait(20_000)
    assert contents(world, "latest") == ["a2"]


def test_a_failed_compaction_affects_neither_its_log_nor_others(platter: SimPlatter) -> None:
    world = DataWorld("/data", disk=platter.disk(), loop=platter.loop)
    world.topic("latest", partitions=2, configs=COMPACTED)
    for partition in range(2):
        write(world, "latest", "a1", "a2", partition=partition)
        world.log("latest", partition).roll()
    world.wait(14_000)
    platter.fail_next("pread", times=1)
    world.wait(10_000)
    compacted = [contents(world, "latest", partition) for partition in range(2)]
    assert sorted(compacted) == [["a1", "a2"], ["a2"]]
    world.wait(400_000)
    assert [contents(world, "latest", partition) for partition in range(2)] == [["a2"], ["a2"]]


def test_a_failed_sync_in_a_compaction_rejects_further_writes(platter: SimPlatter) -> None:
    """A failed fsync is final: the kernel may have dropped accepted records."""

    class Disk(SimDisk):
        def sync_directory(self, path: str) -> None:
            if path.endswith("latest-0"):
                self._fail_if_asked("sync_directory of latest")
            super().sync_directory(path)

    world = DataWorld("/data", disk=Disk(platter), loop=platter.loop)
    world.topic("latest", configs=COMPACTED)
    write(world, "latest", "a1", "a2")
    world.log("latest").roll()
    world.wait(14_000)
    platter.fail_next("sync_directory of latest")
    world.wait(10_000)
    assert contents(world, "latest") == ["a1", "a2"]
    with pytest.raises(KafkaError) as caught:
        write(world, "latest", "a3")
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_log_with_a_damaged_batch_is_not_compacted_and_loses_nothing(
    world: DataWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Spec: R8. An older version stored the batch; the other logs are compacted."""
    world.topic("latest", partitions=2, configs=COMPACTED)
    write(world, "latest", "a1", "a2")
    bad = damaged(Codec.NONE)["a key longer than its record"]

    async def store() -> None:
        world.replicas.append(TopicPartition("latest", 0), bad, acks=1, origin=Origin.COORDINATOR)

    world.loop.run_until_complete(store())
    write(world, "latest", "a1", "a2", partition=1)
    for partition in range(2):
        world.log("latest", partition).roll()
        write(world, "latest", "c1", partition=partition)
    size = world.log("latest").size_bytes
    world.wait(400_000)
    assert contents(world, "latest", 1) == ["a2", "c1"]
    assert world.log("latest").size_bytes == size
    assert caplog.text.count("partition latest-0: compaction failed, nothing was changed") == 1, "not again and again"
    assert "the batch at offset 2 cannot be read: " in caplog.text
    world.log("latest").delete_records_before(3)
    write(world, "latest", "c2")
    world.log("latest").roll()
    write(world, "latest", "d1")
    world.wait(400_000)
    assert contents(world, "latest") == ["c2", "d1"], "the batch was deleted"


def test_a_topic_can_be_deleted_while_it_is_compacted(world: DataWorld) -> None:
    world.topic("latest", configs=COMPACTED | {"file.delete.delay.ms": "0"})
    world.topic("other", configs=COMPACTED)
    for topic in ("latest", "other"):
        write(world, topic, "a1", "a2")
        world.log(topic).roll()
    world.loop.executor_delay_ms = (500, 500)
    world.wait(15_100)
    world.delete_topic("latest")
    world.wait(20_000)
    assert directories(world) == ["other-0"]
    assert contents(world, "other") == ["a2"]


def test_stopping_syncs_everything_and_writes_the_clean_shutdown_file(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "a")
    world.stop()
    assert os.path.exists(f"{world.directory}/.kafka_cleanshutdown")
    world.start()
    assert world.log_directory.was_clean


def test_a_topic_can_be_deleted_during_a_sync(tmp_path: Any) -> None:
    world = DataWorld(str(tmp_path), config=ReplicaConfig(flush_before_ack=True))
    world.topic("orders", configs={"file.delete.delay.ms": "0"})
    world.loop.executor_delay_ms = (50, 50)
    world.append("orders", "a")
    world.wait(1)
    world.delete_topic("orders")
    world.wait(500)
    assert directories(world) == []


def test_flush_before_ack_syncs_existing_records_after_a_restart(platter: SimPlatter) -> None:
    world = DataWorld("/data", disk=platter.disk(), loop=platter.loop)
    world.topic("orders")
    world.append("orders", "a", "b")
    world.disk.detach()  # type: ignore[attr-defined]
    world = DataWorld(
        "/data",
        disk=platter.disk(),
        loop=SimLoop(1),
        config=ReplicaConfig(flush_before_ack=True),
        image=world.image,
    )
    world.wait(100)
    log = world.log("orders")
    assert (log.log_end_offset, log.flushed_offset, log.high_watermark) == (2, 2, 2)
