"""CreatePartitions v0-3: adds partitions to topics; each one succeeds or fails on its own (KIP-195).

v2   flexible (KIP-482)
v3   THROTTLING_QUOTA_EXCEEDED (KIP-599)
"""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support import mutation_quota
from ottla.broker.handler_support.deadline import within
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.metadata.changes.topic_changes import MorePartitions
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from ottla.security.resources import Operation, ResourceType


@handles(ApiKey.CREATE_PARTITIONS)
async def create_partitions(request: CreatePartitionsRequest, context: Context) -> CreatePartitionsResponse:
    alterable = context.allowed(Operation.ALTER, ResourceType.TOPIC)
    wanted = [
        MorePartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [assignment.broker_ids for assignment in topic.assignments],
        )
        for topic in request.topics
        if alterable is None or alterable[topic.name]
    ]
    growth = mutation_quota.create_partitions(context, wanted, validate_only=request.validate_only)
    results, throttle_ms = await within(request.timeout_ms, growth)
    return CreatePartitionsResponse(
        throttle_time_ms=throttle_ms,
        results=[
            CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=result.name or "", error_code=result.error, error_message=result.message
            )
            for result in results
        ]
        + [
            CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=name,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                error_message=f"{context.principal} may not ALTER the topic {name}",
            )
            for name in dict.fromkeys(topic.name for topic in request.topics)
            if alterable is not None and not alterable[name]
        ],
    )
