"""DescribeTransactions v0: shows transactions: state, producer, timeout, since when, and their partitions."""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.transaction_requests import ask
from ottla.broker.services import Context
from ottla.coordinator.effects import Effects
from ottla.coordinator.transaction.shard import TransactionShard
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse

State = DescribeTransactionsResponse.TransactionState


@handles(ApiKey.DESCRIBE_TRANSACTIONS, versions=range(0, 1))
async def describe_transactions(request: DescribeTransactionsRequest, context: Context) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[await _describe(each, context) for each in request.transactional_ids]
    )


async def _describe(transactional_id: str, context: Context) -> State:
    def look(shard: TransactionShard, request_id: int, now: int) -> Effects:
        effects = Effects()
        known = shard.transactions.get(transactional_id)
        if known is None:
            effects.reply(request_id, KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))
            return effects
        # While markers are on their way, those partitions that still wait are shown.
        partitions = shard.unwritten_markers(transactional_id) or known.partitions
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(partitions):
            topics.setdefault(topic, []).append(partition)
        effects.reply(
            request_id,
            State(
                transactional_id=transactional_id,
                transaction_state=str(known.state),
                transaction_timeout_ms=known.timeout_ms,
                transaction_start_time_ms=known.start_timestamp,
                producer_id=known.producer_id,
                producer_epoch=known.producer_epoch,
                topics=[DescribeTransactionsResponse.TopicData(topic=t, partitions=p) for t, p in topics.items()],
            ),
        )
        return effects

    try:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a transactional id is needed")
        found: State = await ask(context.services.transactions, transactional_id, look)
        return found
    except KafkaError as error:
        code = error.code
        if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND  # nobody has made a transaction yet
        return State(transactional_id=transactional_id, error_code=code)
