"""The base modules: ids and hashes, errors, number checks, settings."""

import copy
import doctest
import importlib
import os
import pickle
import pkgutil
import traceback
from dataclasses import dataclass
from typing import Any

import pytest

import ottla.client
from ottla import checks, config, errors, types
from ottla.checks import (
    endpoint_from_text,
    number_from_text,
    port_from_text,
    require_number,
    topic_name_problem,
    unsigned_from_text,
    whole_number,
)
from ottla.child_process import memory_of
from ottla.client.consumer.deserializing import RecordDeserializationError
from ottla.client.transactions.errors import TransactionAbortable
from ottla.clock import utc_text
from ottla.config import parse, read_properties, setting, settings_of
from ottla.errors import HINTS, ArgumentError, ConfigError, ErrorCode, KafkaError, OttlaError, error_for, raise_for
from ottla.spark.sink.errors import NotOwner
from ottla.types import (
    Endpoint,
    TopicPartition,
    compact_json,
    java_hash,
    offsets_by_topic,
    offsets_from_topics,
    partition_for,
    uuid_from_text,
    uuid_to_text,
)


@pytest.mark.parametrize(
    "name", ["ottla.types", "ottla.errors", "ottla.checks", "ottla.config", "ottla.protocol.primitives",
             "ottla.protocol.schema", "ottla.protocol.api"],
)  # fmt: skip
def test_the_examples_in_docstrings_work(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0


# --- types ---


@pytest.mark.parametrize(
    ("key", "partition"),
    [("consumerGroupId", 20), ("g", 3), ("my-group", 12), ("test-consumer-group", 31), ("console-consumer-1234", 9),
     ("txn", 6), ("polygenelubricants", 0), ("", 0)],
)  # fmt: skip
def test_a_coordinator_is_found_by_javas_hash_of_the_name(key: str, partition: int) -> None:
    """The partition of `__consumer_offsets` or `__transaction_state` that owns a group or a transaction.

    Spec: B1, E2.
    """
    assert partition_for(key, 50) == partition


@pytest.mark.parametrize(
    ("text", "hashed"),
    [("", 0), ("a", 97), ("ab", 97 * 31 + 98), ("polygenelubricants", -(2**31)), ("é", 0xE9), ("日本", 835047),
     ("😀", 1772899)],
)  # fmt: skip
def test_javas_hash_counts_utf_16_units(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


def test_an_id_survives_the_conversion_to_text_and_back() -> None:
    value = bytes.fromhex("fbefbeffffff0123456789abcdef0011")
    text = uuid_to_text(value)
    assert len(text) == 22
    assert not set(text) & set("+/=")
    assert set(text) & set("-_")
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
def test_text_that_is_not_an_id_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kafka id"):
        uuid_from_text(text)


def test_partitions_and_endpoints_are_formatted_like_kafkas() -> None:
    assert str(TopicPartition("my-topic", 3)) == "my-topic-3"
    assert str(Endpoint("localhost", 9092)) == "localhost:9092"
    assert str(Endpoint("::1", 9092)) == "[::1]:9092"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("broker.example:9092", ("broker.example", 9092)),
        ("[::1]:9092", ("::1", 9092)),
        ("::1:9092", ("::1", 9092)),
        ("[fe80::1%eth0]:9092", ("fe80::1%eth0", 9092)),
        (":9092", ("", 9092)),
        ("host:0", ("host", 0)),
        ("host", None),
        ("host:", None),
        ("host:65536", None),
        ("host:+1", None),
        ("[::1:9092", None),
        ("::1]:9092", None),
        ("a[b]:9092", None),
        ("one:two:9092", None),
        ("http://host:9092", None),
        ("", None),
    ],
)
def test_addresses_are_read_in_one_way(text: str, endpoint: tuple[str, int] | None) -> None:
    assert endpoint_from_text(text) == endpoint


def test_an_address_may_lack_a_port_that_has_a_default_and_may_need_brackets() -> None:
    assert endpoint_from_text("host", default_port=1) == ("host", 1)
    assert endpoint_from_text("[::1]", default_port=1) == ("::1", 1)
    assert endpoint_from_text("[::1]:2", default_port=1) == ("::1", 2)
    assert endpoint_from_text("host:", default_port=1) is None
    assert endpoint_from_text("::1:2", needs_brackets=True) is None
    assert endpoint_from_text("::1", default_port=1, needs_brackets=True) is None
    assert endpoint_from_text("[::1]:2", needs_brackets=True) == ("::1", 2)


