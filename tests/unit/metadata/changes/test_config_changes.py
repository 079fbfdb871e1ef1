"""AlterConfigs and IncrementalAlterConfigs: what they change and what they reject."""

from typing import TYPE_CHECKING

import pytest

from ottla.broker.settings.config import Settings, load_config
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.changes.config_changes import (
    ConfigChange,
    ResourceChange,
    alter_configs,
    check_broker_name,
)
from ottla.metadata.controller.decisions import Put
from ottla.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla.protocol.wire_values import ConfigOperation, ConfigResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER


class World:
    """A topic `t`, a broker 0, and calls to alter their settings."""

    def __init__(self, **topic_configs: str) -> None:
        self.settings = Settings(load_config({"node.id": "0"}))
        self.topic_configs: Mapping[str, str] = {k.replace("_", "."): v for k, v in topic_configs.items()}
        self.broker_configs: dict[str, Mapping[str, str]] = {}

    @property
    def image(self) -> ClusterImage:
        topic = TopicImage("t", b"t" * 16, (PartitionImage(0, 0, 0, 0, (0,), (0,)),), self.topic_configs)
        return ClusterImage(topics={"t": topic}, broker_configs=dict(self.broker_configs))

    def alter(
        self,
        *changes: ConfigChange,
        kind: int = TOPIC,
        name: str = "t",
        incremental: bool = True,
        validate_only: bool = False,
    ) -> ErrorCode:
        decision = alter_configs(
            self.image,
            [ResourceChange(kind, name, changes)],
            self.settings,
            0,
            incremental=incremental,
            validate_only=validate_only,
        )
        for change in decision.changes:
            assert isinstance(change, Put)
            configs = records.read_config(change.key, change.value)
            if kind == TOPIC:
                assert change.key == "/config/topics/t"
                self.topic_configs = configs
            else:
                assert change.key == f"/config/brokers/{name or '<default>'}"
                self.broker_configs[name] = configs
        (result,) = decision.reply
        self.message = result.message or ""
        return result.error


def test_set_and_delete_change_only_the_named_settings() -> None:
    world = World(retention_ms="1", max_message_bytes="2")
    assert world.alter(ConfigChange("retention.ms", "5"), ConfigChange("segment.ms", "7")) == ErrorCode.NONE
    assert world.topic_configs == {"retention.ms": "5", "max.message.bytes": "2", "segment.ms": "7"}
    assert world.alter(ConfigChange("retention.ms", None, DELETE), ConfigChange("flush.ms", "", DELETE)) == 0
    assert world.topic_configs == {"max.message.bytes": "2", "segment.ms": "7"}


def test_alter_configs_replaces_all_settings() -> None:
    world = World(retention_ms="1", max_message_bytes="2")
    assert world.alter(ConfigChange("segment.ms", "7"), incremental=False) == ErrorCode.NONE
    assert world.topic_configs == {"segment.ms": "7"}
    assert world.alter(incremental=False) == ErrorCode.NONE
    assert world.topic_configs == {}


def test_append_and_subtract_start_from_the_default_list() -> None:
    world = World()
    assert world.alter(ConfigChange("cleanup.policy", "compact", APPEND)) == ErrorCode.NONE
    assert world.topic_configs == {"cleanup.policy": "delete,compact"}
    assert world.alter(ConfigChange("cleanup.policy", "compact,delete", APPEND)) == ErrorCode.NONE
    assert world.topic_configs == {"cleanup.policy": "delete,compact"}, "no item twice"
    assert world.alter(ConfigChange("cleanup.policy", "delete", SUBTRACT)) == ErrorCode.NONE
    assert world.topic_configs == {"cleanup.policy": "compact"}
    assert world.alter(ConfigChange("cleanup.policy", "delete", SUBTRACT)) == ErrorCode.NONE


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
@pytest.mark.parametrize("name", ["retention.ms", "compression.type", "no.such.thing"])
def test_append_and_subtract_require_a_list_setting(operation: int, name: str) -> None:
    world = World()
    assert world.alter(ConfigChange(name, "1", operation)) == ErrorCode.INVALID_CONFIG
    assert "not LIST" in world.message


