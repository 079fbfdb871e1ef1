"""The driver's side of a stream: its answers to Spark's calls, without Spark. Spec: F1, F3."""

import json
import logging
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from ottla import Admin, Broker, Consumer, Producer
from ottla.client.core.model import LATEST, TopicDescription
from ottla.clock import monotonic
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.spark.explaining import BrokersUnavailable
from ottla.spark.source import reading, source
from ottla.spark.source.lookup import Lookup
from ottla.spark.source.offsets import OffsetRange
from ottla.spark.source.options import SourceOptions
from ottla.spark.source.source import StreamReader
from ottla.types import TopicPartition


class Query:
    """Calls a reader as Spark does: every offset goes through JSON."""

    def __init__(self, bootstrap: str, **options: str) -> None:
        self.reader = StreamReader(
            SourceOptions.parse({"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", **options})
        )

    def __enter__(self) -> "Query":
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def initial(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(self.reader.initialOffset()))
        return found

    def latest(self, start: dict[str, Any], limit: Any = None) -> dict[str, Any]:
        chosen = limit or self.reader.getDefaultReadLimit()
        found: dict[str, Any] = json.loads(json.dumps(self.reader.latestOffset(start, chosen)))
        return found

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
        return [piece for task in self.reader.partitions(start, end) for piece in task.value]


def produce(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(count):
            producer.send(topic, str(number), partition=partition)


def create(bootstrap: str, topic: str, partitions: int = 1) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions)


def test_an_offset_without_new_records_is_byte_for_byte_the_same(broker: Any, topic: str) -> None:
    """Spark compares offsets as text: any difference would start a batch."""
    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 3)
    with Query(broker.bootstrap, subscribe=topic) as query:
        first = query.latest(query.initial())
        assert first[topic] == {"0": 3}
        assert json.dumps(query.latest(first)) == json.dumps(first)
        assert query.ranges(first, query.latest(first)) == []


def test_new_topics_that_match_a_pattern_are_read_from_their_beginning(broker: Any, topic: str) -> None:
    with Query(broker.bootstrap, subscribePattern=f"{topic}-.*", startingOffsets="latest") as query:
        start = query.latest(query.initial())
        assert query.ranges(query.initial(), start) == [], "no topic matches yet, which is not an error"
        create(broker.bootstrap, f"{topic}-a", 2)
        produce(broker.bootstrap, f"{topic}-a", 2, 1)
        end = query.latest(start)
        assert query.ranges(start, end) == [OffsetRange(TopicPartition(f"{topic}-a", 1), 0, 2)]


def test_patterns_do_not_match_internal_topics(broker: Any) -> None:
    with Query(broker.bootstrap, subscribePattern="__consumer_offsets") as query:
        assert not [name for name in query.initial() if not name.startswith("@")]


def test_limits_come_from_the_options_and_all_available_is_above_them(broker: Any, topic: str) -> None:
    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 100)
    for options, limit in (
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "10"}, ReadMaxRows(10)),
        ({"minOffsetsPerTrigger": "10"}, ReadMinRows(10)),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "10"}, ReadMaxRows(10)),
    ):
        with Query(broker.bootstrap, subscribe=topic, **options) as query:
            assert query.reader.getDefaultReadLimit() == limit
    with Query(broker.bootstrap, subscribe=topic, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="99") as query:
        first = query.latest(query.initial())
        assert first[topic] == {"0": 99}
        assert query.latest(first) == first, "one record is less than five"
        assert query.latest(first, ReadAllAvailable())[topic] == {"0": 100}
        assert query.reader.reportLatestOffset() == {topic: {"0": 100}}


def test_available_now_ends_at_the_offsets_of_the_start(broker: Any, topic: str) -> None:
    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 5)
    with Query(broker.bootstrap, subscribe=topic, maxOffsetsPerTrigger="3", minOffsetsPerTrigger="3") as query:
        query.reader.prepareForTriggerAvailableNow()
        produce(broker.bootstrap, topic, 5)
        first = query.latest(query.initial())
        second = query.latest(first)
        assert (first[topic], second[topic]) == ({"0": 3}, {"0": 5}), "it does not wait for a third one"
        assert query.latest(second) == second
    with Query(broker.bootstrap, subscribe=topic, startingOffsets="latest") as query:
        query.reader.prepareForTriggerAvailableNow()
        produce(broker.bootstrap, topic, 5)
        assert query.initial()[topic] == {"0": 10}


