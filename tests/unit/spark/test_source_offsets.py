"""The source's offsets: how far a batch goes, what is lost, and which task reads what. No I/O. Spec: F1."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import OttlaError
from ottla.spark.source.offsets import (
    Found,
    OffsetRange,
    SourceOffset,
    Split,
    advance,
    gather,
    pieces_of,
    ranges_between,
    share_out,
    tasks_of,
    waiting,
)
from ottla.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def found(latest: dict[TopicPartition, int], earliest: dict[TopicPartition, int] | None = None, **ids: str) -> Found:
    return Found({**dict.fromkeys(latest, 0), **(earliest or {})}, latest, ids)


def through_json(offset: SourceOffset) -> SourceOffset:
    return SourceOffset.from_dict(json.loads(json.dumps(offset.to_dict())))


def test_an_offset_has_the_format_of_sparks_kafka_source() -> None:
    assert SourceOffset({A1: 98, A0: 120, B0: 0}).to_dict() == {"a": {"0": 120, "1": 98}, "b": {"0": 0}}
    assert SourceOffset.from_dict({"a": {"0": 120}}) == SourceOffset({A0: 120})


def test_an_offset_is_read_back_unchanged_from_the_checkpoint() -> None:
    offset = SourceOffset({A0: 5}, group="g", topic_ids={"a": "x"}, started={A0: 2}, is_initial=True)
    assert through_json(offset) == offset


@pytest.mark.parametrize("stranger", [{"logOffset": 3}, {"a": {"0": "x"}}, {"a": {"x": 1}}, [1], 7, {"a": {"0": True}}])
def test_an_offset_of_another_source_is_refused(stranger: object) -> None:
    with pytest.raises(OttlaError, match="an offset of another source") as caught:
        SourceOffset.from_dict(stranger)
    assert "checkpointLocation" in caught.value.hint


def test_a_batch_ends_at_the_last_available_record() -> None:
    end, losses = advance(SourceOffset({A0: 5, A1: 7}), found({A0: 9, A1: 7}), None)
    assert end.positions == {A0: 9, A1: 7}
    assert not losses
    assert ranges_between(SourceOffset({A0: 5, A1: 7}), end) == [OffsetRange(A0, 5, 9)]


def test_with_nothing_new_the_offset_stays_the_same() -> None:
    start = SourceOffset({A0: 5}, started={A0: 2})
    end, _ = advance(start, found({A0: 5}), None)
    assert end is start
    assert ranges_between(start, end) == [], "the start of a batch applies only to that batch"


def test_the_first_batch_stores_where_it_began_even_if_it_is_empty() -> None:
    """Spark always runs it. After a failure the query continues from there, not from the new end of the topic."""
    end, _ = advance(SourceOffset({A0: 5}, is_initial=True), found({A0: 5}), None)
    assert not end.is_initial
    assert end.started == {A0: 5}
    assert ranges_between(SourceOffset({A0: 9}, is_initial=True), end) == []
    assert ranges_between(end, advance(end, found({A0: 9}), None)[0]) == [OffsetRange(A0, 5, 9)]


def test_a_repeated_first_batch_reads_the_same_range_even_if_the_initial_offset_changed() -> None:
    """Spark asks for the initial offset again when batch 0 was planned and not finished."""
    end, _ = advance(SourceOffset({A0: 10, A1: 0}, is_initial=True), found({A0: 15, A1: 3}), None)
    end = through_json(end)
    first = ranges_between(SourceOffset({A0: 10, A1: 0}, is_initial=True), end)
    again = ranges_between(SourceOffset({A0: 15, A1: 99, B0: 4}, group="other", is_initial=True), end)
    assert first == again == [OffsetRange(A0, 10, 15), OffsetRange(A1, 0, 3)]
    after, _ = advance(end, found({A0: 20, A1: 3}), None)
    assert ranges_between(end, after) == [OffsetRange(A0, 15, 20)]
    assert not after.started
    assert not after.is_initial


def test_a_new_partition_is_read_from_its_beginning_which_the_end_offset_stores() -> None:
    start = SourceOffset({A0: 5})
    end, losses = advance(start, found({A0: 5, A1: 4}), None)
    assert not losses
    assert through_json(end).started == {A1: 0}
    assert ranges_between(start, through_json(end)) == [OffsetRange(A1, 0, 4)]
    after, _ = advance(end, found({A0: 6, A1: 6}), None)
    assert ranges_between(end, after) == [OffsetRange(A0, 5, 6), OffsetRange(A1, 4, 6)]


def test_expired_records_are_a_loss_and_reading_continues_at_the_first_existing_record() -> None:
    start = SourceOffset({A0: 5})
    end, losses = advance(start, found({A0: 20}, {A0: 8}), None)
    assert [loss.text for loss in losses] == ["offsets 5 to 7 of a-0 no longer exist; it begins at 8"]
    assert ranges_between(start, end) == [OffsetRange(A0, 8, 20)]


def test_a_position_at_the_first_record_is_no_loss() -> None:
    assert advance(SourceOffset({A0: 8}), found({A0: 20}, {A0: 8}), None)[1] == []


def test_a_new_partition_without_its_first_records_is_a_loss() -> None:
    _, losses = advance(SourceOffset({A0: 5}), found({A0: 5, A1: 9}, {A1: 3}), None)
    assert [loss.text for loss in losses] == ["a-1 is new to the query and its offsets 0 to 2 no longer exist"]


def test_a_deleted_partition_is_a_loss_and_left_out() -> None:
    end, losses = advance(SourceOffset({A0: 5, A1: 5, B0: 1}), found({A0: 6}), None)
    assert [loss.text for loss in losses] == ["a-1, b-0 no longer exist"]
    assert end.positions == {A0: 6}


def test_a_recreated_topic_is_noticed_by_its_id_even_if_it_has_grown_past_the_position() -> None:
    start = SourceOffset({A0: 5}, topic_ids={"a": "old"})
    end, losses = advance(start, found({A0: 50}, a="new"), None)
    assert [loss.text for loss in losses] == [
        "topic a was deleted and recreated, so the query's offsets are not valid for it"
    ]
    assert ranges_between(start, end) == [OffsetRange(A0, 0, 50)]
    assert end.topic_ids == {"a": "new"}
    assert advance(end, found({A0: 50}, a="new"), None) == (end, [])


def test_a_truncated_partition_is_a_loss_and_nothing_is_read_twice() -> None:
    start = SourceOffset({A0: 9}, topic_ids={"a": "id"})
    end, losses = advance(start, found({A0: 4}, a="id"), None)
    assert "a-0 ends at offset 4, but the query is at 9" in losses[0].text
    assert ranges_between(start, end) == []
    assert end.positions == {A0: 4}
    without_ids, _ = advance(SourceOffset({A0: 9}), found({A0: 4}), None)
    assert ranges_between(SourceOffset({A0: 9}), without_ids) == [OffsetRange(A0, 0, 4)], "most likely recreated"


def test_the_limit_is_shared_in_proportion_to_the_backlog() -> None:
    assert share_out({A0: 0, A1: 0}, {A0: 900, A1: 100}, 100) == {A0: 90, A1: 10}
    assert share_out({A0: 0, A1: 0}, {A0: 5, A1: 5}, 100) == {A0: 5, A1: 5}


def test_no_partition_starves_under_a_small_limit() -> None:
    assert share_out({A0: 0, A1: 0}, {A0: 1_000_000, A1: 1}, 10) == {A0: 9, A1: 1}


@given(
    st.dictionaries(st.integers(0, 20), st.integers(0, 10**12), min_size=1),
    st.integers(1, 10**9),
)
def test_under_any_limit_a_batch_advances_within_the_available_offsets(sizes: dict[int, int], limit: int) -> None:
    begins = {TopicPartition("t", number): number for number in sizes}
    ends = {TopicPartition("t", number): number + size for number, size in sizes.items()}
    shared = share_out(begins, ends, limit)
    for partition, end in shared.items():
        assert begins[partition] <= end <= ends[partition]
        assert (end > begins[partition]) == (ends[partition] > begins[partition])
    assert sum(shared.values()) - sum(begins.values()) <= max(limit, 0) + len(sizes)


def test_the_backlog_counts_new_partitions_and_not_deleted_records() -> None:
    assert waiting(SourceOffset({A0: 5}), found({A0: 9, A1: 3})) == 7
    assert waiting(SourceOffset({A0: 0}), found({A0: 9}, {A0: 6})) == 3


def test_a_checkpoint_without_the_start_of_a_batch_is_refused() -> None:
    with pytest.raises(OttlaError, match="has no start offset for a-1"):
        ranges_between(SourceOffset({A0: 1}), SourceOffset({A0: 2, A1: 5}))


def test_without_a_rule_there_is_one_task_per_partition() -> None:
    ranges = [OffsetRange(A0, 0, 10), OffsetRange(A1, 3, 3), OffsetRange(B0, 5, 6)]
    assert pieces_of(ranges, Split()) == [OffsetRange(A0, 0, 10), OffsetRange(B0, 5, 6)]
    assert pieces_of(ranges, Split(min_partitions=2)) == [OffsetRange(A0, 0, 10), OffsetRange(B0, 5, 6)]


def test_min_partitions_splits_large_ranges() -> None:
    ranges = [OffsetRange(A0, 0, 90), OffsetRange(A1, 0, 10)]
    assert pieces_of(ranges, Split(min_partitions=4)) == [
        OffsetRange(A0, 0, 30),
        OffsetRange(A0, 30, 60),
        OffsetRange(A0, 60, 90),
        OffsetRange(A1, 0, 10),
    ]


def test_max_records_per_partition_splits_larger_ranges() -> None:
    pieces = pieces_of([OffsetRange(A0, 0, 25), OffsetRange(A1, 0, 4)], Split(max_records=10))
    assert [piece.size for piece in pieces] == [8, 8, 9, 4]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1000)), min_size=1, max_size=8),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 200),
    st.none() | st.integers(1, 500),
)
def test_tasks_cover_every_offset_once_and_in_order(
    sizes: list[tuple[int, int]], wanted: int | None, most: int | None, least: int | None
) -> None:
    ranges = [OffsetRange(TopicPartition("t", n), start, start + size) for n, (start, size) in enumerate(sizes)]
    tasks = tasks_of(ranges, Split(wanted, most, least))
    assert tasks == tasks_of(ranges, Split(wanted, most, least)), "the same tasks when a batch is repeated"
    pieces = [piece for task in tasks for piece in task]
    for whole in ranges:
        parts = [piece for piece in pieces if piece.partition == whole.partition]
        offsets = [offset for part in parts for offset in range(part.start, part.end)]
        assert offsets == list(range(whole.start, whole.end))
    assert all(piece.size > 0 for piece in pieces)
    totals = [sum(piece.size for piece in task) for task in tasks]
    assert all(total <= (most or total) for total in totals)
    if most is None:
        assert all(total >= (least or 1) for total in totals[:-1])


def test_small_ranges_share_a_task_with_min_records_per_partition() -> None:
    ranges = [OffsetRange(A0, 0, 5), OffsetRange(A1, 0, 5), OffsetRange(B0, 0, 50)]
    assert gather(ranges, Split()) == [[piece] for piece in ranges]
    assert gather(ranges, Split(min_records=10)) == [ranges[:2], ranges[2:]]
    assert gather(ranges, Split(min_records=1000)) == [ranges]
    assert gather(ranges, Split(min_records=1000, max_records=50)) == [ranges[:2], ranges[2:]], "not more than allowed"
    assert gather([], Split(min_records=10)) == []


def test_the_end_of_a_batch_holds_how_it_is_split() -> None:
    """A batch that is repeated after the options changed, or after an update of ottla, has the same tasks."""
    end, _ = advance(SourceOffset({A0: 1}), found({A0: 9}), None, Split(min_records=2000))
    stored = json.loads(json.dumps(end.to_dict()))
    assert stored["@split"] == {"min_records": 2000}
    assert SourceOffset.from_dict(stored).split == Split(min_records=2000)
    assert SourceOffset.from_dict({"a": {"0": 5}}).split is None, "an older version, or Spark's own source"
