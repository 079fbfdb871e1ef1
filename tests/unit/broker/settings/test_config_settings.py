"""Broker settings: read from text, overridden at run time, described."""

import pytest

from ottla.broker.settings.authorizer_settings import make_authorizer
from ottla.broker.settings.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    ConfigEntry,
    Settings,
    Synonym,
    load_config,
)
from ottla.broker.settings.unused_settings import UNUSED, UNUSED_AT_RUN_TIME, UNUSED_TOPIC_SETTINGS, is_unused
from ottla.config import BROKER_ALIASES, read_properties, settings_of
from ottla.coordinator.group.config import GroupConfig
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.errors import ConfigError, ErrorCode, KafkaError
from ottla.log.config import TopicConfig
from ottla.metadata.image import BrokerRegistration, ClusterImage, TopicImage
from ottla.protocol.wire_values import ConfigSource
from ottla.replication.config import ReplicaConfig

KRAFT_FILE = """
# As Apache Kafka ships it
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def image(*, brokers: int = 1, topic: dict[str, str] | None = None, **dynamic: dict[str, str]) -> ClusterImage:
    """An image with broker settings changed at run time: `broker` for broker 0, `cluster` for all."""
    names = {"broker": "0", "cluster": ""}
    return ClusterImage(
        brokers={id_: BrokerRegistration(id_, 0, {}) for id_ in range(brokers)},
        topics={} if topic is None else {"t": TopicImage("t", b"t" * 16, (), topic)},
        broker_configs={names[name]: configs for name, configs in dynamic.items()},
    )


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    (found,) = [e for e in entries if e.name == name]
    return found


# Reading


def test_defaults_are_kafkas() -> None:
    config = load_config({})
    assert (config.num_partitions, config.default_replication_factor, config.auto_create_topics_enable) == (1, 1, True)
    assert (config.offsets_topic_num_partitions, config.offsets_topic_replication_factor) == (50, 3)
    assert (config.group_min_session_timeout_ms, config.group_max_session_timeout_ms) == (6000, 1_800_000)
    assert (config.transaction_max_timeout_ms, config.transactional_id_expiration_ms) == (900_000, 604_800_000)
    assert (config.message_max_bytes, config.socket_request_max_bytes) == (1_048_588, 104_857_600)
    assert (config.connections_max_idle_ms, config.replica_lag_time_max_ms) == (600_000, 30_000)
    assert config.max_request_partition_size_limit == 2000
    assert config.group_coordinator_rebalance_protocols == ("classic",)


def test_apache_kafkas_own_properties_file_is_accepted_with_notices() -> None:
    config = load_config(read_properties(KRAFT_FILE))
    assert (config.node_id, config.log_dirs) == (1, ("/tmp/kraft-combined-logs",))
    assert config.transaction_state_log_min_isr == 1
    unused = {notice.split()[0] for notice in config.notices}
    assert unused == {
        "process.roles",
        "controller.quorum.voters",
        "num.network.threads",
        "num.io.threads",
        "socket.send.buffer.bytes",
        "socket.receive.buffer.bytes",
        "num.recovery.threads.per.data.dir",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
    }
    assert all("\n" not in notice for notice in config.notices)


def test_alternative_setting_names_are_accepted() -> None:
    config = load_config({"broker.id": "7", "log.dir": "/data"})
    assert (config.node_id, config.log_dirs) == (7, ("/data",))
    assert load_config({"broker.id": "7", "node.id": "7"}).node_id == 7
    with pytest.raises(ConfigError, match="contradicts"):
        load_config({"broker.id": "7", "node.id": "8"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num.partition", "num.partitions"),
        ("log.retention.hour", "log.retention.hours"),
        ("lisseners", "listeners"),
        ("num.network.thread", "num.network.threads"),
    ],
)
def test_an_unknown_setting_is_refused_with_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        load_config({name: "1"})
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num.partitions", "0"),
        ("num.partitions", "many"),
        ("num.partitions", "1_000"),
        ("num.partitions", "2147483648"),
        ("node.id", "-1"),
        ("auto.create.topics.enable", "yes"),
        ("offsets.topic.replication.factor", "40000"),
        ("log.cleanup.policy", "shred"),
        ("log.cleaner.min.cleanable.ratio", "2"),
        ("log.cleaner.min.cleanable.ratio", "nan"),
        ("log.retention.ms", "0"),
        ("log.retention.hours", "0"),
        ("log.retention.minutes", "-2"),
        ("log.dirs", "/a,/b"),
        ("log.dirs", ""),
        ("group.coordinator.rebalance.protocols", "consumer"),
        ("group.coordinator.rebalance.protocols", "classic,newest"),
    ],
)
def test_a_malformed_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        load_config({name: value})


@pytest.mark.parametrize(
    "values",
    [
        {"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "9"},
        {"log.cleaner.min.compaction.lag.ms": "10", "log.cleaner.max.compaction.lag.ms": "9"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="must not be greater than"):
        load_config(values)


def test_an_authorizer_is_not_silently_left_out() -> None:
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name"):
        load_config({"authorizer.class.name": "org.example.Authorizer"})
    load_config({"authorizer.class.name": ""})


@pytest.mark.parametrize(
    "name", ["org.apache.kafka.metadata.authorizer.StandardAuthorizer", "kafka.security.authorizer.AclAuthorizer"]
)
def test_kafkas_authorizers_turn_acls_on(name: str) -> None:
    assert make_authorizer(load_config({})) is None
    config = load_config({"authorizer.class.name": name, "super.users": "User:CN=a,O=b;User:bob"})
    authorizer = make_authorizer(config)
    assert authorizer is not None
    assert {str(user) for user in authorizer.super_users} == {"User:CN=a,O=b", "User:bob"}
    assert not authorizer.allow_everyone_if_no_acl_found


def test_super_users_must_be_principals() -> None:
    with pytest.raises(ConfigError, match=r"super\.users: must be principals separated by semicolons"):
        load_config({"super.users": "alice"})


def test_a_config_is_immutable_and_lists_its_fields() -> None:
    config = BrokerConfig(node_id=3)
    with pytest.raises(AttributeError):
        config.node_id = 4
    with pytest.raises(TypeError, match="nod_id"):
        BrokerConfig(nod_id=3)
    assert "node_id=3" in repr(config)


def test_every_topic_setting_has_its_broker_setting_with_the_same_default() -> None:
    settings = Settings(BrokerConfig())
    assert settings.topic_config(image(), "t") == TopicConfig()
    for setting in TOPIC_SETTINGS.values():
        if setting.name.endswith(".replication.throttled.replicas"):
            assert not setting.server_name, "they are partitions of one topic"
            continue
        assert setting.server_name in BROKER_SETTINGS, setting.name
        assert not BROKER_SETTINGS[setting.server_name].read_only, "dynamic, as in Kafka"


def test_no_setting_is_both_used_and_unused_and_all_are_documented() -> None:
    assert not UNUSED & BROKER_SETTINGS.keys()
    assert not UNUSED_TOPIC_SETTINGS.keys() & TOPIC_SETTINGS.keys()
    assert all(is_unused(name) for name in UNUSED_AT_RUN_TIME)
    assert not BROKER_ALIASES.keys() & BROKER_SETTINGS.keys()
    for setting in BROKER_SETTINGS.values():
        assert setting.doc.endswith("."), setting.name


def test_only_the_classic_protocol_of_groups_is_described_whatever_the_file_says() -> None:
    config = load_config({"group.coordinator.rebalance.protocols": "classic,consumer,streams"})
    assert config.group_coordinator_rebalance_protocols == ("classic",)
    assert "only classic is served" in config.notices[0]
    described = entry(Settings(config).describe_broker(image(), 0), "group.coordinator.rebalance.protocols")
    assert (described.value, described.synonyms[0].value) == ("classic", "classic")
    assert not load_config({"group.coordinator.rebalance.protocols": "classic"}).notices


# Changes at run time


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        pytest.param("max.connections", "10", None, id="in use"),
        pytest.param("num.io.threads", "10", None, id="no effect, but Kafka can change it"),
        pytest.param("num.io.threads", "ten", ErrorCode.INVALID_REQUEST, id="no effect, but a type"),
        pytest.param("queued.max.requests", "10", ErrorCode.INVALID_REQUEST, id="no effect, and needs a restart"),
        pytest.param("sasl.enabled.mechanisms", "PLAIN", ErrorCode.INVALID_REQUEST, id="logins need a restart"),
        pytest.param("node.id", "7", ErrorCode.INVALID_REQUEST, id="needs a restart"),
        pytest.param("broker.id", "7", ErrorCode.INVALID_REQUEST, id="an alias that needs a restart"),
        pytest.param("log.retention.ms", "0", ErrorCode.INVALID_REQUEST, id="nothing would be kept"),
        pytest.param("log.retention.ms", "-1", None, id="forever"),
        pytest.param("no.such", "1", ErrorCode.INVALID_CONFIG, id="unknown"),
    ],
)
def test_a_running_broker_takes_only_settings_that_kafka_can_change(
    name: str, value: str, code: ErrorCode | None
) -> None:
    settings = Settings(BrokerConfig())
    if code is None:
        settings.check_broker_configs("0", {name: value})
    else:
        with pytest.raises(KafkaError, match=name) as caught:
            settings.check_broker_configs("0", {name: value})
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("remote.storage.enable", "true", "tiered storage is not supported"),
        ("remote.storage.enable", "perhaps", "Expected value to be either true or false"),
        ("leader.replication.throttled.replicas", "0", "partition:broker"),
        ("local.retention.ms", "-3", "at least -2"),
        ("compression.gzip.level", "0", "between 1 and 9"),
    ],
)
def test_a_topic_setting_is_refused_with_the_rule_it_breaks(name: str, value: str, message: str) -> None:
    with pytest.raises(KafkaError, match=message) as caught:
        Settings(BrokerConfig()).check_topic_configs(image(), {name: value})
    assert caught.value.code == ErrorCode.INVALID_CONFIG


# Effective topic settings


@pytest.mark.parametrize(
    ("values", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1"}, -1),
    ],
)
def test_the_retention_setting_with_the_finest_unit_wins(values: dict[str, str], retention_ms: int) -> None:
    assert Settings(load_config(values)).topic_config(image(), "t").retention_ms == retention_ms


def test_other_settings_with_several_names() -> None:
    values = {"log.roll.hours": "1", "log.roll.jitter.hours": "2", "log.flush.scheduler.interval.ms": "9"}
    config = Settings(load_config(values)).topic_config(image(), "t")
    assert (config.segment_ms, config.segment_jitter_ms, config.flush_ms) == (3_600_000, 7_200_000, 9)
    config = Settings(load_config(values | {"log.flush.interval.ms": "5"})).topic_config(image(), "t")
    assert config.flush_ms == 5


def test_the_most_specific_layer_wins() -> None:
    settings = Settings(load_config({"log.retention.hours": "1", "message.max.bytes": "10"}))
    assert settings.topic_config(image(), "t").max_message_bytes == 10
    cluster = {"log.retention.ms": "300", "message.max.bytes": "30"}
    assert settings.topic_config(image(cluster=cluster), "t").retention_ms == 300
    layered = image(cluster=cluster, broker={"log.retention.ms": "200"}, topic={"retention.ms": "100"})
    config = settings.topic_config(layered, "t")
    assert (config.retention_ms, config.max_message_bytes) == (100, 30)
    assert settings.topic_config(layered, "other").retention_ms == 200
    assert settings.topic_config(image(), "t").max_message_bytes == 10, "unset again"


def test_a_value_in_the_config_object_counts_as_set() -> None:
    settings = Settings(BrokerConfig(log_retention_ms=5, message_max_bytes=7))
    config = settings.topic_config(image(), "t")
    assert (config.retention_ms, config.max_message_bytes) == (5, 7)
    assert entry(settings.describe_broker(image(), 0), "message.max.bytes").source == ConfigSource.STATIC_BROKER


def test_topics_without_settings_share_one_config_and_changes_are_noticed() -> None:
    settings = Settings(BrokerConfig())
    one = image(topic={"retention.ms": "1"})
    assert settings.topic_config(one, "a") is settings.topic_config(one, "b")
    assert settings.topic_config(one, "t") is settings.topic_config(one, "t")
    assert settings.topic_config(image(topic={"retention.ms": "2"}), "t").retention_ms == 2


def test_dynamic_broker_settings_show_in_the_brokers_own_config() -> None:
    settings = Settings(load_config({"message.max.bytes": "10"}))
    assert settings.broker_config(image()).message_max_bytes == 10
    assert settings.broker_config(image(cluster={"message.max.bytes": "30"})).message_max_bytes == 30


def test_unclean_election_follows_the_topic() -> None:
    settings = Settings(BrokerConfig())
    allowing = image(topic={"unclean.leader.election.enable": "true"})
    assert settings.allows_unclean_election(allowing, allowing.topics["t"])
    refusing = image(topic={})
    assert not settings.allows_unclean_election(refusing, refusing.topics["t"])


# Topics created on first use


def test_internal_topics_have_their_own_settings_and_as_many_replicas_as_possible() -> None:
    """Spec: C1."""
    settings = Settings(BrokerConfig())
    for brokers, replicas in ((1, 1), (2, 2), (3, 3), (5, 3)):
        offsets = settings.automatic_topic(image(brokers=brokers), "__consumer_offsets")
        assert (offsets.partitions, offsets.replication_factor) == (50, replicas)
        assert dict(offsets.configs) == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "104857600",
        }
        transactions = settings.automatic_topic(image(brokers=brokers), "__transaction_state")
        assert (transactions.partitions, transactions.replication_factor) == (50, replicas)
        configs = dict(transactions.configs)
        assert configs["min.insync.replicas"] == "2", "all replicas if there are fewer"
        assert configs["cleanup.policy"] == "compact"
        assert configs["unclean.leader.election.enable"] == "false"
        for topic in (offsets, transactions):
            settings.check_topic_configs(image(), {name: value or "" for name, value in topic.configs})


def test_a_replication_factor_of_internal_topics_that_was_set_is_required() -> None:
    """KIP-115: the first broker of three must not create them with one replica, forever."""
    names = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")
    settings = Settings(load_config(dict.fromkeys(names, "3")))
    for name in ("__consumer_offsets", "__transaction_state", "__ottla_rebalances"):
        assert settings.automatic_topic(image(brokers=1), name).replication_factor == 3


def test_other_topics_are_created_with_the_defaults() -> None:
    topic = Settings(BrokerConfig()).automatic_topic(image(), "t")
    assert topic == ("t", -1, -1, (), ())


# Describing


def test_a_topics_settings_say_where_they_come_from() -> None:
    settings = Settings(load_config({"log.cleanup.policy": "compact", "log.retention.hours": "1"}))
    entries = settings.describe_topic(
        image(topic={"retention.bytes": "5"}, broker={"message.max.bytes": "9"}, cluster={"min.insync.replicas": "2"}),
        "t",
    )
    assert [e.name for e in entries] == sorted([*TOPIC_SETTINGS, *UNUSED_TOPIC_SETTINGS])
    own = entry(entries, "retention.bytes")
    assert (own.value, own.source, own.is_read_only, own.is_sensitive) == ("5", ConfigSource.TOPIC, False, False)
    assert own.synonyms == [
        Synonym("retention.bytes", "5", ConfigSource.TOPIC),
        Synonym("log.retention.bytes", "-1", ConfigSource.DEFAULT),
    ]
    assert entry(entries, "max.message.bytes")[1:3] == ("9", ConfigSource.DYNAMIC_BROKER)
    assert entry(entries, "min.insync.replicas")[1:3] == ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert entry(entries, "cleanup.policy").synonyms == [
        Synonym("log.cleanup.policy", "compact", ConfigSource.STATIC_BROKER),
        Synonym("log.cleanup.policy", "delete", ConfigSource.DEFAULT),
    ]
    hours = entry(entries, "retention.ms")
    assert (hours.value, hours.source) == ("3600000", ConfigSource.STATIC_BROKER)
    assert entry(entries, "compression.type")[1:3] == ("producer", ConfigSource.DEFAULT)


def test_topic_settings_without_effect_are_described_like_the_others() -> None:
    own = {
        "local.retention.ms": "7",
        "follower.replication.throttled.replicas": "0:1, 1:1",
        "cleanup.policy": "delete,delete",
    }
    entries = Settings(BrokerConfig()).describe_topic(image(topic=own, cluster={"log.local.retention.bytes": "9"}), "t")
    assert entry(entries, "remote.storage.enable")[1:3] == ("false", ConfigSource.DEFAULT)
    assert entry(entries, "remote.log.copy.disable").synonyms == []
    assert entry(entries, "local.retention.ms").synonyms == [
        Synonym("local.retention.ms", "7", ConfigSource.TOPIC),
        Synonym("log.local.retention.ms", "-2", ConfigSource.DEFAULT),
    ]
    assert entry(entries, "local.retention.bytes")[1:3] == ("9", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert entry(entries, "follower.replication.throttled.replicas").value == "0:1,1:1"
    assert entry(entries, "leader.replication.throttled.replicas")[1:3] == ("", ConfigSource.DEFAULT)
    assert entry(entries, "cleanup.policy").value == "delete", "items are listed once, as in Kafka"


def test_types_and_documentation_are_returned() -> None:
    entries = Settings(BrokerConfig()).describe_topic(image(topic={}), "t")
    types = {e.name: e.config_type for e in entries}
    assert (types["preallocate"], types["compression.type"], types["segment.bytes"]) == (1, 2, 3)
    assert (types["retention.ms"], types["min.cleanable.dirty.ratio"], types["cleanup.policy"]) == (5, 6, 7)
    assert all(e.documentation for e in entries)
    assert entry(entries, "flush.messages").value == "9223372036854775807"
    assert entry(entries, "min.cleanable.dirty.ratio").value == "0.5"
    assert entry(entries, "preallocate").value == "false"


def test_an_unknown_topic_cannot_be_described() -> None:
    with pytest.raises(KafkaError) as caught:
        Settings(BrokerConfig()).describe_topic(image(), "t")
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_broker_describes_only_itself() -> None:
    settings = Settings(load_config({"broker.id": "0", "num.partitions": "4"}))
    entries = settings.describe_broker(image(broker={"log.retention.ms": "5"}), 0)
    names = [e.name for e in entries]
    assert names == sorted(names)
    assert len(names) == len(set(names))
    assert entry(entries, "num.partitions")[1:4] == ("4", ConfigSource.STATIC_BROKER, True)
    assert entry(entries, "node.id").value == entry(entries, "broker.id").value == "0"
    assert {synonym.name for synonym in entry(entries, "broker.id").synonyms} == {"broker.id"}
    assert entry(entries, "listeners").config_type == entry(entries, "advertised.listeners").config_type == 7
    assert entry(entries, "log.retention.ms")[1:4] == ("5", ConfigSource.DYNAMIC_BROKER, False)
    assert entry(entries, "log.retention.minutes")[1:3] == (None, ConfigSource.DEFAULT)
    with pytest.raises(KafkaError) as caught:
        settings.describe_broker(image(), 1)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_describing_one_name_of_a_setting_does_not_return_another() -> None:
    settings = Settings(load_config({"log.retention.hours": "24"}))
    entries = settings.describe_broker(image(), 0)
    assert entry(entries, "log.retention.ms")[1:3] == (None, ConfigSource.DEFAULT)
    assert entry(entries, "log.retention.hours")[1:3] == ("24", ConfigSource.STATIC_BROKER)


def test_cluster_wide_settings_are_described_separately() -> None:
    settings = Settings(BrokerConfig())
    entries = settings.describe_broker(
        image(cluster={"message.max.bytes": "9"}, broker={"log.retention.ms": "5"}), None
    )
    assert [(e.name, e.value, e.source) for e in entries] == [
        ("message.max.bytes", "9", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    ]


def test_secrets_are_never_shown() -> None:
    settings = Settings(load_config({"ssl.keystore.password": "hush", "num.io.threads": "9"}))
    entries = settings.describe_broker(image(cluster={"sasl.jaas.config": "hush"}), 0)
    secret = entry(entries, "ssl.keystore.password")
    assert (secret.value, secret.is_sensitive, secret.config_type) == (None, True, 9)
    assert entry(entries, "num.io.threads")[1:3] == ("9", ConfigSource.STATIC_BROKER)
    assert "hush" not in repr(entries)
    assert "hush" not in repr(settings.static)
    assert "hush" not in repr(settings.describe_broker(image(cluster={"sasl.jaas.config": "hush"}), None))


def test_a_component_reads_its_settings_from_the_brokers_config() -> None:
    """Each setting is declared once: in the config of the component that uses it, or in BrokerConfig."""
    for component in (ReplicaConfig, GroupConfig, TransactionConfig):
        declared = settings_of(component)
        assert declared
        assert issubclass(BrokerConfig, component)
        assert {name: settings_of(BrokerConfig)[name] for name in declared} == declared
    assert BrokerConfig(offsets_retention_minutes=2).offsets_retention_ms == 120_000
    assert repr(GroupConfig(group_max_size=3)) == "GroupConfig(group_max_size=3)"
    with pytest.raises(TypeError, match="GroupConfig has no 'group_size'"):
        GroupConfig(group_size=3)


def test_settings_of_the_authorizer_are_described_only_if_they_are_set() -> None:
    """As in Kafka, where they are not settings of the broker."""

    def described(given: dict[str, str]) -> dict[str, str | None]:
        settings = Settings(load_config(given))
        found = settings.describe_broker(image(), settings.static.node_id)
        return {entry.name: entry.value for entry in found if entry.name in ("super.users", EVERYONE)}

    assert described({}) == {}
    assert described({"super.users": "User:bob"}) == {"super.users": "User:bob"}
    assert described({EVERYONE: "true"}) == {EVERYONE: "true"}


EVERYONE = "allow.everyone.if.no.acl.found"
