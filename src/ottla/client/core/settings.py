"""The clients' settings under Kafka's names, and how settings and keywords become a checked config. Pure."""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from ottla.checks import endpoint_from_text
from ottla.client.core.foreign_settings import translate
from ottla.client.core.security_settings import OBJECTS, SecurityConfig, check_security
from ottla.config import HIDDEN, looks_secret, parse, setting, settings_of, unknown_setting
from ottla.errors import ConfigError
from ottla.types import INT32_MAX, Endpoint

C = TypeVar("C", bound="ClientConfig")

log = logging.getLogger("ottla.client")

IN_FLIGHT = "max.in.flight.requests.per.connection"
IN_FLIGHT_MAX_IDEMPOTENT = 5
"""A broker remembers this many batches of a producer, so no more may be in flight."""


@dataclass(frozen=True, kw_only=True)
class ClientConfig(SecurityConfig):
    """The settings that all clients share."""

    bootstrap_servers: tuple[str, ...] = setting(
        "bootstrap.servers",
        ("127.0.0.1:9092",),
        "host:port of one or more brokers to connect to first.",
        check=lambda servers: bool(servers) and all(servers),
    )
    client_id: str = setting("client.id", "ottla", "The client's name in the brokers' logs and quotas.")
    client_rack: str = setting(
        "client.rack", "", "The rack of this client; consumers then read from the closest replica."
    )
    request_timeout_ms: int = setting("request.timeout.ms", 30_000, "How long to wait for a response.", at_least=0)
    default_api_timeout_ms: int = setting(
        "default.api.timeout.ms", 60_000, "How long a call may take, including all retries.", at_least=0
    )
    retry_backoff_ms: int = setting("retry.backoff.ms", 100, "The wait before the first retry.", at_least=0)
    retry_backoff_max_ms: int = setting(
        "retry.backoff.max.ms", 1_000, "The wait before a retry doubles up to this limit.", at_least=0
    )
    reconnect_backoff_ms: int = setting("reconnect.backoff.ms", 50, "The wait before reconnecting.", at_least=0)
    reconnect_backoff_max_ms: int = setting(
        "reconnect.backoff.max.ms", 1_000, "The wait before reconnecting doubles up to this limit.", at_least=0
    )
    socket_connection_setup_timeout_ms: int = setting(
        "socket.connection.setup.timeout.ms", 10_000, "How long establishing a connection may take.", at_least=1
    )
    statistics_interval_ms: int = setting(
        "statistics.interval.ms",
        0,
        "How often `on_statistics` is called with the client's metrics; 0: never.",
        at_least=0,
    )
    metadata_max_age_ms: int = setting(
        "metadata.max.age.ms", 300_000, "Refresh the metadata of brokers and topics after this time.", at_least=0
    )

    def endpoints(self) -> list[Endpoint]:
        """The bootstrap servers as host and port."""
        return [parse_endpoint(server) for server in self.bootstrap_servers]


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """The settings of Admin and AsyncAdmin."""


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """The settings of Producer and AsyncProducer."""

    acks: str = setting(
        "acks",
        "all",
        "Which replicas must have a record before it is acknowledged: all in-sync ones, the leader (1), none (0).",
        choices=("all", "-1", "0", "1"),
    )
    enable_idempotence: bool = setting(
        "enable.idempotence", True, "Number the batches, so that a retry is never stored twice."
    )
    retries: int = setting("retries", INT32_MAX, "How often a batch is retried.", at_least=0)
    max_in_flight_requests_per_connection: int = setting(
        "max.in.flight.requests.per.connection", 5, "How many requests to one broker may be in flight.", at_least=1
    )
    delivery_timeout_ms: int = setting(
        "delivery.timeout.ms", 120_000, "A record that is not stored within this time fails.", at_least=0
    )
    linger_ms: int = setting("linger.ms", 5, "How long a batch waits for more records.", at_least=0)
    batch_size: int = setting("batch.size", 262_144, "A batch of this many bytes is sent immediately.", at_least=0)
    compression_type: str = setting(
        "compression.type",
        "none",
        "The codec that compresses batches.",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
    )
    compression_level: int | None = setting(
        "compression.level", None, "The compression level; the codec's default if not set."
    )
    buffer_memory: int = setting(
        "buffer.memory",
        33_554_432,
        "The size of the send buffer in bytes; while it is full, send() blocks.",
        at_least=0,
        kind="long",
    )
    max_block_ms: int = setting(
        "max.block.ms",
        60_000,
        "How long send() blocks while the buffer is full or the topic is unknown.",
        at_least=0,
        kind="long",
    )
    max_request_size: int = setting(
        "max.request.size", 1_048_576, "The largest request, and so the largest record.", at_least=0
    )
    partitioner_class: str | None = setting(
        "partitioner.class",
        None,
        "A function that picks the partition, as module:function; by key, or sticky, if not set.",
    )
    metadata_max_idle_ms: int = setting(
        "metadata.max.idle.ms",
        300_000,
        "Forget the metadata of a topic that was not written to for this long.",
        at_least=5_000,
    )
    transactional_id: str | None = setting(
        "transactional.id",
        None,
        "Enables transactions, and identifies the producer across restarts. A new producer fences an older one.",
        check=bool,
    )
    transaction_timeout_ms: int = setting(
        "transaction.timeout.ms", 60_000, "The coordinator aborts a transaction that is open for longer.", at_least=1
    )
    transaction_two_phase_commit_enable: bool = setting(
        "transaction.two.phase.commit.enable",
        False,
        "Prepared transactions never time out: the application must commit or abort them (KIP-939).",
    )

    @property
    def acks_code(self) -> int:
        return -1 if self.acks == "all" else int(self.acks)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """The settings of Consumer and AsyncConsumer."""

    group_id: str | None = setting(
        "group.id", None, "The consumer group: it shares partitions among members and stores committed offsets."
    )
    group_protocol: str = setting(
        "group.protocol", "classic", "How partitions are assigned: classic, by a member of the group.",
        check=lambda text: text.lower() in ("classic", "consumer"),
    )  # fmt: skip
    group_instance_id: str | None = setting(
        "group.instance.id", None, "Makes a static member, which may restart without a rebalance (KIP-345)."
    )
    partition_assignment_strategy: tuple[str, ...] = setting(
        "partition.assignment.strategy",
        ("range", "cooperative-sticky"),
        "The assignors, by name, module:Class or class; the preferred one first.",
    )
    session_timeout_ms: int = setting(
        "session.timeout.ms",
        45_000,
        "A member without a heartbeat for this long is removed from the group.",
        at_least=1,
    )
    heartbeat_interval_ms: int = setting(
        "heartbeat.interval.ms",
        3_000,
        "How often a member sends a heartbeat; at most a third of session.timeout.ms.",
        at_least=1,
    )
    max_poll_interval_ms: int = setting(
        "max.poll.interval.ms", 300_000, "A member that does not poll for this long leaves the group.", at_least=1
    )
    enable_auto_commit: bool = setting(
        "enable.auto.commit", True, "Commit offsets automatically: during poll(), and before partitions are revoked."
    )
    auto_commit_interval_ms: int = setting(
        "auto.commit.interval.ms", 5_000, "How often poll() commits offsets automatically.", at_least=0
    )
    exclude_internal_topics: bool = setting(
        "exclude.internal.topics", True, "Whether a pattern excludes internal topics."
    )
    auto_offset_reset: str = setting(
        "auto.offset.reset",
        "latest",
        "Where to start without a valid offset: earliest, latest, by_duration:PT1H (an hour ago), none (an error).",
    )
    isolation_level: str = setting(
        "isolation.level", "read_uncommitted", "Whether records of open and aborted transactions are returned.",
        choices=("read_uncommitted", "read_committed"),
    )  # fmt: skip
    fetch_min_bytes: int = setting(
        "fetch.min.bytes", 1, "The broker responds when it has this many bytes, or after fetch.max.wait.ms.", at_least=0
    )
    fetch_max_wait_ms: int = setting(
        "fetch.max.wait.ms", 500, "How long the broker may wait for fetch.min.bytes.", at_least=0
    )
    fetch_max_bytes: int = setting("fetch.max.bytes", 52_428_800, "The maximum size of a fetch response.", at_least=0)
    max_partition_fetch_bytes: int = setting(
        "max.partition.fetch.bytes", 1_048_576, "The maximum size of one partition in a fetch response.", at_least=0
    )
    max_poll_records: int = setting("max.poll.records", 500, "The most records that one poll() returns.", at_least=1)
    check_crcs: bool = setting("check.crcs", True, "Verify the checksum of every batch.")
    allow_auto_create_topics: bool = setting(
        "allow.auto.create.topics", True, "Let the broker create a topic that is read before it exists."
    )

    @property
    def reset_duration_ms(self) -> int:
        """How far back to start, if `auto.offset.reset` is by_duration."""
        return parse_reset_duration(self.auto_offset_reset) or 0


