"""DeleteTopics v1-6: deletes topics; each one succeeds or fails on its own.

v3   TOPIC_DELETION_DISABLED; earlier versions get INVALID_REQUEST
v4   flexible (KIP-482)
v5   error message and THROTTLING_QUOTA_EXCEEDED (KIP-599)
v6   topic ids (KIP-516)
"""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support import mutation_quota
from ottla.broker.handler_support.deadline import within
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.metadata.changes.topic_changes import TopicReference, TopicResult
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ottla.security.resources import CLUSTER, Operation, ResourceType


@handles(ApiKey.DELETE_TOPICS)
async def delete_topics(request: DeleteTopicsRequest, context: Context) -> DeleteTopicsResponse:
    if context.api_version >= 6:
        references = [TopicReference(topic.name, topic.topic_id) for topic in request.topics]
    else:
        references = [TopicReference(name) for name in request.topic_names]
    allowed, refused = _split(references, context)
    results, throttle_ms = await within(request.timeout_ms, mutation_quota.delete_topics(context, allowed))
    results = [*results, *refused]
    return DeleteTopicsResponse(
        throttle_time_ms=throttle_ms,
        responses=[
            DeleteTopicsResponse.DeletableTopicResult(
                name=result.name,
                topic_id=result.topic_id,
                error_code=_known_to(context.api_version, result.error),
                error_message=result.message,
            )
            for result in results
        ],
    )


def _split(references: list[TopicReference], context: Context) -> tuple[list[TopicReference], list[TopicResult]]:
    """The topics that the client may delete or know to be missing, and the results of the others."""
    if context.allows(Operation.DELETE, CLUSTER, quietly=True):
        return references, []
    describable = context.allowed(Operation.DESCRIBE, ResourceType.TOPIC, quietly=True)
    deletable = context.allowed(Operation.DELETE, ResourceType.TOPIC)
    assert describable is not None
    assert deletable is not None
    image = context.services.image
    allowed: list[TopicReference] = []
    refused: list[TopicResult] = []
    for reference in references:
        name = image.topic_names.get(reference.topic_id) if reference.name is None else reference.name
        if name is None or deletable[name] or (describable[name] and name not in image.topics):
            allowed.append(reference)
            continue
        # A request by id must not reveal the name of a topic that the client may not describe.
        shown = name if reference.name is not None or describable[name] else None
        refused.append(
            TopicResult(
                shown,
                ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                f"{context.principal} may not DELETE the topic",
                reference.topic_id,
            )
        )
    return allowed, refused


def _known_to(version: int, error: ErrorCode) -> ErrorCode:
    if error == ErrorCode.TOPIC_DELETION_DISABLED and version < 3:
        return ErrorCode.INVALID_REQUEST
    return error
