"""What a follower requests from its leader, and what it does with each partition of the answer. Pure.

A partition of an answer is used only if nothing has changed since the request: the topic, the leader epoch and the end
of the follower's log. Otherwise it is stale (KAFKA-18991).
"""

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple

from ottla.errors import ErrorCode
from ottla.log.leader_epochs import EpochEndOffset, LeaderEpochCache
from ottla.protocol.fetch_session_epochs import INITIAL_EPOCH, NO_SESSION, next_epoch
from ottla.protocol.messages.fetch import FetchRequest
from ottla.replication.replica import Replica

FetchPartition = FetchRequest.FetchPartition
PartitionKey = tuple[bytes, int]
"""A topic's id and a partition's index."""

IN_FLIGHT_MAX = 2
"""One fetch waits at the leader for records. Another one with changes ends that wait."""


class Followed:
    """One partition that is fetched from a leader, in one leader epoch."""

    __slots__ = ("asked", "asked_in", "failures", "is_delayed", "is_held", "key", "leader_epoch", "replica")

    def __init__(self, replica: Replica, key: PartitionKey, leader_epoch: int) -> None:
        self.replica = replica
        self.key = key
        self.leader_epoch = leader_epoch
        self.asked = -1
        """The offset that was last reported to the leader."""
        self.asked_in = 0
        """The number of the request that reported it."""
        self.failures = 0
        self.is_delayed = False
        """Not fetched now: it failed, or its log is being prepared."""
        self.is_held = False
        """Not fetched again until its log is synced."""


class Do(enum.Enum):
    """What to do with a partition of an answer."""

    APPEND = "append"
    TRUNCATE = "truncate"
    """Remove what the leader does not have, from `offset` on."""
    START_OVER = "start over"
    """Delete everything: the leader's log starts at `offset`, after the end of ours."""
    RETRY = "retry"
    IGNORE = "ignore"


class Step(NamedTuple):
    do: Do
    offset: int = -1


APPEND, RETRY, IGNORE = Step(Do.APPEND), Step(Do.RETRY), Step(Do.IGNORE)


def decide(followed: Followed, answered: int, data: Any) -> Step:
    """What to do with `data`, this partition's part of the answer to request number `answered`."""
    replica = followed.replica
    log = replica.log
    if (
        followed.asked_in > answered
        or followed.is_delayed
        or replica.leader_epoch != followed.leader_epoch
        or replica.is_leader
        or log.log_end_offset != followed.asked
    ):
        return IGNORE
    if data.error_code == ErrorCode.NONE:
        diverging = data.diverging_epoch
        if diverging.end_offset >= 0:
            epoch_end = EpochEndOffset(diverging.epoch, diverging.end_offset)
            return Step(Do.TRUNCATE, divergence(log.leader_epochs, log.log_end_offset, epoch_end))
        return APPEND
    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and data.log_start_offset > log.log_end_offset:
        return Step(Do.START_OVER, data.log_start_offset)
    return RETRY


def divergence(epochs: LeaderEpochCache, log_end_offset: int, leader: EpochEndOffset) -> int:
    """The first offset at which this log may differ from the leader's; `leader` is the end of an epoch in the leader's.

    One truncation may not be enough: the next fetch compares again, until the two logs agree (KIP-279).
    """
    ours = epochs.end_offset_for(leader.leader_epoch, log_end_offset)
    if ours.end_offset < 0:
        return min(leader.end_offset, log_end_offset)
    return min(ours.end_offset, leader.end_offset, log_end_offset)


class Sender(NamedTuple):
    """The broker that fetches."""

    broker_id: int
    broker_epoch: int


