"""Settings as Ottla and as Apache Kafka describe and change them."""

import time
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.protocol.messages.alter_configs import AlterConfigsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest
from ottla.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.support.waiting import eventually
from tests.support.wire.raw import Side, differences

pytestmark = pytest.mark.oracle

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32

NOT_THE_SAME = {
    # Each side's own start: addresses, directories, fewer replicas, less work in the background.
    "advertised.listeners": {"value", "source"},
    "broker.id": {"value", "source"},
    "controller.listener.names": {"value", "source"},
    "inter.broker.listener.name": {"value", "source"},
    "log.dir": {"value", "source"},
    "log.dirs": {"value"},
    "log.retention.check.interval.ms": {"value", "source"},
    "node.id": {"value", "source"},
    "offsets.topic.replication.factor": {"value", "source"},
    "transaction.state.log.min.isr": {"value", "source"},
    "transaction.state.log.replication.factor": {"value", "source"},
    # Differences that docs/protocol.md explains.
    "group.coordinator.rebalance.protocols": {"value"},
    "listener.security.protocol.map": {"value", "source", "read_only"},
    "listeners": {"value", "read_only"},
    "min.insync.replicas": {"source"},
    # Mechanisms and logins need a restart here.
    "sasl.enabled.mechanisms": {"read_only"},
    "sasl.jaas.config": {"read_only"},
    "sasl.mechanism.inter.broker.protocol": {"read_only"},
    # Not set here: the first listener is used, and the kind of a file is detected.
    "security.inter.broker.protocol": {"value", "source"},
    "ssl.keystore.type": {"value", "source"},
    "ssl.truststore.type": {"value", "source"},
}
"""Differences between the two descriptions of a broker, by setting."""


def describe(side: Side, kind: int, name: str, *, version: int = 4, keys: list[str] | None = None) -> Any:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys
            )
        ],
        include_synonyms=True,
        include_documentation=version >= 3,
    )
    (result,) = side.connection.ask(request, version).results
    return result


def entries(result: Any) -> dict[str, Any]:
    return {
        config.name: {
            "value": config.value,
            "read_only": config.read_only,
            "source": config.config_source,
            "sensitive": config.is_sensitive,
            "type": config.config_type,
            "synonyms": [(s.name, s.value, s.source) for s in config.synonyms],
        }
        for config in result.configs
    }


@pytest.mark.usefixtures("alone")
def test_a_topics_settings_have_kafkas_names_defaults_and_types(sides: list[Side]) -> None:
    """Spec: R4. DescribeConfigs defaults."""
    ours, theirs = (entries(describe(side, TOPIC, side.topic)) for side in sides)
    ours = {name: entry for name, entry in ours.items() if not name.startswith("ottla.")}
    # Apache Kafka itself sets this one for the cluster where leaders are elected from an extended set (KIP-966).
    for side in (ours, theirs):
        side["min.insync.replicas"] = side["min.insync.replicas"]["value"]
    assert not differences(ours, theirs)


def test_every_setting_of_a_topic_is_documented(sides: list[Side]) -> None:
    for side in sides:
        configs = describe(side, TOPIC, side.topic).configs
        assert all(config.documentation for config in configs), side.name


def test_settings_of_the_topic_have_their_own_source(same: Any) -> None:
    def script(side: Side) -> Any:
        name = side.topic + "-set"
        side.create(name, 1, retention_ms="1234", cleanup_policy="compact,delete")
        return entries(describe(side, TOPIC, name, keys=["retention.ms", "cleanup.policy", "no.such"]))

    same(script)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_chosen_settings_in_every_version(same: Any, version: int) -> None:
    def script(side: Side) -> Any:
        result = describe(side, TOPIC, side.topic, version=version, keys=["max.message.bytes", "segment.bytes"])
        described = entries(result)
        for entry in described.values():
            entry.pop("synonyms")
        return result.error_code, described

    same(script)