def test_tasks_are_planned_without_requests(topic: str) -> None:
    """So a repeated batch gets the same tasks, even if the topic, the broker or the options have changed."""
    with Broker.embedded() as broker:
        create(broker.bootstrap, topic, 2)
        produce(broker.bootstrap, topic, 90, 0)
        produce(broker.bootstrap, topic, 10, 1)
        with Query(broker.bootstrap, subscribe=topic, minPartitions="4") as query:
            start = query.initial()
            end = query.latest(start)
            planned = query.ranges(start, end)
    assert [piece.size for piece in planned] == [30, 30, 30, 10]
    with Query(broker.bootstrap, subscribe=topic) as query:
        assert query.ranges(start, end) == planned
        assert query.ranges({"@initial": True}, end) == planned, "batch 0 depends only on its end offset"


def test_offsets_are_committed_to_a_group_and_a_refusal_does_not_stop_the_query(
    broker: Any, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "COMMIT_TIMEOUT_MS", 60_000)
    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 4)
    with (
        Query(broker.bootstrap, subscribe=topic, groupIdPrefix="team") as query,
        Admin(bootstrap_servers=broker.bootstrap) as admin,
    ):
        end = query.latest(query.initial())
        group = end["@group"]
        assert group.startswith(f"team-{topic}-")
        query.reader.commit(end)
        assert admin.list_group_offsets(group)[TopicPartition(topic, 0)].offset == 4
    with (
        Consumer(bootstrap_servers=broker.bootstrap, group_id=f"taken-{topic}", enable_auto_commit=False) as member,
        Query(broker.bootstrap, subscribe=topic, **{"kafka.group.id": f"taken-{topic}"}) as query,
    ):
        member.subscribe([topic])
        deadline = monotonic() + 100
        while not member.assignment():
            member.poll(100)
            assert monotonic() < deadline
        end = query.latest(query.initial())
        assert "@group" not in end
        with caplog.at_level(logging.WARNING, logger="ottla.spark"):
            query.reader.commit(end)
        assert f"group taken-{topic}: the query's offsets could not be committed" in caplog.text, (
            "the group has members"
        )
        member.close()
        query.reader.commit(end)
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            assert admin.list_group_offsets(f"taken-{topic}") == {}, "the next commit waits for the back-off"
            query.reader._show_after = 0.0  # noqa: SLF001
            query.reader.commit(end)
            assert admin.list_group_offsets(f"taken-{topic}")[TopicPartition(topic, 0)].offset == 4


def test_the_list_of_partitions_can_be_cached(broker: Any, topic: str) -> None:
    create(broker.bootstrap, topic)
    ttl = {"partition.metadata.cache.ttl.ms": "600000"}
    with Query(broker.bootstrap, subscribe=topic, **ttl) as kept, Query(broker.bootstrap, subscribe=topic) as asking:
        start, other = kept.latest(kept.initial()), asking.latest(asking.initial())
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_partitions({topic: 2})
        assert kept.latest(start)[topic] == {"0": 0}
        assert asking.latest(other)[topic] == {"0": 0, "1": 0}


def test_a_checkpoint_of_sparks_own_source_is_continued(broker: Any, topic: str) -> None:
    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 4)
    with Query(broker.bootstrap, subscribe=topic) as query:
        start = {topic: {"0": 3}}
        end = query.latest(start)
        assert query.ranges(start, end) == [OffsetRange(TopicPartition(topic, 0), 3, 4)]
        assert end["@group"].startswith("ottla-source-")


def test_a_checkpoint_of_another_source_is_refused(broker: Any, topic: str) -> None:
    create(broker.bootstrap, topic)
    with (
        Query(broker.bootstrap, subscribe=topic) as query,
        pytest.raises(OttlaError, match="an offset of another source"),
    ):
        query.latest({"logOffset": 7})


