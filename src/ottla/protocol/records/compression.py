"""The four compression codecs in Kafka's framing, with a bound on the decompressed size. Pure."""

import enum
import mmap
import zlib
from collections.abc import Iterator
from itertools import chain

from ottla.protocol.records._pure import BytesLike

XERIAL_MAGIC = b"\x82SNAPPY\x00"
"""The prefix that the Java snappy library writes before its blocks; Kafka kept it as its snappy framing."""

_XERIAL_HEADER = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
# A snappy copy turns three bytes into at most 64. A larger claim is rejected before memory is allocated for it.
_SNAPPY_RATIO_MAX = 22

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_LEVEL_DEFAULT = 3
_ZSTD_RATIO_MAX = 32 * 1024
"""Four bytes can expand to 128 kB of one repeated byte; nothing in a frame expands further."""
_ZSTD_NO_ROOM = "failed to write whole buffer"
"""cramjam's text for a full output buffer. Its exception type is the same for damaged input."""
_LZ4_LEVEL_DEFAULT = 9

# zlib and lz4 return output in pieces. Input is passed in pieces, too, because zlib copies the rest of its input at
# the end of each gzip member.
_GZIP_INPUT_BYTES = 32 * 1024
_PIECE_BYTES = 256 * 1024
_MAPPED_BYTES_MIN = 1024 * 1024
_RELEASED_BYTES = 2 * 1024 * 1024
_PIECE_BYTES_MIN = 64 * 1024