def test_offsets_are_stored_by_topic_and_read_back() -> None:
    offsets = {TopicPartition("b", 10): 3, TopicPartition("b", 2): 1, TopicPartition("a", 0): 0}
    stored = offsets_by_topic(offsets)
    assert list(stored) == ["a", "b"]
    assert list(stored["b"].items()) == [("2", 1), ("10", 3)]
    assert offsets_from_topics(stored) == offsets


@pytest.mark.parametrize("offset", [1.0, "1", True, None, [1]])
def test_an_offset_that_is_not_a_whole_number_is_an_error(offset: Any) -> None:
    with pytest.raises(ValueError, match="of orders-0 is not a whole number"):
        offsets_from_topics({"orders": {"0": offset}})


@pytest.mark.parametrize("partition", ["1_0", "١", " 1", "-1", "x", ""])
def test_a_partition_that_is_not_in_ascii_digits_is_an_error(partition: str) -> None:
    with pytest.raises(ValueError, match="of orders is not a partition"):
        offsets_from_topics({"orders": {partition: 5}})


def test_the_memory_of_a_process_is_known_while_it_runs() -> None:
    assert (memory_of(os.getpid()) or 0) > 1_000_000
    assert memory_of(2**22 + 1) is None, "above the largest process id"


def test_times_are_readable_or_at_least_shown() -> None:
    assert utc_text(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
    assert utc_text(0) == "1970-01-01 00:00:00 UTC"
    assert utc_text(1 << 62) == f"{1 << 62} ms"


def test_compact_json_has_no_spaces_and_is_ascii() -> None:
    assert compact_json({"a": [1, None, "\u00e9"], "b": {}}) == b'{"a":[1,null,"\\u00e9"],"b":{}}'


# --- errors ---


def test_error_codes_are_kafkas_without_gaps() -> None:
    assert sorted(ErrorCode) == list(range(-1, 137))
    assert (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.PRODUCER_FENCED) == (0, -1, 90)


def test_the_retriable_codes_are_the_ones_the_java_client_retries() -> None:
    assert [int(code) for code in ErrorCode if code.retriable] == [
        2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89, 100, 103,
        106, 122, 123, 133,
    ]  # fmt: skip


def test_an_unknown_error_code_is_unknown_server_error() -> None:
    assert ErrorCode(12345) is ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(ValueError, match="'NONE' is not a valid ErrorCode"):
        ErrorCode("NONE")  # type: ignore[arg-type]


def test_an_error_shows_its_code_and_detail() -> None:
    error = KafkaError(ErrorCode.NOT_COORDINATOR, "group g is on broker 2")
    assert str(error) == "NOT_COORDINATOR: group g is on broker 2"
    assert str(KafkaError(ErrorCode.NONE)) == "NONE"
    assert error.retriable
    assert not KafkaError(ErrorCode.PRODUCER_FENCED).retriable


def test_one_class_catches_all_our_errors_and_their_text_includes_the_hint() -> None:
    for module in pkgutil.walk_packages(ottla.client.__path__, "ottla.client."):
        importlib.import_module(module.name)
    pending, found = [OttlaError], set()
    while pending:
        error = pending.pop()
        pending += error.__subclasses__()
        if error.__module__.startswith(("ottla.client.", "ottla.errors")):
            found.add(error)
            assert getattr(ottla, error.__name__) is error, f"{error.__name__} is not exported from ottla"
    assert {KafkaError, ConfigError, TransactionAbortable, RecordDeserializationError} <= found
    raised = TransactionAbortable(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic ordes")
    assert str(raised) == "UNKNOWN_TOPIC_OR_PARTITION: topic ordes. Check the name with `ottla topic list`."
    again = pickle.loads(pickle.dumps(raised))
    assert (str(again), again.code, again.hint) == (str(raised), raised.code, raised.hint)


def test_raise_for_turns_an_error_code_into_an_exception() -> None:
    raise_for(ErrorCode.NONE, "creating topic orders")
    with pytest.raises(KafkaError) as caught:
        raise_for(36, "creating topic orders", "it exists")
    assert (caught.value.code, caught.value.detail) == (
        ErrorCode.TOPIC_ALREADY_EXISTS,
        "creating topic orders: it exists",
    )
    assert error_for(9999, "creating topic orders").code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_hints_are_sentences_for_real_errors() -> None:
    assert KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS).hint == HINTS[ErrorCode.TOPIC_ALREADY_EXISTS]
    assert KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR).hint == ""
    for code, hint in HINTS.items():
        assert hint.endswith(".")
        assert code != ErrorCode.NONE


