"""What the handlers of transactional requests share: asking the coordinator, and error codes by version."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from ottla.broker.handler_support.later import Later
from ottla.broker.handler_support.transactions.transaction_verification import TransactionalAppend, Verdicts
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.wire_values import IMPLICIT_ADD_SINCE_PRODUCE, TRANSACTION_V2
from ottla.security.resources import Operation, Resource, ResourceType
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.services import Context, Services

Reply = TypeVar("Reply")
Response = TypeVar("Response")

Codes = dict[TopicPartition, ErrorCode]

ABORTABLE_SINCE_PRODUCE = 11
ABORTABLE_SINCE_OFFSET_COMMIT = 4

_RETRY_LATER = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    # The coordinator does not know a new topic yet, which this broker already leads.
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
)


def require_transaction(
    context: "Context", transactional_id: str | None, operation: Operation = Operation.WRITE
) -> None:
    """Raises TRANSACTIONAL_ID_AUTHORIZATION_FAILED unless the client may do this with the transactional id."""
    if context.services.authorizer is not None:
        context.require(operation, Resource(ResourceType.TRANSACTIONAL_ID, transactional_id or ""))


def require_transactional_id(transactional_id: str | None) -> None:
    if not transactional_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")


def answer_with(
    submit: "Callable[[], Reply | asyncio.Future[Reply]]",
    pack: Callable[[Reply], Response],
    refuse: Callable[[ErrorCode], Response],
) -> Response | Awaitable[Response]:
    """The response at once if the coordinator has replied, which saves a task; otherwise an awaitable of it."""
    try:
        reply = submit()
    except KafkaError as error:
        return refuse(error.code)
    if isinstance(reply, asyncio.Future):
        return Later(lambda: _answer_later(reply, pack, refuse))
    return pack(reply)


async def _answer_later(
    reply: "asyncio.Future[Reply]", pack: Callable[[Reply], Response], refuse: Callable[[ErrorCode], Response]
) -> Response:
    try:
        return pack(await reply)
    except KafkaError as error:
        return refuse(error.code)


def fenced_code(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """Versions before PRODUCER_FENCED get INVALID_PRODUCER_EPOCH (KIP-588)."""
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def verifier(services: "Services") -> Callable[[TransactionalAppend], Verdicts | Awaitable[Verdicts]]:
    """Checks for Produce whether a transaction may write to partitions (KIP-890)."""

    def verify(append: TransactionalAppend) -> Verdicts | Awaitable[Verdicts]:
        implicit = append.produce_version >= IMPLICIT_ADD_SINCE_PRODUCE
        if not implicit and not services.config.transaction_partition_verification_enable:
            return dict.fromkeys(append.partitions, ErrorCode.NONE)
        try:
            answer = check_partitions(
                services,
                append.transactional_id,
                append.producer_id,
                append.producer_epoch,
                append.partitions,
                implicit=implicit,
            )
        except KafkaError as error:
            code = for_producer(error.code, append.produce_version, implicit)
            return dict.fromkeys(append.partitions, code)
        if isinstance(answer, asyncio.Future):
            return Later(lambda: _verified_later(append, answer, implicit))
        return _verdicts(append, answer, implicit)

    return verify


async def _verified_later(append: TransactionalAppend, answer: "asyncio.Future[Codes]", implicit: bool) -> Verdicts:
    try:
        return _verdicts(append, await answer, implicit)
    except KafkaError as error:
        return dict.fromkeys(append.partitions, for_producer(error.code, append.produce_version, implicit))


def _verdicts(append: TransactionalAppend, answer: Codes, implicit: bool) -> Verdicts:
    return {partition: for_producer(code, append.produce_version, implicit) for partition, code in answer.items()}


def check_partitions(
    services: "Services",
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Collection[TopicPartition],
    *,
    implicit: bool,
) -> "Codes | asyncio.Future[Codes]":
    """Checks that partitions are part of the transaction, or adds them if `implicit` (KIP-890). If another broker
    coordinates the transaction, that broker is asked."""
    try:
        return check_partitions_here(
            services, transactional_id, producer_id, producer_epoch, partitions, implicit=implicit
        )
    except KafkaError as error:
        if error.code is not ErrorCode.NOT_COORDINATOR or services.coordinators is None:
            raise
        answer = services.coordinators.ask_coordinator(
            transactional_id, producer_id, producer_epoch, partitions, implicit=implicit
        )
        if answer is None:
            raise
        return answer


def check_partitions_here(
    services: "Services",
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Collection[TopicPartition],
    *,
    implicit: bool,
) -> "Codes | asyncio.Future[Codes]":
    """The same, if this broker coordinates the transaction. Raises NOT_COORDINATOR otherwise."""
    require_transactional_id(transactional_id)
    if implicit:
        return services.transactions.submit(
            transactional_id,
            lambda shard, request_id, now: shard.add_partitions(
                transactional_id,
                producer_id,
                producer_epoch,
                partitions,
                request_id,
                now,
                client_version=TRANSACTION_V2,
            ),
        )
    return services.transactions.read(
        transactional_id, lambda shard: shard.verify(transactional_id, producer_id, producer_epoch, partitions)
    )


def for_producer(code: ErrorCode, produce_version: int, implicit: bool) -> ErrorCode:
    """The error code of a failed verification, as the producer's version knows it."""
    if code in _RETRY_LATER or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not implicit):
        # The producer retries it without a metadata refresh.
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and produce_version < ABORTABLE_SINCE_PRODUCE:
        return ErrorCode.INVALID_TXN_STATE
    return code