def test_appended_values_are_validated() -> None:
    assert World().alter(ConfigChange("cleanup.policy", "shred", APPEND)) == ErrorCode.INVALID_CONFIG


def test_one_invalid_setting_rejects_the_whole_resource() -> None:
    world = World(retention_ms="1")
    assert world.alter(ConfigChange("segment.ms", "7"), ConfigChange("retention.ms", "x")) == ErrorCode.INVALID_CONFIG
    assert world.topic_configs == {"retention.ms": "1"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([ConfigChange("retention.ms", None)], ErrorCode.INVALID_REQUEST),
        ([ConfigChange("cleanup.policy", None, APPEND)], ErrorCode.INVALID_REQUEST),
        ([ConfigChange("retention.ms", "1", 4)], ErrorCode.INVALID_REQUEST),
        ([ConfigChange("retention.ms", "1", -1)], ErrorCode.INVALID_REQUEST),
        ([ConfigChange("retention.ms", "1"), ConfigChange("retention.ms", "2")], ErrorCode.INVALID_REQUEST),
        ([ConfigChange("retention.sm", "1")], ErrorCode.INVALID_CONFIG),
        ([ConfigChange("", "1")], ErrorCode.INVALID_CONFIG),
    ],
)
def test_malformed_changes_are_rejected(changes: list[ConfigChange], expected: ErrorCode) -> None:
    world = World()
    assert world.alter(*changes) == expected
    assert world.message
    assert world.topic_configs == {}


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (TOPIC, "unknown", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", ErrorCode.INVALID_REQUEST),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "1", ErrorCode.INVALID_REQUEST),
        (BROKER, "zero", ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.GROUP, "g", ErrorCode.INVALID_CONFIG),
        (ConfigResourceType.GROUP, "", ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.CLIENT_METRICS, "m", ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.BROKER_LOGGER, "0", ErrorCode.INVALID_REQUEST),
        (0, "", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_resources_that_cannot_be_altered(kind: int, name: str, expected: ErrorCode) -> None:
    assert World().alter(ConfigChange("retention.ms", "1"), kind=kind, name=name) == expected


def test_a_resource_named_twice_is_rejected_both_times() -> None:
    world = World()
    request = ResourceChange(TOPIC, "t", [ConfigChange("retention.ms", "1")])
    decision = alter_configs(world.image, [request, request], world.settings, 0, incremental=True)
    assert [result.error for result in decision.reply] == [ErrorCode.INVALID_REQUEST] * 2
    assert not decision.changes


def test_validate_only_changes_nothing() -> None:
    world = World()
    assert world.alter(ConfigChange("retention.ms", "1"), validate_only=True) == ErrorCode.NONE
    assert world.topic_configs == {}
    assert world.alter(ConfigChange("retention.ms", "x"), validate_only=True) == ErrorCode.INVALID_CONFIG


# Brokers


def test_dynamic_settings_can_be_set_for_one_broker_and_for_all() -> None:
    world = World()
    assert world.alter(ConfigChange("log.retention.ms", "60000"), kind=BROKER, name="0") == ErrorCode.NONE
    assert world.alter(ConfigChange("message.max.bytes", "99"), kind=BROKER, name="") == ErrorCode.NONE
    assert world.broker_configs == {"0": {"log.retention.ms": "60000"}, "": {"message.max.bytes": "99"}}
    config = world.settings.topic_config(world.image, "t")
    assert (config.retention_ms, config.max_message_bytes) == (60_000, 99)
    assert world.alter(ConfigChange("log.retention.ms", None, DELETE), kind=BROKER, name="0") == ErrorCode.NONE
    assert world.settings.topic_config(world.image, "t").retention_ms == 604_800_000


@pytest.mark.parametrize("name", ["1_0", "١٠", " 10", "9" * 5000, str(2**31), "ten", "0x0a"])
def test_the_name_of_a_broker_is_its_id_in_ascii_digits(name: str) -> None:
    with pytest.raises(KafkaError, match="Node id must be an integer, but it is: "):
        check_broker_name(name, 10)


def test_settings_are_stored_under_the_id_of_the_broker_however_it_is_written() -> None:
    request = ResourceChange(BROKER, "+00", [ConfigChange("log.retention.ms", "60000")])
    decision = alter_configs(World().image, [request], Settings(load_config({"node.id": "0"})), 0, incremental=True)
    assert decision.reply[0].error == ErrorCode.NONE
    assert [change.key for change in decision.changes] == ["/config/brokers/0"]


@pytest.mark.parametrize("name", ["node.id", "broker.id", "listeners", "num.partitions", "log.dirs"])
def test_a_read_only_setting_cannot_be_altered(name: str) -> None:
    world = World()
    assert world.alter(ConfigChange(name, "1"), kind=BROKER, name="0") == ErrorCode.INVALID_REQUEST
    assert "Cannot update these configs dynamically" in world.message
    assert name in world.message
    assert "restart" in world.message
    assert world.broker_configs == {}


def test_invalid_values_and_unknown_broker_settings_are_rejected() -> None:
    world = World()
    assert world.alter(ConfigChange("message.max.bytes", "x"), kind=BROKER, name="") == ErrorCode.INVALID_REQUEST
    assert world.alter(ConfigChange("message.max.byte", "1"), kind=BROKER, name="") == ErrorCode.INVALID_CONFIG
    assert "did you mean message.max.bytes" in world.message
    assert world.alter(ConfigChange("num.io.threads", "4"), kind=BROKER, name="") == ErrorCode.NONE
    secret = ConfigChange("ssl.keystore.password", "hush")
    assert world.alter(secret, kind=BROKER, name="") == ErrorCode.INVALID_REQUEST, "each broker has its own"


@pytest.mark.parametrize(
    ("value", "accepted"),
    [("*", True), ("0:1,1:0", True), ("zz", False), ("0:", False), ("*,0:1", False), ("٣:1", False)],
)
def test_throttled_replicas_are_stored_if_valid(value: str, accepted: bool) -> None:
    outcome = World().alter(ConfigChange("leader.replication.throttled.replicas", value))
    assert outcome == (ErrorCode.NONE if accepted else ErrorCode.INVALID_CONFIG)


def test_a_list_setting_of_a_broker_can_be_appended_to() -> None:
    world = World()
    append = ConfigChange("log.cleanup.policy", "compact", APPEND)
    assert world.alter(append, kind=BROKER, name="") == ErrorCode.NONE
    assert world.broker_configs[""] == {"log.cleanup.policy": "delete,compact"}
    assert world.settings.topic_config(world.image, "t").cleanup_policy == ("delete", "compact")


def test_a_changed_min_insync_replicas_ends_the_eligibility_of_replicas_outside_the_in_sync_set() -> None:
    """KIP-966: with a lower minimum, records are committed that they do not have. Spec: B10."""
    partition = PartitionImage(0, 0, 3, 5, (0, 1), (0,), (1,))
    image = ClusterImage(topics={name: TopicImage(name, name.encode() * 16, (partition,), {}) for name in "tu"})

    def cleared(kind: int, name: str, setting: str) -> list[str]:
        request = ResourceChange(kind, name, [ConfigChange(setting, "1")])
        settings = Settings(load_config({"node.id": "0"}))
        decision = alter_configs(image, [request], settings, 0, incremental=True)
        assert decision.reply[0].error == ErrorCode.NONE
        states = [change for change in decision.changes if change.key.endswith("/state")]
        assert all(isinstance(put, Put) and put.value == records.write_partition_state(0, 3, (0,)) for put in states)
        return [change.key.split("/")[3] for change in states]

    assert cleared(TOPIC, "t", "min.insync.replicas") == ["t"]
    assert cleared(TOPIC, "t", "retention.ms") == []
    assert cleared(BROKER, "", "min.insync.replicas") == ["t", "u"]
