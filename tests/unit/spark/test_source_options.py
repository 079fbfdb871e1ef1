"""The source's options: Spark's names in any case, and errors with cause and hint. Spec: F1."""

import pickle

import pytest

from ottla.client.core.model import EARLIEST, LATEST
from ottla.errors import OttlaError
from ottla.spark.source.offsets import Split
from ottla.spark.source.options import OPTIONS, REFUSED, SourceOptions
from ottla.types import TopicPartition

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
LEAST = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({**LEAST, **options})


def refusal(options: dict[str, str], **changes: str) -> str:
    with pytest.raises(OttlaError) as caught:
        SourceOptions.parse({**options, **changes})
    return str(caught.value)


def test_two_options_are_enough_and_the_rest_has_sparks_defaults() -> None:
    options = parse()
    assert options.subscription.topics == ("orders",)
    assert options.starting is None, "the default differs between batch and stream"
    assert options.ending is None
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.latest_if_no_match
    assert options.max_offsets_per_trigger is None
    assert options.min_partitions is None
    assert options.max_trigger_delay_ms == 15 * 60_000
    assert options.client_settings == {"bootstrap.servers": "127.0.0.1:9092", "isolation.level": "read_committed"}


def test_case_does_not_matter() -> None:
    options = SourceOptions.parse(
        {"KAFKA.Bootstrap.Servers": "a:1", "SUBSCRIBE": "Orders", "StartingOffsets": "EARLIEST"}
    )
    assert options.subscription.topics == ("Orders",), "but in a topic's name it does"
    assert options.starting is not None
    assert options.starting.everywhere == EARLIEST


def test_options_can_be_pickled() -> None:
    options = parse(startingOffsets='{"orders": {"0": 5}}')
    assert pickle.loads(pickle.dumps(options)) == options


def test_topics_are_listed_matched_or_assigned() -> None:
    assert parse(subscribe=" a, b ,a,").subscription.topics == ("a", "b")
    without = {"kafka.bootstrap.servers": "a:1"}
    assert SourceOptions.parse({**without, "subscribePattern": "orders-.*"}).subscription.pattern == "orders-.*"
    assigned = SourceOptions.parse({**without, "assign": '{"orders": [1, 0]}'})
    assert assigned.subscription.partitions == (ORDERS_0, ORDERS_1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "Set exactly one of subscribe"),
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern cannot be combined"),
        ({"subscribe": " , "}, "subscribe is empty"),
        ({"subscribePattern": "(("}, "not a regular expression"),
        ({"subscribePattern": ""}, "empty"),
        ({"assign": "orders"}, '{"orders": [0, 1]}'),
        ({"assign": '{"orders": 1}'}, "partitions of orders are 1"),
        ({"assign": '{"orders": [-1]}'}, "0 or more"),
        ({"assign": "{}"}, "has no partition"),
    ],
)
def test_exactly_one_valid_subscription_is_required(options: dict[str, str], expected: str) -> None:
    assert expected in refusal({"kafka.bootstrap.servers": "a:1"}, **options)


def test_starting_offsets_can_be_a_word_offsets_or_a_timestamp() -> None:
    latest, offsets = (
        parse(startingOffsets="latest").starting,
        parse(startingOffsets='{"orders":{"0":23,"1":-2}}').starting,
    )
    assert latest is not None
    assert latest.everywhere == LATEST
    assert offsets is not None
    assert offsets.offsets == {ORDERS_0: 23, ORDERS_1: EARLIEST}
    time = parse(startingTimestamp="1700000000000").starting
    assert time is not None
    assert time.timestamp_ms == 1_700_000_000_000
    times = parse(endingOffsetsByTimestamp='{"orders":{"0":1000}}').ending
    assert times is not None
    assert times.timestamps_ms == {ORDERS_0: 1000}


