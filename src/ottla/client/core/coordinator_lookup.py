"""Finds the broker that coordinates a group, and finds it again when it moves. Pure."""

from collections.abc import Callable
from typing import Any

from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.polling import ANY_NODE, Poll, Request
from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff, Retry
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest

GROUP_KEY, TRANSACTION_KEY = 0, 1
"""Key types of FindCoordinator."""

MOVED = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Errors after which the coordinator is looked up again."""


def build_find_coordinator(keys: list[str], key_type: int, version: int) -> FindCoordinatorRequest:
    """FindCoordinator for all keys; before version 4 for the first one only (KIP-699)."""
    if version >= 4:
        return FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
    return FindCoordinatorRequest(key=keys[0], key_type=key_type)


class CoordinatorFinder:
    """Looks the coordinator up on demand, and remembers it."""

    def __init__(
        self, group_id: str, view: ClusterView, *, backoff: Backoff, jitter: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.group_id = group_id
        self.errors: list[Exception] = []
        """Errors that poll() has to raise to the user."""
        self._view = view
        self._node_id: int | None = None
        self._wanted = False
        self._in_flight = False
        self._retry = Retry(backoff, jitter)

    def find(self) -> int | None:
        """The coordinator's node id. If None, the lookup starts or is in progress."""
        if self._node_id is not None and self._node_id not in self._view.brokers:
            # The broker is newer than the metadata, or it is gone and another one coordinates the group.
            self._view.request_update()
            self._node_id = None
        if self._node_id is None:
            self._wanted = True
        return self._node_id

    def note(self, error: ErrorCode, node_id: int | None = None) -> None:
        """Forgets the coordinator `node_id` if the error means that it has moved."""
        if error in MOVED and node_id in (None, self._node_id):
            self._node_id = None

    def note_failure(self, error: KafkaError, node_id: int) -> None:
        """Forgets the coordinator `node_id` if a request to it got no response."""
        if error.retriable:
            self.note(ErrorCode.NETWORK_EXCEPTION, node_id)

    def poll(self, now: int) -> Poll:
        if not self._wanted or self._in_flight or self._node_id is not None:
            return Poll()
        if not self._retry.is_due(now):
            return Poll(wake_at=self._retry.at)
        self._in_flight = True

        def build(version: int) -> FindCoordinatorRequest:
            return build_find_coordinator([self.group_id], GROUP_KEY, version)

        return Poll([Request(ANY_NODE, ApiKey.FIND_COORDINATOR, build, self._on_response, self._on_failure)])

    def _on_response(self, response: Any, version: int, now: int) -> None:
        answer = response.coordinators[0] if response.coordinators else response
        error = ErrorCode(answer.error_code)
        if error != ErrorCode.NONE:
            detail = f"finding the coordinator of group {self.group_id}"
            self._on_failure(KafkaError(error, detail), now)
            return
        self._in_flight = self._wanted = False
        self._retry.succeeded()
        self._node_id = answer.node_id
        # Back off, in case a coordinator is found and fails immediately.
        self._retry.pause(now)

    def _on_failure(self, error: KafkaError, now: int) -> None:
        self._in_flight = False
        self._retry.failed(now)
        if not error.retriable:
            self._wanted = False
            self.errors.append(error)
