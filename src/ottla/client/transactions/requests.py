"""Builds the requests of a transactional producer and reads the responses. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ottla.client.core.coordinator_lookup import build_find_coordinator
from ottla.client.core.model import CommittedOffset
from ottla.client.core.settings import ProducerConfig
from ottla.errors import ErrorCode, KafkaError, raise_for
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from ottla.protocol.wire_values import IMPLICIT_ADD_SINCE_OFFSET_COMMIT, IMPLICIT_ADD_SINCE_PRODUCE
from ottla.types import TopicPartition, partitions_by_topic

PRODUCE_WITHOUT_ADDING = IMPLICIT_ADD_SINCE_PRODUCE - 1
OFFSETS_ADDING = IMPLICIT_ADD_SINCE_OFFSET_COMMIT
"""The next version names topics by id instead of by name."""
OFFSETS_WITHOUT_ADDING = OFFSETS_ADDING - 1
END_WITHOUT_NEW_EPOCH = 4
"""From EndTxn v5 on, the response contains the epoch of the next transaction (KIP-890)."""
ADD_PARTITIONS_OF_CLIENTS = 3
"""From v4 on AddPartitionsToTxn is for brokers only (KIP-890)."""
INIT_WITHOUT_TWO_PHASE = 5
TWO_PHASE_VERSION = 6
"""InitProducerId v6 adds two-phase commit (KIP-939)."""
CONCURRENT_BACKOFF_MS = 20
"""Maximum backoff after CONCURRENT_TRANSACTIONS: writing the markers of the last transaction is fast (KAFKA-5477)."""

Build = Callable[[int], Any]


class GroupMetadata(NamedTuple):
    """A consumer group and the member that consumed the records. Commits of a replaced member are fenced (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


def group_metadata(group: Any) -> GroupMetadata:
    """From a group id, or from the result of `consumer.group_metadata()`."""
    if isinstance(group, str):
        return GroupMetadata(group)
    return GroupMetadata(
        group.group_id, group.generation_id, group.member_id, getattr(group, "group_instance_id", None)
    )


def find_coordinator(key: str, key_type: int) -> Build:
    return lambda version: build_find_coordinator([key], key_type, version)


def coordinator_in(response: Any) -> int:
    answer = response.coordinators[0] if response.coordinators else response
    raise_for(answer.error_code, answer.error_message or "")
    return int(answer.node_id)


def init_producer_id(
    config: ProducerConfig, producer_id: int, producer_epoch: int, *, keep_prepared: bool = False
) -> Build:
    """With a producer id, requests the next epoch (KIP-360); without one, takes over the transactional id."""
    two_phase = config.transaction_two_phase_commit_enable

    def build(version: int) -> InitProducerIdRequest:
        if two_phase and version < TWO_PHASE_VERSION:
            detail = "the broker does not support two-phase commit (transaction.two.phase.commit.enable, KIP-939)"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
        request = InitProducerIdRequest(
            transactional_id=config.transactional_id, transaction_timeout_ms=config.transaction_timeout_ms
        )
        if producer_id >= 0:
            request.producer_id, request.producer_epoch = producer_id, producer_epoch
        if two_phase:
            request.enable2_pc, request.keep_prepared_txn = True, keep_prepared
        return request

    return build


def add_partitions(
    transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
) -> Build:
    topics = [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=indexes)
        for name, indexes in partitions_by_topic(sorted(partitions)).items()
    ]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=producer_epoch,
        v3_and_below_topics=topics,
    )
    return lambda version: request


def partitions_in(response: Any) -> dict[TopicPartition, int]:
    """The error code of each partition. OPERATION_NOT_ATTEMPTED comes last: another partition's error caused it."""
    codes = {
        TopicPartition(topic.name, result.partition_index): result.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    }
    return dict(sorted(codes.items(), key=lambda item: item[1] == ErrorCode.OPERATION_NOT_ATTEMPTED))


def add_offsets(transactional_id: str, producer_id: int, producer_epoch: int, group_id: str) -> Build:
    request = AddOffsetsToTxnRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=producer_epoch, group_id=group_id
    )
    return lambda version: request


def commit_offsets(
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> Build:
    topics = [
        TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
            name=name, partitions=[_committed(index, offsets[TopicPartition(name, index)]) for index in indexes]
        )
        for name, indexes in partitions_by_topic(sorted(offsets)).items()
    ]
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        generation_id_or_member_epoch=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=topics,
    )
    return lambda version: request


def _committed(index: int, offset: CommittedOffset) -> Any:
    return TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def offsets_in(response: Any) -> dict[TopicPartition, int]:
    return {TopicPartition(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}


def end(transactional_id: str, producer_id: int, producer_epoch: int, commit: bool) -> Build:
    request = EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=producer_epoch, committed=commit
    )
    return lambda version: request
