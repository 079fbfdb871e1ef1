"""A test world for the fetcher: scripted leaders with stored batches, and a manual clock."""

import random
from collections import deque
from typing import TYPE_CHECKING, Any

from ottla.client.consumer.fetcher import Fetcher
from ottla.client.consumer.positions import Positions
from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.settings import ConsumerConfig, build
from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.list_offsets import ListOffsetsResponse
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.records.record_batch import build_batch, read_header
from ottla.types import ZERO_UUID, TopicPartition

if TYPE_CHECKING:
    from ottla.client.core.polling import Request

VERSION = 12


class ModelLog:
    """One partition: stored batches and where it starts."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.start = 0
        self.end = 0

    def append(self, *values: str, epoch: int = 0) -> None:
        rows = [(1_000 + self.end + i, None, value.encode(), ()) for i, value in enumerate(values)]
        self.batches.append(build_batch(rows, base_offset=self.end, partition_leader_epoch=epoch))
        self.end += len(values)

    def read(self, offset: int, max_bytes: int) -> bytes:
        data = b""
        for batch in self.batches:
            if read_header(batch).last_offset < offset:
                continue
            if data and len(data) + len(batch) > max_bytes:
                break
            data += batch
        return data


class ConsumerWorld:
    """A fetcher with its positions, and brokers 1 and 2. Broker 1 leads unless `lead` says otherwise."""

    def __init__(self, *, partitions: int = 1, **settings: Any) -> None:
        self.now = 1_000_000
        self.config = build(ConsumerConfig, None, {"auto_offset_reset": "earliest", **settings})
        self.view = ClusterView(max_age_ms=10**9, backoff=Backoff(100, 1000))
        parts = {"backoff": Backoff(100, 1000), "jitter": random.Random(0).random}
        self.positions = Positions(self.config, self.view, **parts)  # type: ignore[arg-type]
        self.fetcher = Fetcher(self.config, self.positions, self.view, **parts)  # type: ignore[arg-type]
        self.logs = {TopicPartition("t", i): ModelLog() for i in range(partitions)}
        self.leaders = dict.fromkeys(self.logs, (1, 0))
        self.errors: dict[TopicPartition, deque[ErrorCode]] = {partition: deque() for partition in self.logs}
        """Errors for the next fetches or lookups of a partition."""
        self.extra: dict[TopicPartition, dict[str, Any]] = {}
        """Fields to set in the next response for a partition."""
        self.on_the_wire: deque[tuple[Request, Any]] = deque()
        self.asked: list[Any] = []
        """Every fetch request that was sent."""
        self.session_id = 0
        self.positions.assign(self.logs, self.now)
        self.show_leaders()

    def lead(self, partition: int, node_id: int, epoch: int) -> None:
        self.leaders[TopicPartition("t", partition)] = (node_id, epoch)

    def show_leaders(self, topic_id: bytes = ZERO_UUID) -> None:
        """Metadata arrives."""
        self.view.want("t", self.now)
        self.view.on_response(
            ["t"],
            MetadataResponse(
                brokers=[MetadataResponse.MetadataResponseBroker(node_id=i, host="h", port=i) for i in (1, 2)],
                topics=[
                    MetadataResponse.MetadataResponseTopic(
                        name="t",
                        topic_id=topic_id,
                        partitions=[
                            MetadataResponse.MetadataResponsePartition(
                                partition_index=p.partition, leader_id=leader, leader_epoch=epoch
                            )
                            for p, (leader, epoch) in self.leaders.items()
                        ],
                    )
                ],
            ),
            self.now,
        )

    # --- the network --------------------------------------------------------------------------------------

    def poll(self) -> int | None:
        """Polls the fetcher and the positions and queues their requests; returns when they want to be polled again."""
        wake_at: list[int] = []
        for decider in (self.positions, self.fetcher):
            poll = decider.poll(self.now)
            for request in poll.requests:
                message = request.build(VERSION)
                if request.api_key == ApiKey.FETCH:
                    self.asked.append(message)
                self.on_the_wire.append((request, message))
            if poll.wake_at is not None:
                wake_at.append(poll.wake_at)
        return min(wake_at, default=None)

    def answer_next(self, *, lose: bool = False) -> None:
        request, message = self.on_the_wire.popleft()
        if lose:
            request.on_failure(KafkaError(ErrorCode.NETWORK_EXCEPTION, "connection lost"), self.now)
        elif request.api_key == ApiKey.LIST_OFFSETS:
            request.on_response(self._list_offsets(message), VERSION, self.now)
        else:
            request.on_response(self._fetch(message), VERSION, self.now)

    def exchange(self, rounds: int = 1) -> None:
        """Polls and answers all requests in flight, `rounds` times."""
        for _ in range(rounds):
            self.poll()
            while self.on_the_wire:
                self.answer_next()

    def _list_offsets(self, message: Any) -> ListOffsetsResponse:
        results = []
        for p in message.topics[0].partitions:
            partition = TopicPartition("t", p.partition_index)
            log = self.logs[partition]
            error = self.errors[partition].popleft() if self.errors[partition] else ErrorCode.NONE
            offset = log.start if p.timestamp == -2 else log.end
            results.append(
                ListOffsetsResponse.ListOffsetsPartitionResponse(
                    partition_index=p.partition_index, error_code=error, offset=offset
                )
            )
        topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=results)
        return ListOffsetsResponse(topics=[topic])

    def _fetch(self, message: Any) -> FetchResponse:
        results = []
        for topic in message.topics:
            for p in topic.partitions:
                partition = TopicPartition("t", p.partition)
                results.append(self._fetch_one(partition, p))
        topics = [FetchResponse.FetchableTopicResponse(topic="t", partitions=results)] if results else []
        return FetchResponse(session_id=self.session_id, responses=topics)

    def _fetch_one(self, partition: TopicPartition, asked: Any) -> Any:
        log = self.logs[partition]
        result = FetchResponse.PartitionData(
            partition_index=partition.partition,
            high_watermark=log.end,
            last_stable_offset=log.end,
            log_start_offset=log.start,
            preferred_read_replica=-1,
        )
        if self.errors[partition]:
            result.error_code = self.errors[partition].popleft()
        elif not log.start <= asked.fetch_offset <= log.end:
            result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            result.records = memoryview(log.read(asked.fetch_offset, asked.partition_max_bytes))
        for name, value in self.extra.pop(partition, {}).items():
            setattr(result, name, value)
        return result

    # --- what the user sees -------------------------------------------------------------------------------

    def take(self, max_records: int = 500) -> list[str]:
        taken = self.fetcher.take(max_records)
        return [(record.value or b"").decode() for records in taken.values() for record in records]

    def position(self, partition: int = 0) -> int | None:
        return self.positions.states[TopicPartition("t", partition)].position

    def state(self, partition: int = 0) -> Any:
        return self.positions.states[TopicPartition("t", partition)]
