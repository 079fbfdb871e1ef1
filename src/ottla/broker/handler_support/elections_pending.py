"""Holds answers about leaders while the broker that led has just been lost, until its successor is known.

Without this a client that asks at once hears of the old leader again, and waits for its back-off. See lost_brokers.
"""

import asyncio
from collections.abc import Iterable

from ottla.broker.services import Services
from ottla.metadata.lost_brokers import HELD_SECONDS

LOOK_AGAIN_SECONDS = 0.003


async def elected(services: Services, topics: Iterable[str]) -> None:
    """Returns when no election of these topics is pending, or after half a second."""
    names = list(topics)
    for _ in range(int(HELD_SECONDS / LOOK_AGAIN_SECONDS)):
        if not services.metadata.awaits_elections(names):
            return
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
