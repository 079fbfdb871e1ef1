"""What a follower does with its log: watermarks of the leader, truncation, and starting over."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.records.record_batch import stamp
from ottla.replication.follower_logs import FollowerLogs
from tests.support.worlds.data_world import DataWorld, batch_of

if TYPE_CHECKING:
    from ottla.replication.replica import Replica


class Follower:
    """Broker 0 follows broker 1."""

    def __init__(self, world: DataWorld) -> None:
        self.world = world
        world.topic("orders", replicas=(1, 0), leader_epoch=3)
        self.replica: Replica = world.replica("orders")
        self.log = self.replica.log
        self.logs = FollowerLogs(world.replicas.maintenance)

    def receives(self, *values: str) -> None:
        for value in values:
            batch = bytearray(batch_of(value))
            stamp(batch, self.log.log_end_offset, 3)
            self.logs.append(self.replica, batch)


@pytest.fixture
def follower(tmp_path: Any) -> Iterator[Follower]:
    world = DataWorld(str(tmp_path))
    yield Follower(world)
    world.close()


def test_the_high_watermark_is_the_leaders_but_at_most_the_end_of_the_log(follower: Follower) -> None:
    follower.receives("a", "b")
    assert not follower.logs.follow_watermarks(follower.replica, 1, 0)
    assert follower.log.high_watermark == 1
    follower.logs.follow_watermarks(follower.replica, 99, 0)
    assert follower.log.high_watermark == 2


def test_a_new_leaders_older_high_watermark_changes_nothing(follower: Follower) -> None:
    follower.receives("a", "b")
    follower.logs.follow_watermarks(follower.replica, 2, 0)
    follower.logs.follow_watermarks(follower.replica, 1, 0)
    assert follower.log.high_watermark == 2


def test_the_log_start_follows_the_leaders_up_to_the_high_watermark(follower: Follower) -> None:
    """KAFKA-7104: what is not known to be committed is not deleted."""
    follower.receives("a", "b", "c")
    assert follower.logs.follow_watermarks(follower.replica, 2, 3)
    assert follower.log.log_start_offset == 2
    assert not follower.logs.follow_watermarks(follower.replica, 2, 3), "nothing new for the leader"
    assert follower.logs.follow_watermarks(follower.replica, 3, 3)
    assert follower.log.log_start_offset == 3


def test_truncation_wants_a_checkpoint_only_if_records_were_removed(follower: Follower) -> None:
    """Recovery trusts what is below the recovery point on disk."""
    follower.receives("a", "b", "c")
    assert not follower.logs.truncate(follower.replica, 3)
    assert follower.logs.truncate(follower.replica, 1)
    assert follower.log.log_end_offset == 1


def test_removing_committed_records_is_reported_as_an_error(
    follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    """Only an unclean election, or lost data, can cause that."""
    follower.receives("a", "b", "c")
    follower.logs.follow_watermarks(follower.replica, 2, 0)
    with caplog.at_level(logging.INFO, "ottla.replication"):
        follower.logs.truncate(follower.replica, 2)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    caplog.clear()
    with caplog.at_level(logging.INFO, "ottla.replication"):
        follower.logs.truncate(follower.replica, 1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_starting_over_leaves_an_empty_log_where_the_leaders_starts(follower: Follower) -> None:
    follower.receives("a", "b")
    follower.logs.start_over(follower.replica, 10)
    log = follower.log
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (10, 10, 10)
    follower.receives("c")
    assert log.log_end_offset == 11


def test_a_log_whose_storage_failed_takes_nothing(follower: Follower) -> None:
    follower.replica.storage_failure = "sync failed"
    with pytest.raises(KafkaError) as refused:
        follower.receives("a")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert follower.log.log_end_offset == 0


def test_a_truncated_log_is_checkpointed_before_it_grows_again(follower: Follower) -> None:
    """Otherwise the recovery point on disk would cover records that were written later, and were never checked."""
    world = follower.world
    follower.receives("a", "b", "c")
    follower.log.flush()
    assert world.run(world.replicas.maintenance.checkpoint_now([follower.replica]))
    follower.logs.truncate(follower.replica, 1)
    assert world.run(world.replicas.maintenance.checkpoint_now([follower.replica]))
    with open(f"{world.directory}/recovery-point-offset-checkpoint") as file:
        assert "orders 0 1" in file.read().splitlines()
