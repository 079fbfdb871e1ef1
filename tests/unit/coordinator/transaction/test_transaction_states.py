"""The state table of a transactional id, row by row: the response to every request in every state.

Spec: E4.
"""

import pytest

from ottla.coordinator.transaction.transaction import TRANSITIONS, ProducerIdAndEpoch, TransactionState
from ottla.errors import ErrorCode
from tests.support.worlds.transaction_world import NEW, OLD, TransactionWorld, places

S = TransactionState
STATES = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]


def world_in(state: str, version: int = OLD) -> tuple[TransactionWorld, ProducerIdAndEpoch]:
    """A producer whose transactional id is in `state`, and the id and epoch it has then."""
    world = TransactionWorld()
    producer = world.init()
    if state != "Empty":
        assert world.add(producer, "t-0", version=2 if version >= NEW else 0) is ErrorCode.NONE
    if state.startswith(("Prepare", "Complete")):
        producer = world.end(producer, commit=state.endswith("Commit"), version=version)
    if state.startswith("Complete"):
        world.write_markers()
    assert world.state == state
    return world, producer


def test_the_states_are_numbered_and_named_as_in_kafka() -> None:
    assert {int(state): str(state) for state in TransactionState} == {
        0: "Empty",
        1: "Ongoing",
        2: "PrepareCommit",
        3: "PrepareAbort",
        4: "CompleteCommit",
        5: "CompleteAbort",
        6: "Dead",
        7: "PrepareEpochFence",
    }


