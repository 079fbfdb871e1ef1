"""Coordinators whose partitions change leaders and leader epochs: at any moment, back and forth. Spec: B5, E6"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.coordinator import loading as loading_module
from ottla.coordinator.transaction.starting import ProducerInit
from ottla.coordinator.transaction.transaction import ProducerIdAndEpoch
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.image import ClusterImage
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from ottla.protocol.records.record_batch import iter_batches
from ottla.types import TopicPartition
from tests.support.wire.group_requests import (
    commit_request,
    heartbeat_request,
    join_request,
    offsets_request,
    sync_request,
    transactional_commit_request,
)
from tests.support.worlds.coordinator_world import CoordinatorWorld

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
ORDERS = TopicPartition("orders", 0)


def coordinators_of_two(directory: str) -> CoordinatorWorld:
    """Brokers 0 and 1 hold the coordinators' topics; the test is broker 1, and decides who leads."""
    made = CoordinatorWorld(directory)
    made.topic("orders", partitions=3)
    made.offsets_topic(replicas=(0, 1))
    made.topic(TRANSACTIONS, replicas=(0, 1), configs={"cleanup.policy": "compact", "min.insync.replicas": "2"})
    return made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CoordinatorWorld]:
    made = coordinators_of_two(str(tmp_path))
    yield made
    made.stop()
    made.close()


def catch_up(world: CoordinatorWorld, topic: str = OFFSETS) -> None:
    """Broker 1 fetches to the end of the log."""
    replica = world.replica(topic)
    if replica.is_leader:
        world.call(world.replicas.follower_fetched, replica, 1, replica.log.log_end_offset, 0)
    world.wait()


def moved(world: CoordinatorWorld, topic: str, **changes: Any) -> ClusterImage:
    """The image after a change of the topic's partitions."""
    known = world.image.topics[topic]
    partitions = tuple(p._replace(partition_epoch=p.partition_epoch + 1, **changes) for p in known.partitions)
    topics = {**world.image.topics, topic: known._replace(partitions=partitions)}
    return replace(world.image, topics=topics, version=world.image.version + 1)


def move(world: CoordinatorWorld, topic: str, *, leader: int | None = None, **changes: Any) -> None:
    """Another leader, or a new epoch of the same."""
    known = world.image.topics[topic].partitions[0]
    changes = {"leader": known.leader if leader is None else leader, "leader_epoch": known.leader_epoch + 1, **changes}
    world.publish(moved(world, topic, **changes))


def join(world: CoordinatorWorld) -> str:
    """The first member of a group, which has not synced yet; its id."""
    first = world.asks(join_request(), 9)
    catch_up(world)
    member_id = str(first.answer().member_id)
    joined = world.asks(join_request(member_id), 9)
    world.wait(10)
    catch_up(world)
    assert joined.answer().generation_id == 1
    return member_id


def settle(world: CoordinatorWorld) -> str:
    """A stable group of one; its member's id."""
    member_id = join(world)
    synced = world.asks(sync_request(member_id, 1, {member_id: b"all"}), 5)
    catch_up(world)
    assert synced.answer().error_code == 0
    return member_id


def heartbeat(world: CoordinatorWorld, member_id: str) -> ErrorCode:
    return ErrorCode(world.ask(heartbeat_request(member_id, 1), 4).error_code)


# --- groups -------------------------------------------------------------------------------------------------


def test_members_learn_at_once_that_the_coordinator_has_moved(world: CoordinatorWorld) -> None:
    """Even while the image is still being applied: applying one with many partitions takes several turns."""
    member_id = settle(world)
    world.call(world.replicas.apply, moved(world, OFFSETS, leader=1, leader_epoch=1))
    assert heartbeat(world, member_id) == ErrorCode.NOT_COORDINATOR
    commit = world.ask(commit_request({0: 5}, member_id=member_id, generation=1), 8)
    assert commit.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    offsets = world.ask(offsets_request("g", version=7, topics={"orders": [0]}), 7)
    assert offsets.error_code == ErrorCode.NOT_COORDINATOR


def test_a_step_that_fails_while_the_partition_is_being_lost_does_not_load_it_again(world: CoordinatorWorld) -> None:
    member_id = join(world)
    world.call(world.replicas.apply, moved(world, OFFSETS, leader=1, leader_epoch=1))
    synced = world.ask(sync_request(member_id, 1, {member_id: b"all"}), 5)
    assert synced.error_code == ErrorCode.NOT_COORDINATOR
    assert heartbeat(world, member_id) == ErrorCode.NOT_COORDINATOR
    assert not list(world.groups.active_shards())
    assert not world.groups.is_loading()


