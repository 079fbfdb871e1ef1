"""The shape every decider has: `poll(now)` says what to send and when to ask again. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ottla.errors import KafkaError

ANY_NODE = -1_000_000
"""As a destination: whichever broker has the least to do."""
CONTROLLER = -1_000_001
"""As a destination: the broker that decides about topics."""


@dataclass(slots=True)
class Request:
    """A request that a decider wants sent, and who wants to hear of it. `now` is in milliseconds."""

    destination: int
    api_key: int
    build: Callable[[int], Any]
    """Makes the message in the version that the connection agreed on."""
    on_response: Callable[[Any, int, int], None]
    """Called with the response, its version, and now."""
    on_failure: Callable[[KafkaError, int], None]
    """Called with the error and now when there will be no response."""
    lane: str = ""
    max_version: int | None = None
    timeout_ms: int | None = None
    expects_response: bool = True


@dataclass(slots=True)
class Poll:
    """What a decider answers: requests to send now, and when to ask again if nothing happens before."""

    requests: list[Request] = field(default_factory=list)
    wake_at: int | None = None

    def wake_by(self, at: int | None) -> None:
        """Asks to be polled at `at` at the latest."""
        if at is not None and (self.wake_at is None or at < self.wake_at):
            self.wake_at = at


class Decider(Protocol):
    """Decides, and sends nothing itself."""

    def poll(self, now: int) -> Poll: ...
