"""The coordinator runtime on real logs: replies wait for the commit; shards load, unload, fail and recover."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.coordinator import loading as loading_module
from ottla.coordinator.effects import Effects
from ottla.coordinator.group.records import group_key, offset_key
from ottla.coordinator.group.shard import GroupShard
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.records.record_batch import Codec, build_batch, control_batch, iter_batches
from ottla.replication.config import ReplicaConfig
from ottla.types import TopicPartition
from tests.support.wire.damaged import damaged
from tests.support.wire.group_requests import (
    assignment,
    commit_request,
    heartbeat_request,
    join_request,
    leave_request,
    offsets_request,
    sync_request,
)
from tests.support.worlds.coordinator_world import CoordinatorWorld
from tests.support.worlds.data_world import Asked

OFFSETS = TopicPartition("__consumer_offsets", 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CoordinatorWorld]:
    """One replica: what is appended is committed."""
    made = CoordinatorWorld(str(tmp_path))
    made.topic("orders", partitions=3)
    made.offsets_topic()
    yield made
    made.stop()
    made.close()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[CoordinatorWorld]:
    """Two replicas: nothing is committed before the follower has fetched it."""
    made = CoordinatorWorld(str(tmp_path))
    made.topic("orders", partitions=3)
    made.offsets_topic(replicas=(0, 1))
    yield made
    made.stop()
    made.close()


def catch_up(world: CoordinatorWorld) -> None:
    """The follower fetches to the end of the log."""
    replica = world.replica("__consumer_offsets")
    world.call(world.replicas.follower_fetched, replica, 1, replica.log.log_end_offset, 0)
    world.wait()


def commit(world: CoordinatorWorld, offset: int, **options: Any) -> ErrorCode:
    answer = world.ask(commit_request({0: offset}, **options), 8)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def committed(world: CoordinatorWorld, group: str = "g") -> int:
    answer = world.ask(offsets_request(group, version=7, topics={"orders": [0]}), 7)
    assert answer.error_code == 0
    return int(answer.topics[0].partitions[0].committed_offset)


def enter(world: CoordinatorWorld, group: str = "g") -> tuple[str, Asked]:
    """Both rounds of a first join."""
    member_id = world.ask(join_request(group=group), 9).member_id
    return member_id, world.asks(join_request(member_id, group=group), 9)


def settle(world: CoordinatorWorld, group: str = "g") -> str:
    """A stable group of one; its member's id."""
    member_id, joined = enter(world, group)
    answer = joined.answer()
    synced = world.ask(sync_request(member_id, answer.generation_id, {member_id: b"all"}, group=group), 5)
    assert synced.error_code == 0
    return member_id


# --- persist, then reply ------------------------------------------------------------------------------------


def test_a_reply_is_immediate_when_its_records_are_committed_at_once(world: CoordinatorWorld) -> None:
    """The handler returns the response itself, without a future or a task."""
    assert world.asks(commit_request({0: 5}), 8).was_immediate
    member_id = settle(world)
    assert world.asks(heartbeat_request(member_id, 1), 4).was_immediate
    assert world.asks(join_request(), 9).was_immediate


def test_a_reply_waits_until_its_records_are_committed(slow: CoordinatorWorld) -> None:
    """Spec: B5. Records are stored before the reply."""
    asked = slow.asks(commit_request({0: 5}), 8)
    assert not asked.is_answered
    slow.wait(1_000)
    assert not asked.is_answered
    catch_up(slow)
    assert asked.is_answered
    assert asked.answer().topics[0].partitions[0].error_code == 0


def test_a_reply_waits_for_every_record_its_shard_has_applied(slow: CoordinatorWorld) -> None:
    """Even a read: it may have seen records that are not committed yet."""
    slow.asks(commit_request({0: 5}), 8)
    read = slow.asks(offsets_request("other", version=7, topics={"orders": [0]}), 7)
    described = slow.asks(DescribeGroupsRequest(groups=["g"]), 5)
    assert not read.is_answered
    assert not described.is_answered
    catch_up(slow)
    assert read.is_answered
    assert described.is_answered


