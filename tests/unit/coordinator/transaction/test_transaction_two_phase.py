"""Two-phase commit (KIP-939): an external coordinator decides, and a prepared transaction outlives its producer.

Spec: E11.
"""

import pytest

from ottla.coordinator.transaction.transaction import LAST_CLIENT_EPOCH, ProducerIdAndEpoch
from ottla.errors import ErrorCode
from ottla.protocol.wire_values import NO_TIMEOUT_MS
from tests.support.worlds.transaction_world import NEW, OLD, TransactionWorld, places


def prepared() -> tuple[TransactionWorld, ProducerIdAndEpoch]:
    """A producer that flushed everything, passed its id and epoch to the external coordinator, and died."""
    world = TransactionWorld(transaction_two_phase_commit_enable=True)
    producer = world.init(two_phase=True)
    world.add(producer, "t-0", "t-1", version=2)
    return world, producer


def test_two_phase_commit_must_be_enabled() -> None:
    world = TransactionWorld()
    assert world.init(two_phase=True) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert world.log == []


def test_keeping_the_prepared_transaction_requires_two_phase_commit() -> None:
    world = TransactionWorld(transaction_two_phase_commit_enable=True)
    assert world.init(keep_prepared=True) is ErrorCode.INVALID_REQUEST
    assert world.log == []


def test_a_two_phase_transaction_never_times_out() -> None:
    world, producer = prepared()
    assert world.transaction.timeout_ms == NO_TIMEOUT_MS
    world.wait(365 * 86_400_000)
    assert world.state == "Ongoing"
    world.fail_over()
    world.wait(365 * 86_400_000)
    assert world.commit(producer).producer_epoch == producer.producer_epoch + 1


def test_the_requested_transaction_timeout_is_ignored() -> None:
    world = TransactionWorld(transaction_two_phase_commit_enable=True)
    assert world.init(two_phase=True, timeout_ms=-1).producer_epoch == 0


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("commit", [True, False])
def test_any_client_with_the_producer_id_and_epoch_can_end_the_transaction(commit: bool, version: int) -> None:
    """From any connection, and after a failover."""
    world, producer = prepared()
    world.fail_over()
    stranger = ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + 1)
    assert world.end(stranger, commit=commit, version=version) is ErrorCode.PRODUCER_FENCED
    assert isinstance(world.end(producer, commit=commit, version=version), ProducerIdAndEpoch)
    world.write_markers()
    assert world.state == ("CompleteCommit" if commit else "CompleteAbort")


def test_a_new_instance_finds_the_prepared_transaction() -> None:
    world, old = prepared()
    new = world.init(two_phase=True, keep_prepared=True)
    assert (new.ongoing_producer_id, new.ongoing_producer_epoch) == old[:2]
    assert new[:2] == (old.producer_id, old.producer_epoch + 1)
    assert world.state == "Ongoing"
    assert world.transaction.partitions == frozenset(places("t-0", "t-1"))
    assert world.transaction.producer_epoch == old.producer_epoch, "the transaction is unchanged"


def test_without_a_prepared_transaction_there_is_nothing_to_keep() -> None:
    world = TransactionWorld(transaction_two_phase_commit_enable=True)
    assert world.init(two_phase=True, keep_prepared=True).ongoing_producer_id == -1
    again = world.init(two_phase=True, keep_prepared=True)
    assert (again.producer_epoch, again.ongoing_producer_id, again.ongoing_producer_epoch) == (1, -1, -1)


def test_the_old_instance_is_fenced_after_a_takeover() -> None:
    world, old = prepared()
    world.init(two_phase=True, keep_prepared=True)
    assert world.add(old, "t-2") is ErrorCode.PRODUCER_FENCED
    assert world.verify(old, "t-2") is ErrorCode.PRODUCER_FENCED
    for version in (OLD, NEW):
        assert world.commit(old, version) is ErrorCode.PRODUCER_FENCED
        assert world.abort(old, version) is ErrorCode.PRODUCER_FENCED
    assert world.state == "Ongoing"


