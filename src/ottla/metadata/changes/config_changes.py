"""The controller's rules for settings: AlterConfigs and IncrementalAlterConfigs. Pure.

Each resource is changed atomically: if one of its settings is rejected, none of them changes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.checks import number_from_text
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.changes.topic_changes import Rules, check_topic_name
from ottla.metadata.controller.decisions import Decision, Put
from ottla.metadata.controller.elections import put_roles, roles_of
from ottla.metadata.image import ClusterImage
from ottla.protocol.wire_values import ConfigOperation, ConfigResourceType
from ottla.types import INT32_MAX

WITHOUT_SETTINGS: Mapping[int, tuple[ErrorCode, str]] = {
    ConfigResourceType.GROUP: (
        ErrorCode.INVALID_CONFIG,
        "Groups of the classic protocol, the only one that this broker serves, have no settings.",
    ),
    ConfigResourceType.CLIENT_METRICS: (
        ErrorCode.INVALID_REQUEST,
        "This broker does not collect metrics of clients.",
    ),
}
"""Resources that exist in Kafka, but have no settings here: the error for setting one, and the reason."""


class ConfigChange(NamedTuple):
    """One setting of one resource. The legacy AlterConfigs supports only SET."""

    name: str
    value: str | None
    operation: int = ConfigOperation.SET


class ResourceChange(NamedTuple):
    resource_type: int
    name: str
    """A topic, a broker id as text, or empty for all brokers."""
    changes: Sequence[ConfigChange]


MIN_ISR = "min.insync.replicas"


class ResourceResult(NamedTuple):
    resource_type: int
    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def alter_configs(
    image: ClusterImage,
    requests: Sequence[ResourceChange],
    rules: Rules,
    broker_id: int,
    *,
    incremental: bool,
    validate_only: bool = False,
) -> Decision[list[ResourceResult]]:
    """With `incremental`, changes only the given settings; otherwise they replace all previous ones."""
    results = []
    changes: list[Put] = []
    times = Counter((request.resource_type, request.name) for request in requests)
    for request in requests:
        kind, name, _ = request
        try:
            if times[kind, name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            change = _altered(image, request, rules, broker_id, incremental)
        except KafkaError as error:
            results.append(ResourceResult(kind, name, error.code, error.detail))
        else:
            results.append(ResourceResult(kind, name))
            if change is not None:
                changes.append(change)
            if any(setting.name == MIN_ISR for setting in request.changes) or not incremental:
                changes += _without_eligible_leaders(image, request)
    # Two resources of one request may affect the same partition.
    return Decision(results, () if validate_only else tuple({change.key: change for change in changes}.values()))


def _without_eligible_leaders(image: ClusterImage, request: ResourceChange) -> list[Put]:
    """When min.insync.replicas changes, records may be committed that eligible leader replicas do not have (KIP-966).

    So the same commit clears the eligible leader replicas.
    """
    kind, name, _ = request
    if kind not in (ConfigResourceType.TOPIC, ConfigResourceType.BROKER):
        return []
    return [
        put_roles(topic, partition, roles_of(partition)._replace(elr=()), image.controller_epoch)
        for topic in image.topics.values()
        if kind == ConfigResourceType.BROKER or topic.name == name
        for partition in topic.partitions
        if partition.elr
    ]


def _altered(
    image: ClusterImage, request: ResourceChange, rules: Rules, broker_id: int, incremental: bool
) -> Put | None:
    """The change to store; None if there is nothing to store."""
    kind, name, changes = request
    check_form(changes)
    if kind == ConfigResourceType.TOPIC:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_topic_name(name)
        topic = image.topics.get(name)
        configs = _changed(image, request, {} if topic is None else topic.configs, rules, incremental)
        rules.check_topic_configs(image, configs)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return Put(records.topic_config_key(name), records.write_config(configs))
    if kind == ConfigResourceType.BROKER:
        if name:
            check_broker_name(name, broker_id)
            name = str(broker_id)  # the key of its settings, also if the request has a sign or leading zeros
        before = image.broker_configs.get(name, {})
        configs = _changed(image, request, before, rules, incremental)
        # Validate only the settings in this request: those accepted earlier stay valid.
        touched = {change.name for change in changes}
        rules.check_broker_configs(name, {n: v for n, v in configs.items() if n in touched})
        rules.check_listeners(image, name, configs)
        return Put(records.broker_config_key(name), records.write_config(configs))
    if kind in WITHOUT_SETTINGS:
        check_resource_name(kind, name)
        error, reason = WITHOUT_SETTINGS[kind]
        given = [change.name for change in changes if change.operation != ConfigOperation.DELETE]
        if given:
            raise KafkaError(error, f"Unknown config name: {', '.join(given)}. {reason}")
        return None
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def check_resource_name(kind: int, name: str) -> None:
    """Raises INVALID_REQUEST for an empty name: there are no defaults for all groups, or all subscriptions."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"A {ConfigResourceType(kind).name} resource must have a name.")


def check_broker_name(name: str, broker_id: int) -> None:
    """Raises INVALID_REQUEST unless `name` is this broker's id: a broker handles only its own settings."""
    if broker_id_of(name, "Node id") != broker_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {broker_id}, but received {name}")


def broker_id_of(name: str, what: str) -> int:
    """The id that is the name of a broker's resource. `what` is how the error names it: Kafka has two texts."""
    named = None if name != name.strip() else number_from_text(name)
    if named is None or not -INT32_MAX <= named <= INT32_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{what} must be an integer, but it is: {name}")
    return named


def check_form(changes: Sequence[ConfigChange]) -> None:
    if any(times > 1 for times in Counter(change.name for change in changes).values()):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    missing = [c.name for c in changes if c.value is None and c.operation != ConfigOperation.DELETE]
    if missing:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}")
    for change in changes:
        if not 0 <= change.operation <= ConfigOperation.SUBTRACT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.operation}")


def _changed(
    image: ClusterImage, request: ResourceChange, before: Mapping[str, str], rules: Rules, incremental: bool
) -> dict[str, str]:
    configs = dict(before) if incremental else {}
    for name, value, operation in request.changes:
        if operation == ConfigOperation.DELETE:
            configs.pop(name, None)
        elif operation == ConfigOperation.SET:
            assert value is not None
            configs[name] = value
        else:
            assert value is not None
            default = rules.list_default(image, request.resource_type, name)
            if default is None:
                verb = "append" if operation == ConfigOperation.APPEND else "subtract"
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Can't {verb} to key {name} because its type is not LIST.")
            current = _items(configs[name]) if name in configs else list(default)
            given = _items(value)
            if operation == ConfigOperation.APPEND:
                current += [item for item in given if item not in current]
            else:
                current = [item for item in current if item not in given]
            configs[name] = ",".join(current)
    return configs


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]
