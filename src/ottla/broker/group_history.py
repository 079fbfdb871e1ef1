"""OWNER of the rebalance history: logs each completed rebalance, and writes it to a bounded topic."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.coordinator.group.history import Rebalanced
from ottla.errors import ErrorCode, KafkaError
from ottla.log.partition_log import Origin
from ottla.metadata.changes.cluster_changes import ClusterChanges
from ottla.metadata.changes.topic_changes import NewTopic
from ottla.metadata.records import NO_LEADER
from ottla.net.backoff import Backoff
from ottla.protocol.records.record_batch import build_batch
from ottla.replication.replica_manager import ReplicaManager
from ottla.types import REBALANCES_TOPIC, TopicPartition, compact_json

if TYPE_CHECKING:
    from ottla.replication.broker_peers import BrokerPeers

log = logging.getLogger("ottla.coordinator")

_PARTITION = TopicPartition(REBALANCES_TOPIC, 0)
_LANE = "history"

WAITING_MAX = 1_000
"""How many entries are kept while the topic cannot be written; the oldest are dropped."""
WAITING_BYTES = 4 * 1024 * 1024
BATCH_BYTES = 256 * 1024
NOTE_BYTES = 128 * 1024
NOTE_PARTITIONS = 20_000
"""Very large groups have long assignments: a larger entry only has the number of partitions of each member."""
WRITE_TIMEOUT_MS = 5_000
RETRIES = 10
RETRY = Backoff(100, 5_000)
_RETRIED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
)
"""The partition's leader is changing, or does not know the new topic yet."""

Row = tuple[int, bytes, bytes, tuple[()]]


class GroupHistory:
    """Records why groups rebalance, in a topic that any broker may lead. A failure to do so never affects a group."""

    def __init__(
        self,
        changes: ClusterChanges,
        replicas: ReplicaManager,
        new_topic: Callable[[], NewTopic],
        peers: "BrokerPeers | None" = None,
    ) -> None:
        self._changes = changes
        self._replicas = replicas
        self._new_topic = new_topic
        self._peers = peers
        self._waiting: deque[Row] = deque()
        self._waiting_bytes = 0
        self._writer: asyncio.Task[None] | None = None
        self._has_failed = False

    def note(self, event: Rebalanced) -> None:
        try:
            log.info("%s", describe(event))
            self._keep((event.finished, event.group_id.encode(), to_record(event), ()))
            if self._writer is None:
                self._start()
        except Exception:
            log.exception("group %s: cannot record its rebalance", event.group_id)

    def stop(self) -> None:
        """Writes what is left, if that is possible without waiting."""
        if self._writer is not None:
            self._writer.cancel()
        try:
            while self._waiting and self._leader() == self._replicas.broker_id:
                self._append(build_batch(self._take()))
        except (KafkaError, OSError) as error:
            log.warning("rebalance history: cannot write the last entries: %s", error)

    def _keep(self, row: Row) -> None:
        self._waiting.append(row)
        self._waiting_bytes += len(row[2])
        while len(self._waiting) > WAITING_MAX or self._waiting_bytes > WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft()[2])

    def _take(self) -> list[Row]:
        """The next batch."""
        rows: list[Row] = []
        size = 0
        while self._waiting and size < BATCH_BYTES:
            rows.append(self._waiting.popleft())
            size += len(rows[-1][2])
        self._waiting_bytes -= size
        return rows

    def _start(self) -> None:
        self._writer = asyncio.get_running_loop().create_task(self._write())
        self._writer.add_done_callback(self._written)

    async def _write(self) -> None:
        if self._leader() is None:
            await self._changes.ensure_topics([self._new_topic()])
        while self._waiting:
            await self._write_batch(build_batch(self._take()))

    async def _write_batch(self, batch: bytes) -> None:
        for failures in range(1, RETRIES + 1):
            try:
                leader = self._leader()
                if leader is None or leader == self._replicas.broker_id:
                    self._append(batch)
                else:
                    await self._send(leader, batch)
                return
            except KafkaError as error:
                if error.code not in _RETRIED or failures == RETRIES:
                    raise
                log.debug("rebalance history: cannot be written yet, will be retried: %s", error)
            await asyncio.sleep(RETRY.delay_ms(failures, 0.0) / 1000)

    def _leader(self) -> int | None:
        """The broker that leads the topic's partition, NO_LEADER if none does; None if the topic does not exist."""
        image = self._replicas.image
        found = None if image is None else image.find_partition(_PARTITION)
        return None if found is None else found.leader

    def _append(self, batch: bytes) -> None:
        self._replicas.append(_PARTITION, batch, acks=1, origin=Origin.COORDINATOR)

    async def _send(self, leader: int, batch: bytes) -> None:
        from ottla.protocol.api import ApiKey
        from ottla.protocol.messages.produce import ProduceRequest

        if self._peers is None or leader == NO_LEADER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{_PARTITION} has no leader")
        request = ProduceRequest(
            acks=1,
            timeout_ms=WRITE_TIMEOUT_MS,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=_PARTITION.topic,
                    partition_data=[
                        ProduceRequest.PartitionProduceData(index=_PARTITION.partition, records=batch),
                    ],
                )
            ],
        )
        # Up to version 12 the topic is named; from 13 on it would be its id.
        answer = await self._peers.send(
            leader, ApiKey.PRODUCE, lambda version: request, lane=_LANE, max_version=12, timeout_ms=WRITE_TIMEOUT_MS
        )
        result = answer.message.responses[0].partition_responses[0]
        if result.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(result.error_code), result.error_message or "")

    def _written(self, writer: "asyncio.Task[None]") -> None:
        self._writer = None
        if writer.cancelled():
            return
        error = writer.exception()
        if error is not None:
            self._waiting.clear()
            self._waiting_bytes = 0
            trace = None if isinstance(error, KafkaError | OSError) else error
            if not self._has_failed:
                log.warning("rebalance history: cannot be written: %s", error, exc_info=trace)
        elif self._waiting:
            self._start()
        self._has_failed = error is not None


