"""Fetches of followers: who may fetch, what the session answers, and what that costs with many partitions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.protocol.messages.delete_records import DeleteRecordsRequest
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from tests.support.worlds.data_world import DataWorld, values_in

VERSION = 18


@pytest.fixture
def world(tmp_path: Any) -> Iterator[DataWorld]:
    world = DataWorld(str(tmp_path))
    yield world
    world.close()


class FollowerSession:
    """Broker 1 fetches from broker 0."""

    def __init__(self, world: DataWorld, topic: str = "orders", *, broker_epoch: int = 1) -> None:
        self.world = world
        self.topic_id = world.image.topics[topic].topic_id
        self.broker_epoch = broker_epoch
        self.session_id = 0
        self.epoch = 0

    def request(
        self, offsets: dict[int, int], *, forget: tuple[int, ...] = (), log_start_offset: int = 0, **details: Any
    ) -> FetchRequest:
        topics = [
            FetchRequest.FetchTopic(
                topic_id=self.topic_id,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=index,
                        fetch_offset=offset,
                        partition_max_bytes=1 << 20,
                        current_leader_epoch=0,
                        last_fetched_epoch=0 if offset else -1,
                        log_start_offset=log_start_offset,
                    )
                    for index, offset in offsets.items()
                ],
            )
        ]
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=1, replica_epoch=self.broker_epoch),
            **{"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20} | details,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=topics if offsets else [],
            forgotten_topics_data=[FetchRequest.ForgottenTopic(topic_id=self.topic_id, partitions=list(forget))]
            if forget
            else [],
        )
        self.epoch += 1
        return request

    def start(self, partitions: int) -> FetchResponse:
        response: FetchResponse = self.world.ask(
            self.request(dict.fromkeys(range(partitions), 0), max_wait_ms=0), VERSION
        )
        self.session_id = response.session_id
        assert self.session_id
        return response

    def fetch(self, offsets: dict[int, int], **details: Any) -> dict[int, Any]:
        """The partitions of the answer."""
        return partitions_of(self.world.ask(self.request(offsets, **details), VERSION))

    def waits(self, offsets: dict[int, int], **details: Any) -> Any:
        return self.world.asks(self.request(offsets, **details), VERSION)


def partitions_of(response: Any) -> dict[int, Any]:
    assert response.error_code == ErrorCode.NONE
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


def test_a_session_answers_only_partitions_with_news(world: DataWorld) -> None:
    world.topic("orders", partitions=4, replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(4)
    follower.fetch({}, max_wait_ms=0)
    world.append("orders", "a", partition=2)
    answer = follower.fetch({})
    assert list(answer) == [2]
    assert values_in(answer[2]) == ["a"]


def test_a_fetch_looks_only_at_partitions_with_news(world: DataWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of partitions, looking at all of them would take longer than replicating the one with records."""
    from ottla.broker.handler_support.fetching import follower_reading

    world.topic("orders", partitions=50, replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(50)
    follower.fetch({}, max_wait_ms=0)
    read: list[int] = []
    original = follower_reading.FollowerReading._read  # noqa: SLF001 - counts how often it is called

    def counting(self: Any, topic: Any, asked: Any, remaining: int, has_data: bool) -> Any:
        read.append(asked.partition)
        return original(self, topic, asked, remaining, has_data)

    monkeypatch.setattr(follower_reading.FollowerReading, "_read", counting)
    world.append("orders", "a", partition=7)
    follower.fetch({})
    assert read == [7]


def test_a_fetch_that_waits_is_answered_by_an_append_to_any_partition(world: DataWorld) -> None:
    world.topic("orders", partitions=3, replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(3)
    waiting = follower.waits({})
    assert not waiting.is_answered
    world.append("orders", "a", partition=1)
    world.wait()
    assert waiting.is_answered
    assert list(partitions_of(waiting.answer())) == [1]


def test_a_partition_that_joins_a_session_ends_its_wait_with_an_append(world: DataWorld) -> None:
    """As after a failover: otherwise the first acks=all write would wait for the end of the fetch, half a second."""
    world.topic("orders", partitions=2, replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(1)
    follower.fetch({}, max_wait_ms=0)
    waiting = follower.waits({1: 0})
    assert not waiting.is_answered
    world.append("orders", "a", partition=1)
    world.wait()
    assert waiting.is_answered
    assert values_in(partitions_of(waiting.answer())[1]) == ["a"]


def test_an_idle_follower_waits_again_and_again(world: DataWorld) -> None:
    """Otherwise an idle cluster would keep its processors busy with empty fetches."""
    world.topic("orders", partitions=3, replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(3)
    for _ in range(3):
        waiting = follower.waits({})
        assert not waiting.is_answered
        world.wait(499)
        assert not waiting.is_answered
        world.wait(2)
        assert partitions_of(waiting.answer()) == {}


def test_records_are_sent_once_until_the_follower_asks_for_more(world: DataWorld) -> None:
    """It may be syncing them to disk. Sending them again would waste both brokers' time."""
    world.topic("orders", partitions=2, replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(2)
    world.append("orders", "a")
    assert list(follower.fetch({})) == [0]
    world.append("orders", "b")
    assert follower.fetch({}, max_wait_ms=0) == {}
    assert values_in(follower.fetch({0: 1})[0]) == ["b"]


def test_the_next_request_ends_the_wait_of_the_one_before(world: DataWorld) -> None:
    """A follower adds partitions at once, although its last fetch still waits. What the new request changes must not
    be in the answer to the old one: the follower would take it for stale."""
    world.topic("orders", partitions=3, replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(1)
    world.append("orders", "late", partition=2)
    first = follower.waits({})
    second = follower.waits({2: 0})
    assert first.is_answered
    assert partitions_of(first.answer()) == {}
    assert values_in(partitions_of(second.answer())[2]) == ["late"]


def test_a_higher_watermark_is_sent_a_little_later_if_there_are_no_records(world: DataWorld) -> None:
    """Not at once, because with the next records it costs nothing."""
    world.topic("orders", replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(1)
    world.append("orders", "a")
    assert values_in(follower.fetch({})[0]) == ["a"]
    assert world.log("orders").high_watermark == 0
    waiting = follower.waits({0: 1})
    assert world.log("orders").high_watermark == 1, "the fetch from offset 1 commits the record"
    assert not waiting.is_answered
    world.wait(25)
    assert waiting.is_answered
    assert partitions_of(waiting.answer())[0].high_watermark == 1
    assert not follower.waits({}).is_answered, "it knows everything now"


def test_a_follower_that_asks_again_gets_the_high_watermark_again(world: DataWorld) -> None:
    """It ignores the answer to its previous request, which asked for something else, and does not know what that answer
    said."""
    world.topic("orders", partitions=1, replicas=(0, 1, 2))
    follower = FollowerSession(world)
    follower.start(1)
    world.append("orders", "a")
    assert values_in(follower.fetch({0: 0})[0]) == ["a"]
    ignored = follower.waits({0: 1})
    world.replicas.follower_fetched(world.replica("orders"), 2, 1, 0, 1)
    again = follower.waits({0: 1})
    assert ignored.is_answered
    assert partitions_of(ignored.answer())[0].high_watermark == 1
    world.wait(500)
    assert partitions_of(again.answer())[0].high_watermark == 1


def test_partitions_that_did_not_fit_are_answered_next(world: DataWorld) -> None:
    world.topic("orders", partitions=3, replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(3)
    for index in range(3):
        world.append("orders", "x" * 100, partition=index)
    assert [list(follower.fetch({}, max_bytes=1)) for _ in range(3)] == [[0], [1], [2]]


def test_an_error_is_repeated_until_it_is_over(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(1)
    world.change_partitions(lambda p: p._replace(leader=2, leader_epoch=1))
    for _ in range(2):
        assert follower.fetch({})[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.change_partitions(lambda p: p._replace(leader=0, leader_epoch=2))
    assert follower.fetch({})[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_new_role_ends_the_wait(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(1)
    waiting = follower.waits({})
    world.change_partitions(lambda p: p._replace(leader=2, leader_epoch=1))
    world.wait()
    assert waiting.is_answered


def test_a_forgotten_partition_has_no_news(world: DataWorld) -> None:
    world.topic("orders", partitions=2, replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(2)
    follower.fetch({}, forget=(0,), max_wait_ms=0)
    world.append("orders", "a")
    assert follower.fetch({}, max_wait_ms=0) == {}
    assert world.replica("orders").waits.watches == {}  # type: ignore[union-attr]


def test_a_closed_session_watches_nothing(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(1)
    waits = world.replica("orders").waits
    assert waits is not None
    assert len(waits.watches) == 1
    follower.epoch = -1
    follower.fetch({}, max_wait_ms=0)
    assert waits.watches == {}


def test_deleted_records_are_news_at_once(world: DataWorld) -> None:
    """DeleteRecords waits for the followers."""
    world.topic("orders", replicas=(0, 1), isr=(0,))
    follower = FollowerSession(world)
    world.append("orders", "a", "b")
    follower.start(1)
    waiting = follower.waits({0: 2})
    assert not waiting.is_answered
    world.replicas.delete_records(world.replica("orders"), 1)
    world.wait()
    assert partitions_of(waiting.answer())[0].log_start_offset == 1


def test_a_follower_before_the_leaders_start_learns_where_that_is(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1), isr=(0,))
    world.append("orders", "a", "b", "c")
    world.replicas.delete_records(world.replica("orders"), 2)
    data = partitions_of(FollowerSession(world).start(1))[0]
    assert (data.error_code, data.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)


# -- who may fetch --


def test_only_a_registered_broker_can_fetch_as_a_follower(world: DataWorld) -> None:
    """Otherwise anybody could move the high watermark with a replica id."""
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a")
    follower = FollowerSession(world)
    brokers = {broker_id: broker for broker_id, broker in world.image.brokers.items() if broker_id != 1}
    world.publish(replace(world.image, brokers=brokers))
    response = world.ask(follower.request({0: 1}), VERSION)
    assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert world.log("orders").high_watermark == 0


@pytest.mark.parametrize(("epoch", "code"), [(4, ErrorCode.STALE_BROKER_EPOCH), (5, 0), (6, 0), (-1, 0)])
def test_a_fetch_from_before_the_followers_restart_does_not_count(world: DataWorld, epoch: int, code: int) -> None:
    """KIP-903: the restarted broker may have lost what it had then."""
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a")
    brokers = dict(world.image.brokers) | {1: world.image.brokers[1]._replace(epoch=5)}
    world.publish(replace(world.image, brokers=brokers))
    follower = FollowerSession(world, broker_epoch=epoch)
    assert world.ask(follower.request({0: 1}, max_wait_ms=0), VERSION).error_code == code
    assert world.log("orders").high_watermark == (1 if code == 0 else 0)


def test_a_session_is_a_followers_or_a_consumers(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(1)
    request = follower.request({})
    request.replica_state = FetchRequest.ReplicaState()
    assert world.ask(request, VERSION).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("epoch", [0, -1, 1])
def test_a_consumer_that_knows_a_followers_session_cannot_change_or_end_it(world: DataWorld, epoch: int) -> None:
    world.topic("orders", replicas=(0, 1))
    follower = FollowerSession(world)
    follower.start(1)
    theft = follower.request({}, forget=(0,))
    theft.replica_state = FetchRequest.ReplicaState()
    theft.session_epoch = epoch
    world.ask(theft, VERSION)
    session = world.services.sessions.find(follower.session_id)
    assert session is not None
    assert (len(session.partitions), session.epoch) == (1, 1)


# -- DeleteRecords --


def delete(world: DataWorld, offset: int, timeout_ms: int = 1_000) -> Any:
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsRequest.DeleteRecordsTopic(
                name="orders",
                partitions=[DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)],
            )
        ],
        timeout_ms=timeout_ms,
    )
    return world.asks(request, 2)


def deletion(asked: Any) -> tuple[int, int]:
    result = asked.answer().topics[0].partitions[0]
    return result.error_code, result.low_watermark


def with_follower(world: DataWorld) -> FollowerSession:
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a", "b", "c")
    follower = FollowerSession(world)
    follower.start(1)
    follower.fetch({0: 3}, max_wait_ms=0)
    return follower


def test_delete_records_waits_until_every_follower_has_deleted(world: DataWorld) -> None:
    follower = with_follower(world)
    asked = delete(world, 2)
    assert not asked.is_answered
    follower.fetch({0: 3}, max_wait_ms=0)
    assert not asked.is_answered, "the follower still starts at offset 0"
    follower.fetch({0: 3}, max_wait_ms=0, log_start_offset=2)
    assert deletion(asked) == (ErrorCode.NONE, 2)


def test_delete_records_times_out_if_a_follower_does_not_delete(world: DataWorld) -> None:
    with_follower(world)
    asked = delete(world, 2, timeout_ms=300)
    world.wait(301)
    assert deletion(asked) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert world.log("orders").log_start_offset == 2


def test_delete_records_does_not_wait_for_a_dead_follower(world: DataWorld) -> None:
    with_follower(world)
    asked = delete(world, 2)
    world.publish(replace(world.image, brokers={0: world.image.brokers[0]}))
    world.wait()
    assert deletion(asked) == (ErrorCode.NONE, 2)


def test_delete_records_fails_when_the_leader_changes(world: DataWorld) -> None:
    with_follower(world)
    asked = delete(world, 2)
    world.change_partitions(lambda p: p._replace(leader=1, leader_epoch=1))
    assert deletion(asked) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
