"""Coordinators of a cluster: who they are, when their topics are created, what each broker answers. Spec: B10, C1"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.broker.handler_support.transactions.transaction_requests import for_producer
from ottla.errors import ErrorCode
from ottla.metadata.changes.topic_changes import NewTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records.record_batch import build_batch, iter_batches, read_records
from ottla.testing.cluster_world import PORT, ClusterWorld
from ottla.types import REBALANCES_TOPIC
from tests.support.wire.group_requests import commit_request, heartbeat_request, join_request, sync_request
from tests.support.wire.transactional import RawClient

GROUP, TRANSACTION = 0, 1
OFFSETS = "__consumer_offsets"
SETTINGS = {
    "offsets_topic_num_partitions": "1",
    "transaction_state_log_num_partitions": "1",
    "group_initial_rebalance_delay_ms": "0",
}


def run_story(story: Callable[[ClusterWorld], Awaitable[Any]], *, brokers: int = 3, **settings: Any) -> None:
    ClusterWorld(1, brokers=brokers, **SETTINGS | settings).run(story)


def client_of(world: ClusterWorld, broker_id: int, client_id: str = "raw") -> RawClient:
    return RawClient(f"{world.brokers[broker_id].address}:{PORT}", client_id)


async def find(world: ClusterWorld, broker_id: int, key: str = "g", key_type: int = GROUP) -> Any:
    return await client_of(world, broker_id).ask_once(FindCoordinatorRequest(key=key, key_type=key_type), 3)


async def create(world: ClusterWorld, name: str, *replicas: int, **configs: str) -> None:
    """A topic with one partition on these brokers, the leader first."""
    broker = world.brokers[0].broker
    assert broker is not None
    topic = NewTopic(name, assignments=((0, replicas),), configs=tuple(configs.items()))
    (result,) = await broker.services.metadata.changes.create_topics([topic])
    assert result.error == ErrorCode.NONE, result
    await world.until(lambda: all(name in replicas_of(world, each).topics for each in replicas), f"{name} is hosted")


def replicas_of(world: ClusterWorld, broker_id: int) -> Any:
    broker = world.brokers[broker_id].broker
    assert broker is not None
    return broker.services.replicas


# --- finding ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key_type", [GROUP, TRANSACTION])
def test_every_broker_names_the_leader_of_the_partition(key_type: int) -> None:
    """Spec: B1, E2. Key type 0 is a group, 1 a transactional id."""

    async def story(world: ClusterWorld) -> None:
        topic = OFFSETS if key_type == GROUP else "__transaction_state"
        await create(world, topic, 2)
        for broker_id in range(3):
            answer = await find(world, broker_id, key_type=key_type)
            assert (answer.error_code, answer.node_id) == (0, 2)
            assert (answer.host, answer.port) == (world.brokers[2].address, PORT)

    run_story(story, offsets_topic_replication_factor="1", transaction_state_log_replication_factor="1")


def test_a_coordinator_whose_broker_is_dead_is_not_available() -> None:
    async def story(world: ClusterWorld) -> None:
        await create(world, OFFSETS, 2)
        world.brokers[2].kill()
        await world.until(lambda: 2 not in world.image.brokers, "its session ends")
        await asyncio.sleep(0.1)
        answer = await find(world, 0)
        assert (answer.error_code, answer.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        await world.brokers[2].start()
        await world.until(lambda: world.image.topics[OFFSETS].partitions[0].leader == 2, "it leads again")
        await asyncio.sleep(0.1)
        assert (await find(world, 0)).node_id == 2

    run_story(story, offsets_topic_replication_factor="1")


@pytest.mark.parametrize("key_type", [GROUP, TRANSACTION])
def test_internal_topics_wait_for_as_many_brokers_as_their_replication_factor_says(key_type: int) -> None:
    """The first broker must not create them with a single replica, forever (KIP-115)."""

    async def story(world: ClusterWorld) -> None:
        topic = OFFSETS if key_type == GROUP else "__transaction_state"
        for broker_id in (1, 2):
            world.brokers[broker_id].kill()
        await world.until(lambda: set(world.image.brokers) == {0}, "one broker is left")
        await asyncio.sleep(0.1)
        answer = await find(world, 0, key_type=key_type)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "only 1 broker(s) are registered" in answer.error_message
        assert topic not in world.image.topics
        for broker_id in (1, 2):
            await world.brokers[broker_id].start()
        await asyncio.sleep(0.1)
        assert (await find(world, 0, key_type=key_type)).error_code == ErrorCode.NONE
        assert all(len(partition.replicas) == 3 for partition in world.image.topics[topic].partitions)

    run_story(story, offsets_topic_replication_factor="3", transaction_state_log_replication_factor="3")


def test_without_the_metadata_store_clients_are_told_to_retry() -> None:
    async def story(world: ClusterWorld) -> None:
        world.hub.is_away = True
        answer = await find(world, 0)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
        assert (await client_of(world, 0).ask_once(request, 4)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        world.heal()
        await world.until(lambda: len(world.image.brokers) == 3, "all are registered again")
        await asyncio.sleep(1)
        assert (await client_of(world, 0).ask_once(request, 4)).error_code == ErrorCode.NONE

    run_story(story, session_timeout_ms=60_000)


# --- requests to the wrong broker ---------------------------------------------------------------------------


def test_another_broker_than_the_coordinator_knows_nothing_of_the_group() -> None:
    async def story(world: ClusterWorld) -> None:
        await create(world, "orders", 0)
        await create(world, OFFSETS, 2)
        await create(world, "__transaction_state", 1)
        right, wrong = client_of(world, 2), client_of(world, 0)
        answer = await right.ask_once(commit_request({0: 5}), 8)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        answer = await wrong.ask_once(commit_request({0: 5}), 8)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        assert (await wrong.ask_once(heartbeat_request("m", 1), 4)).error_code == ErrorCode.NOT_COORDINATOR
        assert (await wrong.ask_once(join_request(), 9)).error_code == ErrorCode.NOT_COORDINATOR
        init = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1_000)
        assert (await wrong.ask_once(init, 4)).error_code == ErrorCode.NOT_COORDINATOR
        assert (await client_of(world, 1).ask_once(init, 4)).error_code == ErrorCode.NONE
        groups = [len((await client_of(world, each).ask_once(ListGroupsRequest(), 4)).groups) for each in range(3)]
        assert groups == [0, 0, 1]
        listed = [
            len((await client_of(world, each).ask_once(ListTransactionsRequest(), 1)).transaction_states)
            for each in range(3)
        ]
        assert listed == [0, 1, 0]

    run_story(story, offsets_topic_replication_factor="1", transaction_state_log_replication_factor="1")


def test_a_coordinator_that_does_not_know_a_new_topic_yet_is_a_retriable_error() -> None:
    """The partition's leader knows it already. The producer must not look for another leader, nor give up."""
    for code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED):
        assert for_producer(code, 12, implicit=True) is ErrorCode.NOT_ENOUGH_REPLICAS


