"""Unsigned varints and tag sections."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol import primitives
from ottla.protocol.primitives import ProtocolError, read_uvarint, skip_tags, uvarint


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (16383, "ff7f"), (16384, "808001"),
     (2**31 - 1, "ffffffff07"), (2**31, "8080808008")],
)  # fmt: skip
def test_an_unsigned_varint_holds_seven_bits_a_byte_lowest_first(value: int, encoded: str) -> None:
    assert uvarint(value).hex() == encoded
    assert read_uvarint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(st.integers(0, 2**31), st.binary(max_size=4), st.binary(max_size=4))
def test_an_unsigned_varint_is_read_at_any_position(value: int, before: bytes, after: bytes) -> None:
    encoded = uvarint(value)
    assert read_uvarint(before + encoded + after, len(before)) == (value, len(before) + len(encoded))


@pytest.mark.parametrize("hostile", ["808080808001", "808080808000", "ffffffffff7f", "ffffffff0f", "8180808008"])
def test_an_unsigned_varint_longer_or_larger_than_a_java_int_is_an_error(hostile: str) -> None:
    with pytest.raises(ProtocolError):
        read_uvarint(bytes.fromhex(hostile), 0)


def test_a_value_too_large_for_a_length_is_an_error() -> None:
    with pytest.raises(ProtocolError):
        uvarint(2**32)


def test_a_truncated_unsigned_varint_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        read_uvarint(b"\x80", 0)
    assert IndexError in primitives.MALFORMED


def test_unknown_tags_are_skipped() -> None:
    section = bytes.fromhex("02 00 01 ff 05 02 aabb".replace(" ", ""))
    assert skip_tags(section + b"rest", 1, section[0]) == len(section)


@pytest.mark.parametrize(
    "section",
    ["02 01 00 01 00", "02 03 00 01 00", "01 00 05 aa", "03 00 00", "ffffffff07", "01 00 ffffffff07"],
    ids=["twice", "descending", "too long", "too many", "two billion", "two billion bytes"],
)
def test_a_tag_section_out_of_order_or_out_of_bounds_is_an_error(section: str) -> None:
    data = bytes.fromhex(section.replace(" ", ""))
    with pytest.raises(ProtocolError):
        skip_tags(data, 1, data[0])
