"""Transactions whose coordinator, partitions and groups are on different brokers: verification and markers go over the
wire, whatever happens to the brokers on the way. Spec: E6, B10"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.broker.handler_support.transaction_verification import TransactionalAppend
from ottla.errors import ErrorCode
from ottla.metadata.controller import NewTopic
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from ottla.protocol.schema import Message
from ottla.testing.cluster_world import PORT, ClusterWorld
from ottla.types import TopicPartition, partition_for
from tests.support.wire.transactional import NEW, OLD, Protocol, RawClient, TransactionalProducer

PROTOCOLS = pytest.mark.parametrize("protocol", [OLD, NEW], ids=["old", "new"])
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


class Stage:
    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.client = RoutedClient(world)

    async def create_topics(self, replicas: int) -> None:
        """Each topic's leaders are known; with several replicas, the others follow in order."""

        def on(*leaders: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
            return tuple((p, tuple((leader + i) % 3 for i in range(replicas))) for p, leader in enumerate(leaders))

        compacted = (("cleanup.policy", "compact"),)
        metadata = self.services(0).metadata
        results = await metadata.create_topics(
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


def run_story(story: Callable[[Stage], Awaitable[Any]], *, replicas: int = 1, seed: int = 1, **settings: Any) -> Any:
    async def whole(world: ClusterWorld) -> Any:
        stage = Stage(world)
        await stage.create_topics(replicas)
        return await story(stage)

    # The topics keep their replicas: the controller would add some to internal topics.
    factors = {name: str(replicas) for name in FACTORS}
    return ClusterWorld(seed, brokers=3, **factors | settings).run(whole)


async def produce_once(producer: TransactionalProducer, partition: int, *, sequence: int = 0) -> ErrorCode:
    """One attempt of a first batch, without adding the partition before."""
    request = producer.produce_request("t", partition, [b"v"], sequence)
    response = await producer.client.ask_once(request, producer.protocol.produce)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


# --- verification -------------------------------------------------------------------------------------------


@PROTOCOLS
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_over_three_brokers_ends_everywhere(protocol: Protocol, commit: bool) -> None:
    async def story(stage: Stage) -> None:
        producer = await stage.producer(protocol)
        for number in range(2):
            for partition in range(3):
                await producer.send("t", partition, [b"%d" % number])
            await producer.send_offsets("g", {("t", 0): number + 1})
            await (producer.commit() if commit else producer.abort())
        await stage.until_state("CompleteCommit" if commit else "CompleteAbort")
        for partition in range(3):
            assert await stage.values(partition) == ([b"0", b"1"] if commit else [])
            assert len(await stage.values(partition, committed=False)) == 2
        assert await stage.client.committed_offset("g", "t", 0) == (2 if commit else -1)

    run_story(story)


def test_the_coordinator_on_another_broker_must_know_the_partition() -> None:
    """Otherwise it would never write a marker there, and the transaction would hang (KIP-890)."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer(OLD)
        assert await produce_once(producer, 1) == ErrorCode.TRANSACTION_ABORTABLE
        await producer.add("t", 1)
        assert await produce_once(producer, 1) == ErrorCode.NONE
        assert stage.producers(1).has_open_transaction(producer.producer_id, producer.producer_epoch)

    run_story(story)


def test_a_fenced_producer_is_refused_by_partitions_on_other_brokers() -> None:
    async def story(stage: Stage) -> None:
        old = await stage.producer(NEW)
        await stage.producer(NEW)
        assert await produce_once(old, 1) == ErrorCode.INVALID_PRODUCER_EPOCH

    run_story(story)


def test_only_the_coordinator_answers_for_a_transaction() -> None:
    """Another broker must not pass the question on: two brokers with different images would ask each other forever."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer(NEW)
        for verify_only in (True, False):
            request = AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                        transactional_id="x",
                        producer_id=producer.producer_id,
                        producer_epoch=producer.producer_epoch,
                        verify_only=verify_only,
                        topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[2])],
                    )
                ]
            )
            response = await stage.client.to(2).ask_once(request, 5)
            result = response.results_by_transaction[0].topic_results[0].results_by_partition[0]
            assert result.partition_error_code == ErrorCode.NOT_COORDINATOR
        assert stage.requests(COORDINATOR, ApiKey.ADD_PARTITIONS_TO_TXN) == 0

    run_story(story)


