"""OffsetCommit, OffsetFetch and OffsetDelete, one rule at a time. Spec: C2."""

import pytest

from ottla.coordinator.group import offsets as offsets_module
from ottla.errors import ErrorCode
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
from ottla.types import ZERO_UUID
from tests.support.worlds.group_world import GroupWorld, image_of, subscription, topic_id

# --- who may commit -----------------------------------------------------------------------------------------


def test_a_commit_to_an_unknown_group_creates_a_simple_group() -> None:
    """Consumers with manual assignment and administrators commit without a generation."""
    group = GroupWorld()
    assert group.commit(42) == ErrorCode.NONE
    assert (group.committed(), group.state()) == (42, "Empty")
    assert group.shard.groups["g"].is_simple
    group.fail_over()
    assert (group.committed(), group.state()) == (42, "Empty")


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_commit_with_a_generation_to_an_unknown_group_is_refused(version: int, code: ErrorCode) -> None:
    group = GroupWorld()
    assert group.commit(1, generation=0, member_id="ann", version=version) == code
    assert group.state() == "Dead"


def test_the_empty_group_id_is_a_simple_group_too() -> None:
    """OffsetCommit and OffsetFetch accept it, for consumers that only store offsets."""
    group = GroupWorld()
    assert group.commit(7, group="") == ErrorCode.NONE
    assert group.fetch(group="") == (7, ErrorCode.NONE)


def test_a_member_commits_in_its_generation() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    assert group.commit(5, member_id=ids["ann"], generation=1) == ErrorCode.NONE
    assert group.committed() == 5


def test_a_group_stores_only_the_last_commit_of_a_partition() -> None:
    """Spec: A7. So members that read the same partitions would overwrite each other's, even with smaller offsets."""
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    for member, offset in (("ann", 10), ("bob", 12), ("ann", 100_000), ("bob", 9)):
        assert group.commit(offset, member_id=ids[member], generation=group.generation()) == ErrorCode.NONE
        assert group.committed() == offset
    group.fail_over()
    assert group.committed() == 9


@pytest.mark.parametrize("generation", [0, 2, -2, 99])
def test_a_commit_of_another_generation_is_refused(generation: int) -> None:
    """Spec: C2. Commits are fenced by generation."""
    group = GroupWorld()
    ids = group.settle("ann")
    assert group.commit(5, member_id=ids["ann"], generation=generation) == ErrorCode.ILLEGAL_GENERATION
    assert group.committed() is None


