"""Attacks with record batches: decompression bombs, wrong counts, corrupt and very large batches."""

import asyncio
import random
import struct
import zlib
from collections.abc import Iterator

import cramjam
import lz4.frame

from ottla.protocol.framing import decode_response
from ottla.protocol.records._speedups import crc32c
from ottla.protocol.records.record_batch import build_batch
from tests.support.hostile.battlefield import Battlefield, frame
from tests.support.hostile.topics_used import VICTIMS, produce_request

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
SIZES_MB = {"gzip": 900, "snappy": 19, "lz4": 230, "zstd": 2000}
"""Each fits into a request of the usual size."""
LANES = 4
VERSION = 9


def bomb(codec: str, size_mb: int) -> bytes:
    """Compressed zeros: small to send, large to decompress."""
    chunk = bytes(1 << 20)
    if codec == "gzip":
        # After a full flush the packer forgets what it saw, so that one piece can be repeated at will.
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        packer.compress(chunk)
        packer.flush(zlib.Z_FULL_FLUSH)
        piece = packer.compress(chunk) + packer.flush(zlib.Z_FULL_FLUSH)
        return bytes.fromhex("1f8b08000000000002ff") + piece * size_mb
    if codec == "lz4":
        framer = lz4.frame.LZ4FrameCompressor()
        pieces = [framer.begin(), *(framer.compress(chunk) for _ in range(size_mb)), framer.flush()]
        return b"".join(pieces)
    if codec == "zstd":
        compressor = cramjam.zstd.Compressor(level=3)
        for _ in range(size_mb):
            compressor.compress(chunk)
        return bytes(compressor.finish())
    block = bytes(cramjam.snappy.compress_raw(chunk))
    xerial = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    return xerial + b"".join(struct.pack(">i", len(block)) + block for _ in range(size_mb))


def sealed(payload: bytes, *, codec: int = 0, count: int = 1) -> bytes:
    """A batch with a correct checksum around any records, compressed or not."""
    body = struct.pack(">hiqqqhii", codec, count - 1, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, count) + payload
    return struct.pack(">qiibI", 0, 9 + len(body), -1, 2, crc32c(body)) + body


def batches(bomb_share: float) -> Iterator[tuple[str, bytes]]:
    """(kind, batch) of everything that is sent."""
    for codec, number in CODECS.items():
        yield f"{codec} bombs", sealed(bomb(codec, max(1, int(SIZES_MB[codec] * bomb_share))), codec=number)
        yield "count lies", sealed(bomb(codec, 1), codec=number, count=2**31 - 1)
    honest = build_batch([(1_700_000_000_000, b"k", b"v" * 100, ()) for _ in range(100)])
    records = honest[61:]
    yield "count lies", sealed(records, count=2**31 - 1)
    yield "count lies", sealed(records, count=1)
    yield "corrupt batches", honest[:-1] + bytes([honest[-1] ^ 1])
    yield "corrupt batches", sealed(random.Random(3).randbytes(500_000), count=10_000)
    yield "corrupt batches", honest[: len(honest) // 2]
    tiny = b"\x0c\x00\x00\x00\x01\x01\x00"
    yield "tiny records", sealed(tiny * 140_000, count=140_000)
    yield "large batches", build_batch([(1_700_000_000_000, b"k", random.Random(4).randbytes(1_048_000), ())])
    yield "too large batches", build_batch([(1_700_000_000_000, b"k", bytes(5_000_000), ())])


async def bombs(field: Battlefield) -> None:
    frames = [
        (kind, frame(produce_request(topic, data), VERSION))
        for kind, data in batches(field.numbers.bomb_share)
        for topic in VICTIMS
    ]
    field.chance.shuffle(frames)
    async with asyncio.TaskGroup() as group:
        for lane in range(LANES):
            group.create_task(_throw(field, frames[lane::LANES]))


async def _throw(field: Battlefield, frames: list[tuple[str, bytes]]) -> None:
    peer = await field.connect()
    number = 0
    async for _ in field.beats(field.numbers.bombs_per_s / LANES):
        kind, data = frames[number % len(frames)]
        number += 1
        try:
            response = decode_response(0, VERSION, await peer.ask_frame(data))[1]
            field.counts[f"bombs: {kind}"] += 1
            if not response.responses[0].partition_responses[0].error_code:
                field.counts["bombs: accepted"] += 1
        except OSError as error:
            kind = "timeouts" if isinstance(error, TimeoutError) else "closed by the broker"
            field.counts[f"bombs: {kind}"] += 1
            peer.close()
            peer = await field.connect()
    peer.close()
