"""The codecs: Kafka's framing in both directions, and limits against decompression bombs."""

import gzip
import os
import struct
import time
import tracemalloc

import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.records.compression import XERIAL_MAGIC, Codec, CompressionError, compress, decompress
from tests.support.wire.compressed import bombs, raw_snappy, streamed_zstd, xerial

CODECS = list(Codec)
COMPRESSING = [codec for codec in Codec if codec]
SAMPLE = b"".join(b"record %d of many, much like the others;" % n for n in range(20_000))


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=5000) | st.binary(max_size=40).map(lambda piece: piece * 3000))
@settings(max_examples=40, deadline=None)
def test_compressed_data_decompresses_to_the_original(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), max_bytes=len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_accepted_and_bytes_are_returned(codec: Codec, kind: type) -> None:
    packed = compress(codec, kind(SAMPLE))
    assert type(packed) is bytes
    expanded = decompress(codec, kind(packed), max_bytes=len(SAMPLE))
    assert type(expanded) is bytes
    assert expanded == SAMPLE


@pytest.mark.parametrize("codec", COMPRESSING)
def test_the_size_limit_is_exact(codec: Codec) -> None:
    packed = compress(codec, SAMPLE)
    assert len(packed) < len(SAMPLE) / 3
    assert decompress(codec, packed, max_bytes=len(SAMPLE)) == SAMPLE
    with pytest.raises(CompressionError):
        decompress(codec, packed, max_bytes=len(SAMPLE) - 1)
    with pytest.raises(CompressionError):
        decompress(codec, packed, max_bytes=0)


def test_uncompressed_bytes_have_the_limit_too() -> None:
    assert decompress(Codec.NONE, b"abc", max_bytes=3) == b"abc"
    with pytest.raises(CompressionError):
        decompress(Codec.NONE, b"abcd", max_bytes=3)


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_an_unknown_codec_is_an_error(codec: int) -> None:
    with pytest.raises(CompressionError):
        compress(codec, b"x")
    with pytest.raises(CompressionError):
        decompress(codec, b"x", max_bytes=10)


@pytest.mark.parametrize(("codec", "low", "high"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 12), (Codec.ZSTD, -5, 9)])
def test_a_level_trades_time_for_size(codec: Codec, low: int, high: int) -> None:
    small, large = compress(codec, SAMPLE, high), compress(codec, SAMPLE, low)
    assert len(small) < len(large)
    assert decompress(codec, small, len(SAMPLE)) == decompress(codec, large, len(SAMPLE)) == SAMPLE


def test_lz4_at_kafkas_default_level_is_the_fast_compressor() -> None:
    assert compress(Codec.LZ4, SAMPLE, 9) == compress(Codec.LZ4, SAMPLE)


# What the framing looks like to others


def test_gzip_is_what_gzip_reads_and_writes() -> None:
    assert gzip.decompress(compress(Codec.GZIP, SAMPLE)) == SAMPLE
    assert decompress(Codec.GZIP, gzip.compress(SAMPLE), len(SAMPLE)) == SAMPLE


def test_gzip_members_may_follow_each_other() -> None:
    members = gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(SAMPLE) + gzip.compress(b" three")
    whole = b"one " + SAMPLE + b" three"
    assert decompress(Codec.GZIP, members, len(whole)) == whole
    with pytest.raises(CompressionError):
        decompress(Codec.GZIP, members, len(whole) - 1)
    with pytest.raises(CompressionError):
        decompress(Codec.GZIP, members + b"no member", len(whole))


def test_snappy_is_written_in_blocks_behind_the_xerial_header() -> None:
    packed = compress(Codec.SNAPPY, SAMPLE)
    assert packed[:16] == b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2
    position, blocks = 16, []
    while position < len(packed):
        (size,) = struct.unpack_from(">i", packed, position)
        blocks.append(bytes(cramjam.snappy.decompress_raw(packed[position + 4 : position + 4 + size])))
        position += 4 + size
    assert b"".join(blocks) == SAMPLE
    assert {len(block) for block in blocks[:-1]} == {32 * 1024}


def test_snappy_is_read_raw_as_librdkafka_sends_it() -> None:
    assert decompress(Codec.SNAPPY, raw_snappy(SAMPLE), len(SAMPLE)) == SAMPLE
    with pytest.raises(CompressionError):
        decompress(Codec.SNAPPY, raw_snappy(SAMPLE), len(SAMPLE) - 1)


def test_snappy_is_read_in_blocks_of_any_size() -> None:
    packed = xerial(raw_snappy(b"a" * 70_000), raw_snappy(b""), raw_snappy(b"b"))
    assert decompress(Codec.SNAPPY, packed, 70_001) == b"a" * 70_000 + b"b"
    with pytest.raises(CompressionError, match="70000"):
        decompress(Codec.SNAPPY, packed, 70_000)


def test_snappy_streams_may_follow_each_other() -> None:
    assert decompress(Codec.SNAPPY, xerial(raw_snappy(b"one")) + xerial(raw_snappy(b"two")), 6) == b"onetwo"