def test_the_table_allows_the_protocols_transitions() -> None:
    predecessors = {
        S.EMPTY: {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
        S.ONGOING: {S.ONGOING, S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
        S.PREPARE_COMMIT: {S.ONGOING},
        S.PREPARE_ABORT: {S.ONGOING, S.PREPARE_EPOCH_FENCE, S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
        S.COMPLETE_COMMIT: {S.PREPARE_COMMIT},
        S.COMPLETE_ABORT: {S.PREPARE_ABORT},
        S.DEAD: {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
        S.PREPARE_EPOCH_FENCE: {S.ONGOING},
    }
    for state, allowed in predecessors.items():
        assert {before for before, after in TRANSITIONS.items() if state in after} == allowed, state


def test_a_transition_outside_the_table_is_refused() -> None:
    world, _ = world_in("PrepareCommit")
    with pytest.raises(AssertionError):
        world.transaction.change(world.now, state=S.COMPLETE_ABORT)


# --- adding partitions: AddPartitionsToTxn, AddOffsetsToTxn, implicitly ---


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("version", [0, 2], ids=["asked for", "implicit"])
def test_partitions_are_added_unless_the_last_transaction_is_being_completed(state: str, version: int) -> None:
    """Spec: E5."""
    world, producer = world_in(state)
    before = len(world.log)
    code = world.add(producer, "t-1", version=version)
    if state.startswith("Prepare"):
        assert code is ErrorCode.CONCURRENT_TRANSACTIONS
        assert (world.state, len(world.log)) == (state, before)
    else:
        assert code is ErrorCode.NONE
        assert world.state == "Ongoing"
        expected = places("t-0", "t-1") if state == "Ongoing" else places("t-1")
        assert world.transaction.partitions == frozenset(expected)


@pytest.mark.parametrize("state", STATES)
def test_only_the_current_producer_adds_partitions(state: str) -> None:
    world, (producer_id, epoch, *_) = world_in(state)
    before = len(world.log)
    for wrong_epoch in (epoch - 1, epoch + 1):
        assert world.add(ProducerIdAndEpoch(producer_id, wrong_epoch), "t-1") is ErrorCode.PRODUCER_FENCED
    assert world.add(ProducerIdAndEpoch(producer_id + 1, epoch), "t-1") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert len(world.log) == before


def test_an_unknown_transactional_id_has_no_producer() -> None:
    world = TransactionWorld()
    unknown = ProducerIdAndEpoch(1, 0)
    assert world.add(unknown, "t-0") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.verify(unknown, "t-0") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.commit(unknown, OLD) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.commit(unknown, NEW) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.log == []


def test_adding_a_partition_twice_writes_no_record() -> None:
    world, producer = world_in("Ongoing")
    before = len(world.log)
    assert world.add(producer, "t-0") is ErrorCode.NONE
    assert len(world.log) == before
    assert world.add(producer, "t-0", "t-1") is ErrorCode.NONE
    assert len(world.log) == before + 1


def test_the_timeout_starts_with_the_first_partition_only() -> None:
    """Spec: E5. The timer starts with the first."""
    world = TransactionWorld()
    producer = world.init()
    assert world.transaction.start_timestamp == -1
    world.wait(500)
    world.add(producer, "t-0")
    began = world.now
    world.wait(500)
    world.add(producer, "t-1")
    assert world.transaction.start_timestamp == began
    assert world.transaction.last_update_timestamp == world.now


# --- verification (KIP-890) ---


@pytest.mark.parametrize("state", STATES)
def test_only_partitions_of_the_open_transaction_are_verified(state: str) -> None:
    """Spec: E11."""
    world, producer = world_in(state)
    found = world.verify(producer, "t-0", "t-1")
    (added, other) = places("t-0", "t-1")
    if state.startswith("Prepare"):
        assert found is ErrorCode.CONCURRENT_TRANSACTIONS
    else:
        known = ErrorCode.NONE if state == "Ongoing" else ErrorCode.TRANSACTION_ABORTABLE
        assert found == {added: known, other: ErrorCode.TRANSACTION_ABORTABLE}


@pytest.mark.parametrize("state", STATES)
def test_a_fenced_producer_is_not_verified(state: str) -> None:
    world, (producer_id, epoch, *_) = world_in(state)
    assert world.verify(ProducerIdAndEpoch(producer_id, epoch - 1), "t-0") is ErrorCode.PRODUCER_FENCED
    assert world.verify(ProducerIdAndEpoch(producer_id, epoch + 1), "t-0") is ErrorCode.PRODUCER_FENCED
    assert world.verify(ProducerIdAndEpoch(7, epoch), "t-0") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- EndTxn up to v4 ---


@pytest.mark.parametrize(
    ("state", "commit", "answer"),
    [
        ("Empty", True, ErrorCode.INVALID_TXN_STATE),
        ("Empty", False, ErrorCode.INVALID_TXN_STATE),
        ("Ongoing", True, None),
        ("Ongoing", False, None),
        ("PrepareCommit", True, ErrorCode.CONCURRENT_TRANSACTIONS),
        ("PrepareCommit", False, ErrorCode.INVALID_TXN_STATE),
        ("PrepareAbort", True, ErrorCode.INVALID_TXN_STATE),
        ("PrepareAbort", False, ErrorCode.CONCURRENT_TRANSACTIONS),
        ("CompleteCommit", True, None),
        ("CompleteCommit", False, ErrorCode.INVALID_TXN_STATE),
        ("CompleteAbort", True, ErrorCode.INVALID_TXN_STATE),
        ("CompleteAbort", False, None),
    ],
)
def test_end_txn_before_v5_in_every_state(state: str, commit: bool, answer: ErrorCode | None) -> None:
    """Spec: R4. EndTxn during completion, retried at the same epoch, and without a transaction."""
    world, producer = world_in(state)
    before = len(world.log)
    found = world.end(producer, commit=commit, version=OLD)
    assert found == (producer if answer is None else answer)
    if state == "Ongoing":
        assert world.state == ("PrepareCommit" if commit else "PrepareAbort")
        assert world.transaction.producer_epoch == producer.producer_epoch, "the epoch is unchanged"
        assert len(world.markers) == 1
    else:
        assert (world.state, len(world.log)) == (state, before), "nothing changed"


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("state", ["Empty", "Ongoing"])
def test_only_the_current_producer_ends_the_transaction(state: str, version: int) -> None:
    world, (producer_id, epoch, *_) = world_in(state, version)
    for commit in (True, False):
        for other in (epoch - 1, epoch + 1, epoch + 7):
            stranger = ProducerIdAndEpoch(producer_id, other)
            assert world.end(stranger, commit=commit, version=version) is ErrorCode.PRODUCER_FENCED
        stranger = ProducerIdAndEpoch(producer_id + 1, epoch)
        assert world.end(stranger, commit=commit, version=version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.state == state


# --- EndTxn from v5 on (KIP-890) ---


@pytest.mark.parametrize("commit", [True, False])
def test_end_txn_from_v5_bumps_the_epoch_with_the_decision(commit: bool) -> None:
    """Spec: E11."""
    world, producer = world_in("Ongoing", NEW)
    following = world.end(producer, commit=commit)
    assert following == ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + 1)
    assert world.state == ("PrepareCommit" if commit else "PrepareAbort")
    (marker,) = world.markers
    assert (marker.producer_epoch, marker.commit) == (following.producer_epoch, commit)
    assert marker.transaction_version == 2
    world.write_markers()
    assert world.state == ("CompleteCommit" if commit else "CompleteAbort")
    assert (world.transaction.producer_id, world.transaction.producer_epoch) == following[:2]


RETRIES = [
    ("PrepareCommit", True, ErrorCode.CONCURRENT_TRANSACTIONS),
    ("PrepareCommit", False, ErrorCode.INVALID_TXN_STATE),
    ("PrepareAbort", False, ErrorCode.CONCURRENT_TRANSACTIONS),
    ("PrepareAbort", True, ErrorCode.INVALID_TXN_STATE),
    ("CompleteCommit", True, None),
    ("CompleteCommit", False, ErrorCode.INVALID_TXN_STATE),
    ("CompleteAbort", False, None),
    ("CompleteAbort", True, ErrorCode.INVALID_TXN_STATE),
]


@pytest.mark.parametrize(("state", "commit", "answer"), RETRIES)
def test_a_retried_end_txn_is_recognized_by_its_epoch(state: str, commit: bool, answer: ErrorCode | None) -> None:
    """Spec: R4. The answer was lost, and the same request is retried with its old epoch."""
    world, following = world_in(state, NEW)
    before = len(world.log)
    earlier = ProducerIdAndEpoch(following.producer_id, following.producer_epoch - 1)
    found = world.end(earlier, commit=commit)
    assert found == (following if answer is None else answer)
    assert (world.state, len(world.log)) == (state, before)


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_the_next_epoch_cannot_end_anything_while_the_last_transaction_is_being_completed(state: str) -> None:
    world, following = world_in(state, NEW)
    for commit in (True, False):
        assert world.end(following, commit=commit) is ErrorCode.PRODUCER_FENCED
        stranger = ProducerIdAndEpoch(following.producer_id + 1, following.producer_epoch)
        assert world.end(stranger, commit=commit) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_from_v5_an_empty_transaction_can_be_aborted_but_not_committed(state: str) -> None:
    """Spec: R4. Commit of an empty transaction."""
    world, producer = world_in(state, NEW)
    assert world.commit(producer) is ErrorCode.INVALID_TXN_STATE
    assert world.state == state
    following = world.abort(producer)
    assert following == ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + 1)
    assert world.state == "PrepareAbort"
    world.write_markers()
    assert world.state == "CompleteAbort"
    assert world.abort(producer) == following, "and it can be retried"


@pytest.mark.parametrize("state", ["CompleteCommit", "CompleteAbort"])
def test_older_epochs_are_fenced(state: str) -> None:
    world, following = world_in(state, NEW)
    for epoch in (following.producer_epoch - 2, following.producer_epoch + 1):
        for commit in (True, False):
            stranger = ProducerIdAndEpoch(following.producer_id, epoch)
            assert world.end(stranger, commit=commit) is ErrorCode.PRODUCER_FENCED


def test_batches_of_the_new_protocol_can_be_ended_by_the_old() -> None:
    """A marker that claims an epoch bump it does not carry would be refused and leave a hanging transaction."""
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, "t-0", version=2)
    assert world.commit(producer, OLD) == producer
    (marker,) = world.markers
    assert (marker.producer_epoch, marker.transaction_version) == (producer.producer_epoch, 0)


def test_many_transactions_in_a_row() -> None:
    for version in (OLD, NEW):
        world = TransactionWorld()
        producer = world.init()
        for number in range(20):
            assert world.add(producer, f"t-{number % 3}", version=2 if version == NEW else 0) is ErrorCode.NONE
            producer = world.end(producer, commit=number % 2 == 0, version=version)
            world.write_markers()
        assert producer.producer_epoch == (20 if version == NEW else 0)
        assert world.states_in_log[-3:] == ["Ongoing", "PrepareAbort", "CompleteAbort"]


# --- completion ---


def test_the_transaction_completes_after_the_last_marker() -> None:
    """Spec: E6. PREPARE, then the markers, then COMPLETE."""
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, "t-0", "t-1", "u-0")
    world.commit(producer)
    world.write_markers("t-1")
    assert world.state == "PrepareCommit"
    assert world.shard.unwritten_markers("x") == set(places("t-0", "u-0"))
    world.write_markers("t-0")
    assert world.state == "PrepareCommit"
    world.write_markers("u-0")
    assert world.state == "CompleteCommit"
    assert world.transaction.partitions == frozenset()
    assert world.shard.unwritten_markers("x") == set()
    assert world.states_in_log == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]


