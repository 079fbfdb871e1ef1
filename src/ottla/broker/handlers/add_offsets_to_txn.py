"""AddOffsetsToTxn v0-4: makes a group's offsets part of a transaction. v2 adds PRODUCER_FENCED."""

from ottla.broker.coordinators import OFFSETS_TOPIC
from ottla.broker.dispatch import handles
from ottla.broker.group_requests import ensure_offsets_topic
from ottla.broker.services import Context
from ottla.broker.transaction_requests import ask, fenced_code, require_transactional_id
from ottla.errors import KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.types import TopicPartition


@handles(ApiKey.ADD_OFFSETS_TO_TXN, versions=range(0, 5))
async def add_offsets_to_txn(request: AddOffsetsToTxnRequest, context: Context) -> AddOffsetsToTxnResponse:
    services = context.services
    try:
        require_transactional_id(request.transactional_id)
        if OFFSETS_TOPIC not in services.image.topics:
            await ensure_offsets_topic(services)
        partition = TopicPartition(OFFSETS_TOPIC, services.groups.partition_of(request.group_id))
        await ask(
            services.transactions,
            request.transactional_id,
            lambda shard, request_id, now: shard.add_partitions(
                request.transactional_id, request.producer_id, request.producer_epoch, [partition], request_id, now
            ),
        )
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=fenced_code(error.code, context.api_version, 2))
    return AddOffsetsToTxnResponse()
