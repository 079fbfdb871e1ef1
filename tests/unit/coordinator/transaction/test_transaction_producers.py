"""Owners of a transactional id: InitProducerId in every state, fencing, lost answers, epoch exhaustion, timeouts,
expiry, failover. Spec: E3, E6."""

from typing import Any

import pytest

from ottla.coordinator.transaction.transaction import (
    LAST_CLIENT_EPOCH,
    ProducerIdAndEpoch,
    Transaction,
    TransactionState,
)
from ottla.errors import ErrorCode
from ottla.protocol.wire_values import PRODUCER_EPOCH_MAX
from tests.support.worlds.transaction_world import NEW, OLD, TIMEOUT_MS, TransactionWorld, places

S = TransactionState
IDLE_STATES = [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT]


def stored(state: TransactionState = S.EMPTY, *, epoch: int = 5, producer_id: int = 7, **more: object) -> Transaction:
    partitions = frozenset(places("t-0")) if state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT) else frozenset()
    found = Transaction("x", producer_id, epoch, TIMEOUT_MS, state, partitions, -1, 1_700_000_000_000)
    return found._replace(**more)  # type: ignore[arg-type]


def world_with(transaction: Transaction, **settings: Any) -> TransactionWorld:
    world = TransactionWorld(**settings)
    world.put(transaction)
    return world


# --- the first time ---


def test_a_new_id_starts_at_epoch_zero_with_an_empty_transaction() -> None:
    world = TransactionWorld()
    producer = world.init()
    assert producer.producer_epoch == 0
    assert producer.ongoing_producer_id == -1
    assert world.states_in_log == ["Empty"], "stored before the answer"
    assert world.transaction.timeout_ms == TIMEOUT_MS


def test_a_new_id_ignores_the_expected_id_and_epoch() -> None:
    """Its record expired, and the producer continues with a new producer id."""
    world = TransactionWorld()
    assert world.init(expected=(3, 9)).producer_epoch == 0