def test_one_timestamp_overrides_timestamps_by_partition_and_those_override_offsets() -> None:
    written = {"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"orders":{"0":5}}'}
    bound = parse(**written).starting
    assert bound is not None
    assert bound.option == "startingOffsetsByTimestamp"
    bound = parse(**written, startingTimestamp="7").starting
    assert bound is not None
    assert bound.option == "startingTimestamp"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "yesterday"}, "earliest, latest or JSON"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "-3 for orders-0 is not an offset"),
        ({"startingOffsets": '{"orders":{"zero":1}}'}, "whole numbers"),
        ({"startingOffsets": '{"orders":{"0":"1"}}'}, "whole numbers"),
        ({"startingOffsets": '{"orders":{"0":true}}'}, "whole numbers"),
        ({"startingOffsets": '{"orders":5}'}, "one number for each partition"),
        ({"startingOffsets": '{"bills":{"0":1}}'}, "has bills, which subscribe does not have"),
        ({"startingTimestamp": "-1"}, "milliseconds since 1970"),
        ({"startingTimestamp": "noon"}, "not a whole number"),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":-5}}'}, "negative"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "error or latest"),
        ({"startingTimestamp": "9", "endingTimestamp": "5"}, "after endingTimestamp"),
        ({"startingOffsets": '{"orders":{"0":9}}', "endingOffsets": '{"orders":{"0":5}}'}, "after 5 in endingOffsets"),
        ({"maxOffsetsPerTrigger": "0"}, "1 or more"),
        ({"maxOffsetsPerTrigger": "many"}, "not a whole number"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "larger than maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "15m"),
        ({"minPartitions": "-1"}, "from 1 to 2147483647"),
        ({"minPartitions": "4", "minRecordsPerPartition": "100"}, "cannot be combined"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"includeHeaders": "1"}, "true or false"),
        ({"groupIdPrefix": " "}, "blank"),
        ({"partition.metadata.cache.ttl.ms": "0"}, "or -1"),
        ({"path": "orders"}, ".option('subscribe', 'orders').load()"),
        ({"kafka.group.id": ""}, "blank"),
        ({"kafka.isolation.level": "some"}, "read_uncommitted, read_committed"),
        ({"kafka.fetch.max.wait.ms": "soon"}, "in the options kafka.*"),
        ({"kafka.bootstrap.servers": "nowhere"}, "host:port"),
    ],
)
def test_a_wrong_value_is_refused_with_the_allowed_ones(options: dict[str, str], expected: str) -> None:
    assert expected in refusal(LEAST, **options)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("startingOffset", "startingOffsets"),
        ("topics", "The options are subscribe"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("isolation.level", "kafka.isolation.level"),
        ("kafka.isolation.levels", "kafka.isolation.level"),
    ],
)
def test_an_unknown_option_is_refused_with_the_most_similar_one(name: str, nearest: str) -> None:
    expected = refusal(LEAST, **{name: "x"})
    assert f"unknown option {name.lower()}" in expected
    assert nearest in expected


@pytest.mark.parametrize("name", REFUSED)
def test_a_consumer_setting_that_spark_decides_is_refused_with_the_reason(name: str) -> None:
    assert f"kafka.{name} is not for the source: {REFUSED[name][0]}" in refusal(LEAST, **{f"kafka.{name}": "x"})


def test_bootstrap_servers_are_required() -> None:
    assert "kafka.bootstrap.servers is missing" in refusal({"subscribe": "orders"})


def test_other_kafka_options_are_passed_to_the_client() -> None:
    options = parse(**{"kafka.fetch.max.wait.ms": "10", "kafka.isolation.level": "read_uncommitted"})
    assert options.client_settings["fetch.max.wait.ms"] == "10"
    assert options.isolation_level == "read_uncommitted"
    plain = {"security.protocol": "PLAINTEXT"}
    assert parse(**{"kafka.security.protocol": "PLAINTEXT"}).client_settings == {**parse().client_settings, **plain}


def test_the_group_is_for_display_and_never_joined() -> None:
    options = parse(**{"kafka.group.id": "billing"})
    assert options.group_id == "billing"
    assert "group.id" not in options.client_settings


def test_a_batch_cannot_begin_at_the_end_nor_end_at_the_beginning() -> None:
    for written, expected in (
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest in a batch"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "startingOffsets cannot be latest in a batch"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest in a batch"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "endingOffsets cannot be earliest in a batch"),
    ):
        with pytest.raises(OttlaError, match=expected):
            parse(**written).check_batch()
    parse(startingOffsets="earliest", endingOffsets="latest").check_batch()


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "5"}.get(name, '{"orders":{"0":5}}')
    with pytest.raises(OttlaError, match=f"{name} is not for streaming queries"):
        parse(**{name: value}).check_stream()


def test_every_option_of_the_list_is_understood() -> None:
    values = {
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "startingOffsetsByTimestamp": '{"orders":{"0":5}}',
        "endingOffsetsByTimestamp": '{"orders":{"0":5}}',
        "startingOffsetsByTimestampStrategy": "latest",
        "failOnDataLoss": "false",
        "includeHeaders": "true",
        "maxTriggerDelay": "30s",
        "groupIdPrefix": "team",
    }
    for name in set(OPTIONS) - {"subscribe", "subscribePattern", "assign"}:
        assert parse(**{name: values.get(name, "7")}) != parse(), name


def test_the_number_of_tasks_follows_from_the_size_of_a_batch_unless_options_say_otherwise() -> None:
    assert parse().split == Split(min_records=2000)
    assert parse(maxRecordsPerPartition="5").split == Split(max_records=5, min_records=2000)
    assert parse(minRecordsPerPartition="1").split == Split(min_records=1), "a task for each partition"
    assert parse(minPartitions="4").split == Split(min_partitions=4)
    assert parse().old_split == Split(), "of a batch that an older version planned"
