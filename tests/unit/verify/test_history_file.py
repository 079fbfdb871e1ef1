"""Histories are written and read without loss."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import OttlaError
from ottla.verify.history import OUTCOMES, Fault, History, Operation, Read, Sent
from ottla.verify.history_file import from_lines, to_lines

partitions = st.sampled_from(["t-0", "my-topic-1"])
numbers = st.integers(-1, 2**60)
operations = st.builds(
    Operation,
    client=st.text(max_size=5),
    kind=st.sampled_from(["send", "poll", "copy", "final read"]),
    sent=st.lists(st.builds(Sent, partitions, numbers, numbers), max_size=3),
    polled=st.lists(st.builds(Read, partitions, numbers, numbers), max_size=3),
    outcome=st.sampled_from(OUTCOMES),
    started_us=numbers,
    ended_us=numbers,
    end_started_us=numbers,
    session=numbers,
    isolation=st.sampled_from(["read_committed", "read_uncommitted"]),
    from_start=st.booleans(),
    group=st.text(max_size=5),
    generation=numbers,
    offsets=st.dictionaries(partitions, numbers),
    copies=st.dictionaries(numbers, numbers, max_size=3),
    error=st.text(max_size=5),
)
faults = st.builds(Fault, st.text(max_size=5), st.tuples(numbers), numbers, numbers, st.text(max_size=5))
histories = st.builds(
    History,
    st.lists(operations, max_size=3),
    st.lists(faults, max_size=2),
    st.dictionaries(st.text(max_size=5), numbers, max_size=2),
    st.lists(st.text(max_size=5), max_size=2),
)


@settings(max_examples=50)
@given(histories)
def test_a_history_is_the_same_after_it_was_written_and_read(history: History) -> None:
    history.about["seed"] = 1
    assert from_lines(to_lines(history), "history.jsonl") == history


def test_a_line_that_was_cut_off_is_named() -> None:
    lines = [*to_lines(History([Operation("a"), Operation("b")])), '{"client": "c", "ou']
    with pytest.raises(OttlaError, match=r"history.jsonl, line 4, is not part of a history"):
        from_lines(lines, "history.jsonl")
