"""CreateTopics v2-7: creates topics; each one succeeds or fails on its own.

v4   -1 requests the default number of partitions or replicas (KIP-464)
v5   flexible (KIP-482); partitions, replicas and settings in the response (KIP-525)
v6   THROTTLING_QUOTA_EXCEEDED (KIP-599)
v7   topic id in the response (KIP-516)
"""

from collections import Counter
from collections.abc import Mapping

from ottla.broker.dispatch import handles
from ottla.broker.handler_support import mutation_quota
from ottla.broker.handler_support.deadline import within
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.metadata.changes.topic_changes import NewTopic, TopicResult
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from ottla.security.resources import CLUSTER, Operation, ResourceType
from ottla.types import ZERO_UUID

Described = dict[frozenset[tuple[str, str]], list[CreateTopicsResponse.CreatableTopicConfigs]]
"""The settings of new topics as in the response, by the settings of the request."""


@handles(ApiKey.CREATE_TOPICS)
async def create_topics(request: CreateTopicsRequest, context: Context) -> CreateTopicsResponse:
    refused = _refused(request, context)
    wanted = [
        NewTopic(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            [(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
            [(config.name, config.value) for config in topic.configs],
        )
        for topic in request.topics
        if topic.name not in refused
    ]
    creation = mutation_quota.create_topics(context, wanted, validate_only=request.validate_only)
    results, throttle_ms = await within(request.timeout_ms, creation)
    described: Described = {}
    return CreateTopicsResponse(
        throttle_time_ms=throttle_ms,
        topics=[
            *(_result(result, request, context, described) for result in results),
            *(
                CreateTopicsResponse.CreatableTopicResult(
                    name=name,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    error_message=f"{context.principal} may not CREATE the topic {name}",
                )
                for name in refused
            ),
        ],
    )


def _refused(request: CreateTopicsRequest, context: Context) -> list[str]:
    """The topics that the client may not create. CREATE on the cluster allows all."""
    if context.allows(Operation.CREATE, CLUSTER, quietly=True):
        return []
    creatable = context.allowed(Operation.CREATE, ResourceType.TOPIC)
    names = Counter(topic.name for topic in request.topics)
    # A topic that is named twice gets the error for duplicates instead.
    return [name for name, times in names.items() if times == 1 and creatable is not None and not creatable[name]]


def _result(
    result: TopicResult, request: CreateTopicsRequest, context: Context, described: Described
) -> CreateTopicsResponse.CreatableTopicResult:
    answer = CreateTopicsResponse.CreatableTopicResult(
        name=result.name or "", error_code=result.error, error_message=result.message
    )
    if result.error == ErrorCode.NONE:
        # With validate_only no topic has this id.
        answer.topic_id = ZERO_UUID if request.validate_only else result.topic_id
        describable = context.allowed(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, quietly=True)
        if describable is not None and not describable[answer.name]:
            answer.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return answer
        answer.num_partitions = result.partitions
        answer.replication_factor = result.replication_factor
        if context.api_version >= 5:
            # Most of a thousand topics have the same settings.
            key = frozenset(result.configs.items())
            if key not in described:
                described[key] = _describe(result.configs, context)
            answer.configs = described[key]
    return answer


def _describe(configs: Mapping[str, str], context: Context) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
    services = context.services
    return [
        CreateTopicsResponse.CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in services.settings.describe_topic_configs(services.image, configs)
    ]
