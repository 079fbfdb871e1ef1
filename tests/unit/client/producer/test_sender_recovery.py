"""The sender after failures: batches that the broker may have stored although the response was an error or lost."""

# ruff: noqa: SLF001  (sets up or checks internal state)

import pytest

from ottla.client.core.model import Node
from ottla.client.producer.speedups import Delivery
from ottla.errors import ErrorCode
from ottla.protocol.messages.produce import ProduceResponse
from ottla.types import TopicPartition
from tests.support.worlds.producer_world import ProducerWorld

PLACE = TopicPartition("t", 0)


def started(**settings: object) -> ProducerWorld:
    """A producer that has stored its first record, so that several batches may be in flight."""
    world = ProducerWorld(batch_size=1, **settings)  # type: ignore[arg-type]
    world.send("first")
    world.settle()
    return world


def is_where_it_says(world: ProducerWorld, delivery: Delivery, value: str) -> bool:
    return world.log()[delivery.result(0).offset] == value


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
)
def test_an_error_after_the_append_leaves_the_outcome_unknown(code: ErrorCode) -> None:
    """With acks=all the leader waits for the replicas. If it loses leadership meanwhile, it returns an error although
    the batch is appended. If the sequence were reused, the next batch would look like a duplicate."""
    world = started(delivery_timeout_ms=1_000, request_timeout_ms=500)
    doubtful = world.send("doubtful")
    world.poll()
    world.answer_next("resign", code)
    world.now += 2_000
    world.poll()
    assert doubtful.exception() is not None, "delivery.timeout.ms passes before the retry"
    after = world.send("after")
    world.settle()
    assert world.log() == ["first", "doubtful", "after"]
    assert is_where_it_says(world, after, "after")


def test_no_new_batch_follows_one_that_may_be_stored_already() -> None:
    """A broker recognises only its last five batches: after a sixth, the first one would look like a gap."""
    world = started()
    deliveries = [world.send(f"{i}") for i in range(10)]
    assert len(world.poll()) == 5
    world.answer_next("resign")
    for _ in range(4):
        world.answer_next()
    world.now += 1_000
    world.poll()
    while world.on_the_wire:
        world.answer_next("lose answer")
    world.settle()
    assert world.sender.fatal_error is None
    assert world.log() == ["first", *map(str, range(10))]
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(1, 11))


def test_a_broker_without_producer_state_stores_an_old_sequence() -> None:
    """After producer.id.expiration.ms a broker accepts any sequence. Of two batches in flight the first is refused
    because of its content, and the second is stored with the sequence it was sent with. So the next expected
    sequence differs from what the producer computes."""
    world = started()
    world.broker.producers.clear()
    world.broker.answers.extend([ErrorCode.INVALID_TIMESTAMP])
    refused, second = world.send("refused"), world.send("second")
    assert len(world.poll()) == 2
    world.answer_next()
    world.answer_next()
    third = world.send("third")
    world.settle()
    assert refused.exception() is not None
    assert world.log() == ["first", "second", "third"]
    assert is_where_it_says(world, second, "second")
    assert is_where_it_says(world, third, "third")
    assert world.sender.fatal_error is None


def test_after_a_batch_has_expired_the_next_one_is_sent_at_once() -> None:
    world = started(delivery_timeout_ms=1_000, request_timeout_ms=500)
    lost = world.send("lost")
    world.poll()
    world.answer_next("lose answer")
    world.now += 990
    after = world.send("after")
    world.accumulator.partitions(world.now)  # sets the creation time
    world.now += 10
    world.poll()
    assert lost.exception() is not None
    assert world.on_the_wire, "otherwise nothing would wake the sender before the next batch expires too"
    world.settle()
    assert is_where_it_says(world, after, "after")


def test_one_request_in_flight_keeps_the_order_when_the_leader_moves() -> None:
    """Without idempotence, max.in.flight.requests.per.connection=1 keeps the order of retries."""
    world = ProducerWorld(batch_size=1, acks="1", enable_idempotence=False, max_in_flight_requests_per_connection=1)
    world.send("a")
    world.send("b")
    assert len(world.poll()) == 1
    world.broker.answers.extend([ErrorCode.NOT_LEADER_OR_FOLLOWER])
    world.view.learn_leader(PLACE, 2, 7, {2: Node(2, "h", 10)})
    assert world.poll() == [], "b must not go to the new leader while a is in flight to the old one"
    world.settle()
    assert world.log() == ["a", "b"]


@pytest.mark.parametrize("later_id", [None, bytes(15) + b"\x02"])
def test_a_response_is_understood_after_the_topic_has_left_the_metadata(later_id: bytes | None) -> None:
    """Responses name topics by id (KIP-516). Meanwhile a metadata response of a stale broker may have removed the
    topic, or the topic may have been recreated. The response still belongs to the request: the record is stored."""
    topic_id = bytes(15) + b"\x01"
    world = ProducerWorld(enable_idempotence=False)
    world.show_topic(1, topic_id)
    delivery = world.send("stored")
    (request,) = world.poll()
    if later_id is None:
        world.view.keep_only([], world.now)
    else:
        world.show_topic(1, later_id)
    result = ProduceResponse.PartitionProduceResponse(index=0, base_offset=7)
    answer = ProduceResponse.TopicProduceResponse(topic_id=topic_id, partition_responses=[result])
    request.on_response(ProduceResponse(responses=[answer]), 13, world.now)
    assert delivery.result(0).offset == 7


