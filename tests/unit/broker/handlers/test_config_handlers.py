"""The APIs about settings: of topics, brokers, loggers and the other resources that have them."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.metadata.changes.topic_changes import NewTopic
from ottla.protocol.messages.alter_configs import AlterConfigsRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from ottla.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.support.worlds.admin_world import AdminWorld

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2
CREATE = CreateTopicsRequest.CreatableTopic


@pytest.fixture
def world() -> Iterator[AdminWorld]:
    with AdminWorld() as world:
        yield world


def create(world: AdminWorld, *topics: NewTopic) -> None:
    for result in world.runner.run(world.services.metadata.changes.create_topics(topics)):
        assert result.error == ErrorCode.NONE, result


# DescribeConfigs


def describe(
    world: AdminWorld, version: int, kind: int, name: str, keys: list[str] | None = None, **flags: bool
) -> DescribeConfigsResponse.DescribeConfigsResult:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    result: DescribeConfigsResponse.DescribeConfigsResult
    (result,) = world.ask(DescribeConfigsRequest(resources=[resource], **flags), version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs_of_a_topic_in_every_version(world: AdminWorld, version: int) -> None:
    create(world, NewTopic("a", configs=[("retention.ms", "5")]))
    result = describe(world, version, TOPIC, "a", include_synonyms=True)
    assert result.error_code == 0
    assert result.error_message is None
    configs = {config.name: config for config in result.configs}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == ("delete", 5)
    assert [(s.name, s.value, s.source) for s in configs["cleanup.policy"].synonyms] == [
        ("log.cleanup.policy", "delete", 5)
    ]
    assert not configs["retention.ms"].read_only
    assert not configs["retention.ms"].is_sensitive
    if version >= 3:
        assert configs["retention.ms"].config_type == 5
        assert configs["retention.ms"].documentation is None, "not asked for"
        described = describe(world, version, TOPIC, "a", ["retention.ms"], include_documentation=True)
        assert described.configs[0].documentation
        assert described.configs[0].synonyms == [], "not asked for"


def test_describe_configs_can_be_limited_to_some_keys(world: AdminWorld) -> None:
    create(world, NewTopic("a"))
    result = describe(world, 4, TOPIC, "a", ["retention.ms", "no.such.key"])
    assert [config.name for config in result.configs] == ["retention.ms"]
    everything = describe(world, 4, TOPIC, "a", None)
    assert len(describe(world, 4, TOPIC, "a", []).configs) == len(everything.configs) > 20


def test_a_resource_that_is_named_twice_is_described_once(world: AdminWorld) -> None:
    """A small request must not cause a response of gigabytes."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER, resource_name="0", configuration_keys=None
    )
    results = world.ask(DescribeConfigsRequest(resources=[resource] * 1000), 4).results
    assert len(results) == 1


def test_topics_described_together_have_their_own_settings(world: AdminWorld) -> None:
    create(world, NewTopic("plain"), NewTopic("short", configs=[("retention.ms", "5")]), NewTopic("another"))
    names = ["plain", "short", "another", "missing"]
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=TOPIC, resource_name=name, configuration_keys=["retention.ms"]
        )
        for name in names
    ]
    resources[2].configuration_keys = ["cleanup.policy", "retention.ms"]
    results = world.ask(DescribeConfigsRequest(resources=resources), 4).results
    assert [(result.resource_name, [(c.name, c.value) for c in result.configs]) for result in results] == [
        ("plain", [("retention.ms", "604800000")]),
        ("short", [("retention.ms", "5")]),
        ("another", [("cleanup.policy", "delete"), ("retention.ms", "604800000")]),
        ("missing", []),
    ]


