"""Fetch sessions (KIP-227): a consumer names its partitions once and gets only changes."""

import random
from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest

from ottla.broker.handler_support.fetching.fetch_sessions import FetchSession
from ottla.broker.handler_support.fetching.reading import Reading
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import FetchRequest
from tests.support.worlds.data_world import (
    DataWorld,
    Transactions,
    fetch_request,
    values_in,
)


@pytest.fixture
def world(tmp_path: Any) -> Iterator[DataWorld]:
    world = DataWorld(str(tmp_path))
    yield world
    world.close()


class Consumer:
    """A client that keeps a fetch session."""

    def __init__(self, world: DataWorld, *offsets: tuple[str, int, int], version: int = 12) -> None:
        self.world = world
        self.version = version
        self.epoch = 0
        self.session_id = 0
        self.answer = self.asks(*offsets)
        self.session_id = self.answer.session_id

    def asks(self, *offsets: tuple[str, int, int], forget: Any = (), **details: Any) -> Any:
        image = self.world.image.topics
        named = {
            (image[topic].topic_id if self.version >= 13 else topic, partition): offset
            for topic, partition, offset in offsets
        }
        details = {"max_wait_ms": 0, "session_id": self.session_id, "session_epoch": self.epoch} | details
        request = fetch_request(named, **details)
        request.forgotten_topics_data = [
            FetchRequest.ForgottenTopic(topic=topic, partitions=[partition]) for topic, partition in forget
        ]
        self.epoch += 1
        return self.world.ask(request, self.version)


def found(answer: Any) -> list[tuple[int, list[str]]]:
    return [(data.partition_index, values_in(data)) for topic in answer.responses for data in topic.partitions]


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_a_session_returns_only_changes(world: DataWorld, version: int) -> None:
    world.topic("orders", partitions=3)
    world.append("orders", "a", partition=1)
    consumer = Consumer(world, *[("orders", p, 0) for p in range(3)], version=version)
    assert consumer.session_id > 0
    assert found(consumer.answer) == [(0, []), (1, ["a"]), (2, [])]
    assert found(consumer.asks(("orders", 1, 1))) == []
    world.append("orders", "b", partition=2)
    answer = consumer.asks()
    assert found(answer) == [(2, ["b"])]
    assert answer.session_id == consumer.session_id


def test_a_session_reports_a_moved_high_watermark_even_without_data(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "a")
    consumer = Consumer(world, ("orders", 0, 1))
    world.replicas.follower_fetched(world.replica("orders"), 1, 1, 0)
    (topic,) = consumer.asks().responses
    assert topic.partitions[0].high_watermark == 1
    assert topic.partitions[0].records == b""


def move_leader(world: DataWorld, leader: int, leader_epoch: int) -> None:
    world.change_partitions(lambda p: p._replace(leader=leader, leader_epoch=leader_epoch))


