"""TxnOffsetCommit: offsets are pending until their transaction ends. Spec: E5, E9."""

import pytest

from ottla.errors import ErrorCode
from tests.support.worlds.group_world import GroupWorld

# --- pending, visible, dropped ------------------------------------------------------------------------------


def test_an_offset_committed_in_a_transaction_is_not_visible_before_it_ends() -> None:
    group = GroupWorld()
    group.commit(5)
    assert group.commit_in_transaction(10) == ErrorCode.NONE
    assert group.fetch() == (5, ErrorCode.NONE)
    group.end_transaction(7, commit=True)
    assert group.fetch() == (10, ErrorCode.NONE)


def test_an_aborted_transaction_leaves_the_offset_as_it_was() -> None:
    group = GroupWorld()
    group.commit(5)
    group.commit_in_transaction(10)
    group.end_transaction(7, commit=False)
    assert group.fetch(stable=True) == (5, ErrorCode.NONE)


def test_a_fetch_of_stable_offsets_must_retry_while_an_offset_is_pending() -> None:
    """Spec: R4. UNSTABLE_OFFSET_COMMIT."""
    group = GroupWorld()
    group.commit(5)
    group.commit_in_transaction(10)
    assert group.fetch(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert group.fetch(stable=True, partition=1) == (-1, ErrorCode.NONE), "only that partition"
    assert group.fetch(stable=True, group="other") == (-1, ErrorCode.NONE), "only that group"
    group.end_transaction(7, commit=True)
    assert group.fetch(stable=True) == (10, ErrorCode.NONE)


def test_a_partition_is_unstable_until_the_last_transaction_on_it_has_ended() -> None:
    group = GroupWorld()
    group.commit_in_transaction(10, producer_id=7)
    group.commit_in_transaction(11, producer_id=8)
    group.end_transaction(7, commit=True)
    assert group.fetch(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    group.end_transaction(8, commit=False)
    assert group.fetch(stable=True) == (10, ErrorCode.NONE)


def test_a_later_plain_commit_wins_over_an_earlier_transactional_one() -> None:
    """The order in the log decides, not the order in which the offsets become visible."""
    group = GroupWorld()
    group.commit_in_transaction(10)
    group.commit(3)
    group.end_transaction(7, commit=True)
    assert group.committed() == 3
    group.fail_over()
    assert group.committed() == 3


def test_a_later_transactional_commit_wins_over_an_earlier_plain_one() -> None:
    group = GroupWorld()
    group.commit(30)
    group.commit_in_transaction(10)
    group.end_transaction(7, commit=True)
    assert group.committed() == 10


def test_of_two_transactions_the_offset_later_in_the_log_wins() -> None:
    group = GroupWorld()
    group.commit_in_transaction(10, producer_id=7)
    group.commit_in_transaction(20, producer_id=8)
    group.end_transaction(8, commit=True)
    group.end_transaction(7, commit=True)
    assert group.committed() == 20


def test_the_last_commit_of_a_transaction_counts() -> None:
    group = GroupWorld()
    for offset in (10, 11, 12):
        group.commit_in_transaction(offset)
    group.end_transaction(7, commit=True)
    assert group.committed() == 12


def test_a_marker_of_an_unknown_transaction_changes_nothing() -> None:
    group = GroupWorld()
    group.commit(5)
    group.end_transaction(99, commit=True)
    group.end_transaction(99, commit=False)
    assert group.committed() == 5


def test_an_ended_transaction_can_be_followed_by_another_of_the_same_producer() -> None:
    group = GroupWorld()
    for offset, commit in ((10, True), (11, False), (12, True)):
        group.commit_in_transaction(offset)
        group.end_transaction(7, commit=commit)
    assert group.committed() == 12


def test_pending_offsets_survive_a_failover() -> None:
    group = GroupWorld()
    group.commit_in_transaction(10)
    group.fail_over()
    assert group.fetch(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    group.end_transaction(7, commit=True)
    group.fail_over()
    assert group.fetch(stable=True) == (10, ErrorCode.NONE)


def test_deleting_an_offset_drops_the_pending_one_too() -> None:
    group = GroupWorld()
    group.commit(5)
    group.commit_in_transaction(10, producer_id=7)
    group.commit_in_transaction(11, producer_id=8)
    group.commit_in_transaction(12, producer_id=8, partition=1)
    assert group.delete_offset() == ErrorCode.NONE
    assert group.fetch(stable=True) == (-1, ErrorCode.NONE)
    group.end_transaction(7, commit=True)
    group.end_transaction(8, commit=True)
    assert (group.committed(), group.committed(partition=1)) == (None, 12)


def test_a_pending_offset_alone_can_be_deleted() -> None:
    group = GroupWorld()
    group.commit_in_transaction(10)
    assert group.delete_offset() == ErrorCode.NONE
    group.end_transaction(7, commit=True)
    assert group.committed() is None


def test_transactions_leave_nothing_behind_in_memory() -> None:
    group = GroupWorld()
    for number in range(20):
        group.commit_in_transaction(number, producer_id=number, partition=number % 3)
    for number in range(20):
        group.end_transaction(number, commit=bool(number % 2))
    assert not [key for key in group.shard.hard_state() if key.startswith("pending")]
    assert not group.shard.offsets.has_pending("g")


# --- fencing ------------------------------------------------------------------------------------------------


def test_a_transactional_commit_to_an_unknown_group_creates_a_simple_group() -> None:
    group = GroupWorld()
    assert group.commit_in_transaction(10) == ErrorCode.NONE
    assert group.state() == "Empty"


@pytest.mark.parametrize(("version", "code"), [(5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_generation_without_a_group_is_refused(version: int, code: ErrorCode) -> None:
    group = GroupWorld()
    assert group.commit_in_transaction(10, generation=1, member_id="ann", version=version) == code


def test_a_stale_member_is_fenced_by_its_generation() -> None:
    """Spec: E9. Fencing by generation (KIP-447)."""
    group = GroupWorld()
    ids = group.settle("ann")
    commit = group.commit_in_transaction
    assert commit(1, member_id=ids["ann"], generation=1) == ErrorCode.NONE
    assert commit(1, member_id=ids["ann"], generation=0) == ErrorCode.ILLEGAL_GENERATION
    assert commit(1, member_id="stranger", generation=1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(1, member_id=ids["ann"]) == ErrorCode.ILLEGAL_GENERATION
    assert commit(1, generation=1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_transactional_commit_without_a_member_is_accepted() -> None:
    """Versions before 3 have no member field. The producer epoch fences the transaction."""
    group = GroupWorld()
    group.settle("ann")
    for version in (0, 2, 3, 5):
        assert group.commit_in_transaction(1, version=version) == ErrorCode.NONE


def test_an_empty_group_does_not_check_the_member() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    group.leave(ids["ann"])
    assert group.commit_in_transaction(1, member_id="someone") == ErrorCode.NONE
    assert group.commit_in_transaction(1, member_id="someone", generation=2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_transactional_commit_is_accepted_in_every_group_state() -> None:
    """Unlike OffsetCommit, which is refused in CompletingRebalance."""
    group = GroupWorld()
    ids = group.settle("ann")
    group.join(ids["ann"])
    assert group.state() == "CompletingRebalance"
    assert group.commit_in_transaction(1, member_id=ids["ann"], generation=2) == ErrorCode.NONE


def test_transactional_commits_have_the_same_limits_as_plain_ones() -> None:
    group = GroupWorld(offset_metadata_max_bytes=3)
    assert group.commit_in_transaction(1, metadata="four") == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert group.commit_in_transaction(1, topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert group.commit_in_transaction(1, topic="nowhere", version=6) == ErrorCode.UNKNOWN_TOPIC_ID
    assert group.commit_in_transaction(1, partition=3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert group.commit_in_transaction(1, version=6) == ErrorCode.NONE
    assert len(group.log) == 1


def test_offset_records_belong_to_the_producers_transaction() -> None:
    group = GroupWorld()
    group.commit_in_transaction(1, producer_id=42, producer_epoch=3)
    (record,) = group.log
    assert (record.producer_id, record.producer_epoch) == (42, 3)
