"""Produce v3-13: appends one batch to each partition; acks 0, 1 and all (-1).

v4   KAFKA_STORAGE_ERROR (KIP-112); v3 gets NOT_LEADER_OR_FOLLOWER instead
v7   zstd (KIP-110); earlier versions get UNSUPPORTED_COMPRESSION_TYPE
v8   record errors and an error message (KIP-467)
v9   flexible (KIP-482)
v10  current leader and its endpoint in errors (KIP-951)
v11  TRANSACTION_ABORTABLE (KIP-890); earlier versions get INVALID_TXN_STATE
v12  adds its partitions to the transaction (KIP-890)
v13  topic ids (KIP-516)

The first batch of a transaction in a partition is appended once `services.verify_transaction` confirms that the
transaction's coordinator knows the partition. Appending never awaits, so the order of a connection's requests is the
order of the log. After that, acks=all waits for the commit; without other replicas the response is sent at once.
"""

import asyncio
from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.current_leader import current_leader
from ottla.broker.handler_support.transaction_verification import TransactionalAppend, Verdicts
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.log.partition_log import Origin
from ottla.protocol.api import ApiKey
from ottla.protocol.batch_layout import ATTRIBUTES_LOW_POSITION, HEADER_SIZE, TRANSACTIONAL
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.record_batch import CorruptBatch, read_header
from ottla.replication.replica import Replica
from ottla.types import INTERNAL_TOPICS, TopicPartition

TopicAnswer = ProduceResponse.TopicProduceResponse
PartitionAnswer = ProduceResponse.PartitionProduceResponse

ADMIN_CLIENT_ID = "__admin_client"
"""The only client id that may write to internal topics."""
ACKS_ALL = -1


@handles(ApiKey.PRODUCE)
def produce(request: ProduceRequest, context: Context) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    if request.acks not in (ACKS_ALL, 1, 0):
        return _refuse(request, ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}")
    if request.transactional_id is not None:
        try:
            unverified, guards = _unverified(request, context)
        except KafkaError as error:
            return _refuse(request, error.code, error.detail)
        verdicts: Verdicts | Awaitable[Verdicts] = {}
        if unverified is not None:
            verdicts = context.services.verify_transaction(unverified)
        unfinished = context.services.replicas.unfinished_appends
        if isinstance(verdicts, Awaitable) or request.transactional_id in unfinished:
            # A later batch of the same producer must not overtake this one, so it waits as well.
            later = _append_when_verified(request, context, verdicts, guards)
            unfinished[request.transactional_id] = later
            return later
        return _append(request, context, verdicts, guards)
    return _append(request, context, {}, {})


def _append(
    request: ProduceRequest, context: Context, verdicts: Verdicts, guards: dict[TopicPartition, int]
) -> ProduceResponse | Awaitable[ProduceResponse] | None:
    version, acks, replicas = context.api_version, request.acks, context.services.replicas
    uncommitted: list[tuple[Replica, int, PartitionAnswer]] = []
    failed: list[tuple[str, PartitionAnswer, KafkaError]] = []
    topics = []
    for topic in request.topic_data:
        if version >= 13:
            hosted = replicas.topics_by_id.get(topic.topic_id)
            name = "" if hosted is None else hosted.name
        else:
            name = topic.name
            hosted = replicas.topics.get(name)
        answers = []
        for data in topic.partition_data:
            index, records, guard = data.index, data.records, None
            try:
                replica = None if hosted is None else hosted.replicas.get(index)
                if replica is None or not replica.is_leader:
                    raise _not_leading(context, name, topic.topic_id, index)
                if records is None:
                    records = b""
                elif len(records) >= HEADER_SIZE and records[ATTRIBUTES_LOW_POSITION] & TRANSACTIONAL:
                    _check_transaction(request, replica, verdicts)
                    guard = guards.get(replica.topic_partition)
                if name in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
                    raise KafkaError(
                        ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal: clients may not write to it"
                    )
                appended = replicas.append_to(replica, records, acks, Origin.CLIENT, version, 0, guard)
            except KafkaError as error:
                answer = PartitionAnswer(index=index, base_offset=-1)
                failed.append((name, answer, _without_history(error)))
            else:
                answer = PartitionAnswer(
                    index=index,
                    base_offset=appended.base_offset,
                    log_append_time_ms=appended.log_append_time_ms,
                    log_start_offset=appended.log_start_offset,
                )
                if acks == ACKS_ALL and replica.log.high_watermark <= appended.last_offset:
                    uncommitted.append((replica, appended.last_offset + 1, answer))
            answers.append(answer)
        topics.append(TopicAnswer(name=name, topic_id=topic.topic_id, partition_responses=answers))
    if acks == 0:
        if failed:
            # The client expects no response: the dispatcher closes the connection.
            raise failed[0][2]
        return None
    response = ProduceResponse(responses=topics)
    if failed:
        _explain(response, failed, context)
    if uncommitted:
        return _when_committed(response, uncommitted, request.timeout_ms, context)
    return response


