"""Produce v3-13: appends one batch to each partition; acks 0, 1 and all (-1).

v4   KAFKA_STORAGE_ERROR (KIP-112); v3 gets NOT_LEADER_OR_FOLLOWER instead
v7   zstd (KIP-110); earlier versions get UNSUPPORTED_COMPRESSION_TYPE
v8   record errors and an error message (KIP-467)
v9   flexible (KIP-482)
v10  current leader and its endpoint in errors (KIP-951)
v11  TRANSACTION_ABORTABLE (KIP-890); earlier versions get INVALID_TXN_STATE
v12  adds its partitions to the transaction (KIP-890)
v13  topic ids (KIP-516)

Appending usually never awaits, so the order of a connection's requests is the order of the log. Two kinds of batches
are late: those that take long to decompress, which a thread checks first, and the first batch of a transaction in a
partition, if `services.verify_transaction` has to ask the coordinator whether it knows the partition. Then the later
requests of the connection wait as well (`replication/late_appends.py`). After the append, acks=all waits for the
commit; without other replicas the response is sent at once.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from types import CoroutineType
from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.broker_clients import is_broker
from ottla.broker.handler_support.fetching.current_leader import current_leader
from ottla.broker.handler_support.transactions.transaction_verification import TransactionalAppend, Verdicts
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.log.partition_log import Origin
from ottla.log.producers.producer_state import VerificationGuard
from ottla.log.validation import Prepared
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.records.batch_layout import ATTRIBUTES_LOW_POSITION, CODEC_MASK, HEADER_SIZE, TRANSACTIONAL
from ottla.protocol.records.record_batch import CorruptBatch, read_header
from ottla.replication.applying import HostedTopic
from ottla.replication.replica import Replica
from ottla.replication.replica_manager import ACKS_ALL
from ottla.security.resources import Operation, Resource, ResourceType
from ottla.types import INTERNAL_TOPICS, REBALANCES_TOPIC, TopicPartition, uuid_to_text

TopicAnswer = ProduceResponse.TopicProduceResponse
PartitionAnswer = ProduceResponse.PartitionProduceResponse
TopicData = ProduceRequest.TopicProduceData
PartitionData = ProduceRequest.PartitionProduceData

Guards = dict[TopicPartition, VerificationGuard]

ADMIN_CLIENT_ID = "__admin_client"
"""The only client id that may write to internal topics."""


Answer = ProduceResponse | Awaitable[ProduceResponse] | None
"""A response, a response that waits for the commit, or none (acks=0)."""


@handles(ApiKey.PRODUCE)
def produce(request: ProduceRequest, context: Context) -> Answer | Awaitable[ProduceResponse | None]:
    if request.acks not in (ACKS_ALL, 1, 0):
        return _refuse(request, ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be -1, 0 or 1, not {request.acks}")
    late = context.services.replicas.late_appends
    if late.last and (before := late.before(context.connection)) is not None:
        step: Answer | Coroutine[Any, Any, Answer] = _append_behind(before, request, context)
    elif request.transactional_id is None:
        step = _append(request, context, {}, {})
    else:
        step = _append_now(request, context)
    if type(step) is CoroutineType:
        size_bytes = sum(len(data.records or b"") for topic in request.topic_data for data in topic.partition_data)
        return _answer(late.add(context.connection, step, size_bytes))
    return step  # type: ignore[return-value]  # the type of a coroutine is exact


async def _answer(task: "asyncio.Task[Answer]") -> ProduceResponse | None:
    # Shielded: the append is finished even if the connection closes.
    answer = await asyncio.shield(task)
    return await answer if isinstance(answer, Awaitable) else answer


async def _append_behind(before: "asyncio.Task[Any]", request: ProduceRequest, context: Context) -> Answer:
    await asyncio.wait([before])
    answer = _append_now(request, context)
    return await answer if isinstance(answer, Coroutine) else answer


def _append_now(request: ProduceRequest, context: Context) -> Answer | Coroutine[Any, Any, Answer]:
    """Appends the request's batches. A coroutine if one of them is late."""
    if request.transactional_id is None:
        return _append(request, context, {}, {})
    try:
        if context.services.authorizer is not None and _is_transactional(request):
            context.require(Operation.WRITE, Resource(ResourceType.TRANSACTIONAL_ID, request.transactional_id))
        unverified, guards = _unverified(request, context)
    except KafkaError as error:
        return _refuse(request, error.code, error.detail)
    if unverified is None:
        return _append(request, context, {}, guards)
    verdicts = context.services.verify_transaction(unverified)
    if isinstance(verdicts, Awaitable):
        return _append_when_verified(request, context, verdicts, guards)
    if ErrorCode.CONCURRENT_TRANSACTIONS in verdicts.values():
        return _append_when_ended(request, context, verdicts, guards)
    return _append(request, context, verdicts, guards)


