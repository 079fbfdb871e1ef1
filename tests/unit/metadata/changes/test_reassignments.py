"""Partition reassignments: adding and removing replicas, cancelling, internal topics that grow. Spec: B10."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.metadata import records
from ottla.metadata.changes.reassignments import (
    Reassignment,
    ReassignmentResult,
    alter_reassignments,
    complete_reassignments,
    grow_internal_topics,
    reassigning,
)
from ottla.metadata.controller.decisions import Put
from ottla.metadata.controller.elections import ElectionType, elect_requested
from ottla.metadata.image import NO_IMAGE, ClusterImage, PartitionImage, TopicImage
from ottla.metadata.store import Change, Entry
from ottla.types import TopicPartition

T0 = TopicPartition("t", 0)
NONE = ErrorCode.NONE


class Cluster:
    """Five brokers and a topic `t` with two partitions, the first on `replicas` and led by the first of them."""

    def __init__(self, replicas: Sequence[int] = (0, 1), *, topic: str = "t", min_isr: int = 1) -> None:
        self.min_isr = min_isr
        self.topic = topic
        self.version = 0
        self.image = NO_IMAGE
        self.puts(
            [
                Put(records.topic_key(topic), records.write_topic(bytes(15) + b"t", [replicas, replicas])),
                *(
                    Put(records.partition_state_key(topic, i), records.write_partition_state(replicas[0], 5, replicas))
                    for i in range(2)
                ),
                *(Put(records.broker_key(b), records.write_broker({}, None, 0), ephemeral=True) for b in range(5)),
                *(Put(records.known_broker_key(b), records.write_broker({}, None, 0)) for b in range(6)),
            ]
        )

    def allows_unclean_election(self, image: ClusterImage, topic: TopicImage) -> bool:
        return False

    def min_insync_replicas(self, image: ClusterImage, topic: TopicImage) -> int:
        return self.min_isr

    def puts(self, changes: Iterable[Any]) -> None:
        self.version += 1
        v = self.version
        self.image = self.image.apply([Change(c.key, Entry(c.key, c.value, v, v, v), v) for c in changes], v)

    def reassign(self, replicas: Sequence[int] | None, **more: Any) -> ReassignmentResult:
        decision = alter_reassignments(self.image, self, [Reassignment(T0, replicas)], **more)
        self.puts(decision.changes)
        return decision.reply[0]

    def in_sync(self, *isr: int) -> None:
        state = records.write_partition_state(self.p0.leader, self.p0.leader_epoch, isr)
        self.puts([Put(records.partition_state_key("t", 0), state)])

    def completes(self) -> int:
        decision = complete_reassignments(self.image, self)
        self.puts(decision.changes)
        return decision.reply

    def dies(self, broker: int) -> None:
        self.image = self.image.apply([Change(records.broker_key(broker), None, 1)], self.image.version + 1)

    @property
    def p0(self) -> PartitionImage:
        return self.image.topics[self.topic].partitions[0]


def test_a_reassignment_completes_when_the_added_replicas_are_in_sync() -> None:
    cluster = Cluster((0, 1))
    before = cluster.p0
    assert cluster.reassign((2, 1)).error == NONE
    during = cluster.p0
    assert (during.replicas, during.adding, during.removing, during.isr) == ((2, 1, 0), (2,), (0,), (0, 1))
    assert (during.leader, during.leader_epoch) == (0, 5)
    assert during.partition_epoch > before.partition_epoch, "every change has its partition epoch"
    assert [(topic.name, partition.index) for topic, partition in reassigning(cluster.image)] == [("t", 0)]
    assert cluster.completes() == 0
    cluster.in_sync(0, 1, 2)
    assert cluster.completes() == 1
    after = cluster.p0
    assert (after.replicas, after.adding, after.removing) == ((2, 1), (), ())
    assert (after.leader, after.leader_epoch) == (2, 6), "the old leader was removed"
    assert set(after.isr) == {1, 2}
    assert cluster.image.topics["t"].partitions[1].replicas == (0, 1), "the other partition is as it was"
    assert cluster.completes() == 0


def test_the_leader_stays_if_it_is_not_removed_but_removed_followers_are_fenced() -> None:
    cluster = Cluster((0, 1))
    cluster.reassign((0, 2))
    cluster.in_sync(0, 1, 2)
    cluster.completes()
    assert (cluster.p0.leader, cluster.p0.leader_epoch, cluster.p0.isr) == (0, 6, (0, 2))


def test_a_new_order_or_fewer_replicas_need_no_catching_up() -> None:
    cluster = Cluster((0, 1, 2))
    assert cluster.reassign((1, 0, 2)).error == NONE
    assert (cluster.p0.replicas, cluster.p0.is_reassigning, cluster.p0.leader) == ((1, 0, 2), False, 0)
    assert cluster.reassign((2,)).error == NONE
    assert (cluster.p0.replicas, cluster.p0.leader, cluster.p0.isr) == ((2,), 2, (2,))


def test_replicas_are_not_removed_while_nobody_else_is_in_sync() -> None:
    cluster = Cluster((0, 1))
    cluster.in_sync(0)
    assert cluster.reassign((1,)).error == NONE
    assert (cluster.p0.replicas, cluster.p0.removing, cluster.p0.leader) == ((1, 0), (0,), 0)
    assert cluster.completes() == 0
    cluster.in_sync(0, 1)
    cluster.dies(1)
    assert cluster.completes() == 0, "nobody else could lead"


def test_a_reassignment_is_cancelled_by_null() -> None:
    cluster = Cluster((0, 1))
    assert cluster.reassign(None).error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    cluster.reassign((2, 3))
    cluster.in_sync(0, 1, 2)
    assert cluster.reassign(None).error == NONE
    after = cluster.p0
    assert (set(after.replicas), after.adding, after.removing, after.isr) == ({0, 1}, (), (), (0, 1))


def test_cancelling_never_requires_an_unclean_election() -> None:
    cluster = Cluster((0, 1))
    cluster.reassign((2, 3))
    cluster.in_sync(2)
    result = cluster.reassign(None)
    assert result.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "unclean leader election" in (result.message or "")


def test_a_reassignment_replaces_one_that_is_in_progress() -> None:
    cluster = Cluster((0, 1))
    cluster.reassign((2, 1))
    cluster.in_sync(0, 1, 2)
    assert cluster.reassign((3, 1)).error == NONE
    assert (cluster.p0.replicas, cluster.p0.adding, cluster.p0.removing) == ((3, 1, 0), (3,), (0,))
    assert cluster.p0.isr == (0, 1), "broker 2 is no longer wanted"


@pytest.mark.parametrize(
    ("replicas", "error", "message"),
    [
        ((0, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "includes broker 9, but no such broker is registered"),
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "an empty replica list"),
        ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the broker 1 more than once"),
        ((-1,), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker -1"),
    ],
)
def test_invalid_replicas_are_rejected(replicas: Sequence[int], error: ErrorCode, message: str) -> None:
    cluster = Cluster()
    before = cluster.image.topics
    result = cluster.reassign(replicas)
    assert result.error == error
    assert message in (result.message or "")
    assert cluster.image.topics == before


def test_unknown_partitions_are_rejected_alone() -> None:
    cluster = Cluster()
    decision = alter_reassignments(
        cluster.image,
        cluster,
        [
            Reassignment(TopicPartition("u", 0), (1,)),
            Reassignment(TopicPartition("t", 7), (1,)),
            Reassignment(T0, (1, 2)),
        ],
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [result.error for result in decision.reply] == [unknown, unknown, NONE]


def test_the_replication_factor_changes_only_if_allowed() -> None:
    """KIP-860."""
    cluster = Cluster((0, 1))
    result = cluster.reassign((0, 1, 2), allow_replication_factor_change=False)
    assert result.error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert cluster.reassign((2, 3), allow_replication_factor_change=False).error == NONE
    assert cluster.reassign((0, 1, 2), allow_replication_factor_change=False).error != NONE, "2 replicas, not 4"


def test_removed_replicas_are_no_longer_eligible() -> None:
    cluster = Cluster((0, 1, 2), min_isr=3)
    cluster.puts([Put(records.partition_state_key("t", 0), records.write_partition_state(0, 5, (0,), 0, (1, 2)))])
    cluster.reassign((0, 2))
    assert (cluster.p0.isr, cluster.p0.elr) == ((0,), (2,))


# Internal topics


def test_internal_topics_grow_with_the_cluster_and_spread_their_leaders() -> None:
    """KIP-115: the first broker does not keep the only copy of all offsets."""
    cluster = Cluster((0,), topic="__consumer_offsets")
    decision = grow_internal_topics(cluster.image, cluster, {"__consumer_offsets": 3, "__transaction_state": 3})
    assert decision.reply == 2
    cluster.puts(decision.changes)
    partitions = cluster.image.topics["__consumer_offsets"].partitions
    assert all(len(p.replicas) == 3 and 0 in p.replicas and len(p.adding) == 2 for p in partitions)
    assert len({p.replicas[0] for p in partitions}) == 2
    assert {p.leader for p in partitions} == {0}, "nothing moves before they are in sync"
    again = grow_internal_topics(cluster.image, cluster, {"__consumer_offsets": 3})
    assert again.reply == 0


def test_internal_topics_do_not_get_more_replicas_than_there_are_brokers_or_fewer_than_they_have() -> None:
    cluster = Cluster((0,), topic="__consumer_offsets")
    for broker in (2, 3, 4):
        cluster.dies(broker)
    cluster.puts(grow_internal_topics(cluster.image, cluster, {"__consumer_offsets": 3}).changes)
    assert {len(p.replicas) for p in cluster.image.topics["__consumer_offsets"].partitions} == {2}
    cluster = Cluster((0, 1, 2, 3), topic="__consumer_offsets")
    assert grow_internal_topics(cluster.image, cluster, {"__consumer_offsets": 3}).reply == 0


# Elections on request


def test_elections_on_request() -> None:
    """KIP-460: the error codes are those of Kafka."""
    cluster = Cluster((0, 1))

    def elect(kind: ElectionType, partition: TopicPartition = T0) -> ErrorCode:
        decision = elect_requested(cluster.image, cluster, kind, [partition])
        cluster.puts(decision.changes)
        return decision.reply[0].error

    assert elect(ElectionType.PREFERRED) == ErrorCode.ELECTION_NOT_NEEDED
    assert elect(ElectionType.UNCLEAN) == ErrorCode.ELECTION_NOT_NEEDED
    assert elect(ElectionType.PREFERRED, TopicPartition("u", 0)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert elect(ElectionType.PREFERRED, TopicPartition("t", 9)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.puts([Put(records.partition_state_key("t", 0), records.write_partition_state(1, 6, (1,)))])
    assert elect(ElectionType.PREFERRED) == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    cluster.in_sync(1, 0)
    assert elect(ElectionType.PREFERRED) == NONE
    assert (cluster.p0.leader, cluster.p0.leader_epoch, cluster.p0.isr) == (0, 7, (1, 0))
    cluster.puts([Put(records.partition_state_key("t", 0), records.write_partition_state(-1, 8, (0,)))])
    cluster.dies(0)
    assert elect(ElectionType.PREFERRED) == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert elect(ElectionType.UNCLEAN) == NONE
    assert (cluster.p0.leader, cluster.p0.leader_epoch, cluster.p0.isr) == (1, 9, (1,))
    cluster.puts([Put(records.partition_state_key("t", 0), records.write_partition_state(-1, 10, (0,)))])
    cluster.dies(1)
    assert elect(ElectionType.UNCLEAN) == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
