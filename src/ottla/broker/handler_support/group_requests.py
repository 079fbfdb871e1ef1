"""What the handlers of group requests share."""

from typing import TYPE_CHECKING

from ottla.broker.coordinators import OFFSETS_TOPIC
from ottla.coordinator.effects import RequestInfo
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.services import Context, Services

GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""Read, delete, describe, describe configs, alter configs: every operation on a group. Nothing is restricted."""


def require_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")


def request_info(context: "Context") -> RequestInfo:
    return RequestInfo(context.api_version, context.client_id, context.client_host)


async def ensure_offsets_topic(services: "Services") -> None:
    """Creates `__consumer_offsets` unless it exists."""
    await services.metadata.ensure_topics([services.settings.automatic_topic(services.image, OFFSETS_TOPIC)])
