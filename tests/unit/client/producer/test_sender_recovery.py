"""The sender after trouble: what a broker may have done without saying so, and what must not follow from it."""

import pytest

from ottla.client.core.model import Node
from ottla.client.producer.speedups import Delivery
from ottla.errors import ErrorCode
from ottla.protocol.messages.produce import ProduceResponse
from ottla.types import TopicPartition
from tests.support.worlds.producer_world import ProducerWorld

PLACE = TopicPartition("t", 0)


def started(**settings: object) -> ProducerWorld:
    """A producer that has stored its first record, so that the next ones may follow each other closely."""
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
    """With acks=all the answer waits for the replicas, and a leader that is none any more says so instead of
    waiting on. Were the number given again, the next batch would be taken for the one that is stored already."""
    world = started(delivery_timeout_ms=1_000, request_timeout_ms=500)
    doubtful = world.send("doubtful")
    world.poll()
    world.answer_next("resign", code)
    world.now += 2_000
    world.poll()
    assert doubtful.exception() is not None, "its time is over before the retry"
    after = world.send("after")
    world.settle()
    assert world.log() == ["first", "doubtful", "after"]
    assert is_where_it_says(world, after, "after")


def test_no_new_batch_follows_one_that_may_be_stored_already() -> None:
    """A broker recognises its last five batches only: behind a sixth the doubtful one would look like a gap."""
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
    """After producer.id.expiration.ms any number will do: of two on the wire the first is refused for what is in it,
    and the second stored under the number it was sent with. From there the numbers are not what we think."""
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
    assert is_where_it_says(world, second, "second") and is_where_it_says(world, third, "third")
    assert world.sender.fatal_error is None


def test_after_a_batch_has_expired_the_next_one_is_sent_at_once() -> None:
    world = started(delivery_timeout_ms=1_000, request_timeout_ms=500)
    lost = world.send("lost")
    world.poll()
    world.answer_next("lose answer")
    world.now += 990
    after = world.send("after")
    world.accumulator.partitions(world.now)  # the network has seen it
    world.now += 10
    world.poll()
    assert lost.exception() is not None
    assert world.on_the_wire, "nothing would wake the sender before the next batch has no time left either"
    world.settle()
    assert is_where_it_says(world, after, "after")


def test_one_request_in_flight_keeps_the_order_when_the_leader_moves() -> None:
    """Without idempotence, max.in.flight.requests.per.connection=1 is how the order is kept, whatever is retried."""
    world = ProducerWorld(batch_size=1, acks="1", enable_idempotence=False, max_in_flight_requests_per_connection=1)
    world.send("a")
    world.send("b")
    assert len(world.poll()) == 1
    world.broker.answers.extend([ErrorCode.NOT_LEADER_OR_FOLLOWER])
    world.view.learn_leader(PLACE, 2, 7, {2: Node(2, "h", 10)})
    assert world.poll() == [], "b goes to the new leader while a is with the old one"
    world.settle()
    assert world.log() == ["a", "b"]


@pytest.mark.parametrize("later_id", [None, bytes(15) + b"\x02"])
def test_a_response_is_understood_after_the_topic_has_left_the_metadata(later_id: bytes | None) -> None:
    """New brokers name topics by id. A broker that lags behind may have told meanwhile that there is no such topic, or
    there is another of its name: the answer is to the request all the same, and says that the record is stored."""
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
    """It is built when the connection is there, and by then the topic may be out of sight."""
    topic_id = bytes(15) + b"\x01"
    world = ProducerWorld(enable_idempotence=False)
    world.show_topic(1, topic_id)
    world.send("a")
    (request,) = world.sender.poll(world.now).requests
    world.view.keep_only([], world.now)
    assert request.build(13).topic_data[0].topic_id == topic_id


class _AtRest:
    """Stands for what nobody has a reason to look at."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"somebody looked at {name}")


def test_idle_partitions_cost_nothing() -> None:
    """Of a large topic, or of all topics that were ever written to: every batch would be slower for each of them."""
    world = started()
    idempotence = world.sender._idempotence
    assert idempotence is not None
    for i in range(1, 100):
        place = TopicPartition("t", i)
        world.accumulator._queues[place] = _AtRest()  # type: ignore[assignment]
        idempotence._partitions[place] = _AtRest()  # type: ignore[assignment]
    deliveries = [world.send(f"{i}") for i in range(10)]
    world.settle()
    assert [is_where_it_says(world, delivery, f"{i}") for i, delivery in enumerate(deliveries)] == [True] * 10
