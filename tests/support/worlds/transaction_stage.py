"""A stage for stories about transactions: the production broker in a simulated world, producers of raw requests, and
an observing client."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records.record_batch import build_batch
from ottla.testing.world import BOOTSTRAP, World
from tests.support.wire.transactional import NEW, Protocol, RawClient, TransactionalProducer

SETTINGS = {
    "offsets_topic_num_partitions": "1",
    "transaction_state_log_num_partitions": "1",
    "group_initial_rebalance_delay_ms": "0",
}


def run_story(story: Callable[["Stage"], Awaitable[Any]], *, seed: int = 1, **settings: str) -> Any:
    """Runs a story on a stage with a topic `t` of two partitions."""

    async def whole(world: World) -> Any:
        stage = Stage(world)
        await stage.client.create_topic("t", 2)
        return await story(stage)

    return World(seed, **SETTINGS | settings).run(whole)


class Stage:
    """The world, and an observing client."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = RawClient(BOOTSTRAP)

    async def producer(
        self, protocol: Protocol = NEW, name: str = "x", *, start: bool = True, **options: Any
    ) -> TransactionalProducer:
        made = TransactionalProducer(RawClient(BOOTSTRAP, name), name, protocol, clock=self.world.loop.clock, **options)
        if start:
            await made.start()
        return made

    async def values(self, topic: str = "t", partition: int = 0, *, committed: bool = True) -> list[bytes]:
        return [value for _, value in (await self.client.read(topic, partition, committed=committed))[0]]

    async def write(self, *values: bytes, topic: str = "t", partition: int = 0) -> None:
        """Outside all transactions."""
        records = build_batch([(self.world.loop.clock(), b"k", value, ()) for value in values])
        data = [ProduceRequest.PartitionProduceData(index=partition, records=records)]
        request = ProduceRequest(
            acks=-1,
            timeout_ms=1_000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=data)],
        )
        await self.client.ask(request, 9, lambda r: [p.error_code for t in r.responses for p in t.partition_responses])

    async def state(self, name: str = "x") -> str:
        request = DescribeTransactionsRequest(transactional_ids=[name])
        response = await self.client.ask(request, 0, lambda r: [t.error_code for t in r.transaction_states])
        return str(response.transaction_states[0].transaction_state)

    async def until_state(self, wanted: str, name: str = "x") -> None:
        for _ in range(500):
            if await self.state(name) == wanted:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{name} stays {await self.state(name)}")

    def log(self, topic: str = "t", partition: int = 0) -> Any:
        assert self.world.broker is not None
        replica = self.world.broker.services.replicas.find(topic, partition)
        assert replica is not None
        return replica.log

    def seen(self, topic: str = "t", partition: int = 0) -> Any:
        """The transaction state of a partition."""
        log = self.log(topic, partition)
        entries = sorted(
            (
                e.producer_id,
                e.producer_epoch,
                e.coordinator_epoch,
                e.transaction_first_offset,
                e.last_timestamp,
                tuple(e.batches),
            )
            for e in log.producers.entries()
        )
        aborted = log.aborted_transactions(0, log.log_end_offset)
        return entries, log.first_unstable_offset, log.last_stable_offset, aborted, log.log_end_offset

    async def kill(self) -> None:
        self.world.kill_broker()
        await self.world.start_broker()


async def refused(awaitable: Awaitable[Any]) -> ErrorCode:
    """The error it raises."""
    try:
        await awaitable
    except KafkaError as error:
        return error.code
    raise AssertionError("no error was raised")
