"""Requests from this broker to the others: the cluster's image says who they are and where they listen."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.metadata.image import ClusterImage
from ottla.net.backoff import Backoff
from ottla.net.client.client_security import ClientSecurity
from ottla.net.client.peers import Peers

if TYPE_CHECKING:
    import asyncio

    from ottla.net.client.connection import Answer

BROKER_CLIENT_ID = "broker-"
"""Brokers append their id to it when they send requests to each other."""
FETCH_LANE = "fetch"
"""The connection for replica fetches: they wait at the leader, and would hold up every request behind them."""

CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 30_000
RECONNECT_BACKOFF = Backoff(20, 1_000)


class BrokerPeers:
    """Sends requests to the other brokers of the cluster, by id. Requests to one broker and lane stay in order."""

    def __init__(
        self,
        broker_id: int,
        listener: str | None = None,
        *,
        security: ClientSecurity | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`listener` is inter.broker.listener.name; None for the first listener of each broker.

        `security` is how to connect to that listener; None for plain TCP.
        """
        self.broker_id = broker_id
        self._listener = listener
        self._peers = Peers(
            client_id=f"{BROKER_CLIENT_ID}{broker_id}",
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            reconnect_backoff=RECONNECT_BACKOFF,
            security=security,
            rng=rng,
        )

    def apply(self, image: ClusterImage) -> None:
        """Updates the addresses from the registered brokers.

        Requests to a broker that is no longer registered, or has moved, fail at once with NETWORK_EXCEPTION.
        """
        nodes = {}
        for broker in image.brokers.values():
            endpoint = broker.endpoints.get(self._listener) if self._listener is not None else None
            if endpoint is None and broker.endpoints:
                endpoint = next(iter(broker.endpoints.values()))
            if endpoint is not None:
                nodes[broker.broker_id] = endpoint
        self._peers.set_nodes(nodes)

    def is_known(self, broker_id: int) -> bool:
        """Whether a broker is registered. Requests to any other fail."""
        return broker_id in self._peers.nodes

    def send(
        self,
        broker_id: int,
        api_key: int,
        build: Callable[[int], Any],
        *,
        lane: str = "",
        max_version: int | None = None,
        timeout_ms: int | None = None,
    ) -> "asyncio.Future[Answer]":
        """Sends a request, and connects first if necessary. `build(version)` creates the message.

        Fails with NETWORK_EXCEPTION or REQUEST_TIMED_OUT; the other broker may have executed it nevertheless.
        """
        return self._peers.send(broker_id, api_key, build, lane=lane, max_version=max_version, timeout_ms=timeout_ms)

    async def close(self) -> None:
        """Closes every connection. Pending requests fail with NETWORK_EXCEPTION."""
        await self._peers.close()