@PROTOCOLS
def test_an_unreachable_coordinator_is_a_retriable_error(protocol: Protocol) -> None:
    async def story(stage: Stage) -> None:
        world, producer = stage.world, await stage.producer(protocol)
        await producer.send("t", 1, [b"u"])
        await producer.commit()
        await stage.until_state("CompleteCommit")
        if protocol is OLD:
            await producer.add("t", 1)
        end = stage.log(1).log_end_offset
        world.part(world.brokers[COORDINATOR], world.brokers[1])
        answer = asyncio.ensure_future(produce_once(producer, 1, sequence=1 if protocol is OLD else 0))
        await asyncio.sleep(11)
        assert answer.done(), "earlier than the producer's own timeout"
        assert answer.result() == ErrorCode.NOT_ENOUGH_REPLICAS
        assert stage.log(1).log_end_offset == end, "nothing was appended"
        world.heal()
        await producer.send("t", 1, [b"v"])
        await producer.commit()
        await stage.until_state("CompleteCommit")
        assert await stage.values(1) == [b"u", b"v"]

    run_story(story)


def test_producers_that_ask_at_the_same_time_share_one_request() -> None:
    async def story(stage: Stage) -> None:
        producers = [await stage.producer(NEW, f"p{number}") for number in range(20)]
        before = stage.requests(COORDINATOR, ApiKey.ADD_PARTITIONS_TO_TXN)
        verify = stage.services(1).verify_transaction

        async def ask() -> list[Any]:
            places = (TopicPartition("t", 1),)
            appends = [
                TransactionalAppend(each.transactional_id, each.producer_id, each.producer_epoch, places, 12)
                for each in producers
            ]
            return await asyncio.gather(*map(verify, appends))

        host = stage.world.brokers[1].host
        assert host is not None
        answers = await host.start(ask())
        assert [set(answer.values()) for answer in answers] == [{ErrorCode.NONE}] * 20
        assert stage.requests(COORDINATOR, ApiKey.ADD_PARTITIONS_TO_TXN) == before + 1

    run_story(story)


# --- markers ------------------------------------------------------------------------------------------------


def write_markers(producer: TransactionalProducer, partition: int, coordinator_epoch: int, **changes: Any) -> Message:
    fields = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": coordinator_epoch,
        "transaction_result": True,
        "transaction_version": 0,
        **changes,
    }
    topics = [WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[partition])]
    return WriteTxnMarkersRequest(markers=[WriteTxnMarkersRequest.WritableTxnMarker(**fields, topics=topics)])


@PROTOCOLS
def test_markers_are_sent_again_until_the_partitions_broker_has_them(protocol: Protocol) -> None:
    async def story(stage: Stage) -> None:
        world, producer = stage.world, await stage.producer(protocol)
        for partition in range(3):
            await producer.send("t", partition, [b"v"])
        world.part(world.brokers[COORDINATOR], world.brokers[1])
        await producer.commit()
        await asyncio.sleep(90)
        assert await stage.state() == "PrepareCommit", "not before the last marker is written"
        assert (await stage.values(0), await stage.values(1), await stage.values(2)) == ([b"v"], [], [b"v"])
        world.heal()
        await stage.until_state("CompleteCommit")
        assert await stage.values(1) == [b"v"]

    run_story(story)


