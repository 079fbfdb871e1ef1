"""FindCoordinator v0-6: finds the broker that coordinates a group or a transactional id.

v1   key type: 0 group, 1 transactional id (KIP-98)
v3   flexible (KIP-482)
v4   several keys (KIP-699)
v6   key type 2, share groups (KIP-932): there is no coordinator for them here

The first request creates the coordinator's topic. While the topic does not exist, or its partition has no leader, the
answer is COORDINATOR_NOT_AVAILABLE.
"""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.elections_pending import elected
from ottla.broker.handler_support.sliced_response import SlicedResponse, answer_each
from ottla.broker.services import Context, Services
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.security.resources import CLUSTER, Operation, Resource, ResourceType
from ottla.types import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Endpoint, partition_for

GROUP, TRANSACTION, SHARE = 0, 1, 2
SHARE_SINCE = 6
_TOPICS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}
_NOWHERE = (-1, Endpoint("", -1))


@handles(ApiKey.FIND_COORDINATOR)
async def find_coordinator(
    request: FindCoordinatorRequest, context: Context
) -> FindCoordinatorResponse | SlicedResponse:
    async def find(key: str) -> FindCoordinatorResponse.Coordinator:
        code, message, (node_id, endpoint) = await _find(key, request.key_type, context)
        return FindCoordinatorResponse.Coordinator(
            key=key,
            node_id=node_id,
            host=endpoint.host,
            port=endpoint.port,
            error_code=code,
            error_message=message,
        )

    if context.api_version >= 4:
        return await answer_each(
            FindCoordinatorResponse(), "coordinators", context.api_version, request.coordinator_keys, find
        )
    code, message, (node_id, endpoint) = await _find(request.key, request.key_type, context)
    return FindCoordinatorResponse(
        error_code=code, error_message=message, node_id=node_id, host=endpoint.host, port=endpoint.port
    )


async def _find(key: str, key_type: int, context: Context) -> tuple[ErrorCode, str | None, tuple[int, Endpoint]]:
    try:
        return ErrorCode.NONE, None, await _coordinator(key, key_type, context)
    except KafkaError as error:
        return error.code, error.detail or None, _NOWHERE


async def _create(name: str, services: Services) -> str:
    """Creates a coordinator's topic. If it cannot be created, for example because there are fewer brokers than
    replicas, returns the reason: clients retry."""
    try:
        results = await services.metadata.changes.ensure_topics(
            [services.settings.automatic_topic(services.image, name)]
        )
    except KafkaError as error:
        return error.detail
    return next((result.message for result in results if result.message), "it is being created")


async def _coordinator(key: str, key_type: int, context: Context) -> tuple[int, Endpoint]:
    services = context.services
    if services.authorizer is not None:
        if key_type == GROUP:
            context.require(Operation.DESCRIBE, Resource(ResourceType.GROUP, key))
        elif key_type == TRANSACTION:
            context.require(Operation.DESCRIBE, Resource(ResourceType.TRANSACTIONAL_ID, key))
        elif key_type == SHARE and context.api_version >= SHARE_SINCE:
            context.require(Operation.CLUSTER_ACTION, CLUSTER)
    if key_type not in _TOPICS:
        is_known = key_type == SHARE and context.api_version >= SHARE_SINCE
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_known else ErrorCode.INVALID_REQUEST
        raise KafkaError(code, f"coordinator key type {key_type} is not supported")
    name, message = _TOPICS[key_type], ""
    if name not in services.image.topics:
        message = await _create(name, services)
    await elected(services, [name])
    image = services.image
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} does not exist: {message}")
    leader = topic.partitions[partition_for(key, len(topic.partitions))].leader
    broker = image.brokers.get(leader)
    endpoint = None if broker is None else broker.endpoints.get(context.listener)
    if endpoint is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the partition of {name} has no reachable leader")
    return leader, endpoint
