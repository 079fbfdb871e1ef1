"""AddOffsetsToTxn v0-4: adds a group's offsets to a transaction (KIP-98).

v2   PRODUCER_FENCED (KIP-588); earlier versions get INVALID_PRODUCER_EPOCH
v3   flexible (KIP-482)
"""

import asyncio
from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import ensure_offsets_topic, require_group
from ottla.broker.handler_support.transactions.transaction_requests import (
    Codes,
    answer_with,
    fenced_code,
    require_transaction,
    require_transactional_id,
)
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.security.resources import Operation
from ottla.types import OFFSETS_TOPIC, TopicPartition


@handles(ApiKey.ADD_OFFSETS_TO_TXN)
def add_offsets_to_txn(
    request: AddOffsetsToTxnRequest, context: Context
) -> AddOffsetsToTxnResponse | Awaitable[AddOffsetsToTxnResponse]:
    require_transaction(context, request.transactional_id)
    require_group(context, Operation.READ, request.group_id)
    if OFFSETS_TOPIC not in context.services.image.topics:
        return _add_once_made(request, context)
    return _add(request, context)


async def _add_once_made(request: AddOffsetsToTxnRequest, context: Context) -> AddOffsetsToTxnResponse:
    try:
        await ensure_offsets_topic(context.services)
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=error.code)
    answer = _add(request, context)
    return await answer if isinstance(answer, Awaitable) else answer


def _add(
    request: AddOffsetsToTxnRequest, context: Context
) -> AddOffsetsToTxnResponse | Awaitable[AddOffsetsToTxnResponse]:
    services = context.services

    def submit() -> Codes | asyncio.Future[Codes]:
        require_transactional_id(request.transactional_id)
        partition = TopicPartition(OFFSETS_TOPIC, services.groups.partition_of(request.group_id))
        return services.transactions.submit(
            request.transactional_id,
            lambda shard, request_id, now: shard.add_partitions(
                request.transactional_id, request.producer_id, request.producer_epoch, [partition], request_id, now
            ),
        )

    def refuse(code: ErrorCode) -> AddOffsetsToTxnResponse:
        return AddOffsetsToTxnResponse(error_code=fenced_code(code, context.api_version, 2))

    return answer_with(submit, lambda _: AddOffsetsToTxnResponse(), refuse)
