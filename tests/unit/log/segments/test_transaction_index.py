"""The index of aborted transactions. Spec: E8."""

import struct

import pytest

from ottla.log.segments.index import CorruptIndex
from ottla.log.segments.transaction_index import AbortedTransaction, collect, decode_entries, encode_entries

ENTRIES = [AbortedTransaction(1, 0, 10, 11), AbortedTransaction(2, 5, 15, 16), AbortedTransaction(3, 18, 30, 25)]


def test_an_entry_takes_34_bytes_with_a_version_in_front() -> None:
    data = encode_entries([AbortedTransaction(1000, 5, 9, 10)])
    assert data == struct.pack(">hqqqq", 0, 1000, 5, 9, 10)
    assert len(data) == 34


def test_entries_round_trip() -> None:
    assert decode_entries(encode_entries(ENTRIES)) == ENTRIES


@pytest.mark.parametrize(
    "data",
    [b"\x00" * 33, encode_entries([ENTRIES[1], ENTRIES[0]]), struct.pack(">hqqqq", 0, 1, 9, 5, 10), bytes(68)],
    ids=["half an entry", "markers fall", "ends before it begins", "zeros"],
)
def test_invalid_entries_are_rejected(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        decode_entries(data)


def test_a_reader_gets_the_transactions_that_overlap_its_range() -> None:
    found: list[AbortedTransaction] = []
    collect(ENTRIES, 11, 18, found)
    assert found == [ENTRIES[1]]


def test_the_search_ends_when_all_transactions_below_the_bound_have_ended() -> None:
    found: list[AbortedTransaction] = []
    assert collect(ENTRIES, 0, 16, found)
    assert found == ENTRIES[:2]
