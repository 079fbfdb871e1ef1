"""WriteTxnMarkers v1-2: appends the markers of decided transactions to partitions that this broker leads (KIP-98).

v1   flexible (KIP-482)
v2   transaction version, which decides how strictly a marker's epoch is checked (KIP-1228)

Sent by the coordinators of other brokers, and by admin tools that end a hanging transaction (KIP-664).
"""

import asyncio

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from ottla.types import TopicPartition


@handles(ApiKey.WRITE_TXN_MARKERS)
async def write_txn_markers(request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WriteTxnMarkersResponse.WritableTxnMarkerResult(
                producer_id=marker.producer_id, topics=_pack(await _write(marker, context))
            )
            for marker in request.markers
        ]
    )


async def _write(marker: WriteTxnMarkersRequest.WritableTxnMarker, context: Context) -> dict[TopicPartition, ErrorCode]:
    assert context.services.coordinators is not None
    writer = context.services.coordinators.marker_writer
    codes: dict[TopicPartition, ErrorCode] = {}
    written = {}
    for topic in marker.topics:
        for index in topic.partition_indexes:
            partition = TopicPartition(topic.name, index)
            try:
                written[partition] = writer.write(
                    partition,
                    marker.producer_id,
                    marker.producer_epoch,
                    marker.coordinator_epoch,
                    commit=marker.transaction_result,
                    transaction_version=marker.transaction_version,
                )
            except KafkaError as error:
                codes[partition] = error.code
    if written:
        outcome: asyncio.Future[list[ErrorCode]] = asyncio.get_running_loop().create_future()
        writer.when_committed(list(written.values()), outcome.set_result)
        codes |= dict(zip(written, await outcome, strict=True))
    return codes


def _pack(codes: dict[TopicPartition, ErrorCode]) -> list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult]:
    topics: dict[str, list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]] = {}
    for partition, code in codes.items():
        topics.setdefault(partition.topic, []).append(
            WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                partition_index=partition.partition, error_code=code
            )
        )
    return [
        WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=name, partitions=partitions)
        for name, partitions in topics.items()
    ]
