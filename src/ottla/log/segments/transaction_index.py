"""The aborted transactions of a segment, 34 bytes per entry in marker order, as in Kafka's .txnindex. Pure."""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from ottla.log.segments.index import CorruptIndex

_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
assert ENTRY_SIZE == 34


class AbortedTransaction(NamedTuple):
    """One aborted transaction: offsets of its first record and ABORT marker, and the last stable offset after it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(0, *entry) for entry in entries)


def decode_entries(data: bytes) -> list[AbortedTransaction]:
    """The entries in `data`; CorruptIndex if invalid. Entries are in marker order, so last offsets increase."""
    if len(data) % ENTRY_SIZE:
        raise CorruptIndex(f"{len(data)} bytes are not a multiple of the entry size")
    entries: list[AbortedTransaction] = []
    previous = -1
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTransaction(*fields)
        if version < 0 or not (previous < entry.last_offset and 0 <= entry.first_offset <= entry.last_offset):
            raise CorruptIndex(f"{entry} cannot follow a marker at offset {previous}")
        entries.append(entry)
        previous = entry.last_offset
    return entries


def collect(
    entries: Iterable[AbortedTransaction], fetch_offset: int, upper_bound: int, found: list[AbortedTransaction]
) -> bool:
    """Adds to `found` what a reader of [fetch_offset, upper_bound) needs. True if later entries cannot matter.

    When an entry's last stable offset has reached the bound, every transaction that started below the bound had
    ended by then, so no later marker can belong to one of them.
    """
    for entry in entries:
        if entry.last_offset >= fetch_offset and entry.first_offset < upper_bound:
            found.append(entry)
        if entry.last_stable_offset >= upper_bound:
            return True
    return False