def describe(event: Rebalanced) -> str:
    """One line for the log.

    >>> from ottla.coordinator.group.history import Cause
    >>> describe(Rebalanced("g", 2, 0, 40, "range", "a-1", [Cause("left", "b-2", "closed")], {}, {"a-1": {}}))
    "group g: generation 2 after 40 ms, 1 member, because b-2 left ('closed')"
    """
    causes = [cause.describe() for cause in event.causes[:3]]
    if len(event.causes) > 3:
        causes.append(f"and {len(event.causes) - 3} more")
    members = "1 member" if len(event.after) == 1 else f"{len(event.after)} members"
    return (
        f"group {event.group_id}: generation {event.generation} after {event.finished - event.started} ms, "
        f"{members}, because {'; '.join(causes) or 'of an unknown cause'}"
    )


def to_record(event: Rebalanced) -> bytes:
    """The record's value. If the assignments are too long, only the number of partitions of each member."""
    if _size(event.before) + _size(event.after) > NOTE_PARTITIONS:
        event = _shortened(event)
    value = compact_json(to_json(event))
    if len(value) > NOTE_BYTES:
        value = compact_json(to_json(_shortened(event)))
    return value


def _size(assignments: dict[str, Any]) -> int:
    return sum(sum(map(len, had.values())) for had in assignments.values() if isinstance(had, dict))


def to_json(event: Rebalanced) -> dict[str, Any]:
    """What happened and why, and the assignments before and after."""
    return {
        "group": event.group_id,
        "generation": event.generation,
        "started_ms": event.started,
        "duration_ms": event.finished - event.started,
        "protocol": event.protocol,
        "leader": event.leader,
        "causes": [{"what": what, "member": who, "reason": reason} for what, who, reason in event.causes],
        "before": event.before,
        "after": event.after,
    }


def _shortened(event: Rebalanced) -> Rebalanced:
    def count(assignments: dict[str, Any]) -> dict[str, Any]:
        if len(assignments) > 1_000:
            return {"": f"{len(assignments)} members"}
        return {
            who: f"{sum(map(len, had.values()))} partitions" if isinstance(had, dict) else had
            for who, had in assignments.items()
        }

    return event._replace(before=count(event.before), after=count(event.after))