class Codec(enum.IntEnum):
    """How a batch's records are compressed: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionError(ValueError):
    """The bytes are not what the codec writes, or they expand past the bound."""


class ExpandsTooFar(CompressionError):
    """The bytes expand past the bound."""


def compress(codec: int, data: BytesLike, level: int | None = None) -> bytes:
    """Compresses `data`. `level` is on the codec's own scale; None is Kafka's default.

    >>> decompress(Codec.ZSTD, compress(Codec.ZSTD, b"abc" * 100), max_bytes=300) == b"abc" * 100
    True
    """
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        return zlib.compress(data, -1 if level is None else level, zlib.MAX_WBITS | 16)
    if codec == Codec.SNAPPY:
        return _compress_snappy(data)
    if codec == Codec.LZ4:
        import lz4.frame

        # Kafka reads the default level as "the fast compressor", and only other levels as high compression.
        # Independent blocks and no content checksum: the Java client reads nothing else.
        compressed: bytes = lz4.frame.compress(
            data,
            compression_level=0 if level in (None, _LZ4_LEVEL_DEFAULT) else level,
            block_linked=False,
            store_size=False,
        )
        return compressed
    if codec == Codec.ZSTD:
        import cramjam

        return bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL_DEFAULT if level is None else level))
    raise CompressionError(f"unknown codec {codec}")


def decompress(codec: int, data: BytesLike, max_bytes: int) -> BytesLike:
    """Decompresses `data`. Raises CompressionError if it is malformed or expands to more than `max_bytes`.

    The bound limits memory use, not the claimed size: a decompression bomb fails at the first byte beyond the bound.
    More than a megabyte is returned as a view of mapped memory; `release` frees it without a long pause.
    """
    pieces = _pieces(codec, data, max_bytes, max(_PIECE_BYTES_MIN, 4 * memoryview(data).nbytes))
    parts: list[BytesLike] = []
    total = 0
    for piece in pieces:
        parts.append(piece)
        total += len(piece)
        if total > _MAPPED_BYTES_MIN:
            return _mapped(parts, pieces, max_bytes)
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)


def _mapped(parts: list[BytesLike], others: Iterator[BytesLike], max_bytes: int) -> memoryview:
    """All pieces in one mapping. Its pages are allocated as they are filled, and nothing is copied to grow."""
    if len(parts) == 1 and isinstance(parts[0], memoryview):
        return parts[0]  # zstd has mapped it already
    view = memoryview(mmap.mmap(-1, max_bytes))
    position = 0
    try:
        for piece in chain(parts, others):
            view[position : position + len(piece)] = piece
            position += len(piece)
    except CompressionError:
        release(view)
        raise
    return view[:position]


def release(buffer: BytesLike) -> None:
    """Returns the memory of a large result of `decompress` step by step: the interpreter's lock is held in each step,
    and freeing all of it at once would block the other threads for long. The content is lost."""
    room = buffer.obj if isinstance(buffer, memoryview) else None
    if isinstance(room, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        for start in range(0, len(room), _RELEASED_BYTES):
            room.madvise(mmap.MADV_DONTNEED, start, min(_RELEASED_BYTES, len(room) - start))


def decompress_in_pieces(codec: int, data: BytesLike, max_bytes: int) -> Iterator[BytesLike]:
    """Like `decompress`, in pieces of at most 256 kB, so that little memory is needed. Blocks of snappy and frames of
    zstd are not split."""
    size = memoryview(data).nbytes
    return _pieces(codec, data, max_bytes, min(_PIECE_BYTES, max(_PIECE_BYTES_MIN, 4 * size)))


def _pieces(codec: int, data: BytesLike, max_bytes: int, piece_bytes: int) -> Iterator[BytesLike]:
    if codec == Codec.NONE:
        if memoryview(data).nbytes > max_bytes:
            raise _too_large(max_bytes)
        return iter((bytes(data),))
    if codec == Codec.GZIP:
        return _gunzip(data, max_bytes, piece_bytes)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    if codec == Codec.LZ4:
        return _decompress_lz4(data, max_bytes, piece_bytes)
    if codec == Codec.ZSTD:
        return iter((_decompress_zstd(data, max_bytes),))
    raise CompressionError(f"unknown codec {codec}")


def _too_large(max_bytes: int) -> ExpandsTooFar:
    return ExpandsTooFar(f"the data expands to more than the limit of {max_bytes} bytes")


def _gunzip(data: BytesLike, max_bytes: int, piece_bytes: int) -> Iterator[bytes]:
    view = memoryview(data)
    total = position = 0
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    has_more = False  # output that did not fit into the last piece
    try:
        while position < len(view) or has_more:
            if inflater.eof:  # another member follows
                inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
            given = view[position : position + _GZIP_INPUT_BYTES]
            part = inflater.decompress(given, min(piece_bytes, max_bytes - total + 1))
            total += len(part)
            if total > max_bytes:
                raise _too_large(max_bytes)
            if part:
                yield part
            # Unconsumed input is passed again, or belongs to the next member.
            position += len(given) - len(inflater.unused_data if inflater.eof else inflater.unconsumed_tail)
            has_more = len(part) == piece_bytes and not inflater.eof
    except zlib.error as error:
        raise CompressionError(f"gzip: {error}") from None
    if not inflater.eof:
        raise CompressionError("gzip: the data ends early")


def _compress_snappy(data: BytesLike) -> bytes:
    import cramjam

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for position in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[position : position + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: BytesLike, max_bytes: int) -> Iterator[bytes]:
    view = memoryview(data)
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        yield _snappy_block(view, max_bytes)  # librdkafka and others send one raw block
        return
    position = 0
    remaining = max_bytes
    while position < len(view):
        if view[position : position + len(XERIAL_MAGIC)] == XERIAL_MAGIC:  # streams may follow each other
            position += len(_XERIAL_HEADER)
            if position > len(view):
                raise CompressionError("snappy: the data ends early")
            continue
        start = position + 4
        position = start + int.from_bytes(view[position:start], "big")
        if start > len(view) or position > len(view):
            raise CompressionError("snappy: the data ends early")
        part = _snappy_block(view[start:position], remaining, max_bytes)
        remaining -= len(part)
        yield part


def _snappy_block(block: memoryview, remaining: int, max_bytes: int | None = None) -> bytes:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > remaining:
            raise _too_large(remaining if max_bytes is None else max_bytes)
        if size > _SNAPPY_RATIO_MAX * len(block):
            raise CompressionError(f"snappy: {len(block)} bytes cannot hold the {size} they claim")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CompressionError(f"snappy: {error}") from None


def _decompress_lz4(data: BytesLike, max_bytes: int, piece_bytes: int) -> Iterator[bytes]:
    import lz4.frame

    view = memoryview(data)
    context = lz4.frame.create_decompression_context()
    total = position = 0
    at_frame_end = False
    while not at_frame_end or position < len(view):
        try:
            part, used, at_frame_end = lz4.frame.decompress_chunk(
                context, view[position:], max_length=min(piece_bytes, max_bytes - total + 1)
            )
        except RuntimeError as error:
            raise CompressionError(f"lz4: {error}") from None
        if not part and not used:
            raise CompressionError("lz4: the data ends early")
        total += len(part)
        if total > max_bytes:
            raise _too_large(max_bytes)
        position += used
        if part:
            yield part


def _decompress_zstd(data: BytesLike, max_bytes: int) -> BytesLike:
    view = memoryview(data)
    if not len(view):
        raise CompressionError("zstd: the data ends early")
    size = _zstd_content_size(view)
    if size is None:
        size = max(_PIECE_BYTES_MIN, 4 * len(view))
    elif size > max_bytes:
        raise _too_large(max_bytes)
    elif size > _ZSTD_RATIO_MAX * len(view):
        raise CompressionError(f"zstd: {len(view)} bytes cannot hold the {size} they claim")
    while size < min(max_bytes, _MAPPED_BYTES_MIN):
        output = bytearray(size)
        written = _zstd_into(view, output)
        if written is not None:
            return bytes(memoryview(output)[:written])
        # A frame that does not declare its size, or several frames, may need more room than was guessed.
        size = 4 * size + _PIECE_BYTES_MIN
    mapped = memoryview(mmap.mmap(-1, max(1, max_bytes)))[:max_bytes]
    try:
        written = _zstd_into(view, mapped)
    except CompressionError:
        release(mapped)
        raise
    if written is None:
        release(mapped)
        raise _too_large(max_bytes)
    return mapped[:written] if written > _MAPPED_BYTES_MIN else bytes(mapped[:written])


def _zstd_into(view: memoryview, output: bytearray | memoryview) -> int | None:
    """The number of bytes written, or None if there is not enough room."""
    import cramjam

    try:
        written: int = cramjam.zstd.decompress_into(view, output)
        return written
    except cramjam.DecompressionError as error:
        if _ZSTD_NO_ROOM in str(error):
            return None
        raise CompressionError(f"zstd: {error}") from None


def _zstd_content_size(view: memoryview) -> int | None:
    """The content size the first frame declares, if it does (the Java client's streams do not)."""
    if len(view) < 5 or view[:4] != _ZSTD_MAGIC:
        return None
    descriptor = view[4]
    single_segment = descriptor >> 5 & 1
    width = (single_segment, 2, 4, 8)[descriptor >> 6]
    start = 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if not width or len(view) < start + width:
        return None
    size = int.from_bytes(view[start : start + width], "little")
    return size + 256 if width == 2 else size