@PROTOCOLS
def test_the_next_coordinator_writes_the_markers_under_its_own_epoch(protocol: Protocol) -> None:
    async def story(stage: Stage) -> None:
        world, producer = stage.world, await stage.producer(protocol)
        producer_id = producer.producer_id
        await producer.send("t", 1, [b"v"])
        world.part(world.brokers[COORDINATOR], world.brokers[1])
        await producer.commit()
        world.brokers[COORDINATOR].kill()
        world.heal()
        await world.brokers[COORDINATOR].start()
        await stage.until_state("CompleteCommit")
        assert await stage.values(1) == [b"v"]
        epoch = world.image.topics["__transaction_state"].partitions[0].leader_epoch
        assert stage.producers(1).find(producer_id).coordinator_epoch == epoch > 0

    run_story(story)


@PROTOCOLS
def test_the_marker_of_an_earlier_coordinator_is_rejected(protocol: Protocol) -> None:
    async def story(stage: Stage) -> None:
        producer = await stage.producer(protocol)
        await producer.send("t", 1, [b"v"])
        newer = write_markers(producer, 1, coordinator_epoch=7)
        answer = await stage.client.to(1).ask_once(newer, 2)
        assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
        older = write_markers(producer, 1, coordinator_epoch=6, transaction_result=False)
        answer = await stage.client.to(1).ask_once(older, 2)
        code = answer.markers[0].topics[0].partitions[0].error_code
        assert code == ErrorCode.TRANSACTION_COORDINATOR_FENCED

    run_story(story)


@PROTOCOLS
def test_a_coordinator_that_is_fenced_does_not_complete_the_transaction(protocol: Protocol) -> None:
    """A newer coordinator is in charge: it writes the markers, and completes the transaction."""

    async def story(stage: Stage) -> None:
        producer = await stage.producer(protocol)
        await producer.send("t", 1, [b"v"])
        await stage.client.to(1).ask_once(write_markers(producer, 1, coordinator_epoch=7), 2)
        await producer.commit()
        await asyncio.sleep(30)
        assert await stage.state() == "PrepareCommit"

    run_story(story)


def test_a_marker_that_is_written_twice_changes_nothing() -> None:
    async def story(stage: Stage) -> None:
        producer = await stage.producer(NEW)
        epoch = producer.producer_epoch
        await producer.send("t", 1, [b"v"])
        await producer.commit()
        await stage.until_state("CompleteCommit")
        again = write_markers(producer, 1, 0, producer_epoch=epoch + 1, transaction_version=2)
        answer = await stage.client.to(1).ask_once(again, 2)
        assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
        assert await stage.values(1) == [b"v"]
        await producer.send("t", 1, [b"w"])
        late = write_markers(producer, 1, 0, producer_epoch=epoch + 1, transaction_version=2)
        answer = await stage.client.to(1).ask_once(late, 2)
        code = answer.markers[0].topics[0].partitions[0].error_code
        assert code == ErrorCode.INVALID_PRODUCER_EPOCH, "it must not end the next transaction"
        await producer.abort()
        await stage.until_state("CompleteAbort")
        assert await stage.values(1) == [b"v"]

    run_story(story)


def test_the_markers_of_many_transactions_share_requests() -> None:
    """After a load, all decided transactions are completed at once."""

    async def story(stage: Stage) -> None:
        world = stage.world
        producers = [await stage.producer(NEW, f"p{number}") for number in range(30)]
        for each in producers:
            await each.send("t", 1, [b"v"])
        world.part(world.brokers[COORDINATOR], world.brokers[1])
        for each in producers:
            await each.commit()
        world.brokers[COORDINATOR].kill()
        world.heal()
        before = stage.requests(1, ApiKey.WRITE_TXN_MARKERS)
        await world.brokers[COORDINATOR].start()
        for each in producers:
            await stage.until_state("CompleteCommit", each.transactional_id)
        assert stage.requests(1, ApiKey.WRITE_TXN_MARKERS) - before <= 2
        assert len(await stage.values(1)) == 30

    run_story(story)
