"""Produce, from the request to the log: acks, errors for each partition, versions, storage that fails."""

import asyncio
import errno
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ottla.broker.handler_support.transactions.transaction_verification import TransactionalAppend
from ottla.errors import ErrorCode, KafkaError
from ottla.log.partition_log import Origin
from ottla.log.validation import InvalidRecord
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.records.record_batch import Codec, build_batch, control_batch
from ottla.replication.config import ReplicaConfig
from ottla.security.acls import AccessControlEntry, ResourcePattern
from ottla.security.authorizer import Authorizer
from ottla.security.resources import Operation, PermissionType, ResourceType
from ottla.testing.sim_disk import SimPlatter
from ottla.testing.sim_loop import SimLoop
from ottla.types import TopicPartition
from tests.support.worlds.data_world import DataWorld, batch_of, only_partition, produce_request

VERSIONS = range(3, 14)
ALLOW_WRITE = AccessControlEntry("User:*", "*", Operation.WRITE, PermissionType.ALLOW)


@pytest.fixture
def world(tmp_path: Any) -> Iterator[DataWorld]:
    world = DataWorld(str(tmp_path))
    yield world
    world.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_every_version_appends_and_answers_with_the_offset(world: DataWorld, version: int, acks: int) -> None:
    topic_id = world.topic("orders")
    name: str | bytes = topic_id if version >= 13 else "orders"
    world.append("orders", "before")
    answer = world.ask(produce_request({(name, 0): batch_of("a", "b")}, acks=acks), version)
    assert answer.responses[0].name == ("" if version >= 13 else "orders")
    assert answer.responses[0].topic_id == (topic_id if version >= 13 else bytes(16))
    partition = only_partition(answer)
    assert (partition.error_code, partition.base_offset, partition.log_append_time_ms) == (0, 1, -1)
    assert partition.log_start_offset == (0 if version >= 5 else -1)
    assert world.log("orders").log_end_offset == 3


def test_with_one_replica_in_sync_acks_all_is_answered_at_once(world: DataWorld) -> None:
    world.topic("orders")
    asked = world.asks(produce_request({("orders", 0): batch_of("a")}, acks=-1), 9)
    assert asked.was_immediate
    assert world.log("orders").high_watermark == 1


def test_acks_0_is_not_answered_but_appended(world: DataWorld) -> None:
    world.topic("orders")
    assert world.ask(produce_request({("orders", 0): batch_of("a")}, acks=0), 9) is None
    assert world.log("orders").log_end_offset == 1


def test_an_error_with_acks_0_is_raised_so_that_the_connection_ends(world: DataWorld) -> None:
    world.topic("orders")
    batches = {("nowhere", 0): batch_of("a"), ("orders", 0): batch_of("b")}
    with pytest.raises(KafkaError) as caught:
        world.ask(produce_request(batches, acks=0), 9)
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.log("orders").log_end_offset == 1, "the others are still appended"


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_are_refused_for_every_partition(world: DataWorld, acks: int) -> None:
    world.topic("orders", partitions=2)
    batches = {("orders", 0): batch_of("a"), ("orders", 1): batch_of("b")}
    answer = world.ask(produce_request(batches, acks=acks), 9)
    for topic in answer.responses:
        assert topic.partition_responses[0].error_code == ErrorCode.INVALID_REQUIRED_ACKS
        assert topic.partition_responses[0].base_offset == -1
    assert world.log("orders").log_end_offset == 0


