"""What a follower asks for, and what it does with the answers: sessions, stale answers, truncation."""

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.log.leader_epochs import EpochEndOffset, LeaderEpochCache
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.records.record_batch import stamp
from ottla.replication.following import (
    APPEND,
    IGNORE,
    RETRY,
    Do,
    FetchPlan,
    Followed,
    LeaderFetches,
    Limits,
    Sender,
    Step,
    decide,
    divergence,
)
from ottla.replication.replica import Replica
from tests.support.worlds.data_world import DataWorld, batch_of, topic_id_of

ORDERS = topic_id_of("orders")
LIMITS = Limits(max_wait_ms=500, min_bytes=1, max_bytes=10_000, partition_max_bytes=1_000)
PartitionData = FetchResponse.PartitionData


@pytest.fixture
def world(tmp_path: Any) -> Iterator[DataWorld]:
    world = DataWorld(str(tmp_path))
    yield world
    world.close()


class Follower:
    """Broker 0 follows broker 1: the test plays the leader."""

    def __init__(self, world: DataWorld, partitions: int = 2) -> None:
        self.world = world
        self.epoch = 5
        world.topic("orders", partitions=partitions, replicas=(1, 0), leader_epoch=self.epoch)
        self.fetches = LeaderFetches()
        self.followed = [self.fetches.follow(self.replica(index)) for index in range(partitions)]

    def replica(self, index: int) -> Replica:
        return self.world.replica("orders", index)

    def send(self) -> FetchPlan:
        assert self.fetches.may_send
        return self.fetches.next_request(Sender(0, 77), LIMITS)

    def answer(
        self, plan: FetchPlan, *partitions: Any, session_id: int = 9, error_code: int = 0
    ) -> list[tuple[Followed, Any]]:
        topics = [FetchResponse.FetchableTopicResponse(topic_id=ORDERS, partitions=list(partitions))]
        return self.fetches.answered(
            plan, FetchResponse(session_id=session_id, error_code=error_code, responses=topics)
        )

    def start_session(self) -> None:
        self.answer(self.send())

    def appends(self, index: int, count: int) -> None:
        """Appends as if the leader had sent it."""
        log = self.replica(index).log
        for _ in range(count):
            batch = bytearray(batch_of("x"))
            stamp(batch, log.log_end_offset, self.epoch)
            log.append_replicated(batch)
        self.fetches.moved(self.followed[index])


def named(plan: FetchPlan) -> dict[int, int]:
    """The partitions that a request names, with the offsets it asks for."""
    return {p.partition: p.fetch_offset for topic in plan.request.topics for p in topic.partitions}


def forgotten(plan: FetchPlan) -> list[int]:
    return [index for topic in plan.request.forgotten_topics_data for index in topic.partitions]


# -- requests --


def test_the_first_request_names_everything_and_does_not_wait(world: DataWorld) -> None:
    follower = Follower(world)
    follower.appends(1, 3)
    plan = follower.send()
    assert named(plan) == {0: 0, 1: 3}
    assert (plan.request.session_id, plan.request.session_epoch) == (0, 0)
    assert plan.request.max_wait_ms == 0, "without a session, a change could not be sent while it waits"
    assert (plan.request.replica_state.replica_id, plan.request.replica_state.replica_epoch) == (0, 77)
    asked = plan.request.topics[0].partitions[1]
    assert (asked.current_leader_epoch, asked.last_fetched_epoch, asked.log_start_offset) == (5, 5, 0)


def test_later_requests_name_only_what_has_moved(world: DataWorld) -> None:
    follower = Follower(world)
    follower.start_session()
    follower.appends(1, 2)
    plan = follower.send()
    assert named(plan) == {1: 2}
    assert (plan.request.session_id, plan.request.session_epoch) == (9, 1)
    assert plan.request.max_wait_ms == 500
    follower.answer(plan)
    assert named(follower.send()) == {}


def test_without_room_for_a_session_every_request_names_everything_and_waits(world: DataWorld) -> None:
    follower = Follower(world)
    follower.answer(follower.send(), session_id=0)
    plan = follower.send()
    assert named(plan) == {0: 0, 1: 0}
    assert plan.request.max_wait_ms == 500


def test_a_change_is_sent_while_a_fetch_waits_but_only_one(world: DataWorld) -> None:
    follower = Follower(world, partitions=1)
    follower.start_session()
    follower.send()
    assert not follower.fetches.may_send, "nothing has changed"
    follower.world.topic("late", replicas=(1, 0), leader_epoch=3)
    follower.fetches.follow(world.replica("late"))
    assert [topic.topic_id for topic in follower.send().request.topics] == [topic_id_of("late")]
    follower.fetches.moved(follower.followed[0])
    assert not follower.fetches.may_send, "two are in flight"


