"""The records and names behind the sink's decisions. What they lead to is in test_sink_model.py."""

import pytest

from ottla.spark.sink.decisions import (
    CLAIM_KEY,
    DECISION_KEY,
    DONE_KEY,
    Decision,
    Digest,
    Done,
    FinishEarlier,
    Part,
    RollForward,
    Run,
    SinkState,
    Skip,
    Write,
    check_claim,
    check_repeat,
    claimed,
    decide_commit,
    decide_write,
    is_decided,
    is_repeat,
    unfinished,
)
from ottla.spark.sink.errors import NotOwner, SinkError
from ottla.spark.sink.ledger import Entry, Names

RUN = Run("r1", 1_794_786_567_039, "host")
PARTS = {0: Part(0, 11, 4, Digest(3, 15, 700)), 1: Part(1, 12, 9, Digest(1, 5, 300))}
DECISION = Decision("q", 7, PARTS, (RUN,), decided_ms=5, open_ms=4, held_ms=3)


def test_records_are_read_back_unchanged() -> None:
    state = SinkState().replay(DECISION_KEY, DECISION.to_bytes()).replay(b"from the future", b"?")
    assert state.decision == DECISION
    assert not state.is_done()
    done = state.replay(DONE_KEY, Done("q", 7, 8, 9).to_bytes())
    assert done.done == Done("q", 7, 8, 9)
    assert done.is_done()
    assert not done.replay(DECISION_KEY, Decision("q", 8, PARTS, (RUN,)).to_bytes()).is_done(), "that was batch 7"
    assert done.replay(DECISION_KEY, None).decision is None


def test_names_identify_sink_and_task() -> None:
    names = Names("a-sink")
    assert names.task(3) == "a-sink-3"
    assert names.task_of("a-sink-3") == 3
    assert [names.task_of(other) for other in ("a-sink-driver", "a-sink", "a-sink-3-4", "b-3", "a-sink-x")] == [
        None
    ] * 5
    assert (names.group(15), names.group(16)) == ("a-sink", "a-sink.1")
    assert names.entry(17) == ("a-sink-decisions", 1)


def test_a_task_decides_from_ledger_and_decision() -> None:
    state = SinkState(DECISION)
    assert decide_write(SinkState(), {}, "q", 0, 0) == Write()
    assert decide_write(state, {0: Entry(8, "q")}, "q", 8, 0) == Write()
    assert decide_write(SinkState(DECISION, Done("q", 7)), {}, "q", 8, 0) == Write()
    assert decide_write(state, {}, "q", 8, 0) == FinishEarlier(PARTS[0]), "taking over the id would drop it"
    assert decide_write(state, {}, "q", 7, 0) == RollForward(PARTS[0])
    assert decide_write(state, {0: Entry(8, "q")}, "q", 7, 0) == Skip()
    assert decide_write(state, {}, "q", 7, 2) == Skip(), "the batch was decided without this task"
    assert decide_write(SinkState(DECISION, Done("q", 7)), {}, "q", 7, 0) == Skip()
    assert decide_write(SinkState(), {0: Entry(8, "q")}, "q", 7, 0) == Skip(), "the decisions topic was deleted"
    for query, batch in (("another", 8), ("q", 6)):
        with pytest.raises(NotOwner):
            decide_write(state, {}, query, batch, 0)
    with pytest.raises(NotOwner, match="task 1 already wrote batch 7"):
        decide_write(SinkState(), {1: Entry(8, "q")}, "q", 6, 0)


def test_a_batch_write_finishes_the_one_before_it() -> None:
    former = SinkState(Decision("job-1", 0, PARTS, (RUN,), is_job=True))
    assert decide_write(former, {}, "job-2", 0, 0, is_job=True) == FinishEarlier(PARTS[0])
    assert decide_write(former, {0: Entry(1, "job-1")}, "job-2", 0, 0, is_job=True) == Write()
    assert decide_write(former, {}, "job-1", 0, 0, is_job=True) == RollForward(PARTS[0])
    assert unfinished(former, {0: Entry(1, "job-1")}) == [PARTS[1]]
    with pytest.raises(NotOwner, match="in use by batch writes; this is a stream"):
        decide_write(former, {}, "q", 1, 0)


