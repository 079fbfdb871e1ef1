"""A leader changes the in-sync set of its partitions. Spec: B10."""

import pytest

from ottla.errors import ErrorCode
from ottla.metadata import records
from ottla.metadata.controller.decisions import Put
from ottla.metadata.controller.isr_changes import IsrChange, alter_partitions
from ottla.metadata.image import ClusterImage, TopicImage
from ottla.metadata.store import Change, Entry
from ottla.types import TopicPartition

TOPIC_ID = bytes(15) + b"t"
T0 = TopicPartition("t", 0)


class Rules:
    def __init__(self, min_isr: int = 1) -> None:
        self.min_isr = min_isr

    def allows_unclean_election(self, image: ClusterImage, topic: TopicImage) -> bool:
        return False

    def min_insync_replicas(self, image: ClusterImage, topic: TopicImage) -> int:
        return self.min_isr


def image_of(isr: tuple[int, ...], *, leaving: tuple[int, ...] = ()) -> ClusterImage:
    """Broker 0 leads t-0 in epoch 5, partition epoch 7; brokers 0 to 3 are registered with epochs 10 to 13."""
    puts = [
        (records.topic_key("t"), records.write_topic(TOPIC_ID, [(0, 1, 2)]), 0, 1),
        (records.partition_state_key("t", 0), records.write_partition_state(0, 5, isr), 7, 1),
        *(
            (records.broker_key(b), records.write_broker({}, None, 0, is_leaving=b in leaving), 0, 10 + b)
            for b in range(4)
        ),
    ]
    return ClusterImage().apply([Change(k, Entry(k, v, version, at, at), at) for k, v, version, at in puts], 20)


def proposal(*isr: tuple[int, int], leader_epoch: int = 5, partition_epoch: int = 7) -> IsrChange:
    return IsrChange(T0, TOPIC_ID, leader_epoch, partition_epoch, isr)


def outcome(image: ClusterImage, change: IsrChange, leader: int = 0, min_isr: int = 1) -> ErrorCode:
    decision = alter_partitions(image, Rules(min_isr), leader, [change])
    assert bool(decision.changes) == (decision.reply == [ErrorCode.NONE])
    return decision.reply[0]


def test_a_leader_adds_and_removes_members() -> None:
    decision = alter_partitions(image_of((0, 1)), Rules(), 0, [proposal((0, 10), (2, 12), (1, 11))])
    assert decision.reply == [ErrorCode.NONE]
    expected = records.write_partition_state(0, 5, (0, 1, 2))
    assert decision.changes == (Put(records.partition_state_key("t", 0), expected),), "in the order of the replicas"
    assert outcome(image_of((0, 1)), proposal((0, 10))) == ErrorCode.NONE


def test_the_commit_requires_that_every_member_is_still_the_same_registration() -> None:
    """A follower that restarts between the proposal and the commit must not be added (KIP-903)."""
    decision = alter_partitions(image_of((0,)), Rules(), 0, [proposal((0, 10), (1, 11))])
    assert {(each.key, each.created) for each in decision.requires} == {("/brokers/ids/0", 10), ("/brokers/ids/1", 11)}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (proposal((0, 10), leader_epoch=4), ErrorCode.FENCED_LEADER_EPOCH),
        (proposal((0, 10), leader_epoch=6), ErrorCode.FENCED_LEADER_EPOCH),
        (proposal((0, 10), partition_epoch=6), ErrorCode.INVALID_UPDATE_VERSION),
        (proposal((0, 10), partition_epoch=8), ErrorCode.INVALID_UPDATE_VERSION),
        (proposal((0, 10), (1, 9)), ErrorCode.INELIGIBLE_REPLICA),
        (proposal((0, 10), (3, 13)), ErrorCode.INVALID_REQUEST),
        (proposal((1, 11)), ErrorCode.INVALID_REQUEST),
        (proposal(), ErrorCode.INVALID_REQUEST),
        (proposal((0, 10), (0, 10)), ErrorCode.INVALID_REQUEST),
        (proposal((0, 10))._replace(topic_id=b"x" * 16), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (proposal((0, 10))._replace(topic_partition=TopicPartition("t", 1)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (proposal((0, 10))._replace(topic_partition=TopicPartition("u", 0)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_proposal_for_another_state_or_with_other_members_is_rejected(change: IsrChange, error: ErrorCode) -> None:
    assert outcome(image_of((0, 1)), change) == error


def test_only_the_leader_changes_the_in_sync_set() -> None:
    assert outcome(image_of((0, 1)), proposal((0, 10), (1, 11)), leader=1) == ErrorCode.FENCED_LEADER_EPOCH


def test_an_unknown_broker_epoch_is_not_checked() -> None:
    assert outcome(image_of((0, 1)), proposal((0, 10), (1, -1))) == ErrorCode.NONE


def test_a_leaving_broker_cannot_join_but_its_membership_does_not_block_others() -> None:
    """KIP-841."""
    assert outcome(image_of((0,), leaving=(1,)), proposal((0, 10), (1, 11))) == ErrorCode.INELIGIBLE_REPLICA
    assert outcome(image_of((0, 1), leaving=(1,)), proposal((0, 10), (1, 11), (2, 12))) == ErrorCode.NONE


def test_members_that_a_leader_removes_below_min_insync_replicas_stay_eligible() -> None:
    decision = alter_partitions(image_of((0, 1, 2)), Rules(2), 0, [proposal((0, 10))])
    assert decision.changes[0] == Put(
        records.partition_state_key("t", 0), records.write_partition_state(0, 5, (0,), 0, (1, 2))
    )
    decision = alter_partitions(image_of((0, 1, 2)), Rules(2), 0, [proposal((0, 10), (1, 11))])
    assert decision.changes[0] == Put(records.partition_state_key("t", 0), records.write_partition_state(0, 5, (0, 1)))


def test_of_two_proposals_for_one_partition_the_first_counts() -> None:
    decision = alter_partitions(image_of((0, 1)), Rules(), 0, [proposal((0, 10)), proposal((0, 10), (2, 12))])
    assert decision.reply == [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION]
    assert len(decision.changes) == 1
