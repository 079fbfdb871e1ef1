"""Compressed data as other implementations write it, and decompression bombs."""

import gzip
import struct
import zlib

import cramjam
import lz4.frame

from ottla.protocol.records.compression import XERIAL_MAGIC, Codec


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def xerial(*blocks: bytes) -> bytes:
    header = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
    return header + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def streamed_zstd(data: bytes) -> bytes:
    """A frame as a stream writes it: without its content's size."""
    compressor = cramjam.zstd.Compressor(3)
    compressor.compress(data)
    return bytes(compressor.finish())


def bombs(size: int) -> dict[str, tuple[Codec, bytes]]:
    """Small inputs that expand to `size` zeros, in each framing."""
    zeros = bytes(size)
    deflater = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    block = raw_snappy(bytes(64 * 1024))
    return {
        "gzip": (Codec.GZIP, deflater.compress(zeros) + deflater.flush()),
        "gzip members": (Codec.GZIP, gzip.compress(bytes(1024 * 1024)) * (size >> 20)),
        "snappy": (Codec.SNAPPY, raw_snappy(zeros)),
        "xerial": (Codec.SNAPPY, xerial(*[block] * (size >> 16))),
        "lz4": (Codec.LZ4, lz4.frame.compress(zeros, store_size=False)),
        "lz4 with size": (Codec.LZ4, lz4.frame.compress(zeros, store_size=True)),
        "zstd": (Codec.ZSTD, bytes(cramjam.zstd.compress(zeros, 3))),
        "zstd stream": (Codec.ZSTD, streamed_zstd(zeros)),
    }
