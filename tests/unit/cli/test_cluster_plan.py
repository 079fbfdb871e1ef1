"""Where replicas go when a broker is drained, and when the replication factor changes."""

from pathlib import Path

import pytest

from ottla.cli.cluster.moving import _parse_moves, _read_file
from ottla.cli.cluster.plan import change_replication, check_brokers, drain
from ottla.cli.cluster.state import Behind
from ottla.cli.cluster.throttle import throttled_replicas
from ottla.cli.cluster.watch import Speeds
from ottla.client.core.model import PartitionDescription, TopicDescription
from ottla.errors import OttlaError
from ottla.types import TopicPartition

FOUR: dict[int, str | None] = {0: None, 1: None, 2: None, 3: None}


def topic(name: str, *replicas: tuple[int, ...], in_sync: tuple[int, ...] | None = None) -> TopicDescription:
    partitions = (
        PartitionDescription(n, each[0], 1, each, each if in_sync is None else in_sync)
        for n, each in enumerate(replicas)
    )
    return TopicDescription(name, b"i" * 16, False, tuple(partitions))


def of(name: str, plan: dict[TopicPartition, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    return {partition.partition: replicas for partition, replicas in plan.items() if partition.topic == name}


def test_new_replicas_and_their_possible_sources_are_throttled() -> None:
    a0, a1, b0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
    before = {a0: (0, 1), a1: (1, 2), b0: (0, 1)}
    assert throttled_replicas([(a0, (1, 2)), (a1, (3, 1, 2, 0)), (b0, (1, 0))], before) == {
        "a": {
            "leader.replication.throttled.replicas": "0:0,0:1,1:1,1:2",
            "follower.replication.throttled.replicas": "0:2,1:3,1:0",
        }
    }


def test_a_drained_broker_is_replaced_in_its_place() -> None:
    plan = drain([topic("a", (2, 0), (0, 2), (0, 1))], {0: None, 1: None, 2: None}, 2)
    assert of("a", plan) == {0: (1, 0), 1: (0, 1)}


def test_the_broker_with_the_fewest_replicas_takes_the_next_one() -> None:
    plan = drain([topic("a", (0,), (0,), (1,), (3,), (3,), (3,))], FOUR, 3)
    assert sorted(replicas[0] for replicas in plan.values()) == [1, 2, 2]


def test_another_rack_is_preferred() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    assert of("a", drain([topic("a", (0, 2), (3,), (3,))], racks, 2))[0] == (0, 3)


def test_a_broker_that_is_down_can_be_drained() -> None:
    assert of("a", drain([topic("a", (9, 0))], {0: None, 1: None}, 9)) == {0: (1, 0)}


def test_a_broker_that_is_needed_cannot_be_drained() -> None:
    with pytest.raises(
        OttlaError, match="cannot drain broker 1: a-0 has 2 replicas, and there is only 1 other broker"
    ) as e:
        drain([topic("a", (0, 1))], {0: None, 1: None}, 1)
    assert "ottla cluster reassign a --replication 1" in e.value.hint


def test_replicas_are_added_where_there_are_few() -> None:
    assert of("a", change_replication([topic("a", (0,), (1,))], FOUR, 2)) == {0: (0, 2), 1: (1, 3)}


def test_replicas_that_are_down_or_behind_are_removed_first() -> None:
    assert of("a", change_replication([topic("a", (9, 0, 1))], FOUR, 2)) == {0: (0, 1)}
    assert of("a", change_replication([topic("a", (2, 0, 1), in_sync=(0, 1))], FOUR, 2)) == {0: (0, 1)}
    assert of("a", change_replication([topic("a", (2, 0, 1))], FOUR, 2)) == {0: (2, 0)}


def test_a_topic_that_has_its_replicas_is_not_moved() -> None:
    assert not change_replication([topic("a", (0, 1))], FOUR, 2)


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(OttlaError, match="cannot place 5 replicas: only 4 brokers are running"):
        change_replication([topic("a", (0,))], FOUR, 5)


def test_unknown_and_repeated_brokers_are_refused() -> None:
    with pytest.raises(OttlaError, match="a-0: there is no broker 7") as caught:
        check_brokers({TopicPartition("a", 0): (0, 7)}, FOUR)
    assert caught.value.hint == "the brokers are 0, 1, 2, 3"
    with pytest.raises(OttlaError, match="listed twice"):
        check_brokers({TopicPartition("a", 0): (1, 1)}, FOUR)


def test_moves_are_written_as_partition_and_brokers() -> None:
    assert _parse_moves(["my-orders:0=1,2,3", "b:12=0"]) == {
        TopicPartition("my-orders", 0): (1, 2, 3),
        TopicPartition("b", 12): (0,),
    }


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("orders=1", "does not name a partition"),
        ("orders:x=1", "does not name a partition"),
        (":0=1", "does not name a partition"),
        ("orders:-1=1", "does not name a partition"),
        ("orders:0=", "brokers must be comma-separated ids"),
        ("orders:0=1,,2", "brokers must be comma-separated ids"),
        ("orders:0=one", "brokers must be comma-separated ids"),
    ],
)
def test_a_move_that_cannot_be_read_is_explained(target: str, message: str) -> None:
    with pytest.raises(OttlaError, match=message) as caught:
        _parse_moves([target])
    assert "orders:0=1,2,3" in caught.value.hint


def test_a_partition_cannot_be_moved_twice() -> None:
    with pytest.raises(OttlaError, match="a-0 is moved twice"):
        _parse_moves(["a:0=1", "a:0=2"])


def test_kafkas_file_format_is_read(tmp_path: Path) -> None:
    file = tmp_path / "moves.json"
    file.write_text(
        '{"version":1,"partitions":[{"topic":"a","partition":3,"replicas":[2,1],"log_dirs":["any","any"]}]}'
    )
    assert _read_file(file) == {TopicPartition("a", 3): (2, 1)}
    for content in ("[]", "{}", "nonsense"):
        file.write_text(content)
        with pytest.raises(OttlaError, match="is not a list of moves"):
            _read_file(file)
    with pytest.raises(OttlaError, match="cannot read"):
        _read_file(tmp_path / "missing")


def replica(bytes_: int, *, is_running: bool = True) -> Behind:
    return Behind(TopicPartition("a", 0), 1, 0, is_running, False, bytes_, 1000)


def test_catching_up_has_a_speed_and_an_end() -> None:
    times = iter([10.0, 12.0])
    speeds = Speeds(lambda: next(times))
    speeds.take([replica(0)])
    assert speeds.of(replica(0)) is None
    speeds.take([replica(200)])
    assert speeds.of(replica(200)) == 100.0
    assert speeds.left_s(replica(200)) == 8.0
    assert speeds.of(replica(200, is_running=False)) is None
