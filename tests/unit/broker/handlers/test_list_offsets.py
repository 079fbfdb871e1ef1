"""ListOffsets: the ends of a log, offsets by timestamp, and isolation levels."""

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.log.partition_log import Origin
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.protocol.records.record_batch import Codec, control_batch
from ottla.types import TopicPartition
from tests.support.wire.damaged import damaged
from tests.support.worlds.data_world import DataWorld, only_partition

VERSIONS = range(1, 12)


@pytest.fixture
def world(tmp_path: Any) -> Iterator[DataWorld]:
    world = DataWorld(str(tmp_path))
    world.topic("orders", leader_epoch=5)
    yield world
    world.close()


def ask(
    world: DataWorld, timestamp: int, *, version: int = 11, epoch: int = -1, topic: str = "orders", **details: Any
) -> Any:
    partition = ListOffsetsRequest.ListOffsetsPartition(
        partition_index=0, timestamp=timestamp, current_leader_epoch=epoch
    )
    request = ListOffsetsRequest(
        **{"replica_id": -1} | details,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])],
    )
    return only_partition(world.ask(request, version))


def found(world: DataWorld, timestamp: int, **details: Any) -> tuple[int, int, int]:
    answer = ask(world, timestamp, **details)
    assert answer.error_code == 0
    return answer.offset, answer.timestamp, answer.leader_epoch


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_finds_both_ends(world: DataWorld, version: int) -> None:
    world.append("orders", "a", "b", "c")
    world.log("orders").delete_records_before(1)
    epoch = 5 if version >= 4 else -1
    assert found(world, -1, version=version) == (3, -1, epoch)
    assert found(world, -2, version=version) == (1, -1, epoch)


def test_the_first_record_at_or_after_a_timestamp_is_found(world: DataWorld) -> None:
    """Spec: R4. ListOffsets by timestamp."""
    for offset, timestamp in enumerate((1_000, 3_000, 2_000)):
        world.append("orders", str(offset), timestamp=timestamp)
    assert found(world, 0) == (0, 1_000, 5)
    assert found(world, 1_000) == (0, 1_000, 5)
    assert found(world, 1_001) == (1, 3_000, 5)
    assert found(world, 3_001) == (-1, -1, -1)


def test_the_maximum_timestamp_is_found(world: DataWorld) -> None:
    for offset, timestamp in enumerate((1_000, 3_000, 2_000)):
        world.append("orders", str(offset), timestamp=timestamp)
    assert found(world, -3) == (1, 3_000, 5)


def test_an_empty_log_has_no_maximum_timestamp(world: DataWorld) -> None:
    assert found(world, -3) == (-1, -1, -1)
    assert found(world, 0) == (-1, -1, -1)
    assert found(world, -1) == (0, -1, 5)


def test_without_tiered_storage_all_records_are_local(world: DataWorld) -> None:
    world.append("orders", "a", "b")
    assert found(world, -4) == (0, -1, 5)
    assert found(world, -5) == (-1, -1, -1)
    assert found(world, -6) == (-1, -1, -1)


@pytest.mark.parametrize(("timestamp", "version"), [(-3, 6), (-4, 7), (-5, 8), (-6, 10), (-7, 11), (-(2**63), 11)])
def test_special_timestamps_of_later_versions_are_refused(world: DataWorld, timestamp: int, version: int) -> None:
    assert ask(world, timestamp, version=version).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_consumers_get_the_high_watermark_and_followers_the_end(world: DataWorld) -> None:
    world.topic("copied", replicas=(0, 1))
    world.append("copied", "a", timestamp=1_000)
    assert found(world, -1, topic="copied")[0] == 0
    assert found(world, 0, topic="copied")[0] == -1, "uncommitted records cannot be found by timestamp either"
    assert found(world, -1, topic="copied", replica_id=1)[0] == 1


