"""A client above a quota: it sends nothing while the broker does not read (KIP-219). In simulated time."""

import asyncio
from typing import Any

import pytest

from ottla.net.client.connection import Connection
from ottla.net.client.peers import THROTTLED_LOAD
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataResponse
from tests.unit.net.client.test_client_connection import HERE, Broker, friendly, metadata, peers, simulate

TIMEOUT_MS = 1_000


class Quota:
    """Demands a pause of `throttle_ms` in its first answers, and reads nothing during it."""

    def __init__(self, throttle_ms: int, answers: int = 1, fetch_version: int = 12) -> None:
        self.throttle_ms = throttle_ms
        self.fetch_version = fetch_version
        self.left = answers
        self.arrivals: list[float] = []
        self.muted_until = 0.0

    def __call__(self, broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        loop = asyncio.get_running_loop()
        if api_key == ApiKey.API_VERSIONS:
            made = ApiVersionsResponse.ApiVersion
            ranges = ((ApiKey.METADATA, 12), (ApiKey.API_VERSIONS, 3), (ApiKey.FETCH, self.fetch_version))
            keys = [made(api_key=key, min_version=0, max_version=last) for key, last in ranges]
            broker.answer(api_key, version, correlation_id, ApiVersionsResponse(api_keys=keys))
            return
        self.arrivals.append(round(loop.time(), 1))
        self._answer(broker, api_key, version, correlation_id)

    def _answer(self, broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self.muted_until:
            loop.call_at(self.muted_until, self._answer, broker, api_key, version, correlation_id)
            return
        throttle_ms = 0
        if self.left:
            self.left -= 1
            throttle_ms = self.throttle_ms
            self.muted_until = loop.time() + throttle_ms / 1000
        answer = MetadataResponse(cluster_id=f"answer {correlation_id}", throttle_time_ms=throttle_ms)
        broker.answer(api_key, version, correlation_id, answer)


def test_a_pause_longer_than_the_request_timeout_costs_no_request() -> None:
    quota = Quota(5 * TIMEOUT_MS)

    async def story() -> None:
        connection = await Connection.open(HERE, request_timeout_ms=TIMEOUT_MS)
        await connection.send(ApiKey.METADATA, metadata)
        assert connection.is_throttled
        held = [connection.send(ApiKey.METADATA, metadata) for _ in range(3)]
        assert connection.in_flight == 3
        assert [(await each).message.cluster_id for each in held] == ["answer 2", "answer 3", "answer 4"]
        assert quota.arrivals[1] - quota.arrivals[0] >= 5
        assert not connection.is_throttled
        await connection.send(ApiKey.METADATA, metadata)

    simulate(story, quota)


def test_requests_on_their_way_get_the_time_of_the_pause() -> None:
    quota = Quota(5 * TIMEOUT_MS, answers=2)

    async def story() -> None:
        connection = await Connection.open(HERE, request_timeout_ms=TIMEOUT_MS)
        sent = [connection.send(ApiKey.METADATA, metadata) for _ in range(4)]
        assert [(await each).message.cluster_id for each in sent] == [f"answer {number}" for number in range(1, 5)]
        assert quota.arrivals[-1] < 1, "they were sent before the client knew of the pause"

    simulate(story, quota)


def test_a_broker_that_is_silent_after_the_pause_times_out() -> None:
    def silent_after_one(broker: Broker, api_key: int, version: int, correlation_id: int) -> None:
        if broker.asked.count((ApiKey.METADATA, version)) < 2:
            quota(broker, api_key, version, correlation_id)

    quota = Quota(5 * TIMEOUT_MS)

    async def story() -> None:
        connection = await Connection.open(HERE, request_timeout_ms=TIMEOUT_MS)
        await connection.send(ApiKey.METADATA, metadata)
        with pytest.raises(Exception, match=r"REQUEST_TIMED_OUT: .* within 1000 ms"):
            await connection.send(ApiKey.METADATA, metadata)
        assert 6 <= asyncio.get_running_loop().time() - quota.arrivals[0] < 7

    simulate(story, silent_after_one)


def test_brokers_that_have_paused_before_they_answer_are_asked_at_once() -> None:
    """Before Kafka 2.0 the time in the response was over when the response came."""
    quota = Quota(5 * TIMEOUT_MS, fetch_version=7)

    async def story() -> None:
        connection = await Connection.open(HERE)
        await connection.send(ApiKey.METADATA, metadata)
        assert not connection.is_throttled
        again = connection.send(ApiKey.METADATA, metadata)
        await asyncio.sleep(1)
        assert len(quota.arrivals) == 2
        await again

    simulate(story, quota)


def test_a_connection_that_closes_in_a_pause_fails_what_it_holds() -> None:
    async def story() -> None:
        connection = await Connection.open(HERE)
        await connection.send(ApiKey.METADATA, metadata)
        held = connection.send(ApiKey.METADATA, metadata)
        connection.close()
        assert not connection.is_throttled
        with pytest.raises(Exception, match="was closed"):
            await held

    simulate(story, Quota(5_000))


def test_other_nodes_are_preferred_to_one_that_demands_a_pause() -> None:
    demanded: list[Any] = []

    async def story() -> None:
        nodes = peers(on_throttled=lambda *pause: demanded.append(pause))
        await nodes.send(0, ApiKey.METADATA, metadata)
        assert nodes.load(0) == THROTTLED_LOAD
        assert demanded == [(ApiKey.METADATA, 5_000)]
        await asyncio.sleep(6)
        assert nodes.load(0) == 0
        await nodes.close()

    simulate(story, Quota(5_000))


def test_without_a_pause_nothing_is_held() -> None:
    async def story() -> None:
        connection = await Connection.open(HERE)
        await connection.send(ApiKey.METADATA, metadata)
        assert not connection.is_throttled

    simulate(story, friendly)
