"""Fetch, from the log to the response: limits, long polls, isolation, epochs, versions."""

import errno
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ottla.broker.settings.config import BrokerConfig
from ottla.errors import ErrorCode
from ottla.log.segments.file_records import FileRecords
from ottla.protocol.framing import INLINE_RECORDS_BYTES
from ottla.protocol.messages.fetch import FetchRequest
from ottla.testing.sim_disk import SimPlatter
from ottla.testing.sim_loop import SimLoop
from tests.support.worlds.data_world import (
    Asked,
    DataWorld,
    Transactions,
    batch_of,
    fetch_count,
    fetch_request,
    only_partition,
    records_in,
    values_in,
)

VERSIONS = range(4, 19)
SESSIONLESS: dict[str, Any] = {"session_id": 0, "session_epoch": -1}


@pytest.fixture
def world(tmp_path: Any) -> Iterator[DataWorld]:
    world = DataWorld(str(tmp_path))
    yield world
    world.close()


def fetch(world: DataWorld, topic: str, offset: int, *, version: int = 12, **details: Any) -> Any:
    """One partition's part of the answer."""
    name: str | bytes = world.image.topics[topic].topic_id if version >= 13 else topic
    return only_partition(world.ask(fetch_request({(name, 0): offset}, **SESSIONLESS | details), version))


def poll(world: DataWorld, topic: str, offset: int, *, version: int = 12, **details: Any) -> Asked:
    return world.asks(fetch_request({(topic, 0): offset}, **SESSIONLESS | details), version)


# -- reading --


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_reads_what_was_written(world: DataWorld, version: int) -> None:
    world.topic("orders")
    world.append("orders", "a", "b")
    world.append("orders", "c")
    data = fetch(world, "orders", 0, version=version)
    assert values_in(data) == ["a", "b", "c"]
    assert [record.offset for record in records_in(data)] == [0, 1, 2]
    assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 3, 3)
    assert data.log_start_offset == (0 if version >= 5 else -1)
    assert data.preferred_read_replica == -1
    assert data.aborted_transactions is None


def test_topics_are_named_by_id_from_version_13_on(world: DataWorld) -> None:
    topic_id = world.topic("orders")
    world.append("orders", "a")
    answer = world.ask(fetch_request({(topic_id, 0): 0}, **SESSIONLESS), 13)
    assert answer.responses[0].topic_id == topic_id
    assert answer.responses[0].topic == ""


def test_an_offset_inside_a_batch_returns_the_whole_batch(world: DataWorld) -> None:
    """Spec: R4. The fetch offset is inside a batch; clients skip the records before it."""
    world.topic("orders")
    world.append("orders", "a", "b", "c")
    world.append("orders", "d")
    assert [record.offset for record in records_in(fetch(world, "orders", 1))] == [0, 1, 2, 3]


@pytest.mark.parametrize("offset", [-1, 1, 7])
def test_an_offset_outside_the_log_is_out_of_range(world: DataWorld, offset: int) -> None:
    world.topic("orders")
    world.append("orders", "a", "b", "c", "d", "e", "f")
    world.log("orders").delete_records_before(2)
    data = fetch(world, "orders", offset)
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (data.high_watermark, data.log_start_offset, data.records) == (-1, -1, b"")


def test_the_log_start_offset_is_returned(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "a", "b")
    world.log("orders").delete_records_before(1)
    assert fetch(world, "orders", 1).log_start_offset == 1


# -- limits (KIP-74) --


def test_a_partition_returns_whole_batches_up_to_its_limit(world: DataWorld) -> None:
    world.topic("orders")
    for value in "abcd":
        world.append("orders", value)
    size = len(batch_of("a"))
    assert values_in(fetch(world, "orders", 0, partition_max_bytes=3 * size - 1)) == ["a", "b"]


def test_the_first_batch_is_returned_whole_however_small_the_limits(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "x" * 10_000)
    world.append("orders", "y")
    data = fetch(world, "orders", 0, partition_max_bytes=1, max_bytes=1)
    assert [len(value) for value in values_in(data)] == [10_000]


