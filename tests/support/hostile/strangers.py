"""Attacks on a listener with SASL, by peers that never authenticate: silent ones, garbage, huge and wrong tokens."""

import asyncio
import contextlib
import struct
from collections.abc import Awaitable

from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.support.hostile.battlefield import Battlefield, Peer, frame

MECHANISM = "SCRAM-SHA-512"
OPENED_PER_S = 500.0
HELLO = frame(ApiVersionsRequest(), 0)
HANDSHAKE = frame(SaslHandshakeRequest(mechanism=MECHANISM), 1)


async def strangers(field: Battlefield) -> None:
    """Nothing at all, if the broker has no such listener."""
    if not field.numbers.sasl_port:
        field.counts["strangers: no listener for them"] += 1
        return
    async with asyncio.TaskGroup() as group:
        group.create_task(_silent(field))
        group.create_task(_noisy(field))


async def _silent(field: Battlefield) -> None:
    """More connections than may be unauthenticated at a time. They are cut, and come back."""
    with contextlib.ExitStack() as stack:
        async for _ in field.beats(OPENED_PER_S):
            with field.failures("strangers"):
                stack.enter_context(await _connect(field, field.counts["strangers: silent"] % 50))
                field.counts["strangers: silent"] += 1
            if field.counts["strangers: silent"] % field.numbers.silent_strangers == 0:
                stack.close()


async def _noisy(field: Battlefield) -> None:
    attacks = (_garbage, _request, _half_a_token, _huge_token, _wrong_tokens)
    async for _ in field.beats(field.numbers.strangers_per_s):
        number = field.counts["strangers: noisy"]
        field.counts["strangers: noisy"] += 1
        with field.failures("strangers"), await _connect(field, number % 50) as peer:
            await _for_a_moment(attacks[number % len(attacks)](field, peer))


async def _for_a_moment(attack: Awaitable[None]) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(attack, 0.2)


async def _connect(field: Battlefield, number: int) -> Peer:
    return await field.connect(source=f"127.0.7.{1 + number}", port=field.numbers.sasl_port)


async def _garbage(field: Battlefield, peer: Peer) -> None:
    await peer.send(field.chance.randbytes(field.chance.randrange(1, 2000)))
    await peer.receive()


async def _request(field: Battlefield, peer: Peer) -> None:
    await peer.ask_frame(HELLO)
    await peer.ask_frame(frame(MetadataRequest(topics=None), 9))


async def _half_a_token(field: Battlefield, peer: Peer) -> None:
    await peer.ask_frame(HANDSHAKE)
    await peer.send(frame(SaslAuthenticateRequest(auth_bytes=b"n,,n=a,r=b"), 2)[:-5])
    await peer.receive()


async def _huge_token(field: Battlefield, peer: Peer) -> None:
    await peer.ask_frame(HANDSHAKE)
    await peer.send(struct.pack(">i", 100_000_000) + bytes(100_000))
    await peer.receive()


async def _wrong_tokens(field: Battlefield, peer: Peer) -> None:
    await peer.ask_frame(HANDSHAKE)
    await peer.ask_frame(frame(SaslAuthenticateRequest(auth_bytes=b"n,,n=nobody,r=" + b"x" * 400_000), 2))
    await peer.ask_frame(frame(SaslAuthenticateRequest(auth_bytes=field.chance.randbytes(1000)), 2))