def test_the_new_instance_must_end_the_prepared_transaction_first() -> None:
    world, _ = prepared()
    new = world.init(two_phase=True, keep_prepared=True)
    assert world.add(new, "t-0") is ErrorCode.INVALID_TXN_STATE
    assert world.verify(new, "t-0") is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("moves", [False, True], ids=["stays", "moves"])
def test_the_new_instance_ends_the_transaction_with_its_own_epoch(commit: bool, version: int, moves: bool) -> None:
    world, old = prepared()
    new = world.init(two_phase=True, keep_prepared=True)
    if moves:
        world.fail_over()
    following = world.end(new, commit=commit, version=version)
    assert following.producer_epoch == new.producer_epoch + (1 if version == NEW else 0)
    (marker,) = world.markers
    assert marker.producer_epoch == following.producer_epoch > old.producer_epoch, "fences the old instance"
    assert marker.partitions == frozenset(places("t-0", "t-1"))
    assert world.end(new, commit=commit, version=version) is ErrorCode.CONCURRENT_TRANSACTIONS, "repeated"
    if moves:
        world.fail_over()
    world.write_markers()
    assert world.end(new, commit=commit, version=version) == following, "repeated later"
    assert world.add(following, "t-0") is ErrorCode.NONE
    assert world.add(old, "t-0") is ErrorCode.PRODUCER_FENCED


def test_several_instances_may_die_in_a_row() -> None:
    world, old = prepared()
    for number in range(1, 5):
        new = world.init(two_phase=True, keep_prepared=True)
        assert new.producer_epoch == old.producer_epoch + number
        assert (new.ongoing_producer_id, new.ongoing_producer_epoch) == old[:2]
        world.fail_over()
    assert world.commit(new).producer_epoch == new.producer_epoch + 1
    world.write_markers()
    assert world.state == "CompleteCommit"


def test_an_instance_that_does_not_keep_the_prepared_transaction_aborts_it() -> None:
    world, _ = prepared()
    world.init(two_phase=True, keep_prepared=True)
    assert world.init(two_phase=True) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.state == "PrepareAbort"
    (marker,) = world.markers
    assert marker.producer_epoch == 2, "above both instances"
    world.write_markers()
    assert world.init(two_phase=True).producer_epoch == 3


def test_no_takeover_while_the_transaction_is_being_completed() -> None:
    world, producer = prepared()
    world.commit(producer)
    assert world.init(two_phase=True, keep_prepared=True) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.write_markers()
    assert world.init(two_phase=True, keep_prepared=True).ongoing_producer_id == -1


def test_takeovers_are_refused_when_the_epochs_run_out() -> None:
    world, producer = prepared()
    world.put(world.transaction._replace(producer_epoch=LAST_CLIENT_EPOCH))
    assert world.init(two_phase=True, keep_prepared=True) is ErrorCode.INVALID_TXN_STATE
    last = ProducerIdAndEpoch(producer.producer_id, LAST_CLIENT_EPOCH)
    following = world.commit(last)
    assert following.producer_id != last.producer_id
    world.write_markers()
    assert world.state == "CompleteCommit"


def test_a_takeover_at_the_last_epoch_ends_with_a_new_producer_id() -> None:
    world, producer = prepared()
    world.put(world.transaction._replace(producer_epoch=LAST_CLIENT_EPOCH - 1))
    new = world.init(two_phase=True, keep_prepared=True)
    assert new.producer_epoch == LAST_CLIENT_EPOCH
    following = world.commit(new)
    assert following.producer_id != producer.producer_id
    assert following.producer_epoch == 0
    world.write_markers()
    assert (world.transaction.producer_id, world.transaction.producer_epoch) == following[:2]
    assert world.commit(new) == following


def test_a_prepared_transaction_does_not_expire() -> None:
    world, _ = prepared()
    world.wait(2 * 604_800_000)
    assert world.state == "Ongoing"
