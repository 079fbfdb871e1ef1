"""When a follower fetches: not while its disk takes no writes, and again soon after; and after lost requests."""

import asyncio
import random
from typing import Any

from ottla.errors import ErrorCode, KafkaError
from ottla.net.client.connection import Answer
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.replication.broker_peers import BrokerPeers
from ottla.replication.fetchers import ReplicaFetchers
from tests.support.worlds.data_world import DataWorld
from tests.support.worlds.log_world import FailingDisk


def test_a_replica_whose_write_failed_is_fetched_when_the_disk_takes_writes_again(tmp_path: Any) -> None:
    """A former leader with a full disk would be in sync at once: it has everything, and nothing is written yet."""
    disk = FailingDisk()
    world = DataWorld(str(tmp_path), disk=disk)
    world.topic("orders", replicas=(1, 0))
    replica = world.replica("orders")

    async def follow() -> ReplicaFetchers:
        fetchers = ReplicaFetchers(world.replicas, BrokerPeers(0), rng=random.Random(1))
        fetchers.follow(replica)
        return fetchers

    disk.fails("append")
    world.replicas.cannot_store(replica)
    fetchers = world.run(follow())
    followed = fetchers._leaders[1].fetches.find(replica)  # noqa: SLF001 - nothing is sent, so nothing else shows it
    assert followed is not None
    world.wait(3_000)
    assert followed.is_delayed
    disk.works()
    world.wait(3_000)
    assert not followed.is_delayed
    assert not replica.has_failed_write
    fetchers.stop()
    world.close()


def test_a_replica_whose_sync_failed_is_not_fetched(tmp_path: Any) -> None:
    """Its fetches would tell the leader that it is in sync."""
    world = DataWorld(str(tmp_path))
    world.topic("orders", replicas=(1, 0))
    replica = world.replica("orders")
    replica.storage_failure = "sync failed"

    async def follow() -> ReplicaFetchers:
        fetchers = ReplicaFetchers(world.replicas, BrokerPeers(0), rng=random.Random(1))
        fetchers.follow(replica)
        return fetchers

    fetchers = world.run(follow())
    assert fetchers._leaders == {}  # noqa: SLF001
    world.close()


class ScriptedPeers(BrokerPeers):
    """Requests are answered by the test."""

    def __init__(self) -> None:
        super().__init__(0)
        self.sent: list[tuple[FetchRequest, asyncio.Future[Answer]]] = []

    def send(self, broker_id: int, api_key: int, build: Any, **details: Any) -> "asyncio.Future[Answer]":
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.sent.append((build(18), answer))
        return answer


def test_an_answer_that_comes_after_its_request_was_given_up_does_not_stop_the_fetches(tmp_path: Any) -> None:
    """One of two requests in flight times out while this broker is suspended; the other is answered later."""
    world = DataWorld(str(tmp_path))
    world.topic("orders", replicas=(1, 0))
    peers = ScriptedPeers()

    async def follow() -> ReplicaFetchers:
        fetchers = ReplicaFetchers(world.replicas, peers, rng=random.Random(1))
        fetchers.follow(world.replica("orders"))
        return fetchers

    fetchers = world.run(follow())
    world.wait()
    (_, answer) = peers.sent[0]
    answer.set_result(Answer(FetchResponse(session_id=7), 18))
    world.wait()
    fetchers._leaders[1].ask_again()  # noqa: SLF001 - as after a registration: a second request, behind the one that waits
    world.wait()
    assert [request.session_epoch for request, _ in peers.sent] == [0, 1, 2]
    peers.sent[2][1].set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer"))
    world.wait()
    peers.sent[1][1].set_result(Answer(FetchResponse(session_id=7), 18))
    world.wait(1_000)
    assert [request.session_id for request, _ in peers.sent[3:]] == [0], "it starts a new session"
    fetchers.stop()
    world.close()
