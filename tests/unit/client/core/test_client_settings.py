"""Client settings: what is accepted, what is refused, and with which message."""

import pytest

from ottla import Admin, AsyncConsumer, Consumer, Producer
from ottla.assignors.broadcast import BroadcastAssignor
from ottla.client.core.settings import AdminConfig, ConsumerConfig, ProducerConfig, build, parse_endpoint
from ottla.errors import ConfigError
from ottla.types import INT32_MAX, Endpoint


def test_dotted_names_and_keywords_mean_the_same() -> None:
    dotted = build(ProducerConfig, {"bootstrap.servers": "a:1,b:2", "linger.ms": 20, "enable.idempotence": False}, {})
    keywords = build(ProducerConfig, None, {"bootstrap_servers": ["a:1", "b:2"], "linger_ms": "20"})
    assert dotted.endpoints() == keywords.endpoints() == [Endpoint("a", 1), Endpoint("b", 2)]
    assert dotted.linger_ms == keywords.linger_ms == 20


def test_an_unknown_setting_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        build(ProducerConfig, {"linger.msec": 5}, {})
    assert caught.value.message == "Unknown setting linger.msec"
    assert caught.value.hint == "Did you mean linger.ms?"
    with pytest.raises(ConfigError, match="Unknown setting lingr_ms"):
        build(ProducerConfig, None, {"lingr_ms": 5})


def test_a_setting_of_the_wrong_client_is_unknown() -> None:
    with pytest.raises(ConfigError, match=r"Unknown setting isolation\.level"):
        build(ProducerConfig, {"isolation.level": "read_committed"}, {})
    with pytest.raises(ConfigError, match=r"Unknown setting acks"):
        build(AdminConfig, {"acks": "all"}, {})


def test_the_same_setting_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"linger\.ms is set twice"):
        build(ProducerConfig, {"linger.ms": 5}, {"linger_ms": 6})


def test_an_invalid_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Invalid value abc for configuration linger\.ms: Not a number of type INT"):
        build(ProducerConfig, {"linger.ms": "abc"}, {})
    with pytest.raises(ConfigError, match=r"Invalid value -1 for configuration linger\.ms"):
        build(ProducerConfig, {"linger.ms": -1}, {})
    with pytest.raises(ConfigError, match="for configuration acks"):
        build(ProducerConfig, {"acks": object()}, {})
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset: The value must be either 'earliest', 'latest'"):
        build(ConsumerConfig, {"auto.offset.reset": "first"}, {})


def test_none_keeps_the_default() -> None:
    assert build(ProducerConfig, {"compression.level": None, "linger.ms": None}, {}).linger_ms == 5


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"retries": 0}, "Must set retries to non-zero when using the idempotent producer."),
        (
            {"max.in.flight.requests.per.connection": 6},
            "Must set max.in.flight.requests.per.connection to at most 5 to use the idempotent producer.",
        ),
        (
            {"acks": 1},
            "Must set acks to all in order to use the idempotent producer. Otherwise we cannot guarantee idempotence.",
        ),
        (
            {"acks": "0"},
            "Must set acks to all in order to use the idempotent producer. Otherwise we cannot guarantee idempotence.",
        ),
    ],
)
def test_a_setting_that_contradicts_idempotence_is_refused(written: dict[str, object], message: str) -> None:
    """Spec: D2."""
    with pytest.raises(ConfigError) as caught:
        build(ProducerConfig, {"enable.idempotence": True, **written}, {})
    assert caught.value.message == message