async def _append_when_verified(
    request: ProduceRequest, context: Context, verdicts: Awaitable[Verdicts], guards: Guards
) -> Answer:
    found = await verdicts
    if ErrorCode.CONCURRENT_TRANSACTIONS in found.values():
        return await _append_when_ended(request, context, found, guards)
    answer = _append(request, context, found, guards)
    return await answer if isinstance(answer, Coroutine) else answer


async def _append_when_ended(request: ProduceRequest, context: Context, verdicts: Verdicts, guards: Guards) -> Answer:
    """The markers of the producer's previous transaction are still being written, which takes milliseconds. A producer
    that gets this error pauses for much longer, so the coordinator is asked again for a moment (KIP-890).

    New guards are taken each time: one of those markers may be written to a partition of this request.
    """
    services = context.services
    config = services.config
    end_ms = services.monotonic() + config.add_partitions_to_txn_retry_backoff_max_ms
    pause_ms = 1
    while ErrorCode.CONCURRENT_TRANSACTIONS in verdicts.values() and services.monotonic() < end_ms:
        await asyncio.sleep(pause_ms / 1000)
        pause_ms = min(2 * pause_ms, config.add_partitions_to_txn_retry_backoff_ms)
        try:
            unverified, guards = _unverified(request, context)
        except KafkaError as error:
            return _refuse(request, error.code, error.detail)
        if unverified is None:
            break
        asked = services.verify_transaction(unverified)
        verdicts = await asked if isinstance(asked, Awaitable) else asked
    answer = _append(request, context, verdicts, guards)
    return await answer if isinstance(answer, Coroutine) else answer


class _Outcome:
    """The outcome of a request so far."""

    __slots__ = ("failed", "late", "topics", "uncommitted")

    def __init__(self) -> None:
        self.topics: list[TopicAnswer] = []
        self.uncommitted: list[tuple[Replica, int, PartitionAnswer]] = []
        self.failed: list[tuple[str, PartitionAnswer, KafkaError]] = []
        self.late: list[tuple[TopicData, PartitionData, PartitionAnswer, VerificationGuard | None]] = []
        """The first batch that takes long to check, and all after it, with the guards of their transactions."""


def _append(
    request: ProduceRequest, context: Context, verdicts: Verdicts, guards: Guards
) -> Answer | Coroutine[Any, Any, Answer]:
    outcome = _Outcome()
    is_open = context.services.authorizer is None
    for topic in request.topic_data:
        name, hosted = _find(topic, context)
        is_allowed = is_open or _may_write(topic, context)
        answers = []
        for data in topic.partition_data:
            answer = PartitionAnswer(index=data.index, base_offset=-1)
            answers.append(answer)
            try:
                if not is_allowed:
                    raise _refusal(request, data, context, name)
                replica, guard = _check(request, context, topic, name, hosted, data, verdicts, guards)
                records, prepared = data.records, None
                if outcome.late:
                    outcome.late.append((topic, data, answer, _guard(replica, records, guard)))
                    continue
                if records is None:
                    records = b""
                elif _may_be_late(records, replica):
                    prepared = context.services.replicas.late_appends.check_now(
                        replica.log, records, context.api_version
                    )
                    if prepared is None:
                        outcome.late.append((topic, data, answer, _guard(replica, records, guard)))
                        continue
                _append_one(request, context, replica, records, answer, guard, prepared, outcome)
            except KafkaError as error:
                outcome.failed.append((name, answer, _without_traceback(error)))
        outcome.topics.append(TopicAnswer(name=name, topic_id=topic.topic_id, partition_responses=answers))
    if outcome.late:
        return _append_late(request, context, verdicts, outcome)
    return _finish(request, context, outcome)


