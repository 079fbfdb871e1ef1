"""What every layer stands on: ids and hashes, error codes, settings."""

import copy
import doctest
import importlib
import pickle
import traceback
from dataclasses import dataclass

import pytest

from ottla import config, errors, types
from ottla.config import parse, read_properties, setting, settings_of
from ottla.errors import ConfigError, ErrorCode, KafkaError, OttlaError
from ottla.spark.sink.errors import NotOwner
from ottla.types import Endpoint, TopicPartition, java_hash, partition_for, uuid_from_text, uuid_to_text


@pytest.mark.parametrize(
    "name", ["ottla.types", "ottla.errors", "ottla.config", "ottla.protocol.primitives", "ottla.protocol.schema",
             "ottla.protocol.api"],
)  # fmt: skip
def test_the_examples_in_the_text_are_true(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0 and results.failed == 0


# --- types ---


@pytest.mark.parametrize(
    ("key", "partition"),
    [("consumerGroupId", 20), ("g", 3), ("my-group", 12), ("test-consumer-group", 31), ("console-consumer-1234", 9),
     ("txn", 6), ("polygenelubricants", 0), ("", 0)],
)  # fmt: skip
def test_a_coordinator_is_found_by_javas_hash_of_the_name(key: str, partition: int) -> None:
    """B1, E2: the partition of `__consumer_offsets` or `__transaction_state` that owns a group or a transaction."""
    assert partition_for(key, 50) == partition


@pytest.mark.parametrize(
    ("text", "hashed"),
    [("", 0), ("a", 97), ("ab", 97 * 31 + 98), ("polygenelubricants", -(2**31)), ("é", 0xE9), ("日本", 835047),
     ("😀", 1772899)],
)  # fmt: skip
def test_javas_hash_counts_utf_16_units(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


def test_an_id_and_its_text_are_two_forms_of_one_thing() -> None:
    value = bytes.fromhex("fbefbeffffff0123456789abcdef0011")
    text = uuid_to_text(value)
    assert len(text) == 22 and not set(text) & set("+/=") and set(text) & set("-_")
    assert uuid_from_text(text) == value
    assert uuid_to_text(types.ZERO_UUID) == "A" * 22


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A" * 21,
        "A" * 23,
        "A" * 22 + "==",
        "A" * 20 + "+/",
        "A" * 21 + "!",
        "AAAA " * 4 + "AA",
        "é" * 22,
        "A" * 21 + "B",
    ],
)
def test_what_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kafka id"):
        uuid_from_text(text)


def test_partitions_and_endpoints_read_as_kafka_prints_them() -> None:
    assert str(TopicPartition("my-topic", 3)) == "my-topic-3"
    assert str(Endpoint("localhost", 9092)) == "localhost:9092"
    assert str(Endpoint("::1", 9092)) == "[::1]:9092"


# --- errors ---


def test_the_codes_are_kafkas_without_a_gap() -> None:
    assert sorted(ErrorCode) == list(range(-1, 137))
    assert (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.PRODUCER_FENCED) == (0, -1, 90)


def test_the_retriable_codes_are_the_ones_the_java_client_retries() -> None:
    assert [int(code) for code in ErrorCode if code.retriable] == [
        2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89, 100, 103,
        106, 122, 123, 133,
    ]  # fmt: skip


def test_a_code_from_the_future_reads_as_an_unknown_error() -> None:
    assert ErrorCode(12345) is ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(ValueError):
        ErrorCode("NONE")


def test_an_error_says_its_code_and_what_happened() -> None:
    error = KafkaError(ErrorCode.NOT_COORDINATOR, "group g is on broker 2")
    assert str(error) == "NOT_COORDINATOR: group g is on broker 2"
    assert str(KafkaError(ErrorCode.NONE)) == "NONE"
    assert error.retriable and not KafkaError(ErrorCode.PRODUCER_FENCED).retriable


class TwoArguments(KafkaError):
    """An error whose constructor differs from its parent's."""

    def __init__(self, offset: int, *, wanted: int) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not {wanted}")
        self.offset = offset


