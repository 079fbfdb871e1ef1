"""Spec: R8. Hostile bytes at a live port: memory stays bounded, and other connections are not affected."""

import contextlib
import itertools
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Broker
from ottla.errors import ErrorCode
from ottla.protocol.api import API, ApiKey
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.primitives import ProtocolError
from tests.support.hostile.bombs import CODECS, SIZES_MB, bomb, sealed
from tests.support.waiting import PATIENCE_S, Wait, eventually, until
from tests.support.wire.raw import RawConnection, Side, batch

MEMORY_LIMIT_MB = 250
"""Limit for the peak memory of the broker. An idle broker uses about 40 MB; the largest request is 100 MB."""


def peak_memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no peak in /proc")


class Bystander:
    """A well-behaved client on its own connection that keeps producing and reading."""

    def __init__(self, side: Side, broker_pid: int) -> None:
        self.side = side
        self.broker_pid = broker_pid
        self.rounds = 0
        self.longest_s = 0.0
        self.failure: BaseException | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ending.wait(0.005):
                wait = Wait(self.broker_pid)
                answer = self.side.produce(batch(b"bystander %d" % self.rounds))
                (partition,) = answer["responses"][0]["partition_responses"]
                assert partition["error_code"] == 0, partition
                assert partition["base_offset"] == self.rounds
                self.longest_s = max(self.longest_s, wait.seconds)
                self.rounds += 1
        except BaseException as failure:
            self.failure = failure

    def finish(self) -> None:
        self._ending.set()
        self._thread.join(PATIENCE_S)


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with Broker.embedded() as running:
        yield running


@pytest.fixture
def bystander(broker: Any, topic: str) -> Iterator[Bystander]:
    """Watches the broker during the test, and checks at the end that it is healthy."""
    side = Side("ottla", broker.bootstrap, topic)
    side.create(topic, 1)
    watching = Bystander(side, broker.pid)
    yield watching
    rounds = watching.rounds
    until(lambda: watching.rounds >= rounds + 3 or watching.failure is not None)
    watching.finish()
    side.close()
    assert watching.failure is None, f"the bystander met {watching.failure!r}"
    assert watching.rounds >= rounds + 3, "the bystander was starved"
    assert watching.longest_s < 30.0, f"the bystander once waited {watching.longest_s:.1f} s"
    assert peak_memory_mb(broker.pid) < MEMORY_LIMIT_MB


def throw(bootstrap: str, data: bytes, wait_s: float = 0.2) -> None:
    """Sends bytes on a new connection, reads for a moment, and disconnects."""
    with RawConnection(bootstrap) as connection, contextlib.suppress(OSError):
        connection.socket.settimeout(wait_s)
        connection.send(data)
        connection.socket.shutdown(socket.SHUT_WR)
        while connection.socket.recv(1 << 16):
            pass


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def served(bootstrap: str) -> list[tuple[int, int]]:
    """Every (API, version) that the broker serves and the tests can encode."""
    with RawConnection(bootstrap) as connection:
        answer = connection.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    return [
        (key.api_key, version)
        for key in answer.api_keys
        for version in range(key.min_version, key.max_version + 1)
        if version in API[key.api_key].versions
    ]


def test_random_bytes(broker: Any, bystander: Bystander) -> None:
    chance = random.Random(1)
    for _ in range(300):
        throw(broker.bootstrap, chance.randbytes(chance.randrange(1, 2000)))


def test_random_frames(broker: Any, bystander: Bystander) -> None:
    chance = random.Random(2)
    for _ in range(300):
        payload = chance.randbytes(chance.randrange(0, 500))
        throw(broker.bootstrap, framed(payload))


def test_valid_headers_with_random_bodies(broker: Any, bystander: Bystander) -> None:
    """Every API in every version it is served in."""
    chance = random.Random(3)
    for key, version in served(broker.bootstrap):
        for size in (0, 1, 7, 60):
            header = struct.pack(">hhihc", key, version, 1, 1, b"x")
            tags = b"\x00" if API[key].is_flexible(version) else b""
            throw(broker.bootstrap, framed(header + tags + chance.randbytes(size)))


