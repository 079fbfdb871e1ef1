"""The broker's settings in use: read from text, overridden at run time, described. Pure.

A value is looked up in this order: the topic's setting, this broker's dynamic setting, the dynamic setting of all
brokers, the file or command line, the default. DescribeConfigs shows which of them was used.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.settings.authorizer_settings import AUTHORIZER_SETTINGS
from ottla.broker.settings.listener_security import check_listener_prefix, listener_setting
from ottla.broker.settings.settings_table import BrokerConfig
from ottla.broker.settings.unused_settings import (
    UNUSED,
    UNUSED_AT_RUN_TIME,
    UNUSED_TOPIC_SETTINGS,
    is_unused,
    unused_setting,
)
from ottla.config import BROKER_ALIASES, Setting, settings_of, unknown_setting
from ottla.errors import ConfigError, ErrorCode, KafkaError, nearest, with_hint
from ottla.log.config import TopicConfig
from ottla.metadata.etcd.location import is_etcd, parse_location
from ottla.metadata.image import ClusterImage, TopicImage
from ottla.protocol.wire_values import CONFIG_TYPES, ConfigResourceType, ConfigSource
from ottla.types import OFFSETS_TOPIC, REBALANCES_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from ottla.metadata.changes.topic_changes import NewTopic

__all__ = ["BrokerConfig", "ConfigEntry", "Settings", "Synonym", "load_config"]

BROKER_SETTINGS = settings_of(BrokerConfig)
TOPIC_SETTINGS = settings_of(TopicConfig)

PROTOCOLS = "group.coordinator.rebalance.protocols"
SESSION_TIMEOUT = "broker.session.timeout.ms"
ETCD_SESSION_TIMEOUT_MS = 3_000
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
_FACTOR_SETTINGS = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTIONS_TOPIC: "transaction.state.log.replication.factor",
    REBALANCES_TOPIC: "offsets.topic.replication.factor",
}
"""The setting for the number of replicas of each internal topic."""
SYNONYMS: dict[str, tuple[tuple[str, int], ...]] = {
    "log.retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
    ),
    "log.roll.ms": (("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)),
    "log.roll.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)),
    "log.flush.interval.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
}
"""Broker settings with several names: each name, and the factor for its value. The first one that is set is used."""


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One line of DescribeConfigs."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    synonyms: Sequence[Synonym]
    """Where the value could come from; the one that is used comes first."""
    config_type: int
    documentation: str


# Reading


def load_config(values: Mapping[str, str]) -> BrokerConfig:
    """The broker's config from text values under dotted names. Raises ConfigError with a hint."""
    chosen: dict[str, Any] = {}
    given = dict(values)
    notices = []
    for name, text in values.items():
        known = BROKER_SETTINGS.get(BROKER_ALIASES.get(name, name))
        if (for_a_listener := listener_setting(name)) is not None:
            for_a_listener.parse(text)
            check_listener_prefix(name)
        elif known is not None:
            value = known.parse(text)
            if name == PROTOCOLS and value != ("classic",):
                # DescribeConfigs must not promise what is not served.
                notices.append(f"{name}={text}: only classic is served")
                value, given[name] = ("classic",), "classic"
            if chosen.setdefault(known.attribute, value) != value:
                raise ConfigError(
                    f"{name} contradicts {known.name}", "They are the same setting: set only one of them."
                )
        elif is_unused(name):
            notices.append(f"{name} has no effect")
        else:
            raise unknown_setting(name, [*BROKER_SETTINGS, *BROKER_ALIASES, *UNUSED])
    if is_etcd(chosen.get("metadata")) and SESSION_TIMEOUT not in given:
        # etcd does not detect that a process has ended, so its lease is shorter than Kafka's session.
        given[SESSION_TIMEOUT] = str(ETCD_SESSION_TIMEOUT_MS)
        chosen["broker_session_timeout_ms"] = ETCD_SESSION_TIMEOUT_MS
    config = BrokerConfig(**chosen, given=given, notices=tuple(notices))
    _check_together(config)
    return config


