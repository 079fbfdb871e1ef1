"""One-record produce requests on plain sockets: latency, requests per second, and broker CPU per request.

The client is a loop over prepared frames, the same for every broker, and cheap enough to measure the broker.
"""

import selectors
import socket
import struct
import time
from typing import Any

from bench.brokers import Contender
from bench.results import Results
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records.record_batch import build_batch

LATENCY = "latency"
REQUESTS = "small requests"
CONNECTIONS = (1, 16)
RECORD_BYTES = 100
VERSION = 9


class Lane:
    """One connection with a number of requests in flight."""

    __slots__ = ("buffer", "frame", "pending", "sent_at", "socket")

    def __init__(self, bootstrap: str, frame: bytes) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frame = frame
        self.buffer = b""
        self.pending = 0
        self.sent_at = 0.0

    def send(self, count: int = 1) -> None:
        self.pending += count
        self.sent_at = time.perf_counter()
        self.socket.sendall(self.frame * count)

    def receive(self) -> int:
        """Reads available bytes; returns the number of complete responses, after checking each for an error."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed the connection")
        data = self.buffer + data
        answers, position = 0, 0
        while len(data) - position >= 4:
            size = int.from_bytes(data[position : position + 4], "big")
            if len(data) - position - 4 < size:
                break
            check(data[position + 4 : position + 4 + size])
            position += 4 + size
            answers += 1
        self.buffer = data[position:]
        self.pending -= answers
        return answers


def check(answer: bytes) -> None:
    """Produce v9: correlation id, tags, one topic (count, name), one partition (count, index, error, offset)."""
    name_length = answer[6] - 1
    (error,) = struct.unpack_from(">h", answer, 4 + 1 + 1 + 1 + name_length + 1 + 4)
    assert error == 0, f"the broker returned error {error}"


def produce_frame(topic: str, acks: int, partition: int = 0) -> bytes:
    batch = build_batch([(1_700_000_000_000, None, b"x" * RECORD_BYTES, ())])
    request = ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=batch)]
            )
        ],
    )
    return encode_request(0, VERSION, 1, "bench", request)


def one_at_a_time(lane: Lane, count: int) -> list[float]:
    """Seconds of each of `count` sequential requests."""
    taken = []
    for _ in range(count):
        lane.send()
        while not lane.receive():
            pass
        taken.append(time.perf_counter() - lane.sent_at)
    return taken


def all_together(lanes: list[Lane], count: int, depth: int) -> tuple[list[float], float]:
    """Keeps `depth` requests in flight on each connection for `count` responses: (latencies, seconds)."""
    taken: list[float] = []
    answered, asked = 0, 0
    started = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for lane in lanes:
            lane.socket.setblocking(True)
            selector.register(lane.socket, selectors.EVENT_READ, lane)
            lane.send(depth)
            asked += depth
        while answered < count:
            for key, _ in selector.select():
                lane = key.data
                found = lane.receive()
                if not found:
                    continue
                answered += found
                if depth == 1:
                    taken.append(time.perf_counter() - lane.sent_at)
                if asked < count:
                    lane.send(found)
                    asked += found
        seconds = time.perf_counter() - started
        # Requests still in flight are not counted, but must not affect the next measurement.
        while any(lane.pending for lane in lanes):
            for key, _ in selector.select():
                key.data.receive()
    return taken, seconds


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def run_latency(contenders: list[Contender], results: Results, rounds: int, quick: bool, step: Any) -> None:
    count = 500 if quick else 4000
    cases = [(connections, acks) for connections in CONNECTIONS for acks in (1, -1)]
    topics = prepare(contenders, "latency")
    step(total=(rounds + 1) * len(cases) * len(contenders))
    for round_number in range(rounds + 1):
        for connections, acks in cases:
            for contender in rotated(contenders, round_number):
                step(f"{contender.name}: {connections} connections")
                lanes = open_lanes(contender, topics[contender.name], acks, connections)
                if connections == 1:
                    taken = one_at_a_time(lanes[0], count)
                else:
                    taken, _ = all_together(lanes, count, 1)
                close_lanes(lanes)
                if round_number:
                    plural = "" if connections == 1 else "s"
                    label = f"{connections} connection{plural}, acks={'all' if acks < 0 else acks}"
                    for share, name in ((0.5, "p50"), (0.99, "p99")):
                        value = percentile(taken, share) * 1e6
                        results.add(LATENCY, f"{name}, {label}", "µs", contender.name, value)


def run_requests(contenders: list[Contender], results: Results, rounds: int, quick: bool, step: Any) -> None:
    count = 4000 if quick else 30_000
    depths = (1, 8)
    topics = prepare(contenders, "requests")
    step(total=(rounds + 1) * len(depths) * len(contenders))
    for round_number in range(rounds + 1):
        for depth in depths:
            for contender in rotated(contenders, round_number):
                step(f"{contender.name}: {depth} in flight")
                lanes = open_lanes(contender, topics[contender.name], 1, 16)
                cpu = contender.cpu_seconds()
                _, seconds = all_together(lanes, count, depth)
                used = contender.cpu_seconds() - cpu
                close_lanes(lanes)
                if round_number:
                    label = f"16 connections, {depth} in flight each"
                    results.add(REQUESTS, label, "requests/s", contender.name, count / seconds, more_is_better=True)
                    results.add(REQUESTS, f"broker CPU, {label}", "µs/request", contender.name, used / count * 1e6)


def prepare(contenders: list[Contender], name: str) -> dict[str, str]:
    topics = {contender.name: f"{name}-{time.monotonic_ns()}" for contender in contenders}
    for contender in contenders:
        contender.create_topic(topics[contender.name])
    return topics


def rotated(contenders: list[Contender], round_number: int) -> list[Contender]:
    turn = round_number % len(contenders)
    return contenders[turn:] + contenders[:turn]


def open_lanes(contender: Contender, topic: str, acks: int, connections: int) -> list[Lane]:
    frame = produce_frame(topic, acks)
    lanes = [Lane(contender.bootstrap, frame) for _ in range(connections)]
    for lane in lanes:
        one_at_a_time(lane, 3)
    return lanes


def close_lanes(lanes: list[Lane]) -> None:
    for lane in lanes:
        lane.socket.close()
