"""What users ask of a consumer that cannot be: refused by its name, and the true cause told as often as it is met."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.worlds.consumer_world import ConsumerWorld

from ottla import Consumer, DeserializingConsumer, KafkaError, OttlaError, Producer
from ottla.client.group.rebalance_listener import RebalanceListener
from ottla.errors import ErrorCode
from ottla.types import TopicPartition

COUNT = 5


@pytest.fixture
def filled(broker: Any, topic: str) -> str:
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=1000) as producer:
        for i in range(COUNT):
            producer.send(topic, str(i), partition=0)
    return topic


@pytest.fixture
def consumer(broker: Any, filled: str) -> Iterator[Consumer]:
    settings = {"group_id": filled, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with Consumer(bootstrap_servers=broker.bootstrap, **settings) as consumer:
        consumer.assign([(filled, 0)])
        yield consumer


MISTAKES: dict[str, tuple[Callable[[Consumer, Any], Any], str]] = {
    "poll no records": (lambda c, p: c.poll(500, max_records=0), "max_records must be at least 1, not 0"),
    "poll fewer": (lambda c, p: c.poll(500, max_records=-1), "max_records must be at least 1, not -1"),
    "poll a text": (lambda c, p: c.poll(500, max_records="5"), "max_records must be a whole number, not '5'"),
    "poll no time": (lambda c, p: c.poll(None), "timeout_ms must be a number of milliseconds, not None"),
    "poll for ever": (lambda c, p: c.poll(float("inf")), "timeout_ms must be a number of milliseconds, not inf"),
    "no rows": (lambda c, p: c.poll_arrow(500, max_records=0), "max_records must be at least 1, not 0"),
    "no columns": (lambda c, p: c.poll_arrow(500, columns=[]), "columns is empty"),
    "one column": (lambda c, p: c.poll_arrow(500, columns="value"), "a list of names, not the one name 'value'"),
    "seek": (lambda c, p: c.seek(p, "5"), "the offset for .* must be a whole number, not '5'"),
    "commit": (lambda c, p: c.commit({p: "5"}), "the offset for .* must be a whole number, not '5'"),
    "commit a list": (lambda c, p: c.commit([1]), r"offsets must be a dict by partition, not \[1\]"),
    "times": (lambda c, p: c.offsets_for_times({p: "x"}), "the time for .* must be a whole number, not 'x'"),
    "times as a list": (lambda c, p: c.offsets_for_times([p]), "times must be a dict by partition"),
    "listener": (lambda c, p: c.subscribe(["t"], listener=5), "listener has none of on_partitions_revoked, .*: 5"),
    "a class": (lambda c, p: c.subscribe(["t"], listener=RebalanceListener), "listener is the class RebalanceListener"),
}


def test_each_mistake_is_told_by_the_name_of_the_argument(consumer: Consumer, filled: str) -> None:
    for name, (mistake, said) in MISTAKES.items():
        with pytest.raises(OttlaError, match=said):
            mistake(consumer, TopicPartition(filled, 0))
            pytest.fail(f"{name} was accepted")
    found: list[Any] = []
    while len(found) < COUNT:
        found += consumer.poll(1_000)
    assert [record.offset for record in found] == list(range(COUNT)), "nothing was consumed by a mistake"
    with pytest.raises(OttlaError, match="max_records must be at least 1"):
        consumer.poll(max_records=0)


def test_a_timeout_that_is_none_is_refused_though_nothing_has_to_be_waited_for(consumer: Consumer) -> None:
    first = consumer.poll(60_000, max_records=1)
    for poll in (consumer.poll, consumer.poll_arrow):
        with pytest.raises(OttlaError, match="timeout_ms must be a number"):
            poll(None)  # type: ignore[arg-type]
    assert [record.offset for record in [*first, *consumer.poll(60_000, max_records=1)]] == [0, 1]


def test_a_poll_that_finds_nothing_in_what_came_ends_in_its_time(
    consumer: Consumer, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason: the loop is there for the other clients of the process too."""
    consumer.poll(60_000, max_records=1)
    inner = consumer._async
    monkeypatch.setattr(inner._fetcher, "take", lambda most: {})
    assert inner._fetcher.has_records
    assert not consumer.poll(200)


# --- topics and partitions that are not there ---------------------------------------------------------------


