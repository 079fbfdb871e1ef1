"""InitProducerId v0-6: assigns a producer id and epoch (KIP-98). With a transactional id, older producers are fenced.

v2   flexible (KIP-482)
v3   the producer names its current id and epoch (KIP-360); ignored without a transactional id
v4   PRODUCER_FENCED (KIP-588); earlier versions get INVALID_PRODUCER_EPOCH
v6   two-phase commit (KIP-939): the transaction never times out, and a new instance can keep a prepared one
"""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.transactions.producer_ids import new_producer_id
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.security.resources import CLUSTER, Operation, Resource, ResourceType

NONE_GIVEN = -1


@handles(ApiKey.INIT_PRODUCER_ID)
async def init_producer_id(request: InitProducerIdRequest, context: Context) -> InitProducerIdResponse:
    try:
        _authorize(request, context)
        if request.transactional_id == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if (request.producer_id == NONE_GIVEN) != (request.producer_epoch == NONE_GIVEN):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "the request has a producer id without an epoch, or an epoch without a producer id",
            )
        fresh_id = await new_producer_id(context.services)
        if request.transactional_id is None:
            return InitProducerIdResponse(producer_id=fresh_id)
        return await _init_transactional(request.transactional_id, request, fresh_id, context)
    except KafkaError as error:
        code = error.code
        if code is ErrorCode.PRODUCER_FENCED and context.api_version < 4:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)


def _authorize(request: InitProducerIdRequest, context: Context) -> None:
    if context.services.authorizer is None:
        return
    if request.transactional_id is None:
        # A client that may write to a topic may do so idempotently (KIP-679).
        if not context.allows(Operation.IDEMPOTENT_WRITE, CLUSTER, quietly=True) and not context.allows_any(
            Operation.WRITE, ResourceType.TOPIC
        ):
            context.require(Operation.IDEMPOTENT_WRITE, CLUSTER)
        return
    resource = Resource(ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    context.require(Operation.WRITE, resource)
    if request.enable2_pc:
        context.require(Operation.TWO_PHASE_COMMIT, resource)


async def _init_transactional(
    transactional_id: str, request: InitProducerIdRequest, fresh_id: int, context: Context
) -> InitProducerIdResponse:
    from ottla.coordinator.runtime import settled
    from ottla.coordinator.transaction.starting import ProducerInit

    init = ProducerInit(
        transactional_id,
        request.transaction_timeout_ms,
        None if request.producer_id == NONE_GIVEN else (request.producer_id, request.producer_epoch),
        two_phase=request.enable2_pc,
        keep_prepared=request.keep_prepared_txn,
    )
    answer = await settled(
        context.services.transactions.submit(
            transactional_id,
            lambda shard, request_id, now: shard.init_producer_id(init, fresh_id, request_id, now),
        )
    )
    response = InitProducerIdResponse(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)
    if context.api_version >= 6:
        response.ongoing_txn_producer_id = answer.ongoing_producer_id
        response.ongoing_txn_producer_epoch = answer.ongoing_producer_epoch
    return response
