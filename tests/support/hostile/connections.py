"""Attacks on connections: idle peers, partial frames, churn, and garbage."""

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable

from ottla.protocol.api import API
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.schema import Message
from tests.support.hostile.battlefield import Battlefield, Peer, frame
from tests.support.hostile.topics_used import LARGE, fetch_request

HOLD_S = 20.0
"""How long a partial frame is held before its peer disconnects and starts again."""
OPENED_PER_S = 1000.0
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(193))
HTTP = b"GET / HTTP/1.1\r\nHost: broker\r\nUser-Agent: hostile\r\n\r\n"
METADATA = frame(MetadataRequest(topics=[]), 4)
Kind = Callable[[Battlefield, Peer], Awaitable[None]]


async def idle(field: Battlefield) -> None:
    """Connections that send nothing."""
    with contextlib.ExitStack() as stack:
        beats = field.beats(OPENED_PER_S)
        async for _ in beats:
            with field.failures("idle"):
                stack.enter_context(await field.connect(source="127.0.0.2"))
                field.counts["idle: connections"] += 1
            if field.counts["idle: connections"] >= field.numbers.idle_connections:
                break
        await beats.aclose()
        while field.goes_on:
            await field.pause(1.0)


async def partial(field: Battlefield) -> None:
    """Half a header, half a frame, one byte per second, and 100 MB announced of which 1 MB arrives."""
    kinds: list[tuple[str, Kind]] = [
        ("half a header", _half_header),
        ("half a frame", _half_frame),
        ("a byte per second", _dribble),
        ("1 MB of 100 MB", _announce),
    ]
    async with asyncio.TaskGroup() as group:
        for number in range(field.numbers.partial_frames):
            group.create_task(_repeat(field, *kinds[number % len(kinds)]))
            await asyncio.sleep(0.01)


async def _repeat(field: Battlefield, name: str, kind: Kind) -> None:
    while field.goes_on:
        with field.failures("partial"), await field.connect() as peer:
            field.counts[f"partial: {name}"] += 1
            await kind(field, peer)
        await field.pause(0.5)


async def _half_header(field: Battlefield, peer: Peer) -> None:
    await peer.send(METADATA[:7])
    await field.pause(HOLD_S)


async def _half_frame(field: Battlefield, peer: Peer) -> None:
    await peer.send(METADATA[: len(METADATA) // 2])
    await field.pause(HOLD_S)


async def _dribble(field: Battlefield, peer: Peer) -> None:
    for byte in METADATA[:-1]:
        await peer.send(bytes([byte]))
        await field.pause(1.0)


async def _announce(field: Battlefield, peer: Peer) -> None:
    await peer.send(struct.pack(">ihhih", 100_000_000, 0, 9, 1, -1) + bytes(1 << 20))
    await field.pause(HOLD_S)


async def churn(field: Battlefield) -> None:
    """Connections that close at once: with FIN, with RST, or after one request."""
    async for _ in field.beats(field.numbers.churn_per_s):
        with field.failures("churn"):
            peer = await field.connect(source="127.0.0.3")
            number = field.counts["churn: connections"]
            field.counts["churn: connections"] += 1
            if number % 4 == 3:
                await peer.ask_frame(METADATA)
            if number % 2:
                peer.close()
            else:
                peer.reset()


async def garbage(field: Battlefield) -> None:
    """Random bytes, wrong frames of every API, giant arrays, and other protocols."""
    makers = (_random_bytes, _random_frame, _random_body, _mutant, _giant_array, _many_tags, _unknown_api, _foreign)
    async for _ in field.beats(field.numbers.garbage_per_s):
        number = field.counts["garbage: connections"]
        field.counts["garbage: connections"] += 1
        maker = makers[number % len(makers)]
        try:
            with await field.connect(source="127.0.0.4") as peer:
                await peer.send(maker(field))
                async with asyncio.timeout(0.1):
                    await peer.receive()
                field.counts["garbage: answered"] += 1
        except TimeoutError:
            field.counts["garbage: no response"] += 1
        except OSError:
            field.counts["garbage: refused"] += 1


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def _header(key: int, version: int) -> bytes:
    flexible = key in API and API[key].is_flexible(version)
    return struct.pack(">hhih", key, version, 1, -1) + (b"\0" if flexible else b"")


def _any_api(field: Battlefield) -> tuple[int, int]:
    key = field.chance.choice(sorted(API))
    return key, field.chance.choice(list(API[key].versions))


def _random_bytes(field: Battlefield) -> bytes:
    return field.chance.randbytes(field.chance.randrange(1, 4000))


def _random_frame(field: Battlefield) -> bytes:
    return framed(field.chance.randbytes(field.chance.randrange(0, 2000)))


def _random_body(field: Battlefield) -> bytes:
    return framed(_header(*_any_api(field)) + field.chance.randbytes(field.chance.choice((0, 1, 7, 60, 2000))))


def _mutant(field: Battlefield) -> bytes:
    """A valid request with some bytes changed. None of them can write."""
    chance = field.chance
    version, request = chance.choice(_HONEST)
    data = bytearray(frame(request, version)[4:])
    for _ in range(chance.randrange(1, 4)):
        data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
    return framed(bytes(data))


_HONEST: tuple[tuple[int, Message], ...] = (
    (4, MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=LARGE)], allow_auto_topic_creation=False)),
    (12, MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=LARGE)], allow_auto_topic_creation=False)),
    (11, fetch_request(max_bytes=1000)),
    (12, fetch_request(max_bytes=1000)),
    (3, ApiVersionsRequest(client_software_name="x", client_software_version="1")),
)


def _giant_array(field: Battlefield) -> bytes:
    """An array that claims far more entries than the request has bytes; some of the bytes are there."""
    key, version = _any_api(field)
    count = b"\xff\xff\xff\xff\x07" if API[key].is_flexible(version) else b"\x7f\xff\xff\xff"
    padding = bytes(field.chance.choice((0, 2, 4, 8, 14, 16)))
    return framed(_header(key, version) + padding + count + bytes(field.chance.choice((0, 100, 100_000))))


def _many_tags(field: Battlefield) -> bytes:
    """A header with tens of thousands of tagged fields."""
    tags = b"".join(_unsigned(number) + b"\0" for number in range(20_000))
    return framed(struct.pack(">hhih", 3, 12, 1, -1) + _unsigned(20_000) + tags + b"\x01\0\0\0")


def _unsigned(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def _unknown_api(field: Battlefield) -> bytes:
    return framed(struct.pack(">hhih", field.chance.randrange(-100, 10_000), field.chance.randrange(-2, 99), 1, -1))


def _foreign(field: Battlefield) -> bytes:
    """TLS, HTTP, and SASL on a port without them."""
    sasl = framed(struct.pack(">hhih", 17, 1, 1, -1) + struct.pack(">h", 5) + b"PLAIN")
    return field.chance.choice((CLIENT_HELLO, HTTP, sasl))
