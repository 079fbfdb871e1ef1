"""ListTransactions v0-2: lists the transactions that this broker coordinates (KIP-664).

v1   filter by duration (KIP-994)
v2   filter by a pattern of transactional ids (KIP-1152)
"""

import asyncio
from collections.abc import Awaitable
from itertools import accumulate

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.later import Later
from ottla.broker.handler_support.sliced_response import SLICE, SlicedResponse, in_slices
from ottla.broker.services import Context
from ottla.coordinator.transaction.id_pattern import IdPattern, PatternError
from ottla.coordinator.transaction.transaction import Transaction, TransactionState
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from ottla.security.resources import Operation, ResourceType

CHARACTERS_AT_ONCE = 10_000
"""How many characters of ids are matched with a pattern in one step: a few milliseconds."""

_STATES = {str(state) for state in TransactionState}


@handles(ApiKey.LIST_TRANSACTIONS)
def list_transactions(
    request: ListTransactionsRequest, context: Context
) -> ListTransactionsResponse | Awaitable[SlicedResponse]:
    transactions = context.services.transactions
    if transactions.is_loading():
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    asked = set(request.state_filters)
    unknown = sorted(asked - _STATES)
    response = ListTransactionsResponse(unknown_state_filters=unknown)
    if asked and not asked & _STATES:
        return response
    try:
        pattern = IdPattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except PatternError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    found = [
        transaction
        for hosted in transactions.active_shards()
        for transaction in hosted.shard.find(
            asked & _STATES,
            set(request.producer_id_filters),
            request.duration_filter,
            context.services.clock(),
        )
    ]
    describable = context.allowed(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, quietly=True)
    if describable is not None:
        found = [transaction for transaction in found if describable[transaction.transactional_id]]
    if pattern is not None:
        return Later(lambda: _matching(pattern, found, response, context.api_version))
    if len(found) > SLICE:
        return Later(lambda: _in_slices(found, response, context.api_version))
    response.transaction_states = _listed(found)
    return response


async def _matching(
    pattern: IdPattern, found: list[Transaction], message: ListTransactionsResponse, version: int
) -> SlicedResponse:
    """Other requests are served meanwhile: a peer chose the pattern, and peers chose the ids."""
    matching: list[Transaction] = []
    for characters, transaction in zip(accumulate(len(each.transactional_id) for each in found), found, strict=True):
        if await _matches(pattern, transaction.transactional_id):
            matching.append(transaction)
        if characters // CHARACTERS_AT_ONCE > (characters - len(transaction.transactional_id)) // CHARACTERS_AT_ONCE:
            await asyncio.sleep(0)
    return await _in_slices(matching, message, version)


async def _matches(pattern: IdPattern, text: str) -> bool:
    match = pattern.match(text)
    while True:
        found = match.advance()
        if found is not None:
            return found
        await asyncio.sleep(0)


async def _in_slices(found: list[Transaction], message: ListTransactionsResponse, version: int) -> SlicedResponse:
    response = SlicedResponse(message, "transaction_states", version)
    for transactions in in_slices(found):
        await response.add(_listed(transactions))
    return response


def _listed(found: list[Transaction]) -> list[ListTransactionsResponse.TransactionState]:
    return [
        ListTransactionsResponse.TransactionState(
            transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=str(each.state)
        )
        for each in found
    ]