def test_a_topic_that_cannot_exist_is_refused_in_every_poll(broker: Any, topic: str) -> None:
    with Consumer(bootstrap_servers=broker.bootstrap, group_id=topic) as consumer:
        consumer.subscribe(["bad name!"])
        for _ in range(2):
            with pytest.raises(KafkaError, match="topic bad name!") as refused:
                consumer.poll(60_000)
            assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_other_topics_are_read_all_the_same(broker: Any, filled: str) -> None:
    with Consumer(bootstrap_servers=broker.bootstrap, group_id=filled, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([filled, "bad name!"])
        found: list[Any] = []
        refusals = 0
        while len(found) < COUNT:
            try:
                found += consumer.poll(1_000)
            except KafkaError as error:
                assert error.code == ErrorCode.INVALID_TOPIC_EXCEPTION
                refusals += 1
        assert refusals and [record.offset for record in found] == list(range(COUNT))


def test_assigned_partitions_of_such_a_topic_keep_their_cause(broker: Any, filled: str) -> None:
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([("bad name!", 0)])
        for _ in range(3):
            with pytest.raises(KafkaError, match="topic bad name!") as refused:
                consumer.poll(60_000)
            assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
        consumer.assign([(filled, 0)])
        assert consumer.poll(60_000), "what is not read any more is no trouble any more"


def test_the_position_in_a_partition_that_is_not_there_names_those_that_are(broker: Any, filled: str) -> None:
    with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([(filled, 7), (filled, -1)])
        consumer.partitions_for(filled)
        for missing in (7, -1):
            with pytest.raises(KafkaError, match=f"topic {filled} has partitions 0 to 0, not {missing}") as refused:
                consumer.position((filled, missing), timeout_ms=500)
            assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_commit_that_ran_out_of_time_says_what_kept_it(broker: Any, topic: str) -> None:
    with Consumer(bootstrap_servers=broker.bootstrap, group_id=topic) as consumer:
        consumer.assign([(topic, 0)])
        consumer.committed([(topic, 0)])  # the first group of a broker waits for its coordinator
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION: committing offset 3 of no-such") as refused:
            consumer.commit({("no-such-topic", 0): 3}, timeout_ms=5_000)
        assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT


def test_what_keeps_a_partition_from_its_place_is_told_until_it_passes() -> None:
    """Somebody may yet be given the right to read: then it goes on by itself."""
    world = ConsumerWorld()
    world.logs[TopicPartition("t", 0)].append("a")
    state = world.positions.states[TopicPartition("t", 0)]
    assert state.reset_to is not None
    refused = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t")
    for _ in range(3):
        world.positions._failed(state, refused, 0)
    assert world.positions.errors == [refused], "once is enough until it has been raised"
    world.positions.errors.clear()
    state.retry_at = 0
    world.exchange(10)
    assert world.take() == ["a"]


# --- records that cannot be read ----------------------------------------------------------------------------


@pytest.fixture
def numbers(broker: Any, filled: str) -> Iterator[DeserializingConsumer[bytes, int]]:
    """Has given out the records before one that is no number."""
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=1000) as producer:
        for value in ("bad", "6", "7"):
            producer.send(filled, value, partition=0)
    with DeserializingConsumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", value_deserializer=int
    ) as consumer:
        consumer.assign([(filled, 0)])
        found: list[Any] = []
        while len(found) < COUNT:
            found += consumer.poll(60_000)
        assert consumer._deserializers._failure is not None, "the next poll() will raise"
        yield consumer


def test_a_failure_that_was_seeked_past_is_not_raised(numbers: DeserializingConsumer[bytes, int], filled: str) -> None:
    numbers.seek((filled, 0), COUNT + 1)
    assert [record.value for record in numbers.poll(60_000)] == [6, 7]


def test_a_failure_in_a_partition_that_is_read_no_more_is_not_raised(
    numbers: DeserializingConsumer[bytes, int], filled: str
) -> None:
    numbers.assign([(filled, 1)])
    assert numbers.poll(100) == []


def test_a_failure_waits_while_its_partition_is_paused(numbers: DeserializingConsumer[bytes, int], filled: str) -> None:
    numbers.pause([(filled, 0)])
    assert numbers.poll(100) == []
    numbers.resume([(filled, 0)])
    with pytest.raises(OttlaError, match=f"the value of {filled}-0 at offset {COUNT} cannot be deserialized"):
        numbers.poll(60_000)