@pytest.mark.usefixtures("alone")
def test_broker_settings_are_a_subset_of_kafkas(sides: list[Side]) -> None:
    ours, theirs = (entries(describe(side, BROKER, str(side.node_id))) for side in sides)
    unknown = {name for name in ours if name not in theirs and not name.startswith("ottla.")}
    # Apache Kafka has these but does not show them.
    unknown.discard("producer.id.expiration.check.interval.ms")
    unknown -= {"follower.replication.throttled.rate", "leader.replication.throttled.rate"}
    unknown -= {"allow.everyone.if.no.acl.found", "super.users"}
    assert not unknown, f"Apache Kafka 4.3 has no such broker settings: {sorted(unknown)}"
    common = [name for name in ours if name in theirs]
    assert len(common) > 80
    for name in common:
        hidden = {"synonyms", *NOT_THE_SAME.get(name, ())}
        for entry in (ours[name], theirs[name]):
            for part in hidden:
                entry.pop(part)
    found = differences({name: ours[name] for name in common}, {name: theirs[name] for name in common})
    assert not found, "\n".join(found)


def test_missing_resources(same: Any) -> None:
    def script(side: Side) -> Any:
        return [
            ErrorCode(describe(side, kind, name).error_code).name
            for kind, name in [
                (TOPIC, side.topic + "-not"),
                (TOPIC, "im possible"),
                (BROKER, "99"),
                (BROKER, "word"),
                (LOGGER, "99"),
                (LOGGER, ""),
                (METRICS, ""),
                (METRICS, "m"),
                (GROUP, ""),
                (GROUP, "g"),
                (77, "x"),
            ]
        ]

    same(script)


def alter(side: Side, kind: int, name: str, *changes: tuple[int, str, str | None]) -> Any:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(name=n, config_operation=op, value=v)
                    for op, n, v in changes
                ],
            )
        ]
    )
    (result,) = side.connection.ask(request, 1).responses
    return ErrorCode(result.error_code).name, bool(result.error_message)


SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def settle(side: Side) -> None:
    """Apache Kafka applies changes in order and late: when it knows a new topic, earlier changes are applied."""
    side.create(f"{side.topic}-settled-{time.monotonic_ns()}", 1)


def test_changes_are_made_and_rejected_the_same(same: Any) -> None:
    def script(side: Side) -> Any:
        name = side.topic
        outcomes = [
            alter(side, TOPIC, name, (SET, "retention.ms", "5")),
            alter(side, TOPIC, name, (SET, "retention.ms", "five")),
            alter(side, TOPIC, name, (SET, "retention.ms", "-2")),
            alter(side, TOPIC, name, (SET, "retention.ms", None)),
            alter(side, TOPIC, name, (SET, "no.such", "5")),
            alter(side, TOPIC, name, (SET, "compression.type", "zip")),
            alter(side, TOPIC, name, (SET, "cleanup.policy", "compact,delete")),
            alter(side, TOPIC, name, (SUBTRACT, "cleanup.policy", "delete")),
            alter(side, TOPIC, name, (APPEND, "cleanup.policy", "nonsense")),
            alter(side, TOPIC, name, (APPEND, "retention.ms", "5")),
            alter(side, TOPIC, name, (DELETE, "segment.bytes", None)),
            alter(side, TOPIC, name, (SET, "segment.ms", "5"), (SET, "segment.ms", "6")),
            alter(side, TOPIC, name, (SET, "segment.ms", "7"), (SET, "segment.bytes", "many")),
            alter(side, TOPIC, name + "-not", (SET, "retention.ms", "5")),
            alter(side, TOPIC, "", (SET, "retention.ms", "5")),
            alter(side, BROKER, "99", (SET, "log.retention.ms", "5")),
            alter(side, BROKER, str(side.node_id), (SET, "node.id", "5")),
            alter(side, BROKER, str(side.node_id), (SET, "queued.max.requests", "5")),
            alter(side, BROKER, str(side.node_id), (SET, "num.io.threads", "five")),
            alter(side, BROKER, str(side.node_id), (SET, "log.retention.ms", "0")),
            alter(side, BROKER, str(side.node_id), (SET, "max.connections", "-1")),
            alter(side, BROKER, str(side.node_id), (APPEND, "max.connections", "5")),
            alter(side, BROKER, "", (SET, "advertised.listeners", "PLAINTEXT://here:9092")),
            alter(side, TOPIC, name, (SET, "remote.storage.enable", "true")),
            alter(side, TOPIC, name, (SET, "remote.storage.enable", "false")),
            alter(side, TOPIC, name, (SET, "remote.log.copy.disable", "true")),
            alter(side, TOPIC, name, (SET, "remote.log.delete.on.disable", "nonsense")),
            alter(side, TOPIC, name, (SET, "local.retention.ms", "-3")),
            alter(side, TOPIC, name, (SET, "local.retention.bytes", "1000")),
            alter(side, TOPIC, name, (SET, "leader.replication.throttled.replicas", "none")),
            alter(side, TOPIC, name, (SET, "follower.replication.throttled.replicas", "0:1, 1:1")),
            alter(side, BROKER, "", (SET, "leader.replication.throttled.rate", "5000000")),
            alter(side, BROKER, "", (SET, "follower.replication.throttled.rate", "five")),
            alter(side, BROKER, "", (SET, "follower.replication.throttled.rate", "-1")),
            alter(side, BROKER, "", (DELETE, "leader.replication.throttled.rate", None)),
            alter(side, 77, "x", (SET, "a", "b")),
            alter(side, GROUP, "", (SET, "consumer.session.timeout.ms", "50000")),
            alter(side, GROUP, "g", (SET, "no.such", "1")),
            alter(side, METRICS, "", (SET, "interval.ms", "1000")),
            alter(side, METRICS, "m", (SET, "no.such", "1")),
            alter(side, LOGGER, "99", (SET, "root", "INFO")),
            alter(side, LOGGER, "", (SET, "root", "INFO")),
            alter(side, LOGGER, str(side.node_id), (SET, "root", "LOUD")),
            alter(side, LOGGER, str(side.node_id), (SET, "no.such", "INFO")),
            alter(side, LOGGER, str(side.node_id), (DELETE, "root", None)),
            alter(side, LOGGER, str(side.node_id), (APPEND, "root", "INFO")),
        ]
        settle(side)
        settings = entries(describe(side, TOPIC, name))
        names = [n for n, entry in settings.items() if entry["source"] == 1]
        return outcomes, {n: {**settings[n], "synonyms": settings[n]["synonyms"][0]} for n in sorted(names)}

    same(script)


