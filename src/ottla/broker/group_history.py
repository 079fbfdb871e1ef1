"""OWNER of the rebalance history: logs each completed rebalance, and writes it to a bounded topic."""

import asyncio
import json
import logging
from collections import deque
from typing import Any

from ottla.coordinator.group.history import Rebalanced
from ottla.errors import KafkaError
from ottla.log.partition_log import Origin
from ottla.metadata.controller import NewTopic
from ottla.metadata.follower import MetadataFollower
from ottla.protocol.record_batch import build_batch
from ottla.replication.replica_manager import ReplicaManager
from ottla.types import REBALANCES_TOPIC, TopicPartition

log = logging.getLogger("ottla.coordinator")

_SETTINGS = (
    ("cleanup.policy", "delete"),
    ("retention.ms", str(7 * 86_400_000)),
    ("retention.bytes", str(16 * 1024 * 1024)),
    ("segment.bytes", str(1024 * 1024)),
)
_PARTITION = TopicPartition(REBALANCES_TOPIC, 0)

WAITING_MAX = 1_000
"""How many notes are kept while the topic cannot be written; the oldest are dropped."""
BATCH_BYTES = 256 * 1024
NOTE_BYTES = 128 * 1024
NOTE_PARTITIONS = 20_000
"""Very large groups have long assignments: a larger note only has the number of partitions of each member."""

Row = tuple[int, bytes, bytes, tuple[()]]


class GroupHistory:
    """Records why groups rebalance. A failure to do so never affects a group."""

    def __init__(self, metadata: MetadataFollower, replicas: ReplicaManager) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._waiting: deque[Row] = deque(maxlen=WAITING_MAX)
        self._writer: asyncio.Task[None] | None = None
        self._has_failed = False

    def note(self, event: Rebalanced) -> None:
        try:
            log.info("%s", describe(event))
            self._waiting.append((event.finished, event.group_id.encode(), to_record(event), ()))
            if self._writer is None:
                self._start()
        except Exception:
            log.exception("group %s: cannot record its rebalance", event.group_id)

    def stop(self) -> None:
        """Writes what is left, if that is possible without waiting."""
        if self._writer is not None:
            self._writer.cancel()
        if self._waiting and REBALANCES_TOPIC in self._replicas.topics:
            try:
                self._write_waiting()
            except (KafkaError, OSError) as error:
                log.warning("cannot write the last entries of the rebalance history: %s", error)

    def _start(self) -> None:
        self._writer = asyncio.get_running_loop().create_task(self._write())
        self._writer.add_done_callback(self._written)

    async def _write(self) -> None:
        if REBALANCES_TOPIC not in self._replicas.topics:
            await self._metadata.ensure_topics([NewTopic(REBALANCES_TOPIC, 1, 1, configs=_SETTINGS)])
        self._write_waiting()

    def _write_waiting(self) -> None:
        while self._waiting:
            rows: list[Row] = []
            size = 0
            while self._waiting and size < BATCH_BYTES:
                rows.append(self._waiting.popleft())
                size += len(rows[-1][2])
            self._replicas.append(_PARTITION, build_batch(rows), acks=1, origin=Origin.COORDINATOR)

    def _written(self, writer: "asyncio.Task[None]") -> None:
        self._writer = None
        if writer.cancelled():
            return
        error = writer.exception()
        if error is not None:
            self._waiting.clear()
            trace = None if isinstance(error, KafkaError | OSError) else error
            if not self._has_failed:
                log.warning("cannot write the rebalance history: %s", error, exc_info=trace)
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
    value = json.dumps(to_json(event), separators=(",", ":")).encode()
    if len(value) > NOTE_BYTES:
        value = json.dumps(to_json(_shortened(event)), separators=(",", ":")).encode()
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
