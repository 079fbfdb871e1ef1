"""The sender: no record is lost, duplicated or reordered."""

# ruff: noqa: SLF001  (sets up or checks internal state)

import itertools

import pytest

from ottla.client.producer.accumulator import ProducerBatch
from ottla.client.producer.idempotence import Idempotence
from ottla.client.producer.sender import MAYBE_APPENDED
from ottla.client.producer.speedups import Delivery
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.records.record_batch import read_header
from ottla.types import TopicPartition
from tests.support.seeds import each_seed
from tests.support.worlds.producer_world import VERSION, ProducerWorld, Stored


def stored_offset(delivery: Delivery) -> int:
    return delivery.result(0).offset


# Batching


def test_records_of_a_partition_share_a_batch_and_get_their_offsets() -> None:
    world = ProducerWorld()
    deliveries = [world.send(f"v{i}") for i in range(5)]
    world.settle()
    assert world.log() == ["v0", "v1", "v2", "v3", "v4"]
    assert [stored_offset(delivery) for delivery in deliveries] == [0, 1, 2, 3, 4]


def test_a_batch_waits_for_linger_ms() -> None:
    world = ProducerWorld(linger_ms=20, enable_idempotence=False)
    world.send("a")
    poll = world.sender.poll(world.now)
    assert not poll.requests
    assert poll.wake_at == world.now + 20
    world.now += 20
    assert len(world.poll()) == 1


def test_a_full_batch_does_not_linger() -> None:
    world = ProducerWorld(linger_ms=10_000, batch_size=200, enable_idempotence=False)
    for i in range(5):
        world.send(f"value-{i}")
    (request,) = world.poll()
    header = read_header(request.build(VERSION).topic_data[0].partition_data[0].records)
    assert header.record_count == 4


def test_a_flush_ends_lingering() -> None:
    world = ProducerWorld(linger_ms=10_000, enable_idempotence=False)
    world.send("a")
    world.accumulator.is_flushing = True
    assert len(world.poll()) == 1


def test_one_request_contains_a_batch_of_each_partition() -> None:
    world = ProducerWorld(partitions=3, enable_idempotence=False)
    for partition in range(3):
        world.send("v", partition)
    (request,) = world.poll()
    (topic,) = request.build(VERSION).topic_data
    assert [p.index for p in topic.partition_data] == [0, 1, 2]


def test_a_request_does_not_exceed_max_request_size() -> None:
    world = ProducerWorld(partitions=3, enable_idempotence=False, max_request_size=1_000)
    for partition in range(3):
        world.send("x" * 600, partition)
    requests = world.poll()
    assert [len(r.build(VERSION).topic_data[0].partition_data) for r in requests] == [1, 1, 1]


def test_max_in_flight_requests_is_a_limit() -> None:
    world = ProducerWorld(batch_size=1, enable_idempotence=False, max_in_flight_requests_per_connection=2)
    for i in range(10):
        world.send(f"{i}")
    assert len(world.poll()) == 2
    world.answer_next()
    assert len(world.poll()) == 1
    world.settle()
    assert world.log() == [str(i) for i in range(10)]


def test_a_batch_added_during_a_poll_does_not_expire() -> None:
    """A user's thread may append during a poll. Such a batch has no creation time yet and must not expire."""
    world = ProducerWorld(enable_idempotence=False)
    world.send("first")
    look = world.accumulator.partitions

    def look_then_append(now: int) -> list[TopicPartition]:
        seen = look(now)
        world.accumulator.partitions = look  # type: ignore[method-assign]
        world.accumulator.head(TopicPartition("t", 0)).is_full = True  # type: ignore[union-attr]
        late.append(world.send("second"))
        return seen

    late: list[Delivery] = []
    world.accumulator.partitions = look_then_append  # type: ignore[method-assign]
    world.settle()
    assert world.log() == ["first", "second"]
    assert stored_offset(late[0]) == 1


def test_buffer_memory_is_limited_and_released() -> None:
    world = ProducerWorld(buffer_memory=1_000)
    tp, size = TopicPartition("t", 0), 400
    assert world.accumulator.append(tp, 0, None, b"x", (), size) is not None
    assert world.accumulator.append(tp, 0, None, b"x", (), size) is not None
    assert world.accumulator.append(tp, 0, None, b"x", (), size) is None
    world.settle()
    assert world.accumulator.buffered_bytes == 0
    assert world.accumulator.append(tp, 0, None, b"x", (), size) is not None