# --- the rebalance history ----------------------------------------------------------------------------------


async def rebalance(world: ClusterWorld, broker_id: int, group: str = "g") -> None:
    """A new group with one member."""
    client = client_of(world, broker_id)
    member_id = (await client.ask_once(join_request(group=group), 9)).member_id
    joined = await client.ask_once(join_request(member_id, group=group), 9)
    assert joined.error_code == ErrorCode.NONE
    await client.ask_once(sync_request(member_id, joined.generation_id, {member_id: b"all"}, group=group), 5)


def history(world: ClusterWorld, broker_id: int) -> list[str]:
    """Whose first rebalance is in the history, as its leader has it."""
    log = replicas_of(world, broker_id).find(REBALANCES_TOPIC, 0).log
    data = log.read(0, 1 << 20, upper_bound=log.log_end_offset)
    notes = [json.loads(r.value or b"") for p, h in iter_batches(data) for r in read_records(data, p, h)]
    return [note["group"] for note in notes if note["generation"] == 1]


def test_every_broker_writes_to_the_rebalance_history() -> None:
    async def story(world: ClusterWorld) -> None:
        await create(world, OFFSETS, 2)
        await create(world, REBALANCES_TOPIC, 1)
        await rebalance(world, 2)
        await world.until(lambda: history(world, 1) == ["g"], "the note arrives")

    run_story(story, offsets_topic_replication_factor="1")


def test_the_rebalance_history_waits_for_its_leader_and_no_group_waits_for_the_history() -> None:
    async def story(world: ClusterWorld) -> None:
        await create(world, OFFSETS, 2)
        await create(world, REBALANCES_TOPIC, 1)
        world.brokers[1].kill()
        for number in range(3):
            await asyncio.wait_for(rebalance(world, 2, f"g{number}"), 1)
        await asyncio.sleep(5)
        await world.brokers[1].start()
        await world.until(lambda: len(history(world, 1)) == 3, "the notes arrive", 30)
        assert history(world, 1) == ["g0", "g1", "g2"]

    run_story(story, offsets_topic_replication_factor="1")


def test_only_brokers_write_to_the_rebalance_history() -> None:
    async def story(world: ClusterWorld) -> None:
        await create(world, REBALANCES_TOPIC, 1)
        data = ProduceRequest.PartitionProduceData(index=0, records=build_batch([(1, b"g", b"{}", ())]))
        topics = [ProduceRequest.TopicProduceData(name=REBALANCES_TOPIC, partition_data=[data])]
        request = ProduceRequest(acks=1, timeout_ms=1_000, topic_data=topics)
        expected = {
            "me": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "broker-9": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "broker-x": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "broker-2": ErrorCode.NONE,
        }
        for client_id, code in expected.items():
            answer = await client_of(world, 1, client_id).ask_once(request, 9)
            assert answer.responses[0].partition_responses[0].error_code == code, client_id

    run_story(story, offsets_topic_replication_factor="1")