def test_a_lost_session_or_connection_starts_again_with_everything(world: DataWorld) -> None:
    follower = Follower(world)
    follower.start_session()
    follower.answer(follower.send(), error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    plan = follower.send()
    assert named(plan) == {0: 0, 1: 0}
    assert plan.request.session_epoch == 0
    follower.answer(plan)
    follower.send()
    follower.fetches.lost()
    assert named(follower.send()) == {0: 0, 1: 0}


def test_a_partition_with_another_leader_is_forgotten_and_may_come_back(world: DataWorld) -> None:
    follower = Follower(world)
    follower.start_session()
    follower.fetches.unfollow((ORDERS, 0))
    plan = follower.send()
    assert (forgotten(plan), named(plan)) == ([0], {})
    follower.answer(plan)
    follower.fetches.follow(follower.replica(0))
    plan = follower.send()
    assert (forgotten(plan), named(plan)) == ([], {0: 0})


def test_a_delayed_partition_is_left_out_until_it_resumes(world: DataWorld) -> None:
    follower = Follower(world)
    follower.start_session()
    follower.fetches.delay(follower.followed[0])
    follower.fetches.moved(follower.followed[0])
    plan = follower.send()
    assert (forgotten(plan), named(plan)) == ([0], {})
    follower.answer(plan)
    follower.fetches.resume(follower.followed[0])
    assert named(follower.send()) == {0: 0}


def test_nothing_is_sent_while_every_partition_is_delayed(world: DataWorld) -> None:
    follower = Follower(world, partitions=1)
    follower.start_session()
    follower.fetches.delay(follower.followed[0])
    assert not follower.fetches.may_send


def test_an_earlier_epoch_of_a_partition_does_not_resume(world: DataWorld) -> None:
    follower = Follower(world, partitions=1)
    follower.start_session()
    old = follower.followed[0]
    follower.fetches.delay(old)
    new = follower.fetches.follow(follower.replica(0))
    follower.fetches.resume(old)
    assert not follower.fetches.is_current(old)
    assert not new.is_delayed


# -- answers --


def test_records_are_appended(world: DataWorld) -> None:
    follower = Follower(world)
    plan = follower.send()
    ((followed, data),) = follower.answer(plan, PartitionData(partition_index=0, records=b"records"))
    assert decide(followed, plan.number, data) == APPEND


def test_an_answer_for_another_offset_is_stale(world: DataWorld) -> None:
    """KAFKA-18991: appending it would repeat records, or put them in the wrong place."""
    follower = Follower(world)
    plan = follower.send()
    follower.appends(0, 1)
    ((followed, data),) = follower.answer(plan, PartitionData(partition_index=0, records=b"records"))
    assert decide(followed, plan.number, data) == IGNORE


def test_an_answer_for_another_leader_epoch_is_stale(world: DataWorld) -> None:
    follower = Follower(world)
    plan = follower.send()
    world.change_partitions(lambda p: p._replace(leader_epoch=6))
    ((followed, data),) = follower.answer(plan, PartitionData(partition_index=0, records=b"records"))
    assert decide(followed, plan.number, data) == IGNORE
    follower.fetches.follow(follower.replica(0))
    ((followed, data),) = follower.answer(plan, PartitionData(partition_index=0, records=b"records"))
    assert decide(followed, plan.number, data) == IGNORE, "it is not in the request that was answered"


def test_an_answer_for_a_deleted_topic_of_the_same_name_is_dropped(world: DataWorld) -> None:
    follower = Follower(world)
    plan = follower.send()
    follower.fetches.unfollow((ORDERS, 0))
    world.topic("orders", replicas=(1, 0), leader_epoch=5, generation=1)
    follower.fetches.follow(world.replica("orders", 0))
    assert [followed.key for followed, _ in follower.answer(plan, PartitionData(partition_index=0))] == []


def test_an_answer_to_the_request_before_a_change_is_stale(world: DataWorld) -> None:
    follower = Follower(world, partitions=1)
    follower.start_session()
    first = follower.send()
    follower.fetches.moved(follower.followed[0])
    second = follower.send()
    data = PartitionData(partition_index=0, records=b"records")
    ((followed, data),) = follower.answer(first, data)
    assert decide(followed, first.number, data) == IGNORE
    ((followed, data),) = follower.answer(second, data)
    assert decide(followed, second.number, data) == APPEND


def test_an_answer_is_dropped_when_this_broker_has_become_leader(world: DataWorld) -> None:
    follower = Follower(world)
    plan = follower.send()
    world.change_partitions(lambda p: p._replace(leader=0))
    ((followed, data),) = follower.answer(plan, PartitionData(partition_index=0, records=b"records"))
    assert decide(followed, plan.number, data) == IGNORE


def test_an_error_is_retried(world: DataWorld) -> None:
    follower = Follower(world)
    plan = follower.send()
    failed = PartitionData(partition_index=0, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)
    ((followed, data),) = follower.answer(plan, failed)
    assert decide(followed, plan.number, data) == RETRY


@pytest.mark.parametrize(("leader_start", "step"), [(8, Step(Do.START_OVER, 8)), (2, RETRY), (-1, RETRY)])
def test_a_follower_starts_over_only_if_the_leaders_log_starts_after_its_end(
    world: DataWorld, leader_start: int, step: Step
) -> None:
    follower = Follower(world)
    follower.appends(0, 3)
    plan = follower.send()
    failed = PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=leader_start)
    ((followed, data),) = follower.answer(plan, failed)
    assert decide(followed, plan.number, data) == step