def test_a_late_report_of_an_earlier_transaction_completes_nothing() -> None:
    """A marker retried after the next transaction was decided must not count for it, nor be written again."""
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, "t-0")
    producer = world.commit(producer)
    (earlier,) = world.markers
    world.write_markers()
    world.add(producer, "t-0")
    assert world.shard.still_unwritten(earlier, places("t-0")) == []
    world.abort(producer)
    assert world.shard.still_unwritten(earlier, places("t-0")) == []
    assert not world.shard.markers_written(earlier, places("t-0"), world.now).records
    assert world.state == "PrepareAbort"


def test_with_the_old_protocol_a_late_marker_is_not_written_into_the_next_transaction() -> None:
    """The epoch is the same there, so the state must show that the transaction is over."""
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, "t-0")
    world.commit(producer, OLD)
    (earlier,) = world.markers
    world.write_markers()
    world.add(producer, "t-0")
    assert world.shard.still_unwritten(earlier, places("t-0")) == []


# --- records that cannot be appended ---


def test_a_decision_that_cannot_be_stored_does_not_count() -> None:
    world, producer = world_in("Ongoing", NEW)
    world.appends_fail = True
    assert world.commit(producer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (world.state, world.markers) == ("Ongoing", [])
    world.appends_fail = False
    assert world.abort(producer) == ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + 1)


def test_a_completion_that_cannot_be_stored_is_retried() -> None:
    world, _ = world_in("PrepareCommit")
    world.appends_fail = True
    (decided,) = world.markers
    world.write_markers()
    assert world.state == "PrepareCommit"
    world.appends_fail = False
    effects = world.shard.markers_written(decided, places("t-0"), world.now)
    assert len(effects.records) == 1


def test_a_start_that_could_not_be_stored_leaves_no_trace() -> None:
    """A zombie's epoch is not mistaken for that of a retried request either."""
    world, producer = world_in("Empty")
    world.appends_fail = True
    assert world.init(expected=producer[:2]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.appends_fail = False
    assert world.init().producer_epoch == producer.producer_epoch + 1
    assert world.init(expected=producer[:2]) is ErrorCode.PRODUCER_FENCED
