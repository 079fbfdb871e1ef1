"""Batches with a correct checksum whose records are damaged: what a broken client could send."""

import random
from typing import Any

from ottla.protocol.records._pure import encode_varint
from ottla.protocol.records.compression import Codec, compress
from ottla.protocol.records.record_batch import BatchHeader, assemble
from tests.support.wire.raw import AT


def record(
    index: int = 0,
    *,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    timestamp_delta: int = 0,
    key_size: int | None = None,
    value_size: int | None = None,
    headers: bytes = b"\x00",
    size: int | None = None,
) -> bytes:
    """One encoded record. A size that is passed is written instead of the true one."""
    body = b"\x00" + encode_varint(timestamp_delta) + encode_varint(index)
    for content, claimed in ((key, key_size), (value, value_size)):
        true_size = -1 if content is None else len(content)
        body += encode_varint(true_size if claimed is None else claimed) + (content or b"")
    body += headers
    return encode_varint(len(body) if size is None else size) + body


def with_section(section: bytes, count: int, *, codec: int = Codec.NONE, **fields: Any) -> bytes:
    """A batch with `section` as its records, stored as it is, and a correct checksum."""
    header = BatchHeader(0, 0, -1, 2, 0, codec, max(0, count - 1), AT, AT, -1, -1, -1, count)
    return assemble(header._replace(**fields), section)


def header_of(name_size: int, name: bytes, value_size: int, value: bytes) -> bytes:
    return encode_varint(1) + encode_varint(name_size) + name + encode_varint(value_size) + value


SECTIONS: dict[str, tuple[bytes, int]] = {
    "random bytes": (random.Random(7).randbytes(200), 3),
    "five records announced, one sent": (record(), 5),
    "a million records announced, none sent": (b"", 1_000_000),
    "two records sent, one announced": (record() + record(1), 1),
    "a record longer than its batch": (record(size=5000), 1),
    "a record shorter than its content": (record(size=5), 1),
    "a record longer than its content": (record(size=9) + b"\x00\x00", 1),
    "a record of negative length": (record(size=-2), 1),
    "an empty record": (b"\x00", 1),
    "bytes after the last record": (record() + b"tail", 1),
    "a key of negative length": (record(key_size=-5), 1),
    "a key longer than its record": (record(key_size=500), 1),
    "a value of negative length": (record(value_size=-5), 1),
    "a value longer than its record": (record(value_size=500), 1),
    "a negative number of headers": (record(headers=encode_varint(-3)), 1),
    "more headers than the record has room for": (record(headers=encode_varint(1000)), 1),
    "a header without a name": (record(headers=header_of(-1, b"", 1, b"x")), 1),
    "a header name of negative length": (record(headers=header_of(-7, b"name", 1, b"x")), 1),
    "a header name longer than its record": (record(headers=header_of(99, b"name", 1, b"x")), 1),
    "a header value of negative length": (record(headers=header_of(4, b"name", -7, b"x")), 1),
    "a header value longer than its record": (record(headers=header_of(4, b"name", 99, b"x")), 1),
    "a number that never ends": (b"\xff" * 40, 1),
    "offset deltas that repeat": (record() + record(), 2),
    "offset deltas with a gap": (record() + record(2), 2),
    "offset deltas below zero": (record(-1), 1),
    "offset deltas in reverse": (record(1) + record(0), 2),
}
"""Record sections that cannot be read, and the number of records that the header announces."""


def damaged(codec: int) -> dict[str, bytes]:
    """Every section as a batch of a codec. For compressed ones also payloads that are not what the codec writes."""
    batches = {
        name: with_section(compress(codec, section) if codec else section, count, codec=codec)
        for name, (section, count) in SECTIONS.items()
    }
    if codec:
        whole = compress(codec, record() + record(1, value=bytes(5000)))
        middle = len(whole) // 2
        payloads = {
            "not compressed": record() + record(1),
            "compressed as nothing known": random.Random(3).randbytes(300),
            "compressed data cut short": whole[:middle],
            "compressed data changed in the middle": whole[:middle] + bytes(8 * [0x5A]) + whole[middle + 8 :],
            "no compressed data": b"",
        }
        batches |= {name: with_section(payload, 2, codec=codec) for name, payload in payloads.items()}
    return batches