# Acknowledgements


def test_with_acks_0_there_is_no_response_and_no_offset() -> None:
    world = ProducerWorld(acks="0")
    delivery = world.send("v")
    (request,) = world.poll()
    assert not request.expects_response
    request.on_response(None, VERSION, world.now)
    assert stored_offset(delivery) == -1


def test_a_refused_batch_fails_its_records_with_the_brokers_error() -> None:
    world = ProducerWorld()
    world.broker.answers.extend([ErrorCode.INVALID_TIMESTAMP])
    delivery = world.send("v")
    world.settle()
    with pytest.raises(KafkaError) as caught:
        delivery.result(0)
    assert caught.value.code == ErrorCode.INVALID_TIMESTAMP


def test_a_batch_that_is_too_large_is_split_in_halves() -> None:
    world = ProducerWorld(max_records=3)
    deliveries = [world.send(f"{i}") for i in range(10)]
    more = world.send("after")
    world.settle()
    assert world.log() == [*map(str, range(10)), "after"]
    assert [stored_offset(delivery) for delivery in deliveries] == list(range(10))
    assert stored_offset(more) == 10
    assert world.accumulator.buffered_bytes == 0


def test_a_single_record_that_is_too_large_fails() -> None:
    world = ProducerWorld(max_records=0)
    deliveries = [world.send(f"{i}") for i in range(4)]
    world.settle()
    assert [d.exception().code for d in deliveries] == [ErrorCode.MESSAGE_TOO_LARGE] * 4  # type: ignore[union-attr]


# Retries


def test_a_retriable_error_is_retried_after_the_backoff() -> None:
    world = ProducerWorld()
    world.broker.answers.extend([ErrorCode.NOT_LEADER_OR_FOLLOWER])
    delivery = world.send("v")
    world.poll()
    world.answer_next()  # the producer id
    world.poll()
    world.answer_next()
    poll = world.sender.poll(world.now)
    assert not poll.requests
    assert poll.wake_at == world.now + 100
    world.settle()
    assert world.log() == ["v"]
    assert stored_offset(delivery) == 0


def test_a_lost_response_does_not_duplicate_the_record() -> None:
    """Spec: D3. The broker recognises the duplicate and returns its first offset."""
    world = ProducerWorld()
    delivery = world.send("v")
    world.poll()
    world.answer_next()
    world.poll()
    world.answer_next("lose answer")
    world.settle()
    assert world.log() == ["v"]
    assert stored_offset(delivery) == 0


def test_without_idempotence_a_lost_response_duplicates_the_record() -> None:
    """Shows that the test above depends on idempotence."""
    world = ProducerWorld(enable_idempotence=False)
    world.send("v")
    world.poll()
    world.answer_next("lose answer")
    world.settle()
    assert world.log() == ["v", "v"]


def test_two_sends_of_equal_content_are_two_records() -> None:
    """Spec: D4."""
    world = ProducerWorld()
    world.send("v")
    world.send("v")
    world.settle()
    assert world.log() == ["v", "v"]


def test_order_is_kept_when_the_first_of_five_in_flight_fails() -> None:
    world = ProducerWorld(batch_size=1)
    world.send("0")
    world.settle()
    deliveries = [world.send(f"{i}") for i in range(1, 8)]
    world.broker.answers.extend([ErrorCode.NOT_ENOUGH_REPLICAS])
    assert len(world.poll()) == 5
    world.settle()
    assert world.log() == [str(i) for i in range(8)]
    assert [stored_offset(delivery) for delivery in deliveries] == list(range(1, 8))


def test_batches_are_retried_one_by_one() -> None:
    """With more than five at once, the broker might no longer recognise the first one as a duplicate."""
    world = ProducerWorld(batch_size=1)
    world.send("0")
    world.settle()
    for i in range(1, 6):
        world.send(f"{i}")
    assert len(world.poll()) == 5
    for _ in range(5):
        world.answer_next("lose answer")
    world.now += 1_000
    for _ in range(5):
        assert len(world.poll()) == 1
        world.answer_next()
    world.settle()
    assert world.log() == ["0", "1", "2", "3", "4", "5"]


def test_retries_end_with_the_delivery_timeout() -> None:
    world = ProducerWorld(delivery_timeout_ms=2_000, request_timeout_ms=500)
    delivery = world.send("v")
    world.broker.answers.extend([ErrorCode.NOT_ENOUGH_REPLICAS] * 1_000)
    start = world.now
    world.settle()
    error = delivery.exception()
    assert error is not None
    assert error.code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert 2_000 <= world.now - start < 4_000