def test_describe_configs_of_brokers(world: AdminWorld) -> None:
    mine = {config.name: config for config in describe(world, 4, BROKER, "0").configs}
    assert (mine["node.id"].value, mine["node.id"].config_source, mine["node.id"].read_only) == ("0", 4, True)
    assert not mine["log.retention.ms"].read_only
    assert describe(world, 4, BROKER, "").configs == [], "nothing is set for all brokers"


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "1", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER, "0_0", ErrorCode.INVALID_REQUEST),
        (BROKER, "٠", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (LOGGER, "", ErrorCode.INVALID_REQUEST),
        (LOGGER, "1", ErrorCode.INVALID_REQUEST),
        (METRICS, "", ErrorCode.INVALID_REQUEST),
        (0, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_resource_that_cannot_be_described_has_an_error(
    world: AdminWorld, kind: int, name: str, expected: ErrorCode
) -> None:
    result = describe(world, 4, kind, name)
    assert result.error_code == expected
    assert result.error_message
    assert result.configs == []


@pytest.mark.parametrize(("kind", "name"), [(GROUP, "g"), (METRICS, "m")])
def test_groups_and_client_metrics_have_no_settings(world: AdminWorld, kind: int, name: str) -> None:
    """Kafka has settings for groups of protocols, and for metrics, that are not served here."""
    result = describe(world, 4, kind, name)
    assert (result.error_code, result.error_message, result.configs) == (ErrorCode.NONE, None, [])


def alter(
    world: AdminWorld, kind: int, resource_name: str, *changes: tuple[int, str, str | None], dry: bool = False
) -> Any:
    """The error and its message after (operation, setting, value)."""
    config = IncrementalAlterConfigsRequest.AlterableConfig
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=resource_name,
        configs=[
            config(name=setting, config_operation=operation, value=value) for operation, setting, value in changes
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry)
    (result,) = world.ask(request, 1).responses
    assert (result.resource_type, result.resource_name) == (kind, resource_name)
    return ErrorCode(result.error_code), result.error_message


def test_settings_of_groups_and_client_metrics_are_refused_with_the_reason(world: AdminWorld) -> None:
    error, message = alter(world, GROUP, "g", (SET, "consumer.session.timeout.ms", "50000"))
    assert error == ErrorCode.INVALID_CONFIG
    assert "consumer.session.timeout.ms" in message
    assert "classic protocol" in message
    error, message = alter(world, METRICS, "m", (SET, "interval.ms", "1000"))
    assert error == ErrorCode.INVALID_REQUEST
    assert "does not collect metrics" in message
    assert alter(world, GROUP, "", (SET, "consumer.session.timeout.ms", "50000"))[0] == ErrorCode.INVALID_REQUEST
    reset = (DELETE, "consumer.session.timeout.ms", None)
    assert alter(world, GROUP, "g", reset) == (ErrorCode.NONE, None), "it is not set"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger of ours for one test; levels are reset after it."""
    loggers = {name: logging.getLogger(name) for name in ("root", "ottla", "ottla.one.test")}
    levels = {name: each.level for name, each in loggers.items()}
    yield loggers["ottla.one.test"]
    for name, each in loggers.items():
        each.setLevel(levels[name])


def test_levels_of_loggers_are_described_and_changed(world: AdminWorld, logger: logging.Logger) -> None:
    """KIP-412."""

    def level() -> str:
        (found,) = [config for config in describe(world, 4, LOGGER, "0").configs if config.name == logger.name]
        assert (found.config_source, found.config_type, found.read_only, found.synonyms) == (6, 0, False, [])
        return str(found.value)

    logging.getLogger("ottla").setLevel(logging.WARNING)
    assert level() == "WARN", "inherited"
    for name in ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"):
        assert alter(world, LOGGER, "0", (SET, logger.name, name)) == (ErrorCode.NONE, None)
        assert level() == name
    assert not logger.isEnabledFor(logging.ERROR)
    assert alter(world, LOGGER, "0", (SET, logger.name, "DEBUG"), dry=True) == (ErrorCode.NONE, None)
    assert level() == "FATAL", "only validated"
    assert alter(world, LOGGER, "0", (DELETE, logger.name, None)) == (ErrorCode.NONE, None)
    assert level() == "WARN", "inherited again"
    names = {config.name for config in describe(world, 4, LOGGER, "0").configs}
    assert {"root", "ottla", "ottla.broker"} <= names
    assert not {name for name in names if not name.startswith("ottla") and name != "root"}, "libraries are left alone"


@pytest.mark.parametrize(
    ("broker", "changes", "expected"),
    [
        ("0", [(SET, "ottla.one.test", "LOUD")], ErrorCode.INVALID_CONFIG),
        ("0", [(SET, "ottla.one.test", "debug")], ErrorCode.INVALID_CONFIG),
        ("0", [(SET, "ottla.no.such", "INFO")], ErrorCode.INVALID_CONFIG),
        ("0", [(DELETE, "ottla.no.such", None)], ErrorCode.INVALID_CONFIG),
        ("0", [(SET, "ottla.one.test", None)], ErrorCode.INVALID_REQUEST),
        ("0", [(APPEND, "ottla.one.test", "INFO")], ErrorCode.INVALID_REQUEST),
        ("0", [(DELETE, "root", None)], ErrorCode.INVALID_REQUEST),
        ("0", [(SET, "ottla.one.test", "INFO"), (SET, "ottla.one.test", "WARN")], ErrorCode.INVALID_REQUEST),
        ("0", [(SET, "ottla.one.test", "FATAL"), (SET, "ottla.no.such", "INFO")], ErrorCode.INVALID_CONFIG),
        ("7", [(SET, "ottla.one.test", "FATAL")], ErrorCode.INVALID_REQUEST),
        ("", [(SET, "ottla.one.test", "FATAL")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_level_that_cannot_be_set_changes_nothing(
    world: AdminWorld,
    logger: logging.Logger,
    broker: str,
    changes: list[tuple[int, str, str | None]],
    expected: ErrorCode,
) -> None:
    error, message = alter(world, LOGGER, broker, *changes)
    assert error == expected
    assert message
    assert logger.level == logging.NOTSET


# AlterConfigs and IncrementalAlterConfigs


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_all(world: AdminWorld, version: int) -> None:
    create(world, NewTopic("a", configs=[("retention.ms", "5")]))
    resource = AlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="a",
        configs=[AlterConfigsRequest.AlterableConfig(name="max.message.bytes", value="99")],
    )
    (result,) = world.ask(AlterConfigsRequest(resources=[resource]), version).responses
    assert (result.error_code, result.error_message, result.resource_type, result.resource_name) == (0, None, 2, "a")
    assert world.image.topics["a"].configs == {"max.message.bytes": "99"}
    resource.configs[0].value = None
    (result,) = world.ask(AlterConfigsRequest(resources=[resource]), version).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert result.error_message


@pytest.mark.parametrize("version", range(2))
def test_incremental_alter_configs_changes_single_settings(world: AdminWorld, version: int) -> None:
    create(world, NewTopic("a", configs=[("retention.ms", "5"), ("flush.ms", "6")]))
    config = IncrementalAlterConfigsRequest.AlterableConfig
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    request = IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=TOPIC,
                resource_name="a",
                configs=[
                    config(name="retention.ms", config_operation=1, value=None),
                    config(name="max.message.bytes", config_operation=0, value="9"),
                    config(name="cleanup.policy", config_operation=2, value="compact"),
                ],
            ),
            resource(
                resource_type=BROKER,
                resource_name="",
                configs=[config(name="log.retention.ms", config_operation=0, value="77")],
            ),
            resource(
                resource_type=BROKER,
                resource_name="0",
                configs=[config(name="num.partitions", config_operation=0, value="7")],
            ),
        ]
    )
    response = world.ask(request, version)
    assert [r.error_code for r in response.responses] == [0, 0, ErrorCode.INVALID_REQUEST]
    assert "num.partitions" in response.responses[2].error_message
    assert world.image.topics["a"].configs == {
        "flush.ms": "6",
        "max.message.bytes": "9",
        "cleanup.policy": "delete,compact",
    }
    retention = describe(world, 4, TOPIC, "a", ["retention.ms"]).configs[0]
    assert (retention.value, retention.config_source) == ("77", 3)
    assert [c.name for c in describe(world, 4, BROKER, "").configs] == ["log.retention.ms"]


def test_altering_configs_supports_validate_only(world: AdminWorld) -> None:
    create(world, NewTopic("a"))
    resource = AlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="a",
        configs=[AlterConfigsRequest.AlterableConfig(name="retention.ms", value="5")],
    )
    assert world.ask(AlterConfigsRequest(resources=[resource], validate_only=True), 2).responses[0].error_code == 0
    assert world.image.topics["a"].configs == {}


# ListConfigResources


def test_config_resources_are_listed(world: AdminWorld) -> None:
    create(world, NewTopic("a"))
    assert world.ask(ListConfigResourcesRequest(), 0).config_resources == [], "v0 knows client metrics only"

    def listed(*types: int) -> list[tuple[str, int]]:
        response = world.ask(ListConfigResourcesRequest(resource_types=list(types)), 1)
        assert response.error_code == 0
        return [(r.resource_name, r.resource_type) for r in response.config_resources]

    assert listed() == [("a", TOPIC), ("0", BROKER), ("0", LOGGER)]
    assert listed(TOPIC) == [("a", TOPIC)]
    assert listed(LOGGER) == [("0", LOGGER)]
    assert listed(GROUP, METRICS) == []
    response = world.ask(ListConfigResourcesRequest(resource_types=[99]), 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