def _find(topic: TopicData, context: Context) -> tuple[str, HostedTopic | None]:
    replicas = context.services.replicas
    if context.api_version >= 13:
        hosted = replicas.topics_by_id.get(topic.topic_id)
        return "" if hosted is None else hosted.name, hosted
    return topic.name, replicas.topics.get(topic.name)


def _check(
    request: ProduceRequest,
    context: Context,
    topic: TopicData,
    name: str,
    hosted: HostedTopic | None,
    data: PartitionData,
    verdicts: Verdicts,
    guards: Guards,
) -> tuple[Replica, VerificationGuard | None]:
    """The replica to append to, and the guard of a transaction that was verified just now."""
    replica = None if hosted is None else hosted.replicas.get(data.index)
    if replica is None or not replica.is_leader:
        raise _not_leading(context, name, topic.topic_id, data.index)
    records, guard = data.records, None
    if records is not None and len(records) >= HEADER_SIZE and records[ATTRIBUTES_LOW_POSITION] & TRANSACTIONAL:
        _check_transaction(request, replica, verdicts)
        if guards:
            guard = guards.get(replica.topic_partition)
            if guard is None:
                # It became the leader while other partitions were being verified: this one was not.
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{replica.topic_partition} was not verified; retry")
    if name in INTERNAL_TOPICS and not _may_write_internal(name, context):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal: clients may not write to it")
    return replica, guard


def _may_write(topic: TopicData, context: Context) -> bool:
    """Whether the ACLs allow it. A topic with an unknown id is answered as such."""
    name: str | None = topic.name
    if context.api_version >= 13:
        # A topic that was deleted a moment ago may still be here, and is protected until it is gone.
        hosted = context.services.replicas.topics_by_id.get(topic.topic_id)
        name = context.services.image.topic_names.get(topic.topic_id) if hosted is None else hosted.name
    writable = context.allowed(Operation.WRITE, ResourceType.TOPIC)
    return name is None or writable is None or writable[name]


def _refusal(request: ProduceRequest, data: PartitionData, context: Context, name: str) -> KafkaError:
    if request.transactional_id is None and _has_transaction(data):
        return _without_id()
    return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{context.principal} may not WRITE the topic {name}")


def _is_transactional(request: ProduceRequest) -> bool:
    return any(_has_transaction(data) for topic in request.topic_data for data in topic.partition_data)


def _has_transaction(data: PartitionData) -> bool:
    records = data.records
    return (
        records is not None and len(records) >= HEADER_SIZE and bool(records[ATTRIBUTES_LOW_POSITION] & TRANSACTIONAL)
    )


def _may_write_internal(name: str, context: Context) -> bool:
    """Every broker adds to the rebalance history, which one of them leads."""
    return context.client_id == ADMIN_CLIENT_ID or (name == REBALANCES_TOPIC and is_broker(context))


def _may_be_late(records: Any, replica: Replica) -> bool:
    """Whether the batch has to be decompressed or compressed, which may take long."""
    return len(records) > HEADER_SIZE and (
        records[ATTRIBUTES_LOW_POSITION] & CODEC_MASK or replica.log.rules.recompresses
    )


def _guard(replica: Replica, records: Any, guard: VerificationGuard | None) -> VerificationGuard | None:
    """Detects that a transaction ends while its batch is late."""
    if guard is None and records is not None:
        try:
            header = read_header(records)
        except CorruptBatch:
            return None
        if header.is_transactional:
            return replica.log.producers.verification_guard(header.producer_id, replica.leader_epoch)
    return guard


def _append_one(
    request: ProduceRequest,
    context: Context,
    replica: Replica,
    records: Any,
    answer: PartitionAnswer,
    guard: VerificationGuard | None,
    prepared: Prepared | None,
    outcome: _Outcome,
) -> None:
    acks = request.acks
    appended = context.services.replicas.append_to(
        replica, records, acks, Origin.CLIENT, context.api_version, 0, guard, prepared
    )
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = appended.log_append_time_ms
    answer.log_start_offset = appended.log_start_offset
    if acks == ACKS_ALL and replica.log.high_watermark <= appended.last_offset:
        outcome.uncommitted.append((replica, appended.last_offset + 1, answer))