def test_a_bad_argument_can_be_caught_in_three_ways() -> None:
    for kind in (OttlaError, TypeError, ValueError):
        with pytest.raises(kind, match="partition must be a whole number, not 'x'"):
            require_number("x", "partition")


class TwoArguments(KafkaError):
    """An error whose constructor differs from its parent's."""

    def __init__(self, offset: int, *, wanted: int) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not {wanted}")
        self.offset = offset


@pytest.mark.parametrize(
    "error",
    [KafkaError(ErrorCode.NOT_COORDINATOR, "moved"), OttlaError("no", "try yes"), ConfigError("Unknown setting x"),
     ArgumentError("no", "try yes"), TwoArguments(1, wanted=2)],
    ids=repr,
)  # fmt: skip
def test_errors_can_be_rebuilt_without_their_constructor(error: Exception) -> None:
    for copied in (copy.copy(error), copy.deepcopy(error)):
        assert type(copied) is type(error)
        assert (str(copied), copied.args, vars(copied)) == (str(error), error.args, vars(error))


def test_errors_can_be_pickled() -> None:
    for error in (KafkaError(ErrorCode.NOT_COORDINATOR, "moved"), ConfigError("Unknown setting x", "y?")):
        assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_every_class_of_the_base_modules_has_a_docstring() -> None:
    for module in (types, errors, checks, config):
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__:
                assert value.__doc__, f"{module.__name__}.{name} has no docstring"


# --- checks ---


