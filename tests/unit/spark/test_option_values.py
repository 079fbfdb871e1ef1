"""The values of Spark options: the source and both sinks read them in the same way and report the same errors."""

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ottla.errors import ConfigError
from ottla.spark import option_values
from ottla.spark.database.options import DatabaseOptions
from ottla.spark.explaining import ExplainedError, explained
from ottla.spark.sink.options import SinkOptions
from ottla.spark.source.options import SourceOptions

SOURCE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}
SINK = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "orders"}
DATABASE = {"url": "sqlite:///shop.db", "table": "orders"}


def of_source(**written: str) -> Any:
    return SourceOptions.parse(SOURCE | written)


def of_sink(**written: str) -> Any:
    return SinkOptions.parse(SINK | written, streaming=False)


def of_database(**written: str) -> Any:
    return DatabaseOptions.parse(DATABASE | written)


@pytest.mark.parametrize("parse", [of_source, of_sink])
def test_a_bad_truth_value_is_the_same_error_everywhere(parse: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"^option includeHeaders is 'Yes'\. Use true or false\.$"):
        parse(includeHeaders="Yes")


@pytest.mark.parametrize("parse", [of_sink, of_database])
def test_a_bad_choice_is_the_same_error_everywhere(parse: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"^option delivery is 'Exactly_Once'\. Did you mean exactly-once\?$"):
        parse(delivery="Exactly_Once")
    assert parse(delivery=" AT-LEAST-ONCE ").delivery == "at-least-once"


@pytest.mark.parametrize("text", ["seven", "-1", "", "1.0", "9" * 19, "²"])
def test_a_bad_batch_id_is_the_same_error_everywhere(text: str) -> None:
    for parse, name in ((of_sink, "sinkName"), (of_database, "sinkId")):
        with pytest.raises(ConfigError) as refused:
            parse(**{name: "s"}, batchId=text)
        assert str(refused.value) == (
            f"option batchId is {text!r}. Pass the batch id that foreachBatch passes to its function."
        )


@pytest.mark.parametrize(
    ("parse", "written"),
    [
        (of_source, {"failOnDataLos": "true"}),
        (of_source, {"kafka.fetch.max.wait.ms": "soon"}),
        (of_source, {"startingOffsets": "yesterday"}),
        (of_source, {"minPartitions": "many"}),
        (of_sink, {"delivry": "x"}),
        (of_sink, {"kafka.linger.ms": "soon"}),
        (of_sink, {"topic": " "}),
        (of_database, {"tabel": "x"}),
        (of_database, {"busyTimeoutMs": "1s"}),
        (of_database, {"table": "t; drop"}),
    ],
)
def test_every_bad_option_is_a_config_error_that_spark_shows_with_its_hint(
    parse: Callable[..., Any], written: Mapping[str, str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(**written)
    error = refused.value
    assert error.hint or "kafka." in error.message
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied)) == (ConfigError, str(error))
    with pytest.raises(ExplainedError) as shown, explained():
        parse(**written)
    assert str(shown.value) == str(error)


def test_a_number_is_checked_against_its_limits() -> None:
    assert option_values.integer({}, "n", at_least=1) is None
    assert option_values.integer_or({}, "n", 5, at_least=1) == 5
    assert option_values.integer({"n": " +7 "}, "n", at_least=1) == 7
    with pytest.raises(ConfigError, match=r"option n is 'x', which is not a whole number\. Use a number of 1 or more"):
        option_values.integer({"n": "x"}, "n", at_least=1)
    with pytest.raises(ConfigError, match=r"option n is 0\. Use a number of 1 or more\."):
        option_values.integer({"n": "0"}, "n", at_least=1)
    with pytest.raises(ConfigError, match=r"option n is 9\. Use a number from 1 to 8\."):
        option_values.integer({"n": "9"}, "n", at_least=1, at_most=8)


@pytest.mark.parametrize(("text", "ms"), [("500", 500), ("500ms", 500), ("30 s", 30_000), ("2H", 7_200_000)])
def test_a_duration_has_a_unit(text: str, ms: int) -> None:
    assert option_values.duration_ms({"d": text}, "d", 0) == ms
