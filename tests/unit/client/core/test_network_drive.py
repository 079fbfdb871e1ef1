"""How the network drives deciders: one that fails stops neither the others nor waiting calls."""

import logging

import pytest

from ottla.client.core.network import Network
from ottla.client.core.polling import ANY_NODE, Poll, Request
from ottla.client.core.settings import ClientConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.net.client.peers import Peers
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.testing.world import BOOTSTRAP, World
from ottla.types import Endpoint


class Ticking:
    """Wants to be asked every second."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def poll(self, now: int) -> Poll:
        if not self.asked or now >= self.asked[-1] + 1_000:
            self.asked.append(now)
        return Poll(wake_at=self.asked[-1] + 1_000)


class Failing:
    def __init__(self, times: int) -> None:
        self.left = times

    def poll(self, now: int) -> Poll:
        self.left -= 1
        if self.left >= 0:
            raise LookupError("a mistake")
        return Poll()


class FailingCallback:
    """Asks once, and fails when it gets the answer."""

    def __init__(self) -> None:
        self.has_heard = self.has_asked = False

    def poll(self, now: int) -> Poll:
        if self.has_asked:
            return Poll()
        self.has_asked = True
        request = MetadataRequest(topics=[])
        return Poll([Request(ANY_NODE, ApiKey.METADATA, lambda version: request, self.hear, lambda *_: None)])

    def hear(self, *_: object) -> None:
        self.has_heard = True
        raise LookupError("a mistake")


def test_a_decider_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        network = Network(ClientConfig(bootstrap_servers=(BOOTSTRAP,)), clock=world.loop.clock)
        ticking = Ticking()
        network.add(Failing(3))
        network.add(ticking)
        assert await network.until(lambda: len(ticking.asked) > 5, 10_000)
        await network.close()

    with caplog.at_level(logging.ERROR, "ottla.client"):
        World(1).run(story)
    assert "a mistake" in caplog.text


def test_addresses_that_left_the_cluster_are_forgotten() -> None:
    """Brokers may come back under new addresses: the outages of old ones must not pile up."""
    peers = Peers(client_id="c")
    for port in range(1, 100):
        endpoint = Endpoint("h", port)
        peers.set_nodes({1: endpoint})
        peers.note_outage(endpoint, KafkaError(ErrorCode.NETWORK_EXCEPTION, "refused"))
    assert len(peers._unreachable) == 1  # noqa: SLF001 - nothing else shows what is remembered


def test_a_call_that_waits_for_a_response_is_woken_even_if_a_callback_fails() -> None:
    async def story(world: World) -> None:
        network = Network(ClientConfig(bootstrap_servers=(BOOTSTRAP,)), clock=world.loop.clock)
        await network.until_connected()
        failing = FailingCallback()
        network.add(failing)
        started = world.loop.time()
        assert await network.until(lambda: failing.has_heard, 60_000)
        assert world.loop.time() - started < 1
        await network.close()

    World(1).run(story)
