"""The rebalance history, in its topic and in the log: correct, bounded, and never a problem for a group. Spec: B6."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.group_history import NOTE_BYTES, WAITING_MAX, GroupHistory, describe, to_json, to_record
from ottla.coordinator.group.history import Cause, Rebalanced
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.changes.topic_changes import NewTopic
from ottla.types import REBALANCES_TOPIC, TopicPartition
from tests.support.wire.group_requests import assignment, heartbeat_request, join_request, leave_request, sync_request
from tests.support.worlds.coordinator_world import CoordinatorWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CoordinatorWorld]:
    made = CoordinatorWorld(str(tmp_path))
    made.topic("orders", partitions=3)
    made.offsets_topic()
    yield made
    made.stop()
    made.close()


def enter(world: CoordinatorWorld, client: str, reason: str) -> tuple[str, Any]:
    member_id = world.ask(join_request(), 9, client_id=client).member_id
    return member_id, world.asks(join_request(member_id, reason=reason), 9)


def test_the_history_of_a_group_can_be_read_from_its_topic(world: CoordinatorWorld) -> None:
    """JoinGroup v8 and LeaveGroup v5 carry the reasons (KIP-800)."""
    ann, joined = enter(world, "ann", "the first")
    assert joined.answer().generation_id == 1
    world.ask(sync_request(ann, 1, {ann: assignment(orders=[0, 1, 2])}), 5)
    bob, parked = enter(world, "bob", "scaled out")
    world.wait(2_000)
    assert world.ask(heartbeat_request(ann, 1), 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    world.ask(join_request(ann, reason="asked to rejoin"), 9)
    assert parked.answer().generation_id == 2
    follower = world.asks(sync_request(bob, 2), 5)
    world.ask(sync_request(ann, 2, {ann: assignment(orders=[0, 1]), bob: assignment(orders=[2])}), 5)
    assert follower.answer().error_code == 0
    world.ask(leave_request((ann, None), reason="the consumer is being closed"), 5)
    world.wait(10_000)
    world.wait(100)
    first, second, third = world.history()
    assert second == {
        "group": "g",
        "generation": 2,
        "started_ms": second["started_ms"],
        "duration_ms": second["duration_ms"],
        "protocol": "range",
        "leader": ann,
        "causes": [{"what": "joined", "member": bob, "reason": "scaled out"}],
        "before": {ann: {"orders": [0, 1, 2]}},
        "after": {ann: {"orders": [0, 1]}, bob: {"orders": [2]}},
    }
    assert 2_000 <= second["duration_ms"] < 3_000
    assert (first["generation"], first["before"]) == (1, {})
    assert [cause["what"] for cause in third["causes"]] == ["left", "timed out"]
    assert third["causes"][0]["reason"] == "the consumer is being closed"
    assert (third["after"], third["leader"], third["protocol"]) == ({}, None, None)
    assert third["before"] == second["after"]


def test_a_history_record_has_the_group_id_as_its_key(world: CoordinatorWorld) -> None:
    ann, joined = enter(world, "ann", "")
    joined.answer()
    world.ask(sync_request(ann, 1, {}), 5)
    world.wait(100)
    assert [key for key, _ in world.stored(REBALANCES_TOPIC)] == [b"g"]


def test_the_topic_is_bounded(world: CoordinatorWorld) -> None:
    ann, joined = enter(world, "ann", "")
    joined.answer()
    world.ask(sync_request(ann, 1, {}), 5)
    world.wait(100)
    topic = world.image.topics[REBALANCES_TOPIC]
    assert len(topic.partitions) == 1
    assert dict(topic.configs) == {
        "cleanup.policy": "delete",
        "retention.ms": "604800000",
        "retention.bytes": "16777216",
        "segment.bytes": "1048576",
    }


def test_each_rebalance_is_logged(world: CoordinatorWorld, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ottla.coordinator"):
        ann, joined = enter(world, "ann", "because\nof this")
        joined.answer()
        world.ask(sync_request(ann, 1, {}), 5)
    assert f"group g: generation 1 after 0 ms, 1 member, because {ann} joined ('because\\nof this')" in caplog.text


def test_uncommitted_rebalances_are_not_recorded(tmp_path: Path) -> None:
    world = CoordinatorWorld(str(tmp_path))
    world.topic("orders", partitions=3)
    world.offsets_topic(replicas=(0, 1))
    replica = world.replica("__consumer_offsets")

    def catch_up() -> None:
        world.call(world.replicas.follower_fetched, replica, 1, replica.log.log_end_offset, 0)
        world.wait(50)

    first = world.asks(join_request(), 9)
    catch_up()
    member_id = first.answer().member_id
    joined = world.asks(join_request(member_id), 9)
    world.wait(10)
    catch_up()
    joined.answer()
    world.asks(sync_request(member_id, 1, {}), 5)
    world.wait(100)
    assert world.history() == []
    catch_up()
    assert len(world.history()) == 1
    world.stop()
    world.close()


# --- write failures ------------------------------------------------------------------------------


class Changes:
    """Creates topics, or fails to."""

    def __init__(self, world: CoordinatorWorld) -> None:
        self.world = world
        self.failure: Exception | None = None

    async def ensure_topics(self, topics: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        return await self.world.ensure_topics(topics)


def event(number: int = 1, **changes: Any) -> Rebalanced:
    return Rebalanced("g", number, 1, 2, "range", "m", [Cause("joined", "m", "")], {}, {"m": {}})._replace(**changes)


def history_of(world: CoordinatorWorld, *failures: Exception) -> tuple[GroupHistory, Changes]:
    changes = Changes(world)

    def new_topic() -> NewTopic:
        return world.services.settings.automatic_topic(world.image, REBALANCES_TOPIC)

    return GroupHistory(changes, world.replicas, new_topic), changes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "failure", [KafkaError(ErrorCode.POLICY_VIOLATION, "no"), OSError("disk"), RuntimeError("bug")]
)
def test_a_history_that_cannot_be_written_is_logged_once_and_resumes_later(
    world: CoordinatorWorld, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    history, changes = history_of(world)
    changes.failure = failure
    for number in range(5):
        world.call(history.note, event(number))
        world.wait(20)
    assert caplog.text.count("rebalance history: cannot be written") == 1
    changes.failure = None
    world.call(history.note, event(99))
    world.wait(100)
    assert [note["generation"] for note in world.history()] == [99]


def test_a_group_does_not_notice_that_its_history_cannot_be_written(
    world: CoordinatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = world.replicas.append

    def fail(partition: TopicPartition, *arguments: Any, **options: Any) -> Any:
        if partition.topic == REBALANCES_TOPIC:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left")
        return append(partition, *arguments, **options)

    monkeypatch.setattr(world.replicas, "append", fail)
    ann, joined = enter(world, "ann", "")
    assert joined.answer().error_code == 0
    assert world.ask(sync_request(ann, 1, {ann: b"all"}), 5).assignment == b"all"
    world.wait(100)
    assert world.ask(heartbeat_request(ann, 1), 4).error_code == 0
    assert world.history() == []


def test_a_history_entry_that_cannot_be_recorded_affects_no_group(
    world: CoordinatorWorld, caplog: pytest.LogCaptureFixture
) -> None:
    history, _ = history_of(world)
    world.call(history.note, event(after={"m": object()}))
    assert "cannot record its rebalance" in caplog.text


def test_queued_history_entries_are_bounded(world: CoordinatorWorld) -> None:
    history, _ = history_of(world)

    def flood() -> None:
        for number in range(WAITING_MAX + 500):
            history.note(event(number))

    world.call(flood)
    world.wait(100)
    notes = [note["generation"] for note in world.history()]
    assert notes == list(range(500, WAITING_MAX + 500)), "the oldest were dropped"


def test_a_stopping_broker_writes_the_queued_entries(world: CoordinatorWorld) -> None:
    history, _ = history_of(world)
    world.call(history.note, event(1))
    world.wait(100)

    def note_and_stop() -> None:
        history.note(event(2))
        history.stop()

    world.call(note_and_stop)
    world.wait(100)
    assert [note["generation"] for note in world.history()] == [1, 2]


def test_the_history_entry_of_a_very_large_group_has_counts_instead_of_names(world: CoordinatorWorld) -> None:
    partitions = {f"topic-{number}": list(range(100)) for number in range(100)}
    large = event(before={"m": partitions}, after={f"m{number}": partitions for number in range(10)})
    note = json.loads(to_record(large))
    assert note["before"] == {"m": "10000 partitions"}
    assert note["after"]["m9"] == "10000 partitions"
    huge = event(after={f"member-{number}-{'x' * 60}": {"t": [number]} for number in range(5_000)})
    assert len(to_record(huge)) < NOTE_BYTES
    assert json.loads(to_record(huge))["after"] == {"": "5000 members"}
    history, _ = history_of(world)
    for each in (large, huge):
        world.call(history.note, each)
    world.wait(100)
    assert len(world.history()) == 2


def test_text_and_json_of_a_rebalance() -> None:
    causes = [Cause("coordinator moved", "a"), Cause("left", "b", "bye"), *[Cause("joined", "c")] * 3]
    words = describe(event(2, causes=causes, after={"a": {}, "c": {}}))
    because = "coordinator moved (a); b left ('bye'); c joined; and 2 more"
    assert words == f"group g: generation 2 after 1 ms, 2 members, because {because}"
    assert to_json(event())["duration_ms"] == 1