def test_a_starting_query_waits_for_its_brokers_like_a_running_one(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(broker.bootstrap, topic)
    asked: list[str] = []

    def late(lookup: Lookup, **how: bool) -> Any:
        asked.append(lookup.options.subscription.label)
        if len(asked) % 2:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return there(lookup, **how)

    there = Lookup.partitions
    monkeypatch.setattr(Lookup, "partitions", late)
    monkeypatch.setattr(source, "RETRY_S", 0.01)
    with Query(broker.bootstrap, subscribe=topic) as query:
        query.reader.prepareForTriggerAvailableNow()
        assert asked == [topic] * 2
        assert query.initial()[topic] == {"0": 0}
        assert asked == [topic] * 4


def test_unreachable_brokers_fail_the_query_after_the_timeout() -> None:
    brief = {"kafka.default.api.timeout.ms": "300", "kafkaConsumer.pollTimeoutMs": "300"}
    with Query("127.0.0.1:1", subscribe="orders", **brief) as query:
        with pytest.raises(BrokersUnavailable, match="no broker answered"):
            query.initial()
        with pytest.raises(BrokersUnavailable):
            query.reader.prepareForTriggerAvailableNow()


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_recreated_between_the_plan_of_a_batch_and_its_tasks_is_noticed(
    broker: Any, topic: str, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver died after planning. Before the restart the topic was recreated, with as many records or more.

    Read as records of the old topic, they would be read again when the query begins with the new one.
    """
    monkeypatch.setattr(reading, "METADATA_DELAY_S", 0.2)
    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 3)
    with Query(broker.bootstrap, subscribe=topic, failOnDataLoss=str(fails)) as query:
        start = query.initial()
        end = query.latest(start)
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.delete_topics([topic])
        create(broker.bootstrap, topic)
        produce(broker.bootstrap, topic, 5)
        (task,) = pickle.loads(pickle.dumps(query.reader.partitions(start, end)))
        if fails:
            with pytest.raises(OttlaError, match=f"data loss: topic {topic} was deleted and recreated"):
                list(query.reader.read(task))
            return
        assert list(query.reader.read(task)) == []
        after = query.latest(end)
        assert query.ranges(end, after) == [OffsetRange(TopicPartition(topic, 0), 0, 5)]
        (task,) = query.reader.partitions(end, after)
        assert sum(len(batch) for batch in query.reader.read(task)) == 5


# --- a broker that knows less than the checkpoint ---------------------------------------------------------------

Topics = list[TopicDescription]
OLD_NEWS: dict[str, Callable[[Topics], Topics]] = {
    "it does not know the topic": lambda topics: [],
    "it does not know the second partition": lambda topics: [
        replace(topic, partitions=topic.partitions[:1]) for topic in topics
    ],
    "it knows the former topic of this name": lambda topics: [
        replace(topic, topic_id=bytes(range(16))) for topic in topics
    ],
}


@pytest.mark.parametrize("known", OLD_NEWS.values(), ids=OLD_NEWS.keys())
@pytest.mark.parametrize("available_now", [False, True])
def test_stale_metadata_is_no_data_loss(
    broker: Any, topic: str, known: Callable[[Topics], Topics], available_now: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic was just created or got partitions. One broker reported it to the query; the next has stale metadata."""
    create(broker.bootstrap, topic, 2)
    produce(broker.bootstrap, topic, 3, 1)
    kept = {"partition.metadata.cache.ttl.ms": "600000"}
    with Query(broker.bootstrap, subscribe=topic, **kept) as query:
        start = query.latest(query.initial())
    produce(broker.bootstrap, topic, 2, 1)
    answers = [known, known]

    def behind(lookup: Lookup, must_exist: bool) -> Topics:
        topics = there(lookup, must_exist)
        return answers.pop()(topics) if answers else topics

    there = Lookup._described  # noqa: SLF001
    monkeypatch.setattr(Lookup, "_described", behind)
    with Query(broker.bootstrap, subscribe=topic, **kept) as query:
        if available_now:
            query.reader.prepareForTriggerAvailableNow()
        end = query.latest(start)
        assert query.ranges(start, end) == [OffsetRange(TopicPartition(topic, 1), 3, 5)]
        assert query.latest(end) == end


def test_a_leader_that_does_not_know_its_end_yet_is_no_data_loss_with_available_now(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, 3)
    with Query(broker.bootstrap, subscribe=topic) as query:
        start = query.latest(query.initial())
    answers = [1, 2]

    def behind(lookup: Lookup, wanted: Any) -> dict[TopicPartition, int]:
        found = there(lookup, wanted)
        return dict.fromkeys(found, answers.pop(0)) if answers and LATEST in wanted.values() else found

    there = Lookup.offsets
    monkeypatch.setattr(Lookup, "offsets", behind)
    with Query(broker.bootstrap, subscribe=topic) as query:
        query.reader.prepareForTriggerAvailableNow()
        assert query.latest(start) == start
