"""The rules of `ottla copy` without a cluster: its ledger, the topics it creates, its checksums."""

import pyarrow as pa
import pytest

from ottla.cli.copy.checksums import COLUMNS, Checksum, LatestByKey
from ottla.cli.copy.copier import joined, ranges
from ottla.cli.copy.ledger import LEDGER_TOPIC, POINT_DISTANCE, Copied, Ledger, Point, Range
from ottla.cli.copy.topics import choose, plan
from ottla.cli.output import CommandError
from ottla.client.consumer.arrow import arrow_module
from ottla.client.core.model import PartitionDescription, TopicDescription
from ottla.client.producer.arrow_send import StoredRows
from ottla.types import TopicPartition

ORDERS = TopicPartition("orders", 0)


# The ledger


def wrote(ledger: Ledger, first: int, last: int, stored_first: int, stored_last: int) -> None:
    """A transaction with these offsets is committed."""
    for key, value in list(ledger.records(ORDERS, Range(first, last, stored_first, stored_last))):
        ledger.replay(key, value)


def test_the_ledger_knows_the_position_and_where_the_copy_began() -> None:
    ledger = Ledger("source")
    wrote(ledger, 5, 9, 0, 4)
    wrote(ledger, 11, 20, 6, 15)
    assert ledger.copied[ORDERS] == Copied(21, 16, [Point(5, 0)])


def test_points_are_far_apart_so_that_the_ledger_stays_small() -> None:
    ledger = Ledger("source")
    for number in range(100):
        wrote(ledger, number * 1_000, number * 1_000 + 999, number * 1_001, number * 1_001 + 999)
    points = ledger.copied[ORDERS].points
    assert [point.source for point in points] == list(range(0, 100_000, POINT_DISTANCE))
    assert ledger.copied[ORDERS].point_before(25_500) == Point(20_000, 20 * 1_001)
    assert Copied(0, 0, [Point(5, 0)]).point_before(4) is None


def test_the_ledger_of_another_source_is_another_one() -> None:
    one, other = Ledger("one"), Ledger("other")
    for key, value in one.records(ORDERS, Range(0, 9, 0, 9)):
        other.replay(key, value)
    other.replay(b'{"source":"other","topic":"orders","partition":0}', None)
    assert other.copied == {}


def test_the_ledger_knows_which_topic_of_a_name_was_copied() -> None:
    ledger, again = Ledger("source"), Ledger("source")
    written = list(ledger.records(ORDERS, Range(0, 9, 0, 9), topic_id="first"))
    for key, value in written:
        again.replay(key, value)
    assert again.copied[ORDERS].topic_id == "first"
    assert again.is_other_topic(ORDERS, "second")
    assert not again.is_other_topic(ORDERS, "first")


def test_without_topic_ids_offsets_are_all_there_is_to_compare() -> None:
    """Ledgers of earlier versions have none, and neither have clusters before Kafka 2.8."""
    ledger = Ledger("source")
    ledger.replay(b'{"source":"source","topic":"orders","partition":0}', b'{"source":21,"target":16}')
    assert ledger.copied[ORDERS] == Copied(21, 16)
    assert not ledger.is_other_topic(ORDERS, "any")
    for key, value in list(ledger.records(ORDERS, Range(21, 30, 17, 26), topic_id="first")):
        ledger.replay(key, value)
    assert ledger.is_other_topic(ORDERS, "second")
    assert not ledger.is_other_topic(ORDERS, "")
    assert not ledger.is_other_topic(TopicPartition("orders", 1), "second")
    wrote(ledger, 31, 40, 28, 37)
    assert ledger.copied[ORDERS].topic_id == "first", "a source that no longer tells its ids changes nothing"


def test_a_topic_that_is_copied_again_has_its_new_id() -> None:
    ledger = Ledger("source")
    for topic_id in ("first", "second"):
        for key, value in list(ledger.records(ORDERS, Range(0, 9, 0, 9), topic_id=topic_id)):
            ledger.replay(key, value)
        if topic_id == "first":
            ledger.forget(ORDERS)
    assert ledger.copied[ORDERS].topic_id == "second"


# Topics


def topic(name: str, partitions: int = 1, replicas: int = 1, *, internal: bool = False) -> TopicDescription:
    brokers = tuple(range(replicas))
    described = tuple(
        PartitionDescription(partition=n, leader=0, leader_epoch=0, replicas=brokers, in_sync_replicas=brokers)
        for n in range(partitions)
    )
    return TopicDescription(name, bytes(16), internal, described)