def test_a_commit_of_an_unknown_member_is_refused() -> None:
    """Spec: C2. Commits are fenced by member id, which is checked before the generation."""
    group = GroupWorld()
    group.settle("ann")
    assert group.commit(5, member_id="stranger", generation=1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.commit(5, member_id="stranger", generation=99) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.commit(5, generation=1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_only_members_commit_while_a_group_has_members() -> None:
    group = GroupWorld()
    group.settle("ann")
    assert group.commit(5) == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_administrator_can_commit_once_the_group_is_empty() -> None:
    """This is how offsets are reset."""
    group = GroupWorld()
    ids = group.settle("ann")
    group.leave(ids["ann"])
    assert group.commit(5) == ErrorCode.NONE
    assert group.commit(6, member_id="someone") == ErrorCode.NONE
    assert group.commit(7, generation=2, member_id=ids["ann"]) == ErrorCode.UNKNOWN_MEMBER_ID


def test_while_the_leader_assigns_commits_are_refused() -> None:
    """In CompletingRebalance a member has the new generation but no assignment yet."""
    group = GroupWorld()
    ids = group.settle("ann")
    group.join(ids["ann"])
    assert group.state() == "CompletingRebalance"
    assert group.commit(5, member_id=ids["ann"], generation=2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert group.commit(5, member_id=ids["ann"], generation=1) == ErrorCode.ILLEGAL_GENERATION


def test_members_can_commit_during_the_join_phase() -> None:
    """In PreparingRebalance cooperative members keep consuming their partitions."""
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.join(ids["ann"])
    assert group.commit(5, member_id=ids["bob"], generation=1) == ErrorCode.NONE


# --- what may be committed ----------------------------------------------------------------------------------


def test_metadata_length_is_measured_in_utf16_code_units() -> None:
    """Spec: C2. Kafka counts UTF-16 code units, whatever the setting is called."""
    group = GroupWorld(offset_metadata_max_bytes=10)
    assert group.commit(1, metadata="x" * 10) == ErrorCode.NONE
    assert group.commit(2, metadata="x" * 11) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert group.commit(3, metadata="é" * 10) == ErrorCode.NONE
    assert group.commit(4, metadata="é" * 11) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert group.commit(3, metadata="\N{CAT}" * 5) == ErrorCode.NONE
    assert group.commit(4, metadata="\N{CAT}" * 6) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert group.commit(5, metadata=None) == ErrorCode.NONE
    stored = group.stored()
    assert stored is not None
    assert (stored.offset, stored.metadata) == (5, "")


@pytest.mark.parametrize("metadata", ["", "m", "x" * 126, "x" * 127, "x" * 128, "x" * 4096, "naïve ☕"])
def test_metadata_is_returned_unchanged(metadata: str) -> None:
    """Spec: R4. Commit metadata round trip."""
    group = GroupWorld()
    assert group.commit(1, metadata=metadata) == ErrorCode.NONE
    group.fail_over()
    stored = group.stored()
    assert stored is not None
    assert stored.metadata == metadata


def test_a_commit_to_an_unknown_topic_or_partition_is_refused() -> None:
    group = GroupWorld()
    assert group.commit(1, topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert group.commit(1, partition=3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert group.commit(1, partition=-1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert group.state() == "Dead"
    assert not group.log


def test_an_unknown_topic_is_reported_before_an_unknown_member() -> None:
    """As in Kafka, which checks the topics before it calls the coordinator."""
    group = GroupWorld()
    group.settle("ann")
    assert group.commit(1, topic="nowhere", member_id="stranger", generation=1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_one_bad_partition_does_not_affect_the_others() -> None:
    group = GroupWorld(offset_metadata_max_bytes=3)
    make = OffsetCommitRequest.OffsetCommitRequestPartition
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="orders",
                partitions=[
                    make(partition_index=0, committed_offset=10, committed_metadata="toolong"),
                    make(partition_index=1, committed_offset=11, committed_metadata="ok"),
                    make(partition_index=9, committed_offset=12, committed_metadata=""),
                ],
            ),
            OffsetCommitRequest.OffsetCommitRequestTopic(name="nowhere", partitions=[make(partition_index=0)]),
        ],
    )
    answer = group.answers[group.ask("commit_offsets", request, version=8)]
    codes = [(t.name, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions]
    assert codes == [("orders", 0, 12), ("orders", 1, 0), ("orders", 9, 3), ("nowhere", 0, 3)]
    assert (group.committed(partition=0), group.committed(partition=1)) == (None, 11)


def test_version_ten_names_topics_by_id() -> None:
    group = GroupWorld()
    assert group.commit(9, version=10, by_id=topic_id("orders")) == ErrorCode.NONE
    assert group.commit(9, version=10, by_id=b"?" * 16) == ErrorCode.UNKNOWN_TOPIC_ID
    assert group.commit(9, version=10, by_id=topic_id("orders"), partition=7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert group.committed() == 9


@pytest.mark.parametrize("version", range(2, 11))
def test_the_topic_id_is_stored_whatever_the_version(version: int) -> None:
    group = GroupWorld()
    assert group.commit(9, version=version, by_id=topic_id("orders") if version >= 10 else ZERO_UUID) == ErrorCode.NONE
    stored = group.stored()
    assert stored is not None
    assert stored.topic_id == topic_id("orders")


def test_the_leader_epoch_is_kept_from_version_six_on() -> None:
    group = GroupWorld()
    group.commit(9, version=6, leader_epoch=4)
    stored = group.stored()
    assert stored is not None
    assert stored.leader_epoch == 4
    group.commit(9, version=5)
    stored = group.stored()
    assert stored is not None
    assert stored.leader_epoch == -1


@pytest.mark.parametrize("version", [2, 3, 4])
def test_versions_two_to_four_can_set_a_retention_time(version: int) -> None:
    group = GroupWorld()
    assert group.commit(9, version=version, retention_ms=5_000, metadata="m") == ErrorCode.NONE
    for _ in range(2):
        stored = group.stored()
        assert stored is not None
        assert (stored.offset, stored.metadata) == (9, "m")
        assert stored.expire_timestamp == group.now + 5_000
        assert stored.commit_timestamp == group.now
        group.fail_over()
    value = group.log[0].value
    assert value is not None
    assert value[:2] == b"\x00\x01", "only version 1 has the field"


def test_an_offset_without_a_retention_time_has_no_expiry() -> None:
    group = GroupWorld()
    group.commit(9, version=4, retention_ms=-1)
    stored = group.stored()
    assert stored is not None
    assert stored.expire_timestamp == -1


def test_a_later_commit_replaces_an_earlier_one_even_with_a_smaller_offset() -> None:
    group = GroupWorld()
    group.commit(100)
    group.commit(9)
    assert group.committed() == 9
    group.fail_over()
    assert group.committed() == 9


def test_an_offset_deleted_and_committed_again_can_be_fetched() -> None:
    """Deleting the last offset also drops the cached slot of the last commit."""
    group = GroupWorld()
    for offset in range(3):
        assert group.commit(offset) == ErrorCode.NONE
        assert group.committed() == offset
        assert group.delete_offset() == ErrorCode.NONE
        assert group.committed() is None
    group.commit(7)
    group.fail_over()
    assert group.committed() == 7


def test_more_keys_than_the_cache_holds_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_module, "NAMES_KEPT_LOADING", 3)
    monkeypatch.setattr(offsets_module, "NAMES_KEPT_LIVE", 3)
    group = GroupWorld(topics=("a", "b", "c"))
    for number in range(40):
        group.commit(number, group=f"g{number % 5}", topic="abc"[number % 3], partition=number % 2)
    expected = {(g, t): group.shard.offsets.of(f"g{g}").get(t) for g in range(5) for t in "abc"}
    group.fail_over()
    assert {(g, t): group.shard.offsets.of(f"g{g}").get(t) for g in range(5) for t in "abc"} == expected


# --- OffsetFetch --------------------------------------------------------------------------------------------


def test_an_offset_never_committed_is_minus_one() -> None:
    group = GroupWorld()
    assert group.fetch() == (-1, ErrorCode.NONE), "an unknown group is not an error"
    group.commit(5, partition=1)
    assert group.fetch(partition=0) == (-1, ErrorCode.NONE)
    assert group.fetch(partition=1) == (5, ErrorCode.NONE)
    assert group.fetch(topic="nowhere") == (-1, ErrorCode.NONE)
    assert group.fetch(group="other", partition=1) == (-1, ErrorCode.NONE)


def test_all_committed_offsets_can_be_fetched_at_once() -> None:
    group = GroupWorld(topics=("orders", "payments"))
    for topic, partition in (("payments", 2), ("orders", 1), ("orders", 0)):
        group.commit(partition + 10, topic=topic, partition=partition)
    found = group.shard.fetch_offsets("g", None, False, False)
    offsets = [(t.name, p.partition, p.committed.offset) for t in found for p in t.partitions if p.committed]
    assert offsets == [("orders", 0, 10), ("orders", 1, 11), ("payments", 2, 12)]
    assert group.shard.fetch_offsets("unknown", None, False, False) == []


def test_a_fetch_by_topic_id_ignores_offsets_of_a_deleted_topic_of_that_name() -> None:
    """From OffsetFetch v10 on."""
    group = GroupWorld()
    group.commit(5)
    wanted = [("orders", topic_id("orders", 1), [0])]
    ((_, _, (found,)),) = group.shard.fetch_offsets("g", wanted, False, True)
    assert found.committed is None
    ((_, _, (found,)),) = group.shard.fetch_offsets("g", [("orders", topic_id("orders"), [0])], False, True)
    assert found.committed is not None
    assert found.committed.offset == 5


def test_a_fetch_of_all_offsets_by_id_leaves_out_topics_without_an_id() -> None:
    group = GroupWorld(topics=("orders", "payments"))
    group.commit(5, topic="orders")
    group.commit(6, topic="payments")
    group.load()  # a fresh coordinator...
    group.shard.on_image(image_of("orders"), group.now)  # ...whose first image does not know one topic
    found = group.shard.fetch_offsets("g", None, False, True)
    assert [topic.name for topic in found] == ["orders"]


# --- OffsetDelete -------------------------------------------------------------------------------------------


def test_an_offset_of_an_empty_group_can_be_deleted() -> None:
    group = GroupWorld()
    group.commit(5)
    assert group.delete_offset() == ErrorCode.NONE
    assert group.committed() is None
    group.fail_over()
    assert group.committed() is None


def test_deleting_an_offset_that_does_not_exist_succeeds_and_writes_nothing() -> None:
    group = GroupWorld()
    group.commit(5)
    stored = len(group.log)
    assert group.delete_offset(partition=2) == ErrorCode.NONE
    assert len(group.log) == stored


def test_an_unknown_group_has_no_offsets_to_delete() -> None:
    group = GroupWorld()
    assert group.delete_offset() == ErrorCode.GROUP_ID_NOT_FOUND


def test_the_offset_of_an_unknown_topic_or_partition_cannot_be_deleted() -> None:
    group = GroupWorld()
    group.commit(5)
    assert group.delete_offset(topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert group.delete_offset(partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_of_a_subscribed_topic_are_not_deleted() -> None:
    group = GroupWorld(topics=("orders", "payments"))
    ids = group.settle("ann")
    for topic in ("orders", "payments"):
        group.commit(5, topic=topic, member_id=ids["ann"], generation=1)
    assert group.delete_offset(topic="orders") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert group.delete_offset(topic="payments") == ErrorCode.NONE
    assert (group.committed(), group.committed(topic="payments")) == (5, None)


def test_during_a_rebalance_the_last_subscription_counts() -> None:
    group = GroupWorld(topics=("orders", "payments"))
    ids = group.settle("ann", "bob")
    for topic in ("orders", "payments"):
        group.commit(5, topic=topic, member_id=ids["ann"], generation=1)
    group.join(ids["ann"], protocols={"range": subscription("payments")})
    assert group.state() == "PreparingRebalance"
    assert group.delete_offset(topic="orders") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_nothing_is_deleted_when_the_subscriptions_cannot_be_read() -> None:
    group = GroupWorld()
    ids = group.settle("ann", protocols={"range": b"\x00"})
    group.commit(5, member_id=ids["ann"], generation=1)
    assert group.delete_offset() == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_nothing_is_deleted_during_a_first_rebalance() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    group.commit(5)
    group.enter("ann", protocols={"range": subscription("payments")})
    assert group.delete_offset() == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_a_group_of_another_protocol_type_keeps_its_offsets_while_it_has_members() -> None:
    group = GroupWorld()
    group.settle("worker", protocol_type="connect", protocols={"compatible": b""})
    assert group.delete_offset() == ErrorCode.NON_EMPTY_GROUP


def test_one_request_deletes_from_many_partitions_each_with_its_own_error() -> None:
    group = GroupWorld()
    for partition in range(3):
        group.commit(5, partition=partition)
    make = OffsetDeleteRequest.OffsetDeleteRequestPartition
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name="orders", partitions=[make(partition_index=index) for index in (0, 2, 5)]
            )
        ],
    )
    answer = group.answers[group.ask("delete_offsets", request)]
    assert [p.error_code for p in answer.topics[0].partitions] == [0, 0, 3]
    assert [group.committed(partition=p) for p in range(3)] == [None, 5, None]