async def _append_late(request: ProduceRequest, context: Context, verdicts: Verdicts, outcome: _Outcome) -> Answer:
    """Appends what was late. The replica is looked up again afterwards: its leader may have changed meanwhile."""
    late = context.services.replicas.late_appends
    for topic, data, answer, guard in outcome.late:
        name, hosted = _find(topic, context)
        records: Any = b"" if data.records is None else data.records
        try:
            replica, _ = _check(request, context, topic, name, hosted, data, verdicts, {})
            prepared = None
            if _may_be_late(records, replica):
                prepared = await late.check(replica.log, records, context.api_version, context.connection)
                name, hosted = _find(topic, context)
                replica, _ = _check(request, context, topic, name, hosted, data, verdicts, {})
            _append_one(request, context, replica, records, answer, guard, prepared, outcome)
        except KafkaError as error:
            outcome.failed.append((name, answer, _without_traceback(error)))
    return _finish(request, context, outcome)


def _finish(request: ProduceRequest, context: Context, outcome: _Outcome) -> Answer:
    if request.acks == 0:
        if outcome.failed:
            # The client expects no response: the dispatcher closes the connection.
            raise outcome.failed[0][2]
        return None
    response = ProduceResponse(responses=outcome.topics)
    if outcome.failed:
        _explain(response, outcome.failed, context)
    if outcome.uncommitted:
        return _when_committed(response, outcome.uncommitted, request.timeout_ms, context)
    return response


def _without_traceback(error: KafkaError) -> KafkaError:
    """An error without its traceback. The frames in it refer to the list that holds the error: a reference cycle that
    would keep the batch in memory until the next garbage collection."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def _not_leading(context: Context, name: str, topic_id: bytes, index: int) -> KafkaError:
    services = context.services
    if context.api_version >= 13:
        known = services.image.topic_names.get(topic_id)
        if known is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {uuid_to_text(topic_id)}")
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

    context.services.replicas.waits.when_committed(
        [(replica, next_offset) for replica, next_offset, _ in uncommitted], timeout_ms, reply
    )
    return future


# -- transactions --


def _unverified(request: ProduceRequest, context: Context) -> tuple[TransactionalAppend | None, Guards]:
    """What has to be verified: partitions in which this producer epoch has no open transaction yet.

    If there are any, also a guard for every transactional batch: with it the log later detects that a marker was
    written, or a new leader epoch began, in between.
    """
    replicas = context.services.replicas
    unverified: list[TopicPartition] = []
    transactional: list[tuple[Replica, int]] = []
    producer_id = producer_epoch = -1
    for topic in request.topic_data:
        hosted = (
            replicas.topics_by_id.get(topic.topic_id) if context.api_version >= 13 else replicas.topics.get(topic.name)
        )
        if context.services.authorizer is not None and not _may_write(topic, context):
            continue  # Rejected later; it must not become part of the transaction.
        for data in topic.partition_data:
            replica = None if hosted is None else hosted.replicas.get(data.index)
            if replica is None or not replica.is_leader or data.records is None or len(data.records) < HEADER_SIZE:
                # Rejected later. The partition must not become part of the transaction.
                continue
            try:
                header = read_header(data.records)
            except CorruptBatch:
                transactional.append((replica, -1))
                continue
            if not header.is_transactional:
                continue
            transactional.append((replica, header.producer_id))
            if not replica.log.producers.has_open_transaction(header.producer_id, header.producer_epoch):
                if unverified and (producer_id, producer_epoch) != (header.producer_id, header.producer_epoch):
                    raise KafkaError(
                        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                        "the batches of one transaction have different producer ids or epochs",
                    )
                producer_id, producer_epoch = header.producer_id, header.producer_epoch
                unverified.append(replica.topic_partition)
    if not unverified or request.transactional_id is None:
        return None, {}
    guards = {
        replica.topic_partition: replica.log.producers.verification_guard(known_id, replica.leader_epoch)
        for replica, known_id in transactional
    }
    append = TransactionalAppend(
        request.transactional_id, producer_id, producer_epoch, tuple(unverified), context.api_version
    )
    return append, guards


def _without_id() -> KafkaError:
    return KafkaError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "the request has transactional records but no transactional id",
    )


def _check_transaction(request: ProduceRequest, replica: Replica, verdicts: Verdicts) -> None:
    if request.transactional_id is None:
        raise _without_id()
    verdict = verdicts.get(replica.topic_partition, ErrorCode.NONE)
    if verdict is not ErrorCode.NONE:
        raise KafkaError(
            verdict, f"{replica.topic_partition} is not part of a transaction of {request.transactional_id!r}"
        )
