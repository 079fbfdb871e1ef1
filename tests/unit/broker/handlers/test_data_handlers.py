"""DeleteRecords, OffsetForLeaderEpoch, DescribeLogDirs, DescribeProducers and InitProducerId."""

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.broker.settings.config import BrokerConfig, Settings
from ottla.errors import ErrorCode
from ottla.metadata.follower import MetadataFollower
from ottla.metadata.image import BrokerRegistration
from ottla.protocol.messages.delete_records import DeleteRecordsRequest
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.describe_producers import DescribeProducersRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from ottla.testing.memory_store import MemoryStore, MemoryTree
from tests.support.worlds.data_world import DataWorld, batch_of, only_partition


@pytest.fixture
def world(tmp_path: Any) -> Iterator[DataWorld]:
    world = DataWorld(str(tmp_path))
    yield world
    world.close()


# -- DeleteRecords --


def delete(world: DataWorld, topic: str, offset: int, version: int = 2) -> Any:
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[partition])]
    return only_partition(world.ask(DeleteRecordsRequest(topics=topics, timeout_ms=1_000), version))


@pytest.mark.parametrize("version", range(3))
def test_records_below_an_offset_are_deleted(world: DataWorld, version: int) -> None:
    world.topic("orders")
    world.append("orders", "a", "b", "c")
    answer = delete(world, "orders", 2, version)
    assert (answer.error_code, answer.low_watermark) == (0, 2)
    assert world.log("orders").log_start_offset == 2


def test_minus_one_deletes_up_to_the_high_watermark(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "a", "b", "c")
    assert delete(world, "orders", -1).low_watermark == 3


def test_deleting_before_the_log_start_changes_nothing(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "a", "b", "c")
    delete(world, "orders", 2)
    assert delete(world, "orders", 1).low_watermark == 2


@pytest.mark.parametrize("offset", [4, 2**63 - 1, -2])
def test_deleting_up_to_an_offset_outside_the_log_is_out_of_range(world: DataWorld, offset: int) -> None:
    world.topic("orders")
    world.append("orders", "a", "b", "c")
    answer = delete(world, "orders", offset)
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert world.log("orders").log_start_offset == 0


def test_records_of_compacted_and_internal_topics_are_not_deleted(world: DataWorld) -> None:
    world.topic("latest", configs={"cleanup.policy": "compact"})
    world.topic("both", configs={"cleanup.policy": "compact,delete"})
    world.topic("__consumer_offsets")
    assert delete(world, "latest", -1).error_code == ErrorCode.POLICY_VIOLATION
    assert delete(world, "both", -1).error_code == 0
    assert delete(world, "__consumer_offsets", -1).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_deleting_from_an_unknown_partition_or_one_of_another_broker(world: DataWorld) -> None:
    world.topic("followed", replicas=(0, 1), leader=1)
    assert delete(world, "nowhere", -1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(world, "followed", -1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_deleted_records_stay_deleted_after_a_restart(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "a", "b", "c")
    delete(world, "orders", 2)
    world.restart()
    assert world.log("orders").log_start_offset == 2


# -- OffsetForLeaderEpoch --


def end_of_epoch(world: DataWorld, epoch: int, *, current: int = -1, topic: str = "orders", version: int = 4) -> Any:
    partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=0, leader_epoch=epoch, current_leader_epoch=current
    )
    topics = [OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[partition])]
    return only_partition(world.ask(OffsetForLeaderEpochRequest(topics=topics), version))


@pytest.fixture
def epochs(world: DataWorld) -> DataWorld:
    """Offsets 0-2 in epoch 2, 3 in epoch 5, and epoch 6 has begun without a record."""
    world.topic("orders", leader_epoch=2)
    world.append("orders", "a", "b", "c")
    world.change_partitions(lambda p: p._replace(leader_epoch=5))
    world.append("orders", "d")
    world.change_partitions(lambda p: p._replace(leader_epoch=6))
    return world


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(2, (2, 3)), (3, (2, 3)), (5, (5, 4)), (6, (6, 4)), (1, (1, 0)), (7, (-1, -1)), (-1, (-1, -1))],
)
@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_epoch_ends_where_the_next_began(epochs: DataWorld, epoch: int, answer: Any, version: int) -> None:
    found = end_of_epoch(epochs, epoch, version=version)
    assert (found.error_code, (found.leader_epoch, found.end_offset)) == (0, answer)


@pytest.mark.parametrize(
    ("current", "code"), [(5, ErrorCode.FENCED_LEADER_EPOCH), (7, ErrorCode.UNKNOWN_LEADER_EPOCH), (6, 0)]
)
def test_asking_for_an_epoch_requires_the_current_leader_epoch(epochs: DataWorld, current: int, code: int) -> None:
    assert end_of_epoch(epochs, 5, current=current).error_code == code