def test_an_assignment_is_sent_only_once_it_is_committed(slow: CoordinatorWorld) -> None:
    """Spec: B5."""
    first = slow.asks(join_request(), 9)
    catch_up(slow)
    member_id = first.answer().member_id
    joined = slow.asks(join_request(member_id), 9)
    slow.wait(10)
    catch_up(slow)
    assert joined.answer().generation_id == 1
    synced = slow.asks(sync_request(member_id, 1, {member_id: assignment(orders=[0])}), 5)
    slow.wait(1_000)
    assert not synced.is_answered
    catch_up(slow)
    assert synced.answer().assignment == assignment(orders=[0])


def test_a_reply_waits_for_the_disk_with_flush_before_ack(tmp_path: Path) -> None:
    """ottla.flush.before.ack."""
    world = CoordinatorWorld(str(tmp_path), config=ReplicaConfig(flush_before_ack=True))
    world.topic("orders", partitions=3)
    world.offsets_topic()
    asked = world.asks(commit_request({0: 5}), 8)
    assert not asked.was_immediate
    assert asked.answer().topics[0].partitions[0].error_code == 0
    log = world.log("__consumer_offsets")
    assert log.flushed_offset == log.log_end_offset == 1
    world.stop()
    world.close()


def test_a_reply_times_out_when_its_records_are_never_committed(slow: CoordinatorWorld) -> None:
    """After `offsets.commit.timeout.ms` the client gets COORDINATOR_NOT_AVAILABLE."""
    asked = slow.asks(commit_request({0: 5}), 8)
    read = slow.asks(offsets_request("g", version=7, topics={"orders": [0]}), 7)
    slow.wait(5_000)
    assert asked.answer().topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert read.answer().error_code == ErrorCode.NOT_COORDINATOR, "the code that consumers of all versions handle here"


def test_a_commit_whose_client_disconnects_still_counts(slow: CoordinatorWorld) -> None:
    asked = slow.asks(commit_request({0: 5}), 8)
    asked.hang_up()
    catch_up(slow)
    other = slow.asks(offsets_request("g", version=7, topics={"orders": [0]}), 7)
    assert other.answer().topics[0].partitions[0].committed_offset == 5, "its commit still counts"


def test_a_parked_join_whose_client_has_disconnected_is_dropped(world: CoordinatorWorld) -> None:
    member_id = settle(world)
    newcomer, parked = enter(world)
    assert not parked.is_answered
    parked.hang_up()
    answer = world.ask(join_request(member_id), 9)
    assert {member.member_id for member in answer.members} == {member_id, newcomer}


def test_records_of_one_step_are_one_batch(world: CoordinatorWorld) -> None:
    world.ask(commit_request({0: 1, 1: 2, 2: 3}), 8)
    log = world.log("__consumer_offsets")
    data = log.read(0, 1 << 20, upper_bound=log.log_end_offset)
    headers = [header for _, header in iter_batches(data)]
    assert [header.record_count for header in headers] == [3]


def test_a_step_with_very_many_records_is_many_batches(world: CoordinatorWorld) -> None:
    """Deleting a topic in a large shard: no batch may exceed the topic's limit."""
    world.topic("wide", partitions=100)
    for group in range(10):
        request = commit_request(dict.fromkeys(range(100), 1), topic="wide", group=f"{group}" + "x" * 6_000)
        assert {part.error_code for part in world.ask(request, 8).topics[0].partitions} == {0}
    world.delete_topic("wide")
    assert world.shard().offsets.count() == 0
    log = world.log("__consumer_offsets")
    sizes = [header.size_bytes for _, header in iter_batches(log.read(0, 1 << 26, upper_bound=log.log_end_offset))]
    assert sum(sizes) > 10_000_000
    assert max(sizes) < 1_000_000


# --- load ---------------------------------------------------------------------------------------------------


def test_a_restarted_broker_has_every_group_and_offset(world: CoordinatorWorld) -> None:
    member_id = settle(world)
    assert commit(world, 42, member_id=member_id, generation=1) == ErrorCode.NONE
    assert commit(world, 7, group="simple") == ErrorCode.NONE
    world.restart()
    world.wait(100)
    assert world.ask(heartbeat_request(member_id, 1), 4).error_code == 0
    assert (committed(world), committed(world, "simple")) == (42, 7)


