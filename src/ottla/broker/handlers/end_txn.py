"""EndTxn v0-5: commits or aborts. v2 adds PRODUCER_FENCED, v3 is flexible, v5 gives each transaction an epoch of its
own and returns the next (KIP-890).

The answer leaves when the decision is committed; the markers follow. It may come from any connection: who knows the
transactional id, producer id and epoch decides, which is how an outside coordinator ends a prepared transaction.
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.broker.transaction_requests import ask, fenced_code
from ottla.coordinator.transaction.transaction import LAST_CLIENT_EPOCH
from ottla.errors import KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse


@handles(ApiKey.END_TXN, versions=range(0, 6))
async def end_txn(request: EndTxnRequest, context: Context) -> EndTxnResponse:
    services, version = context.services, context.api_version
    try:
        spare = -1
        if version >= 5 and request.producer_epoch >= LAST_CLIENT_EPOCH - 1:
            # Only an id whose epochs are used up needs it, but then at once.
            spare = await services.metadata.allocate_producer_ids(1)
        answer = await ask(
            services.transactions,
            request.transactional_id,
            lambda shard, request_id, now: shard.end(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                request.committed,
                spare,
                request_id,
                now,
                bumps_epoch=version >= 5,
            ),
        )
    except KafkaError as error:
        return EndTxnResponse(error_code=fenced_code(error.code, version, 2))
    if version < 5:
        return EndTxnResponse()
    return EndTxnResponse(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)