def test_alter_configs_replaces_all_settings(same: Any) -> None:
    def script(side: Side) -> Any:
        name = side.topic + "-whole"
        side.create(name, 1, retention_ms="1234", max_message_bytes="5000")
        request = AlterConfigsRequest(
            resources=[
                AlterConfigsRequest.AlterConfigsResource(
                    resource_type=TOPIC,
                    resource_name=name,
                    configs=[AlterConfigsRequest.AlterableConfig(name="segment.ms", value="60000")],
                )
            ]
        )
        (result,) = side.connection.ask(request, 2).responses
        settle(side)
        described = entries(describe(side, TOPIC, name))
        names = ("retention.ms", "max.message.bytes", "segment.ms")
        return result.error_code, {n: (described[n]["value"], described[n]["source"]) for n in names}

    same(script)


@pytest.mark.usefixtures("alone")
def test_broker_defaults_apply_to_topics(same: Any) -> None:
    """A cluster-wide setting applies to topics without their own, and shows up in the list of synonyms."""

    def script(side: Side) -> Any:
        def described() -> Any:
            return entries(describe(side, TOPIC, side.topic, keys=["file.delete.delay.ms"]))

        def is_set() -> bool:
            # Cluster-wide settings reach Kafka's topics a moment after a new topic is visible.
            return bool(described()["file.delete.delay.ms"]["value"] == "61000")

        outcomes = [alter(side, BROKER, "", (SET, "log.segment.delete.delay.ms", "61000"))]
        try:
            eventually(is_set)
            outcomes.append(described())
        finally:
            outcomes.append(alter(side, BROKER, "", (DELETE, "log.segment.delete.delay.ms", None)))
            eventually(lambda: not is_set())
        return outcomes

    same(script)


@pytest.mark.usefixtures("alone")
def test_levels_of_loggers_are_described_and_changed(same: Any) -> None:
    def script(side: Side) -> Any:
        def root() -> Any:
            return entries(describe(side, LOGGER, str(side.node_id), keys=["root"]))

        before = root()["root"]["value"]
        try:
            return [alter(side, LOGGER, str(side.node_id), (SET, "root", "ERROR")), root()]
        finally:
            alter(side, LOGGER, str(side.node_id), (SET, "root", before))

    same(script)


@pytest.mark.parametrize("kinds", [[BROKER], [LOGGER], [BROKER, LOGGER], [METRICS], [GROUP], [77]])
def test_config_resources_are_listed_the_same(same: Any, kinds: list[int]) -> None:
    def script(side: Side) -> Any:
        answer = side.connection.ask(ListConfigResourcesRequest(resource_types=kinds), 1)
        found = [(r.resource_type, r.resource_name == str(side.node_id)) for r in answer.config_resources]
        return answer.error_code, sorted(found)

    same(script)
