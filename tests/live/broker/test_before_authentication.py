"""Spec: R8. Peers that have not authenticated: garbage, half a handshake, huge tokens, thousands of connections.

None of it may crash the broker, take much memory, or keep an authenticated client waiting.
"""

import contextlib
import os
import random
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator

import pytest

import ottla
from ottla.broker.embedded.broker import EmbeddedBroker
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.schema import Message
from tests.support.hostile.running import cpu_seconds, memory_mb
from tests.support.seeds import base_seed
from tests.support.waiting import PATIENCE_S, Wait, eventually

PLACES = 300
"""For peers that have not authenticated. The default is larger; this makes the test shorter."""
MEMORY_MB = 60.0
"""How much more memory the broker may use during an attack."""
WAIT_S = 5.0
"""The longest that a client may wait meanwhile."""
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(193))


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with ottla.Broker.embedded(secure=True, settings={"ottla.max.unauthenticated.connections": PLACES}) as broker:
        yield broker


@pytest.fixture
def calm(broker: EmbeddedBroker) -> Iterator[Callable[[], None]]:
    """Asserts that a client is served; afterwards, that the broker took little memory and logged no traceback."""
    with ottla.Admin(broker.client_settings) as admin:
        admin.describe_cluster()
        before = memory_mb(broker.pid)

        def is_served() -> None:
            wait = Wait(broker.pid)
            admin.describe_cluster()
            assert wait.seconds < WAIT_S

        yield is_served
        is_served()
        assert memory_mb(broker.pid) - before < MEMORY_MB
        assert "Traceback" not in broker.log


def connect(broker: EmbeddedBroker, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = broker.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S, source_address=(source, 0))


def secured(broker: EmbeddedBroker) -> ssl.SSLSocket:
    """A connection with TLS, of a peer that has no password."""
    context = ssl.create_default_context(cafile=broker.client_settings["ssl.ca.location"])
    return context.wrap_socket(connect(broker), server_hostname="localhost")


def frame(request: Message, version: int) -> bytes:
    return encode_request(request.api_key, version, 1, "stranger", request)


def is_closed(peer: socket.socket) -> bool:
    """Reads until the broker has closed the connection."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while peer.recv(65_536):
            pass
    return True


def test_bytes_that_are_not_tls_end_the_connection(broker: EmbeddedBroker, calm: Callable[[], None]) -> None:
    rng = random.Random(base_seed())
    for number in range(200):
        with connect(broker) as peer:
            garbage = rng.randbytes(rng.randrange(1, 3000))
            with contextlib.suppress(ConnectionError):
                peer.sendall([garbage, b"GET / HTTP/1.1\r\n\r\n", struct.pack(">i", 2**31 - 1) + garbage][number % 3])
                peer.shutdown(socket.SHUT_WR)
            assert is_closed(peer)
    calm()


def test_half_a_tls_handshake_costs_little(broker: EmbeddedBroker, calm: Callable[[], None]) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(300):
            peer = stack.enter_context(connect(broker, f"127.0.0.{2 + number % 20}"))
            with contextlib.suppress(ConnectionError):
                peer.sendall(CLIENT_HELLO[: 1 + number % len(CLIENT_HELLO)])
        calm()
        # A handshake that is aborted in the middle, by peers that speak TLS correctly.
        for _ in range(50):
            context = ssl.create_default_context(cafile=broker.client_settings["ssl.ca.location"])
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            with connect(broker) as peer:
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                peer.sendall(outgoing.read())
                peer.recv(65_536)
        calm()


def test_huge_and_malformed_tokens_end_the_connection(broker: EmbeddedBroker, calm: Callable[[], None]) -> None:
    rng = random.Random(base_seed())
    handshake = frame(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
    tokens = [
        b"", b"n,,", b"n,,n=,r=", b"n,,n=a,r=" + b"x" * 400_000, b"p=tls-unique,,n=a,r=b", b"\0a\0b",
        rng.randbytes(500), b"n,,n=" + b"=2C" * 100_000 + b",r=a", b"n,,n=a,r=b,m=x",
        b"y,,n=\xff\xfe,r=a", b"n,a=ottla,n=a,r=b",
    ]  # fmt: skip
    for token in tokens:
        with secured(broker) as peer:
            peer.sendall(handshake)
            assert peer.recv(4096)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                peer.sendall(frame(SaslAuthenticateRequest(auth_bytes=token), 2))
                peer.settimeout(0.2)
                with contextlib.suppress(TimeoutError):
                    peer.recv(65_536)
                peer.settimeout(PATIENCE_S)
                # Whatever the answer was, this does not prove anything.
                peer.sendall(frame(SaslAuthenticateRequest(auth_bytes=b"c=biws,r=ab,p=AAAA"), 2))
            assert is_closed(peer)
    # A token that is larger than sasl.server.max.receive.size is not even received.
    for announced in (600_000, 100_000_000, 2**31 - 1, -1):
        with secured(broker) as peer:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                peer.sendall(handshake)
                peer.recv(4096)
                peer.sendall(struct.pack(">i", announced) + bytes(100_000))
            assert is_closed(peer)
    calm()


def test_requests_before_authentication_end_the_connection(broker: EmbeddedBroker, calm: Callable[[], None]) -> None:
    rng = random.Random(base_seed())
    whole = frame(MetadataRequest(topics=None), 9)
    hello = frame(ApiVersionsRequest(), 0)
    for number in range(60):
        with secured(broker) as peer:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                if number % 2:
                    peer.sendall(hello)
                    assert peer.recv(65_536)
                size = rng.randrange(2, 2000)
                junk = struct.pack(">i", size) + struct.pack(">h", rng.randrange(100, 30_000)) + rng.randbytes(size - 2)
                peer.sendall(whole if number % 3 else junk)
            assert is_closed(peer)
    calm()


def crowd(broker: EmbeddedBroker, calm: Callable[[], None], count: int) -> None:
    cpu, begun = cpu_seconds(broker.pid), time.monotonic()
    with contextlib.ExitStack() as stack:
        for number in range(count):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(connect(broker, f"127.0.{1 + number % 50}.1"))
            if number % 200 == 199:
                calm()
        assert (cpu_seconds(broker.pid) - cpu) < 0.5 * (time.monotonic() - begun) + count / 500
        calm()
        # A client with the right password gets in, although all places are taken.
        with ottla.Admin(broker.client_settings) as newcomer:
            newcomer.describe_cluster()
    eventually(lambda: sum(1 for _ in os.scandir(f"/proc/{broker.pid}/fd")) < 200)


def test_a_crowd_that_does_not_authenticate_keeps_nobody_out(broker: EmbeddedBroker, calm: Callable[[], None]) -> None:
    crowd(broker, calm, 2 * PLACES)


@pytest.mark.long
def test_ten_thousand_connections_that_do_not_authenticate(broker: EmbeddedBroker, calm: Callable[[], None]) -> None:
    crowd(broker, calm, 10_000)
