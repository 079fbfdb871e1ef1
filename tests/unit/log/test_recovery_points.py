"""Recovery trusts what is below a log's recovery point. The one on disk never covers records written after it."""

import threading

import pytest

from ottla.clock import MonotonicMs
from ottla.errors import KafkaError
from ottla.log.config import TopicConfig
from ottla.log.disk import Disk
from ottla.log.log_directory import LogDirectory
from ottla.log.partition_log import PartitionLog
from ottla.log.segments.scan import scan_batches
from ottla.protocol.records.record_batch import build_batch
from ottla.testing.sim_disk import SimPlatter
from ottla.testing.sim_loop import SimLoop
from ottla.types import TopicPartition
from tests.support.worlds.log_world import NOON

PARTITION = TopicPartition("orders", 0)
OTHER = TopicPartition("people", 0)
TOPIC_ID = bytes(range(16))


def opened(disk: Disk) -> LogDirectory:
    directory = LogDirectory.open("/data", disk=disk, clock=lambda: NOON, monotonic=lambda: MonotonicMs(NOON))
    directory.load()
    return directory


def append(log: PartitionLog, count: int, *, leader_epoch: int) -> None:
    for number in range(count):
        value = b"%d in epoch %d" % (number, leader_epoch) + bytes(300)
        log.append(build_batch([(NOON, b"k", value, ())]), leader_epoch=leader_epoch)


def checked(directory: LogDirectory) -> LogDirectory:
    """A directory with ten synced records, whose recovery point is on disk."""
    log = directory.create_log(PARTITION, TOPIC_ID, TopicConfig())
    append(log, 10, leader_epoch=1)
    log.advance_high_watermark(10)
    log.flush()
    directory.checkpoint()
    return directory


def valid_batches(log: PartitionLog) -> int:
    """How many batches the log has. CorruptBatch if the checksum of one is wrong."""
    return sum(
        1
        for segment in log.segments
        for _ in scan_batches(log.disk, segment.file.handle(), 0, segment.size, check_from_offset=0)
    )


def lose_power(platter: SimPlatter, directory: LogDirectory) -> LogDirectory:
    disk = directory.disk
    disk.detach()  # type: ignore[attr-defined]
    platter.power_loss()
    return opened(platter.disk())


@pytest.mark.parametrize("seed", range(20))
def test_records_after_a_truncation_are_checked_by_recovery(seed: int) -> None:
    """A follower truncates and is elected at once, before a checkpoint is written. Then the power fails."""
    platter = SimPlatter(SimLoop(seed))
    directory = checked(opened(platter.disk()))
    log = directory.logs[PARTITION]
    log.truncate_to(4)
    log.begin_leader_epoch(2)
    append(log, 6, leader_epoch=2)
    again = lose_power(platter, directory).logs[PARTITION]
    assert valid_batches(again) == again.log_end_offset >= 4


@pytest.mark.parametrize("seed", range(40))
def test_records_of_a_topic_created_again_are_checked_by_recovery(seed: int) -> None:
    platter = SimPlatter(SimLoop(seed))
    directory = checked(opened(platter.disk()))
    directory.delete_log(PARTITION)
    log = directory.create_log(PARTITION, TOPIC_ID[::-1], TopicConfig())
    append(log, 6, leader_epoch=0)
    directory.disk.sync_directory("/data")
    again = lose_power(platter, directory).logs[PARTITION]
    assert valid_batches(again) == again.log_end_offset


def test_a_topic_created_again_does_not_start_where_the_old_one_did() -> None:
    """Its records would be deleted when the broker starts again, as records before the log's start."""
    platter = SimPlatter(SimLoop(1))
    directory = checked(opened(platter.disk()))
    directory.logs[PARTITION].delete_records_before(8)
    directory.checkpoint()
    directory.delete_log(PARTITION)
    append(directory.create_log(PARTITION, TOPIC_ID[::-1], TopicConfig()), 5, leader_epoch=0)
    directory.disk.detach()  # type: ignore[attr-defined]
    again = opened(platter.disk()).logs[PARTITION]
    assert (again.log_start_offset, again.log_end_offset) == (0, 5)


def test_a_checkpoint_planned_before_a_truncation_does_not_undo_the_new_recovery_point() -> None:
    platter = SimPlatter(SimLoop(1))
    directory = checked(opened(platter.disk()))
    log = directory.logs[PARTITION]
    other = directory.create_log(OTHER, TOPIC_ID, TopicConfig())
    append(other, 3, leader_epoch=1)
    other.flush()
    write = directory.plan_checkpoint()
    log.truncate_to(4)
    append(log, 2, leader_epoch=2)
    write()
    assert points(directory) == {"orders 0": 4, "people 0": 3}
    log.flush()
    directory.checkpoint()
    assert points(directory) == {"orders 0": 6, "people 0": 3}


def points(directory: LogDirectory) -> dict[str, int]:
    lines = directory.disk.read_file("/data/recovery-point-offset-checkpoint").decode().splitlines()[2:]
    return {partition: int(offset) for partition, _, offset in (line.rpartition(" ") for line in lines)}


def test_an_append_waits_for_a_checkpoint_that_is_being_written() -> None:
    platter = SimPlatter(SimLoop(1))
    directory = checked(opened(platter.disk()))
    log = directory.logs[PARTITION]
    log.advance_high_watermark(10)
    append(log, 1, leader_epoch=1)
    log.flush()
    write = directory.plan_checkpoint()
    log.truncate_to(4)
    writing = threading.Thread(target=write)
    writing.start()
    append(log, 1, leader_epoch=2)
    writing.join()
    assert points(directory) == {"orders 0": 4}


def test_without_a_new_recovery_point_nothing_is_appended_after_a_truncation() -> None:
    platter = SimPlatter(SimLoop(1))
    directory = checked(opened(platter.disk()))
    log = directory.logs[PARTITION]
    log.truncate_to(4)
    platter.fail_next("write_file")
    with pytest.raises(KafkaError, match="recovery point"):
        append(log, 1, leader_epoch=2)
    assert log.log_end_offset == 4
    append(log, 1, leader_epoch=2)
    assert (log.log_end_offset, points(directory)) == (5, {"orders 0": 4})


def test_an_append_writes_no_recovery_point_if_a_checkpoint_has_done_so() -> None:
    platter = SimPlatter(SimLoop(1))
    directory = checked(opened(platter.disk()))
    log = directory.logs[PARTITION]
    log.truncate_to(4)
    directory.checkpoint()
    checkpointed: list[TopicPartition] = []
    log.store.checkpoint_truncation = checkpointed.append
    append(log, 1, leader_epoch=2)
    assert (log.log_end_offset, checkpointed) == (5, [])
    log.truncate_to(4)
    append(log, 1, leader_epoch=3)
    assert checkpointed == [PARTITION], "the checkpoint is older than this truncation"
