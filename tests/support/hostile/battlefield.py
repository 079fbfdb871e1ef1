"""What all attacks share: the broker's address, the numbers of a run, its counters, and connections."""

import asyncio
import contextlib
import dataclasses
import random
import resource
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.schema import Message

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 30.0
LATE_S = 300.0
"""How much longer a run may take until every attack has begun, on a busy machine."""
FILES_RESERVED = 7000
"""Files that a run needs besides idle connections, in the broker or in the attackers."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """How many peers, and how often they act. Each attack keeps within its numbers for the whole run."""

    idle_connections: int = 1000
    partial_frames: int = 200
    non_readers: int = 100
    resets_per_s: float = 10.0
    fetches_before_reset: int = 20
    bombs_per_s: float = 4.0
    bomb_share: float = 1.0
    """How large bombs are, as a share of what fits into a request."""
    huge_members: int = 1000
    huge_members_per_s: float = 10.0
    groups_per_s: float = 20.0
    lists_per_s: float = 5.0
    wide_commits_per_s: float = 1.0
    garbage_per_s: float = 50.0
    churn_per_s: float = 100.0
    topics_per_s: float = 0.5
    topic_partitions: int = 50
    automatic_topics: int = 2000
    producers_per_s: float = 50.0
    sessions_per_s: float = 50.0
    transactions_per_s: float = 10.0
    descriptions_per_s: float = 1.0
    large_topic_mb: int = 200
    sasl_port: int = 0
    """A listener that requires SASL, for peers that never authenticate; 0 if there is none."""
    silent_strangers: int = 3000
    strangers_per_s: float = 50.0

    @classmethod
    def small(cls) -> "Numbers":
        """For a test of a few seconds."""
        return cls(
            idle_connections=200,
            partial_frames=40,
            non_readers=20,
            bomb_share=0.1,
            huge_members=40,
            churn_per_s=40.0,
            garbage_per_s=30.0,
            automatic_topics=40,
            topic_partitions=10,
            large_topic_mb=40,
            silent_strangers=300,
            strangers_per_s=30.0,
        )

    @classmethod
    def full(cls) -> "Numbers":
        """For the benchmark: 10,000 idle connections if the limit of open files allows them."""
        raise_file_limit()
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_RESERVED
        return cls(idle_connections=10_000 if allowed >= 10_000 else min(1000, max(allowed, 100)))


def raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Peer:
    """One connection of an attacker. Nothing is read from it unless an attack reads."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        async with asyncio.timeout(timeout_s):
            await self._loop.sock_sendall(self.socket, data)

    def send_what_fits(self, data: bytes) -> int:
        """Fills the socket's buffer and no more; returns the number of bytes sent."""
        sent = 0
        view = memoryview(data)
        with contextlib.suppress(BlockingIOError):
            while sent < len(data):
                sent += self.socket.send(view[sent:])
        return sent

    async def receive(self) -> bytes:
        """The next frame without its size."""
        (size,) = struct.unpack(">i", await self._exactly(4))
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        pieces = []
        while size:
            piece = await self._loop.sock_recv(self.socket, min(size, 1 << 18))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    async def ask(self, request: Message, version: int) -> Any:
        """The response to a request."""
        await self.send(frame(request, version))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return decode_response(request.api_key, version, await self.receive())[1]

    async def ask_frame(self, data: bytes) -> bytes:
        """The same with bytes, for responses that nobody decodes."""
        await self.send(data)
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await self.receive()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Closes with RST instead of FIN."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def frame(request: Message, version: int, client_id: str | None = "hostile") -> bytes:
    return encode_request(request.api_key, version, 1, client_id, request)


class Battlefield:
    """The surroundings of one run of attacks."""

    def __init__(self, bootstrap: str, numbers: Numbers, seconds: float, attacks: Sequence[str] = ()) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.address = (host.strip("[]"), int(port))
        self.numbers = numbers
        self.chance = random.Random(1)
        self.counts: Counter[str] = Counter()
        self.seconds = seconds
        self.attacks = attacks
        self.ends_at = time.monotonic() + seconds

    def start(self) -> None:
        self.ends_at = time.monotonic() + self.seconds

    @property
    def goes_on(self) -> bool:
        return self.left_s > 0

    @property
    def left_s(self) -> float:
        """The time until the end of the run. It is put off until every attack has begun."""
        left = self.ends_at - time.monotonic()
        if 0 >= left > -LATE_S and not all(self.has_begun(name) for name in self.attacks):
            return self.seconds
        return left

    def has_begun(self, attack: str) -> bool:
        return any(name.partition(":")[0].replace(" ", "-") == attack for name in self.counts)

    async def connect(
        self, *, receive_buffer: int | None = None, source: str = "127.0.0.1", port: int | None = None
    ) -> Peer:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            if source != "127.0.0.1":
                # Other source addresses have their own ports: 10,000 connections do not exhaust them.
                sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
                sock.bind((source, 0))
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(sock, (self.address[0], port or self.address[1]))
        except BaseException:
            sock.close()
            raise
        return Peer(sock)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, min(seconds, self.left_s)))

    async def beats(self, per_s: float) -> Any:
        """Yields at most `per_s` times per second until the run ends. Missed beats are not made up for."""
        if per_s <= 0:
            return
        due = time.monotonic()
        while self.goes_on:
            yield
            due = max(due + 1 / per_s, time.monotonic())
            await self.pause(due - time.monotonic())

    @contextlib.contextmanager
    def failures(self, name: str) -> Iterator[None]:
        """Counts connections that the broker closes and requests that it does not answer in time."""
        try:
            yield
        except TimeoutError:
            self.counts[f"{name}: timeouts"] += 1
        except OSError:
            self.counts[f"{name}: closed by the broker"] += 1
