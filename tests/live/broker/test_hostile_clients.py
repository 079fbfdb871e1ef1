"""A broker among clients that request much and read nothing, or send half: its memory, and how long others wait.

The bounds on latency are many times what an idle machine needs, and far below what one large response costs if it is
built at once for each of these clients.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla import Broker, Producer
from ottla.broker.embedded.broker import EmbeddedBroker
from ottla.protocol.api import ApiKey
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.fetch import FetchRequest
from tests.support.waiting import PATIENCE_S, Wait, eventually

RECORDS, RECORD_BYTES = 60, 1_000_000
MAX_STALL_S = 1.0
EVERYTHING = 2_000_000_000


def memory_mb(broker: EmbeddedBroker) -> float:
    """The broker's resident memory."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def fetch_everything() -> bytes:
    asked = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=EVERYTHING)
    request = FetchRequest(
        min_bytes=1, max_bytes=EVERYTHING, topics=[FetchRequest.FetchTopic(topic="large", partitions=[asked])]
    )
    return encode_request(ApiKey.FETCH, 12, 1, "hostile", request)


def receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        assert piece, "the broker closed the connection"
        data += piece
    return data


class OtherClient:
    """Sends a small request every few milliseconds and measures how long it waits for the answer."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._sock = socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S)
        self._pid = broker.pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.waits: list[float] = []
        self._thread.start()

    def _run(self) -> None:
        request = encode_request(ApiKey.API_VERSIONS, 0, 1, "other", ApiVersionsRequest())
        while not self._stop.wait(0.005):
            wait = Wait(self._pid)
            self._sock.sendall(request)
            receive(self._sock, struct.unpack(">i", receive(self._sock, 4))[0])
            self.waits.append(wait.seconds)

    def answered(self, count: int) -> None:
        """Waits for that many more answers."""
        wanted = len(self.waits) + count
        eventually(lambda: len(self.waits) >= wanted)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._sock.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    settings = {"ottla.unread.responses.max.bytes": 16 << 20, "ottla.incomplete.requests.max.bytes": 16 << 20}
    with Broker.embedded(settings={**settings, "socket.request.max.bytes": 16 << 20}) as broker:
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for _ in range(RECORDS):
                producer.send("large", bytes(RECORD_BYTES))
            producer.flush()
        yield broker


@contextmanager
def hostile(broker: EmbeddedBroker, count: int, send: Callable[[socket.socket], None]) -> Iterator[list[socket.socket]]:
    """Peers that have sent something and read nothing, while another client measures its waits."""
    before = memory_mb(broker)
    other = OtherClient(broker)
    peers = []
    try:
        other.answered(20)
        for _ in range(count):
            peers.append(socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S))
            send(peers[-1])
        yield peers
        other.answered(50)
        growth = memory_mb(broker) - before
    finally:
        other.close()
        for peer in peers:
            peer.close()
    assert max(other.waits) < MAX_STALL_S
    assert growth < 100, f"{growth:.0f} MB more"


def test_peers_that_never_read_cost_little_memory_and_no_time(broker: EmbeddedBroker) -> None:
    """Spec: R8. Each asks twenty times for 60 MB: built at once, that would be more memory than there is."""
    with hostile(broker, 60, lambda peer: peer.sendall(fetch_everything() * 20)):
        pass


def test_peers_that_reset_their_connection_are_not_served(broker: EmbeddedBroker) -> None:
    """Spec: R8. Served to the end, their requests would keep the broker busy for minutes."""
    with hostile(broker, 25, lambda peer: peer.sendall(fetch_everything() * 20)) as peers:
        for peer in peers:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()


def test_peers_that_send_half_a_request_cost_little_memory(broker: EmbeddedBroker) -> None:
    """Spec: R8. Each announces 15 MB and sends 500 kB."""

    def half(peer: socket.socket) -> None:
        try:
            peer.sendall(struct.pack(">i", 15_000_000) + bytes(500_000))
        except ConnectionError:
            pass  # the broker has cut it already

    with hostile(broker, 100, half):
        pass


def test_a_peer_that_reads_gets_everything(broker: EmbeddedBroker) -> None:
    with socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S) as sock:
        sock.sendall(fetch_everything())
        size = struct.unpack(">i", receive(sock, 4))[0]
        assert 50_000_000 < size < 58_000_000  # fetch.max.bytes
        received, buffer = 0, bytearray(1 << 20)
        while received < size:
            received += sock.recv_into(buffer, min(len(buffer), size - received))
