"""One connection to any broker for hand-made requests and raw bytes.

`Side` is one of two brokers that a script is run on; `plain` makes their answers comparable.
"""

import socket
import struct
import time
from typing import Any, Self

from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records.record_batch import build_batch
from ottla.protocol.schema import Message, Struct
from tests.support.waiting import PATIENCE_S

AT = 1_700_000_000_000
"""The timestamp of the first record of a hand-made batch."""

HIDDEN = frozenset(
    {"throttle_time_ms", "topic_id", "cluster_id", "host", "port", "producer_id", "session_id", "log_dir"}
)
"""What differs between any two brokers: ids, addresses, times."""

NODE_FIELDS = frozenset({"leader_id", "controller_id", "node_id", "broker_id", "replica_nodes", "isr_nodes", "leader"})


class RawConnection:
    """A blocking connection. `ask` sends a message and decodes its answer; `send` and `receive` move bytes."""

    def __init__(
        self, bootstrap: str, *, timeout_s: float = PATIENCE_S, client_id: str | None = "raw", source: str = ""
    ) -> None:
        """`source` is the address of this machine to connect from."""
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection(
            (host.strip("[]"), int(port)), timeout=timeout_s, source_address=(source, 0) if source else None
        )
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client_id = client_id
        self._correlation_id = 0
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bytes | None:
        """The next frame without its size, or None when the broker has closed the connection."""
        while True:
            if len(self._received) >= 4:
                (size,) = struct.unpack_from(">i", self._received)
                if len(self._received) >= 4 + size:
                    frame = bytes(self._received[4 : 4 + size])
                    del self._received[: 4 + size]
                    return frame
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._received += data

    def post(self, request: Message, version: int) -> int:
        """Sends a request without waiting for its answer; returns its correlation id."""
        self._correlation_id += 1
        self.send(encode_request(request.api_key, version, self._correlation_id, self.client_id, request))
        return self._correlation_id

    def ask(self, request: Message, version: int) -> Any:
        """The answer to a request. A closed connection raises ConnectionError."""
        correlation_id = self.post(request, version)
        frame = self.receive()
        if frame is None:
            raise ConnectionError(f"the broker closed the connection on {type(request).__name__} v{version}")
        answered, response = decode_response(request.api_key, version, frame)
        assert answered == correlation_id, f"answer {answered} to question {correlation_id}"
        return response

    def node_id(self) -> int:
        """The id of a one-node cluster's broker."""
        return int(self.ask(MetadataRequest(topics=[]), 1).brokers[0].node_id)


class Side:
    """One broker as a script sees it: a connection and its own topic."""

    def __init__(self, name: str, bootstrap: str, topic: str) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.topic = topic
        self.connection = RawConnection(bootstrap)
        self.node_id = self.connection.node_id()
        self.topic_id = b""

    def close(self) -> None:
        self.connection.close()

    def ask(self, request: Message, version: int, *, hide: frozenset[str] = frozenset()) -> Any:
        """The answer as plain values, or `closed` if the broker disconnected."""
        try:
            response = self.connection.ask(request, version)
        except ConnectionError:
            self.connection.close()
            self.connection = RawConnection(self.bootstrap)
            return "closed"
        return self.plain(response, hide)

    def plain(self, value: Any, hide: frozenset[str] = frozenset()) -> Any:
        return plain(value, node_id=self.node_id, hide=HIDDEN | hide)

    def create(self, name: str, partitions: int = 2, **configs: str) -> None:
        """A topic that is ready to be used; settings with underscores for dots."""
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    configs=[
                        CreateTopicsRequest.CreatableTopicConfig(name=n.replace("_", "."), value=v)
                        for n, v in configs.items()
                    ],
                )
            ],
            timeout_ms=30_000,
        )
        answer = self.connection.ask(request, 7)
        assert answer.topics[0].error_code == 0, answer
        self.await_leader(name, partitions)

    def await_leader(self, name: str, partitions: int) -> None:
        """Apache Kafka answers CreateTopics before all of its parts know the topic. Ottla is asked the same way."""
        deadline = time.monotonic() + PATIENCE_S
        wanted = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
        offsets = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(partition_index=p, timestamp=-1)
                        for p in range(partitions)
                    ],
                )
            ],
        )
        while time.monotonic() < deadline:
            (topic,) = self.connection.ask(wanted, 12).topics
            if topic.error_code == 0 and len(topic.partitions) == partitions:
                (listed,) = self.connection.ask(offsets, 7).topics
                if all(partition.error_code == 0 for partition in listed.partitions):
                    self.topic_id = topic.topic_id
                    return
            time.sleep(0.01)
        raise AssertionError(f"{name} has no leaders on {self.name}")

    def produce(self, records: Any, *, topic: str = "", partition: int = 0, acks: int = -1, version: int = 9) -> Any:
        request = self.produce_request(records, topic=topic, partition=partition, acks=acks, version=version)
        return self.ask(request, version)

    def produce_request(
        self, records: Any, *, topic: str = "", partition: int = 0, acks: int = -1, version: int = 9
    ) -> ProduceRequest:
        data = [ProduceRequest.PartitionProduceData(index=partition, records=records)]
        # From version 13 on topics are named by their ids.
        named = {"topic_id": self.topic_id} if version >= 13 else {"name": topic or self.topic}
        return ProduceRequest(
            acks=acks,
            timeout_ms=30_000,
            topic_data=[ProduceRequest.TopicProduceData(partition_data=data, **named)],
        )


def batch(*values: bytes, at: int = AT, **more: Any) -> bytes:
    """A batch of records with the key `k`, one millisecond apart."""
    return build_batch([(at + i, b"k", v, ()) for i, v in enumerate(values)], **more)


def plain(value: Any, *, node_id: int | None = None, hide: frozenset[str] = HIDDEN) -> Any:
    """A message as plain values that can be compared between brokers: hidden fields left out, the node's id
    replaced by a word, error texts reduced to whether there is one."""
    if isinstance(value, Struct):
        return {
            field.name: _plain_field(field.name, getattr(value, field.name), node_id, hide)
            for field in value._fields
            if field.name not in hide
        }
    if isinstance(value, list):
        return [plain(item, node_id=node_id, hide=hide) for item in value]
    if isinstance(value, memoryview):
        return bytes(value)
    return value


def _plain_field(name: str, value: Any, node_id: int | None, hide: frozenset[str]) -> Any:
    if name == "error_message":
        return bool(value)
    if node_id is not None and name in NODE_FIELDS and not isinstance(value, Struct):
        if isinstance(value, list):
            return ["the node" if item == node_id else item for item in value]
        return "the node" if value == node_id else value
    return plain(value, node_id=node_id, hide=hide)


def differences(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """Where two outcomes differ, one line each: short enough to read where the outcomes are long.

    >>> differences({"a": [1, 2], "b": 0}, {"a": [1, 3], "b": 0})
    ['.a[1]: ours 2, theirs 3']
    """
    if place.endswith(".error_message") and ours and not theirs:
        return []  # clients do not care about the details of an error text
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return [line for key in ours for line in differences(ours[key], theirs[key], f"{place}.{key}")]
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{place}[{i}]")]
    return [] if ours == theirs else [f"{place}: ours {ours!r}, theirs {theirs!r}"]
