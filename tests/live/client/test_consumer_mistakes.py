"""Invalid use of a consumer: the error names the argument and the cause, every time."""

# ruff: noqa: SLF001  (sets up or checks internal state)

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla import Consumer, DeserializingConsumer, KafkaError, OttlaError, Producer
from ottla.client.group.rebalance_listener import RebalanceListener
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from tests.support.worlds.consumer_world import ConsumerWorld

COUNT = 5


@pytest.fixture
def filled(broker: Any, topic: str) -> str:
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=1000) as producer:
        for i in range(COUNT):
            producer.send(topic, str(i), partition=0)
    return topic


@pytest.fixture
def consumer(broker: Any, filled: str) -> Iterator[Consumer]:
    settings: dict[str, Any] = {"group_id": filled, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with Consumer(bootstrap_servers=broker.bootstrap, **settings) as consumer:
        consumer.assign([(filled, 0)])
        yield consumer


MISTAKES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "poll no records": (lambda c, p: c.poll(500, max_records=0), "max_records must be at least 1, not 0"),
    "poll fewer": (lambda c, p: c.poll(500, max_records=-1), "max_records must be at least 1, not -1"),
    "poll a text": (lambda c, p: c.poll(500, max_records="5"), "max_records must be a whole number, not '5'"),
    "poll no time": (lambda c, p: c.poll(None), "timeout_ms must be a whole number of milliseconds, not None"),
    "poll endlessly": (lambda c, p: c.poll(float("inf")), "timeout_ms must be a whole number of milliseconds, not inf"),
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


def test_an_invalid_argument_is_named_in_the_error(consumer: Consumer, filled: str) -> None:
    for name, (mistake, said) in MISTAKES.items():
        try:
            mistake(consumer, TopicPartition(filled, 0))
        except OttlaError as error:
            message = str(error)
        else:
            pytest.fail(f"{name} was accepted")
        assert re.search(said, message), name
    found: list[Any] = []
    while len(found) < COUNT:
        found += consumer.poll(1_000)
    assert [record.offset for record in found] == list(range(COUNT)), "nothing was consumed by a mistake"
    with pytest.raises(OttlaError, match="max_records must be at least 1"):
        consumer.poll(max_records=0)


def test_an_invalid_timeout_is_refused_even_if_nothing_has_to_be_waited_for(consumer: Consumer) -> None:
    first = consumer.poll(300_000, max_records=1)
    for poll in (consumer.poll, consumer.poll_arrow):
        with pytest.raises(OttlaError, match="timeout_ms must be a whole number"):
            poll(None)  # type: ignore[arg-type]
    assert [record.offset for record in [*first, *consumer.poll(300_000, max_records=1)]] == [0, 1]


def test_a_poll_that_gets_only_hidden_records_respects_its_timeout(
    consumer: Consumer, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not keep the loop busy: other clients of the process use it too."""
    consumer.poll(300_000, max_records=1)
    inner = consumer._async
    monkeypatch.setattr(inner._fetcher, "take", lambda most: {})
    assert inner._fetcher.has_records
    assert not consumer.poll(200)


# --- missing topics and partitions --------------------------------------------------------------------------


def test_an_invalid_topic_name_raises_in_every_poll(broker: Any, topic: str) -> None:
    with Consumer(bootstrap_servers=broker.bootstrap, group_id=topic) as consumer:
        consumer.subscribe(["bad name!"])
        for _ in range(2):
            with pytest.raises(KafkaError, match="topic bad name!") as refused:
                consumer.poll(300_000)
            assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_other_topics_are_still_read(broker: Any, filled: str) -> None:
    with Consumer(bootstrap_servers=broker.bootstrap, group_id=filled, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([filled, "bad name!"])
        found: list[Any] = []
        refusals: list[ErrorCode] = []
        while len(found) < COUNT:
            try:
                found += consumer.poll(1_000)
            except KafkaError as error:
                refusals.append(error.code)
        assert set(refusals) == {ErrorCode.INVALID_TOPIC_EXCEPTION}
        assert [record.offset for record in found] == list(range(COUNT))


def test_assigned_partitions_of_an_invalid_topic_raise_the_cause(broker: Any, filled: str) -> None:
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([("bad name!", 0)])
        for _ in range(3):
            with pytest.raises(KafkaError, match="topic bad name!") as refused:
                consumer.poll(300_000)
            assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
        consumer.assign([(filled, 0)])
        assert consumer.poll(300_000), "a partition that is no longer read raises no error"


def test_the_position_of_a_missing_partition_names_the_existing_ones(broker: Any, filled: str) -> None:
    with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([(filled, 7), (filled, -1)])
        consumer.partitions_for(filled)
        for missing in (7, -1):
            with pytest.raises(KafkaError, match=f"topic {filled} has partitions 0 to 0, not {missing}") as refused:
                consumer.position((filled, missing), timeout_ms=500)
            assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_commit_that_timed_out_names_the_cause(broker: Any, topic: str) -> None:
    with Consumer(bootstrap_servers=broker.bootstrap, group_id=topic) as consumer:
        consumer.assign([(topic, 0)])
        consumer.committed([(topic, 0)])  # the first group of a broker waits for its coordinator
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION: committing offset 3 of no-such") as refused:
            consumer.commit({("no-such-topic", 0): 3}, timeout_ms=5_000)
        assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT


def test_an_error_while_looking_up_a_position_is_raised_until_it_is_gone() -> None:
    """Permission to read may be granted later: then reading continues without further calls."""
    world = ConsumerWorld()
    world.logs[TopicPartition("t", 0)].append("a")
    state = world.positions.states[TopicPartition("t", 0)]
    assert state.reset_to is not None
    refused = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t")
    for _ in range(3):
        world.positions._failed(TopicPartition("t", 0), state, refused, 0)
    assert world.positions.errors == [refused], "only once until it has been raised"
    assert world.positions.take_error() is refused
    state.retry_at = 0
    world.exchange(10)
    assert world.take() == ["a"]


# --- records that cannot be deserialized --------------------------------------------------------------------


@pytest.fixture
def numbers(broker: Any, filled: str) -> Iterator[DeserializingConsumer[bytes, int]]:
    """A consumer that has returned the records before one that is not a number."""
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=1000) as producer:
        for value in ("bad", "6", "7"):
            producer.send(filled, value, partition=0)
    with DeserializingConsumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", value_deserializer=int
    ) as consumer:
        consumer.assign([(filled, 0)])
        found: list[Any] = []
        while len(found) < COUNT:
            found += consumer.poll(300_000)
        assert consumer._deserializers._failure is not None, "the next poll() will raise"
        yield consumer


def test_a_deserialization_error_is_not_raised_after_seeking_past_it(
    numbers: DeserializingConsumer[bytes, int], filled: str
) -> None:
    numbers.seek((filled, 0), COUNT + 1)
    assert [record.value for record in numbers.poll(300_000)] == [6, 7]


def test_a_deserialization_error_of_an_unassigned_partition_is_not_raised(
    numbers: DeserializingConsumer[bytes, int], filled: str
) -> None:
    numbers.assign([(filled, 1)])
    assert numbers.poll(100) == []


def test_a_deserialization_error_waits_while_its_partition_is_paused(
    numbers: DeserializingConsumer[bytes, int], filled: str
) -> None:
    numbers.pause([(filled, 0)])
    assert numbers.poll(100) == []
    numbers.resume([(filled, 0)])
    with pytest.raises(OttlaError, match=f"the value of {filled}-0 at offset {COUNT} cannot be deserialized"):
        numbers.poll(300_000)