def test_transactional_ids_are_independent() -> None:
    world = TransactionWorld()
    first, second = world.init("a"), world.init("b")
    assert first.producer_id != second.producer_id
    assert world.init("a").producer_epoch == 1
    assert world.shard.transactions["b"].producer_epoch == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    """Spec: R4. Transaction timeout above the maximum."""
    world = TransactionWorld()
    assert world.init(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert world.log == []
    assert world.init(timeout_ms=900_000).producer_epoch == 0


# --- InitProducerId in every state ---


@pytest.mark.parametrize("state", IDLE_STATES)
def test_a_new_instance_gets_the_next_epoch_and_its_own_timeout(state: TransactionState) -> None:
    world = world_with(stored(state))
    assert world.init(timeout_ms=1234) == ProducerIdAndEpoch(7, 6)
    assert world.transaction.state is S.EMPTY
    assert (world.transaction.timeout_ms, world.transaction.start_timestamp) == (1234, -1)


@pytest.mark.parametrize("state", IDLE_STATES)
def test_the_old_instance_is_fenced_by_the_new(state: TransactionState) -> None:
    """Spec: E3. Older producers get ProducerFenced."""
    world = world_with(stored(state))
    world.init()
    old = ProducerIdAndEpoch(7, 5)
    assert world.add(old, "t-0") is ErrorCode.PRODUCER_FENCED
    assert world.commit(old, OLD) is ErrorCode.PRODUCER_FENCED
    assert world.abort(old, NEW) is ErrorCode.PRODUCER_FENCED
    assert world.init(expected=(7, 5)) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("state", IDLE_STATES)
def test_a_producer_that_names_its_epoch_moves_on_by_one(state: TransactionState) -> None:
    """KIP-360."""
    world = world_with(stored(state))
    assert world.init(expected=(7, 5)) == ProducerIdAndEpoch(7, 6)


@pytest.mark.parametrize("expected", [(7, 4), (7, 6), (8, 5), (8, 0), (7, 32_766)])
@pytest.mark.parametrize("state", IDLE_STATES)
def test_a_producer_that_names_another_epoch_is_fenced(state: TransactionState, expected: tuple[int, int]) -> None:
    world = world_with(stored(state))
    assert world.init(expected=expected) is ErrorCode.PRODUCER_FENCED
    assert world.transaction.producer_epoch == 5


def test_a_retried_init_gets_the_same_answer() -> None:
    """The first answer was lost."""
    world = world_with(stored())
    first = world.init(expected=(7, 5))
    assert world.init(expected=(7, 5)) == first == ProducerIdAndEpoch(7, 6)
    assert world.init(expected=(7, 5)) == first
    assert world.init(expected=(7, 6)) == ProducerIdAndEpoch(7, 7)
    assert world.init(expected=(7, 5)) is ErrorCode.PRODUCER_FENCED, "two epochs ago"


def test_a_retry_is_fenced_once_another_producer_has_started() -> None:
    world = world_with(stored())
    world.init(expected=(7, 5))
    world.init()
    assert world.init(expected=(7, 5)) is ErrorCode.PRODUCER_FENCED
    assert world.init(expected=(7, 6)) is ErrorCode.PRODUCER_FENCED


def test_a_retried_init_across_a_failover_is_fenced() -> None:
    """The epoch before the last is not stored, as in Kafka."""
    world = world_with(stored())
    world.init(expected=(7, 5))
    world.fail_over()
    assert world.init(expected=(7, 5)) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
@pytest.mark.parametrize("expected", [None, (7, 5)])
def test_init_must_retry_while_a_transaction_is_being_completed(
    state: TransactionState, expected: tuple[int, int] | None
) -> None:
    world = world_with(stored(state))
    assert world.init(expected=expected) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.transaction.state is state


@pytest.mark.parametrize("expected", [None, (7, 5)])
def test_an_open_transaction_is_aborted_first(expected: tuple[int, int] | None) -> None:
    """Spec: E3. The transaction of the previous instance is aborted first."""
    world = world_with(stored(S.ONGOING))
    assert world.init(expected=expected) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert (world.state, world.transaction.producer_epoch) == ("PrepareAbort", 6), "fenced with the decision"
    (marker,) = world.markers
    assert (marker.producer_epoch, marker.commit) == (6, False)
    assert world.init() is ErrorCode.CONCURRENT_TRANSACTIONS, "until the markers are written"
    world.write_markers()
    assert world.init() == ProducerIdAndEpoch(7, 7), "no producer ever had the fencing epoch"


@pytest.mark.parametrize("expected", [(8, 5), (7, 4), (7, 6), (6, LAST_CLIENT_EPOCH)])
def test_an_open_transaction_is_not_touched_by_unknown_or_stale_producers(expected: tuple[int, int]) -> None:
    """Clients that were fenced may try to bump the epoch they had (KIP-360). Kafka lets that abort the transaction of
    their innocent successor; here a client that names an epoch must name the current one."""
    world = world_with(stored(S.ONGOING, previous_producer_id=6))
    assert world.init(expected=expected) is ErrorCode.PRODUCER_FENCED
    assert world.state == "Ongoing"


# --- epoch exhaustion ---


@pytest.mark.parametrize("expected", [None, (7, LAST_CLIENT_EPOCH)])
@pytest.mark.parametrize("state", IDLE_STATES)
def test_after_the_last_epoch_init_returns_a_new_producer_id(
    state: TransactionState, expected: tuple[int, int] | None
) -> None:
    world = world_with(stored(state, epoch=LAST_CLIENT_EPOCH))
    producer = world.init(expected=expected)
    assert producer.producer_id != 7
    assert producer.producer_epoch == 0
    assert world.transaction.previous_producer_id == 7


def test_the_last_but_one_epoch_is_not_the_last() -> None:
    world = world_with(stored(epoch=LAST_CLIENT_EPOCH - 1))
    assert world.init() == ProducerIdAndEpoch(7, LAST_CLIENT_EPOCH)


def test_the_request_that_used_the_last_epoch_can_be_retried() -> None:
    world = world_with(stored(epoch=LAST_CLIENT_EPOCH))
    producer = world.init(expected=(7, LAST_CLIENT_EPOCH))
    assert world.init(expected=(7, LAST_CLIENT_EPOCH)) == producer
    assert world.init(expected=(7, 12)) is ErrorCode.PRODUCER_FENCED


def test_fencing_may_use_the_epoch_reserved_for_it() -> None:
    world = world_with(stored(S.ONGOING, epoch=LAST_CLIENT_EPOCH))
    assert world.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.transaction.producer_epoch == PRODUCER_EPOCH_MAX
    world.write_markers()
    assert world.transaction.producer_epoch == PRODUCER_EPOCH_MAX
    producer = world.init()
    assert producer.producer_id != 7
    assert producer.producer_epoch == 0


def test_a_producer_whose_last_epoch_was_fenced_gets_no_epoch_beyond() -> None:
    """32767 is never assigned to a client."""
    world = world_with(stored(S.ONGOING, epoch=LAST_CLIENT_EPOCH, start_timestamp=1_700_000_000_000))
    world.wait(TIMEOUT_MS + 20_000)
    world.write_markers()
    assert (world.state, world.transaction.producer_epoch) == ("CompleteAbort", PRODUCER_EPOCH_MAX)
    assert world.abort(ProducerIdAndEpoch(7, LAST_CLIENT_EPOCH)) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_ends_with_the_last_epoch_moves_to_a_new_producer_id(commit: bool) -> None:
    """Spec: E11. Epoch overflow of KIP-890."""
    world = world_with(stored(S.ONGOING, epoch=LAST_CLIENT_EPOCH))
    last = ProducerIdAndEpoch(7, LAST_CLIENT_EPOCH)
    following = world.end(last, commit=commit)
    assert following.producer_id != 7
    assert following.producer_epoch == 0
    (marker,) = world.markers
    assert (marker.producer_id, marker.producer_epoch) == (7, PRODUCER_EPOCH_MAX), "the markers fence the old id"
    assert world.transaction.next_producer_id == following.producer_id
    assert world.end(last, commit=commit) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.fail_over()
    world.write_markers()
    assert (world.transaction.producer_id, world.transaction.producer_epoch) == following[:2]
    assert world.transaction.previous_producer_id == 7
    assert world.end(last, commit=commit) == following, "the answer was lost: the retry gets the same"
    assert world.end(last, commit=not commit) is ErrorCode.INVALID_TXN_STATE
    assert world.add(following, "t-0") is ErrorCode.NONE
    assert world.end(last, commit=commit) is ErrorCode.PRODUCER_FENCED


def test_end_txn_before_v5_keeps_the_last_epoch() -> None:
    world = world_with(stored(S.ONGOING, epoch=LAST_CLIENT_EPOCH))
    last = ProducerIdAndEpoch(7, LAST_CLIENT_EPOCH)
    assert world.commit(last, OLD) == last
    world.write_markers()
    assert world.transaction.producer_epoch == LAST_CLIENT_EPOCH


def test_transactions_continue_past_the_last_epoch() -> None:
    world = world_with(stored(epoch=LAST_CLIENT_EPOCH - 10))
    producer = ProducerIdAndEpoch(7, LAST_CLIENT_EPOCH - 10)
    seen = [producer]
    for _ in range(20):
        assert world.add(producer, "t-0", version=2) is ErrorCode.NONE
        producer = world.commit(producer)
        world.write_markers()
        seen.append(producer)
    assert [each.producer_epoch for each in seen] == [*range(LAST_CLIENT_EPOCH - 10, PRODUCER_EPOCH_MAX), *range(10)]
    assert len({each.producer_id for each in seen}) == 2


# --- timeouts ---


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced() -> None:
    """Spec: E3. The coordinator aborts it after its timeout."""
    world = TransactionWorld()
    producer = world.init(timeout_ms=15_000)
    world.add(producer, "t-0")
    world.wait(14_000)
    assert world.state == "Ongoing"
    world.wait(10_000)
    assert (world.state, world.transaction.producer_epoch) == ("PrepareAbort", 1)
    assert world.add(producer, "t-1") is ErrorCode.PRODUCER_FENCED
    assert world.commit(producer, OLD) is ErrorCode.PRODUCER_FENCED
    world.write_markers()
    assert world.state == "CompleteAbort"


def test_after_a_timeout_the_new_protocol_lets_the_producer_continue() -> None:
    """Its commit fails, it aborts, and it gets the epoch the coordinator chose."""
    world = TransactionWorld()
    producer = world.init(timeout_ms=1_000)
    world.add(producer, "t-0", version=2)
    world.wait(20_000)
    assert world.commit(producer) is ErrorCode.INVALID_TXN_STATE
    assert world.abort(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.write_markers()
    following = world.abort(producer)
    assert following == ProducerIdAndEpoch(producer.producer_id, 1)
    assert world.add(following, "t-0", version=2) is ErrorCode.NONE


def test_idle_ids_do_not_time_out() -> None:
    world = TransactionWorld()
    producer = world.init(timeout_ms=1_000)
    world.wait(3_600_000)
    assert world.state == "Empty"
    assert world.add(producer, "t-0") is ErrorCode.NONE


def test_the_transaction_timeout_continues_through_a_failover() -> None:
    world = TransactionWorld()
    producer = world.init(timeout_ms=60_000)
    world.add(producer, "t-0")
    world.wait(50_000)
    world.fail_over()
    world.wait(5_000)
    assert world.state == "Ongoing"
    world.wait(16_000)
    assert world.state == "PrepareAbort"


def test_an_abort_that_could_not_be_stored_is_retried() -> None:
    world = TransactionWorld()
    world.add(world.init(timeout_ms=1_000), "t-0")
    world.appends_fail = True
    world.wait(30_000)
    assert world.state == "Ongoing"
    world.appends_fail = False
    world.wait(11_000)
    assert world.state == "PrepareAbort"


# --- expiry ---


@pytest.mark.parametrize("ending", [None, True, False])
def test_an_unused_transactional_id_ends_in_a_tombstone(ending: bool | None) -> None:
    """Spec: E6. After transactional.id.expiration.ms."""
    world = TransactionWorld()
    producer = world.init()
    if ending is not None:
        world.add(producer, "t-0")
        producer = world.end(producer, commit=ending)
        world.write_markers()
    world.wait(604_800_000 - 1)
    assert world.state != "none"
    world.wait(3_600_001)
    assert world.state == "none"
    assert world.log[-1].value is None
    assert world.add(producer, "t-0") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    world.fail_over()
    assert world.state == "none"
    assert world.init(expected=producer[:2]).producer_epoch == 0


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_an_undecided_or_unfinished_transaction_never_expires(state: TransactionState) -> None:
    world = world_with(stored(state))
    world.wait(10 * 604_800_000)
    assert world.transaction.state is state


def test_using_a_transactional_id_renews_it() -> None:
    world = TransactionWorld()
    producer = world.init()
    for _ in range(5):
        world.wait(500_000_000)
        world.add(producer, "t-0")
        producer = world.commit(producer)
        world.write_markers()
    assert world.state == "CompleteCommit"


# --- failover in every state. Spec: E6. ---


def test_a_failover_changes_nothing_that_was_stored() -> None:
    for version in (OLD, NEW):
        world = TransactionWorld()
        producer = world.init()
        for step in ("add", "commit", "write markers"):
            if step == "add":
                world.add(producer, "t-0", "t-1")
            elif step == "commit":
                world.commit(producer, version)
            else:
                world.write_markers()
            before = dict(world.shard.transactions)
            world.fail_over()
            assert world.shard.transactions == before
        assert world.state == "CompleteCommit"


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_decided_transaction_is_completed_by_the_next_coordinator(commit: bool, version: int) -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, "t-0", "t-1")
    following = world.end(producer, commit=commit, version=version)
    (before,) = world.markers
    world.write_markers("t-0")
    for _ in range(3):
        world.fail_over()
        assert world.markers == [before], "all are resent, as it is unknown which were written"
    world.write_markers()
    assert world.state == ("CompleteCommit" if commit else "CompleteAbort")
    assert world.add(following, "t-0") is ErrorCode.NONE


def test_no_markers_are_resent_for_open_or_completed_transactions() -> None:
    for state in (*IDLE_STATES, S.ONGOING):
        world = world_with(stored(state))
        world.fail_over()
        assert world.markers == []
        assert world.transaction.state is state


def test_filters_of_a_listing() -> None:
    world = TransactionWorld()
    for name in ("a-1", "a-2", "b-1"):
        producer = world.init(name)
        if name != "a-1":
            world.add(producer, "t-0", transactional_id=name)
        world.wait(1_000)

    def names(*filters: Any) -> list[str]:
        found = world.shard.find(*(*filters, world.now))
        return sorted(transaction.transactional_id for transaction in found)

    assert names(set(), set(), -1) == ["a-1", "a-2", "b-1"]
    assert names({"Ongoing"}, set(), -1) == ["a-2", "b-1"]
    assert names(set(), {world.shard.transactions["b-1"].producer_id}, -1) == ["b-1"]
    assert names({"Ongoing"}, set(), 1_500) == ["a-2"]
    world.add(world.init("new"), "t-0", transactional_id="new")
    assert names({"Ongoing"}, set(), 0) == ["a-2", "b-1"], "0 is a duration: the new one has just started"
