"""OWNER of this broker's fetches as a follower: one stream of requests to each leader, and appends of the results.

An answer is appended, then the next fetch is sent, and only then are requests woken that wait for the new high
watermark. A fetch from an offset acknowledges everything below it, so it must not be sent before the append: a record
would count as committed although its append can still fail.
"""

import asyncio
import functools
import logging
import random
from typing import TYPE_CHECKING, Any

from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff
from ottla.protocol.api import ApiKey
from ottla.replication.broker_peers import FETCH_LANE, BrokerPeers
from ottla.replication.follower_logs import FollowerLogs
from ottla.replication.following import Do, FetchPlan, Followed, LeaderFetches, Limits, Sender, decide
from ottla.replication.replica import NO_EPOCH, Replica
from ottla.replication.throttling import is_throttled_follower

if TYPE_CHECKING:
    from ottla.metadata.image import ClusterImage
    from ottla.net.client.connection import Answer
    from ottla.replication.replica_manager import ReplicaManager

log = logging.getLogger("ottla.replication")

FIRST_BACKOFF_MS = 10
IMAGE_BACKOFF = Backoff(FIRST_BACKOFF_MS, 80)
"""After an election, the new leader may get the image a little later than its followers. Commits wait for them."""
AWAITING_IMAGE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class ReplicaFetchers:
    """Fetches every partition that another broker leads."""

    def __init__(self, manager: "ReplicaManager", peers: BrokerPeers, *, rng: random.Random | None = None) -> None:
        self.manager = manager
        self.peers = peers
        self.random = random.Random() if rng is None else rng
        self.sender = Sender(manager.broker_id, NO_EPOCH)
        self._leaders: dict[int, LeaderFetcher] = {}
        self._leader_of: dict[Replica, int] = {}

    def apply(self, image: "ClusterImage") -> None:
        """Updates this broker's epoch, and retries leaders that may be reachable again."""
        own = image.brokers.get(self.manager.broker_id)
        sender = Sender(self.manager.broker_id, NO_EPOCH if own is None else own.epoch)
        is_new, self.sender = sender != self.sender, sender
        for fetcher in self._leaders.values():
            if is_new:
                fetcher.ask_again()
            fetcher.retry_if_known()

    def in_sync_changed(self, replica: Replica) -> None:
        """The in-sync set of a partition may have changed."""
        leader = self._leader_of.get(replica)
        if leader is not None:
            self._leaders[leader].in_sync_changed(replica)

    def follow(self, replica: Replica) -> None:
        """Starts fetching a partition from its leader of the current epoch."""
        self.unfollow(replica)
        if replica.leader < 0 or replica.leader == self.manager.broker_id or replica.storage_failure:
            return
        fetcher = self._leaders.get(replica.leader)
        if fetcher is None:
            fetcher = self._leaders[replica.leader] = LeaderFetcher(self, replica.leader)
        self._leader_of[replica] = replica.leader
        fetcher.follow(replica)

    def unfollow(self, replica: Replica) -> None:
        leader = self._leader_of.pop(replica, None)
        if leader is not None:
            self._leaders[leader].unfollow(replica)

    def flushed(self, replica: Replica) -> None:
        """What was appended to a log has been synced."""
        leader = self._leader_of.get(replica)
        if leader is not None and replica.log.flushed_offset >= replica.log.log_end_offset:
            self._leaders[leader].flushed(replica)

    def stop(self) -> None:
        for fetcher in self._leaders.values():
            fetcher.stop()
        self._leader_of.clear()


