"""A stage for transactions in a simulated cluster: coordinator, partitions and group on chosen brokers, and producers
of raw requests that find them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.errors import ErrorCode
from ottla.metadata.changes.topic_changes import NewTopic
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.schema import Message
from ottla.testing.cluster_world import PORT, ClusterWorld
from ottla.types import partition_for
from tests.support.wire.transactional import NEW, Protocol, RawClient, TransactionalProducer

COORDINATOR, GROUPS = 0, 1
"""The brokers that lead `__transaction_state` and `__consumer_offsets`. Broker 2 leads neither; each of the three leads
the partition of `t` with its number."""

FACTORS = ("offsets_topic_replication_factor", "transaction_state_log_replication_factor")


class RoutedClient(RawClient):
    """Sends each request to the broker that it is for."""

    def __init__(self, world: ClusterWorld, client_id: str = "raw") -> None:
        super().__init__(f"{world.brokers[0].address}:{PORT}", client_id)
        self._world = world
        self._clients = {each.id: RawClient(f"{each.address}:{PORT}", client_id) for each in world.brokers.values()}

    def to(self, broker_id: int) -> RawClient:
        return self._clients[broker_id]

    async def ask_once(self, request: Message, version: int) -> Any:
        return await self._clients[max(0, self._broker_for(request))].ask_once(request, version)

    def _broker_for(self, request: Any) -> int:
        if isinstance(request, ProduceRequest):
            topic = request.topic_data[0]
            return self._leader(topic.name, topic.partition_data[0].index)
        for name in ("topics", "v3_and_below_topics"):
            part: Any = next(iter(getattr(request, name, None) or ()), None)
            if request.api_key in (ApiKey.FETCH, ApiKey.LIST_OFFSETS):
                return self._leader(getattr(part, "topic", "") or part.name, _index(part.partitions[0]))
        if request.api_key in (ApiKey.OFFSET_FETCH, ApiKey.TXN_OFFSET_COMMIT):
            return self._coordinator("__consumer_offsets", request.group_id)
        return self._coordinator("__transaction_state", "x")

    def _coordinator(self, topic: str, key: str) -> int:
        return self._leader(topic, partition_for(key, len(self._world.image.topics[topic].partitions)))

    def _leader(self, topic: str, partition: int) -> int:
        return self._world.image.topics[topic].partitions[partition].leader


def _index(partition: Any) -> int:
    return int(getattr(partition, "partition_index", getattr(partition, "partition", 0)))


class ClusterStage:
    """The world, and an observing client."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.client = RoutedClient(world)

    async def create_topics(self, replicas: int) -> None:
        """Each topic's leaders are known; with several replicas, the others follow in order."""

        def on(*leaders: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
            return tuple((p, tuple((leader + i) % 3 for i in range(replicas))) for p, leader in enumerate(leaders))

        await self.world.until(lambda: len(self.services(0).image.brokers) == 3, "broker 0 knows all brokers")
        compacted = (("cleanup.policy", "compact"),)
        metadata = self.services(0).metadata
        results = await metadata.changes.create_topics(
            [
                NewTopic("t", assignments=on(0, 1, 2)),
                NewTopic("__transaction_state", assignments=on(COORDINATOR), configs=compacted),
                NewTopic("__consumer_offsets", assignments=on(GROUPS), configs=compacted),
            ]
        )
        assert all(result.error == ErrorCode.NONE for result in results), results
        await self.world.until(
            lambda: all(self.services(broker).replicas.find("t", broker) is not None for broker in self.world.brokers),
            "every broker hosts its partition",
        )

    def services(self, broker_id: int) -> Any:
        broker = self.world.brokers[broker_id].broker
        assert broker is not None
        return broker.services

    async def producer(self, protocol: Protocol = NEW, name: str = "x", **options: Any) -> TransactionalProducer:
        made = TransactionalProducer(
            RoutedClient(self.world, name), name, protocol, clock=self.world.loop.clock, **options
        )
        await made.start()
        return made

    async def values(self, partition: int, *, committed: bool = True) -> list[bytes]:
        return [value for _, value in (await self.client.read("t", partition, committed=committed))[0]]

    async def state(self, name: str = "x") -> str:
        request = DescribeTransactionsRequest(transactional_ids=[name])
        response = await self.client.ask(request, 0, lambda r: [t.error_code for t in r.transaction_states])
        return str(response.transaction_states[0].transaction_state)

    async def until_state(self, wanted: str, name: str = "x") -> None:
        for _ in range(1_000):
            if await self.state(name) == wanted:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{name} stays {await self.state(name)}")

    def requests(self, broker_id: int, api_key: ApiKey) -> int:
        """How many requests of this kind a broker has served."""
        broker = self.world.brokers[broker_id].broker
        assert broker is not None
        return sum(route.requests for route in broker.dispatcher.routes.values() if route.api_key == api_key)

    def log(self, partition: int) -> Any:
        """A partition of `t` on its leader."""
        leader = self.world.leader_of("t", partition)
        return self.services(leader.id).replicas.find("t", partition).log

    def producers(self, partition: int) -> Any:
        """What the leader of a partition of `t` knows about producers."""
        return self.log(partition).producers


def run_story(
    story: Callable[[ClusterStage], Awaitable[Any]], *, replicas: int = 1, seed: int = 1, **settings: Any
) -> Any:
    async def whole(world: ClusterWorld) -> Any:
        stage = ClusterStage(world)
        await stage.create_topics(replicas)
        return await story(stage)

    # The topics keep their replicas: the controller would add some to internal topics.
    factors = {name: str(replicas) for name in FACTORS}
    return ClusterWorld(seed, brokers=3, **factors | settings).run(whole)