@pytest.mark.parametrize("written", [{"retries": 0}, {"acks": "1"}])
def test_idempotence_is_turned_off_unless_it_was_set(
    written: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """Spec: D2. What was not set is filled in, so that it fits what was. The log says so."""
    with caplog.at_level("INFO", logger="ottla.client"):
        assert not build(ProducerConfig, written, {}).enable_idempotence
        ((name, value),) = written.items()
        assert f"not idempotent because of {name}={value}" in caplog.text
        caplog.clear()
        build(ProducerConfig, {"enable.idempotence": False, **written}, {})
        assert not caplog.text, "said explicitly"


def test_more_requests_in_flight_need_idempotence_to_be_turned_off_explicitly() -> None:
    """Spec: D2. Otherwise a performance setting would silently allow duplicates and another order."""
    many = {"max.in.flight.requests.per.connection": 10}
    with pytest.raises(ConfigError, match=r"Must set max\.in\.flight\.requests\.per\.connection to at most 5"):
        build(ProducerConfig, many, {})
    assert build(ProducerConfig, {**many, "enable.idempotence": False}, {}).max_in_flight_requests_per_connection == 10


def test_members_that_read_the_same_partitions_do_not_commit_automatically(caplog: pytest.LogCaptureFixture) -> None:
    """Spec: A7. Their commits would overwrite each other."""
    broadcast = {"partition.assignment.strategy": BroadcastAssignor, "group.id": "g"}
    for on in (True, "true", "TRUE"):
        with pytest.raises(ConfigError, match=r"enable\.auto\.commit is on, but assignor broadcast may assign"):
            AsyncConsumer({**broadcast, "enable.auto.commit": on})
    assert not AsyncConsumer(broadcast).config.enable_auto_commit
    assert "enable.auto.commit is off, because assignor broadcast" in caplog.text
    caplog.clear()
    AsyncConsumer(broadcast, enable_auto_commit=False)
    assert not caplog.text


def test_idempotence_sets_what_it_needs() -> None:
    """Spec: D2."""
    config = build(ProducerConfig, {"enable.idempotence": True}, {})
    assert (config.acks_code, config.retries, config.max_in_flight_requests_per_connection) == (-1, INT32_MAX, 5)
    assert build(ProducerConfig, {"enable.idempotence": "true", "acks": "-1"}, {}).acks_code == -1


def test_the_delivery_timeout_covers_a_linger_and_a_request() -> None:
    with pytest.raises(ConfigError, match=r"delivery\.timeout\.ms should be equal to or larger than"):
        build(ProducerConfig, {"delivery.timeout.ms": 1000, "request.timeout.ms": 2000}, {})
    assert build(ProducerConfig, {"request.timeout.ms": 200_000}, {}).delivery_timeout_ms == 200_005


@pytest.mark.parametrize(
    "server", ["broker", "broker:", ":9092", "broker:http", "broker:0", "broker:65536", "broker:٣"]
)
def test_a_malformed_address_is_refused_when_the_client_is_created(server: str) -> None:
    with pytest.raises(ConfigError, match=r"Invalid url in bootstrap\.servers"):
        build(AdminConfig, {"bootstrap.servers": server}, {})


def test_an_address_may_be_a_host_name_or_an_ip_address() -> None:
    assert parse_endpoint("kafka-1.example:9092") == Endpoint("kafka-1.example", 9092)
    assert parse_endpoint("[::1]:19092") == Endpoint("::1", 19092)


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        ("PT1H", 3_600_000),
        ("P2DT3H4M5.678S", ((2 * 24 + 3) * 60 + 4) * 60_000 + 5_678),
        ("PT0.001S", 1),
        ("PT2H-30M", 5_400_000),
        ("PT0S", 0),
    ],
)
def test_a_reset_by_duration_is_parsed_as_in_java(written: str, milliseconds: int) -> None:
    config = build(ConsumerConfig, {"auto.offset.reset": f"by_duration:{written}"}, {})
    assert config.reset_duration_ms == milliseconds


@pytest.mark.parametrize(
    "written", ["by_duration", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:1h", "by_duration:-PT1H",
                "by_duration:PT١H", "by_duration:PT-1H", "by_duration:P1Y",
                "by_duration:PT" + "9" * 400 + "H", "PT1H", "first"],
)  # fmt: skip
def test_an_invalid_offset_reset_is_refused_with_the_valid_ones(written: str) -> None:
    with pytest.raises(ConfigError, match=r"auto\.offset\.reset: .*'earliest', 'latest', 'none' or .* 'by_duration:<"):
        build(ConsumerConfig, {"auto.offset.reset": written}, {})


def test_only_the_classic_group_protocol_is_supported() -> None:
    assert build(ConsumerConfig, {"group.protocol": "classic", "group.id": "g"}, {}).group_protocol == "classic"
    build(ConsumerConfig, None, {"group_protocol": "CLASSIC"})
    with pytest.raises(ConfigError, match=r"group\.protocol=consumer is not supported") as caught:
        build(ConsumerConfig, {"group.protocol": "consumer", "group.id": "g"}, {})
    assert "classic" in caught.value.hint
    with pytest.raises(ConfigError, match=r"Invalid value share for configuration group\.protocol"):
        build(ConsumerConfig, {"group.protocol": "share"}, {})


@pytest.mark.parametrize("config", [ProducerConfig, ConsumerConfig, AdminConfig])
def test_settings_that_are_not_a_dict_are_refused_with_an_example(config: type[AdminConfig]) -> None:
    with pytest.raises(ConfigError, match="settings must be a dict, not '127") as caught:
        build(config, "127.0.0.1:9092", {})  # type: ignore[arg-type]
    assert 'bootstrap_servers="127.0.0.1:9092"' in caught.value.hint
    for client in (Producer, Consumer, Admin):
        with pytest.raises(ConfigError, match="settings must be a dict, not 'orders'"):
            client("orders")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "name", "hint"),
    [
        (AdminConfig, "sasl.mechanizm", "Did you mean sasl.mechanism?"),
        (ProducerConfig, "group_id", "group.id is a setting of the consumer."),
        (ConsumerConfig, "linger.ms", "linger.ms is a setting of the producer."),
        (ProducerConfig, "bootstrap_server", "Did you mean bootstrap_servers?"),
    ],
)
def test_settings_of_other_clients_get_a_hint(config: type[AdminConfig], name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"Unknown setting {name}") as caught:
        build(config, {name: "x"}, {}) if "." in name else build(config, None, {name: "x"})
    assert hint in caught.value.hint
