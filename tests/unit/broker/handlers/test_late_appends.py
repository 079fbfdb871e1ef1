"""Produce with batches that take long to check: a thread checks them, and nothing overtakes them."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.log.partition_log import Origin
from ottla.net.server.connection_state import CLOSED
from ottla.protocol.records.compression import compress
from ottla.protocol.records.record_batch import Codec, control_batch
from ottla.replication import late_appends
from ottla.types import TopicPartition
from tests.support.wire.damaged import record, with_section
from tests.support.worlds.data_world import (
    Asked,
    DataWorld,
    Peer,
    batch_of,
    fetch_request,
    only_partition,
    produce_request,
    values_in,
)

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def world(tmp_path: Any) -> Iterator[DataWorld]:
    world = DataWorld(str(tmp_path))
    yield world
    world.close()


def large(name: str, codec: Codec = Codec.LZ4, **details: Any) -> bytes:
    """A small batch that is larger decompressed than the event loop decompresses in one turn."""
    return batch_of(name, bytes(2 * late_appends.WORK_BYTES_PER_TURN), codec=codec, **details)


def sends(world: DataWorld, batch: bytes, *, connection: Peer | None = None, acks: int = 1, **more: Any) -> Asked:
    return world.asks(produce_request({("orders", 0): batch}, acks=acks, **more), 9, connection)


def stored(world: DataWorld, topic: str = "orders") -> list[str]:
    """The first value of each batch."""
    answer = world.ask(fetch_request({(topic, 0): 0}, max_bytes=1 << 30, partition_max_bytes=1 << 30), 11)
    return [value for value in values_in(only_partition(answer)) if not value.startswith("\0")]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_large_compressed_batch_is_late(world: DataWorld, codec: Codec) -> None:
    world.topic("orders")
    asked = sends(world, large("a", codec))
    assert not asked.was_immediate
    assert only_partition(asked.answer()).base_offset == 0
    assert stored(world) == ["a"]
    assert sends(world, batch_of("b", codec=codec)).was_immediate, "a small one is not"


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_no_request_overtakes_a_late_one_of_its_connection(world: DataWorld, acks: int) -> None:
    world.topic("orders")
    batches = [large("a"), batch_of("b"), large("c", Codec.GZIP), batch_of("d", codec=Codec.ZSTD), batch_of("e")]
    asked = [sends(world, batch, acks=acks) for batch in batches]
    assert world.log("orders").log_end_offset == 0
    answers = [each.answer() for each in asked]
    if acks:
        assert [only_partition(answer).base_offset for answer in answers] == [0, 2, 3, 5, 6]
    else:
        assert answers == [None] * 5
    assert stored(world) == ["a", "b", "c", "d", "e"]
    assert sends(world, batch_of("f")).was_immediate, "nobody is left to wait for"


def test_an_idempotent_producers_sequence_is_kept(world: DataWorld) -> None:
    world.topic("orders")
    numbers = itertools.count()
    mine: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0}
    asked = []
    for make in (batch_of, large, large, batch_of, large):
        sequence = next(numbers)
        asked.append(sends(world, make(str(sequence), base_sequence=sequence, **mine)))
        if make is large:
            next(numbers)  # it has two records
    assert [only_partition(each.answer()).error_code for each in asked] == [0] * 5
    assert stored(world) == ["0", "1", "3", "5", "6"]


def test_other_connections_do_not_wait(world: DataWorld) -> None:
    world.topic("orders")
    late = sends(world, large("late"))
    assert sends(world, batch_of("now"), connection=Peer()).was_immediate
    assert only_partition(late.answer()).base_offset == 1


@pytest.mark.parametrize("acks", [0, 1])
def test_a_late_batch_that_is_rejected_does_not_stop_the_next_ones(world: DataWorld, acks: int) -> None:
    world.topic("orders")
    bad = with_section(compress(Codec.LZ4, record(value=bytes(3_000_000)) + b"tail"), 1, codec=Codec.LZ4)
    rejected, following = sends(world, bad, acks=acks), sends(world, batch_of("next"))
    if acks:
        answer = only_partition(rejected.answer())
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert answer.error_message.startswith("orders-0: ")
        assert answer.error_message.endswith("bytes follow the last record")
    else:
        with pytest.raises(KafkaError, match="follow the last record"):
            rejected.answer()
    assert only_partition(following.answer()).base_offset == 0


def test_a_bomb_is_too_large(world: DataWorld) -> None:
    world.topic("orders", configs={"ottla.max.decompressed.bytes": "3000000"})
    answer = only_partition(sends(world, batch_of(bytes(4_000_000), codec=Codec.ZSTD)).answer())
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "decompresses to more than ottla.max.decompressed.bytes (3000000)" in answer.error_message


def test_the_rest_of_a_request_waits_for_its_late_batch(world: DataWorld) -> None:
    world.topic("orders", partitions=3)
    batches = {("orders", 0): batch_of("a"), ("orders", 1): large("b"), ("orders", 2): batch_of("c")}
    asked = world.asks(produce_request(batches, acks=1), 9)
    assert [world.log("orders", p).log_end_offset for p in range(3)] == [1, 0, 0]
    answers = [topic.partition_responses[0] for topic in asked.answer().responses]
    assert [(each.index, each.error_code, each.base_offset) for each in answers] == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    assert [world.log("orders", p).log_end_offset for p in range(3)] == [1, 2, 1]


def test_the_loop_decompresses_little_in_one_turn(world: DataWorld) -> None:
    """Many batches that are small one by one: the first are appended at once, the rest are late."""
    world.topic("orders")
    third = batch_of(bytes(late_appends.WORK_BYTES_PER_TURN // 3), codec=Codec.GZIP)
    request = produce_request({("orders", 0): third}, acks=1)
    peers = [Peer() for _ in range(6)]

    async def one_turn() -> list[Any]:
        return [world.handle(request, 9, connection=peer) for peer in peers]

    answers = world.run(one_turn())
    assert [hasattr(answer, "responses") for answer in answers] == [True, True, False, False, False, False]
    for answer in answers[2:]:
        assert only_partition(world.run(answer)).error_code == 0
    assert world.log("orders").log_end_offset == 6
    assert sends(world, third).was_immediate, "the next turn has its own allowance"


def test_recompression_counts_more_than_decompression(world: DataWorld) -> None:
    world.topic("orders", configs={"compression.type": "gzip"})
    size = late_appends.WORK_BYTES_PER_TURN // late_appends.COMPRESSION_COST
    assert not sends(world, batch_of(bytes(size))).was_immediate
    assert sends(world, batch_of(bytes(size // 2)), connection=Peer()).was_immediate


def test_append_times_do_not_decrease(world: DataWorld) -> None:
    """A late batch gets the time of its append, not of its check."""
    world.topic("orders", configs={"message.timestamp.type": "LogAppendTime"})
    world.loop.executor_delay_ms = (10_000, 10_000)
    late = sends(world, large("late"))
    world.wait(5000)
    sooner = only_partition(sends(world, batch_of("now"), connection=Peer()).answer())
    answer = only_partition(late.answer())
    assert (sooner.base_offset, answer.base_offset) == (0, 1)
    assert answer.log_append_time_ms >= sooner.log_append_time_ms + 5000
    assert answer.log_append_time_ms == world.log("orders").segments.active.max_timestamp


def test_a_marker_that_comes_during_the_check_ends_the_transaction(world: DataWorld) -> None:
    """The transaction was open when the batch came, and is not when it is appended: it must not open another one."""
    world.topic("orders")
    world.services.verify_transaction = lambda append: dict.fromkeys(append.partitions, ErrorCode.NONE)
    mine: dict[str, Any] = {"producer_id": 9, "producer_epoch": 3, "transactional": True}
    sends(world, batch_of("a", base_sequence=0, **mine), transactional_id="t").answer()
    late = sends(world, large("b", base_sequence=1, **mine), transactional_id="t")
    marker = control_batch(commit=False, producer_id=9, producer_epoch=3, coordinator_epoch=0, timestamp=1)

    async def abort() -> None:
        world.replicas.append(ORDERS, marker, acks=-1, origin=Origin.COORDINATOR)

    world.loop.run_until_complete(abort())
    assert only_partition(late.answer()).error_code == ErrorCode.INVALID_TXN_STATE
    assert world.log("orders").first_unstable_offset is None, "no hanging transaction"


def test_a_topic_that_is_deleted_during_the_check(world: DataWorld) -> None:
    world.topic("orders")
    late = sends(world, large("late"))
    world.delete_topic("orders")
    assert only_partition(late.answer()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_late_append_is_finished_after_its_connection_closed(world: DataWorld) -> None:
    """As in Apache Kafka: with acks=0 a producer may disconnect right after its last batch."""
    world.topic("orders")
    peer = Peer()
    first, second = (sends(world, large(name), connection=peer, acks=0) for name in "ab")
    peer.state = CLOSED
    first.hang_up()
    second.hang_up()
    world.wait(1000)
    assert stored(world) == ["a", "b"]


def test_closed_connections_do_not_fill_memory(world: DataWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_appends, "WAITING_BYTES_MAX", 10_000)
    world.topic("orders")
    gone, here = Peer(state=CLOSED), Peer()
    dropped = [sends(world, large("gone"), connection=gone) for _ in range(5)]
    kept = sends(world, large("here"), connection=here)
    assert world.replicas.late_appends.waiting_bytes > 10_000
    assert only_partition(kept.answer()).error_code == 0
    codes = [only_partition(each.answer()).error_code for each in dropped]
    assert ErrorCode.NETWORK_EXCEPTION in codes
    assert world.replicas.late_appends.waiting_bytes == 0


def test_a_stopping_broker_drops_what_is_late(world: DataWorld) -> None:
    world.topic("orders")
    late = sends(world, large("late"))
    world.restart()
    assert late.is_answered
    assert world.log("orders").log_end_offset == 0
