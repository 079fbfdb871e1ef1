"""The sink's options: what is accepted, what is refused, and the error messages."""

import pytest

from ottla.errors import ConfigError
from ottla.spark.sink.options import SinkOptions

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def parse(streaming: bool = True, /, **options: str) -> SinkOptions:
    return SinkOptions.parse({**SERVERS, **options}, streaming)


def test_exactly_once_is_the_default() -> None:
    """Spec: D1."""
    options = parse(topic="orders")
    assert (options.delivery, options.two_phase_commit, options.topic) == ("exactly-once", "auto", "orders")
    assert options.include_headers
    assert not options.include_timestamp
    assert options.sink_name is None


def test_spark_passes_option_names_in_lower_case() -> None:
    options = SinkOptions.parse(
        {
            "kafka.bootstrap.servers": "a:1",
            "sinkname": "s",
            "includeheaders": "false",
            "checkpointlocation": "/x",
            "twophasecommit": "required",
        },
        True,
    )
    assert options.sink_name == "s"
    assert not options.include_headers
    assert options.two_phase_commit == "required"


def test_settings_of_the_producer_are_passed_on() -> None:
    options = SinkOptions.parse({**SERVERS, "kafka.compression.type": "zstd", "kafka.linger.ms": "20"}, True)
    assert options.kafka == {"bootstrap.servers": "127.0.0.1:9092", "compression.type": "zstd", "linger.ms": "20"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topics": "a"}, "unknown option topics. Did you mean topic?"),
        ({"delivry": "exactly-once"}, "unknown option delivry. Did you mean delivery?"),
        ({"linger.ms": "5"}, "unknown option linger.ms. Did you mean kafka.linger.ms?"),
        ({"subscribe": "a"}, "option subscribe belongs to the source. Use topic for a sink."),
        ({"startingOffsets": "earliest"}, "option startingOffsets belongs to the source. Remove it."),
        ({"delivery": "exactly_once"}, "option delivery is 'exactly_once'. Did you mean exactly-once?"),
        ({"delivery": "x"}, "option delivery is 'x'. Use exactly-once, at-least-once or at-most-once."),
        ({"includeHeaders": "yes"}, "option includeHeaders is 'yes'. Use true or false."),
        ({"topic": " "}, "option topic is empty."),
        ({"sinkName": "a b"}, "option sinkName is 'a b'. Use 1 to 200 characters"),
        ({"jobId": "1"}, "option jobId is for batch writes with a sinkName. A stream has its own batch ids"),
        ({"batchId": "1", "sinkName": "s"}, "options batchId and queryId are for writes inside foreachBatch. A stream"),
        ({"kafka.transactional.id": "x"}, "option kafka.transactional.id cannot be set. The sink chooses"),
        (
            {"kafka.enable.idempotence": "false"},
            "option kafka.enable.idempotence cannot be set. It is always on: remove it.",
        ),
        ({"kafka.key.serializer": "x"}, "option kafka.key.serializer cannot be set. Keys are bytes or text"),
        ({"kafka.linger": "1"}, "option kafka.linger: Unknown setting linger. Did you mean linger.ms?"),
        ({"kafka.linger.ms": "soon"}, "option kafka.linger.ms: Invalid value soon for configuration linger.ms"),
        ({"kafka.bootstrap.servers": "nowhere"}, "option kafka.bootstrap.servers: "),
        (
            {"delivery": "at-least-once", "kafka.transaction.timeout.ms": "9"},
            "option kafka.transaction.timeout.ms has no effect with delivery=at-least-once",
        ),
    ],
)
def test_a_mistake_is_reported_with_a_hint(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(**options)
    assert words in str(refused.value)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once", "at-most-once"])
@pytest.mark.parametrize(
    ("name", "value"),
    [("acks", "1"), ("acks", "0"), ("retries", "0"), ("max.in.flight.requests.per.connection", "9")],
)
def test_settings_that_turn_idempotence_off_are_refused_on_the_driver(name: str, value: str, delivery: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(delivery=delivery, **{f"kafka.{name}": value, "kafka.linger.ms": "1"})
    message = str(refused.value)
    assert message.startswith(f"option kafka.{name}: Must set {name} to")
    assert message.endswith("Remove it: the sink's producer is always idempotent.")


def test_bootstrap_servers_are_required() -> None:
    with pytest.raises(ConfigError, match=r"option kafka\.bootstrap.servers is missing"):
        SinkOptions.parse({"topic": "a"}, True)


def test_at_most_once_is_for_streams_and_a_job_id_for_batch_writes() -> None:
    with pytest.raises(ConfigError, match="at-most-once is for streams"):
        parse(False, delivery="at-most-once")
    with pytest.raises(ConfigError, match="Set sinkName too"):
        parse(False, jobId="2026-11-15")
    assert parse(False, jobId="2026-11-15", sinkName="daily").job_id == "2026-11-15"


NAMED = {"sinkName": "sums", "batchId": "7"}


def test_a_write_inside_foreach_batch_has_a_batch_id() -> None:
    options = parse(False, **NAMED)
    assert (options.batch_id, options.query_id, options.sink_name) == (7, None, "sums")
    assert parse(False, **NAMED, queryId="q").query_id == "q"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"batchId": "7"},
            "option batchId needs a sinkName. Set sinkName too: each write inside foreachBatch needs its own",
        ),
        ({**NAMED, "batchId": "seven"}, "option batchId is 'seven'. Pass the batch id that foreachBatch passes"),
        ({**NAMED, "batchId": "-1"}, "option batchId is '-1'. Pass the batch id"),
        ({**NAMED, "batchId": ""}, "option batchId is ''. Pass the batch id"),
        ({**NAMED, "batchId": "9" * 19}, "Pass the batch id"),
        (
            {**NAMED, "jobId": "today"},
            "cannot be combined: batchId is for writes inside foreachBatch. Remove one of them.",
        ),
        ({**NAMED, "delivery": "at-least-once"}, "no effect with delivery=at-least-once, which does not remember"),
        ({**NAMED, "delivery": "at-most-once"}, "no effect with delivery=at-most-once"),
        ({"sinkName": "sums", "queryId": "q"}, "option queryId needs a batchId"),
        ({**NAMED, "queryId": ""}, "option queryId has 0 characters (allowed: 1 to 200)"),
        ({**NAMED, "queryId": "q" * 201}, "option queryId has 201 characters"),
    ],
)
def test_a_batch_id_with_conflicting_options_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(False, **options)
    assert words in str(refused.value)
