"""DescribeTransactions v0: state, producer, timeout, start time and partitions of transactions (KIP-664)."""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.sliced_response import SlicedResponse, answer_each
from ottla.broker.handler_support.transactions.transaction_requests import require_transaction, require_transactional_id
from ottla.broker.services import Context
from ottla.coordinator.runtime import settled
from ottla.coordinator.transaction.shard import TransactionShard
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from ottla.security.resources import Operation, ResourceType
from ottla.types import partitions_by_topic

State = DescribeTransactionsResponse.TransactionState


@handles(ApiKey.DESCRIBE_TRANSACTIONS)
async def describe_transactions(
    request: DescribeTransactionsRequest, context: Context
) -> DescribeTransactionsResponse | SlicedResponse:
    return await answer_each(
        DescribeTransactionsResponse(),
        "transaction_states",
        context.api_version,
        request.transactional_ids,
        lambda transactional_id: _describe(transactional_id, context),
    )


async def _describe(transactional_id: str, context: Context) -> State:
    try:
        require_transaction(context, transactional_id, Operation.DESCRIBE)
        require_transactional_id(transactional_id)
        state = await settled(
            context.services.transactions.read(transactional_id, lambda shard: _look(shard, transactional_id))
        )
        describable = context.allowed(Operation.DESCRIBE, ResourceType.TOPIC, quietly=True)
        if describable is not None:
            state.topics = [topic for topic in state.topics if describable[topic.topic]]
        return state
    except KafkaError as error:
        code = error.code
        if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND  # no transaction has been started yet
        return State(transactional_id=transactional_id, error_code=code)


def _look(shard: TransactionShard, transactional_id: str) -> State:
    known = shard.transactions.get(transactional_id)
    if known is None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    # While markers are being written, only the partitions that still lack one are shown.
    partitions = shard.unwritten_markers(transactional_id) or known.partitions
    topics = partitions_by_topic(sorted(partitions))
    return State(
        transactional_id=transactional_id,
        transaction_state=str(known.state),
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.start_timestamp,
        producer_id=known.producer_id,
        producer_epoch=known.producer_epoch,
        topics=[DescribeTransactionsResponse.TopicData(topic=t, partitions=p) for t, p in topics.items()],
    )
