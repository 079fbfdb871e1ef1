"""TxnOffsetCommit v0-6: stores offsets of a group in a transaction; they become visible when it commits (KIP-98).

v2   leader epoch (KIP-320)
v3   flexible (KIP-482); member id and generation fence stale members (KIP-447)
v4   TRANSACTION_ABORTABLE (KIP-890); earlier versions get INVALID_TXN_STATE
v5   adds the group to the transaction (KIP-890)
v6   topic ids
"""

from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import request_info, require_group, require_group_id
from ottla.broker.handler_support.offset_access import refused_topics, take_refused
from ottla.broker.handler_support.transactions.transaction_requests import (
    ABORTABLE_SINCE_OFFSET_COMMIT,
    check_partitions,
    require_transaction,
    require_transactional_id,
)
from ottla.broker.services import Context
from ottla.coordinator.group.offset_requests import TRANSACTIONAL_COMMIT_BY_ID_SINCE
from ottla.coordinator.runtime import APPEND_ERRORS, settled
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from ottla.protocol.wire_values import IMPLICIT_ADD_SINCE_OFFSET_COMMIT
from ottla.security.resources import Operation
from ottla.types import OFFSETS_TOPIC, TopicPartition


@handles(ApiKey.TXN_OFFSET_COMMIT)
async def txn_offset_commit(request: TxnOffsetCommitRequest, context: Context) -> TxnOffsetCommitResponse:
    require_transaction(context, request.transactional_id)
    require_group(context, Operation.READ, request.group_id)
    refused = take_refused(request, context, by_id=context.api_version >= TRANSACTIONAL_COMMIT_BY_ID_SINCE)
    if not refused:
        return await _commit(request, context)
    response = await _commit(request, context) if request.topics else TxnOffsetCommitResponse()
    response.topics += _refuse(refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED).topics
    return response


async def _commit(request: TxnOffsetCommitRequest, context: Context) -> TxnOffsetCommitResponse:
    services, version = context.services, context.api_version
    implicit = version >= IMPLICIT_ADD_SINCE_OFFSET_COMMIT
    info = request_info(context)
    try:
        require_group_id(request.group_id)
        require_transactional_id(request.transactional_id)
        partition = TopicPartition(OFFSETS_TOPIC, services.groups.partition_of(request.group_id))
        if implicit or services.config.transaction_partition_verification_enable:
            await _verify(request, partition, context, implicit)
        return await settled(
            services.groups.submit(
                request.group_id,
                lambda shard, request_id, now: shard.commit_in_transaction(request, info, request_id, now),
            )
        )
    except KafkaError as error:
        return _refuse(request.topics, _code(error.code, version))


async def _verify(request: TxnOffsetCommitRequest, partition: TopicPartition, context: Context, implicit: bool) -> None:
    """Makes sure that the coordinator knows the group's partition as part of the transaction (KIP-890).

    Once the producer has an open transaction there, that is proof enough.
    """
    services, producer_id = context.services, request.producer_id
    replica = services.replicas.leader(partition)
    producers = replica.log.producers
    if producers.has_open_transaction(producer_id, request.producer_epoch):
        return
    guard = producers.verification_guard(producer_id, replica.leader_epoch)
    codes = await settled(
        check_partitions(
            services, request.transactional_id, producer_id, request.producer_epoch, [partition], implicit=implicit
        )
    )
    code = codes[partition]
    if code is not ErrorCode.NONE:
        raise KafkaError(code, "the group's offsets are not part of this transaction")
    if guard.leader_epoch != services.replicas.leader(partition).leader_epoch:
        raise KafkaError(ErrorCode.NOT_COORDINATOR, "a new leader epoch began while the transaction was being verified")
    if guard != producers.verification_guard(producer_id, replica.leader_epoch):
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the transaction ended while it was being verified")


def _code(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE_OFFSET_COMMIT:
        return ErrorCode.INVALID_TXN_STATE
    return APPEND_ERRORS.get(code, code)


def _refuse(topics: list[Any], code: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=refused_topics(
            topics,
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic,
            TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition,
            code,
        )
    )
