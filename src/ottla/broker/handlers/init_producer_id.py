"""InitProducerId v0-5: a producer id of its own for each idempotent producer.

v2 is flexible; v3 lets a producer name the id and epoch it had, which without a transactional id changes nothing: it
gets a new id; v4 and v5 add error codes of transactions. A request with a transactional id is answered by
`services.init_transactional_producer`.
"""

from collections.abc import Awaitable
from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NONE_GIVEN = -1


@handles(ApiKey.INIT_PRODUCER_ID, versions=range(0, 6))
async def init_producer_id(request: InitProducerIdRequest, context: Context) -> InitProducerIdResponse:
    try:
        if request.transactional_id == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        if (request.producer_id == NONE_GIVEN) != (request.producer_epoch == NONE_GIVEN):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id without its epoch, or the other way round")
        if request.transactional_id is not None:
            answer: Any = context.services.init_transactional_producer(request, context)
            return await answer if isinstance(answer, Awaitable) else answer
        return InitProducerIdResponse(producer_id=await context.services.metadata.allocate_producer_ids(1))
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code, producer_epoch=-1)
