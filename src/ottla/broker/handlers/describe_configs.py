"""DescribeConfigs v1-4: the settings of topics and of this broker, and where each value comes from (KIP-133).

v1   synonyms (KIP-226)
v3   types and documentation (KIP-569)
v4   flexible (KIP-482)

A broker resource with an empty name stands for the settings of all brokers that were changed at run time.
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.broker.settings.config import ConfigEntry
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.config_changes import ResourceType
from ottla.metadata.controller import check_topic_name
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse


@handles(ApiKey.DESCRIBE_CONFIGS)
def describe_configs(request: DescribeConfigsRequest, context: Context) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_result(resource, request, context) for resource in request.resources])


def _result(
    resource: DescribeConfigsRequest.DescribeConfigsResource, request: DescribeConfigsRequest, context: Context
) -> DescribeConfigsResponse.DescribeConfigsResult:
    answer = DescribeConfigsResponse.DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
    )
    try:
        entries = _entries(resource.resource_type, resource.resource_name, context)
    except KafkaError as error:
        answer.error_code, answer.error_message = error.code, error.detail
        return answer
    wanted = resource.configuration_keys
    answer.configs = [_describe(entry, request) for entry in entries if not wanted or entry.name in wanted]
    return answer


def _entries(kind: int, name: str, context: Context) -> list[ConfigEntry]:
    services = context.services
    if kind == ResourceType.TOPIC:
        check_topic_name(name)
        return services.settings.describe_topic(services.image, name)
    if kind == ResourceType.BROKER:
        return services.settings.describe_broker(services.image, _broker_id(name))
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


def _broker_id(name: str) -> int | None:
    if not name:
        return None
    try:
        return int(name)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None


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
