"""Transactions whose coordinator, partitions and groups are on different brokers: verification and markers go over the
wire, whatever happens to the brokers on the way. Spec: E6, B10"""

import asyncio
from typing import Any

import pytest

from ottla.broker.handler_support.transactions.transaction_verification import TransactionalAppend
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from ottla.protocol.schema import Message
from ottla.types import TopicPartition
from tests.support.wire.transactional import NEW, OLD, Protocol, TransactionalProducer
from tests.support.worlds.cluster_transactions import COORDINATOR, ClusterStage, run_story

PROTOCOLS = pytest.mark.parametrize("protocol", [OLD, NEW], ids=["old", "new"])


async def produce_once(producer: TransactionalProducer, partition: int, *, sequence: int = 0) -> ErrorCode:
    """One attempt of a first batch, without adding the partition before."""
    request = producer.produce_request("t", partition, [b"v"], sequence)
    response = await producer.client.ask_once(request, producer.protocol.produce)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


# --- verification -------------------------------------------------------------------------------------------


@PROTOCOLS
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_over_three_brokers_ends_everywhere(protocol: Protocol, commit: bool) -> None:
    async def story(stage: ClusterStage) -> None:
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

    async def story(stage: ClusterStage) -> None:
        producer = await stage.producer(OLD)
        assert await produce_once(producer, 1) == ErrorCode.TRANSACTION_ABORTABLE
        await producer.add("t", 1)
        assert await produce_once(producer, 1) == ErrorCode.NONE
        assert stage.producers(1).has_open_transaction(producer.producer_id, producer.producer_epoch)

    run_story(story)


def test_a_fenced_producer_is_refused_by_partitions_on_other_brokers() -> None:
    async def story(stage: ClusterStage) -> None:
        old = await stage.producer(NEW)
        await stage.producer(NEW)
        assert await produce_once(old, 1) == ErrorCode.INVALID_PRODUCER_EPOCH

    run_story(story)


def test_only_the_coordinator_answers_for_a_transaction() -> None:
    """Another broker must not pass the question on: two brokers with different images would ask each other forever."""

    async def story(stage: ClusterStage) -> None:
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
    async def story(stage: ClusterStage) -> None:
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
    async def story(stage: ClusterStage) -> None:
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


def test_the_first_batch_of_a_transaction_waits_for_the_markers_of_the_previous_one() -> None:
    """For a moment: a producer that has to retry pauses for much longer. One of the markers even comes to the
    partition that the batch is for."""

    async def story(stage: ClusterStage) -> None:
        world, producer = stage.world, await stage.producer(NEW)
        for number in range(5):
            for partition in (1, 2):
                await producer.send("t", partition, [b"%d" % number])
            await producer.commit()
            # At once, and without a second attempt.
            assert await produce_once(producer, 1) == ErrorCode.NONE
            producer.added.add(("t", 1))
            await producer.abort()
            await stage.until_state("CompleteAbort")
        assert await stage.values(1) == [b"0", b"1", b"2", b"3", b"4"]
        await producer.send("t", 2, [b"5"])
        world.part(world.brokers[COORDINATOR], world.brokers[2])
        await producer.commit()
        before = world.loop.time()
        assert await produce_once(producer, 1) == ErrorCode.CONCURRENT_TRANSACTIONS
        assert 0.1 <= world.loop.time() - before < 0.15, "add.partitions.to.txn.retry.backoff.max.ms"

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
    async def story(stage: ClusterStage) -> None:
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
    async def story(stage: ClusterStage) -> None:
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
    async def story(stage: ClusterStage) -> None:
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

    async def story(stage: ClusterStage) -> None:
        producer = await stage.producer(protocol)
        await producer.send("t", 1, [b"v"])
        await stage.client.to(1).ask_once(write_markers(producer, 1, coordinator_epoch=7), 2)
        await producer.commit()
        await asyncio.sleep(30)
        assert await stage.state() == "PrepareCommit"

    run_story(story)


def test_a_marker_that_is_written_twice_changes_nothing() -> None:
    async def story(stage: ClusterStage) -> None:
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

    async def story(stage: ClusterStage) -> None:
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
