"""What the handlers of group requests share."""

from typing import TYPE_CHECKING

from ottla.coordinator.effects import RequestInfo
from ottla.errors import ErrorCode, KafkaError
from ottla.security.resources import Operation, Resource, ResourceType
from ottla.types import OFFSETS_TOPIC

if TYPE_CHECKING:
    from ottla.broker.services import Context, Services


def require_group(context: "Context", operation: Operation, group_id: str) -> None:
    """Raises GROUP_AUTHORIZATION_FAILED unless the client may do this with the group."""
    if context.services.authorizer is not None:
        context.require(operation, Resource(ResourceType.GROUP, group_id))


def require_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")


def request_info(context: "Context") -> RequestInfo:
    return RequestInfo(context.api_version, context.client_id, context.client_host)


async def ensure_offsets_topic(services: "Services") -> None:
    """Creates `__consumer_offsets` unless it exists."""
    await services.metadata.changes.ensure_topics([services.settings.automatic_topic(services.image, OFFSETS_TOPIC)])
