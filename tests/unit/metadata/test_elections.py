"""Leader elections when brokers join and leave. Spec: B10."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import elections, records
from ottla.metadata.decisions import Put
from ottla.metadata.image import NO_IMAGE, BrokerRegistration, ClusterImage, TopicImage
from ottla.metadata.store import Change, Entry
from ottla.types import Endpoint


def applied(image: ClusterImage, changes: Iterable[Any]) -> ClusterImage:
    version = image.version + 1
    return image.apply(
        [
            Change(c.key, Entry(c.key, c.value, 0, version, version) if isinstance(c, Put) else None, version)
            for c in changes
        ],
        version,
    )


class Cluster:
    """One topic `t` with one partition; brokers join and leave."""

    def __init__(self, replicas: Sequence[int], *, unclean: bool = False) -> None:
        self.unclean = unclean
        self.image = applied(
            NO_IMAGE,
            [
                Put(records.topic_key("t"), records.write_topic(bytes(15) + b"t", [replicas])),
                Put(records.partition_state_key("t", 0), records.write_partition_state(replicas[0], 0, replicas)),
            ],
        )

    def comes(self, *brokers: int) -> None:
        for broker in brokers:
            registration = BrokerRegistration(broker, 0, {"PLAINTEXT": Endpoint("h", 1)})
            decision = elections.register(self.image, registration, "cluster", 0)
            self.image = applied(self.image, decision.changes)
        self.elects()

    def goes(self, *brokers: int) -> None:
        gone = [records.broker_key(broker) for broker in brokers]
        self.image = self.image.apply([Change(key, None, 1) for key in gone], self.image.version + 1)
        self.elects()

    def elects(self, leaving: Sequence[int] = ()) -> int:
        def allows_unclean_election(image: ClusterImage, topic: TopicImage) -> bool:
            return self.unclean

        decision = elections.elect_leaders(self.image, allows_unclean_election, leaving)
        self.image = applied(self.image, decision.changes)
        return decision.reply

    def in_sync(self, *brokers: int) -> None:
        state = records.write_partition_state(self.leader, self.epoch, brokers)
        self.image = applied(self.image, [Put(records.partition_state_key("t", 0), state)])

    @property
    def leader(self) -> int:
        return self.image.topics["t"].partitions[0].leader

    @property
    def epoch(self) -> int:
        return self.image.topics["t"].partitions[0].leader_epoch

    @property
    def isr(self) -> tuple[int, ...]:
        return self.image.topics["t"].partitions[0].isr


def test_a_restarted_broker_leads_again_with_a_higher_epoch() -> None:
    cluster = Cluster([0])
    for restarts in range(1, 4):
        cluster.comes(0)
        assert (cluster.leader, cluster.epoch) == (0, restarts)
        gone = records.broker_key(0)
        cluster.image = cluster.image.apply([Change(gone, None, 1)], 99)  # no broker was alive to elect a leader


def test_the_first_broker_becomes_controller_and_creates_the_cluster_id() -> None:
    cluster = Cluster([0])
    cluster.comes(1)
    assert (cluster.image.controller_id, cluster.image.cluster_id) == (1, "cluster")
    cluster.comes(0)
    assert cluster.image.controller_id == 1


def test_a_broker_id_in_use_cannot_be_registered() -> None:
    cluster = Cluster([0])
    cluster.comes(0)
    with pytest.raises(KafkaError) as caught:
        cluster.comes(0)
    assert caught.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_the_next_in_sync_replica_in_assignment_order_becomes_leader() -> None:
    cluster = Cluster([2, 0, 1])
    cluster.comes(0, 1, 2)
    cluster.in_sync(2, 1, 0)
    epoch = cluster.epoch
    cluster.goes(2)
    assert (cluster.leader, cluster.epoch) == (0, epoch + 1)
    assert set(cluster.isr) == {0, 1}


def test_an_out_of_sync_replica_does_not_become_leader() -> None:
    cluster = Cluster([0, 1, 2])
    cluster.comes(0, 1, 2)
    cluster.in_sync(0, 2)
    cluster.goes(0)
    assert cluster.leader == 2


def test_without_a_live_in_sync_replica_there_is_no_leader_until_one_returns() -> None:
    cluster = Cluster([0, 1])
    cluster.comes(0, 1)
    cluster.in_sync(0)
    cluster.goes(0)
    assert (cluster.leader, cluster.isr) == (-1, (0,)), "the replica with all records is kept in the in-sync set"
    epoch = cluster.epoch
    assert cluster.elects() == 0, "nothing to do while nothing changes"
    cluster.comes(0)
    assert (cluster.leader, cluster.epoch) == (0, epoch + 1)


def test_an_unclean_election_picks_an_out_of_sync_replica_if_the_topic_allows_it() -> None:
    cluster = Cluster([0, 1, 2], unclean=True)
    cluster.comes(0, 1, 2)
    cluster.in_sync(0)
    cluster.goes(0)
    assert (cluster.leader, cluster.isr) == (1, (1,))


def test_a_dead_follower_leaves_the_in_sync_set_without_a_new_epoch() -> None:
    cluster = Cluster([0, 1, 2])
    cluster.comes(0, 1, 2)
    epoch = cluster.epoch
    cluster.goes(1)
    assert (cluster.leader, cluster.epoch, cluster.isr) == (0, epoch, (0, 2))


def test_a_leaving_broker_transfers_leadership() -> None:
    cluster = Cluster([0, 1])
    cluster.comes(0, 1)
    cluster.elects(leaving=[0])
    assert (cluster.leader, cluster.isr) == (1, (1,))


def test_a_leaving_broker_stays_leader_without_another_in_sync_replica() -> None:
    cluster = Cluster([0, 1])
    cluster.comes(0, 1)
    cluster.in_sync(0)
    epoch = cluster.epoch
    assert cluster.elects(leaving=[0]) == 0
    assert (cluster.leader, cluster.epoch) == (0, epoch)


def test_leadership_returns_to_the_preferred_replica_once_it_is_in_sync() -> None:
    """Spec: B10."""
    cluster = Cluster([0, 1])
    cluster.comes(0, 1)
    cluster.goes(0)
    cluster.comes(0)
    assert cluster.leader == 1
    assert elections.elect_preferred_leaders(cluster.image).changes == []
    cluster.in_sync(1, 0)
    decision = elections.elect_preferred_leaders(cluster.image)
    epoch = cluster.epoch
    cluster.image = applied(cluster.image, decision.changes)
    assert (decision.reply, cluster.leader, cluster.epoch, cluster.isr) == (1, 0, epoch + 1, (1, 0))
    assert elections.elect_preferred_leaders(cluster.image).reply == 0