def test_a_group_survives_any_number_of_moves_without_a_rebalance(world: CoordinatorWorld) -> None:
    """Members keep their ids and their generation; sessions start again with each load."""
    member_id = settle(world)
    for _ in range(5):
        world.wait(5_000)
        move(world, OFFSETS, leader=1)
        assert heartbeat(world, member_id) == ErrorCode.NOT_COORDINATOR
        world.wait(5_000)
        move(world, OFFSETS, leader=0)
        catch_up(world)
        assert heartbeat(world, member_id) == ErrorCode.NONE
    world.wait(9_000)
    assert heartbeat(world, member_id) == ErrorCode.NONE, "its session began with the last load"


def test_a_load_that_a_move_interrupts_begins_again_when_the_partition_returns(
    world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    member_id = settle(world)
    for number in range(200):
        world.asks(commit_request({0: number}, member_id=member_id, generation=1), 8)
    catch_up(world)
    monkeypatch.setattr(loading_module, "SLICE_BYTES", 500)

    def publish(leader: int, epoch: int) -> None:
        world._publish(moved(world, OFFSETS, leader=leader, leader_epoch=epoch))  # noqa: SLF001

    def back_and_forth() -> None:
        for epoch in range(1, 20):
            publish(epoch % 2, epoch)

    world.call(back_and_forth)
    assert not world.groups.is_loading(), "the last leader is broker 1"
    assert heartbeat(world, member_id) == ErrorCode.NOT_COORDINATOR
    world.call(publish, 0, 20)
    assert world.groups.is_loading()
    commit = world.ask(commit_request({0: 200}, member_id=member_id, generation=1), 8)
    assert commit.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.wait(100)
    world.wait(100)
    catch_up(world)
    assert heartbeat(world, member_id) == ErrorCode.NONE
    offsets = world.ask(offsets_request("g", version=7, topics={"orders": [0]}), 7)
    assert offsets.topics[0].partitions[0].committed_offset == 199
    (hosted,) = world.groups.active_shards()
    assert hosted.epoch == 20


def test_a_group_waits_while_too_few_replicas_are_in_sync(
    world: CoordinatorWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that cannot be stored is not even tried: every attempt would load the shard again. No session expires,
    because no member could join either."""
    known = world.image.topics[OFFSETS]
    topics = {**world.image.topics, OFFSETS: known._replace(configs={**known.configs, "min.insync.replicas": "2"})}
    world.publish(replace(world.image, topics=topics))
    member_id = settle(world)
    (before,) = world.groups.active_shards()
    world.publish(moved(world, OFFSETS, isr=(0,)))
    refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
    for _ in range(20):
        assert world.ask(join_request(), 9).error_code == refused
        assert world.ask(sync_request(member_id, 1, {member_id: b"all"}), 5).error_code == refused
        commit = world.ask(commit_request({0: 5}, member_id=member_id, generation=1), 8)
        assert commit.topics[0].partitions[0].error_code == refused
        assert world.ask(offsets_request("g", version=7, topics={"orders": [0]}), 7).error_code == 0, "reads go on"
        world.wait(3_000)
    assert "blocked" not in caplog.text
    world.publish(moved(world, OFFSETS, isr=(0, 1)))
    assert heartbeat(world, member_id) == ErrorCode.NONE
    assert list(world.groups.active_shards()) == [before], "the shard was never loaded again"
    world.wait(12_000)
    catch_up(world)
    assert heartbeat(world, member_id) == ErrorCode.UNKNOWN_MEMBER_ID, "sessions expire again"


# --- transactions -------------------------------------------------------------------------------------------


def submit(world: CoordinatorWorld, decide: Any) -> Any:
    """The reply, once broker 1 has fetched what the step appended."""
    assert world.coordinators is not None
    reply = world.call(world.coordinators.transactions.submit, "x", decide)
    catch_up(world, TRANSACTIONS)
    return world.run(reply) if hasattr(reply, "__await__") else reply


def open_transaction(world: CoordinatorWorld) -> ProducerIdAndEpoch:
    init = ProducerInit("x", 60_000)
    producer: ProducerIdAndEpoch = submit(world, lambda shard, rid, now: shard.init_producer_id(init, 1000, rid, now))
    submit(world, lambda shard, rid, now: shard.add_partitions("x", *producer[:2], [ORDERS], rid, now))
    return producer


def decide(world: CoordinatorWorld, producer: ProducerIdAndEpoch) -> Any:
    """EndTxn, which waits for broker 1."""
    assert world.coordinators is not None
    return world.call(
        world.coordinators.transactions.submit,
        "x",
        lambda shard, rid, now: shard.end("x", *producer[:2], True, -1, rid, now, bumps_epoch=True),
    )


def markers(world: CoordinatorWorld) -> int:
    log = world.log("orders")
    data = log.read(0, 1 << 20, upper_bound=log.log_end_offset)
    return sum(header.is_control for _, header in iter_batches(data))


def state(world: CoordinatorWorld) -> str:
    assert world.coordinators is not None
    return str(world.coordinators.transactions.shard("x").transactions["x"].state)


def outcome(world: CoordinatorWorld, reply: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        world.run(reply)
    return raised.value.code


def test_a_decision_is_carried_out_although_too_few_replicas_were_in_sync_for_a_while(world: CoordinatorWorld) -> None:
    """The client is told to retry. The decision is in the log: nothing else would write its markers."""
    reply = decide(world, open_transaction(world))
    world.publish(moved(world, TRANSACTIONS, isr=(0,)))
    assert outcome(world, reply) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert markers(world) == 0, "it is not committed yet"
    world.publish(moved(world, TRANSACTIONS, isr=(0, 1)))
    catch_up(world, TRANSACTIONS)
    world.wait(100)
    assert markers(world) == 1
    catch_up(world, TRANSACTIONS)
    assert state(world) == "CompleteCommit"


def test_a_decision_is_carried_out_although_a_new_epoch_of_the_same_leader_began(world: CoordinatorWorld) -> None:
    """As after a session with the metadata store that expired: the shard stays in use."""
    reply = decide(world, open_transaction(world))
    move(world, TRANSACTIONS)
    assert outcome(world, reply) == ErrorCode.NOT_COORDINATOR
    catch_up(world, TRANSACTIONS)
    world.wait(100)
    assert markers(world) == 1


def test_a_decision_is_carried_out_by_the_next_coordinator_only(
    world: CoordinatorWorld, caplog: pytest.LogCaptureFixture
) -> None:
    reply = decide(world, open_transaction(world))
    move(world, TRANSACTIONS, leader=1)
    assert outcome(world, reply) == ErrorCode.NOT_COORDINATOR
    world.wait(60_000)
    assert markers(world) == 0, "this broker does not know whether the decision was committed"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    move(world, TRANSACTIONS, leader=0)
    catch_up(world, TRANSACTIONS)
    world.wait(100)
    assert markers(world) == 1


def test_markers_that_wait_for_a_leader_are_written_as_soon_as_there_is_one(world: CoordinatorWorld) -> None:
    producer = open_transaction(world)
    world.publish(moved(world, "orders", leader=-1, leader_epoch=1))
    decide(world, producer)
    catch_up(world, TRANSACTIONS)
    world.wait(60_000)
    assert state(world) == "PrepareCommit"
    world.publish(moved(world, "orders", leader=0, leader_epoch=2))
    assert markers(world) == 1, "not after the pause between two attempts"
    catch_up(world, TRANSACTIONS)
    assert state(world) == "CompleteCommit"


def test_markers_are_ordered_once_however_often_the_coordinator_moves(world: CoordinatorWorld) -> None:
    """The retries of an earlier load end: otherwise there would be more and more of them."""
    producer = open_transaction(world)
    world.publish(moved(world, "orders", leader=-1, leader_epoch=1))
    decide(world, producer)
    catch_up(world, TRANSACTIONS)
    for _ in range(5):
        world.wait(5_000)
        # Faster than the pause between two attempts.
        move(world, TRANSACTIONS, leader=1)
        move(world, TRANSACTIONS, leader=0)
        catch_up(world, TRANSACTIONS)
    world.publish(moved(world, "orders", leader=0, leader_epoch=2))
    world.wait(5_000)
    assert markers(world) == 1


def test_offsets_verified_in_an_earlier_leader_epoch_are_not_stored(world: CoordinatorWorld) -> None:
    """Another broker led the group's partition in between. The producer finds the coordinator again, and retries."""
    producer = open_transaction(world)
    assert world.coordinators is not None
    partition = [TopicPartition(OFFSETS, 0)]
    # Not committed yet, so the verification waits.
    world.call(
        world.coordinators.transactions.submit,
        "x",
        lambda shard, rid, now: shard.add_partitions("x", *producer[:2], partition, rid, now),
    )
    ids = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    asked = world.asks(transactional_commit_request({0: 5}, **ids, transactional_id="x"), 4)  # type: ignore[arg-type]
    assert not asked.is_answered
    move(world, OFFSETS, leader=1)
    move(world, OFFSETS, leader=0)
    catch_up(world, TRANSACTIONS)
    assert asked.answer().topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert world.log(OFFSETS).log_end_offset == 0


def test_a_sender_of_markers_that_disconnects_disturbs_nobody(world: CoordinatorWorld) -> None:
    """The answers wait for the commit, together with everybody else who waits for it."""
    world.topic("slow", replicas=(0, 1))
    topics = [WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="slow", partition_indexes=[0])]
    fields: dict[str, Any] = {
        "producer_id": 7,
        "producer_epoch": 0,
        "transaction_result": True,
        "coordinator_epoch": 0,
    }
    markers = [WriteTxnMarkersRequest.WritableTxnMarker(**fields, topics=topics) for _ in range(2)]
    gone = world.asks(WriteTxnMarkersRequest(markers=markers), 2)
    there = world.asks(WriteTxnMarkersRequest(markers=markers), 2)
    gone.hang_up()
    assert not there.is_answered
    catch_up(world, "slow")
    answer = there.answer()
    assert [m.topics[0].partitions[0].error_code for m in answer.markers] == [0, 0]