def build(config_class: type[C], settings: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> C:
    """A config from dotted names in a dict, from snake_case keywords, or both.

    >>> build(ProducerConfig, {"linger.ms": 20}, {"acks": "all"}).linger_ms
    20
    """
    check_settings(settings)
    known = settings_of(config_class)
    by_attribute = {known_setting.attribute: name for name, known_setting in known.items()}
    named = dict(settings or {})
    for attribute, value in keywords.items():
        name = by_attribute.get(attribute, attribute)
        if name in named:
            raise ConfigError(f"{name} is set twice", f"Set it in the dict or as {attribute}=, not both.")
        named[name] = value
    others = {name for other in _KINDS.values() for name in settings_of(other)} - known.keys()
    chosen: dict[str, Any] = {}
    for name, value in translate(named, known, others).items():
        if name not in known:
            raise _unknown(name, by_attribute if name in keywords else known)
        chosen[name] = value if name in OBJECTS else _text(name, value)
    given = {name: value for name, value in chosen.items() if value is not None}
    config = parse(config_class, {name: text for name, text in given.items() if name not in OBJECTS})
    config = replace(config, **{known[name].attribute: given[name] for name in OBJECTS if name in given})
    config.endpoints()  # raises for a malformed address now, not at the first request
    check_security(config, given.keys())
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
    """The error for an unknown setting, with a hint if it is a setting of another client."""
    error = unknown_setting(name, known)
    dotted = str(name).replace("_", ".")
    owners = [kind for kind, config in _KINDS.items() if dotted in settings_of(config)]
    return ConfigError(error.message, f"{dotted} is a setting of the {owners[0]}.") if owners else error


_KINDS = {"producer": ProducerConfig, "consumer": ConsumerConfig}


def _settle_producer(config: ProducerConfig, written: Any) -> ProducerConfig:
    """Raises for settings that contradict each other; adapts those that the user did not set."""
    contradictions = {
        "retries": (config.retries == 0, "Must set retries to non-zero when using the idempotent producer."),
        IN_FLIGHT: (
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
        for name, message in clashes:
            # As in Kafka: acks or retries alone may turn idempotence off, but more requests in flight than a broker
            # can deduplicate are an error.
            if "enable.idempotence" in written or name == IN_FLIGHT:
                raise ConfigError(message, f"Change {name}, or set enable.idempotence to false.")
        config = replace(config, enable_idempotence=False)
        why = " and ".join(f"{name}={getattr(config, name)}" for name, _ in clashes)
        log.info(
            "producer %s: not idempotent because of %s: retries may store a record twice. Set enable.idempotence to "
            "false to confirm this, or change the setting",
            config.client_id,
            why,
        )
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
    """Transactions need idempotence, so it cannot be turned off, explicitly or implicitly."""
    if not config.enable_idempotence:
        message = "Cannot set a transactional.id without also enabling idempotence."
        raise ConfigError(message, "Set enable.idempotence to true, or omit it.")
    if clashes:
        name, message = clashes[0]
        raise ConfigError(message, f"Change {name}: transactional.id needs the idempotent producer.")
    if config.transaction_two_phase_commit_enable and "transaction.timeout.ms" in written:
        message = "Cannot set transaction.timeout.ms when transaction.two.phase.commit.enable is set to true."
        raise ConfigError(message, "Omit transaction.timeout.ms: a prepared transaction never times out.")


def _settle_consumer(config: ConsumerConfig, written: Any) -> ConsumerConfig:
    """Raises for settings that contradict each other; adapts those that the user did not set."""
    reset = config.auto_offset_reset
    if reset not in ("earliest", "latest", "none") and parse_reset_duration(reset) is None:
        raise ConfigError(
            f"Invalid value {reset} for configuration auto.offset.reset: The value must be either 'earliest', "
            "'latest', 'none' or of the format 'by_duration:<PnDTnHnMn.nS>'",
            "An hour ago is by_duration:PT1H.",
        )
    if config.group_protocol.lower() == "consumer":
        raise ConfigError("group.protocol=consumer is not supported", "Set it to classic, or omit it.")
    if config.group_id is not None and not config.group_id.strip():
        raise ConfigError("group.id must not be blank", "Omit it to read without a group.")
    if config.group_instance_id is not None:
        if config.group_id is None:
            raise ConfigError("group.instance.id needs a group.id", "Set group.id too.")
        if not config.group_instance_id.strip():
            raise ConfigError("group.instance.id must not be blank", "Omit it for a dynamic member.")
    if config.group_id is None and config.enable_auto_commit:
        if "enable.auto.commit" in written:
            raise ConfigError("enable.auto.commit cannot be set to true without a group.id", "Set group.id too.")
        config = replace(config, enable_auto_commit=False)
    allowed_ms = max(1, config.session_timeout_ms // 3)
    if config.heartbeat_interval_ms > allowed_ms:
        if "heartbeat.interval.ms" in written:
            raise ConfigError(
                "heartbeat.interval.ms must be at most a third of session.timeout.ms",
                f"Set it to {allowed_ms} or less, so that two heartbeats may be lost before the session times out.",
            )
        config = replace(config, heartbeat_interval_ms=allowed_ms)
    return config


_DURATION = re.compile(
    r"by_duration:\+?P(?:([+-]?[0-9]{1,15})D)?"
    r"(?:T(?=.)(?:([+-]?[0-9]{1,15})H)?(?:([+-]?[0-9]{1,15})M)?(?:([+-]?[0-9]{1,15}(?:[.,][0-9]{0,9})?)S)?)?"
)


def parse_reset_duration(text: str) -> int | None:
    """The milliseconds of by_duration:PnDTnHnMn.nS, as the Java client accepts it (KIP-1106); None for anything else.

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
    endpoint = endpoint_from_text(server)
    if endpoint is None or not all(endpoint):
        raise ConfigError(f"Invalid url in bootstrap.servers: {server}", "Write host:port, as in 127.0.0.1:9092.")
    return endpoint


def _text(name: str, value: Any) -> Any:
    """A Python value as the text that settings are parsed from; None keeps the default."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, timedelta) and name.endswith(".ms"):
        return str(round(value / timedelta(milliseconds=1)))
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    shown = HIDDEN if looks_secret(name) else repr(value)
    raise ConfigError(f"Invalid value {shown} for configuration {name}", "Pass text, a number, True or False.")