def test_valid_requests_with_a_few_bytes_changed(broker: Any, bystander: Bystander) -> None:
    chance = random.Random(4)
    side = bystander.side
    requests = [(message.api_key, version, message) for version, message in honest_requests(side)]
    for key, version, message in requests:
        whole = encode_request(key, version, 1, "x", message)[4:]
        for _ in range(40):
            mutant = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                place = chance.randrange(len(mutant))
                action = chance.randrange(4)
                if action == 0:
                    mutant[place] ^= 1 << chance.randrange(8)
                elif action == 1:
                    mutant[place] = chance.choice((0, 0x7F, 0x80, 0xFF))
                elif action == 2:
                    del mutant[place:]
                    break
                else:
                    mutant[place:place] = chance.randbytes(3)
            # The number of partitions is not changed: a million of them is a valid request, which other tests cover.
            throw(broker.bootstrap, framed(bytes(mutant)))


def honest_requests(side: Side) -> list[tuple[int, Any]]:
    """(version, message) of requests whose handlers read most of their content."""
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    fetch = FetchRequest(
        replica_id=-1,
        min_bytes=0,
        max_bytes=1000,
        topics=[FetchRequest.FetchTopic(topic=side.topic, partitions=[wanted])],
    )
    topics = [MetadataRequest.MetadataRequestTopic(name=side.topic)]
    found: list[tuple[int, Any]] = []
    # Partition 5 does not exist: no mutated request can write to the log that the bystander reads.
    found += [(v, side.produce_request(batch(b"a", b"b"), partition=5, version=v)) for v in (3, 7, 9, 12)]
    found += [(v, fetch) for v in (4, 7, 11, 12)]
    found += [(v, MetadataRequest(topics=topics, allow_auto_topic_creation=False)) for v in (4, 9, 12)]
    software: dict[str, Any] = {"client_software_name": "x", "client_software_version": "1"}
    found += [(v, ApiVersionsRequest(**(software if v >= 3 else {}))) for v in (0, 3, 4)]
    return found


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 104_857_601, 0])
def test_invalid_request_sizes(broker: Any, bystander: Bystander, size: int) -> None:
    with RawConnection(broker.bootstrap) as connection:
        connection.send(struct.pack(">i", size) + b"x" * 100)
        assert connection.receive() is None, "the broker must hang up"


def test_many_large_size_prefixes_without_data(broker: Any, bystander: Bystander) -> None:
    """A size prefix alone allocates no memory: two hundred connections announce 100 MB each."""
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            connection = stack.enter_context(RawConnection(broker.bootstrap))
            connection.send(struct.pack(">i", 100_000_000) + b"\x00\x12\x00\x03" + b"x" * 1000)
        with RawConnection(broker.bootstrap) as honest:
            honest.ask(MetadataRequest(topics=[]), 4)


def test_arrays_longer_than_the_request(broker: Any, bystander: Bystander) -> None:
    """An array length allocates no more than the bytes that follow."""
    for key, version in served(broker.bootstrap):
        flexible = API[key].is_flexible(version)
        header = struct.pack(">hhih", key, version, 1, -1) + (b"\x00" if flexible else b"")
        for fields in range(0, 20, 4):
            count = b"\xff\xff\xff\xff\x07" if flexible else b"\x7f\xff\xff\xff"
            throw(broker.bootstrap, framed(header + bytes(fields) + count), wait_s=0.5)


