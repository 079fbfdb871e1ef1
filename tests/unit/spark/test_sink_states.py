"""The table of states of a batch in a sink. Spec: E9, F2."""

import itertools

import pytest

from ottla.spark.sink.states import TRANSITIONS, BatchState, combined, move

S = BatchState
EXPECTED = {
    (S.STARTED, S.EMPTY),
    (S.STARTED, S.SETTLED),
    (S.STARTED, S.WRITING),
    (S.STARTED, S.COMMITTED),
    (S.STARTED, S.ABORTED),
    (S.WRITING, S.PREPARED),
    (S.WRITING, S.STORED),
    (S.WRITING, S.ABORTED),
    (S.PREPARED, S.DECIDED),
    (S.PREPARED, S.COMMITTED),
    (S.PREPARED, S.ABORTED),
    (S.SETTLED, S.DECIDED),
    (S.SETTLED, S.COMMITTED),
    (S.SETTLED, S.ABORTED),
    (S.DECIDED, S.COMMITTED),
    (S.EMPTY, S.COMMITTED),
    (S.EMPTY, S.ABORTED),
    (S.STORED, S.COMMITTED),
    (S.STORED, S.ABORTED),
}


@pytest.mark.parametrize(("state", "target"), list(itertools.product(S, S)), ids=lambda state: state.value)
def test_only_transitions_in_the_table_are_allowed(state: BatchState, target: BatchState) -> None:
    if (state, target) in EXPECTED:
        assert move(state, target) is target
    else:
        with pytest.raises(AssertionError, match=f"cannot move from {state.name} to {target.name}"):
            move(state, target)


def test_a_decided_batch_can_only_be_committed() -> None:
    assert TRANSITIONS[S.DECIDED] == {S.COMMITTED}


def test_every_state_leads_to_committed_or_aborted() -> None:
    assert set(TRANSITIONS) == set(S)
    assert {state for state in S if not TRANSITIONS[state]} == {S.COMMITTED, S.ABORTED}
    reaches_end = {S.COMMITTED, S.ABORTED}
    for _ in S:
        reaches_end |= {state for state in S if TRANSITIONS[state] & reaches_end}
    assert reaches_end == set(S)


def test_the_strongest_report_of_a_task_is_the_state_of_the_batch() -> None:
    assert combined([S.EMPTY, S.SETTLED, S.PREPARED]) is S.PREPARED, "there is a part to commit"
    assert combined([S.EMPTY, S.SETTLED]) is S.SETTLED, "an earlier decision may be unfinished"
    assert combined([S.EMPTY, S.EMPTY]) is S.EMPTY
    assert combined([S.EMPTY, S.STORED]) is S.STORED
    assert combined([]) is S.STARTED
    with pytest.raises(AssertionError):
        combined([S.DECIDED])
