"""What the handlers of group requests share."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.broker.coordinators import OFFSETS_TOPIC
from ottla.coordinator.effects import Effects
from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.services import Services
    from ottla.coordinator.group.shard import GroupShard
    from ottla.coordinator.runtime import CoordinatorRuntime

GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""Read, delete, describe, describe configs, alter configs: all there is to do with a group when nothing is refused."""


def require_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group id is needed")


async def ask(groups: "CoordinatorRuntime[GroupShard]", group_id: str, look: Callable[["GroupShard"], Any]) -> Any:
    """What `look` sees in the group's shard, once all of it is committed."""

    def decide(shard: "GroupShard", request_id: int, now: int) -> Effects:
        effects = Effects()
        effects.reply(request_id, look(shard))
        return effects

    answer = groups.submit(group_id, decide)
    return await answer if isinstance(answer, asyncio.Future) else answer


async def ensure_offsets_topic(services: "Services") -> None:
    """Makes `__consumer_offsets` on first need; whoever comes second finds it made."""
    await services.metadata.ensure_topics([services.settings.automatic_topic(services.image, OFFSETS_TOPIC)])