def test_one_bad_partition_does_not_affect_the_others(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    request = ProduceRequest(
        acks=1,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="orders",
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=0, records=b"garbage"),
                    ProduceRequest.PartitionProduceData(index=1, records=batch_of("fine")),
                    ProduceRequest.PartitionProduceData(index=7, records=batch_of("nowhere")),
                ],
            )
        ],
    )
    bad, good, nowhere = world.ask(request, 9).responses[0].partition_responses
    assert (bad.index, bad.error_code, bad.base_offset) == (0, ErrorCode.INVALID_RECORD, -1)
    assert (good.index, good.error_code, good.base_offset) == (1, 0, 0)
    assert (nowhere.index, nowhere.error_code) == (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def flipped(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch_of("a") + batch_of("b"), ErrorCode.INVALID_RECORD),
        (flipped(batch_of("a")), ErrorCode.CORRUPT_MESSAGE),
        (batch_of("a")[:-1], ErrorCode.INVALID_RECORD),
        (batch_of("x" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["null", "empty", "two batches", "bit flip", "cut short", "too large"],
)
def test_bad_records_are_refused_with_their_code_and_a_reason(world: DataWorld, records: Any, code: ErrorCode) -> None:
    world.topic("orders")
    answer = only_partition(world.ask(produce_request({("orders", 0): records}), 9))
    assert (answer.error_code, answer.base_offset) == (code, -1)
    assert answer.error_message
    assert world.log("orders").log_end_offset == 0


def test_records_refused_one_by_one_are_named_from_version_8_on(world: DataWorld) -> None:
    world.topic("latest", configs={"cleanup.policy": "compact"})
    batch = build_batch([(0, b"k", b"1", ()), (0, None, b"2", ()), (0, None, b"3", ())])
    request = produce_request({("latest", 0): batch})
    answer = only_partition(world.ask(request, 8))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1, 2]
    assert all("key" in error.batch_index_error_message for error in answer.record_errors)
    assert only_partition(world.ask(request, 7)).error_code == ErrorCode.INVALID_RECORD
    assert issubclass(InvalidRecord, KafkaError)


def test_zstd_is_refused_before_version_7(world: DataWorld) -> None:
    world.topic("orders")
    request = produce_request({("orders", 0): batch_of("a" * 100, codec=Codec.ZSTD)})
    assert only_partition(world.ask(request, 6)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert only_partition(world.ask(request, 7)).error_code == 0


def test_log_append_time_is_returned(world: DataWorld) -> None:
    world.topic("events", configs={"message.timestamp.type": "LogAppendTime"})
    assert world.produce("events", "a").log_append_time_ms == world.clock()


def test_the_start_of_the_log_is_returned(world: DataWorld) -> None:
    world.topic("orders")
    world.append("orders", "a", "b", "c")
    world.log("orders").delete_records_before(2)
    assert world.produce("orders", "d").log_start_offset == 2


def test_an_unknown_topic_id_has_its_own_error(world: DataWorld) -> None:
    answer = only_partition(world.ask(produce_request({(b"0123456789abcdef", 0): batch_of("a")}), 13))
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert answer.error_message == "no topic has the id MDEyMzQ1Njc4OWFiY2RlZg"


def test_a_partition_of_another_broker_is_answered_with_its_leader(world: DataWorld) -> None:
    topic_id = world.topic("orders", replicas=(0, 1), leader=1, leader_epoch=4)
    for version, name in ((10, "orders"), (13, topic_id)):
        answer = world.ask(produce_request({(name, 0): batch_of("a")}), version)
        partition = only_partition(answer)
        assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (1, 4)
        (node,) = answer.node_endpoints
        assert (node.node_id, node.host, node.port, node.rack) == (1, "broker1", 9092, "rack")
    older = world.ask(produce_request({("orders", 0): batch_of("a")}), 9)
    assert only_partition(older).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_partition_without_a_local_replica_gets_not_leader(world: DataWorld) -> None:
    topic_id = world.topic("elsewhere", replicas=(1, 2))
    for version, name in ((9, "elsewhere"), (13, topic_id)):
        answer = only_partition(world.ask(produce_request({(name, 0): batch_of("a")}), version))
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_internal_topics_accept_writes_from_the_admin_client_only(world: DataWorld) -> None:
    world.topic("__consumer_offsets")
    request = produce_request({("__consumer_offsets", 0): build_batch([(0, b"k", b"v", ())])})
    assert only_partition(world.ask(request, 9)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert only_partition(world.ask(request, 9, client_id="__admin_client")).error_code == 0


def test_the_history_of_rebalances_accepts_writes_from_brokers_only(world: DataWorld) -> None:
    world.topic("__ottla_rebalances")
    request = produce_request({("__ottla_rebalances", 0): batch_of("a")})
    assert only_partition(world.ask(request, 9, client_id="broker-1")).error_code == 0
    for client_id in ("broker-9", "broker-" + "9" * 5000, "test"):
        answer = only_partition(world.ask(request, 9, client_id=client_id))
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    everything = ResourcePattern(ResourceType.TOPIC, "*")
    world.services.authorizer = Authorizer({everything: (ALLOW_WRITE,)})
    answer = only_partition(world.ask(request, 9, client_id="broker-1"))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, "it may not act for the cluster"


def test_a_topic_that_is_being_deleted_is_protected_until_it_is_gone(world: DataWorld) -> None:
    """The image does not have it any more, but its partitions are still here."""
    topic_id = world.topic("orders")
    world.services.authorizer = Authorizer()
    request = produce_request({(topic_id, 0): batch_of("a")})
    assert only_partition(world.ask(request, 13)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    world.image = replace(world.image, topics={}, topic_names={})
    assert only_partition(world.ask(request, 13)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


# -- replication --


def test_acks_all_waits_for_the_followers(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    asked = world.asks(produce_request({("orders", 0): batch_of("a")}, acks=-1), 9)
    assert not asked.is_answered
    world.replicas.follower_fetched(world.replica("orders"), 1, 1, 0)
    assert only_partition(asked.answer()).base_offset == 0
    assert world.loop.time() < 0.1


def test_acks_1_does_not_wait_for_anyone(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    assert world.asks(produce_request({("orders", 0): batch_of("a")}, acks=1), 9).was_immediate


def test_acks_all_times_out_when_a_follower_lags(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    world.topic("alone")
    batches = {("orders", 0): batch_of("a"), ("alone", 0): batch_of("b")}
    asked = world.asks(produce_request(batches, acks=-1, timeout_ms=700), 9)
    world.wait(699)
    assert not asked.is_answered
    late, fine = (topic.partition_responses[0] for topic in asked.answer().responses)
    assert (late.error_code, late.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert (fine.error_code, fine.base_offset) == (0, 0)


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_timeout_of_zero_times_out_at_once(world: DataWorld, timeout_ms: int) -> None:
    world.topic("orders", replicas=(0, 1))
    request = produce_request({("orders", 0): batch_of("a")}, acks=-1, timeout_ms=timeout_ms)
    assert only_partition(world.ask(request, 9)).error_code == ErrorCode.REQUEST_TIMED_OUT


def test_too_few_replicas_in_sync_refuse_acks_all_before_the_append(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1, 2), isr=(0,), configs={"min.insync.replicas": "2"})
    assert world.produce("orders", "a", acks=-1).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.log("orders").log_end_offset == 0
    assert world.produce("orders", "a", acks=1).error_code == 0


def test_an_in_sync_set_that_shrinks_below_the_minimum_ends_the_wait(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1), configs={"min.insync.replicas": "2"})
    asked = world.asks(produce_request({("orders", 0): batch_of("a")}), 9)
    world.change_partitions(lambda p: p._replace(isr=(0,)))
    assert only_partition(asked.answer()).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_losing_the_leadership_while_waiting_is_reported(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    asked = world.asks(produce_request({("orders", 0): batch_of("a")}), 9)
    world.change_partitions(lambda p: p._replace(leader=1, leader_epoch=1))
    assert only_partition(asked.answer()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_client_that_disconnects_while_waiting_does_no_harm(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    world.asks(produce_request({("orders", 0): batch_of("a")}), 9).hang_up()
    world.replicas.follower_fetched(world.replica("orders"), 1, 1, 0)
    assert world.log("orders").high_watermark == 1


# -- idempotence --


def test_a_duplicate_is_answered_with_its_first_offset_and_appended_once(world: DataWorld) -> None:
    """Spec: D3."""
    world.topic("orders")
    world.append("orders", "before")
    sequenced = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert world.produce("orders", "a", "b", **sequenced).base_offset == 1
    again = world.produce("orders", "a", "b", **sequenced)
    assert (again.error_code, again.base_offset) == (0, 1)
    assert world.log("orders").log_end_offset == 3


def test_a_duplicate_waits_for_the_commit_of_the_original(world: DataWorld) -> None:
    world.topic("orders", replicas=(0, 1))
    request = produce_request(
        {("orders", 0): batch_of("a", producer_id=7, producer_epoch=0, base_sequence=0)}, timeout_ms=9_000
    )
    first, retry = world.asks(request, 9), world.asks(request, 9)
    assert not first.is_answered
    assert not retry.is_answered
    world.replicas.follower_fetched(world.replica("orders"), 1, 1, 0)
    assert only_partition(first.answer()).base_offset == only_partition(retry.answer()).base_offset == 0


def test_a_gap_in_the_sequence_is_refused(world: DataWorld) -> None:
    """Spec: D3."""
    world.topic("orders")
    world.produce("orders", "a", producer_id=7, producer_epoch=0, base_sequence=0)
    answer = world.produce("orders", "b", producer_id=7, producer_epoch=0, base_sequence=2)
    assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# -- transactions --

IN_TRANSACTION = {"producer_id": 9, "producer_epoch": 3, "base_sequence": 0, "transactional": True}


def test_without_a_coordinator_a_transaction_is_refused_and_leaves_no_trace(world: DataWorld) -> None:
    world.topic("orders")
    request = produce_request({("orders", 0): batch_of("a", **IN_TRANSACTION)}, transactional_id="t")
    answer = only_partition(world.ask(request, 9))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_TXN_STATE, -1)
    assert world.log("orders").log_end_offset == 0


def test_records_of_a_transaction_need_a_transactional_id(world: DataWorld) -> None:
    world.topic("orders")
    answer = world.produce("orders", "a", **IN_TRANSACTION)
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_transactional_producer_may_write_outside_transactions(world: DataWorld) -> None:
    world.topic("orders")
    request = produce_request({("orders", 0): batch_of("a")}, transactional_id="t")
    assert only_partition(world.ask(request, 9)).error_code == 0


def test_the_verifier_is_asked_once_for_each_partition_of_a_transaction(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    asked: list[TransactionalAppend] = []

    def verify(append: TransactionalAppend) -> dict[TopicPartition, ErrorCode]:
        asked.append(append)
        return {p: ErrorCode.NONE if p.partition == 0 else ErrorCode.TRANSACTION_ABORTABLE for p in append.partitions}

    world.services.verify_transaction = verify
    batch = batch_of("a", **IN_TRANSACTION)
    request = produce_request({("orders", 0): batch, ("orders", 1): batch}, transactional_id="t")
    known, unknown = (topic.partition_responses[0] for topic in world.ask(request, 11).responses)
    assert (known.error_code, unknown.error_code) == (0, ErrorCode.TRANSACTION_ABORTABLE)
    assert asked == [TransactionalAppend("t", 9, 3, (TopicPartition("orders", 0), TopicPartition("orders", 1)), 11)]
    following = batch_of("b", **IN_TRANSACTION | {"base_sequence": 1})
    request = produce_request({("orders", 0): following}, transactional_id="t")
    assert only_partition(world.ask(request, 11)).base_offset == 1
    assert len(asked) == 1, "an open transaction needs no verification"
    assert world.log("orders").first_unstable_offset == 0


def test_verification_may_be_slow(world: DataWorld) -> None:
    world.topic("orders")

    async def verify(append: TransactionalAppend) -> dict[TopicPartition, ErrorCode]:
        await asyncio.sleep(0.05)
        return dict.fromkeys(append.partitions, ErrorCode.NONE)

    world.services.verify_transaction = verify
    asked = world.asks(produce_request({("orders", 0): batch_of("a", **IN_TRANSACTION)}, transactional_id="t"), 12)
    assert not asked.is_answered
    assert world.log("orders").log_end_offset == 0
    assert only_partition(asked.answer()).base_offset == 0


def slowly_verified(world: DataWorld) -> None:
    async def verify(append: TransactionalAppend) -> dict[TopicPartition, ErrorCode]:
        await asyncio.sleep(0.05)
        return dict.fromkeys(append.partitions, ErrorCode.NONE)

    world.services.verify_transaction = verify


def sends(world: DataWorld, sequence: int, transactional_id: str = "t", **details: Any) -> Any:
    batch = batch_of(str(sequence), **IN_TRANSACTION | {"base_sequence": sequence} | details)
    return world.begin(produce_request({("orders", 0): batch}, transactional_id=transactional_id), 12)


def test_no_batch_of_a_transaction_overtakes_one_that_is_being_verified(world: DataWorld) -> None:
    world.topic("orders")
    slowly_verified(world)
    answers = [sends(world, sequence) for sequence in range(3)]
    assert [only_partition(world.run(answer)).base_offset for answer in answers] == [0, 1, 2]
    assert isinstance(sends(world, 3), ProduceResponse), "no batch is left to wait for"


def test_a_marker_that_comes_during_the_verification_ends_it(world: DataWorld) -> None:
    world.topic("orders")
    slowly_verified(world)
    answer = sends(world, 0)
    marker = control_batch(commit=False, producer_id=9, producer_epoch=3, coordinator_epoch=0, timestamp=1)

    async def abort() -> None:
        world.replicas.append(TopicPartition("orders", 0), marker, acks=-1, origin=Origin.COORDINATOR)

    world.run(abort())
    assert only_partition(world.run(answer)).error_code == ErrorCode.INVALID_TXN_STATE
    assert world.log("orders").first_unstable_offset is None, "no hanging transaction"


def test_a_verification_dies_with_the_leader_epoch(world: DataWorld) -> None:
    """Another broker led the partition in between, and may have written the transaction's marker there."""
    world.topic("orders")
    slowly_verified(world)
    answer = sends(world, 0)
    world.change_partitions(lambda p: p._replace(leader=1, leader_epoch=1, replicas=(0, 1), isr=(0, 1)))
    world.change_partitions(lambda p: p._replace(leader=0, leader_epoch=2, isr=(0,)))
    assert only_partition(world.run(answer)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.log("orders").first_unstable_offset is None, "no hanging transaction"
    assert only_partition(world.run(sends(world, 0))).error_code == 0, "the producer tries again"


def test_a_marker_ends_an_open_transaction_while_another_partition_is_being_verified(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    world.services.verify_transaction = lambda append: dict.fromkeys(append.partitions, ErrorCode.NONE)
    assert only_partition(sends(world, 0)).error_code == 0
    slowly_verified(world)
    batches = {
        ("orders", 0): batch_of("b", **IN_TRANSACTION | {"base_sequence": 1}),
        ("orders", 1): batch_of("a", **IN_TRANSACTION),
    }
    answer = world.begin(produce_request(batches, transactional_id="t"), 11)
    marker = control_batch(commit=True, producer_id=9, producer_epoch=3, coordinator_epoch=0, timestamp=1)

    async def commit() -> None:
        world.replicas.append(TopicPartition("orders", 0), marker, acks=-1, origin=Origin.COORDINATOR)

    world.run(commit())
    ended, verified = (topic.partition_responses[0].error_code for topic in world.run(answer).responses)
    assert (ended, verified) == (ErrorCode.INVALID_TXN_STATE, 0)
    assert world.log("orders").first_unstable_offset is None, "no hanging transaction"


def test_a_partition_that_was_not_led_when_the_others_were_verified_is_not_written_to(world: DataWorld) -> None:
    world.topic("orders", partitions=2, replicas=(0, 1), isr=(0, 1))
    world.change_partitions(lambda p: p._replace(leader=p.index, leader_epoch=1))
    asked: list[TransactionalAppend] = []

    async def verify(append: TransactionalAppend) -> dict[TopicPartition, ErrorCode]:
        asked.append(append)
        await asyncio.sleep(0.05)
        return dict.fromkeys(append.partitions, ErrorCode.NONE)

    world.services.verify_transaction = verify
    batch = batch_of("a", **IN_TRANSACTION)
    request = produce_request({("orders", 0): batch, ("orders", 1): batch}, transactional_id="t", acks=1)
    answer = world.asks(request, 11)
    assert asked[0].partitions == (TopicPartition("orders", 0),), "only what this broker leads becomes a part of it"
    world.change_partitions(lambda p: p if p.index == 0 else p._replace(leader=0, leader_epoch=2))
    led, new = (topic.partition_responses[0].error_code for topic in answer.answer().responses)
    assert (led, new) == (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.log("orders", 1).log_end_offset == 0


def test_one_transaction_has_one_producer(world: DataWorld) -> None:
    world.topic("orders", partitions=2)
    batches = {
        ("orders", 0): batch_of("a", **IN_TRANSACTION),
        ("orders", 1): batch_of("a", **IN_TRANSACTION | {"producer_id": 10}),
    }
    answer = world.ask(produce_request(batches, transactional_id="t"), 9)
    codes = {topic.partition_responses[0].error_code for topic in answer.responses}
    assert codes == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}


# -- storage --


@pytest.fixture
def platter() -> SimPlatter:
    return SimPlatter(SimLoop())


def world_on(platter: SimPlatter, **config: Any) -> DataWorld:
    return DataWorld("/data", disk=platter.disk(), loop=platter.loop, config=ReplicaConfig(**config))


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.KAFKA_STORAGE_ERROR), (3, ErrorCode.NOT_LEADER_OR_FOLLOWER)]
)
def test_a_full_disk_fails_the_producer_and_nothing_else(platter: SimPlatter, version: int, code: ErrorCode) -> None:
    world = world_on(platter)
    world.topic("orders")
    world.produce("orders", "kept")
    platter.fail_next("append", errno.ENOSPC)
    assert world.produce("orders", "lost", version=version).error_code == code
    assert world.produce("orders", "next").base_offset == 1, "there is room again"


def test_with_flush_before_ack_the_answer_waits_for_stable_storage(platter: SimPlatter) -> None:
    world = world_on(platter, flush_before_ack=True)
    world.topic("orders")
    asked = world.asks(produce_request({("orders", 0): batch_of("a")}), 9)
    assert not asked.was_immediate
    assert only_partition(asked.answer()).error_code == 0
    assert world.log("orders").flushed_offset == 1


def test_a_failed_sync_never_counts_as_success(platter: SimPlatter) -> None:
    world = world_on(platter, flush_before_ack=True)
    world.topic("orders")
    assert world.produce("orders", "kept").error_code == 0
    platter.fail_next("sync")
    assert world.produce("orders", "lost?").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    # The kernel may have dropped the pages of the failed sync, so one that succeeds now would prove nothing.
    assert world.produce("orders", "more").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert world.log("orders").high_watermark == 1


def test_a_batch_whose_sync_failed_is_not_acknowledged_as_a_duplicate_either(platter: SimPlatter) -> None:
    world = world_on(platter, flush_before_ack=True)
    world.topic("orders")
    world.wait(100)
    platter.fail_next("sync")
    sequenced = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert world.produce("orders", "lost?", **sequenced).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    for acks in (-1, 1):
        assert world.produce("orders", "lost?", acks=acks, **sequenced).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_batches_that_arrive_during_a_sync_share_the_next_one(platter: SimPlatter) -> None:
    world = world_on(platter, flush_before_ack=True)
    world.topic("orders")
    world.wait(100)
    synced: list[int] = []
    world.disk.sync = lambda handle, sync=world.disk.sync: (synced.append(handle), sync(handle))[1]  # type: ignore
    platter.loop.executor_delay_ms = (5, 5)
    asked = [world.asks(produce_request({("orders", 0): batch_of(str(n))}), 9) for n in range(20)]
    for waiting in asked:
        assert only_partition(waiting.answer()).error_code == 0
    assert len(synced) <= 3
