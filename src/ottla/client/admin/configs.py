"""Admin calls about configs: of topics, brokers, groups and the other resources that have them."""

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.checks import unsigned_from_text
from ottla.client.admin.requests import ask, ask_named, fixed, retrying
from ottla.client.core.model import CONFIG_SOURCES, ConfigEntry, ConfigResource
from ottla.client.core.network import Network
from ottla.client.core.polling import CONTROLLER
from ottla.errors import ArgumentError, ErrorCode, KafkaError, raise_for
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest
from ottla.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.list_config_resources import ListConfigResourcesRequest
from ottla.protocol.wire_values import CONFIG_TYPES, ConfigOperation, ConfigResourceType, ConfigSource

RESOURCE_TYPES = {kind.name.lower().replace("_", "-"): kind for kind in ConfigResourceType}
"""The kinds of resources that have configs, and their numbers on the wire."""
_RESOURCE_NAMES = {number: name for name, number in RESOURCE_TYPES.items()}


async def describe_configs(
    network: Network, kind: str, name: str, *, names: Iterable[str] | None = None, with_documentation: bool = False
) -> list[ConfigEntry]:
    asked, number = None if names is None else list(names), resource_type(kind)

    def build(version: int) -> DescribeConfigsRequest:
        message = DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=number, resource_name=name, configuration_keys=asked
                )
            ]
        )
        if version >= 3:
            message.include_documentation = with_documentation
        return message

    async def attempt() -> list[ConfigEntry]:
        response = await ask_named(network, ApiKey.DESCRIBE_CONFIGS, build, _find_broker_id(kind, name))
        (result,) = response.results
        raise_for(result.error_code, f"settings of {kind} {name}", result.error_message)
        return sorted((_config_entry(config) for config in result.configs), key=lambda entry: entry.name)

    return await retrying(network, attempt)


async def alter_configs(
    network: Network, kind: str, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
) -> None:
    configs = [
        IncrementalAlterConfigsRequest.AlterableConfig(
            name=setting, config_operation=ConfigOperation.DELETE if value is None else ConfigOperation.SET, value=value
        )
        for setting, value in changes.items()
    ]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type(kind), resource_name=name, configs=configs
    )
    message = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)

    async def attempt() -> None:
        broker_id = _find_broker_id(kind, name)
        destination = CONTROLLER if broker_id is None else broker_id
        response = await ask_named(network, ApiKey.INCREMENTAL_ALTER_CONFIGS, fixed(message), destination)
        for result in response.responses:
            raise_for(result.error_code, f"changing settings of {kind} {name}", result.error_message)

    await retrying(network, attempt)


async def list_config_resources(network: Network, kinds: Iterable[str] = ()) -> list[ConfigResource]:
    wanted = [resource_type(kind) for kind in kinds]

    def build(version: int) -> ListConfigResourcesRequest:
        if version < 1:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker cannot list config resources (KIP-1142)")
        return ListConfigResourcesRequest(resource_types=wanted)

    async def attempt() -> list[ConfigResource]:
        response = await ask(network, ApiKey.LIST_CONFIG_RESOURCES, build)
        raise_for(response.error_code, "listing config resources")
        found = [
            ConfigResource(_RESOURCE_NAMES.get(each.resource_type, f"{each.resource_type}"), each.resource_name)
            for each in response.config_resources
        ]
        return sorted(found, key=lambda resource: (resource.kind, resource.name))

    return await retrying(network, attempt)


def resource_type(kind: str) -> int:
    """The number on the wire of a kind of config resource."""
    if kind not in RESOURCE_TYPES:
        raise ArgumentError(f"{kind!r} is not a kind of config resource", f"Use one of {', '.join(RESOURCE_TYPES)}.")
    return RESOURCE_TYPES[kind]


def _find_broker_id(kind: str, name: str) -> int | None:
    """Only a broker itself knows its own configs. None for resources that every broker knows."""
    if kind not in ("broker", "broker-logger") or not name:
        return None
    broker_id = unsigned_from_text(name)
    if broker_id is None:
        raise ArgumentError(f"{name!r} is not the id of a broker", "describe_cluster() lists the ids.")
    return broker_id


def _config_entry(config: Any) -> ConfigEntry:
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=CONFIG_SOURCES.get(config.config_source, "unknown"),
        is_default=config.config_source == ConfigSource.DEFAULT,
        is_read_only=config.read_only,
        is_sensitive=config.is_sensitive,
        config_type=CONFIG_TYPES[config.config_type] if 0 <= config.config_type < len(CONFIG_TYPES) else "unknown",
        documentation=config.documentation,
    )
