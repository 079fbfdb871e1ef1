"""ListTransactions v0-2: lists the transactions that this broker coordinates (KIP-664).

v1   filter by duration (KIP-994)
v2   filter by a pattern of transactional ids (KIP-1152)
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.coordinator.transaction.transaction import TransactionState
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

_STATES = {str(state) for state in TransactionState}


@handles(ApiKey.LIST_TRANSACTIONS)
def list_transactions(request: ListTransactionsRequest, context: Context) -> ListTransactionsResponse:
    transactions = context.services.transactions
    if transactions.is_loading():
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    asked = set(request.state_filters)
    unknown = sorted(asked - _STATES)
    response = ListTransactionsResponse(unknown_state_filters=unknown)
    if asked and not asked & _STATES:
        return response
    try:
        for hosted in transactions.active_shards():
            response.transaction_states += [
                ListTransactionsResponse.TransactionState(
                    transactional_id=found.transactional_id,
                    producer_id=found.producer_id,
                    transaction_state=str(found.state),
                )
                for found in hosted.shard.find(
                    asked & _STATES,
                    set(request.producer_id_filters),
                    request.duration_filter,
                    request.transactional_id_pattern,
                    context.services.clock(),
                )
            ]
    except KafkaError as error:
        return ListTransactionsResponse(error_code=error.code)
    return response