def test_retries_end_after_their_number() -> None:
    world = ProducerWorld(retries=2, enable_idempotence=False)
    delivery = world.send("v")
    world.broker.answers.extend([ErrorCode.NOT_ENOUGH_REPLICAS] * 3)
    world.settle()
    assert delivery.exception() is not None
    assert not world.broker.answers


def test_a_record_waits_for_a_partition_leader() -> None:
    world = ProducerWorld(enable_idempotence=False)
    world.view.keep_only((), world.now)
    delivery = world.send("v")
    assert not world.poll()
    assert world.view.poll(world.now + 200).requests, "it requests metadata"
    world.show_topic(1)
    world.settle()
    assert stored_offset(delivery) == 0


# Sequence numbers


def test_sequences_count_records_and_start_at_0() -> None:
    """Spec: D3."""
    world = ProducerWorld(batch_size=160)
    for i in range(8):
        world.send(f"{i}" * 10)
    headers = []
    while world.accumulator.unfinished:
        sent = [request.build(VERSION) for request in world.poll() if request.api_key == ApiKey.PRODUCE]
        headers += [read_header(message.topic_data[0].partition_data[0].records) for message in sent]
        world.answer_next()
    assert [(header.base_sequence, header.record_count) for header in headers] == [(0, 3), (3, 3), (6, 2)]
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {(1001, 0)}


def test_sequences_wrap_around_to_0() -> None:
    numbers = Idempotence()
    numbers.set_producer_id(7, 0)
    seen = []
    for i in range(3):
        batch = ProducerBatch(TopicPartition("t", 0), (i,))
        batch.records = [(0, None, b"v", ())] * 10
        numbers.sending(batch)
        seen.append(batch.base_sequence)
        numbers.succeeded(batch)
        if i == 0:
            numbers._partitions[TopicPartition("t", 0)].next_sequence = 2**31 - 4
    assert seen == [0, 2**31 - 4, 6]


def test_a_sequence_gap_is_fatal_and_later_sends_fail() -> None:
    """Spec: D3. The broker lost acknowledged records; continuing would hide that."""
    world = ProducerWorld(batch_size=1)
    world.send("a")
    world.settle()
    # After an unclean leader election, the new leader's log has sequence 7 for this producer.
    world.broker.producers[TopicPartition("t", 0), 1001] = (0, [Stored(7, 7, 0)])
    delivery, behind = world.send("b"), world.send("c")
    world.settle()
    error = delivery.exception()
    assert error is not None
    assert error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert world.sender.fatal_error is error
    assert behind.exception() is not None
    with pytest.raises(KafkaError) as later:
        world.send("d")
    assert later.value is error


def test_batches_after_a_refused_one_are_renumbered() -> None:
    world = ProducerWorld(batch_size=1)
    world.send("first")
    world.settle()
    deliveries = [world.send(f"{i}") for i in range(5)]
    world.broker.answers.extend([ErrorCode.NONE, ErrorCode.INVALID_TIMESTAMP])
    assert len(world.poll()) == 5
    world.settle()
    assert deliveries[1].exception() is not None
    assert world.log() == ["first", "0", "2", "3", "4"]
    assert [stored_offset(deliveries[i]) for i in (0, 2, 3, 4)] == [1, 2, 3, 4]


def test_the_first_batch_of_a_producer_is_sent_alone() -> None:
    """A broker without state of a producer accepts any sequence: after refusing the first batch it would store the
    second."""
    world = ProducerWorld(batch_size=1)
    deliveries = [world.send(f"{i}") for i in range(4)]
    world.poll()
    world.answer_next()
    assert len(world.poll()) == 1
    world.broker.answers.extend([ErrorCode.NOT_ENOUGH_REPLICAS])
    world.settle()
    assert world.log() == ["0", "1", "2", "3"]
    assert [stored_offset(delivery) for delivery in deliveries] == [0, 1, 2, 3]


def test_after_an_unknown_outcome_the_partition_restarts_under_a_new_epoch() -> None:
    world = ProducerWorld(batch_size=1, delivery_timeout_ms=1_000, request_timeout_ms=500)
    lost = world.send("lost")
    world.poll()
    world.answer_next()
    world.poll()
    world.answer_next("lose answer")
    world.now += 2_000
    world.poll()
    error = lost.exception()
    assert error is not None, "delivery.timeout.ms passes before the retry"
    delivery = world.send("next")
    world.settle()
    assert world.log() == ["lost", "next"]
    assert stored_offset(delivery) == 1
    assert world.broker.producers[TopicPartition("t", 0), 1001][0] == 1