def test_a_job_repeated_after_another_one_is_not_written_partially() -> None:
    """Job a had three tasks and job b after it only one, so the ledger still has tasks 1 and 2 of job a.

    Skipping these two and writing the first would duplicate a third of the rows.
    """
    state = SinkState(Decision("b", 0, {0: PARTS[0]}, (RUN,), is_job=True), Done("b", 0))
    ledger = {0: Entry(1, "b"), 1: Entry(1, "a"), 2: Entry(1, "a")}
    for task in range(3):
        with pytest.raises(SinkError, match=r"job a was written to this sink before job b\. Nothing was written"):
            decide_write(state, ledger, "a", 0, task, is_job=True)
    with pytest.raises(SinkError, match="job a was written to this sink before"):
        decide_commit(state, ledger, "a", 0, Run("r2", 0, "host"), PARTS.values(), 0, is_job=True)
    assert decide_write(state, ledger, "c", 0, 1, is_job=True) == Write()
    assert decide_write(state, ledger, "b", 0, 0, is_job=True) == Skip()


def test_a_batch_is_also_identified_by_its_end_offsets() -> None:
    """If both are known: an old record does not have them, nor does a checkpoint that is not a local directory."""
    decided = Decision("q", 7, PARTS, (RUN,), plan="c0ffee")
    assert Decision.from_bytes(decided.to_bytes()) == decided
    for state, plan in ((SinkState(decided), "c0ffee"), (SinkState(decided), ""), (SinkState(DECISION), "c0ffee")):
        assert decide_commit(state, {}, "q", 7, RUN, [], 0, plan=plan).commit == tuple(PARTS.values())
    with pytest.raises(NotOwner, match="has a batch 7 of this query with other end offsets"):
        decide_commit(SinkState(decided), {}, "q", 7, RUN, [], 0, plan="decaf")
    after = decide_commit(SinkState(decided, Done("q", 7)), {}, "q", 8, RUN, [], 0, plan="decaf")
    assert after.decision.plan == "decaf"


def test_the_driver_uses_copies_only_for_missing_parts() -> None:
    copies = [Part(0, 11, 6), Part(1, 12, 11)]
    plan = decide_commit(SinkState(DECISION), {0: Entry(8, "q")}, "q", 7, Run("r2", 0, "other"), copies, 0)
    assert plan.commit == (copies[1],)
    assert plan.abort == (copies[0],)
    assert plan.is_new
    assert plan.takes_over
    assert [run.run for run in plan.decision.runs] == ["r1", "r2"]
    assert plan.decision.parts == {0: PARTS[0], 1: copies[1]}


def test_a_batch_written_twice_in_one_run_must_have_the_same_rows() -> None:
    """Inside foreachBatch: of two DataFrames under the same name the second one would be lost."""
    state = SinkState(DECISION, Done("q", 7))
    assert is_repeat(state, "q", 7, "r1")
    for query, batch, run in (("other", 7, "r1"), ("q", 8, "r1"), ("q", 7, "r2")):
        assert not is_repeat(state, query, batch, run)
    assert not is_repeat(SinkState(), "q", 7, "r1")
    check_repeat(DECISION, Digest(4, 20, 1000))  # no matter which task has which of its rows
    with pytest.raises(SinkError, match=r"4 rows of 20 bytes .* then, 3 rows .* give each its own sinkName"):
        check_repeat(DECISION, Digest(3, 20, 1000))
    assert Digest(1, 2, (1 << 63) - 1) + Digest(3, 4, 5) == Digest(4, 6, 4)


def test_a_run_claims_the_ids_before_it_writes() -> None:
    first, second = Run("first", 1, "here"), Run("second", 2, "there")
    claim = claimed(None, first)
    assert claim is not None
    assert claimed(claim, first) is None, "once"
    later = claimed(claim, second)
    assert later is not None
    state = SinkState().replay(CLAIM_KEY, later.to_bytes())
    assert state.claim == later
    check_claim(state.claim, "second")
    check_claim(state.claim, "new")
    with pytest.raises(NotOwner, match="another driver owns this sink: run second on there"):
        check_claim(state.claim, "first")


def test_a_former_owner_is_refused() -> None:
    displaced = SinkState(Decision("q", 7, {}, (Run("r1", 0, "a"), Run("r2", 1_794_786_567_039, "b"))))
    with pytest.raises(NotOwner, match=r"run r2 on b, since 2026-11-15 23:49:27 UTC; this is run r1\. Two drivers"):
        decide_commit(displaced, {}, "q", 8, Run("r1", 0, "a"), [], 0)
    assert is_decided(displaced, "q", 7)
    assert not is_decided(displaced, "q", 8)


def test_the_text_of_an_error_includes_its_hint() -> None:
    """Spark shows only the text of an error."""
    assert str(SinkError("it is broken", "Fix it.")) == "it is broken. Fix it."
    assert str(SinkError("is it broken?", "Yes.")) == "is it broken? Yes."
    assert str(SinkError("it is broken")) == "it is broken"
