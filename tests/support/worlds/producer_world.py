"""A test world for the sender: a broker that checks sequences like Kafka, and a network that fails."""

import random
from collections import deque
from typing import Any, NamedTuple

from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.polling import ANY_NODE, Request
from ottla.client.core.settings import ProducerConfig, build
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.sender import Sender
from ottla.client.producer.speedups import Delivery, record_size
from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.init_producer_id import InitProducerIdResponse
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.records.record_batch import read_header, read_records
from ottla.types import ZERO_UUID, TopicPartition

VERSION = 9
REMEMBERED = 5


class Stored(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int


class ModelBroker:
    """One broker: partitions as lists of values, and for each producer its epoch and last five batches."""

    def __init__(self, max_records: int = 1_000_000) -> None:
        self.logs: dict[TopicPartition, list[bytes]] = {}
        self.producers: dict[tuple[TopicPartition, int], tuple[int, list[Stored]]] = {}
        self.next_producer_id = 1000
        self.max_records = max_records
        self.answers: deque[ErrorCode] = deque()
        """Errors for the next batches, instead of storing them; NONE stores."""

    def init_producer_id(self) -> InitProducerIdResponse:
        self.next_producer_id += 1
        return InitProducerIdResponse(producer_id=self.next_producer_id, producer_epoch=0)

    def produce(self, message: Any) -> ProduceResponse:
        topics = []
        for topic in message.topic_data:
            results = []
            for p in topic.partition_data:
                partition = TopicPartition(topic.name, p.index)
                scripted = self.answers.popleft() if self.answers else ErrorCode.NONE
                code, offset = self.append(partition, bytes(p.records), scripted)
                results.append(
                    ProduceResponse.PartitionProduceResponse(index=p.index, error_code=code, base_offset=offset)
                )
            topics.append(ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=results))
        return ProduceResponse(responses=topics)

    def append(self, partition: TopicPartition, batch: bytes, scripted: ErrorCode) -> tuple[ErrorCode, int]:
        header = read_header(batch)
        log = self.logs.setdefault(partition, [])
        key = (partition, header.producer_id)
        epoch, batches = self.producers.get(key, (-1, []))
        for stored in batches:
            same = (stored.base_sequence, stored.last_sequence) == (header.base_sequence, header.last_sequence)
            if same and epoch == header.producer_epoch:
                return ErrorCode.NONE, stored.base_offset
        if scripted:
            return scripted, -1
        if header.record_count > self.max_records:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if header.producer_id >= 0:
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch and epoch >= 0 and header.base_sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            if header.producer_epoch == epoch:
                expected = (batches[-1].last_sequence + 1) % 2**31
                if header.base_sequence != expected:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            else:
                batches = []
            stored = Stored(header.base_sequence, header.last_sequence, len(log))
            self.producers[key] = (header.producer_epoch, [*batches, stored][-REMEMBERED:])
        offset = len(log)
        log.extend(record.value or b"" for record in read_records(batch))
        return ErrorCode.NONE, offset


class ProducerWorld:
    """A sender, a broker and a manual clock. Requests and responses are delivered in order."""

    def __init__(self, *, partitions: int = 1, seed: int = 0, max_records: int = 1_000_000, **settings: Any) -> None:
        self.now = 1_000_000
        self.random = random.Random(seed)
        self.config = build(ProducerConfig, None, {"linger_ms": 0, **settings})
        self.broker = ModelBroker(max_records)
        self.view = ClusterView(max_age_ms=10**9, backoff=Backoff(100, 1000), max_idle_ms=10**9)
        self.woken = 0
        self.accumulator = Accumulator(
            batch_size=self.config.batch_size,
            linger_ms=self.config.linger_ms,
            buffer_memory=self.config.buffer_memory,
            wake=self._count_wake,
        )
        self.unreachable: dict[int, int] = {}
        """When brokers that could not be reached may be connected to again."""
        self.sender = Sender(
            self.config,
            self.accumulator,
            self.view,
            backoff=Backoff(100, 1000),
            reconnect_at=lambda node_id: self.unreachable.get(node_id, 0),
        )
        self.on_the_wire: deque[tuple[Request, Any]] = deque()
        self.show_topic(partitions)

    def _count_wake(self) -> None:
        self.woken += 1

    def show_topic(self, partitions: int, topic_id: bytes = ZERO_UUID) -> None:
        self.view.want("t", self.now)
        self.view.on_response(
            ["t"],
            MetadataResponse(
                brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=9)],
                topics=[
                    MetadataResponse.MetadataResponseTopic(
                        name="t",
                        topic_id=topic_id,
                        partitions=[
                            MetadataResponse.MetadataResponsePartition(partition_index=i, leader_id=1)
                            for i in range(partitions)
                        ],
                    )
                ],
            ),
            self.now,
        )

    def send(self, value: str, partition: int = 0) -> Delivery:
        data = value.encode()
        delivery = self.accumulator.append(
            TopicPartition("t", partition), self.now, None, data, (), record_size(None, data, ())
        )
        assert delivery is not None, "the buffer is full"
        return delivery

    def poll(self) -> list[Request]:
        """Polls the sender and queues its requests."""
        requests = self.sender.poll(self.now).requests
        for request in requests:
            # Built when sent, like a connection does: later changes of the batch do not affect it.
            self.on_the_wire.append((request, request.build(VERSION)))
        return requests

    def answer_next(self, fault: str = "", resigns_with: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """Serves the oldest request; `fault` loses the request or only its response, with the connection.

        "resign": the broker appends the batches, then loses leadership while it waits for the replicas.
        """
        request, message = self.on_the_wire.popleft()
        if fault == "lose request":
            request.on_failure(KafkaError(ErrorCode.NETWORK_EXCEPTION, "connection lost"), self.now)
            return
        if request.api_key == ApiKey.INIT_PRODUCER_ID:
            assert request.destination == ANY_NODE
            response: Any = self.broker.init_producer_id()
        else:
            response = self.broker.produce(message)
        if fault == "resign" and request.api_key == ApiKey.PRODUCE:
            for topic in response.responses:
                for result in topic.partition_responses:
                    result.error_code, result.base_offset = result.error_code or resigns_with, -1
        if fault == "lose answer":
            request.on_failure(KafkaError(ErrorCode.NETWORK_EXCEPTION, "connection lost"), self.now)
        else:
            request.on_response(response, VERSION, self.now)

    def settle(self, rounds: int = 1_000) -> None:
        """Polls and answers until there is nothing left to do."""
        for _ in range(rounds):
            poll = self.sender.poll(self.now)
            for request in poll.requests:
                self.on_the_wire.append((request, request.build(VERSION)))
            if self.on_the_wire:
                self.answer_next()
            elif not self.accumulator.unfinished:
                return
            else:
                assert poll.wake_at is not None, "records are queued, and nothing will wake the sender"
                self.now = max(self.now + 1, poll.wake_at)
        raise AssertionError("requests remain after the last round")

    def log(self, partition: int = 0) -> list[str]:
        return [value.decode() for value in self.broker.logs.get(TopicPartition("t", partition), [])]