def test_other_partitions_keep_their_sequences_when_one_restarts() -> None:
    world = ProducerWorld(partitions=2, batch_size=1, delivery_timeout_ms=1_000, request_timeout_ms=500)
    world.send("x", 1)
    world.settle()
    world.send("lost", 0)
    world.poll()
    world.answer_next("lose answer")
    world.now += 2_000
    world.poll()
    for i in range(3):
        world.send(f"{i}", 1)
        world.send(f"{i}", 0)
        world.settle()
    assert world.log(1) == ["x", "0", "1", "2"]
    assert world.log(0) == ["lost", "0", "1", "2"]


def test_requesting_a_producer_id_is_retried_and_a_refusal_is_fatal() -> None:
    world = ProducerWorld()
    delivery = world.send("v")
    world.poll()
    world.answer_next("lose request")
    world.settle()
    assert stored_offset(delivery) == 0
    refused = ProducerWorld()
    delivery = refused.send("v")
    (request,) = refused.poll()
    request.on_failure(KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), refused.now)
    refused.poll()
    assert delivery.exception() is refused.sender.fatal_error is not None


def test_requests_for_a_producer_id_wait_longer_each_time() -> None:
    world = ProducerWorld()
    world.send("v")
    waits = []
    for _ in range(5):
        (request,) = world.sender.poll(world.now).requests
        request.on_failure(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer"), world.now)
        poll = world.sender.poll(world.now)
        assert not poll.requests
        assert poll.wake_at is not None
        waits.append(poll.wake_at - world.now)
        world.now = poll.wake_at
    assert all(later > 1.3 * earlier for earlier, later in itertools.pairwise(waits[:4])), waits
    assert waits[0] <= 120, "100 ms and the jitter"


# Random failures


@each_seed(60)
def test_random_failures_neither_lose_nor_duplicate_nor_reorder_acknowledged_records(seed: int) -> None:
    """Spec: D3. Random faults on two partitions; then the log is compared with the result of each Delivery."""
    world = ProducerWorld(
        partitions=2,
        seed=seed,
        batch_size=1 if seed % 3 else 200,
        max_records=1_000 if seed % 2 else 4,
        delivery_timeout_ms=3_000,
        request_timeout_ms=1_000,
        retry_backoff_ms=50,
    )
    rng = world.random
    codes = [ErrorCode.NONE] * 6 + [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.INVALID_TIMESTAMP]
    codes += [ErrorCode.NOT_ENOUGH_REPLICAS]
    deliveries: list[tuple[int, str, Delivery]] = []
    for step in range(150):
        for _ in range(rng.randrange(3)):
            partition, value = rng.randrange(2), f"s{step}-{len(deliveries)}"
            deliveries.append((partition, value, world.send(value, partition)))
        world.poll()
        while world.on_the_wire and rng.random() < 0.6:
            if rng.random() < 0.3:
                world.broker.answers.append(rng.choice(codes))
            if rng.random() < 0.7:
                world.answer_next("resign" if rng.random() < 0.1 else "")
            else:
                # The connection breaks: the broker got the first few requests, and all responses are lost.
                received = rng.randrange(len(world.on_the_wire) + 1)
                for i in range(len(world.on_the_wire)):
                    world.answer_next("lose answer" if i < received else "lose request")
            world.broker.answers.clear()
        world.now += rng.choice([1, 10, 100, 400])
    world.settle(5_000)
    for partition in range(2):
        log = world.log(partition)
        assert len(set(log)) == len(log), "a record is stored twice"
        sent = [(value, delivery) for p, value, delivery in deliveries if p == partition]
        for value, delivery in sent:
            error = delivery.exception()
            if error is None:
                assert log[stored_offset(delivery)] == value
            elif error.code not in MAYBE_APPENDED and error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                assert value not in log, f"{value} failed for certain with {error} and is stored"
        order = {value: i for i, (value, _) in enumerate(sent)}
        places = [order[value] for value in log]
        assert places == sorted(places), "records changed their order"
    assert world.sender.fatal_error is None
    assert world.accumulator.buffered_bytes == 0
    assert not world.accumulator.unfinished
