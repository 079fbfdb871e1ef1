"""Arrow columns from buffered fetches: in order, and the positions follow."""

import random

import pytest

from ottla.client.consumer.arrow import take_arrow
from ottla.errors import ErrorCode, KafkaError
from ottla.types import TopicPartition
from tests.support.seeds import each_seed
from tests.support.worlds.consumer_world import ConsumerWorld

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def columns(world: ConsumerWorld, max_records: int | None = None) -> list[str]:
    batch = take_arrow(world.fetcher, max_records)
    return [] if batch is None else [value.decode() for value in batch.column("value").to_pylist()]


def damage(world: ConsumerWorld, index: int, partition: TopicPartition = T0) -> None:
    broken = bytearray(world.logs[partition].batches[index])
    broken[-1] ^= 1
    world.logs[partition].batches[index] = bytes(broken)


def test_everything_buffered_is_returned_and_the_positions_move() -> None:
    world = ConsumerWorld(partitions=2)
    world.logs[T0].append("a", "b")
    world.logs[T0].append("c")
    world.logs[T1].append("x")
    world.exchange(2)
    assert sorted(columns(world)) == ["a", "b", "c", "x"]
    assert (world.position(0), world.position(1)) == (3, 1)
    assert take_arrow(world.fetcher, None) is None


def test_two_fetches_of_a_partition_are_returned_in_order() -> None:
    world = ConsumerWorld(max_partition_fetch_bytes=1)
    for value in "abcd":
        world.logs[T0].append(value)
    world.exchange(10)
    assert columns(world) == ["a", "b"], "READ_AHEAD is 2"
    world.exchange(10)
    assert columns(world) == ["c", "d"]


def test_a_corrupt_batch_raises_after_the_records_before_it() -> None:
    world = ConsumerWorld(max_partition_fetch_bytes=1)
    world.logs[T0].append("a")
    world.logs[T0].append("b")
    damage(world, 1)
    world.exchange(10)
    assert columns(world) == ["a"]
    for _ in range(2):
        world.exchange(10)
        with pytest.raises(KafkaError, match="t-0 at offset 1: ") as caught:
            columns(world)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
        assert world.position() == 1


def test_a_corrupt_batch_blocks_only_its_own_partition() -> None:
    world = ConsumerWorld(partitions=2, max_partition_fetch_bytes=200)
    for value in "abcd":  # two batches make a fetch
        world.logs[T0].append(value)
    world.logs[T1].append("x")
    damage(world, 1)
    world.exchange(10)
    assert sorted(columns(world)) == ["a", "x"]
    assert (world.position(0), world.position(1)) == (1, 1)
    world.exchange(10)
    with pytest.raises(KafkaError, match="t-0 at offset 1: "):
        columns(world)


def test_paused_partitions_keep_their_records_and_a_seek_drops_them() -> None:
    world = ConsumerWorld(partitions=2)
    world.logs[T0].append("a", "b")
    world.logs[T1].append("x", "y")
    world.exchange(2)
    world.state(0).is_paused = True
    assert columns(world) == ["x", "y"]
    world.state(0).is_paused = False
    assert columns(world, 1) == ["a"]
    world.state(0).move_to(0)
    assert columns(world) == [], "fetched before the seek"
    world.exchange(2)
    assert columns(world) == ["a", "b"]


@each_seed(30)
def test_mixing_records_and_columns_returns_each_record_once(seed: int) -> None:
    source = random.Random(seed)
    world = ConsumerWorld(partitions=2, max_partition_fetch_bytes=source.choice([1, 150, 10_000]))
    expected: dict[int, list[str]] = {0: [], 1: []}
    seen: dict[int, list[str]] = {0: [], 1: []}
    for step in range(200):
        if step < 100:
            partition = source.randrange(2)
            values = [f"{partition}:{len(expected[partition]) + i}" for i in range(source.randint(1, 9))]
            expected[partition] += values
            world.logs[TopicPartition("t", partition)].append(*values)
        world.exchange()
        room = source.choice([1, 2, 5, 1000])
        values = world.take(room) if source.random() < 0.5 else columns(world, source.choice([room, None]))
        for value in values:
            seen[int(value[0])].append(value)
        for partition in (0, 1):
            if world.position(partition) is not None:
                assert world.position(partition) == len(seen[partition])
    assert seen == expected
