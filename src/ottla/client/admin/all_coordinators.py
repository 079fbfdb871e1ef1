"""Requests to all coordinators of a cluster, for lists of everything that they coordinate."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ottla.client.admin.requests import retrying
from ottla.client.admin.topics import metadata
from ottla.client.core.network import Network
from ottla.errors import ErrorCode, KafkaError

T = TypeVar("T")


async def ask_all_coordinators(network: Network, topic: str, ask: Callable[[int], Awaitable[list[T]]]) -> list[T]:
    """Calls `ask(node_id)` for every broker that leads a partition of an internal topic, and joins the results.

    A dead broker leads nothing, so the call does not wait for it. If a leader dies meanwhile, its successors are asked.
    """

    async def attempt() -> list[T]:
        answers = await asyncio.gather(*(ask(node_id) for node_id in await _coordinators(network, topic)))
        return [each for answer in answers for each in answer]

    return await retrying(network, attempt)


async def _coordinators(network: Network, topic: str) -> list[int]:
    response = await metadata(network, [topic])
    (found,) = response.topics
    if found.error_code:
        # It does not exist yet, or this client may not see it.
        return sorted(broker.node_id for broker in response.brokers)
    leaderless = [partition.partition_index for partition in found.partitions if partition.leader_id < 0]
    if leaderless:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}: partition {leaderless[0]} has no leader")
    return sorted({partition.leader_id for partition in found.partitions})