@pytest.mark.parametrize("version", [9, 12])
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_a_session_skips_a_partition_only_if_its_answer_says_nothing_new(
    tmp_path: Any, version: int, isolation_level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shortcut for partitions without news, compared with the complete answer after changes of every kind."""
    skipped, unknown = [], []
    is_known = Reading._is_known  # noqa: SLF001 - what is compared

    def compared(self: Reading, session: FetchSession, topic: Any, asked: Any) -> bool:
        if not is_known(self, session, topic, asked):
            return False
        skipped.append(asked)
        partition = session.partitions[topic, asked.partition]
        try:
            if copy(partition).answered(self._read(topic, asked, self.max_bytes, False)):
                unknown.append((asked, partition.high_watermark))
        except KafkaError as error:
            unknown.append((asked, error.code))
        return True

    monkeypatch.setattr(Reading, "_is_known", compared)
    chance = random.Random(f"{version} {isolation_level}")
    world = DataWorld(str(tmp_path))
    world.topic("orders", replicas=(0, 1))
    consumer = Consumer(world, ("orders", 0, 0), version=version)
    transactions, is_open = Transactions(world), False
    for _ in range(600):
        log, replica = world.log("orders"), world.replica("orders")
        epoch = replica.leader_epoch
        change = chance.choice(["append", "open", "end", "commit", "delete", "seek", "seek", "seek", "lead", "nothing"])
        if change == "lead":
            move_leader(world, 1 if replica.is_leader else 0, epoch + 1)
        elif replica.is_leader:
            if change == "append":
                world.append("orders", "x")
            elif change == "open":
                transactions.writes(7, "x")
                is_open = True
            elif change == "end" and is_open:
                transactions.ends(7, commit=True)
                is_open = False
            elif change == "commit":
                world.replicas.follower_fetched(replica, 1, log.log_end_offset, 0)
            elif change == "delete":
                log.delete_records_before(log.high_watermark)
        if change == "seek":
            places = [log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset + 1]
            fields = {"current_leader_epoch": chance.choice([-1, epoch, epoch + 1])}
            if version >= 12:
                fields["last_fetched_epoch"] = chance.choice([-1, -1, epoch, epoch + 1])
            offset = chance.choice(places)
            consumer.asks(("orders", 0, offset), isolation_level=isolation_level, partition=fields)
        consumer.asks(isolation_level=isolation_level)
    world.close()
    assert not unknown
    assert skipped


def test_a_forgotten_partition_is_not_served_again(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    consumer = Consumer(world, ("orders", 0, 0), ("orders", 1, 0))
    world.append("orders", "a", partition=0)
    world.append("orders", "b", partition=1)
    assert found(consumer.asks(forget=[("orders", 0)])) == [(1, ["b"])]


def test_a_session_serves_its_partitions_in_turn(world: DataWorld) -> None:
    world.topic("orders", partitions=3)
    consumer = Consumer(world, *[("orders", p, 0) for p in range(3)])
    for partition in range(3):
        world.append("orders", "x" * 1_000, partition=partition)
    order = []
    for _ in range(3):
        # Each response has room for one batch. The offsets do not advance, so a fixed order would starve the rest.
        answer = consumer.asks(max_bytes=1_000)
        order += [data.partition_index for topic in answer.responses for data in topic.partitions if data.records]
    assert order == [0, 1, 2]


def test_a_session_waits_like_any_other_fetch(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    consumer = Consumer(world, ("orders", 0, 0), ("orders", 1, 0))
    request = FetchRequest(max_wait_ms=60_000, min_bytes=1, session_id=consumer.session_id, session_epoch=1)
    asked = world.asks(request, 12)
    assert not asked.is_answered
    world.append("orders", "a", partition=1)
    world.wait()
    assert asked.is_answered
    assert found(asked.answer()) == [(1, ["a"])]


def test_an_error_in_a_session_is_repeated_and_its_end_is_reported(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    consumer = Consumer(world, ("orders", 0, 0))
    world.change_partitions(lambda p: p._replace(leader=1, leader_epoch=1, replicas=(1,)))
    for _ in range(2):
        assert consumer.asks().responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.change_partitions(lambda p: p._replace(leader=0, leader_epoch=2, replicas=(0, 1)))
    assert consumer.asks().responses[0].partitions[0].error_code == 0
    assert consumer.asks().responses == []


@pytest.mark.parametrize(
    ("session_id", "epoch", "code"),
    [(12345, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND), (0, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)],
)
def test_an_unknown_session_is_a_top_level_error(world: DataWorld, session_id: int, epoch: int, code: int) -> None:
    answer = world.ask(FetchRequest(session_id=session_id, session_epoch=epoch), 12)
    assert (answer.error_code, answer.session_id, answer.responses) == (code, 0, [])


def test_a_session_out_of_step_is_a_top_level_error(world: DataWorld) -> None:
    world.topic("orders")
    consumer = Consumer(world, ("orders", 0, 0))
    answer = world.ask(FetchRequest(session_id=consumer.session_id, session_epoch=7), 12)
    assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    answer = world.ask(FetchRequest(session_id=consumer.session_id, session_epoch=1), 13)
    assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_closed_session_is_answered_in_full_and_forgotten(world: DataWorld) -> None:
    world.topic("orders")
    consumer = Consumer(world, ("orders", 0, 0))
    consumer.epoch = -1
    assert consumer.asks(("orders", 0, 0)).session_id == 0
    assert len(world.services.sessions) == 0


def test_a_broker_without_room_for_sessions_still_answers(tmp_path: Any) -> None:
    world = DataWorld(str(tmp_path), session_slots=0)
    world.topic("orders")
    world.append("orders", "a")
    consumer = Consumer(world, ("orders", 0, 0))
    assert consumer.session_id == 0
    assert found(consumer.answer) == [(0, ["a"])]


def test_a_recreated_topic_has_another_topic_id(world: DataWorld) -> None:
    world.topic("orders")
    consumer = Consumer(world, ("orders", 0, 0), version=13)
    world.delete_topic("orders")
    world.topic("orders", generation=1)
    world.append("orders", "new")
    assert consumer.asks().responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