@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_of_zero_still_makes_progress(world: DataWorld, limit: int) -> None:
    world.topic("orders")
    world.append("orders", "a")
    assert values_in(fetch(world, "orders", 0, partition_max_bytes=limit)) == ["a"]


def test_partitions_are_served_in_request_order_until_max_bytes_is_used_up(world: DataWorld) -> None:
    world.topic("orders", partitions=3)
    for partition in range(3):
        world.append("orders", f"p{partition}", partition=partition)
    size = len(batch_of("p0"))
    offsets = {("orders", 2): 0, ("orders", 0): 0, ("orders", 1): 0}
    answer = world.ask(fetch_request(offsets, max_bytes=2 * size, **SESSIONLESS), 12)
    found = [(data.partition_index, values_in(data)) for topic in answer.responses for data in topic.partitions]
    assert found == [(2, ["p2"]), (0, ["p0"]), (1, [])]


def test_only_the_first_data_may_exceed_the_limit(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    world.append("orders", "x" * 5_000, partition=0)
    world.append("orders", "y" * 5_000, partition=1)
    answer = world.ask(fetch_request({("orders", 0): 0, ("orders", 1): 0}, max_bytes=100, **SESSIONLESS), 12)
    sizes = [len(values_in(data)) for topic in answer.responses for data in topic.partitions]
    assert sizes == [1, 0]


def test_a_batch_larger_than_the_remaining_limit_is_left_out(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    world.append("orders", "x" * 100, partition=0)
    world.append("orders", "y" * 5_000, partition=1)
    answer = world.ask(fetch_request({("orders", 0): 0, ("orders", 1): 0}, max_bytes=1_000, **SESSIONLESS), 12)
    assert [len(values_in(data)) for topic in answer.responses for data in topic.partitions] == [1, 0]


def test_an_empty_partition_before_it_does_not_use_up_the_first_batch_rule(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    world.append("orders", "x" * 5_000, partition=1)
    answer = world.ask(fetch_request({("orders", 0): 0, ("orders", 1): 0}, max_bytes=1, **SESSIONLESS), 12)
    assert [len(data.records) > 0 for topic in answer.responses for data in topic.partitions] == [False, True]


def records_of(world: DataWorld, topics: dict[Any, int], **details: Any) -> list[Any]:
    """The records of each partition in the response, as the handler returns them."""
    answer = world.begin(fetch_request(topics, **SESSIONLESS | details), 12)
    return [data.records for topic in answer.responses for data in topic.partitions]


def test_large_records_stay_in_their_file_until_they_are_sent(world: DataWorld) -> None:
    world.topic("orders")
    values = [str(number) * 10_000 for number in range(40)]
    for value in values:
        world.append("orders", value)
    (records,) = records_of(world, {("orders", 0): 0})
    assert isinstance(records, FileRecords)
    assert len(records) > INLINE_RECORDS_BYTES
    assert values_in(fetch(world, "orders", 0)) == values


def test_a_response_holds_little_in_memory_however_many_partitions_it_has(world: DataWorld) -> None:
    world.topic("orders", partitions=10)
    for partition in range(10):
        world.append("orders", "x" * 40_000, partition=partition)
    records = records_of(world, {("orders", partition): 0 for partition in range(10)})
    assert [type(found) for found in records] == [bytes] * 3 + [FileRecords] * 7
    assert len({len(found) for found in records}) == 1


def test_fetch_max_bytes_of_the_broker_applies(tmp_path: Any) -> None:
    world = DataWorld(str(tmp_path), broker_config=replace(BrokerConfig(), fetch_max_bytes=2_000))
    world.topic("orders")
    for _ in range(10):
        world.append("orders", "x" * 900)
    assert len(values_in(fetch(world, "orders", 0))) == 2


# -- waiting --


def test_an_empty_partition_is_waited_on_until_max_wait(world: DataWorld) -> None:
    world.topic("orders")
    asked = poll(world, "orders", 0, max_wait_ms=500)
    world.wait(499)
    assert not asked.is_answered
    data = only_partition(asked.answer())
    assert (data.error_code, data.records, data.high_watermark) == (0, b"", 0)
    assert 0.499 <= world.loop.time() <= 0.51


def test_an_append_ends_the_wait(world: DataWorld) -> None:
    world.topic("orders")
    asked = poll(world, "orders", 0, max_wait_ms=60_000)
    world.wait(10)
    world.append("orders", "a")
    world.wait()
    assert asked.is_answered
    assert values_in(only_partition(asked.answer())) == ["a"]
    assert fetch_count(world.replica("orders").waits) == 0


def test_available_records_are_returned_without_waiting(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "a")
    assert poll(world, "orders", 0).was_immediate


@pytest.mark.parametrize("details", [{"max_wait_ms": 0}, {"max_wait_ms": -1}, {"min_bytes": 0}, {"min_bytes": -1}])
def test_a_fetch_without_wait_time_is_answered_at_once(world: DataWorld, details: dict[str, int]) -> None:
    world.topic("orders")
    assert poll(world, "orders", 0, **details).was_immediate


def test_min_bytes_waits_for_several_appends(world: DataWorld) -> None:
    world.topic("orders")
    size = len(batch_of("a"))
    asked = poll(world, "orders", 0, min_bytes=3 * size, max_wait_ms=60_000)
    for value in "ab":
        world.append("orders", value)
        world.wait()
    assert not asked.is_answered
    world.append("orders", "c")
    world.wait()
    assert asked.is_answered
    assert values_in(only_partition(asked.answer())) == ["a", "b", "c"]


def test_min_bytes_counts_records_already_in_the_log(world: DataWorld) -> None:
    world.topic("orders")
    size = len(batch_of("a"))
    world.append("orders", "a")
    world.append("orders", "b")
    assert poll(world, "orders", 0, min_bytes=2 * size).was_immediate
    asked = poll(world, "orders", 1, min_bytes=2 * size, max_wait_ms=60_000)
    assert not asked.is_answered
    world.append("orders", "c")
    world.wait()
    assert asked.is_answered
    assert values_in(only_partition(asked.answer())) == ["b", "c"]


def test_min_bytes_counts_across_partitions_and_segments(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    size = len(batch_of("a"))
    world.append("orders", "a")
    world.log("orders").roll()
    world.append("orders", "b")
    request = fetch_request({("orders", 0): 0, ("orders", 1): 0}, min_bytes=3 * size, max_wait_ms=60_000, **SESSIONLESS)
    asked = world.asks(request, 12)
    assert not asked.is_answered
    world.append("orders", "c", partition=1)
    world.wait()
    assert asked.is_answered


def test_a_duplicate_does_not_wake_waiting_fetches(world: DataWorld) -> None:
    world.topic("orders")
    sequenced = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    world.append("orders", "a", **sequenced)
    asked = poll(world, "orders", 1, max_wait_ms=60_000)
    small = poll(world, "orders", 0, min_bytes=len(batch_of("a")) + 1, max_wait_ms=60_000)
    committed = poll(world, "orders", 1, isolation_level=1, min_bytes=2 * len(batch_of("b")), max_wait_ms=60_000)
    world.append("orders", "a", **sequenced)
    world.wait()
    assert not asked.is_answered
    assert not small.is_answered
    world.append("orders", "b")
    world.wait()
    assert not committed.is_answered


def test_too_few_bytes_are_returned_after_max_wait(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "a")
    asked = poll(world, "orders", 0, min_bytes=1_000_000, max_wait_ms=200)
    assert not asked.was_immediate
    assert values_in(only_partition(asked.answer())) == ["a"]


def test_a_fetch_never_waits_for_more_than_max_bytes(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "a")
    assert poll(world, "orders", 0, min_bytes=1_000_000, max_bytes=10).was_immediate


def test_an_error_in_one_partition_is_answered_at_once(world: DataWorld) -> None:
    world.topic("orders")
    for bad in (("nowhere", 0), ("orders", 9)):
        assert world.asks(fetch_request({("orders", 0): 0, bad: 0}, **SESSIONLESS), 12).was_immediate
    assert poll(world, "orders", 5).was_immediate


def test_a_waiting_fetch_is_answered_when_the_leader_changes(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    asked = poll(world, "orders", 0, max_wait_ms=60_000, partition={"current_leader_epoch": 0})
    older = poll(world, "orders", 0, max_wait_ms=60_000, version=10)
    world.change_partitions(lambda p: p._replace(leader=1, leader_epoch=1))
    world.wait()
    assert asked.is_answered
    assert only_partition(asked.answer()).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert only_partition(older.answer()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_waiting_fetch_is_answered_when_its_topic_is_deleted(world: DataWorld) -> None:
    world.topic("orders")
    asked = poll(world, "orders", 0, max_wait_ms=60_000)
    world.delete_topic("orders")
    assert only_partition(asked.answer()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.loop.time() < 1


def test_a_client_that_disconnects_leaves_nothing_behind(world: DataWorld) -> None:
    world.topic("orders", partitions=50)
    offsets = {("orders", partition): 0 for partition in range(50)}
    asked = world.asks(fetch_request(offsets, max_wait_ms=2**31 - 1, **SESSIONLESS), 12)
    assert fetch_count(world.replica("orders", 49).waits) == 1
    asked.hang_up()
    assert all(fetch_count(replica.waits) == 0 for replica in world.replicas.replicas())


def test_an_answer_that_is_never_awaited_leaves_nothing_behind(world: DataWorld) -> None:
    world.topic("orders")
    answer = world.begin(fetch_request({("orders", 0): 0}, max_wait_ms=2**31 - 1, **SESSIONLESS), 12)
    assert fetch_count(world.replica("orders").waits) == 1
    del answer
    assert fetch_count(world.replica("orders").waits) == 0


def test_an_append_wakes_only_fetches_of_its_partition(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    others = [world.asks(fetch_request({("orders", 1): 0}, **SESSIONLESS), 12) for _ in range(20)]
    mine = world.asks(fetch_request({("orders", 0): 0}, **SESSIONLESS), 12)
    world.append("orders", "a")
    world.wait()
    assert mine.is_answered
    assert not any(other.is_answered for other in others)


# -- visibility --


def test_consumers_see_up_to_the_high_watermark(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a")
    world.append("orders", "b")
    world.replicas.follower_fetched(world.replica("orders"), 1, 1, 0)
    data = fetch(world, "orders", 0)
    assert values_in(data) == ["a"]
    assert data.high_watermark == 1


def test_an_offset_between_the_high_watermark_and_the_end_waits_for_the_commit(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a")
    world.append("orders", "b")
    asked = poll(world, "orders", 1, max_wait_ms=60_000)
    assert not asked.is_answered
    world.replicas.follower_fetched(world.replica("orders"), 1, 2, 0)
    world.wait()
    assert asked.is_answered
    assert values_in(only_partition(asked.answer())) == ["b"]


def test_read_committed_stops_at_the_first_open_transaction(world: DataWorld) -> None:
    """Spec: E8."""
    world.topic("orders")
    transactions = Transactions(world)
    world.append("orders", "plain")
    transactions.writes(7, "open")
    world.append("orders", "later")
    committed = fetch(world, "orders", 0, isolation_level=1)
    assert values_in(committed) == ["plain"]
    assert (committed.high_watermark, committed.last_stable_offset) == (3, 1)
    assert committed.aborted_transactions == []
    uncommitted = fetch(world, "orders", 0, isolation_level=0)
    assert values_in(uncommitted) == ["plain", "open", "later"]
    assert uncommitted.aborted_transactions is None


def test_a_read_committed_fetch_waits_for_the_marker(world: DataWorld) -> None:
    """Spec: E8."""
    world.topic("orders")
    transactions = Transactions(world)
    transactions.writes(7, "open")
    asked = poll(world, "orders", 0, isolation_level=1, max_wait_ms=60_000)
    transactions.writes(7, "more")
    world.wait()
    assert not asked.is_answered
    transactions.ends(7, commit=True)
    world.wait()
    assert asked.is_answered
    data = only_partition(asked.answer())
    assert values_in(data)[:2] == ["open", "more"]
    assert data.last_stable_offset == 3


def test_aborted_transactions_are_listed_up_to_the_end_of_the_data(world: DataWorld) -> None:
    """Spec: R4. read_committed right after an abort."""
    world.topic("orders")
    transactions = Transactions(world)
    transactions.writes(7, "never")
    transactions.ends(7, commit=False)
    transactions.writes(8, "neither")
    transactions.ends(8, commit=False)
    data = fetch(world, "orders", 0, isolation_level=1)
    assert [(a.producer_id, a.first_offset) for a in data.aborted_transactions] == [(7, 0), (8, 2)]
    first = fetch(world, "orders", 0, isolation_level=1, partition_max_bytes=1)
    assert [(a.producer_id, a.first_offset) for a in first.aborted_transactions] == [(7, 0)]
    rest = fetch(world, "orders", 2, isolation_level=1)
    assert [(a.producer_id, a.first_offset) for a in rest.aborted_transactions] == [(8, 2)]


def test_aborted_transactions_are_listed_up_to_the_end_of_records_in_a_file(world: DataWorld) -> None:
    world.topic("orders")
    transactions = Transactions(world)
    for producer_id in (7, 8, 9):
        transactions.writes(producer_id, "x" * 100_000)
        transactions.ends(producer_id, commit=False)
    data = fetch(world, "orders", 0, isolation_level=1, partition_max_bytes=250_000)
    assert len(data.records) > INLINE_RECORDS_BYTES
    assert [(a.producer_id, a.first_offset) for a in data.aborted_transactions] == [(7, 0), (8, 2)]


def test_min_bytes_under_read_committed_counts_decided_bytes_only(world: DataWorld) -> None:
    world.topic("orders")
    transactions = Transactions(world)
    transactions.writes(7, "x" * 1_000)
    asked = poll(world, "orders", 0, isolation_level=1, min_bytes=900, max_wait_ms=60_000)
    world.append("orders", "y" * 1_000)
    world.wait()
    assert not asked.is_answered
    transactions.ends(7, commit=True)
    world.wait()
    assert asked.is_answered


# -- leaders and epochs --


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(-1, 0), (3, 0), (2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_fetch_with_a_stale_or_unknown_leader_epoch_is_refused(world: DataWorld, epoch: int, code: int) -> None:
    world.topic("orders", leader_epoch=3)
    world.append("orders", "a")
    assert fetch(world, "orders", 0, partition={"current_leader_epoch": epoch}, max_wait_ms=0).error_code == code
    at_end = poll(world, "orders", 1, partition={"current_leader_epoch": epoch})
    assert at_end.was_immediate == (code != 0)


def test_a_partition_of_another_broker_is_answered_with_its_leader_from_version_16_on(world: DataWorld) -> None:
    topic_id = world.topic("orders", replicas=(1, 2), leader_epoch=4)
    world.topic("elsewhere", replicas=(2,))
    answer = world.ask(fetch_request({(topic_id, 0): 0}, **SESSIONLESS), 16)
    data = only_partition(answer)
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (1, 4)
    assert [(node.node_id, node.host) for node in answer.node_endpoints] == [(1, "broker1")]
    older = world.ask(fetch_request({("elsewhere", 0): 0}, **SESSIONLESS), 12)
    assert only_partition(older).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_unknown_topics_and_ids_have_their_own_codes(world: DataWorld) -> None:
    answer = only_partition(world.ask(fetch_request({("nowhere", 0): 0}, **SESSIONLESS), 12))
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = only_partition(world.ask(fetch_request({(b"0123456789abcdef", 0): 0}, **SESSIONLESS), 13))
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def two_epochs(world: DataWorld) -> None:
    """Offsets 0-2 in epoch 1, 3-4 in epoch 3."""
    world.topic("orders", leader_epoch=1)
    world.append("orders", "a", "b", "c")
    world.change_partitions(lambda p: p._replace(leader_epoch=3))
    world.append("orders", "d", "e")


@pytest.mark.parametrize(
    ("offset", "last_epoch", "diverging"),
    [(3, 1, None), (4, 3, None), (5, 3, None), (4, 1, (1, 3)), (4, 2, (1, 3))],
)
def test_a_reader_whose_log_diverged_gets_the_diverging_epoch(
    world: DataWorld, offset: int, last_epoch: int, diverging: tuple[int, int] | None
) -> None:
    two_epochs(world)
    data = fetch(world, "orders", offset, partition={"last_fetched_epoch": last_epoch}, max_wait_ms=0)
    assert data.error_code == 0
    if diverging is None:
        assert data.diverging_epoch.end_offset == -1
    else:
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == diverging
        assert data.records == b""
        assert poll(world, "orders", offset, partition={"last_fetched_epoch": last_epoch}).was_immediate


def test_a_last_fetched_epoch_from_the_future_is_out_of_range(world: DataWorld) -> None:
    two_epochs(world)
    data = fetch(world, "orders", 4, partition={"last_fetched_epoch": 9})
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# -- followers --


def replica_fetch(world: DataWorld, broker_id: int, offset: int, version: int, **details: Any) -> Asked:
    topic: str | bytes = world.image.topics["orders"].topic_id if version >= 13 else "orders"
    request = fetch_request({(topic, 0): offset}, **SESSIONLESS | details)
    if version >= 15:
        request.replica_state = FetchRequest.ReplicaState(replica_id=broker_id, replica_epoch=1)
    else:
        request.replica_id = broker_id
    return world.asks(request, version)


@pytest.mark.parametrize("version", [11, 14, 17, 18])
def test_a_follower_reads_to_the_end_and_its_fetches_commit(world: DataWorld, version: int) -> None:
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a")
    data = only_partition(replica_fetch(world, 1, 0, version).answer())
    assert values_in(data) == ["a"]
    assert data.high_watermark == 0
    waiting = replica_fetch(world, 1, 1, version, max_wait_ms=60_000)
    assert world.log("orders").high_watermark == 1, "a fetch of offset 1 acknowledges offset 0"
    world.append("orders", "b")
    world.wait()
    assert waiting.is_answered
    assert values_in(only_partition(waiting.answer())) == ["b"]


def test_a_broker_that_is_no_replica_cannot_fetch_as_a_follower(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a")
    data = only_partition(replica_fetch(world, 2, 1, 11, max_wait_ms=0).answer())
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    knowing = replica_fetch(world, 2, 1, 11, max_wait_ms=0, partition={"current_leader_epoch": 0})
    assert only_partition(knowing.answer()).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert world.log("orders").high_watermark == 0


def test_a_follower_ahead_of_the_leader_commits_nothing(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a")
    data = only_partition(replica_fetch(world, 1, 5, 11).answer())
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert world.log("orders").high_watermark == 0


# -- old versions and failing disks --


def test_a_zstd_topic_needs_version_10(world: DataWorld) -> None:
    world.topic("orders", configs={"compression.type": "zstd"})
    world.append("orders", "a")
    assert fetch(world, "orders", 0, version=9).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert values_in(fetch(world, "orders", 0, version=10)) == ["a"]


@pytest.mark.parametrize(
    ("version", "code"), [(6, ErrorCode.KAFKA_STORAGE_ERROR), (5, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
)
def test_a_disk_that_cannot_be_read_is_reported_and_survived(version: int, code: ErrorCode) -> None:
    platter = SimPlatter(SimLoop())
    world = DataWorld("/data", disk=platter.disk(), loop=platter.loop)
    world.topic("orders")
    world.append("orders", "a")
    platter.fail_next("pread", errno.EIO)
    assert fetch(world, "orders", 0, version=version).error_code == code
    assert values_in(fetch(world, "orders", 0, version=version)) == ["a"]


def test_an_empty_fetch_gets_an_empty_response(world: DataWorld) -> None:
    answer = world.asks(FetchRequest(max_wait_ms=1_000, min_bytes=1, **SESSIONLESS), 12)
    assert answer.was_immediate
    assert answer.answer().responses == []
