"""The interface of deciders: `poll(now)` returns what to send, and when to poll again. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ottla.errors import KafkaError

ANY_NODE = -1_000_000
"""As a destination: the broker with the fewest requests in flight."""
CONTROLLER = -1_000_001
"""As a destination: the controller."""


@dataclass(slots=True)
class Request:
    """A request that a decider wants to send, and its callbacks. `now` is in milliseconds."""

    destination: int
    api_key: int
    build: Callable[[int], Any]
    """Builds the message in the version that the connection negotiated."""
    on_response: Callable[[Any, int, int], None]
    """Called with the response, its version, and now."""
    on_failure: Callable[[KafkaError, int], None]
    """Called with the error and now if there will be no response."""
    lane: str = ""
    max_version: int | None = None
    timeout_ms: int | None = None
    expects_response: bool = True


@dataclass(slots=True)
class Poll:
    """The result of poll(): requests to send now, and when to poll again if nothing happens before."""

    requests: list[Request] = field(default_factory=list)
    wake_at: int | None = None

    def wake_by(self, at: int | None) -> None:
        """Requests the next poll at `at` at the latest."""
        if at is not None and (self.wake_at is None or at < self.wake_at):
            self.wake_at = at


class Decider(Protocol):
    """Decides what to send. Does no I/O itself."""

    def poll(self, now: int) -> Poll: ...