def test_a_pattern_matches_whole_names_and_never_internal_topics() -> None:
    known = [
        topic("orders"),
        topic("orders-2"),
        topic("__consumer_offsets", internal=True),
        topic("__ottla_rebalances"),
    ]
    assert [each.name for each in choose([*known, topic(LEDGER_TOPIC)], ".*")] == ["orders", "orders-2"]
    assert [each.name for each in choose(known, "orders")] == ["orders"]


def test_a_smaller_target_gets_as_many_replicas_as_it_has_brokers() -> None:
    configs = {"orders": {"min.insync.replicas": "2", "retention.ms": "1"}}
    wanted = plan([topic("orders", 6, 3)], {}, configs, broker_count=1)
    (new,) = wanted.create
    assert (new.partitions, new.replication_factor) == (6, 1)
    assert new.configs == {"min.insync.replicas": "1", "retention.ms": "1"}
    assert wanted.notices == ["orders: 1 replicas instead of 3, one on each broker"]


def test_partitions_are_added_but_never_too_many() -> None:
    assert plan([topic("orders", 6)], {"orders": topic("orders", 4)}, {}, 3).grow == {"orders": 6}
    with pytest.raises(CommandError, match="has 4 partitions in the source and 6 in the target"):
        plan([topic("orders", 4)], {"orders": topic("orders", 6)}, {}, 3)


# Batches


def records(*rows: tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]) -> pa.RecordBatch:
    columns = [
        {"key": key, "value": value, "timestamp": at, "headers": [{"key": k, "value": v} for k, v in headers]}
        for key, value, at, headers in rows
    ]
    schema = arrow_module("arrow_batches").schema("ms", COLUMNS)
    return pa.RecordBatch.from_pylist(columns, schema=schema)


ROWS = records(
    (b"k", b"v", 1, []),
    (None, b"", 2, [("a", b"1"), ("b", None)]),
    (b"", None, 3, [("c", b"")]),
    (b"kk", b"vv", 4, []),
)


def digest(*batches: pa.RecordBatch) -> str:
    checksum = Checksum()
    for batch in batches:
        checksum.add(batch)
    return checksum.hexdigest()


@pytest.mark.parametrize("cut", range(5))
def test_a_checksum_does_not_depend_on_batches(cut: int) -> None:
    assert digest(ROWS.slice(0, cut), ROWS.slice(cut)) == digest(ROWS)


@pytest.mark.parametrize(
    "other",
    [
        records((b"k", b"w", 1, [])),
        records((b"kv", b"", 1, [])),  # the same bytes, cut elsewhere
        records((None, b"v", 1, [])),
        records((b"k", None, 1, [])),
        records((b"k", b"v", 2, [])),
        records((b"k", b"v", 1, [("h", None)])),
        records((b"k", b"v", 1, []), (b"k", b"v", 1, [])),
    ],
)
def test_a_checksum_sees_every_difference(other: pa.RecordBatch) -> None:
    assert digest(other) != digest(ROWS.slice(0, 1))


def test_null_and_empty_are_different() -> None:
    assert digest(records((b"", b"", 1, []))) != digest(records((None, b"", 1, [])))
    assert digest(records((b"k", b"", 1, []))) != digest(records((b"k", None, 1, [])))


def test_compacted_topics_are_equal_if_the_latest_records_are() -> None:
    one, other = LatestByKey(), LatestByKey()
    one.add(records((b"a", b"1", 1, []), (b"b", b"1", 2, []), (b"a", b"2", 3, []), (b"b", None, 4, [])))
    other.add(records((b"a", b"2", 3, [])))
    assert one.hexdigest() == other.hexdigest()
    other.add(records((b"a", b"3", 4, [])))
    assert one.hexdigest() != other.hexdigest()


def test_ranges_and_stored_rows_are_joined_by_partition() -> None:
    batch = pa.RecordBatch.from_pydict({"topic": ["a", "b", "a"], "partition": [0, 1, 0], "offset": [3, 7, 9]})
    assert ranges(batch) == {TopicPartition("a", 0): (3, 9, 2), TopicPartition("b", 1): (7, 7, 1)}
    first, second = {ORDERS: StoredRows(10, 14, 5)}, {ORDERS: StoredRows(15, 16, 2)}
    assert joined([first, second]) == {ORDERS: StoredRows(10, 16, 7)}
