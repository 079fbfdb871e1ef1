"""Requests that wait on replicas: for a commit, for deletions, or for bytes. OWNER of their timers and futures."""

import asyncio
from collections.abc import Callable

from ottla.errors import ErrorCode
from ottla.replication.replica import Replica
from ottla.replication.waiting import CommitWait, FetchWait, Limit, PartitionWaits


class RequestWaits:
    """The requests that wait on a broker's replicas. The ReplicaManager reports what happens to them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    # -- waiting for a commit --

    def when_committed(
        self, offsets: list[tuple[Replica, int]], timeout_ms: int, reply: Callable[[list[ErrorCode]], None]
    ) -> None:
        """Calls `reply` once with one error code per (replica, next offset): now, on commit, or at the timeout."""
        wait = CommitWait(len(offsets), reply)
        for slot, (replica, next_offset) in enumerate(offsets):
            if replica.storage_failure:
                wait.settle(slot, ErrorCode.KAFKA_STORAGE_ERROR)
            elif not replica.is_leader:
                wait.settle(slot, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif replica.log.high_watermark >= next_offset:
                wait.settle(slot, ErrorCode.NONE)
            elif timeout_ms <= 0:
                wait.settle(slot, ErrorCode.REQUEST_TIMED_OUT)
            else:
                wait.wait_in(self._waits(replica).commits, next_offset, slot)
        self._begin(wait, timeout_ms)

    def when_deleted(
        self, offsets: list[tuple[Replica, int]], timeout_ms: int, reply: Callable[[list[ErrorCode]], None]
    ) -> None:
        """Calls `reply` once with one error code per (replica, offset): every live replica starts at that offset."""
        wait = CommitWait(len(offsets), reply)
        for slot, (replica, offset) in enumerate(offsets):
            if not replica.is_leader:
                wait.settle(slot, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif replica.low_watermark(replica.log.log_start_offset) >= offset:
                wait.settle(slot, ErrorCode.NONE)
            elif timeout_ms <= 0:
                wait.settle(slot, ErrorCode.REQUEST_TIMED_OUT)
            else:
                wait.wait_in(self._waits(replica).deletions, offset, slot)
        self._begin(wait, timeout_ms)

    def _begin(self, wait: CommitWait, timeout_ms: int) -> None:
        """Starts a wait, unless it is over already."""
        assert self._loop is not None
        if wait.is_over:
            wait.reply(wait.codes)
        else:
            wait.timer = self._loop.call_later(timeout_ms / 1000, self._commit_timed_out, wait)

    def _commit_timed_out(self, wait: CommitWait) -> None:
        if not wait.is_over:
            wait.time_out()
            wait.reply(wait.codes)

    def end(self, waits: list[CommitWait]) -> None:
        """Replies to waits that are over."""
        for wait in waits:
            wait.timer.cancel()
            wait.reply(wait.codes)

    def _waits(self, replica: Replica) -> PartitionWaits:
        if replica.waits is None:
            replica.waits = PartitionWaits()
        return replica.waits

    # -- waiting for bytes --

    def wait_for_bytes(self, wait: FetchWait, replicas: list[Replica], limit: Limit, timeout_ms: int) -> None:
        """Completes the future `wait.reply` on enough bytes, at the timeout, or when a partition's leader changes."""
        assert self._loop is not None
        for replica in replicas:
            if limit is Limit.LAST_STABLE_OFFSET:
                replica.stable_seen = replica.log.last_stable_offset
            self._waits(replica).add_fetch(wait, limit)
        wait.timer = self._loop.call_later(timeout_ms / 1000, self._fetch_timed_out, wait)

    def end_wait(self, wait: FetchWait) -> None:
        """Removes a wait that was answered, or whose requester is gone."""
        if wait.timer is not None:
            wait.timer.cancel()
            wait.timer = None
            wait.leave()

    def _fetch_timed_out(self, wait: FetchWait) -> None:
        wait.leave()
        _release(wait.reply)

    def wake(self, fetches: list[FetchWait]) -> None:
        """Answers fetches that have been removed from their partitions."""
        # The awaiting handler resumes in a later turn of the loop, so everything appended in this turn, including
        # the current append, is part of the same response.
        for wait in fetches:
            wait.timer.cancel()
            _release(wait.reply)

    def release_all(self, replica: Replica, code: ErrorCode) -> None:
        """Answers every request that waits on a replica."""
        if replica.waits is not None:
            self.end(replica.waits.commits.fail(code))
            self.end(replica.waits.deletions.fail(code))
            self.wake(replica.waits.end_fetches())


def _release(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