def test_read_committed_ends_at_the_last_stable_offset(world: DataWorld) -> None:
    world.append("orders", "plain", timestamp=1_000)
    details = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    world.append("orders", "open", timestamp=2_000, **details)
    assert found(world, -1, isolation_level=1)[0] == 1
    assert found(world, -1, isolation_level=0)[0] == 2
    assert found(world, 1_500, isolation_level=1)[0] == -1
    assert found(world, -3, isolation_level=1) == (0, 1_000, 5)
    marker = control_batch(commit=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=2_000)

    async def commit() -> None:
        world.replicas.append(TopicPartition("orders", 0), marker, acks=-1, origin=Origin.COORDINATOR)

    world.run(commit())
    assert found(world, -1, isolation_level=1)[0] == 3


@pytest.mark.parametrize(
    ("version", "code"), [(5, ErrorCode.OFFSET_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE)]
)
def test_a_new_leader_returns_no_end_before_its_high_watermark_is_known(
    world: DataWorld, version: int, code: ErrorCode
) -> None:
    world.topic("copied", replicas=(0, 1))
    world.append("copied", "a")
    world.change_partitions(lambda p: p._replace(leader_epoch=1), "copied")
    assert ask(world, -1, version=version, topic="copied").error_code == code
    assert ask(world, 0, version=version, topic="copied").error_code == code
    assert ask(world, -2, version=version, topic="copied").error_code == 0
    world.replicas.follower_fetched(world.replica("copied"), 1, 1, 0)
    assert found(world, -1, topic="copied")[0] == 1


@pytest.mark.parametrize(
    ("epoch", "code"), [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH), (5, 0), (-1, 0)]
)
def test_a_stale_or_unknown_leader_epoch_is_refused(world: DataWorld, epoch: int, code: int) -> None:
    assert ask(world, -1, epoch=epoch).error_code == code


def test_unknown_and_unled_partitions_have_different_errors(world: DataWorld) -> None:
    world.topic("elsewhere", replicas=(1,))
    world.topic("followed", replicas=(0, 1), leader=1)
    assert ask(world, -1, topic="nowhere").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(world, -1, topic="elsewhere").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(world, -1, topic="followed").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(world, -1, topic="followed", replica_id=-2).error_code == 0, "a debugging reader may ask any replica"


def test_a_partition_requested_twice_is_refused(world: DataWorld) -> None:
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = ListOffsetsRequest.ListOffsetsTopic(name="orders", partitions=[partition, partition])
    (answer,) = world.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), 11).topics
    assert [data.error_code for data in answer.partitions] == [ErrorCode.INVALID_REQUEST], "and returned once"


def test_a_damaged_batch_is_an_error_and_the_log_says_how_to_skip_it(
    world: DataWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Spec: R8. The response has no field for it."""
    bad = damaged(Codec.NONE)["a value longer than its record"]

    async def store() -> None:
        world.replicas.append(TopicPartition("orders", 0), bad, acks=1, origin=Origin.COORDINATOR)

    world.append("orders", "a", timestamp=5)
    world.loop.run_until_complete(store())
    world.append("orders", "b", timestamp=9)
    for timestamp in (7, -3):
        caplog.clear()
        assert ask(world, timestamp).error_code == ErrorCode.CORRUPT_MESSAGE
        assert (
            "partition orders-0: ListOffsets by timestamp failed: the batch at offset 1 cannot be read: "
            "record 0: a length is out of bounds; the next one begins at offset 2" in caplog.text
        )
    assert found(world, 5)[:2] == (0, 5)


def test_a_large_compressed_batch_is_searched_in_a_thread(world: DataWorld) -> None:
    values = [bytes(300_000) for _ in range(10)]
    assert world.produce("orders", *values, codec=Codec.LZ4, timestamp=7).error_code == 0
    world.append("orders", "last", timestamp=9)
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name="orders",
                partitions=[ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=6)],
            )
        ],
    )
    asked = world.asks(request, 11)
    assert not asked.was_immediate
    answer = only_partition(asked.answer())
    assert (answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch) == (0, 0, 7, 5)
    assert found(world, -3) == (10, 9, 5)
