"""Delays answers about leaders after a leader was lost, until its successor is known.

Otherwise a client that asks at once gets the old leader again, and backs off. See
`metadata/controller/lost_brokers.py`.
"""

import asyncio
from collections.abc import Iterable

from ottla.broker.services import Services
from ottla.metadata.controller.lost_brokers import HELD_SECONDS

POLL_INTERVAL_SECONDS = 0.003


async def elected(services: Services, topics: Iterable[str]) -> None:
    """Returns when no election of these topics is pending, or after half a second."""
    names = list(topics)
    for _ in range(int(HELD_SECONDS / POLL_INTERVAL_SECONDS)):
        if not services.metadata.awaits_elections(names):
            return
        await asyncio.sleep(POLL_INTERVAL_SECONDS)
