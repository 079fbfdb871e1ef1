"""DescribeConfigs v1-4: the settings of topics and of this broker, and where each value comes from (KIP-133).

v1   synonyms (KIP-226)
v3   types and documentation (KIP-569)
v4   flexible (KIP-482)

A broker resource with an empty name stands for the settings of all brokers that were changed at run time. Broker
loggers are described with their levels (KIP-412). Groups and client metrics have no settings.
"""

from collections.abc import Hashable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.authorization import check_config_access
from ottla.broker.handler_support.broker_loggers import describe_loggers
from ottla.broker.services import Context
from ottla.broker.settings.config import ConfigEntry
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.changes.config_changes import (
    WITHOUT_SETTINGS,
    broker_id_of,
    check_broker_name,
    check_resource_name,
)
from ottla.metadata.changes.topic_changes import check_topic_name
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from ottla.protocol.wire_values import ConfigResourceType
from ottla.security.resources import Operation

Described = dict[Hashable, list[DescribeConfigsResponse.DescribeConfigsResourceResult]]
"""Descriptions that resources of one request share."""


@handles(ApiKey.DESCRIBE_CONFIGS)
def describe_configs(request: DescribeConfigsRequest, context: Context) -> DescribeConfigsResponse:
    # A resource that is named twice is described once: a small request must not cause a huge response.
    resources = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    described: Described = {}
    results = [_result(resource, request, context, described) for resource in resources.values()]
    return DescribeConfigsResponse(results=results)


def _result(
    resource: DescribeConfigsRequest.DescribeConfigsResource,
    request: DescribeConfigsRequest,
    context: Context,
    described: Described,
) -> DescribeConfigsResponse.DescribeConfigsResult:
    answer = DescribeConfigsResponse.DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
    )
    wanted = resource.configuration_keys
    try:
        check_config_access(context, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
        key = (_same_for(resource, context), tuple(wanted or ()))
        if key not in described:
            entries = _entries(resource.resource_type, resource.resource_name, context)
            described[key] = [_describe(entry, request) for entry in entries if not wanted or entry.name in wanted]
    except KafkaError as error:
        answer.error_code, answer.error_message = error.code, error.detail
        return answer
    answer.configs = described[key]
    return answer


def _same_for(resource: DescribeConfigsRequest.DescribeConfigsResource, context: Context) -> Hashable:
    """What the description depends on: for a topic its own settings, and most topics have none."""
    if resource.resource_type == ConfigResourceType.TOPIC:
        topic = context.services.image.topics.get(resource.resource_name)
        if topic is not None:
            return ConfigResourceType.TOPIC, tuple(topic.configs.items())
    return resource.resource_type, resource.resource_name


def _entries(kind: int, name: str, context: Context) -> list[ConfigEntry]:
    services = context.services
    if kind == ConfigResourceType.TOPIC:
        check_topic_name(name)
        return services.settings.describe_topic(services.image, name)
    if kind == ConfigResourceType.BROKER:
        broker_id = broker_id_of(name, "Broker id") if name else None
        return services.settings.describe_broker(services.image, broker_id)
    if kind == ConfigResourceType.BROKER_LOGGER:
        check_broker_name(name, services.broker_id)
        return describe_loggers()
    if kind in WITHOUT_SETTINGS:
        check_resource_name(kind, name)
        return []
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


def _describe(
    entry: ConfigEntry, request: DescribeConfigsRequest
) -> DescribeConfigsResponse.DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in synonyms
        ],
        config_type=entry.config_type,
        documentation=entry.documentation if request.include_documentation else None,
    )