def test_a_request_uses_the_topic_ids_of_when_its_version_was_chosen() -> None:
    """The request is built when the connection is ready, and by then the topic may have left the metadata."""
    topic_id = bytes(15) + b"\x01"
    world = ProducerWorld(enable_idempotence=False)
    world.show_topic(1, topic_id)
    world.send("a")
    (request,) = world.sender.poll(world.now).requests
    world.view.keep_only([], world.now)
    assert request.build(13).topic_data[0].topic_id == topic_id


class _Untouchable:
    """Fails on any access."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"{name} was accessed")


def test_idle_partitions_cost_nothing() -> None:
    """Otherwise every batch would get slower with the number of partitions ever written to."""
    world = started()
    idempotence = world.sender._idempotence
    assert idempotence is not None
    for i in range(1, 100):
        place = TopicPartition("t", i)
        world.accumulator._queues[place] = _Untouchable()  # type: ignore[assignment]
        idempotence._partitions[place] = _Untouchable()  # type: ignore[assignment]
    deliveries = [world.send(f"{i}") for i in range(10)]
    world.settle()
    assert [is_where_it_says(world, delivery, f"{i}") for i, delivery in enumerate(deliveries)] == [True] * 10


def failing(times: int) -> tuple[ProducerWorld, Delivery]:
    """A record whose leader does not answer any more: it was sent this often, and waits."""
    world = started()
    delivery = world.send("again")
    for _ in range(times):
        world.now += 2_000
        world.poll()
        world.answer_next("lose request")
    return world, delivery


def test_a_batch_does_not_wait_any_longer_when_its_partition_has_a_new_leader() -> None:
    """The back-off protects a broker that fails; the new leader has not failed (KIP-951)."""
    world, _ = failing(5)
    world.now += 1
    assert world.poll() == []
    world.view.learn_leader(PLACE, 2, 7, {2: Node(2, "h", 10)})
    (request,) = world.poll()
    assert request.destination == 2


def test_a_batch_that_waits_for_the_same_leader_keeps_waiting() -> None:
    world, _ = failing(5)
    for _ in range(7):
        world.now += 100
        assert world.poll() == []


def refreshes(world: ProducerWorld) -> int:
    """How often the sender asks for new metadata in the next 800 ms."""
    refreshed = 0
    for _ in range(8):
        world.now += 100
        world.poll()
        refreshed += world.view._update_wanted
        world.view._update_wanted = False
    return refreshed


def test_while_a_leader_fails_the_metadata_is_refreshed_in_time_to_notice_its_successor() -> None:
    """Not only when the batch is sent again: by then the back-off is a second."""
    world, _ = failing(5)
    assert 2 <= refreshes(world) <= 4, "in 800 ms"


def test_the_metadata_is_also_refreshed_while_a_retry_waits_for_a_connection_to_the_failed_leader() -> None:
    """The request is in flight, but only until the broker may be connected to again."""
    world, delivery = failing(5)
    world.now += 2_000
    assert len(world.poll()) == 1
    world.view._update_wanted = False
    assert 2 <= refreshes(world) <= 4, "in 800 ms"
    world.settle()
    assert is_where_it_says(world, delivery, "again")
    world.send("healthy")
    world.poll()
    world.now += 1_000
    world.view._update_wanted = False
    world.poll()
    assert not world.view._update_wanted, "a leader that answers is not looked for"


def test_the_back_off_begins_again_with_a_new_leader() -> None:
    """A broker that has just been elected may not know it yet: its predecessor's failures do not count against it."""
    world, delivery = failing(5)
    world.view.learn_leader(PLACE, 2, 7, {2: Node(2, "h", 10)})
    assert len(world.poll()) == 1
    world.broker.answers.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.answer_next()
    world.now += 100
    assert len(world.poll()) == 1, "the first back-off, not the sixth"
    world.answer_next()
    assert is_where_it_says(world, delivery, "again")


def test_nothing_is_sent_to_a_leader_that_cannot_be_connected_to_yet() -> None:
    """A request would wait for the connection, and miss the election of another leader."""
    world = started()
    world.unreachable[1] = world.now + 700
    delivery = world.send("waits")
    poll = world.sender.poll(world.now)
    assert poll.requests == []
    assert poll.wake_at is not None
    assert poll.wake_at <= world.now + 250, "its successor is looked for"
    assert world.view._update_wanted
    world.now += 300
    world.view.learn_leader(PLACE, 2, 7, {2: Node(2, "h", 10)})
    (request,) = world.poll()
    assert request.destination == 2
    world.answer_next()
    assert is_where_it_says(world, delivery, "waits")


def test_a_leader_that_could_not_be_reached_is_tried_again_in_time() -> None:
    world = started()
    world.unreachable[1] = world.now + 700
    delivery = world.send("waits")
    world.settle()
    assert is_where_it_says(world, delivery, "waits")


def test_a_record_that_waits_for_an_unreachable_leader_expires() -> None:
    world = started(delivery_timeout_ms=1_000, request_timeout_ms=500)
    world.unreachable[1] = world.now + 10**9
    delivery = world.send("waits")
    for _ in range(11):
        assert world.poll() == []
        world.now += 100
    world.poll()
    assert delivery.exception() is not None


def test_without_a_back_off_leaders_are_still_looked_for_at_intervals() -> None:
    world = started(retry_backoff_ms=0, retry_backoff_max_ms=0)
    world.unreachable[1] = world.now + 10_000
    world.send("waits")
    wake_at = world.sender.poll(world.now).wake_at
    assert wake_at is not None
    assert wake_at > world.now
    world.view._update_wanted = False
    world.poll()
    assert not world.view._update_wanted
