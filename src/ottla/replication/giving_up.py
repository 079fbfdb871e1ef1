"""OWNER of partitions that this broker gives up because it cannot store them: another in-sync replica takes over."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection

from ottla.clock import MonotonicClock
from ottla.errors import KafkaError
from ottla.net.backoff import Backoff
from ottla.types import TopicPartition

log = logging.getLogger("ottla.replication")

GiveUp = Callable[[Collection[TopicPartition]], Awaitable[None]]

RETRY_AFTER_MS = 5_000
"""The minimum time between two attempts for a partition: every rejected write requests one."""
BACKOFF = Backoff(100, 10_000)


class GivenUp:
    """Hands over partitions whose storage failed; those of one turn of the event loop together."""

    def __init__(self, give_up: GiveUp, monotonic: MonotonicClock, *, rng: random.Random | None = None) -> None:
        self._give_up = give_up
        self._monotonic = monotonic
        self._random = random.Random() if rng is None else rng
        self._due: set[TopicPartition] = set()
        self._last_ms: dict[TopicPartition, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def add(self, topic_partition: TopicPartition) -> None:
        """Leaves the in-sync set of a partition, and its leadership, if another replica can take over."""
        now = self._monotonic()
        if self._is_stopped or now < self._last_ms.get(topic_partition, now - RETRY_AFTER_MS) + RETRY_AFTER_MS:
            return
        self._last_ms[topic_partition] = now
        self._due.add(topic_partition)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        failures = 0
        try:
            while self._due:
                due = sorted(self._due)
                try:
                    await self._give_up(due)
                    failures = 0
                    self._due.difference_update(due)
                except KafkaError as error:
                    failures += 1
                    log.warning(
                        "%d partitions whose storage failed cannot be handed over, will be retried: %s", len(due), error
                    )
                    await asyncio.sleep(BACKOFF.delay_ms(failures, self._random.uniform(-1, 1)) / 1000)
        finally:
            self._task = None

    def forget(self, topic_partition: TopicPartition) -> None:
        self._last_ms.pop(topic_partition, None)
        self._due.discard(topic_partition)

    def stop(self) -> None:
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
