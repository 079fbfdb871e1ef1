"""The controller's duties: elections when brokers join or leave, preferred leaders, and reassignments.

Every commit of the controller requires that it still is the controller: one that was paused and has been replaced can
no longer change anything.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

from ottla.clock import Clock
from ottla.metadata.changes import reassignments, registration
from ottla.metadata.config import ControllerConfig
from ottla.metadata.controller import elections
from ottla.metadata.controller.decisions import Decision
from ottla.metadata.controller.elections import MAX_CHANGES, ElectionRules
from ottla.metadata.controller.sweep import Sweep
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import NO_CONTROLLER, NO_LEADER

log = logging.getLogger("ottla.metadata")

Decide = Callable[[ClusterImage], Decision[int]]


class ControllerRules(ElectionRules, Protocol):
    """What the controller needs from the settings."""

    def internal_replication_factors(self) -> Mapping[str, int]:
        """How many replicas internal topics should have, if there are enough brokers."""


class ControllerDuties:
    """One broker's part in controlling the cluster. Times are in seconds of the event loop."""

    def __init__(
        self,
        broker_id: int,
        rules: ControllerRules,
        config: ControllerConfig,
        *,
        submit: Callable[[Decide], Awaitable[int]],
        clock: Clock,
        now: Callable[[], float],
    ) -> None:
        self._broker_id = broker_id
        self._rules = rules
        self._config = config
        self._submit = submit
        self._clock = clock
        self._now = now
        self._joined_at = now()
        self._seen: set[int] = set()
        """Brokers that were alive at some time since this one joined."""
        self._imbalanced_since: float | None = None

    def note(self, before: ClusterImage, image: ClusterImage) -> bool:
        """Whether a new image needs the controller's attention."""
        if image.brokers is not before.brokers:
            self._seen |= image.brokers.keys()
            return True
        if image.controller_id == NO_CONTROLLER:
            return True
        if image.controller_id != self._broker_id or image.topics is before.topics:
            return False
        known = before.topics
        return any(
            partition.leader == NO_LEADER
            or partition.adding
            or partition.removing
            or partition.leader != partition.replicas[0]
            for name, topic in image.topics.items()
            if known.get(name) is not topic
            for partition in topic.partitions
        )

    def awaited(self, image: ClusterImage) -> Collection[int]:
        return awaited_brokers(image, self._seen, self._startup_left_s())

    def _startup_left_s(self) -> float:
        # Computed in one place for who is awaited and for when to check again: a rounding difference must not leave a
        # broker awaited without a timer.
        return self._joined_at + self._config.startup_wait_ms / 1000 - self._now()

    async def perform(self, image: ClusterImage) -> None:
        """Becomes controller if there is none. As controller, elects leaders and completes reassignments."""
        own = image.brokers.get(self._broker_id)
        if own is None or own.is_leaving:
            return
        changed = 0
        if image.controller_id == NO_CONTROLLER:
            changed = await self._submit(self._take_over)
        if image.controller_id in (NO_CONTROLLER, self._broker_id):
            changed += await self._repeat(self._elect_with(Sweep()))
            await self._move_replicas()
        if changed:
            log.info("controller %d: %d partitions have new leaders or in-sync sets", self._broker_id, changed)

    def _take_over(self, image: ClusterImage) -> Decision[int]:
        controller = registration.become_controller(image, self._broker_id, self._clock())
        if not controller.changes:
            return Decision(0)  # another broker won the race
        return elections.take_over(image, self._rules, controller, awaited=self.awaited(image))

    def _elect_with(self, sweep: Sweep) -> Decide:
        return lambda image: elections.elect_leaders(image, self._rules, awaited=self.awaited(image), sweep=sweep)

    async def _move_replicas(self) -> None:
        """Completes reassignments, and adds replicas to internal topics that have too few."""
        if grown := await self._repeat(
            lambda image: reassignments.grow_internal_topics(
                image, self._rules, self._rules.internal_replication_factors()
            )
        ):
            log.info("controller %d: %d partitions of internal topics get more replicas", self._broker_id, grown)
        if done := await self._repeat(lambda image: reassignments.complete_reassignments(image, self._rules)):
            log.info("controller %d: the reassignments of %d partitions are complete", self._broker_id, done)

    async def _repeat(self, decide: Decide) -> int:
        """Commits chunk after chunk, until nothing is left to change or another broker is controller."""

        def as_controller(image: ClusterImage) -> Decision[int]:
            return decide(image) if image.controller_id == self._broker_id else Decision(0)

        total = 0
        while True:
            changed = await self._submit(as_controller)
            total += changed
            if changed < MAX_CHANGES:
                return total

    async def next_duty(self, image: ClusterImage) -> float | None:
        """Elects preferred leaders, if due. Returns the seconds until the next duty; None if there is none."""
        if image.controller_id != self._broker_id:
            self._imbalanced_since = None
            return None
        waits = []
        left_s = self._startup_left_s()
        if left_s > 0 and self.awaited(image):
            waits.append(left_s)
        if (rebalance := await self._rebalance(image)) is not None:
            waits.append(rebalance)
        return min(waits, default=None)

    async def _rebalance(self, image: ClusterImage) -> float | None:
        config, now = self._config, self._now()
        if not config.auto_leader_rebalance_enable or not elections.is_imbalanced(image):
            self._imbalanced_since = None
            return None
        if self._imbalanced_since is None:
            self._imbalanced_since = now
        delay_ms = min(config.leader_rebalance_delay_ms, config.leader_imbalance_check_interval_seconds * 1000)
        due_in = self._imbalanced_since + delay_ms / 1000 - now
        if due_in > 0:
            return due_in
        self._imbalanced_since = None
        sweep = Sweep()
        changed = await self._repeat(lambda image: elections.elect_preferred_leaders(image, sweep=sweep))
        if changed:
            log.info("controller %d: %d partitions are led by their first replica again", self._broker_id, changed)
        return None


def awaited_brokers(image: ClusterImage, seen: Collection[int], startup_left_s: float) -> Collection[int]:
    """The brokers of the cluster that this one has not seen yet, during the first seconds after it joined.

    When the whole cluster starts, the first broker would otherwise lead everything and shrink every in-sync set to
    itself. A broker that was seen and is gone is dead.
    """
    if startup_left_s <= 0:
        return ()
    return image.known_brokers.keys() - set(seen)