class LeaderFetcher:
    """The fetches from one leader. Everything happens in callbacks on the event loop."""

    def __init__(self, fetchers: ReplicaFetchers, leader_id: int) -> None:
        self.leader_id = leader_id
        self.fetches = LeaderFetches()
        self._fetchers = fetchers
        self._manager = fetchers.manager
        self._logs = FollowerLogs(fetchers.manager.maintenance)
        self._loop = asyncio.get_running_loop()
        self._failures = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._throttled: list[Followed] = []
        """Not fetched while the follower's quota is used up."""
        self._throttle: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"LeaderFetcher(broker {self.leader_id}, {len(self.fetches.partitions)} partitions)"

    def follow(self, replica: Replica) -> None:
        followed = self.fetches.follow(replica)
        if replica.has_failed_write:
            self.fetches.delay(followed)
            self._resume(followed)
        self._send_soon()

    def unfollow(self, replica: Replica) -> None:
        self.fetches.unfollow((replica.topic_id, replica.topic_partition.partition))

    def ask_again(self) -> None:
        self.fetches.ask_again()
        self._send_soon()

    def in_sync_changed(self, replica: Replica) -> None:
        followed = self.fetches.find(replica)
        if followed is not None:
            self.fetches.in_sync_changed(followed)

    def flushed(self, replica: Replica) -> None:
        """Everything appended to this log is on stable storage."""
        followed = self.fetches.find(replica)
        if followed is not None and followed.is_held:
            self.fetches.release(followed)
            self._send_soon()

    def stop(self) -> None:
        self._is_stopped = True
        for handle in (self._turn, self._retry, self._throttle):
            if handle is not None:
                handle.cancel()
        for task in self._tasks:
            task.cancel()

    # -- sending --

    def retry_if_known(self) -> None:
        """Ends a back-off: the leader may be reachable again."""
        if self._retry is not None and self._fetchers.peers.is_known(self.leader_id):
            self._retry.cancel()
            self._retry = None
            self._send_soon()

    def _send_soon(self) -> None:
        """Sends at the end of this turn, so that all partitions of one image are in one request."""
        if self._turn is None and self._retry is None and not self._is_stopped:
            self._turn = self._loop.call_soon(self._send_now)

    def _send_now(self) -> None:
        self._turn = None
        if self._retry is None and not self._is_stopped and self._may_send():
            self._send()

    def _may_send(self) -> bool:
        quota = self._manager.follower_quota
        if quota.is_limited and (wait_ms := quota.wait_ms(self._manager.monotonic())):
            self._leave_out_throttled(wait_ms)
        return self.fetches.may_send

    def _leave_out_throttled(self, wait_ms: int) -> None:
        """Does not fetch throttled partitions that are catching up, until there is room in the quota (KIP-73)."""
        for followed in self.fetches.catching_up():
            if is_throttled_follower(followed.replica):
                self.fetches.delay(followed)
                self._throttled.append(followed)
        if self._throttled and self._throttle is None:
            self._throttle = self._loop.call_later(wait_ms / 1000, self._end_throttle)

    def _end_throttle(self) -> None:
        self._throttle = None
        throttled, self._throttled = self._throttled, []
        for followed in throttled:
            self.fetches.resume(followed)
        self._send_soon()

    def _send(self) -> None:
        config, quota = self._manager.config, self._manager.follower_quota
        max_bytes = config.replica_fetch_response_max_bytes
        if quota.is_limited:
            # Otherwise one answer could be more than the window allows.
            max_bytes = max(1, min(max_bytes, quota.rate))
        plan = self.fetches.next_request(
            self._fetchers.sender,
            Limits(
                config.replica_fetch_wait_max_ms,
                config.replica_fetch_min_bytes,
                max_bytes,
                config.replica_fetch_max_bytes,
            ),
        )
        future = self._fetchers.peers.send(
            self.leader_id,
            ApiKey.FETCH,
            lambda version: plan.request,
            lane=FETCH_LANE,
            timeout_ms=config.replica_fetch_wait_max_ms + config.replica_socket_timeout_ms,
        )
        future.add_done_callback(functools.partial(self._answered, plan))

    # -- answers --

    def _answered(self, plan: FetchPlan, future: "asyncio.Future[Answer]") -> None:
        error = None if future.cancelled() else future.exception()
        if self._is_stopped or plan.generation != self.fetches.generation:
            # It was given up together with another request that failed, and is no longer counted as in flight.
            return
        if future.cancelled() or error is not None:
            self._lost(error)
            return
        response = future.result().message
        if response.error_code != ErrorCode.NONE:
            self.fetches.answered(plan, response)
            self._back_off()
            return
        self._failures = 0
        woken: list[tuple[Replica, int]] = []
        truncated: list[Followed] = []
        for followed, data in self.fetches.answered(plan, response):
            try:
                self._apply(followed, plan.number, data, woken, truncated)
            except KafkaError as failure:
                if failure.code is ErrorCode.KAFKA_STORAGE_ERROR:
                    # Others must not wait for this broker until replica.lag.time.max.ms.
                    self._manager.cannot_store(followed.replica)
                self._delay(followed, failure.code, failure.detail)
        if truncated:
            self._checkpoint_soon(truncated)
        if self._may_send():
            self._send()
        for replica, high_watermark in woken:
            self._manager.announce(replica, high_watermark)

    def _apply(
        self,
        followed: Followed,
        answered: int,
        data: Any,
        woken: list[tuple[Replica, int]],
        truncated: list[Followed],
    ) -> None:
        step = decide(followed, answered, data)
        replica, do = followed.replica, step.do
        if do is Do.APPEND:
            followed.failures = 0
            before = replica.log.high_watermark
            if data.records:
                if self._manager.follower_quota.is_limited and is_throttled_follower(replica):
                    self._manager.follower_quota.record(len(data.records), self._manager.monotonic())
                self.fetches.moved(followed)
                self._logs.append(replica, data.records)
                if replica.flush_before_ack:
                    # Asking for the next offset acknowledges this one, so it must be on stable storage first.
                    self.fetches.hold(followed)
            if self._logs.follow_watermarks(replica, data.high_watermark, data.log_start_offset):
                self.fetches.moved(followed)  # The leader waits for our log start offset as well.
            if replica.log.high_watermark > before and replica.waits:
                woken.append((replica, before))
        elif do is Do.TRUNCATE:
            if self._logs.truncate(replica, step.offset):
                self.fetches.delay(followed)
                truncated.append(followed)
            else:
                self.fetches.moved(followed)
        elif do is Do.START_OVER:
            self._logs.start_over(replica, step.offset)
            self.fetches.delay(followed)
            truncated.append(followed)
        elif do is Do.RETRY:
            self._delay(followed, ErrorCode(data.error_code), "")

    def _checkpoint_soon(self, truncated: list[Followed]) -> None:
        task = self._loop.create_task(self._checkpoint(truncated))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _checkpoint(self, truncated: list[Followed]) -> None:
        """Writes the new recovery points before anything is appended after a truncation."""
        is_written = await self._manager.maintenance.checkpoint_now([followed.replica for followed in truncated])
        for followed in truncated:
            if is_written:
                self.fetches.resume(followed)
            elif not self._is_stopped and self.fetches.is_current(followed):
                followed.failures += 1
                self._loop.call_later(self._backoff_ms(followed.failures) / 1000, self._checkpoint_again, followed)
        self._send_soon()

    def _checkpoint_again(self, followed: Followed) -> None:
        if not self._is_stopped and self.fetches.is_current(followed):
            self._checkpoint_soon([followed])

    # -- failures --

    def _delay(self, followed: Followed, code: ErrorCode, detail: str) -> None:
        """Retries a partition later; the others continue."""
        if followed.failures == 0:
            if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                detail = "the leader's ACLs do not allow it; add the principal of this broker to super.users"
            log.info(
                "partition %s: cannot fetch from broker %d in leader epoch %d, will be retried: %s%s",
                followed.replica.topic_partition,
                self.leader_id,
                followed.leader_epoch,
                code.name,
                f": {detail}" if detail else "",
            )
        followed.failures += 1
        self.fetches.delay(followed)
        if code in AWAITING_IMAGE:
            delay_ms = IMAGE_BACKOFF.delay_ms(followed.failures, self._fetchers.random.uniform(-1, 1))
        else:
            delay_ms = self._backoff_ms(followed.failures)
        self._loop.call_later(delay_ms / 1000, self._resume, followed)

    def _resume(self, followed: Followed) -> None:
        replica = followed.replica
        if self._is_stopped or not self.fetches.is_current(followed):
            return
        if replica.has_failed_write:
            # Fetching would make it in sync again as soon as there is nothing to write.
            if not self._manager.log_directory.can_write():
                followed.failures += 1
                self._loop.call_later(self._backoff_ms(followed.failures) / 1000, self._resume, followed)
                return
            replica.has_failed_write = False
        self.fetches.resume(followed)
        self._send_soon()

    def _lost(self, error: BaseException | None) -> None:
        self.fetches.lost()
        if error is not None and not isinstance(error, KafkaError):
            log.error("broker %d: cannot fetch from it: %r", self.leader_id, error, exc_info=error)
        self._back_off()

    def _back_off(self) -> None:
        self._failures += 1
        if self._retry is None:
            self._retry = self._loop.call_later(self._backoff_ms(self._failures) / 1000, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._send_now()

    def _backoff_ms(self, failures: int) -> int:
        backoff = Backoff(FIRST_BACKOFF_MS, max(FIRST_BACKOFF_MS, self._manager.config.replica_fetch_backoff_ms))
        return backoff.delay_ms(failures, self._fetchers.random.uniform(-1, 1))