# -- where two logs diverge --


@pytest.mark.parametrize(
    ("ours", "end", "leader", "expected"),
    [
        pytest.param([(1, 0)], 10, (1, 7), 7, id="the leader's epoch is shorter"),
        pytest.param([(1, 0), (3, 5)], 10, (1, 8), 5, id="ours of that epoch is shorter (KIP-279)"),
        pytest.param([(1, 0), (3, 5)], 10, (2, 8), 5, id="an epoch that we do not have"),
        pytest.param([(1, 0), (7, 10)], 10, (6, 12), 10, id="an epoch without records (KAFKA-10706)"),
        pytest.param([(4, 3), (5, 6)], 10, (2, 5), 3, id="nothing in common"),
        pytest.param([], 10, (2, 5), 5, id="epochs unknown"),
    ],
)
def test_a_log_is_cut_where_it_may_differ_from_the_leaders(
    ours: list[tuple[int, int]], end: int, leader: tuple[int, int], expected: int
) -> None:
    assert divergence(LeaderEpochCache(ours), end, EpochEndOffset(*leader)) == expected


def test_a_diverging_answer_truncates(world: DataWorld) -> None:
    follower = Follower(world)
    follower.appends(0, 3)
    plan = follower.send()
    data = PartitionData(partition_index=0, diverging_epoch=FetchResponse.EpochEndOffset(epoch=5, end_offset=2))
    ((followed, data),) = follower.answer(plan, data)
    assert decide(followed, plan.number, data) == Step(Do.TRUNCATE, 2)


def test_a_partition_is_not_asked_for_again_before_its_log_is_synced(world: DataWorld) -> None:
    """With ottla.flush.before.ack: asking for the next offset acknowledges what was appended."""
    follower = Follower(world)
    follower.start_session()
    follower.appends(0, 1)
    follower.fetches.hold(follower.followed[0])
    follower.fetches.moved(follower.followed[0])
    assert named(follower.send()) == {}
    follower.fetches.release(follower.followed[0])
    assert named(follower.send()) == {0: 1}
    follower.fetches.hold(follower.followed[0])
    follower.fetches.lost()
    assert named(follower.send()) == {1: 0}


def test_fetches_name_partitions_that_are_out_of_sync_even_without_a_change(world: DataWorld) -> None:
    """The leader forgot what it knew of a follower when that left the in-sync set."""
    follower = Follower(world)
    follower.start_session()
    assert named(follower.send()) == {}
    follower.fetches.lost()
    follower.start_session()
    world.change_partitions(lambda p: p._replace(isr=(1,)) if p.index == 0 else p)
    follower.fetches.in_sync_changed(follower.followed[0])
    for _ in range(2):
        plan = follower.send()
        assert named(plan) == {0: 0}
        follower.answer(plan)
    world.change_partitions(lambda p: p._replace(isr=(1, 0)))
    follower.fetches.in_sync_changed(follower.followed[0])
    assert named(follower.send()) == {}


def test_after_a_new_registration_everything_is_named_again(world: DataWorld) -> None:
    """The leader counts only fetches with the current epoch of a broker (KIP-903)."""
    follower = Follower(world)
    follower.start_session()
    follower.fetches.ask_again()
    assert named(follower.send()) == {0: 0, 1: 0}