@pytest.mark.parametrize(
    "error",
    [KafkaError(ErrorCode.NOT_COORDINATOR, "moved"), OttlaError("no", "try yes"), ConfigError("Unknown setting x"),
     TwoArguments(1, wanted=2)],
    ids=repr,
)  # fmt: skip
def test_errors_can_be_rebuilt_without_their_constructor(error: Exception) -> None:
    for twin in (copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is type(error)
        assert (str(twin), twin.args, vars(twin)) == (str(error), error.args, vars(error))


def test_errors_travel_between_processes() -> None:
    for error in (KafkaError(ErrorCode.NOT_COORDINATOR, "moved"), ConfigError("Unknown setting x", "y?")):
        assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_every_name_of_the_foundation_is_documented() -> None:
    for module in (types, errors, config):
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__:
                assert value.__doc__, f"{module.__name__}.{name} has no docstring"


# --- config ---


@dataclass(frozen=True, kw_only=True)
class BoxConfig:
    size: int = setting("box.size", 3, "How large.", at_least=1, at_most=10)
    age_ms: int = setting("box.age.ms", -1, "How old.", kind="long")
    ratio: float = setting("box.ratio", 0.5, "How full.", at_least=0, at_most=1)
    open: bool = setting("box.open", False, "Whether it is open.")
    colour: str = setting("box.colour", "red", "Which colour.", choices=("red", "blue"))
    tags: tuple[str, ...] = setting("box.tags", (), "What is written on it.")
    owner: str | None = setting("box.owner", None, "Whose it is.")
    helpers: tuple[str, ...] | None = setting("box.helpers", None, "Who may help.")
    even: int = setting("box.even", 2, "An even number.", check=lambda v: v % 2 == 0)
    comment: str = "not a setting"


def test_text_becomes_typed_values_and_the_rest_keeps_its_default() -> None:
    parsed = parse(
        BoxConfig,
        {"box.size": " 7 ", "box.open": "TRUE", "box.ratio": "0.25", "box.tags": "a, b", "box.age.ms": str(2**40)},
    )
    assert parsed == BoxConfig(size=7, open=True, ratio=0.25, tags=("a", "b"), age_ms=2**40)
    assert parse(BoxConfig, {}) == BoxConfig()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("box.size", "0", "Invalid value 0 for configuration box.size: Value must be at least 1"),
        ("box.size", "11", "Invalid value 11 for configuration box.size: Value must be no more than 10"),
        ("box.size", "x", "Invalid value x for configuration box.size: Not a number of type INT"),
        ("box.size", "1_0", "Invalid value 1_0 for configuration box.size: Not a number of type INT"),
        ("box.size", "٣", "Invalid value ٣ for configuration box.size: Not a number of type INT"),
        ("box.size", "", "Invalid value  for configuration box.size: Not a number of type INT"),
        ("box.size", str(2**31), f"Invalid value {2**31} for configuration box.size: Not a number of type INT"),
        ("box.age.ms", str(2**63), f"Invalid value {2**63} for configuration box.age.ms: Not a number of type LONG"),
        ("box.ratio", "nan", "Invalid value nan for configuration box.ratio: Not a number of type DOUBLE"),
        ("box.open", "yes", "Invalid value yes for configuration box.open: Expected value to be either true or false"),
        ("box.colour", "pink", "Invalid value pink for configuration box.colour: String must be one of: red, blue"),
        ("box.even", "3", "Invalid value 3 for configuration box.even"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(BoxConfig, {name: text})
    assert caught.value.message == message


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(BoxConfig, {"box.sise": "1"})
    assert (caught.value.message, caught.value.hint) == ("Unknown setting box.sise", "Did you mean box.size?")
    with pytest.raises(ConfigError) as caught:
        parse(BoxConfig, {"zzz": "1"})
    assert caught.value.hint == ""


def test_a_traceback_shows_how_to_mend_it_as_the_tool_does() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(BoxConfig, {"box.sise": "1"})
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        shown = "".join(traceback.format_exception_only(error))
        assert shown == "ottla.errors.ConfigError: Unknown setting box.sise\nDid you mean box.size?\n"
        assert str(error) == "Unknown setting box.sise"
    said = "".join(traceback.format_exception_only(NotOwner("Another driver has this sink.", "Stop it.")))
    assert said.count("Stop it.") == 1, "an error whose text has the hint in it says it once"


def test_a_config_is_shown_as_kafka_would_show_it() -> None:
    shown = config.describe(BoxConfig(tags=("a", "b"), open=True))
    assert (shown["box.tags"], shown["box.open"], shown["box.owner"], shown["box.size"]) == ("a,b", "true", None, "3")
    assert "comment" not in shown


def test_every_setting_knows_its_kind() -> None:
    kinds = {name: known.kind for name, known in settings_of(BoxConfig).items()}
    assert kinds == {
        "box.size": "int", "box.age.ms": "long", "box.ratio": "double", "box.open": "boolean", "box.colour": "string",
        "box.tags": "list", "box.owner": "string", "box.helpers": "list", "box.even": "int",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", {}),
        ("a=1\nb: 2\r\nc = 3\r! note\n  # note\nd=", {"a": "1", "b": "2", "c": "3", "d": ""}),
        ("a=x=y:z", {"a": "x=y:z"}),
        ("dirs=/a,\\\n    /b", {"dirs": "/a,/b"}),
        ("a=1\\", {"a": "1"}),
        ("path=C:\\\\data", {"path": "C:\\data"}),
        ("a\\=b=c\\u00e9\\n", {"a=b": "cé\n"}),
        ("# no continuation \\\na=1", {"a": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("sep=a\x0bb", {"sep": "a\x0bb"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, read: dict[str, str]) -> None:
    assert read_properties(text) == read


def test_a_property_without_a_value_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match="line 3: 'verbose' has no '='"):
        read_properties("a=1\n\nverbose")