class Index:
    """An integer type like numpy's."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("value", "number"),
    [(3, 3), (-1, -1), (2**70, 2**70), (Index(), 7), (True, None), (3.0, None), ("3", None), (None, None)],
)
def test_a_whole_number_is_any_integer_but_a_bool(value: object, number: int | None) -> None:
    assert whole_number(value) == number


def test_a_required_number_is_checked_against_its_range() -> None:
    assert require_number(5, "max_records", at_least=1, at_most=5) == 5
    with pytest.raises(ArgumentError, match="max_records must be at least 1, not 0"):
        require_number(0, "max_records", at_least=1)
    with pytest.raises(ArgumentError, match="max_records must be at most 5, not 6"):
        require_number(6, "max_records", at_most=5)


@pytest.mark.parametrize(
    ("text", "number"), [("12", 12), (" +3 ", 3), ("-4", -4), ("1_0", None), ("٣", None), ("", None), ("1.0", None)]
)
def test_numbers_in_text_are_read_like_java(text: str, number: int | None) -> None:
    assert number_from_text(text) == number


@pytest.mark.parametrize(("text", "number"), [("12", 12), (b"12", 12), ("007", 7)])
def test_an_unsigned_number_is_ascii_digits(text: str | bytes, number: int) -> None:
    assert unsigned_from_text(text) == number


@pytest.mark.parametrize("text", ["+3", " 3", "-4", "1_0", "٣", "²", b"\xb2", "", b""])
def test_anything_else_is_no_unsigned_number(text: str | bytes) -> None:
    assert unsigned_from_text(text) is None


def test_a_text_of_thousands_of_digits_is_no_number() -> None:
    """Python refuses to read it."""
    assert number_from_text("-" + "1" * 5000) is None
    assert unsigned_from_text("1" * 5000) is None


@pytest.mark.parametrize("name", ["a", "Orders.v2_x-1", "x" * 249, "..."])
def test_valid_topic_names(name: str) -> None:
    assert topic_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the empty string"),
        (".", "'.' is not allowed"),
        ("x" * 250, "length 250 is more than 249"),
        ("a b", "'a b' has characters other than ASCII letters"),
        ("é", "'é' has characters other than"),
        ("a\x1b[31mb", r"'a\x1b[31mb' has characters other than"),
    ],
)
def test_invalid_topic_names_have_a_problem(name: str, problem: str) -> None:
    assert problem in (topic_name_problem(name) or "")


@pytest.mark.parametrize(
    ("text", "port"),
    [("0", 0), ("9092", 9092), ("65535", 65535), ("65536", None), ("-1", None), ("٣", None), ("", None)],
)
def test_a_port_is_a_number_up_to_65535(text: str, port: int | None) -> None:
    assert port_from_text(text) == port


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


def test_text_is_parsed_to_typed_values_and_missing_settings_keep_their_default() -> None:
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
        ("box.ratio", "٠.٥", "Invalid value ٠.٥ for configuration box.ratio: Not a number of type DOUBLE"),
        ("box.ratio", "nan", "Invalid value nan for configuration box.ratio: Not a number of type DOUBLE"),
        ("box.open", "yes", "Invalid value yes for configuration box.open: Expected value to be either true or false"),
        ("box.colour", "pink", "Invalid value pink for configuration box.colour: String must be one of: red, blue"),
        ("box.even", "3", "Invalid value 3 for configuration box.even"),
    ],
)
def test_an_invalid_value_is_an_error_with_the_setting_and_the_limit(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(BoxConfig, {name: text})
    assert caught.value.message == message


def test_an_unknown_setting_is_an_error_with_the_most_similar_name() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(BoxConfig, {"box.sise": "1"})
    assert (caught.value.message, caught.value.hint) == ("Unknown setting box.sise", "Did you mean box.size?")
    with pytest.raises(ConfigError) as caught:
        parse(BoxConfig, {"zzz": "1"})
    assert caught.value.hint == "docs/settings.md lists the settings."


def test_a_traceback_shows_the_hint_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(BoxConfig, {"box.sise": "1"})
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        shown = "".join(traceback.format_exception_only(error))
        assert shown == "ottla.errors.ConfigError: Unknown setting box.sise. Did you mean box.size?\n"
        assert str(error) == "Unknown setting box.sise. Did you mean box.size?"
        assert error.message == "Unknown setting box.sise"
    said = "".join(traceback.format_exception_only(NotOwner("Another driver has this sink.", "Stop it.")))
    assert said.count("Stop it.") == 1, "an error whose text contains the hint shows it once"


def test_a_config_is_formatted_like_kafkas() -> None:
    shown = config.describe(BoxConfig(tags=("a", "b"), open=True))
    assert (shown["box.tags"], shown["box.open"], shown["box.owner"], shown["box.size"]) == ("a,b", "true", None, "3")
    assert "comment" not in shown


@dataclass(init=False, repr=False, eq=False)
class _Vault(config.BaseConfig):
    """How a component declares a secret: Kafka's type PASSWORD."""

    code: str | None = setting(
        "vault.code", None, "Opens it.", kind="password", check=lambda code: len(code) > 3, rule="too short"
    )
    door: str = setting("vault.door", "steel", "What it is made of.")


def test_a_secret_is_neither_described_nor_printed_nor_quoted_in_an_error() -> None:
    vault = parse(_Vault, {"vault.code": "hush-hush", "vault.door": "oak"})
    assert vault.code == "hush-hush"
    assert config.describe(vault) == {"vault.code": None, "vault.door": "oak"}
    assert repr(vault) == "_Vault(code=[hidden], door='oak')"
    with pytest.raises(ConfigError, match="too short") as caught:
        parse(_Vault, {"vault.code": "psst"[:3]})
    assert "pss" not in str(caught.value).replace("[hidden]", "")
    assert [declared.is_sensitive for declared in settings_of(_Vault).values()] == [True, False]


def test_the_kind_of_a_setting_follows_from_its_type() -> None:
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
def test_properties_are_read_like_java(text: str, read: dict[str, str]) -> None:
    assert read_properties(text) == read


def test_a_property_without_a_value_is_an_error_with_its_line() -> None:
    with pytest.raises(ConfigError, match="line 3 has no '='"):
        read_properties("a=1\n\nverbose")
