"""Decoding fetched batches: offsets, gaps, transactions, corruption."""

import pytest

from ottla.client.consumer.completed_fetch import CompletedFetch
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.records.record_batch import Codec, build_batch, control_batch, read_header, stamp
from ottla.types import TopicPartition
from tests.support.wire.damaged import damaged

T0 = TopicPartition("t", 0)
ANN, BOB = 1, 2


def batch(
    offset: int, *values: str, producer_id: int = -1, transactional: bool = False, codec: Codec = Codec.NONE
) -> bytes:
    return build_batch(
        [(1000 + i, None, value.encode(), ()) for i, value in enumerate(values)],
        base_offset=offset,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        transactional=transactional,
        partition_leader_epoch=3,
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    return control_batch(
        commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=1, base_offset=offset
    )


def fetched(data: bytes, offset: int = 0, **options: object) -> CompletedFetch:
    return CompletedFetch(T0, memoryview(data), offset, **options)  # type: ignore[arg-type]


def values(part: CompletedFetch, max_records: int = 1_000) -> list[str]:
    return [(record.value or b"").decode() for record in part.take(max_records)]


def test_sections_stop_after_enough_records_or_bytes() -> None:
    data = batch(0, "a") + batch(1, "b") + batch(2, "c")
    (first, *_) = fetched(data).sections(1, 1)
    size = first.end - first.start

    def offsets(max_records: int, max_bytes: int) -> list[int]:
        return [section.header.base_offset for section in fetched(data).sections(max_records, max_bytes)]

    assert offsets(100, 100 * size) == [0, 1, 2]
    assert offsets(2, 100 * size) == [0, 1]
    assert offsets(1, 100 * size) == [0]
    assert offsets(100, 2 * size) == [0, 1]
    assert offsets(100, 2 * size + 1) == [0, 1, 2], "a batch is never cut"
    assert offsets(100, 1) == [0]
    assert offsets(1, 1) == [0]


def test_take_returns_records_in_portions_and_moves_the_next_offset() -> None:
    part = fetched(batch(0, "a", "b", "c") + batch(3, "d", "e"))
    assert (values(part, 2), part.next_offset) == (["a", "b"], 2)
    assert (values(part, 2), part.next_offset) == (["c", "d"], 4)
    assert not part.is_exhausted
    assert (values(part, 2), part.next_offset) == (["e"], 5)
    assert part.is_exhausted
    assert values(part) == []


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches_are_read(codec: Codec) -> None:
    assert values(fetched(batch(0, "a", "b", codec=codec))) == ["a", "b"]


def test_reading_starts_at_an_offset_inside_a_batch() -> None:
    """Spec: R4."""
    part = fetched(batch(0, "a", "b", "c") + batch(3, "d"), offset=1)
    assert [record.offset for record in part.take(10)] == [1, 2, 3]


def test_a_truncated_last_batch_is_left_for_the_next_fetch() -> None:
    part = fetched(batch(0, "a", "b") + batch(2, "c", "d")[:-3])
    assert part.end_offset == 2
    assert values(part) == ["a", "b"]
    assert part.next_offset == 2


def test_bytes_without_a_whole_batch_are_an_error_not_an_endless_loop() -> None:
    with pytest.raises(KafkaError) as caught:
        fetched(batch(0, "a", "b")[:-3])
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_gaps_from_compaction_are_skipped() -> None:
    part = fetched(batch(0, "a") + batch(7, "b"))
    assert [record.offset for record in part.take(10)] == [0, 7]
    assert part.next_offset == 8


def test_corruption_is_detected_by_the_checksum_and_names_the_offset() -> None:
    data = bytearray(batch(0, "a") + batch(1, "b"))
    data[-1] ^= 1
    part = fetched(bytes(data))
    assert [record.offset for record in part.take(10)] == [0], "records before the corrupt batch are returned"
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            part.take(10)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
        assert caught.value.detail.startswith("t-0 at offset 1: ")
    assert part.next_offset == 1


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_that_cannot_be_decoded_is_named_and_can_be_skipped(codec: Codec) -> None:
    """Its checksum is correct: an older broker stored it as it was."""
    for name, bad in damaged(codec).items():
        stored = bytearray(bad)
        stamp(stored, 1, 0)
        next_offset = read_header(stored).next_offset
        data = batch(0, "a") + bytes(stored) + batch(next_offset, "c")
        part = fetched(data)
        assert [record.offset for record in part.take(10)] == [0], name
        with pytest.raises(KafkaError) as caught:
            part.take(10)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
        assert caught.value.detail.startswith("t-0 at offset 1: ")
        assert caught.value.detail.endswith(f"call seek(TopicPartition('t', 0), {next_offset})")
        after = fetched(data, next_offset)
        assert [record.value for record in after.take(10)] == [b"c"], "a fetch returns the earlier batches, too"


def test_a_header_that_cannot_be_read_is_an_error_after_the_batches_before_it() -> None:
    bad = bytearray(batch(1, "b"))
    bad[22] |= 7  # no codec has this number
    part = fetched(batch(0, "a") + bytes(bad))
    assert values(part) == ["a"]
    assert part.end_offset == 1, "the next fetch begins at the damaged one"
    with pytest.raises(KafkaError, match="t-0 at offset 1: unknown codec 7"):
        fetched(bytes(bad), 1)


def test_the_last_epoch_is_that_of_the_last_batch() -> None:
    assert fetched(batch(0, "a")).last_epoch == 3


# Transactions


def test_control_records_are_hidden_in_both_isolation_levels() -> None:
    """Spec: E7."""
    data = batch(0, "a", producer_id=ANN, transactional=True) + marker(1, ANN, commit=True) + batch(2, "b")
    assert values(fetched(data)) == ["a", "b"]
    assert values(fetched(data, aborted=[])) == ["a", "b"]


def test_the_position_moves_past_a_control_record_at_the_end() -> None:
    """Spec: R4. A consumer whose last offset is a control record."""
    part = fetched(batch(0, "a", producer_id=ANN, transactional=True) + marker(1, ANN, commit=True))
    assert values(part) == ["a"]
    assert values(part) == []
    assert part.next_offset == 2


def test_an_aborted_transaction_is_hidden_and_the_next_one_of_the_producer_is_not() -> None:
    """Spec: E8."""
    data = (
        batch(0, "no", producer_id=ANN, transactional=True)
        + batch(1, "yes", producer_id=BOB, transactional=True)
        + batch(2, "no", producer_id=ANN, transactional=True)
        + marker(3, ANN, commit=False)
        + batch(4, "again", producer_id=ANN, transactional=True)
        + marker(5, ANN, commit=True)
        + marker(6, BOB, commit=True)
    )
    assert values(fetched(data, aborted=[(ANN, 0)])) == ["yes", "again"]
    assert values(fetched(data)) == ["no", "yes", "no", "again"]


def test_an_aborted_transaction_that_began_before_the_fetch_is_hidden() -> None:
    data = batch(10, "no", producer_id=ANN, transactional=True) + marker(11, ANN, commit=False) + batch(12, "yes")
    assert values(fetched(data, offset=10, aborted=[(ANN, 3)])) == ["yes"]


def test_two_aborted_transactions_of_one_producer_are_distinguished() -> None:
    data = (
        batch(0, "no", producer_id=ANN, transactional=True)
        + marker(1, ANN, commit=False)
        + batch(2, "yes", producer_id=ANN, transactional=True)
        + marker(3, ANN, commit=True)
        + batch(4, "no", producer_id=ANN, transactional=True)
        + marker(5, ANN, commit=False)
    )
    assert values(fetched(data, aborted=[(ANN, 4), (ANN, 0)])) == ["yes"]


def test_non_transactional_records_of_a_producer_with_an_aborted_transaction_are_visible() -> None:
    data = batch(0, "plain", producer_id=ANN) + batch(1, "no", producer_id=ANN, transactional=True)
    assert values(fetched(data, aborted=[(ANN, 0)])) == ["plain"]


def test_the_position_moves_past_aborted_records_alone() -> None:
    part = fetched(
        batch(0, "no", producer_id=ANN, transactional=True) + marker(1, ANN, commit=False), aborted=[(ANN, 0)]
    )
    assert values(part) == []
    assert part.next_offset == 2
    assert part.is_exhausted