def test_clients_that_do_not_read_responses(broker: Any, bystander: Bystander) -> None:
    """Each client requests far more than it reads; the responses that wait for it are bounded."""
    side = Side("ottla", broker.bootstrap, bystander.side.topic + "-full")
    side.create(side.topic, 1)
    for _ in range(16):
        side.produce(batch(b"x" * 1_000_000), acks=1)
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 << 20)
    request = FetchRequest(
        replica_id=-1,
        min_bytes=1,
        max_bytes=50 << 20,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=side.topic, partitions=[wanted])],
    )
    with contextlib.ExitStack() as stack:
        greedy = [stack.enter_context(RawConnection(broker.bootstrap, timeout_s=1)) for _ in range(3)]
        for connection in greedy:
            with contextlib.suppress(TimeoutError):
                for _ in range(300):
                    connection.post(request, 11)
        rounds = bystander.rounds
        eventually(lambda: bystander.rounds >= rounds + 50)
    side.close()


def test_clients_that_send_slowly(broker: Any, bystander: Bystander) -> None:
    """A request that arrives byte by byte is answered."""
    whole = encode_request(ApiKey.METADATA, 4, 9, "slow", MetadataRequest(topics=[]))
    with RawConnection(broker.bootstrap) as connection:
        for byte in whole:
            connection.send(bytes([byte]))
            time.sleep(0.001)
        frame = connection.receive()
        assert frame is not None
        assert frame[:4] == struct.pack(">i", 9)


@pytest.mark.parametrize(("codec", "number"), CODECS.items())
@pytest.mark.parametrize("setting", ["message_timestamp_before_max_ms", "compression_type", "cleanup_policy"])
def test_decompression_bombs_are_rejected(
    broker: Any, bystander: Bystander, number: int, codec: str, setting: str
) -> None:
    """On topics for which the broker decompresses: for timestamps, recompression or compaction keys."""
    values = {
        "message_timestamp_before_max_ms": "1000",
        "compression_type": "lz4" if codec != "lz4" else "zstd",
        "cleanup_policy": "compact",
    }
    # Each fits into a request of the usual size and unpacks to many times that.
    payload = bomb(codec, SIZES_MB[codec])
    assert len(payload) < 1_040_000
    side = Side("ottla", broker.bootstrap, f"{bystander.side.topic}-{codec}-{setting.replace('_', '-')}")
    side.create(side.topic, 1, **{setting: values[setting]})
    answer = side.produce(sealed(payload, codec=number))
    error = ErrorCode(answer["responses"][0]["partition_responses"][0]["error_code"])
    assert error in (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.MESSAGE_TOO_LARGE,
    )
    side.close()


def test_thousands_of_connections_leave_nothing_behind(broker: Any, bystander: Bystander) -> None:
    """Thousands of connections leave nothing behind."""
    before = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
    for _ in range(50):
        for _ in range(40):
            RawConnection(broker.bootstrap).close()
        # When this is answered, the earlier ones were accepted: the kernel's queue never overflows.
        with RawConnection(broker.bootstrap) as honest:
            honest.ask(MetadataRequest(topics=[]), 4)
    assert until(lambda: len(list(Path(f"/proc/{broker.pid}/fd").iterdir())) <= before + 2), (
        "file descriptors stay open"
    )


def test_unknown_apis_and_versions_close_the_connection(broker: Any, bystander: Bystander) -> None:
    """Unknown APIs, unpublished versions, and APIs between brokers."""
    offered = {key for key, _ in served(broker.bootstrap)}
    for key, version in itertools.product((-1, 4, 5, 6, 7, 99, 9999, *sorted(set(API) - offered)), (0, 1, 99)):
        with RawConnection(broker.bootstrap) as connection:
            connection.send(framed(struct.pack(">hhih", key, version, 1, -1) + bytes(20)))
            assert connection.receive() is None, f"API {key} v{version} was answered"


def test_the_test_encoder_rejects_invalid_sizes() -> None:
    """A size that does not fit its field is an error in the test, not a valid request."""
    with pytest.raises(ProtocolError):
        encode_request(ApiKey.METADATA, 4, 2**40, "x", MetadataRequest(topics=[]))
