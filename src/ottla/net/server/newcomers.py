"""Connections whose peers have not authenticated yet: their limit, and which are cut. Pure."""

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Newcomers(Generic[T]):
    """The newcomers of a server, by their address.

    When there are too many, the oldest one of the address with the most is cut: a peer that opens thousands of
    connections and does not authenticate evicts its own connections, not those of others.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._by_host: dict[str, dict[T, float]] = {}
        self._hosts: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def __contains__(self, who: T) -> bool:
        return who in self._hosts

    def add(self, who: T, host: str, now: float) -> T | None:
        """Returns the connection to cut to make room; None if there is room."""
        self._hosts[who] = host
        self._by_host.setdefault(host, {})[who] = now
        if len(self._hosts) <= self.limit:
            return None
        crowd = max(self._by_host.values(), key=len)
        return next(iter(crowd))

    def replace(self, who: T, other: T) -> None:
        """`other` replaces `who` and inherits its age."""
        host = self._hosts.get(who)
        if host is not None:
            since = self._by_host[host][who]
            self.remove(who)
            self._hosts[other] = host
            self._by_host.setdefault(host, {})[other] = since

    def remove(self, who: T) -> None:
        """Called when it has authenticated or is closed."""
        host = self._hosts.pop(who, None)
        if host is not None:
            crowd = self._by_host[host]
            del crowd[who]
            if not crowd:
                del self._by_host[host]

    def older_than(self, oldest: float) -> list[T]:
        """Those added before `oldest`."""
        return [who for crowd in self._by_host.values() for who, since in crowd.items() if since < oldest]
