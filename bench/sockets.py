"""A client that only moves bytes: it sends prepared batches, and receives fetched batches without decoding them.

An upper bound for any client with one connection and one fetch in flight: the cost of the socket and the broker.
"""

import socket
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ottla.protocol.api import ApiKey
from ottla.protocol.arrow.arrow_rows import open_rows, seal
from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records.record_batch import HEADER_SIZE, iter_batches

PRODUCE_VERSION = 9
FETCH_VERSION = 12
IN_FLIGHT = 5
PARTITION_BYTES = 1 << 20
FETCH_BYTES = 50 << 20
"""The clients' default."""


def connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def receive(connection: socket.socket, buffer: memoryview) -> memoryview:
    """The next complete response."""
    size = 0
    while size < 4:
        size += received(connection, buffer[size:4])
    length, size = int.from_bytes(buffer[:4], "big"), 0
    while size < length:
        size += received(connection, buffer[size:length])
    return buffer[:length]


def received(connection: socket.socket, into: memoryview) -> int:
    size = connection.recv_into(into)
    if not size:
        raise ConnectionError("the broker closed the connection")
    return size


def produce_frames(topic: str, table: pa.Table, partitions: int, batch_bytes: int) -> list[bytes]:
    """Produce requests with all rows of the table, one batch per partition in turn, like Ottla's client."""

    def batches() -> Iterator[bytearray]:
        for piece in table.to_batches():
            rows = open_rows(piece, 0, 1_700_000_000_000)
            rows.measure(1 << 20)
            start = 0
            while start < rows.count:
                batch, count, base, highest = rows.encode(None, start, rows.count, batch_bytes, HEADER_SIZE)
                seal(batch, codec=0, count=count, base_timestamp=base, max_timestamp=highest)
                yield batch
                start += count

    frames = []
    for index, batch in enumerate(batches()):
        partition = ProduceRequest.PartitionProduceData(index=index % partitions, records=batch)
        request = ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])],
        )
        frames.append(encode_request(ApiKey.PRODUCE, PRODUCE_VERSION, index, "bench", request))
    return frames


def produce(bootstrap: str, topic: str, frames: list[bytes]) -> None:
    buffer = memoryview(bytearray(1 << 16))
    with connect(bootstrap) as connection:
        for index in range(len(frames) + IN_FLIGHT):
            if index >= IN_FLIGHT:
                check(receive(connection, buffer))
            if index < len(frames):
                connection.sendall(frames[index])


def check(answer: memoryview) -> None:
    _, message = decode_response(ApiKey.PRODUCE, PRODUCE_VERSION, answer)
    for topic in message.responses:
        for partition in topic.partition_responses:
            assert partition.error_code == 0, f"the broker returned error {partition.error_code}"


def consume(bootstrap: str, topic: str, count: int, partitions: int) -> None:
    """Fetches from the beginning until `count` records have arrived; reads only the batch headers."""
    offsets = dict.fromkeys(range(partitions), 0)
    buffer = memoryview(bytearray(2 * partitions * PARTITION_BYTES))
    found = 0
    with connect(bootstrap) as connection:
        while found < count:
            connection.sendall(encode_request(ApiKey.FETCH, FETCH_VERSION, 1, "bench", fetch_request(topic, offsets)))
            _, message = decode_response(ApiKey.FETCH, FETCH_VERSION, receive(connection, buffer))
            for answer in message.responses[0].partitions:
                assert answer.error_code == 0, f"the broker returned error {answer.error_code}"
                for _, header in iter_batches(answer.records or b""):
                    found += header.record_count
                    offsets[answer.partition_index] = header.next_offset


def fetch_request(topic: str, offsets: dict[int, int]) -> Any:
    partitions = [
        FetchRequest.FetchPartition(
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            partition_max_bytes=PARTITION_BYTES,
        )
        for partition, offset in offsets.items()
    ]
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=partitions)],
    )
