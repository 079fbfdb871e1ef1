"""Health checks for operators and their tools: whether a broker is alive, ready, and safe to stop. Pure.

`/healthz` is answered while the event loop runs, also during a long recovery: restarting a broker because it does not
serve yet would only restart its recovery. `/readyz` reports whether it serves. `/safe-to-stop` reports whether every
partition that can survive a stop would survive it now.
"""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ottla.broker.monitoring.http_endpoint import Page
from ottla.coordinator.hosted import ShardState
from ottla.metadata.image import ClusterImage, PartitionImage
from ottla.types import others_needed_in_sync

if TYPE_CHECKING:
    from ottla.broker.services import Services
    from ottla.clock import MonotonicClock

STARTING, SERVING, STOPPING = "starting", "serving", "stopping"
STUCK_MS = 60_000
"""A coordinator partition that has been loading for longer than this is reported."""
SHOWN = 20
"""The most partitions that an answer lists."""


class Health:
    """The state of one broker, for the pages of its HTTP endpoint."""

    def __init__(self, broker_id: int, monotonic: "MonotonicClock") -> None:
        self._broker_id = broker_id
        self._monotonic = monotonic
        self.phase = STARTING
        """What the broker is doing: SERVING, STOPPING, or the step of its start."""
        self.services: Services | None = None
        """The broker's parts, when they are complete."""
        self._loading_since: dict[tuple[str, int], int] = {}
        """When each coordinator partition was first seen loading, by name and epoch."""

    def pages(self) -> dict[bytes, Callable[[], Page]]:
        """The pages by path."""
        return {b"/healthz": self.healthz, b"/readyz": self.readyz, b"/safe-to-stop": self.safe_to_stop}

    def healthz(self) -> Page:
        """The event loop runs, or there would be no answer."""
        return _page(True, {"broker": self._broker_id, "phase": self.phase})

    def readyz(self) -> Page:
        reasons = list(self.reasons_not_ready())
        return _page(not reasons, {"broker": self._broker_id, "phase": self.phase, "reasons": reasons})

    def safe_to_stop(self) -> Page:
        """Whether every partition stays available if this broker stops now."""
        reasons = [] if self.phase in (SERVING, STOPPING) else [f"the broker is {self.phase}"]
        found: dict[str, Any] = {"broker": self._broker_id, "phase": self.phase}
        services = self.services
        if services is not None and not reasons:
            if not services.metadata.is_session_confirmed:
                reasons.append("the metadata store does not answer, so this broker's metadata may be stale")
            # The answer depends on the image only: it is computed once for each.
            memo = services.image.memo
            if self not in memo:
                memo[self] = losses(services, self._broker_id)
            blocking, unprotected = memo[self]
            if blocking:
                reasons.append(f"{len(blocking)} partitions need this broker's replica until others are in sync")
            found |= {"waits_for": blocking[:SHOWN], "never_protected": len(unprotected)}
        return _page(not reasons, found | {"reasons": reasons})

    def reasons_not_ready(self) -> Iterator[str]:
        services = self.services
        if self.phase != SERVING or services is None:
            yield f"the broker is {self.phase}"
            return
        if not services.metadata.is_session_confirmed:
            yield "the session with the metadata store is not confirmed: other brokers may have taken over"
        registered = services.image.brokers.get(self._broker_id)
        if registered is None or registered.epoch != services.metadata.broker_epoch:
            yield "the broker is not registered in the cluster"
        yield from self._stuck_shards(services)

    def _stuck_shards(self, services: "Services") -> Iterator[str]:
        now, loading = self._monotonic(), {}
        for runtime in [] if services.coordinators is None else services.coordinators.runtimes():
            for hosted in runtime.hosted_shards():
                if hosted.state is ShardState.FAILED:
                    yield f"{hosted.name} cannot be loaded: {hosted.failure}"
                elif hosted.state is ShardState.LOADING:
                    key = (hosted.name, hosted.epoch)
                    loading[key] = self._loading_since.get(key, now)
                    if now - loading[key] > STUCK_MS:
                        yield f"{hosted.name} has been loading for {(now - loading[key]) // 1000} s"
        self._loading_since = loading


def losses(services: "Services", broker_id: int) -> tuple[list[str], list[str]]:
    """The partitions that a stop of this broker would harm: those that need only wait for other replicas to be in sync,
    and those that have too few replicas ever to be protected."""
    image, waiting, unprotected = services.image, [], []
    for topic in image.topics.values():
        minimum = services.settings.min_insync_replicas(image, topic)
        for partition in topic.partitions:
            if broker_id not in partition.replicas:
                continue
            needed = others_needed_in_sync(len(partition.replicas), minimum)
            if needed < max(1, minimum):
                unprotected.append(f"{topic.name}-{partition.index}")
            if _others_in_sync(image, partition, broker_id) < needed:
                waiting.append(f"{topic.name}-{partition.index}")
    return waiting, unprotected


def _others_in_sync(image: ClusterImage, partition: PartitionImage, broker_id: int) -> int:
    """Members of the in-sync set that would remain. One that is gone or leaving does not count, although it may still
    be a member: the last one always is."""
    alive = (image.brokers.get(member) for member in partition.isr if member != broker_id)
    return sum(member is not None and not member.is_leaving for member in alive)


def _page(is_good: bool, document: dict[str, Any]) -> Page:
    status = b"200 OK" if is_good else b"503 Service Unavailable"
    body = json.dumps({"ok": is_good} | document).encode() + b"\n"
    return Page(body, "application/json", status)