def test_while_a_shard_loads_requests_get_load_in_progress(
    world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COORDINATOR_LOAD_IN_PROGRESS, except for heartbeats, which succeed."""
    for number in range(200):
        commit(world, number, group=f"g{number}")
    member_id = settle(world)
    monkeypatch.setattr(loading_module, "SLICE_BYTES", 1_000)
    monkeypatch.setattr(CoordinatorWorld, "wait", lambda self, ms=0: None)
    world.restart()
    assert world.groups.is_loading()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.ask(join_request(), 9).error_code == loading
    assert world.ask(sync_request(member_id, 1), 5).error_code == loading
    assert world.ask(leave_request((member_id, None)), 5).error_code == loading
    assert world.ask(commit_request({0: 1}), 8).topics[0].partitions[0].error_code == loading
    assert world.ask(offsets_request("g", version=7, topics={"orders": [0]}), 7).error_code == loading
    assert world.ask(ListGroupsRequest(), 4).error_code == loading
    assert world.ask(DescribeGroupsRequest(groups=["g"]), 5).groups[0].error_code == loading
    assert world.ask(heartbeat_request(member_id, 1), 4).error_code == 0, "its session has not started yet"
    monkeypatch.undo()
    world.wait(100)
    assert not world.groups.is_loading()
    assert world.ask(heartbeat_request(member_id, 1), 4).error_code == 0
    assert len(world.ask(ListGroupsRequest(), 4).groups) == 201


def test_a_load_lets_other_tasks_run(world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        commit(world, number)
    monkeypatch.setattr(loading_module, "SLICE_BYTES", 2_000)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    done: list[int] = []
    other = world.loop.create_task(count())
    # Two epochs later another broker may have led the partition, so it is loaded again.
    world.change_partitions(lambda p: p._replace(leader_epoch=p.leader_epoch + 2), "__consumer_offsets")
    while world.groups.is_loading():
        world.run(asyncio.sleep(0))
    done.append(1)
    world.run(other)
    assert turns > 10
    assert committed(world) == 299


def test_loading_leaves_the_garbage_collector_as_it_was(world: CoordinatorWorld) -> None:
    commit(world, 1)
    assert gc.isenabled()
    world.restart()
    assert gc.isenabled()
    gc.disable()
    try:
        world.restart()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_transactional_offsets_wait_for_their_marker_through_a_load(world: CoordinatorWorld) -> None:
    key = offset_key("g", "orders", 0)
    commit(world, 5)
    value = world.stored()[-1][1]
    assert value is not None
    for producer_id, marker in ((1, True), (2, False), (3, None)):
        changed = value[:9] + bytes([producer_id]) + value[10:]
        world.append_raw(
            build_batch(
                [(1, key[:-1] + bytes([producer_id - 1]), changed, ())],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
        )
        if marker is not None:
            world.append_raw(
                control_batch(
                    commit=marker, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=1
                )
            )
    world.restart()
    world.wait(100)
    answer = world.ask(offsets_request("g", version=7, topics={"orders": [0, 1, 2]}, stable=True), 7)
    found = [(part.committed_offset, part.error_code) for part in answer.topics[0].partitions]
    assert found == [(1, 0), (-1, 0), (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)]


def test_a_record_that_cannot_be_read_stops_the_load_and_is_logged(
    world: CoordinatorWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """A partial load would return wrong offsets, and "loading" forever would only make clients retry."""
    commit(world, 5)
    world.append_raw(build_batch([(1, offset_key("g", "orders", 1), b"\x00\x63 from the future", ())]))
    world.restart()
    world.wait(100)
    refused = world.ask(join_request(), 9)
    assert refused.error_code == ErrorCode.NOT_COORDINATOR
    assert world.ask(ListGroupsRequest(), 4).error_code == 0
    assert "__consumer_offsets-0 cannot be loaded" in caplog.text


def test_a_batch_that_cannot_be_decoded_stops_the_load_and_is_named(
    world: CoordinatorWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Spec: R8."""
    commit(world, 5)
    damaged_at = world.log("__consumer_offsets").log_end_offset
    world.append_raw(damaged(Codec.NONE)["bytes after the last record"])
    world.restart()
    world.wait(100)
    assert world.ask(join_request(), 9).error_code == ErrorCode.NOT_COORDINATOR
    assert f"cannot be loaded: CORRUPT_MESSAGE: the batch at offset {damaged_at} cannot be read: " in caplog.text


def test_records_of_unknown_types_are_skipped(world: CoordinatorWorld) -> None:
    commit(world, 5)
    world.append_raw(build_batch([(1, b"\x00\x03\x00\x01g", b"\x00\x00", ()), (1, b"\x7f\xff", None, ())]))
    world.restart()
    world.wait(100)
    assert committed(world) == 5


# --- losing and gaining partitions --------------------------------------------------------------------------


def test_waiting_requests_are_answered_when_the_coordinator_loses_its_partition(world: CoordinatorWorld) -> None:
    """NOT_COORDINATOR, and the member keeps its id."""
    member_id = settle(world)
    _, parked = enter(world)
    assert not parked.is_answered
    world.change_partitions(lambda p: p._replace(leader=1, leader_epoch=1), "__consumer_offsets")
    answer = parked.answer()
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    assert answer.member_id
    assert world.ask(heartbeat_request(member_id, 1), 4).error_code == ErrorCode.NOT_COORDINATOR
    assert world.ask(ListGroupsRequest(), 4).groups == []


def test_replies_that_wait_for_a_commit_fail_when_the_partition_is_lost(slow: CoordinatorWorld) -> None:
    asked = slow.asks(commit_request({0: 5}), 8)
    slow.change_partitions(lambda p: p._replace(leader=1, leader_epoch=1), "__consumer_offsets")
    assert asked.answer().topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


def test_a_partition_that_comes_back_is_loaded_again(world: CoordinatorWorld) -> None:
    member_id = settle(world)
    world.change_partitions(lambda p: p._replace(leader=1, leader_epoch=1), "__consumer_offsets")
    world.change_partitions(lambda p: p._replace(leader=0, leader_epoch=2), "__consumer_offsets")
    world.wait(100)
    assert world.ask(heartbeat_request(member_id, 1), 4).error_code == 0
    assert world.groups.epoch_of(0) == 2


def test_a_new_epoch_of_the_same_leader_does_not_disturb_the_group(world: CoordinatorWorld) -> None:
    settle(world)
    _, parked = enter(world)
    before = world.shard()
    world.change_partitions(lambda p: p._replace(leader_epoch=1), "__consumer_offsets")
    assert not parked.is_answered
    assert world.shard() is before
    assert world.groups.epoch_of(0) == 1


def test_if_another_broker_may_have_led_in_between_the_log_is_loaded_again(world: CoordinatorWorld) -> None:
    """Two epochs later: an image was missed, and with it a leader that may have written."""
    settle(world)
    _, parked = enter(world)
    before = world.shard()
    world.change_partitions(lambda p: p._replace(leader_epoch=2), "__consumer_offsets")
    world.wait(100)
    assert parked.is_answered
    assert parked.answer().error_code == ErrorCode.NOT_COORDINATOR
    assert world.shard() is not before


def test_a_recreated_topic_is_a_new_coordinator(world: CoordinatorWorld) -> None:
    commit(world, 5)
    world.offsets_topic(generation=1)
    world.wait(100)
    assert committed(world) == -1


def test_only_partitions_led_here_are_coordinated_here(world: CoordinatorWorld) -> None:
    world.offsets_topic(partitions=4)
    world.change_partitions(
        lambda p: p._replace(leader=p.index % 2, leader_epoch=p.leader_epoch + p.index % 2), "__consumer_offsets"
    )
    world.wait(100)
    codes = {world.groups.partition_of(name): commit(world, 1, group=name) for name in "abcdefghijkl"}
    assert {p: code for p, code in codes.items() if p % 2 == 0} == {0: ErrorCode.NONE, 2: ErrorCode.NONE}
    assert {code for p, code in codes.items() if p % 2} == {ErrorCode.NOT_COORDINATOR}


def test_before_its_topic_exists_there_is_no_coordinator(tmp_path: Path) -> None:
    world = CoordinatorWorld(str(tmp_path))
    world.topic("orders")
    assert world.ask(join_request(), 9).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.ask(offsets_request("g", version=7), 7).error_code == ErrorCode.NOT_COORDINATOR
    assert world.ask(ListGroupsRequest(), 4).groups == []
    world.stop()
    world.close()


# --- appends that fail --------------------------------------------------------------------------------------


class Broken:
    """Makes appends to the coordinator's topic fail until it is repaired."""

    def __init__(self, world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch, code: ErrorCode) -> None:
        self.attempts = 0
        self.is_broken = True
        append = world.replicas.append

        def fail(partition: TopicPartition, *arguments: Any, **options: Any) -> Any:
            if self.is_broken and partition.topic == "__consumer_offsets":
                self.attempts += 1
                raise KafkaError(code, "on purpose")
            return append(partition, *arguments, **options)

        monkeypatch.setattr(world.replicas, "append", fail)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_commit_that_cannot_be_appended_is_refused_and_changes_nothing(
    world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch, failure: ErrorCode, expected: ErrorCode
) -> None:
    """The error codes of a failed append are translated for the clients of a coordinator."""
    commit(world, 5)
    before = world.shard()
    broken = Broken(world, monkeypatch, failure)
    assert commit(world, 6) == expected
    assert commit(world, 1, group="new") == expected
    broken.is_broken = False
    assert committed(world) == 5
    assert world.shard() is before, "nothing to roll back"
    assert "new" not in world.shard().groups


def test_an_assignment_that_cannot_be_appended_is_rolled_back(
    world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard is reloaded from its log, so the group is unchanged."""
    member_id = settle(world)
    assert commit(world, 5, member_id=member_id, generation=1) == ErrorCode.NONE
    assert world.ask(join_request(member_id), 9).generation_id == 2
    broken = Broken(world, monkeypatch, ErrorCode.KAFKA_STORAGE_ERROR)
    refused = world.ask(sync_request(member_id, 2, {member_id: b"lost"}), 5)
    assert refused.error_code == ErrorCode.NOT_COORDINATOR
    broken.is_broken = False
    world.wait(100)
    group = world.shard().groups["g"]
    assert (group.state, group.generation) == ("Stable", 1)
    assert world.ask(sync_request(member_id, 1), 5).assignment == b"all"
    assert world.ask(heartbeat_request(member_id, 2), 4).error_code == ErrorCode.ILLEGAL_GENERATION
    assert committed(world) == 5
    # And it continues from there.
    assert world.ask(join_request(member_id), 9).generation_id == 2


def test_a_group_that_could_not_be_stored_does_not_exist(
    world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken(world, monkeypatch, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert world.ask(join_request(), 9).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    broken.is_broken = False
    world.wait(100)
    assert world.ask(ListGroupsRequest(), 4).groups == []
    settle(world)


def test_too_few_replicas_in_sync_refuse_a_commit(tmp_path: Path) -> None:
    """The same with the real replica manager."""
    world = CoordinatorWorld(str(tmp_path))
    world.topic("orders", partitions=3)
    world.offsets_topic(replicas=(0, 1), isr=(0,), configs={"min.insync.replicas": "2"})
    assert commit(world, 5) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed(world) == -1
    world.stop()
    world.close()


def test_an_expiry_that_cannot_be_appended_is_retried(world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    interval = world.broker_config.offsets_retention_check_interval_ms
    world.ask(commit_request({0: 5}, retention_ms=1), 4)
    broken = Broken(world, monkeypatch, ErrorCode.KAFKA_STORAGE_ERROR)
    world.wait(interval + 10)
    assert broken.attempts == 1
    broken.is_broken = False
    assert committed(world) == 5
    world.wait(interval + 10)
    assert committed(world) == -1


# --- steps that fail ------------------------------------------------------------------------------------


def test_a_step_that_fails_by_a_bug_leaves_no_partial_change(
    world: CoordinatorWorld, caplog: pytest.LogCaptureFixture
) -> None:
    member_id = settle(world)

    def bug(shard: Any, request_id: int, now: int) -> Effects[Any]:
        shard.groups["g"].members.clear()
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        world.call(world.groups.submit, "g", bug)
    world.wait(100)
    assert world.ask(heartbeat_request(member_id, 1), 4).error_code == 0
    assert "a step failed" in caplog.text


def test_a_timer_that_fails_does_not_stop_the_other_timers(
    world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.offsets_topic(partitions=2)
    world.wait(100)
    names = {world.groups.partition_of(name): name for name in "abcd"}
    members = {partition: settle(world, names[partition]) for partition in (0, 1)}

    def bug(now: int) -> Effects[Any]:
        raise RuntimeError("a bug")

    monkeypatch.setattr(world.shard(names[0]), "tick", bug)
    world.wait(11_000)
    gone = world.ask(heartbeat_request(members[1], 1, group=names[1]), 4)
    assert gone.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.ask(heartbeat_request(members[0], 1, group=names[0]), 4).error_code == 0, "reloaded"
    world.wait(11_000)
    gone = world.ask(heartbeat_request(members[0], 1, group=names[0]), 4)
    assert gone.error_code == ErrorCode.UNKNOWN_MEMBER_ID, "and its timer runs again"


def test_a_kafka_error_does_not_reload_the_shard(world: CoordinatorWorld) -> None:
    before = world.shard()

    def refuse(shard: Any, request_id: int, now: int) -> Effects[Any]:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)

    with pytest.raises(KafkaError):
        world.call(world.groups.submit, "g", refuse)
    assert world.shard() is before


def test_a_nested_step_does_not_take_the_outer_reply(world: CoordinatorWorld) -> None:
    def outer(shard: Any, request_id: int, now: int) -> Effects[Any]:
        inner = world.groups.submit("g", lambda s, inner_id, n: reply(inner_id, "inner"))
        assert inner == "inner"
        return reply(request_id, "outer")

    assert world.call(world.groups.submit, "g", outer) == "outer"


def reply(request_id: int, response: Any) -> Effects[Any]:
    effects: Effects[Any] = Effects()
    effects.reply(request_id, response)
    return effects


def test_a_shard_that_fails_to_unload_is_replaced_anyway(
    world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    member_id = settle(world)

    def bug(*_: Any) -> Effects[Any]:
        raise RuntimeError("a bug")

    monkeypatch.setattr(world.shard(), "on_unloaded", bug)
    with pytest.raises(RuntimeError):
        world.call(world.groups.submit, "g", bug)
    world.wait(100)
    assert world.ask(heartbeat_request(member_id, 1), 4).error_code == 0
    assert "could not answer every waiting request" in caplog.text


def test_a_shard_that_fails_to_start_counts_as_failed_to_load(
    world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(world, 5)

    def bug(*_: Any) -> Effects[Any]:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(GroupShard, "on_loaded", bug)
        world.restart()
        world.wait(100)
        assert world.ask(join_request(), 9).error_code == ErrorCode.NOT_COORDINATOR
    # The load is retried in a new epoch.
    world.change_partitions(lambda p: p._replace(leader_epoch=p.leader_epoch + 1), "__consumer_offsets")
    world.wait(100)
    assert committed(world) == 5


def test_a_step_that_no_request_waits_for_may_raise_an_error(world: CoordinatorWorld) -> None:
    before = world.shard()

    def refuse(shard: Any, now: int) -> Effects[Any]:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)

    with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
        world.call(world.groups.update, "g", refuse)
    assert world.shard() is before


def test_a_partition_that_cannot_be_opened_is_not_coordinated(
    world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replica is offline: the image says we lead it, but there is no log."""
    with monkeypatch.context() as patched:
        patched.setattr(world.replicas, "find", lambda topic, partition: None)
        world.offsets_topic(generation=1)
        assert world.ask(join_request(), 9).error_code == ErrorCode.NOT_COORDINATOR
    world.change_partitions(lambda p: p, "orders")
    assert world.ask(join_request(), 9).error_code == ErrorCode.MEMBER_ID_REQUIRED, "retried with the next image"


def test_a_reply_fails_when_its_partition_has_vanished(
    world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    member_id = settle(world)
    monkeypatch.setattr(world.replicas, "find", lambda topic, partition: None)
    assert world.ask(heartbeat_request(member_id, 1), 4).error_code == ErrorCode.NOT_COORDINATOR


# --- time ---------------------------------------------------------------------------------------------------


def test_timers_fire_when_they_are_due(world: CoordinatorWorld) -> None:
    member_id = settle(world)
    world.wait(9_990)
    assert world.ask(heartbeat_request(member_id, 1), 4).error_code == 0
    world.wait(9_990)
    assert world.shard().groups["g"].state == "Stable"
    world.wait(20)
    assert world.shard().groups["g"].state == "Empty"


def test_one_timer_serves_all_shards_and_none_is_armed_without_deadlines(world: CoordinatorWorld) -> None:
    world.offsets_topic(partitions=5)
    world.wait(100)
    for name in "abcdefgh":
        settle(world, name)
    armed = [handle for handle in world.loop._scheduled if "_tick" in repr(handle) and not handle.cancelled()]  # type: ignore[attr-defined]  # noqa: SLF001
    assert len(armed) == 1


def test_a_clock_that_jumps_expires_no_session(world: CoordinatorWorld, caplog: pytest.LogCaptureFixture) -> None:
    """A laptop that slept or a clock that was set: the loop's time did not advance, so no member is late."""
    member_id = settle(world)
    for jump_ms in (3_600_000, -7_200_000):
        world.loop.start_ms += jump_ms
        world.wait(5_000)
        assert world.ask(heartbeat_request(member_id, 1), 4).error_code == 0
        world.wait(9_000)
        assert world.ask(heartbeat_request(member_id, 1), 4).error_code == 0
    assert "the clock jumped" in caplog.text
    world.wait(10_010)
    gone = world.ask(heartbeat_request(member_id, 1), 4)
    assert gone.error_code == ErrorCode.UNKNOWN_MEMBER_ID, "and time continues"


def test_a_broker_that_was_blocked_expires_no_session(
    world: CoordinatorWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGSTOP for a minute: heartbeats that arrived meanwhile are still unread when the timers fire."""
    member_id = settle(world)
    world.loop.now += 60
    world.wait(100)
    assert world.ask(heartbeat_request(member_id, 1), 4).error_code == 0
    assert "was blocked" in caplog.text
    world.wait(10_010)
    assert world.ask(heartbeat_request(member_id, 1), 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- stop ---------------------------------------------------------------------------------------------------


def test_a_broker_that_stops_answers_waiting_requests_with_not_coordinator(tmp_path: Path) -> None:
    world = CoordinatorWorld(str(tmp_path))
    world.topic("orders", partitions=3)
    world.offsets_topic()
    settle(world)
    _, parked = enter(world)
    world.stop()
    assert parked.answer().error_code == ErrorCode.NOT_COORDINATOR
    assert world.loop.run_until_complete(asyncio.sleep(3600)) is None, "no timer is left to fire"
    world.close()


def test_replies_that_wait_for_a_commit_fail_when_the_broker_stops(tmp_path: Path) -> None:
    world = CoordinatorWorld(str(tmp_path))
    world.topic("orders", partitions=3)
    world.offsets_topic(replicas=(0, 1))
    asked = world.asks(commit_request({0: 5}), 8)
    world.stop()
    assert asked.is_answered
    assert asked.answer().topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    world.close()


def test_a_load_in_progress_ends_with_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = CoordinatorWorld(str(tmp_path))
    world.topic("orders", partitions=3)
    world.offsets_topic()
    for number in range(100):
        commit(world, number)
    monkeypatch.setattr(loading_module, "SLICE_BYTES", 500)
    with monkeypatch.context() as patched:
        patched.setattr(CoordinatorWorld, "wait", lambda self, ms=0: None)
        world.restart()
        assert world.groups.is_loading()
    groups = world.groups
    world.stop()
    world.wait(100)
    assert list(groups.active_shards()) == []
    world.close()


def test_the_stored_topic_holds_exactly_the_decided_records(world: CoordinatorWorld) -> None:
    member_id = settle(world)
    commit(world, 5, member_id=member_id, generation=1)
    world.ask(leave_request((member_id, None)), 5)
    keys = [key for key, _ in world.stored()]
    assert keys == [group_key("g"), group_key("g"), offset_key("g", "orders", 0), group_key("g")]