def _check_together(config: BrokerConfig) -> None:
    """Settings that are valid alone but not together."""
    if len(config.log_dirs) != 1 or not config.log_dirs[0]:
        given = ",".join(config.log_dirs)
        raise ConfigError(
            f"Invalid value {given} for configuration log.dirs: must be exactly one directory",
            "Start one broker for each directory: several directories are not supported.",
        )
    if config.metadata is not None and is_etcd(config.metadata):
        parse_location(config.metadata)
    if (config.etcd_certificate_file is None) != (config.etcd_key_file is None):
        raise ConfigError(
            "ottla.etcd.certificate.file and ottla.etcd.key.file belong together", "Set both of them, or none."
        )
    for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        value = getattr(config, BROKER_SETTINGS[name].attribute)
        if value is not None and (value == 0 or value < -1):
            raise ConfigError(f"Invalid value {value} for configuration {name}: must be -1 (never) or at least 1")
    for low, high in (
        ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
        ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    ):
        first, second = (getattr(config, BROKER_SETTINGS[name].attribute) for name in (low, high))
        if first > second:
            raise ConfigError(f"{low} ({first}) must not be greater than {high} ({second})")


# In use


class Settings:
    """The effective settings of a topic or this broker, for an image. The controller uses it to check settings."""

    def __init__(self, config: BrokerConfig) -> None:
        self.static = config
        self._given = _set_values(config)
        self._overlay: Mapping[str, Mapping[str, str]] | None = None
        self._broker_config = config
        self._topic_defaults = TopicConfig()
        self._topic_configs: dict[str, tuple[Mapping[str, str], TopicConfig]] = {}
        self.check_security: Callable[[Mapping[str, str], Mapping[str, str]], None] | None = None
        """Set if there are secure listeners. Raises ConfigError if they cannot use the settings after a change (the
        second argument, as text); those before it are the first."""

    @property
    def num_partitions(self) -> int:
        return self.static.num_partitions

    @property
    def default_replication_factor(self) -> int:
        return self.static.default_replication_factor

    @property
    def delete_topic_enable(self) -> bool:
        return self.static.delete_topic_enable

    def broker_config(self, image: ClusterImage) -> BrokerConfig:
        """The broker's config including changes made at run time."""
        self._refresh(image)
        return self._broker_config

    def texts(self, image: ClusterImage) -> dict[str, str]:
        """Everything that is set, as text, including changes made at run time."""
        return {name: text for layer, _ in reversed(self._layers(image)) for name, text in layer.items()}

    def topic_config(self, image: ClusterImage, topic_name: str) -> TopicConfig:
        """The effective settings of a topic; the broker's defaults if it does not exist."""
        self._refresh(image)
        topic = image.topics.get(topic_name)
        if topic is None or not topic.configs:
            return self._topic_defaults
        cached = self._topic_configs.get(topic_name)
        if cached is None or cached[0] is not topic.configs:
            cached = (topic.configs, _overridden(self._topic_defaults, TOPIC_SETTINGS, topic.configs))
            self._topic_configs[topic_name] = cached
        return cached[1]

    def allows_unclean_election(self, image: ClusterImage, topic: TopicImage) -> bool:
        return self.topic_config(image, topic.name).unclean_leader_election_enable

    def min_insync_replicas(self, image: ClusterImage, topic: TopicImage) -> int:
        return self.topic_config(image, topic.name).min_insync_replicas

    def internal_replication_factors(self) -> dict[str, int]:
        """How many replicas internal topics should have if there are enough brokers, where the user did not set it."""
        config = self.static
        factors = {OFFSETS_TOPIC: config.offsets_topic_replication_factor}
        factors[TRANSACTIONS_TOPIC] = config.transaction_state_log_replication_factor
        factors[REBALANCES_TOPIC] = config.offsets_topic_replication_factor
        return {topic: factor for topic, factor in factors.items() if not self._is_set(_FACTOR_SETTINGS[topic])}

    def _is_set(self, name: str) -> bool:
        return name in self._given

    def _refresh(self, image: ClusterImage) -> None:
        """Recomputes the broker's values when its dynamic settings have changed."""
        overlay = image.broker_configs
        if self._overlay is overlay:
            return
        self._overlay = overlay
        self._topic_configs = {}
        dynamic = {**overlay.get("", {}), **overlay.get(str(self.static.node_id), {})}
        self._broker_config = _overridden(self.static, BROKER_SETTINGS, dynamic)
        self._topic_defaults = replace(
            TopicConfig(),
            **{
                setting.attribute: self._effective(image, setting.server_name)
                for setting in TOPIC_SETTINGS.values()
                if setting.server_name
            },
        )

    def _effective(self, image: ClusterImage, server_name: str) -> Any:
        """The value of a broker setting that may have several names."""
        for layer, _ in self._layers(image):
            for name, factor in _names_of(server_name):
                if name in layer:
                    return _multiplied(_parsed(BROKER_SETTINGS[name], layer[name]), factor)
        defaults = [(BROKER_SETTINGS[name].default, factor) for name, factor in _names_of(server_name)]
        return next(_multiplied(value, factor) for value, factor in defaults if value is not None)

    def _layers(self, image: ClusterImage) -> tuple[tuple[Mapping[str, str], ConfigSource], ...]:
        return (
            (image.broker_configs.get(str(self.static.node_id), {}), ConfigSource.DYNAMIC_BROKER),
            (image.broker_configs.get("", {}), ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self._given, ConfigSource.STATIC_BROKER),
        )

    # Checks for the controller

    def check_topic_configs(self, image: ClusterImage, configs: Mapping[str, str]) -> None:
        try:
            for name, text in configs.items():
                setting = TOPIC_SETTINGS.get(name) or UNUSED_TOPIC_SETTINGS.get(name)
                if setting is None:
                    raise ConfigError(f"Unknown topic config name: {name}{_near_match(name, TOPIC_SETTINGS)}")
                setting.parse(text)
            self._refresh(image)
            config = _overridden(self._topic_defaults, TOPIC_SETTINGS, configs)
            if config.max_compaction_lag_ms < config.min_compaction_lag_ms:
                raise ConfigError(
                    f"conflict topic config setting min.compaction.lag.ms ({config.min_compaction_lag_ms}) > "
                    f"max.compaction.lag.ms ({config.max_compaction_lag_ms})"
                )
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, error.message) from None

    def check_broker_configs(self, broker: str, configs: Mapping[str, str]) -> None:
        known = {
            name: BROKER_SETTINGS.get(BROKER_ALIASES.get(name, name)) or listener_setting(name) for name in configs
        }
        for name in configs:
            if name in UNUSED_AT_RUN_TIME:
                known[name] = unused_setting(name)
        own = [name for name in configs if name.startswith(("ssl.", "listener.name."))]
        if own and not broker:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs at default cluster level: {', '.join(own)}. Each broker has its own.",
            )
        static = [name for name, setting in known.items() if _is_read_only(name, setting)]
        if static:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Cannot update these configs dynamically: {', '.join(static)}. Set them in the broker's "
                "configuration and restart it.",
            )
        for name, setting in known.items():
            if setting is None:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Unknown broker config name: {name}{_near_match(name, BROKER_SETTINGS)}",
                )
            try:
                setting.parse(configs[name])
                check_listener_prefix(name)
            except ConfigError as error:
                raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None

    def check_listeners(self, image: ClusterImage, broker: str, configs: Mapping[str, str]) -> None:
        if self.check_security is None:
            return
        after = replace(image, broker_configs={**image.broker_configs, broker: configs})
        try:
            self.check_security(self.texts(image), self.texts(after))
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, with_hint(error.message, error.hint)) from None

    def list_default(self, image: ClusterImage, resource_type: int, name: str) -> Sequence[str] | None:
        if resource_type == ConfigResourceType.TOPIC:
            setting = TOPIC_SETTINGS.get(name) or UNUSED_TOPIC_SETTINGS.get(name)
            if setting is None or setting.kind != "list":
                return None
            self._refresh(image)
            value = getattr(self._topic_defaults, setting.attribute) if setting.attribute else setting.default
        else:
            setting = BROKER_SETTINGS.get(BROKER_ALIASES.get(name, name))
            if setting is None or setting.kind != "list":
                return None
            value = getattr(self.broker_config(image), setting.attribute)
        items: Sequence[str] = value
        return items

    def automatic_topic(self, image: ClusterImage, name: str) -> "NewTopic":
        """The topic to create automatically for `name`. Internal topics have their own settings.

        A replication factor that the user set is required: with fewer brokers the topic is not created (KIP-115). The
        default is only a target: there are as many replicas as there are brokers, and more as brokers join.
        """
        from ottla.metadata.changes.topic_changes import NewTopic

        config = self.static

        def replicas(setting: str, wanted: int) -> int:
            return wanted if setting in config.given else min(wanted, max(1, len(image.brokers)))

        if name == OFFSETS_TOPIC:
            codec = ("producer", "gzip", "snappy", "lz4", "zstd")[config.offsets_topic_compression_codec]
            return NewTopic(
                name,
                config.offsets_topic_num_partitions,
                replicas("offsets.topic.replication.factor", config.offsets_topic_replication_factor),
                configs=(
                    ("cleanup.policy", "compact"),
                    ("compression.type", codec),
                    ("segment.bytes", str(config.offsets_topic_segment_bytes)),
                ),
            )
        if name == TRANSACTIONS_TOPIC:
            return NewTopic(
                name,
                config.transaction_state_log_num_partitions,
                replicas("transaction.state.log.replication.factor", config.transaction_state_log_replication_factor),
                configs=(
                    ("cleanup.policy", "compact"),
                    ("compression.type", "uncompressed"),
                    # If there are fewer replicas, all of them are enough.
                    ("min.insync.replicas", str(config.transaction_state_log_min_isr)),
                    ("segment.bytes", str(config.transaction_state_log_segment_bytes)),
                    ("unclean.leader.election.enable", "false"),
                ),
            )
        if name == REBALANCES_TOPIC:
            return NewTopic(
                name,
                1,
                replicas("offsets.topic.replication.factor", config.offsets_topic_replication_factor),
                configs=(
                    ("cleanup.policy", "delete"),
                    ("retention.ms", str(7 * 86_400_000)),
                    ("retention.bytes", str(16 * 1024 * 1024)),
                    ("segment.bytes", str(1024 * 1024)),
                ),
            )
        return NewTopic(name)

    # What DescribeConfigs shows

    def describe_topic(self, image: ClusterImage, name: str) -> list[ConfigEntry]:
        """Every setting of an existing topic. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        topic = image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return self.describe_topic_configs(image, topic.configs)

    def describe_topic_configs(self, image: ClusterImage, configs: Mapping[str, str]) -> list[ConfigEntry]:
        """Every setting of a topic that has `configs` set."""
        return sorted(self._topic_entries(image, configs))

    def _topic_entries(self, image: ClusterImage, configs: Mapping[str, str]) -> Iterator[ConfigEntry]:
        self._refresh(image)
        effective = _overridden(self._topic_defaults, TOPIC_SETTINGS, configs)
        for name, setting in TOPIC_SETTINGS.items():
            value = setting.format(getattr(effective, setting.attribute))
            synonyms = self._synonyms(image, setting.server_name) if setting.server_name else []
            if name in configs:
                synonyms.insert(0, Synonym(name, value, ConfigSource.TOPIC))
            yield _entry(name, value, setting, synonyms, read_only=False)
        for name, setting in UNUSED_TOPIC_SETTINGS.items():
            synonyms = self._synonyms(image, setting.server_name) if setting.server_name else []
            if name in configs:
                value = setting.format(_parsed(setting, configs[name]))
                synonyms.insert(0, Synonym(name, value, ConfigSource.TOPIC))
            value = synonyms[0].value if synonyms else setting.format(setting.default)
            yield _entry(name, value, setting, synonyms, read_only=False)

    def describe_broker(self, image: ClusterImage, broker_id: int | None) -> list[ConfigEntry]:
        """Every setting of this broker; for None, those set for all brokers at run time."""
        if broker_id is None:
            return sorted(self._cluster_entries(image))
        if broker_id != self.static.node_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {self.static.node_id} or empty string, but received {broker_id}",
            )
        return sorted(self._broker_entries(image))

    def _broker_entries(self, image: ClusterImage) -> Iterator[ConfigEntry]:
        config = self.broker_config(image)
        for name, setting in BROKER_SETTINGS.items():
            value = setting.format(getattr(config, setting.attribute))
            synonyms = self._synonyms(image, name)
            while synonyms and synonyms[0].name != name:
                del synonyms[0]  # another name's value stands in for this one, but is not its value
            if name in AUTHORIZER_SETTINGS and synonyms[0].source is ConfigSource.DEFAULT:
                continue
            yield _entry(name, value, setting, synonyms, read_only=setting.read_only)
            for alias, meant in BROKER_ALIASES.items():
                if meant == name:
                    synonyms = [synonym._replace(name=alias) for synonym in synonyms]
                    yield _entry(alias, value, setting, synonyms, read_only=setting.read_only)
        unused = {name for layer, _ in self._layers(image) for name in layer if name not in BROKER_SETTINGS}
        for name in unused:
            setting = _other_setting(name)
            synonyms = self._synonyms(image, name)
            yield _entry(name, synonyms[0].value, setting, synonyms, read_only=not _was_set_at_run_time(image, name))

    def _cluster_entries(self, image: ClusterImage) -> Iterator[ConfigEntry]:
        for name, text in image.broker_configs.get("", {}).items():
            setting = BROKER_SETTINGS.get(BROKER_ALIASES.get(name, name)) or _other_setting(name)
            value = None if setting.is_sensitive else text
            synonym = Synonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER)
            yield _entry(name, value, setting, [synonym], read_only=False)

    def _synonyms(self, image: ClusterImage, server_name: str) -> list[Synonym]:
        names = [name for name, _ in _names_of(server_name)]
        setting = BROKER_SETTINGS.get(server_name) or _other_setting(server_name)
        found = [
            Synonym(name, None if setting.is_sensitive else layer[name], source)
            for layer, source in self._layers(image)
            for name in names
            if name in layer
        ]
        # A default belongs to the name that declares it, as in Kafka: log.retention.ms has none.
        if setting.default is not None:
            found.append(Synonym(server_name, setting.format(setting.default), ConfigSource.DEFAULT))
        return found


def _entry(
    name: str, value: str | None, setting: Setting, synonyms: Sequence[Synonym], *, read_only: bool
) -> ConfigEntry:
    return ConfigEntry(
        name=name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        is_read_only=read_only,
        is_sensitive=setting.is_sensitive,
        synonyms=synonyms,
        config_type=CONFIG_TYPES.index(setting.kind),
        documentation=setting.doc,
    )


def _set_values(config: BrokerConfig) -> dict[str, str]:
    """What was set in the file or by the program, as text under the main name of each setting."""
    values = {BROKER_ALIASES.get(name, name): text for name, text in config.given.items()}
    for name, setting in BROKER_SETTINGS.items():
        value = getattr(config, setting.attribute)
        if value != setting.default:
            values.setdefault(name, (value if setting.is_sensitive else setting.format(value)) or "")
    return values


def _other_setting(name: str) -> Setting:
    """A setting of one listener, or one without effect."""
    return listener_setting(name) or unused_setting(name)


def _is_read_only(name: str, setting: Setting | None) -> bool:
    """Whether a setting cannot be changed at run time."""
    if name in UNUSED_AT_RUN_TIME:
        return False
    return is_unused(name) if setting is None else setting.read_only


def _was_set_at_run_time(image: ClusterImage, name: str) -> bool:
    """Whether a setting was set at run time."""
    return any(name in configs for configs in image.broker_configs.values())


def _names_of(server_name: str) -> tuple[tuple[str, int], ...]:
    return SYNONYMS.get(server_name, ((server_name, 1),))


def _multiplied(value: Any, factor: int) -> Any:
    return value if factor == 1 else max(value * factor, -1)


def _parsed(setting: Setting, text: str) -> Any:
    """The value of a stored setting; its default if this version no longer accepts it."""
    try:
        return setting.parse(text)
    except ConfigError:
        return setting.default


def _overridden(config: Any, settings: Mapping[str, Setting], texts: Mapping[str, str]) -> Any:
    changes = {
        settings[name].attribute: _parsed(settings[name], text) for name, text in texts.items() if name in settings
    }
    return replace(config, **changes) if changes else config


def _near_match(name: str, known: Mapping[str, Setting]) -> str:
    similar = nearest(name, known)
    return f" (did you mean {similar}?)" if similar else ""
