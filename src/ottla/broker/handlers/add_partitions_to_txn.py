"""AddPartitionsToTxn v0-5: adds partitions to a transaction, before records are written to them (KIP-98).

v2   PRODUCER_FENCED (KIP-588); earlier versions get INVALID_PRODUCER_EPOCH
v3   flexible (KIP-482)
v4   sent by brokers: several transactions, or only a check that partitions were added (KIP-890)
v5   TRANSACTION_ABORTABLE (KIP-890)
"""

import asyncio
from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.transactions.transaction_requests import (
    Codes,
    answer_with,
    check_partitions_here,
    fenced_code,
    require_transaction,
    require_transactional_id,
)
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from ottla.protocol.wire_values import TRANSACTION_V2
from ottla.security.resources import CLUSTER, Operation, ResourceType
from ottla.types import INTERNAL_TOPICS, TopicPartition


@handles(ApiKey.ADD_PARTITIONS_TO_TXN)
def add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, context: Context
) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    if context.api_version >= 4:
        context.require(Operation.CLUSTER_ACTION, CLUSTER)
        return _add_for_brokers(request, context)
    require_transaction(context, request.v3_and_below_transactional_id)
    codes = _add(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        _partitions(request.v3_and_below_topics),
        context,
    )
    if isinstance(codes, dict):
        return _pack_for_client(codes)
    return _pack_later(codes)


async def _pack_later(codes: Awaitable[Codes]) -> AddPartitionsToTxnResponse:
    return _pack_for_client(await codes)


def _pack_for_client(codes: Codes) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_pack(codes))


async def _add_for_brokers(request: AddPartitionsToTxnRequest, context: Context) -> AddPartitionsToTxnResponse:
    answers = []
    for transaction in request.transactions:
        partitions = _partitions(transaction.topics)
        ids = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
        answers.append((_verify if transaction.verify_only else _add)(*ids, partitions, context))
    # All of them are decided first, and their commits are waited for together.
    results = []
    for transaction, answer in zip(request.transactions, answers, strict=True):
        codes = answer if isinstance(answer, dict) else await answer
        results.append(
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id, topic_results=_pack(codes)
            )
        )
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _partitions(topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, partition) for topic in topics for partition in topic.partitions]


def _add(
    transactional_id: str, producer_id: int, producer_epoch: int, partitions: list[TopicPartition], context: Context
) -> Codes | Awaitable[Codes]:
    topics = context.services.image.topics
    writable = context.allowed(Operation.WRITE, ResourceType.TOPIC) if context.api_version < 4 else None
    refused = (
        []
        if writable is None
        else [each for each in partitions if each.topic in INTERNAL_TOPICS or not writable[each.topic]]
    )
    unknown = [
        each
        for each in partitions
        if (topic := topics.get(each.topic)) is None or not 0 <= each.partition < len(topic.partitions)
    ]
    if unknown or refused:
        # All or nothing: a transaction that is half registered would hang in the other half.
        codes = dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED)
        codes |= dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return codes | dict.fromkeys(refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def submit() -> Codes | asyncio.Future[Codes]:
        require_transactional_id(transactional_id)
        return context.services.transactions.submit(
            transactional_id,
            lambda shard, request_id, now: shard.add_partitions(
                transactional_id,
                producer_id,
                producer_epoch,
                partitions,
                request_id,
                now,
                client_version=TRANSACTION_V2 if context.api_version >= 4 else 0,
            ),
        )

    def refuse(code: ErrorCode) -> Codes:
        return dict.fromkeys(partitions, fenced_code(code, context.api_version, 2))

    return answer_with(submit, lambda _: dict.fromkeys(partitions, ErrorCode.NONE), refuse)


def _verify(
    transactional_id: str, producer_id: int, producer_epoch: int, partitions: list[TopicPartition], context: Context
) -> Codes | Awaitable[Codes]:
    def submit() -> Codes | asyncio.Future[Codes]:
        return check_partitions_here(
            context.services, transactional_id, producer_id, producer_epoch, partitions, implicit=False
        )

    def refuse(code: ErrorCode) -> Codes:
        return dict.fromkeys(partitions, code)

    return answer_with(submit, lambda codes: codes, refuse)


def _pack(codes: Codes) -> list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
    topics: dict[str, list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult]] = {}
    for partition, code in codes.items():
        topics.setdefault(partition.topic, []).append(
            AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                partition_index=partition.partition, partition_error_code=code
            )
        )
    return [
        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(name=name, results_by_partition=results)
        for name, results in topics.items()
    ]
