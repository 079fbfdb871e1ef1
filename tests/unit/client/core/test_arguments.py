"""How the arguments of client calls are checked: the same mistake is reported in the same way by every call."""

from dataclasses import dataclass
from typing import Any

import pytest

from ottla.client.core.arguments import as_committed_offsets, as_offset, as_partition, as_positions
from ottla.client.core.model import CommittedOffset, ConsumerRecord, OffsetAndTimestamp, RecordMetadata
from ottla.errors import ArgumentError
from ottla.types import INT64_MAX, TopicPartition

PLACE = TopicPartition("orders", 0)


@dataclass
class ForeignOffset:
    """An offset as other client libraries write it."""

    offset: Any
    metadata: Any = None
    leader_epoch: Any = None


class Seven:
    """An integer of another library."""

    def __index__(self) -> int:
        return 7


# --- offsets to commit --------------------------------------------------------------------------------------------

BAD_OFFSETS = {
    "text": ("5", "the offset for orders-0 must be a whole number, not '5'"),
    "a truth value": (True, "the offset for orders-0 must be a whole number, not True"),
    "None": (None, "the offset for orders-0 must be a whole number, not None"),
    "negative": (-1, "the offset for orders-0 must be at least 0, not -1"),
    "too large": (2**70, f"the offset for orders-0 must be at most {INT64_MAX}"),
    "text inside": (CommittedOffset("x"), "the offset for orders-0 must be a whole number, not 'x'"),  # type: ignore[arg-type]
    "negative inside": (CommittedOffset(-1), "the offset for orders-0 must be at least 0, not -1"),
    "too large inside": (ForeignOffset(2**70), f"the offset for orders-0 must be at most {INT64_MAX}"),
    "epoch": (ForeignOffset(5, leader_epoch="3"), "the leader epoch of the offset for orders-0 must be a whole number"),
    "metadata": (ForeignOffset(5, b"x"), "the metadata of the offset for orders-0 must be text, not b'x'"),
}


@pytest.mark.parametrize(("offset", "said"), BAD_OFFSETS.values(), ids=list(BAD_OFFSETS))
def test_every_bad_offset_is_an_argument_error_that_names_the_partition(offset: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        as_committed_offsets({PLACE: offset})
    with pytest.raises(ArgumentError, match=said):
        as_offset(offset, PLACE)


@pytest.mark.parametrize("offset", ["5", True, -1, 2**70])
def test_a_store_rejects_the_same_numbers_with_the_same_text(offset: Any) -> None:
    with pytest.raises(ArgumentError) as of_commit:
        as_committed_offsets({PLACE: offset})
    with pytest.raises(ArgumentError) as of_store:
        as_positions({PLACE: offset})
    assert str(of_commit.value) == str(of_store.value)


def test_offsets_may_be_numbers_or_objects_of_any_library() -> None:
    given: dict[Any, Any] = {
        ("orders", 0): 5,
        ("orders", 1): Seven(),
        ("orders", 2): CommittedOffset(8, 3, "noon"),
        ("orders", 3): ForeignOffset(9),
        ("orders", 4): ForeignOffset(INT64_MAX, "late", 2),
        ("orders", 5): OffsetAndTimestamp(6, 1_000, 4),
    }
    assert list(as_committed_offsets(given).values()) == [
        CommittedOffset(5),
        CommittedOffset(7),
        CommittedOffset(8, 3, "noon"),
        CommittedOffset(9),
        CommittedOffset(INT64_MAX, 2, "late"),
        CommittedOffset(6, 4),
    ]


@pytest.mark.parametrize(
    "record", [ConsumerRecord("orders", 0, 5, 0, None, b"secret", ()), RecordMetadata("orders", 0, 5, 0)]
)
def test_a_record_is_not_an_offset_because_the_next_one_is_committed(record: Any) -> None:
    with pytest.raises(ArgumentError, match=r"must be a whole number, not a .*record\.offset \+ 1") as raised:
        as_committed_offsets({PLACE: record})
    assert "secret" not in str(raised.value)


# --- partitions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pair", [("a", True), ("a", "0"), ("a", 1.0), (1, 0), ("a",), "ab", None, TopicPartition("a", True)]
)
def test_a_pair_that_is_not_a_partition_is_rejected(pair: Any) -> None:
    with pytest.raises(ArgumentError, match="not a partition"):
        as_partition(pair)


def test_the_number_of_a_partition_may_have_any_integer_type() -> None:
    found = as_partition(("orders", Seven()))  # type: ignore[arg-type]
    assert (found, type(found.partition)) == (TopicPartition("orders", 7), int)
