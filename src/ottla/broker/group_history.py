"""OWNER of the rebalance history: a line in the log and a record in a bounded topic for each rebalance that ended."""

import asyncio
import json
import logging
from typing import Any

from ottla.clock import Clock
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


class GroupHistory:
    """Writes down why groups rebalance. Losing a line of it never disturbs a group."""

    def __init__(self, metadata: MetadataFollower, replicas: ReplicaManager, clock: Clock) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._clock = clock
        self._unwritten: list[tuple[int, bytes, bytes, tuple[()]]] = []
        self._writer: asyncio.Task[None] | None = None

    def note(self, event: Rebalanced) -> None:
        log.info(
            "group %s: generation %d after %d ms, %d members, because %s",
            event.group_id,
            event.generation,
            event.finished - event.started,
            len(event.after),
            "; ".join(f"{who} {what}" for what, who, _ in event.causes[:3]) or "nobody is left",
        )
        value = json.dumps(to_json(event), separators=(",", ":")).encode()
        self._unwritten.append((event.finished, event.group_id.encode(), value, ()))
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())
            self._writer.add_done_callback(self._written)

    async def _write(self) -> None:
        if REBALANCES_TOPIC not in self._replicas.topics:
            await self._metadata.ensure_topics([NewTopic(REBALANCES_TOPIC, 1, 1, configs=_SETTINGS)])
        records, self._unwritten = self._unwritten, []
        self._replicas.append(_PARTITION, build_batch(records), acks=1, origin=Origin.COORDINATOR)

    def _written(self, writer: "asyncio.Task[None]") -> None:
        self._writer = None
        if writer.cancelled():
            return
        error = writer.exception()
        if isinstance(error, KafkaError | OSError):
            log.warning("the rebalance history cannot be written: %s", error)
            self._unwritten.clear()
        elif error is not None:
            log.error("the rebalance history cannot be written", exc_info=error)
            self._unwritten.clear()
        elif self._unwritten:
            self._writer = asyncio.get_running_loop().create_task(self._write())
            self._writer.add_done_callback(self._written)

    def stop(self) -> None:
        if self._writer is not None:
            self._writer.cancel()


def to_json(event: Rebalanced) -> dict[str, Any]:
    """The record's value: what happened, why, and who had which partitions before and after."""
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