def test_an_empty_xerial_stream_is_empty() -> None:
    assert decompress(Codec.SNAPPY, xerial(), 0) == b""


def test_lz4_frames_have_independent_blocks_and_no_checksum_for_the_java_client() -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, SAMPLE))
    assert not info["block_linked"]
    assert not info["content_checksum"]
    assert not info["block_checksum"]


def test_lz4_frames_of_every_kind_are_read() -> None:
    for options in (
        {"content_checksum": True},
        {"block_checksum": True},
        {"block_linked": True},
        {"store_size": True},
        {"block_size": lz4.frame.BLOCKSIZE_MAX4MB, "store_size": False},
    ):
        packed = lz4.frame.compress(SAMPLE, **options)
        assert decompress(Codec.LZ4, packed, len(SAMPLE)) == SAMPLE, options
        assert decompress(Codec.LZ4, packed + packed, 2 * len(SAMPLE)) == SAMPLE * 2, options
        with pytest.raises(CompressionError):
            decompress(Codec.LZ4, packed, len(SAMPLE) - 1)


def test_zstd_frames_without_a_content_size_are_read() -> None:
    for data in (b"", b"x", SAMPLE, SAMPLE * 8):
        packed = streamed_zstd(data)
        assert decompress(Codec.ZSTD, packed, len(data)) == data
        assert decompress(Codec.ZSTD, packed + packed, 2 * len(data)) == data * 2
        if data:
            with pytest.raises(CompressionError):
                decompress(Codec.ZSTD, packed, len(data) - 1)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 300, 65_791, 65_792, 100_000])
def test_zstd_frames_with_a_content_size_are_read_at_every_width_of_it(size: int) -> None:
    data = os.urandom(size)
    packed = bytes(cramjam.zstd.compress(data, 3))
    assert decompress(Codec.ZSTD, packed, size) == data
    assert decompress(Codec.ZSTD, packed + packed, 2 * size) == data * 2


# Hostile bytes


@pytest.fixture(scope="module")
def sixty_four_megabytes() -> dict[str, tuple[Codec, bytes]]:
    return bombs(64 << 20)


@pytest.mark.parametrize("name", sorted(bombs(1 << 20)))
def test_a_decompression_bomb_is_an_error_and_memory_stays_below_the_limit(
    name: str, sixty_four_megabytes: dict[str, tuple[Codec, bytes]]
) -> None:
    """Spec: R8. Memory use follows the limit, not the claimed or real size."""
    codec, bomb = sixty_four_megabytes[name]
    bound = 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError):
            decompress(codec, bomb, max_bytes=bound)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * bound


def test_a_zstd_frame_cannot_claim_more_than_it_can_hold() -> None:
    claims_100_mb = bytes.fromhex("28b52ffd") + b"\xa0" + struct.pack("<I", 100_000_000) + b"\x01\x00\x00"
    with pytest.raises(CompressionError, match="claim"):
        decompress(Codec.ZSTD, claims_100_mb, max_bytes=1 << 30)
    densest = bytes(cramjam.zstd.compress(bytes(100_000_000), 19))
    assert decompress(Codec.ZSTD, densest, 100_000_000) == bytes(100_000_000)


def test_a_snappy_block_cannot_claim_more_than_it_can_hold() -> None:
    claims_100_mb = b"\x80\xc2\xd7\x2f" + b"\x00a"
    with pytest.raises(CompressionError, match="claim"):
        decompress(Codec.SNAPPY, claims_100_mb, max_bytes=1 << 30)


def test_thousands_of_empty_gzip_members_take_linear_time() -> None:
    """Spec: R8. zlib copies the input that follows a member. Copying all of it each time would take minutes."""
    members = gzip.compress(b"") * 200_000
    started = time.process_time()
    assert decompress(Codec.GZIP, members + gzip.compress(b"end"), 3) == b"end"
    assert time.process_time() - started < 10


@pytest.mark.parametrize("codec", COMPRESSING)
def test_truncated_data_is_an_error(codec: Codec) -> None:
    packed = compress(codec, SAMPLE[:100_000])
    for size in {0, 1, 4, 10, 15, 17, len(packed) // 2, len(packed) - 1} - ({0} if codec == Codec.SNAPPY else set()):
        with pytest.raises(CompressionError):
            decompress(codec, packed[:size], 100_000)
    if codec == Codec.SNAPPY:
        with pytest.raises(CompressionError):
            decompress(codec, XERIAL_MAGIC, 10)


@pytest.mark.parametrize("codec", COMPRESSING)
@given(data=st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_random_data_is_an_error_or_stays_below_the_limit(codec: Codec, data: bytes) -> None:
    try:
        assert len(decompress(codec, data, max_bytes=1000)) <= 1000
    except CompressionError:
        pass


@pytest.mark.parametrize("codec", COMPRESSING)
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_corrupt_data_is_an_error_or_stays_below_the_limit(codec: Codec, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, SAMPLE[:3000]))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, bytes(packed), max_bytes=4000)) <= 4000
    except CompressionError:
        pass