def _without_history(error: KafkaError) -> KafkaError:
    """An error without its traceback. The frames in it refer to the list that holds the error: a reference cycle that
    would keep the batch in memory until the next garbage collection."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def _not_leading(context: Context, name: str, topic_id: bytes, index: int) -> KafkaError:
    services = context.services
    if context.api_version >= 13:
        known = services.image.topic_names.get(topic_id)
        if known is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        name = known
    return services.replicas.not_leading(name, index)


def _explain(
    response: ProduceResponse, failed: list[tuple[str, PartitionAnswer, KafkaError]], context: Context
) -> None:
    """Fills in the errors, and the current leader of partitions that another broker leads."""
    version, endpoints = context.api_version, {}
    for name, answer, error in failed:
        code = error.code
        if code is ErrorCode.KAFKA_STORAGE_ERROR and version < 4:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer.error_code = code
        answer.error_message = error.detail or None
        answer.record_errors = [
            ProduceResponse.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
            for index, message in getattr(error, "record_errors", ())
        ]
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= 10:
            leader = current_leader(context.services.image, name, answer.index, context.listener)
            answer.current_leader = ProduceResponse.LeaderIdAndEpoch(
                leader_id=leader.leader_id, leader_epoch=leader.leader_epoch
            )
            if leader.is_reachable:
                endpoints[leader.leader_id] = ProduceResponse.NodeEndpoint(
                    node_id=leader.leader_id, host=leader.host, port=leader.port, rack=leader.rack
                )
    if endpoints:
        response.node_endpoints = list(endpoints.values())


def _refuse(request: ProduceRequest, code: ErrorCode, detail: str) -> ProduceResponse:
    """The same error for every partition."""
    return ProduceResponse(
        responses=[
            TopicAnswer(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionAnswer(index=data.index, error_code=code, base_offset=-1, error_message=detail)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


# -- acks=all --


def _when_committed(
    response: ProduceResponse,
    uncommitted: list[tuple[Replica, int, PartitionAnswer]],
    timeout_ms: int,
    context: Context,
) -> Awaitable[ProduceResponse]:
    future: asyncio.Future[ProduceResponse] = asyncio.get_running_loop().create_future()

    def reply(codes: list[ErrorCode]) -> None:
        if future.done():
            return
        for (_, _, answer), code in zip(uncommitted, codes, strict=True):
            if code is not ErrorCode.NONE:
                answer.error_code, answer.base_offset = code, -1
                answer.log_append_time_ms = answer.log_start_offset = -1
        future.set_result(response)

    context.services.replicas.when_committed(
        [(replica, next_offset) for replica, next_offset, _ in uncommitted], timeout_ms, reply
    )
    return future


# -- transactions --


def _unverified(
    request: ProduceRequest, context: Context
) -> tuple[TransactionalAppend | None, dict[TopicPartition, int]]:
    """What has to be verified: partitions in which this producer epoch has no open transaction yet.

    Also, for each of them, a guard with which the log later detects that a marker was written in between.
    """
    replicas = context.services.replicas
    guards: dict[TopicPartition, int] = {}
    producer_id = producer_epoch = -1
    for topic in request.topic_data:
        hosted = (
            replicas.topics_by_id.get(topic.topic_id) if context.api_version >= 13 else replicas.topics.get(topic.name)
        )
        for data in topic.partition_data:
            replica = None if hosted is None else hosted.replicas.get(data.index)
            if replica is None or data.records is None or len(data.records) < HEADER_SIZE:
                continue
            try:
                header = read_header(data.records)
            except CorruptBatch:
                continue
            if header.is_transactional and not replica.log.producers.has_open_transaction(
                header.producer_id, header.producer_epoch
            ):
                if guards and (producer_id, producer_epoch) != (header.producer_id, header.producer_epoch):
                    raise KafkaError(
                        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                        "the batches of one transaction have different producer ids or epochs",
                    )
                producer_id, producer_epoch = header.producer_id, header.producer_epoch
                guards[replica.topic_partition] = replica.log.producers.verification_guard(producer_id)
    if not guards or request.transactional_id is None:
        return None, {}
    unverified = TransactionalAppend(
        request.transactional_id, producer_id, producer_epoch, tuple(guards), context.api_version
    )
    return unverified, guards


def _check_transaction(request: ProduceRequest, replica: Replica, verdicts: Verdicts) -> None:
    if request.transactional_id is None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "the request has transactional records but no transactional id",
        )
    verdict = verdicts.get(replica.topic_partition, ErrorCode.NONE)
    if verdict is not ErrorCode.NONE:
        raise KafkaError(
            verdict, f"{replica.topic_partition} is not part of a transaction of {request.transactional_id!r}"
        )


async def _append_when_verified(
    request: ProduceRequest,
    context: Context,
    verdicts: Verdicts | Awaitable[Verdicts],
    guards: dict[TopicPartition, int],
) -> ProduceResponse | None:
    """Runs when it is this request's turn: the requests of a connection are awaited one after the other."""
    if isinstance(verdicts, Awaitable):
        verdicts = await verdicts
    answer = _append(request, context, verdicts, guards)
    return await answer if isinstance(answer, Awaitable) else answer
