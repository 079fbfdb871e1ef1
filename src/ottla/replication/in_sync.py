"""OWNER of the proposals to change in-sync sets: a leader adds followers that caught up and removes those that lag.

A proposal is a compare-and-set of the partition's state. Until its outcome is known the larger of both sets counts for
the high watermark (KIP-497), and there is no second proposal for the partition.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode
from ottla.metadata.controller.isr_changes import IsrChange
from ottla.net.backoff import Backoff
from ottla.replication.replica import NO_EPOCH, Replica

if TYPE_CHECKING:
    from ottla.replication.replica_manager import ReplicaManager

log = logging.getLogger("ottla.replication")


AlterPartition = Callable[[IsrChange], Awaitable[ErrorCode]]

NOT_APPLIED = frozenset(
    {
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
    }
)
"""The proposal was definitely not applied. After any other error it may have been, and the image will show it."""
BACKOFF = Backoff(50, 5_000)
CHECKED_TOGETHER = 500
"""How many partitions are checked for lagging followers before the event loop gets its turn."""


class InSyncChanges:
    """The changes of in-sync sets that this broker proposes as a leader."""

    def __init__(
        self, manager: "ReplicaManager", alter_partition: AlterPartition, *, rng: random.Random | None = None
    ) -> None:
        self.expands = 0
        self.shrinks = 0
        self.rejections = 0
        self._manager = manager
        self._alter_partition = alter_partition
        self._random = random.Random() if rng is None else rng
        self._failures: dict[Replica, int] = {}
        """Consecutive failed proposals, for the back-off."""
        self._not_before: dict[Replica, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arm()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _arm(self) -> None:
        if not self._is_stopped and self._loop is not None:
            # A follower leaves at most one and a half times replica.lag.time.max.ms after it was last caught up.
            delay_ms = max(1, self._manager.config.replica_lag_time_max_ms // 2)
            self._timer = self._loop.call_later(delay_ms / 1000, self._check_all)

    # -- joining --

    def consider(self, replica: Replica) -> None:
        """Proposes the followers that are not in sync but have caught up."""
        if not replica.is_leader or replica.proposed is not None or self._is_stopped or self._loop is None:
            return
        partition_log, now = replica.log, self._manager.monotonic()
        if self._not_before and now < self._not_before.get(replica, now):
            return
        caught_up = tuple(
            broker_id
            for broker_id in replica.followers
            if replica.may_join(
                broker_id,
                log_end_offset=partition_log.log_end_offset,
                high_watermark=partition_log.high_watermark,
                monotonic_ms=now,
            )
        )
        if caught_up:
            self._propose(replica, replica.propose_join(caught_up))

    def forget(self, replica: Replica) -> None:
        """The replica is no longer hosted."""
        self._failures.pop(replica, None)
        self._not_before.pop(replica, None)

    # -- leaving --

    def _check_all(self) -> None:
        self._check_some([replica for replica in self._manager.replicas() if replica.followers])
        self._arm()

    def _check_some(self, replicas: list[Replica]) -> None:
        now = self._manager.monotonic()
        for replica in replicas[:CHECKED_TOGETHER]:
            if not replica.is_leader or replica.proposed is not None or now < self._not_before.get(replica, now):
                continue
            lagging = replica.lagging(replica.log.log_end_offset, now)
            if lagging:
                self._propose(replica, replica.propose_leave(lagging))
        if len(replicas) > CHECKED_TOGETHER and not self._is_stopped:
            assert self._loop is not None
            self._loop.call_soon(self._check_some, replicas[CHECKED_TOGETHER:])

    # -- proposing --

    def _propose(self, replica: Replica, isr: tuple[int, ...]) -> None:
        change = IsrChange(
            replica.topic_partition,
            replica.topic_id,
            replica.leader_epoch,
            replica.partition_epoch,
            tuple((broker_id, self._epoch_of(replica, broker_id)) for broker_id in isr),
        )
        assert self._loop is not None
        task = self._loop.create_task(self._submit(replica, change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _epoch_of(self, replica: Replica, broker_id: int) -> int:
        if broker_id == replica.broker_id:
            return self._manager.broker_epoch
        follower = replica.followers.get(broker_id)
        return NO_EPOCH if follower is None else follower.broker_epoch

    async def _submit(self, replica: Replica, change: IsrChange) -> None:
        before = replica.isr
        while True:
            try:
                code = await self._alter_partition(change)
            except Exception:
                # A bug, but the proposal must not stay open without anybody working on it.
                log.exception("partition %s: cannot change its in-sync set", replica.topic_partition)
                code = ErrorCode.UNKNOWN_SERVER_ERROR
            if (replica.leader_epoch, replica.partition_epoch) != (change.leader_epoch, change.partition_epoch):
                self._settled(replica, before)
                return
            if code in NOT_APPLIED:
                self.rejections += 1
                replica.proposal_rejected()
                delay_ms = self._delay_ms(replica)
                self._not_before[replica] = end_ms = self._manager.monotonic() + delay_ms
                # An idle follower does not fetch this partition again.
                asyncio.get_running_loop().call_later(delay_ms / 1000, self._end_back_off, replica, end_ms)
                log.info("partition %s: in-sync set not changed: %s", replica.topic_partition, code.name)
                self._manager.advance(replica)
                return
            # The outcome is unknown, or the image has not arrived yet: repeating the proposal is harmless.
            await asyncio.sleep(self._delay_ms(replica) / 1000)
            if (replica.leader_epoch, replica.partition_epoch) != (change.leader_epoch, change.partition_epoch):
                self._settled(replica, before)
                return

    def _end_back_off(self, replica: Replica, end_ms: int) -> None:
        # The timer decides, not the clock, which may still be a millisecond behind: there is no other retry.
        if self._not_before.get(replica) == end_ms:
            del self._not_before[replica]
        self.consider(replica)

    def _settled(self, replica: Replica, before: frozenset[int]) -> None:
        """An image with the next state of the partition has arrived."""
        self.forget(replica)
        self.expands += len(replica.isr - before) > 0
        self.shrinks += len(before - replica.isr) > 0
        self.consider(replica)

    def _delay_ms(self, replica: Replica) -> int:
        self._failures[replica] = failures = self._failures.get(replica, 0) + 1
        return BACKOFF.delay_ms(failures, self._random.uniform(-1, 1))
