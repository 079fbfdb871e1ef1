"""EndTxn v0-5: commits or aborts a transaction (KIP-98).

v2   PRODUCER_FENCED (KIP-588); earlier versions get INVALID_PRODUCER_EPOCH
v3   flexible (KIP-482)
v5   each transaction has its own epoch: the response has the next producer id and epoch (KIP-890)

The response is sent when the decision is committed; the markers follow. Any connection may send the request: knowing
the transactional id, producer id and epoch is enough. That is how an outside coordinator ends a prepared transaction.
"""

import asyncio
from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.transactions.producer_ids import new_producer_id
from ottla.broker.handler_support.transactions.transaction_requests import (
    answer_with,
    fenced_code,
    require_transaction,
    require_transactional_id,
)
from ottla.broker.services import Context
from ottla.coordinator.transaction.transaction import LAST_CLIENT_EPOCH, ProducerIdAndEpoch
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

BUMPS_EPOCH_SINCE = 5


@handles(ApiKey.END_TXN)
def end_txn(request: EndTxnRequest, context: Context) -> EndTxnResponse | Awaitable[EndTxnResponse]:
    require_transaction(context, request.transactional_id)
    if context.api_version >= BUMPS_EPOCH_SINCE and request.producer_epoch >= LAST_CLIENT_EPOCH - 1:
        return _end_with_new_id(request, context)
    return _end(request, context, -1)


async def _end_with_new_id(request: EndTxnRequest, context: Context) -> EndTxnResponse:
    """The producer's epochs are used up: with the end of this transaction it gets a new producer id."""
    try:
        spare = await new_producer_id(context.services)
    except KafkaError as error:
        return EndTxnResponse(error_code=error.code)
    answer = _end(request, context, spare)
    return await answer if isinstance(answer, Awaitable) else answer


def _end(
    request: EndTxnRequest, context: Context, spare_producer_id: int
) -> EndTxnResponse | Awaitable[EndTxnResponse]:
    version = context.api_version

    def submit() -> ProducerIdAndEpoch | asyncio.Future[ProducerIdAndEpoch]:
        require_transactional_id(request.transactional_id)
        return context.services.transactions.submit(
            request.transactional_id,
            lambda shard, request_id, now: shard.end(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                request.committed,
                spare_producer_id,
                request_id,
                now,
                bumps_epoch=version >= BUMPS_EPOCH_SINCE,
            ),
        )

    def pack(following: ProducerIdAndEpoch) -> EndTxnResponse:
        if version < BUMPS_EPOCH_SINCE:
            return EndTxnResponse()
        return EndTxnResponse(producer_id=following.producer_id, producer_epoch=following.producer_epoch)

    def refuse(code: ErrorCode) -> EndTxnResponse:
        return EndTxnResponse(error_code=fenced_code(code, version, 2))

    return answer_with(submit, pack, refuse)
