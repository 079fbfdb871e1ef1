"""The shortcut for the most common small request: Produce with one plain batch for one partition.

It answers without creating request and response messages, which would take longer than storing the batch. The response
has the same bytes as the handler's. For everything else it changes nothing and returns None, and the handler answers:
transactions, compressed batches, ACLs, commits that wait for followers or for the disk, and nearly every error.
"""

from struct import Struct
from typing import TYPE_CHECKING, Any

from ottla.errors import ErrorCode, KafkaError
from ottla.log.partition_log import Origin
from ottla.protocol.api import ApiKey
from ottla.protocol.framing import encode_response
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.records._speedups import find_single_batch
from ottla.protocol.records.batch_layout import ATTRIBUTES_LOW_POSITION, CODEC_MASK, CONTROL, TRANSACTIONAL
from ottla.replication.replica_manager import ACKS_ALL
from ottla.types import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.broker.services import Services
    from ottla.replication.applying import HostedTopic

FIRST_VERSION = 9
"""Flexible (KIP-482)."""
TOPIC_IDS_SINCE = 13

_NOT_PLAIN = CODEC_MASK | CONTROL | TRANSACTIONAL
_HEAD = Struct(">iixb")
"""Size, correlation id, no tagged fields, one topic (compact arrays count from 1)."""
_TAIL = Struct(">bihqqqb8x")
"""One partition: index, error, base offset, append time, log start. Then no record errors, no error message, no tagged
fields of partition and topic, no throttle time, no tagged fields of the response."""
_FIXED_SIZE = _HEAD.size + _TAIL.size - 4


def answer_small_produce(
    frame: bytes | memoryview, position: int, version: int, correlation_id: int, services: "Services"
) -> bytes | None:
    """The whole response frame, after appending the batch; None if nothing was done and the handler must answer."""
    if services.authorizer is not None or type(frame) is not bytes:
        return None
    found = find_single_batch(frame, position, version >= TOPIC_IDS_SINCE)
    if found is None:
        return None
    acks, topic, topic_field, index, start, end = found
    replicas = services.replicas
    topics: Mapping[Any, HostedTopic] = replicas.topics_by_id if version >= TOPIC_IDS_SINCE else replicas.topics
    hosted = topics.get(topic)
    if hosted is None:
        return None
    replica = hosted.replicas.get(index)
    if (
        replica is None
        # As the only replica, without waiting for the disk, it commits while it appends.
        or not (replica.is_alone if acks == ACKS_ALL else replica.is_leader and acks == 1)
        or frame[start + ATTRIBUTES_LOW_POSITION] & _NOT_PLAIN
        or replica.log.rules.recompresses
        or hosted.name in INTERNAL_TOPICS
        # Batches of this connection may still wait for a thread that checks them, and must be stored first.
        or replicas.late_appends.last
    ):
        return None
    try:
        appended = replicas.append_to(replica, memoryview(frame)[start:end], acks, Origin.CLIENT, version)
    except KafkaError as error:
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            # Not tried again: it may have cost this broker its leadership already.
            return _refusal(topic, index, error, version, correlation_id)
        return None  # The batch was rejected before it was stored. The handler rejects it too, and explains why.
    head = _HEAD.pack(_FIXED_SIZE + len(topic_field), correlation_id, 2)
    return (
        head
        + topic_field
        + _TAIL.pack(2, index, 0, appended.base_offset, appended.log_append_time_ms, appended.log_start_offset, 1)
    )


def _refusal(topic: str | bytes, index: int, error: KafkaError, version: int, correlation_id: int) -> bytes:
    answer = ProduceResponse.PartitionProduceResponse(
        index=index, error_code=error.code, base_offset=-1, error_message=error.detail or None
    )
    names = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
    of_topic = ProduceResponse.TopicProduceResponse(partition_responses=[answer], **names)
    return encode_response(ApiKey.PRODUCE, version, correlation_id, ProduceResponse(responses=[of_topic]))