def test_epochs_of_unknown_partitions(world: DataWorld) -> None:
    found = end_of_epoch(world, 0, topic="nowhere")
    assert (found.error_code, found.end_offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


# -- DescribeLogDirs --


@pytest.mark.parametrize("version", range(1, 6))
def test_the_directory_and_every_partition_in_it_are_described(world: DataWorld, version: int) -> None:
    world.topic("orders", partitions=2)
    world.topic("elsewhere", replicas=(1,))
    world.append("orders", "a", "b")
    answer = world.ask(DescribeLogDirsRequest(topics=None), version)
    (directory,) = answer.results
    assert directory.log_dir == world.directory
    assert directory.error_code == 0
    (topic,) = directory.topics
    assert topic.name == "orders"
    sizes = [(p.partition_index, p.partition_size, p.offset_lag, p.is_future_key) for p in topic.partitions]
    assert sizes == [(0, len(batch_of("a", "b")), 0, False), (1, 0, 0, False)]
    assert (directory.total_bytes >= directory.usable_bytes > 0) == (version >= 4)


def test_only_the_requested_partitions_are_described(world: DataWorld) -> None:
    world.topic("orders", partitions=3)
    world.topic("other")
    topics = [
        DescribeLogDirsRequest.DescribableLogDirTopic(topic="orders", partitions=[2, 9, 2]),
        DescribeLogDirsRequest.DescribableLogDirTopic(topic="nowhere", partitions=[0]),
    ]
    (directory,) = world.ask(DescribeLogDirsRequest(topics=topics), 4).results
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in directory.topics] == [("orders", [2])]


def test_the_offset_lag_counts_uncommitted_records(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a", "b")
    (directory,) = world.ask(DescribeLogDirsRequest(topics=None), 4).results
    assert directory.topics[0].partitions[0].offset_lag == 2


# -- DescribeProducers --


def producers_of(world: DataWorld, topic: str) -> Any:
    topics = [DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])]
    return only_partition(world.ask(DescribeProducersRequest(topics=topics), 0))


def test_the_producers_of_a_partition_are_described(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "anonymous")
    world.append("orders", "a", "b", timestamp=77, producer_id=7, producer_epoch=2, base_sequence=0)
    world.append("orders", "c", timestamp=88, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    answer = producers_of(world, "orders")
    assert answer.error_code == 0
    described = [
        (p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp, p.current_txn_start_offset)
        for p in answer.active_producers
    ]
    assert described == [(7, 2, 1, 77, -1), (8, 0, 0, 88, 3)]


def test_producers_of_a_partition_of_another_broker_are_unknown(world: DataWorld) -> None:
    world.topic("followed", replicas=(0, 1), leader=1)
    assert producers_of(world, "followed").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert producers_of(world, "nowhere").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- InitProducerId --


@pytest.fixture
def cluster(world: DataWorld) -> Iterator[DataWorld]:
    """A world with real metadata, which assigns producer ids."""
    follower = MetadataFollower(MemoryStore(MemoryTree()), Settings(BrokerConfig()), clock=world.clock)
    world.run(follower.start(BrokerRegistration(0, 1, {})))
    world.services.metadata = follower
    yield world
    world.run(follower.stop())


@pytest.mark.parametrize("version", range(7))
def test_every_producer_gets_a_unique_id(cluster: DataWorld, version: int) -> None:
    answers = [cluster.ask(InitProducerIdRequest(transactional_id=None), version) for _ in range(3)]
    assert [answer.error_code for answer in answers] == [0, 0, 0]
    assert [answer.producer_epoch for answer in answers] == [0, 0, 0]
    assert len({answer.producer_id for answer in answers}) == 3


def test_more_ids_than_one_block_holds_are_all_different(cluster: DataWorld) -> None:
    ids = [cluster.ask(InitProducerIdRequest(transactional_id=None), 5).producer_id for _ in range(2_500)]
    assert len(set(ids)) == 2_500


def test_an_idempotent_producer_that_bumps_its_epoch_gets_a_new_id(cluster: DataWorld) -> None:
    first = cluster.ask(InitProducerIdRequest(transactional_id=None), 4)
    request = InitProducerIdRequest(transactional_id=None, producer_id=first.producer_id, producer_epoch=0)
    again = cluster.ask(request, 4)
    assert again.producer_id != first.producer_id
    assert again.producer_epoch == 0


@pytest.mark.parametrize(
    "request_",
    [
        InitProducerIdRequest(transactional_id=""),
        InitProducerIdRequest(transactional_id=None, producer_id=5),
        InitProducerIdRequest(transactional_id=None, producer_epoch=5),
    ],
    ids=["empty transactional id", "id without epoch", "epoch without id"],
)
def test_contradictory_requests_are_refused(cluster: DataWorld, request_: InitProducerIdRequest) -> None:
    answer = cluster.ask(request_, 4)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.INVALID_REQUEST, -1)


def test_a_broker_without_a_coordinator_answers_coordinator_not_available(cluster: DataWorld) -> None:
    answer = cluster.ask(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1_000), 4)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
