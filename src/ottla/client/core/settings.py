"""The clients' settings under Kafka's dotted names, and how what the user wrote becomes a config. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ottla.checks import port_from_text
from ottla.config import parse, setting, settings_of, unknown_setting
from ottla.errors import ConfigError
from ottla.types import INT32_MAX, Endpoint

C = TypeVar("C", bound="ClientConfig")

IN_FLIGHT_MAX_IDEMPOTENT = 5
"""A broker remembers this many batches of a producer, so no more may be under way at once."""


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What every client needs to know."""

    bootstrap_servers: tuple[str, ...] = setting(
        "bootstrap.servers",
        ("127.0.0.1:9092",),
        "host:port of one or more brokers to ask first.",
        check=lambda servers: bool(servers) and all(servers),
    )
    client_id: str = setting("client.id", "ottla", "The name that brokers see in their logs and quotas.")
    client_rack: str = setting("client.rack", "", "Where this client runs; consumers then read from a near replica.")
    request_timeout_ms: int = setting("request.timeout.ms", 30_000, "How long to wait for one answer.", at_least=0)
    default_api_timeout_ms: int = setting(
        "default.api.timeout.ms", 60_000, "How long a call may take, all its retries together.", at_least=0
    )
    retry_backoff_ms: int = setting("retry.backoff.ms", 100, "The wait before the first retry.", at_least=0)
    retry_backoff_max_ms: int = setting(
        "retry.backoff.max.ms", 1_000, "The wait before a retry doubles up to this.", at_least=0
    )
    reconnect_backoff_ms: int = setting("reconnect.backoff.ms", 50, "The wait before connecting again.", at_least=0)
    reconnect_backoff_max_ms: int = setting(
        "reconnect.backoff.max.ms", 1_000, "The wait before connecting again doubles up to this.", at_least=0
    )
    socket_connection_setup_timeout_ms: int = setting(
        "socket.connection.setup.timeout.ms", 10_000, "How long a connection may take to come up.", at_least=1
    )
    metadata_max_age_ms: int = setting(
        "metadata.max.age.ms", 300_000, "Ask about brokers and topics again after this time.", at_least=0
    )

    def endpoints(self) -> list[Endpoint]:
        """The bootstrap servers, taken apart."""
        return [parse_endpoint(server) for server in self.bootstrap_servers]


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """The settings of Admin and AsyncAdmin."""


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """The settings of Producer and AsyncProducer."""

    acks: str = setting(
        "acks", "all", "Who must have a record before it counts: all in-sync replicas, the leader (1), nobody (0).",
        choices=("all", "-1", "0", "1"),
    )  # fmt: skip
    enable_idempotence: bool = setting(
        "enable.idempotence", True, "Number the batches, so that a retry is never stored twice."
    )
    retries: int = setting("retries", INT32_MAX, "How often a batch is tried again.", at_least=0)
    max_in_flight_requests_per_connection: int = setting(
        "max.in.flight.requests.per.connection", 5, "Requests to one broker that may wait for answers.", at_least=1
    )
    delivery_timeout_ms: int = setting(
        "delivery.timeout.ms", 120_000, "After this time a record has been stored or has failed.", at_least=0
    )
    linger_ms: int = setting("linger.ms", 5, "How long a batch waits for company.", at_least=0)
    batch_size: int = setting("batch.size", 262_144, "A batch of this many bytes waits no longer.", at_least=0)
    compression_type: str = setting(
        "compression.type", "none", "How batches are compressed.", choices=("none", "gzip", "snappy", "lz4", "zstd")
    )
    compression_level: int | None = setting(
        "compression.level", None, "How hard to compress; the codec's own default if not set."
    )
    buffer_memory: int = setting(
        "buffer.memory", 33_554_432, "Bytes that may wait to be sent; beyond it, send() waits.", at_least=0, kind="long"
    )
    max_block_ms: int = setting(
        "max.block.ms", 60_000, "How long send() waits for room or for the topic.", at_least=0, kind="long"
    )
    max_request_size: int = setting(
        "max.request.size", 1_048_576, "The largest request, and with it the largest record.", at_least=0
    )
    partitioner_class: str | None = setting(
        "partitioner.class",
        None,
        "Who picks a partition, as module:function; by key, or sticky, if not set.",
    )
    metadata_max_idle_ms: int = setting(
        "metadata.max.idle.ms", 300_000, "Forget a topic that was not written to for this long.", at_least=5_000
    )
    transactional_id: str | None = setting(
        "transactional.id", None, "The name under which this producer writes in transactions, one producer at a time.",
        check=bool,
    )  # fmt: skip
    transaction_timeout_ms: int = setting(
        "transaction.timeout.ms", 60_000, "A transaction open for longer is aborted by its coordinator.", at_least=1
    )
    transaction_two_phase_commit_enable: bool = setting(
        "transaction.two.phase.commit.enable",
        False,
        "A prepared transaction waits for its end for ever: who prepares it sees to it that it ends.",
    )

    @property
    def acks_code(self) -> int:
        return -1 if self.acks == "all" else int(self.acks)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """The settings of Consumer and AsyncConsumer."""

    group_id: str | None = setting("group.id", None, "The group to read with, and under which offsets are committed.")
    group_protocol: str = setting(
        "group.protocol", "classic", "Who assigns partitions: classic, a member of the group.",
        check=lambda text: text.lower() in ("classic", "consumer"),
    )  # fmt: skip
    group_instance_id: str | None = setting(
        "group.instance.id", None, "Makes a static member, which may restart without a rebalance."
    )
    partition_assignment_strategy: tuple[str, ...] = setting(
        "partition.assignment.strategy",
        ("range", "cooperative-sticky"),
        "Who gets which partition: assignors by name, module:Class or class, the preferred one first.",
    )
    session_timeout_ms: int = setting(
        "session.timeout.ms", 45_000, "A member not heard of for this long is out of the group.", at_least=1
    )
    heartbeat_interval_ms: int = setting(
        "heartbeat.interval.ms", 3_000, "How often a member is heard of; a third of the session at most.", at_least=1
    )
    max_poll_interval_ms: int = setting(
        "max.poll.interval.ms", 300_000, "A member that does not poll for this long leaves the group.", at_least=1
    )
    enable_auto_commit: bool = setting(
        "enable.auto.commit", True, "Commit what was given out, now and then and before partitions go elsewhere."
    )
    auto_commit_interval_ms: int = setting(
        "auto.commit.interval.ms", 5_000, "How often offsets are committed by themselves.", at_least=0
    )
    exclude_internal_topics: bool = setting(
        "exclude.internal.topics", True, "Whether a pattern leaves out the brokers' own topics."
    )
    auto_offset_reset: str = setting(
        "auto.offset.reset",
        "latest",
        "Where to begin without a valid position: earliest, latest, by_duration:PT1H (an hour ago), none (an error).",
    )
    isolation_level: str = setting(
        "isolation.level", "read_uncommitted", "Whether records of open and aborted transactions are shown.",
        choices=("read_uncommitted", "read_committed"),
    )  # fmt: skip
    fetch_min_bytes: int = setting(
        "fetch.min.bytes", 1, "The broker answers once it has this much, or the wait is over.", at_least=0
    )
    fetch_max_wait_ms: int = setting(
        "fetch.max.wait.ms", 500, "How long the broker may wait for fetch.min.bytes.", at_least=0
    )
    fetch_max_bytes: int = setting("fetch.max.bytes", 52_428_800, "The most one answer should bring.", at_least=0)
    max_partition_fetch_bytes: int = setting(
        "max.partition.fetch.bytes", 1_048_576, "The most one answer should bring of one partition.", at_least=0
    )
    max_poll_records: int = setting("max.poll.records", 500, "The most records that one poll() gives.", at_least=1)
    check_crcs: bool = setting("check.crcs", True, "Check the checksum of every batch.")
    allow_auto_create_topics: bool = setting(
        "allow.auto.create.topics", True, "Let the broker make a topic that is read before it exists."
    )

    @property
    def reset_duration_ms(self) -> int:
        """How long before now to begin, where `auto.offset.reset` says by_duration."""
        return parse_reset_duration(self.auto_offset_reset) or 0


