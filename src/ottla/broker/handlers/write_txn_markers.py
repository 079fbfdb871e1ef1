"""WriteTxnMarkers v1-2: appends the markers of decided transactions to partitions that this broker leads (KIP-98).

v1   flexible (KIP-482)
v2   transaction version, which decides how strictly a marker's epoch is checked (KIP-1228)

Sent by the coordinators of other brokers, and by admin tools that end a hanging transaction (KIP-664). The response is
sent when the markers are committed. A marker with the epoch of an earlier coordinator is rejected. Markers are
idempotent: one that is sent twice is written twice, which changes nothing.
"""

import asyncio

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from ottla.replication.replica import Replica
from ottla.security.resources import CLUSTER, Operation
from ottla.types import TopicPartition

Codes = dict[TopicPartition, ErrorCode]


@handles(ApiKey.WRITE_TXN_MARKERS)
async def write_txn_markers(request: WriteTxnMarkersRequest, context: Context) -> WriteTxnMarkersResponse:
    if not context.allows(Operation.ALTER, CLUSTER, quietly=True):
        context.require(Operation.CLUSTER_ACTION, CLUSTER)
    assert context.services.coordinators is not None
    results: list[Codes] = []
    written: list[tuple[Codes, TopicPartition]] = []
    tickets: list[tuple[Replica, int]] = []
    for marker in request.markers:
        codes: Codes = {}
        results.append(codes)
        for topic in marker.topics:
            for index in topic.partition_indexes:
                partition = TopicPartition(topic.name, index)
                try:
                    tickets.append(_write(marker, partition, context))
                    written.append((codes, partition))
                except KafkaError as error:
                    codes[partition] = error.code
    if tickets:
        # All of them are appended first, and waited for together.
        outcome: asyncio.Future[list[ErrorCode]] = asyncio.get_running_loop().create_future()
        context.services.coordinators.marker_writer.when_committed(tickets, outcome.set_result)
        for (codes, partition), code in zip(written, await outcome, strict=True):
            codes[partition] = code
    return WriteTxnMarkersResponse(
        markers=[
            WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=_pack(codes))
            for marker, codes in zip(request.markers, results, strict=True)
        ]
    )


def _write(
    marker: WriteTxnMarkersRequest.WritableTxnMarker, partition: TopicPartition, context: Context
) -> tuple[Replica, int]:
    assert context.services.coordinators is not None
    return context.services.coordinators.marker_writer.write(
        partition,
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        commit=marker.transaction_result,
        transaction_version=marker.transaction_version,
    )


def _pack(codes: Codes) -> list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult]:
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