class Limits(NamedTuple):
    """How much to request, and how long to wait at the leader."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int


class FetchPlan(NamedTuple):
    """The next request."""

    number: int
    request: FetchRequest
    generation: int


class LeaderFetches:
    """All partitions fetched from one leader, and the fetch session that it keeps for them (KIP-227)."""

    def __init__(self) -> None:
        self.partitions: dict[PartitionKey, Followed] = {}
        self.in_flight = 0
        self.generation = 0
        """Increases when a connection is lost: requests in flight are given up, and late answers are ignored."""
        self._changed: dict[PartitionKey, Followed] = {}
        """To be sent in the next request, because the leader does not have their current state."""
        self._known: set[PartitionKey] = set()
        """What the leader's session contains."""
        self._forgotten: set[PartitionKey] = set()
        """What it contains but should not."""
        self._delayed_count = 0
        self._outsiders: dict[PartitionKey, Followed] = {}
        """Not in sync, as far as we know. Fetches include them even without a change, so that the leader sees them."""
        self._session_id = NO_SESSION
        self._session_epoch = INITIAL_EPOCH
        self._is_session_refused = False
        self._number = 0

    # -- what is fetched --

    def follow(self, replica: Replica) -> Followed:
        """Starts fetching a partition, from the end of its log."""
        key = (replica.topic_id, replica.topic_partition.partition)
        self.unfollow(key)
        self._forgotten.discard(key)
        followed = self.partitions[key] = self._changed[key] = Followed(replica, key, replica.leader_epoch)
        self.in_sync_changed(followed)
        return followed

    def unfollow(self, key: PartitionKey) -> None:
        followed = self.partitions.pop(key, None)
        if followed is not None:
            self._delayed_count -= followed.is_delayed
            self._outsiders.pop(key, None)
            self._leave_out(key)

    def _leave_out(self, key: PartitionKey) -> None:
        self._changed.pop(key, None)
        if key in self._known:
            self._forgotten.add(key)

    def is_current(self, followed: Followed) -> bool:
        """Whether this is the current entry of its partition, not one of an earlier epoch."""
        return self.partitions.get(followed.key) is followed

    def delay(self, followed: Followed) -> None:
        """Leaves a partition out of the next requests, until `resume`."""
        if not followed.is_delayed:
            followed.is_delayed = True
            self._delayed_count += 1
            self._leave_out(followed.key)

    def resume(self, followed: Followed) -> None:
        if followed.is_delayed and self.is_current(followed):
            followed.is_delayed = False
            self._delayed_count -= 1
            self._forgotten.discard(followed.key)
            self.moved(followed)

    def moved(self, followed: Followed) -> None:
        """The end of its log, or its last epoch, has changed: the next request reports it to the leader."""
        if not followed.is_delayed and not followed.is_held:
            self._changed[followed.key] = followed

    def hold(self, followed: Followed) -> None:
        """Does not report the new end to the leader before `release`."""
        followed.is_held = True
        self._changed.pop(followed.key, None)

    def release(self, followed: Followed) -> None:
        followed.is_held = False
        self.moved(followed)

    def in_sync_changed(self, followed: Followed) -> None:
        """The in-sync set of the partition may have changed."""
        if followed.replica.broker_id in followed.replica.isr:
            self._outsiders.pop(followed.key, None)
        else:
            self._outsiders[followed.key] = followed

    def catching_up(self) -> list[Followed]:
        """The partitions of the next request that are not in sync. An earlier request may still include others."""
        if not self.in_flight:
            return [followed for followed in self._outsiders.values() if not followed.is_delayed]
        return [followed for key, followed in self._changed.items() if key in self._outsiders]

    def ask_again(self) -> None:
        """Includes every partition in the next request: this broker has re-registered and has a new epoch."""
        for followed in self.partitions.values():
            self.moved(followed)

    def find(self, replica: Replica) -> Followed | None:
        """The entry of a replica."""
        return self.partitions.get((replica.topic_id, replica.topic_partition.partition))

    # -- requests --

    @property
    def may_send(self) -> bool:
        """Whether the next request is due: there is none in flight, or only one that predates a change."""
        if not self.in_flight:
            return len(self.partitions) > self._delayed_count
        return self.in_flight < IN_FLIGHT_MAX and len(self._changed) > 0 and self._session_id != NO_SESSION

    def next_request(self, sender: Sender, limits: Limits) -> FetchPlan:
        if not self.in_flight:
            for followed in self._outsiders.values():
                self.moved(followed)
        self._number += 1
        self.in_flight += 1
        is_full = self._session_id == NO_SESSION
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=sender.broker_id, replica_epoch=sender.broker_epoch),
            # The first fetch does not wait: changes can be sent only in a session, which its answer starts.
            max_wait_ms=0 if is_full and not self._is_session_refused else limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
        )
        if is_full:
            self._known.clear()
            self._forgotten.clear()
            self._changed = {
                key: each for key, each in self.partitions.items() if not each.is_delayed and not each.is_held
            }
        if self._forgotten:
            request.forgotten_topics_data = [
                FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in _by_topic((key, key[1]) for key in sorted(self._forgotten))
            ]
            self._known -= self._forgotten
            self._forgotten.clear()
        request.topics = [
            FetchRequest.FetchTopic(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in _by_topic(
                (key, self._ask(followed, limits.partition_max_bytes)) for key, followed in self._changed.items()
            )
        ]
        self._known.update(self._changed)
        self._changed.clear()
        if not is_full:
            self._session_epoch = next_epoch(self._session_epoch)
        return FetchPlan(self._number, request, self.generation)

    def _ask(self, followed: Followed, partition_max_bytes: int) -> Any:
        log = followed.replica.log
        followed.asked, followed.asked_in = log.log_end_offset, self._number
        return FetchPartition(
            partition=followed.key[1],
            current_leader_epoch=followed.leader_epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.leader_epochs.latest,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=partition_max_bytes,
        )

    # -- answers --

    def answered(self, plan: FetchPlan, response: Any) -> list[tuple[Followed, Any]]:
        """The partitions of an answer that are still fetched, each with its data.

        If the leader does not know the session, the next request starts a new one.
        """
        self.in_flight -= 1
        if response.error_code != ErrorCode.NONE:
            self._end_session()
            return []
        if plan.request.session_epoch == INITIAL_EPOCH:
            self._is_session_refused = response.session_id == NO_SESSION
            self._session_id = response.session_id
            self._session_epoch = INITIAL_EPOCH if self._is_session_refused else next_epoch(INITIAL_EPOCH)
        elif response.session_id != self._session_id:
            self._end_session()
        partitions = self.partitions
        return [
            (followed, data)
            for topic in response.responses
            for data in topic.partitions
            if (followed := partitions.get((topic.topic_id, data.partition_index))) is not None
        ]

    def lost(self) -> None:
        """The connection is gone, and with it everything in flight."""
        self.in_flight = 0
        self.generation += 1
        self._end_session()

    def _end_session(self) -> None:
        self._session_id, self._session_epoch = NO_SESSION, INITIAL_EPOCH
        self._known.clear()
        self._forgotten.clear()
        self._changed.update(
            (key, each) for key, each in self.partitions.items() if not each.is_delayed and not each.is_held
        )


def _by_topic(entries: Iterable[tuple[PartitionKey, Any]]) -> Iterable[tuple[bytes, list[Any]]]:
    topics: dict[bytes, list[Any]] = {}
    for key, entry in entries:
        topics.setdefault(key[0], []).append(entry)
    return topics.items()
