"""OWNER of the coordinators' requests to other brokers, batched: one per broker and turn of the event loop.

Transaction coordinators are asked whether partitions belong to a transaction, or to add them (AddPartitionsToTxn).
Partition leaders are asked to write markers (WriteTxnMarkers).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from ottla.types import TopicPartition, partitions_by_topic

if TYPE_CHECKING:
    from ottla.net.client.connection import Answer
    from ottla.replication.broker_peers import BrokerPeers

Codes = dict[TopicPartition, ErrorCode]

ITEMS_MAX = 200
"""A request with more would keep the other broker busy for too long at a time."""
VERIFICATION_TIMEOUT_MS = 8_000
"""Longer than a coordinator waits for the commit of its records (5 seconds), shorter than producers wait: they get a
retriable error instead of closing the connection."""
MARKERS_TIMEOUT_MS = 35_000
"""Longer than a partition leader waits for the commit of markers: a request that times out too early is retried, and
then every marker in it is written twice."""


class Addition(NamedTuple):
    """Partitions to add to a transaction, or to verify as parts of it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    verify_only: bool


class Marker(NamedTuple):
    """The decision of one transaction, for partitions that the same broker leads."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


Item = TypeVar("Item", bound=Addition | Marker)


class BatchedRequests(ABC, Generic[Item]):
    """Requests of one kind. Each item gets its own answer: an error code for each of its partitions."""

    api_key: ApiKey
    lane: str
    timeout_ms: int

    def __init__(self, peers: "BrokerPeers | None") -> None:
        self._peers = peers
        self._queued: dict[int, list[tuple[Item, asyncio.Future[Codes]]]] = {}

    @abstractmethod
    def key(self, item: Item) -> Hashable:
        """Identifies the item in the response; unique within a request."""

    @abstractmethod
    def pack(self, items: list[Item]) -> Any:
        """The request."""

    @abstractmethod
    def unpack(self, response: Any) -> dict[Hashable, Codes]:
        """The answers in a response, by key."""

    def ask(self, broker_id: int, item: Item) -> "asyncio.Future[Codes]":
        """Asks another broker. The future fails with NETWORK_EXCEPTION if there is no answer: whether the other broker
        has executed the request is then unknown."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Codes] = loop.create_future()
        queued = self._queued.get(broker_id)
        if queued is None:
            queued = self._queued[broker_id] = []
            loop.call_soon(self._send_queued, broker_id)
        queued.append((item, future))
        return future

    def _send_queued(self, broker_id: int) -> None:
        rest = self._queued.pop(broker_id)
        while rest:
            batch: dict[Hashable, tuple[Item, asyncio.Future[Codes]]] = {}
            later = []
            for entry in rest:
                key = self.key(entry[0])
                if key in batch or len(batch) == ITEMS_MAX:
                    later.append(entry)
                else:
                    batch[key] = entry
            rest = later
            self._send(broker_id, batch)

    def _send(self, broker_id: int, batch: "dict[Hashable, tuple[Item, asyncio.Future[Codes]]]") -> None:
        def answered(answer: "asyncio.Future[Answer]") -> None:
            error = None if answer.cancelled() else answer.exception()
            if answer.cancelled() or error is not None:
                self._fail(batch, KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {broker_id}: {error}"))
            else:
                self._resolve(broker_id, batch, answer.result().message)

        if self._peers is None:
            self._fail(batch, KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {broker_id} cannot be reached"))
            return
        request = self.pack([item for item, _ in batch.values()])
        sent = self._peers.send(
            broker_id, self.api_key, lambda version: request, lane=self.lane, timeout_ms=self.timeout_ms
        )
        sent.add_done_callback(answered)

    def _resolve(
        self, broker_id: int, batch: "dict[Hashable, tuple[Item, asyncio.Future[Codes]]]", response: Any
    ) -> None:
        code = ErrorCode(getattr(response, "error_code", ErrorCode.NONE))
        if code is not ErrorCode.NONE:
            self._fail(batch, KafkaError(code, f"broker {broker_id} rejected the request"))
            return
        try:
            answers = self.unpack(response)
        except ValueError as error:  # an error code that this version does not know
            self._fail(batch, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"broker {broker_id}: {error}"))
            return
        for key, (item, future) in batch.items():
            codes = answers.get(key, {})
            if not future.done():
                # The outcome of a partition that is missing from the answer is unknown.
                future.set_result({each: codes.get(each, ErrorCode.NETWORK_EXCEPTION) for each in item.partitions})

    @staticmethod
    def _fail(batch: "dict[Hashable, tuple[Item, asyncio.Future[Codes]]]", error: KafkaError) -> None:
        for _, future in batch.values():
            if not future.done():
                future.set_exception(error)
                # Marks it as retrieved: the client that asked may be gone.
                future.exception()


class AddPartitionsRequests(BatchedRequests[Addition]):
    """AddPartitionsToTxn v4 and above, to the coordinators of transactions (KIP-890)."""

    api_key = ApiKey.ADD_PARTITIONS_TO_TXN
    lane = "transactions"
    timeout_ms = VERIFICATION_TIMEOUT_MS

    def key(self, item: Addition) -> Hashable:
        return item.transactional_id

    def pack(self, items: list[Addition]) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                    transactional_id=item.transactional_id,
                    producer_id=item.producer_id,
                    producer_epoch=item.producer_epoch,
                    verify_only=item.verify_only,
                    topics=[
                        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                        for topic, indexes in partitions_by_topic(item.partitions).items()
                    ],
                )
                for item in items
            ]
        )

    def unpack(self, response: AddPartitionsToTxnResponse) -> dict[Hashable, Codes]:
        return {
            result.transactional_id: {
                TopicPartition(topic.name, each.partition_index): ErrorCode(each.partition_error_code)
                for topic in result.topic_results
                for each in topic.results_by_partition
            }
            for result in response.results_by_transaction
        }


class MarkerRequests(BatchedRequests[Marker]):
    """WriteTxnMarkers, to the leaders of partitions. They have their own connection: their answers wait for the commit
    of the markers, and would hold up every answer behind them."""

    api_key = ApiKey.WRITE_TXN_MARKERS
    lane = "markers"
    timeout_ms = MARKERS_TIMEOUT_MS

    def key(self, item: Marker) -> Hashable:
        return item.producer_id

    def pack(self, items: list[Marker]) -> WriteTxnMarkersRequest:
        return WriteTxnMarkersRequest(
            markers=[
                WriteTxnMarkersRequest.WritableTxnMarker(
                    producer_id=item.producer_id,
                    producer_epoch=item.producer_epoch,
                    transaction_result=item.commit,
                    coordinator_epoch=item.coordinator_epoch,
                    transaction_version=item.transaction_version,
                    topics=[
                        WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                        for topic, indexes in partitions_by_topic(item.partitions).items()
                    ],
                )
                for item in items
            ]
        )

    def unpack(self, response: WriteTxnMarkersResponse) -> dict[Hashable, Codes]:
        return {
            result.producer_id: {
                TopicPartition(topic.name, each.partition_index): ErrorCode(each.error_code)
                for topic in result.topics
                for each in topic.partitions
            }
            for result in response.markers
        }