def build(config_class: type[C], settings: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> C:
    """A config from dotted names in a dict, from snake_case keywords, or both.

    >>> build(ProducerConfig, {"linger.ms": 20}, {"acks": "all"}).linger_ms
    20
    """
    check_settings(settings)
    known = settings_of(config_class)
    by_attribute = {known_setting.attribute: name for name, known_setting in known.items()}
    chosen: dict[str, str] = {}
    for name, value in (settings or {}).items():
        if name not in known:
            raise _unknown(name, known)
        chosen[name] = _text(name, value)
    for attribute, value in keywords.items():
        if attribute not in by_attribute:
            raise _unknown(attribute, by_attribute)
        name = by_attribute[attribute]
        if name in chosen:
            raise ConfigError(f"{name} is given twice", f"Set it in the dict or as {attribute}=, not both.")
        chosen[name] = _text(name, value)
    config = parse(config_class, {name: text for name, text in chosen.items() if text is not None})
    config.endpoints()  # a malformed address is refused here, not at the first request
    if isinstance(config, ProducerConfig):
        return _settle_producer(config, chosen.keys())  # type: ignore[return-value]
    if isinstance(config, ConsumerConfig):
        return _settle_consumer(config, chosen.keys())  # type: ignore[return-value]
    return config


def check_settings(settings: Any) -> None:
    if settings is not None and not isinstance(settings, Mapping):
        example = 'Write {"bootstrap.servers": "127.0.0.1:9092"} or bootstrap_servers="127.0.0.1:9092".'
        raise ConfigError(f"settings must be a dict, not {settings!r}", example)


def _unknown(name: str, known: Iterable[str]) -> ConfigError:
    """As for any unknown setting, with a word to those who come from another client."""
    error = unknown_setting(name, known)
    dotted = str(name).replace("_", ".")
    for pattern, hint in _ELSEWHERE.items():
        if not error.hint and re.fullmatch(pattern, dotted):
            return ConfigError(error.message, hint)
    owners = [kind for kind, config in _KINDS.items() if dotted in settings_of(config)]
    return ConfigError(error.message, f"{dotted} is a setting of the {owners[0]}.") if owners else error


_ELSEWHERE = {
    r"(security|ssl|sasl)\..*": "Ottla's clients have no TLS and no SASL: they connect over plain TCP.",
    r"(key|value)\.deserializer": "DeserializingConsumer takes key_deserializer= and value_deserializer=.",
    r"(key|value)\.serializer": "Give send() bytes or text, such as json.dumps(value).",
}
_KINDS = {"producer": ProducerConfig, "consumer": ConsumerConfig}


def _settle_producer(config: ProducerConfig, written: Any) -> ProducerConfig:
    """Refuses what the user wrote and cannot be; fills in what the user left open."""
    contradictions = {
        "retries": (config.retries == 0, "Must set retries to non-zero when using the idempotent producer."),
        "max.in.flight.requests.per.connection": (
            config.max_in_flight_requests_per_connection > IN_FLIGHT_MAX_IDEMPOTENT,
            "Must set max.in.flight.requests.per.connection to at most 5 to use the idempotent producer.",
        ),
        "acks": (
            config.acks not in ("all", "-1"),
            "Must set acks to all in order to use the idempotent producer. Otherwise we cannot guarantee idempotence.",
        ),
    }
    clashes = [(name, message) for name, (clash, message) in contradictions.items() if clash]
    if config.transactional_id is not None:
        _check_transactional(config, clashes, written)
    elif config.transaction_two_phase_commit_enable:
        message = "Cannot set transaction.two.phase.commit.enable without also setting transactional.id."
        raise ConfigError(message, "Set transactional.id.")
    if config.enable_idempotence and clashes:
        if "enable.idempotence" in written:
            name, message = clashes[0]
            raise ConfigError(message, f"Change {name}, or set enable.idempotence to false.")
        # The user asked for less than idempotence needs and said nothing of idempotence itself.
        config = replace(config, enable_idempotence=False)
    needed_ms = config.linger_ms + config.request_timeout_ms
    if config.delivery_timeout_ms < needed_ms:
        if "delivery.timeout.ms" in written:
            raise ConfigError(
                "delivery.timeout.ms should be equal to or larger than linger.ms + request.timeout.ms",
                f"Set it to {needed_ms} or more.",
            )
        config = replace(config, delivery_timeout_ms=min(needed_ms, INT32_MAX))
    return config


def _check_transactional(config: ProducerConfig, clashes: list[tuple[str, str]], written: Any) -> None:
    """A transaction needs idempotence, so what turns that off is refused whether the user named it or not."""
    if not config.enable_idempotence:
        message = "Cannot set a transactional.id without also enabling idempotence."
        raise ConfigError(message, "Set enable.idempotence to true, or leave it out.")
    if clashes:
        name, message = clashes[0]
        raise ConfigError(message, f"Change {name}: transactional.id needs the idempotent producer.")
    if config.transaction_two_phase_commit_enable and "transaction.timeout.ms" in written:
        message = "Cannot set transaction.timeout.ms when transaction.two.phase.commit.enable is set to true."
        raise ConfigError(message, "Leave transaction.timeout.ms out: a prepared transaction never times out.")


def _settle_consumer(config: ConsumerConfig, written: Any) -> ConsumerConfig:
    """As for the producer: refuses what contradicts itself, fills in what was left open."""
    reset = config.auto_offset_reset
    if reset not in ("earliest", "latest", "none") and parse_reset_duration(reset) is None:
        raise ConfigError(
            f"Invalid value {reset} for configuration auto.offset.reset: The value must be either 'earliest', "
            "'latest', 'none' or of the format 'by_duration:<PnDTnHnMn.nS>'",
            "An hour ago is by_duration:PT1H.",
        )
    if config.group_protocol.lower() == "consumer":
        raise ConfigError("group.protocol=consumer is not supported", "Only classic is: set that, or leave it out.")
    if config.group_id is not None and not config.group_id.strip():
        raise ConfigError("group.id must not be blank", "Leave it out to read without a group.")
    if config.group_instance_id is not None:
        if config.group_id is None:
            raise ConfigError("group.instance.id needs a group.id", "Set group.id too.")
        if not config.group_instance_id.strip():
            raise ConfigError("group.instance.id must not be blank", "Leave it out for a dynamic member.")
    if config.group_id is None and config.enable_auto_commit:
        if "enable.auto.commit" in written:
            raise ConfigError("enable.auto.commit cannot be set to true without a group.id", "Set group.id too.")
        config = replace(config, enable_auto_commit=False)
    allowed_ms = max(1, config.session_timeout_ms // 3)
    if config.heartbeat_interval_ms > allowed_ms:
        if "heartbeat.interval.ms" in written:
            raise ConfigError(
                "heartbeat.interval.ms must be at most a third of session.timeout.ms",
                f"Set it to {allowed_ms} or less: two heartbeats may get lost before the session is over.",
            )
        config = replace(config, heartbeat_interval_ms=allowed_ms)
    return config


_DURATION = re.compile(
    r"by_duration:\+?P(?:([+-]?\d{1,15})D)?"
    r"(?:T(?=.)(?:([+-]?\d{1,15})H)?(?:([+-]?\d{1,15})M)?(?:([+-]?\d{1,15}(?:[.,]\d{0,9})?)S)?)?"
)


def parse_reset_duration(text: str) -> int | None:
    """The milliseconds of by_duration:PnDTnHnMn.nS, which Java's clients take as well; None for anything else.

    >>> [parse_reset_duration("by_duration:" + text) for text in ("PT1H", "P1DT0.5S", "PT", "-PT1H", "1h")]
    [3600000, 86400500, None, None, None]
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    seconds = float((match[4] or "0").replace(",", "."))
    total_ms = ((days * 24 + hours) * 60 + minutes) * 60_000 + round(seconds * 1000)
    return total_ms if total_ms >= 0 else None


def parse_endpoint(server: str) -> Endpoint:
    """
    >>> parse_endpoint("broker.example:9092"), parse_endpoint("[::1]:9092")
    (Endpoint(host='broker.example', port=9092), Endpoint(host='::1', port=9092))
    """
    host, _, text = server.rpartition(":")
    port = port_from_text(text)
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not port:
        raise ConfigError(f"Invalid url in bootstrap.servers: {server}", "Write host:port, as in 127.0.0.1:9092.")
    return Endpoint(bare, port)


def _text(name: str, value: Any) -> Any:
    """A Python value as the text that settings are parsed from; None leaves the default."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    raise ConfigError(f"Invalid value {value!r} for configuration {name}", "Give text, a number, true or false.")
