"""Leader elections when brokers join and leave. Spec: B10."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.changes.registration import Joining, become_controller, mark_leaving, register, report_logs
from ottla.metadata.controller import elections
from ottla.metadata.controller.decisions import Put
from ottla.metadata.image import NO_IMAGE, BrokerRegistration, ClusterImage, PartitionImage, TopicImage
from ottla.metadata.store import Change, Entry
from ottla.types import Endpoint, TopicPartition


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

    def __init__(self, replicas: Sequence[int], *, unclean: bool = False, min_isr: int = 1) -> None:
        self.unclean = unclean
        self.min_isr = min_isr
        self.awaited: Sequence[int] = ()
        self.image = applied(
            NO_IMAGE,
            [
                Put(records.topic_key("t"), records.write_topic(bytes(15) + b"t", [replicas])),
                Put(records.partition_state_key("t", 0), records.write_partition_state(replicas[0], 0, replicas)),
                *(Put(records.known_broker_key(broker), records.write_broker({}, None, 0)) for broker in replicas),
            ],
        )

    # The rules of the topic.

    def allows_unclean_election(self, image: ClusterImage, topic: TopicImage) -> bool:
        return self.unclean

    def min_insync_replicas(self, image: ClusterImage, topic: TopicImage) -> int:
        return self.min_isr

    # What happens.

    def comes(self, *brokers: int, is_clean: bool = True, **more: Any) -> None:
        for broker in brokers:
            known = self.image.known_brokers.get(broker)
            previous_epoch = known.epoch if known is not None and is_clean else None
            joining = Joining(
                BrokerRegistration(broker, 0, {"PLAINTEXT": Endpoint("h", 1)}), previous_epoch=previous_epoch, **more
            )
            decision = register(self.image, joining, self, "cluster", 0, awaited=self.awaited)
            self.image = applied(self.image, decision.changes)
        self.elects()

    def goes(self, *brokers: int) -> None:
        self.dies(*brokers)
        self.elects()

    def dies(self, *brokers: int) -> None:
        """Nobody is there to notice."""
        gone = [records.broker_key(broker) for broker in brokers]
        if self.image.controller_id in brokers:
            gone.append(records.CONTROLLER)
        self.image = self.image.apply([Change(key, None, 1) for key in gone], self.image.version + 1)

    def elects(self) -> int:
        decision = elections.elect_leaders(self.image, self, awaited=self.awaited)
        self.image = applied(self.image, decision.changes)
        return decision.reply

    def leaves(self, broker: int) -> int:
        self.image = applied(self.image, mark_leaving(self.image, broker, 0).changes)
        decision = elections.hand_over(self.image, self, broker)
        self.image = applied(self.image, decision.changes)
        return decision.reply

    def reports(self, broker: int, epoch: int, end: int) -> None:
        decision = report_logs(self.image, broker, {TopicPartition("t", 0): (epoch, end)}, limit=100)
        self.image = applied(self.image, decision.changes)
        self.elects()

    def in_sync(self, *brokers: int) -> None:
        state = records.write_partition_state(self.leader, self.epoch, brokers)
        self.image = applied(self.image, [Put(records.partition_state_key("t", 0), state)])

    @property
    def partition(self) -> PartitionImage:
        return self.image.topics["t"].partitions[0]

    @property
    def leader(self) -> int:
        return self.partition.leader

    @property
    def epoch(self) -> int:
        return self.partition.leader_epoch

    @property
    def isr(self) -> tuple[int, ...]:
        return self.partition.isr

    @property
    def elr(self) -> tuple[int, ...]:
        return self.partition.elr


def test_a_restarted_broker_leads_again_with_a_higher_epoch() -> None:
    cluster = Cluster([0])
    for restarts in range(1, 4):
        cluster.comes(0)
        assert (cluster.leader, cluster.epoch) == (0, restarts)
        cluster.dies(0)


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
    cluster.leaves(0)
    assert (cluster.leader, cluster.isr) == (1, (1,))


def test_a_leaving_broker_stays_leader_without_another_in_sync_replica() -> None:
    cluster = Cluster([0, 1])
    cluster.comes(0, 1)
    cluster.in_sync(0)
    epoch = cluster.epoch
    assert cluster.leaves(0) == 0
    assert (cluster.leader, cluster.epoch) == (0, epoch)


def test_leadership_returns_to_the_preferred_replica_once_it_is_in_sync() -> None:
    """Spec: B10."""
    cluster = Cluster([0, 1])
    cluster.comes(0, 1)
    cluster.goes(0)
    cluster.comes(0)
    assert cluster.leader == 1
    assert not elections.is_imbalanced(cluster.image)
    assert elections.elect_preferred_leaders(cluster.image).changes == []
    cluster.in_sync(1, 0)
    assert elections.is_imbalanced(cluster.image)
    decision = elections.elect_preferred_leaders(cluster.image)
    epoch = cluster.epoch
    cluster.image = applied(cluster.image, decision.changes)
    assert (decision.reply, cluster.leader, cluster.epoch, cluster.isr) == (1, 0, epoch + 1, (1, 0))
    assert elections.elect_preferred_leaders(cluster.image).reply == 0


# The controller


def test_every_controller_has_a_higher_epoch_which_is_written_into_what_it_decides() -> None:
    """Spec: B10."""
    cluster = Cluster([0, 1])
    cluster.comes(0, 1)
    assert (cluster.image.controller_id, cluster.image.controller_epoch) == (0, 1)
    cluster.dies(0)
    controller = become_controller(cluster.image, 1, 0)
    decision = elections.take_over(cluster.image, cluster, controller)
    cluster.image = applied(cluster.image, decision.changes)
    assert (cluster.image.controller_id, cluster.image.controller_epoch) == (1, 2)
    assert cluster.leader == 1, "the new controller elected a leader in the same commit"
    state = next(
        c.value for c in decision.changes if isinstance(c, Put) and c.key == records.partition_state_key("t", 0)
    )
    assert b'"controller_epoch":2' in state


def test_commits_of_the_controller_require_that_it_is_still_the_controller() -> None:
    """A controller that was paused and replaced cannot decide anything. Spec: B10."""
    cluster = Cluster([0, 1])
    cluster.comes(0, 1)
    cluster.dies(0)
    for decision in (elections.elect_leaders(cluster.image, cluster), elections.elect_preferred_leaders(cluster.image)):
        assert {unchanged.key for unchanged in decision.requires} == {records.CONTROLLER, records.CONTROLLER_EPOCH}


def test_an_election_changes_a_limited_number_of_partitions_in_one_commit() -> None:
    cluster = Cluster([0, 1])
    states = [
        Put(records.topic_key("many"), records.write_topic(bytes(15) + b"m", [(0, 1)] * 250)),
        *(Put(records.partition_state_key("many", i), records.write_partition_state(0, 0, (0, 1))) for i in range(250)),
    ]
    cluster.image = applied(cluster.image, states)
    cluster.comes(1, 0)
    cluster.dies(0)
    assert [cluster.elects() for _ in range(4)] == [100, 100, 51, 0]
    assert {p.leader for topic in cluster.image.topics.values() for p in topic.partitions} == {1}


# Restarts without a clean shutdown (KIP-966)


def test_a_broker_that_lost_its_tail_leaves_the_in_sync_set_and_leadership_when_it_registers() -> None:
    """Spec: B10."""
    cluster = Cluster([0, 1, 2])
    cluster.comes(0, 1, 2)
    cluster.dies(0)  # it is back before anybody noticed
    epoch = cluster.epoch
    cluster.comes(0, is_clean=False)
    assert (cluster.leader, cluster.epoch, cluster.isr) == (1, epoch + 1, (1, 2))
    cluster.in_sync(1, 2, 0)
    cluster.dies(0)
    cluster.comes(0, is_clean=False)
    assert (cluster.leader, cluster.epoch, cluster.isr) == (1, epoch + 1, (1, 2)), "a follower too"


def test_a_broker_that_proves_its_previous_epoch_keeps_its_place() -> None:
    cluster = Cluster([0, 1, 2])
    cluster.comes(0, 1, 2)
    cluster.dies(1)
    cluster.comes(1)
    assert (cluster.leader, cluster.isr) == (0, (0, 1, 2))
    cluster.dies(1)
    known = cluster.image.known_brokers[1]
    stale = Joining(BrokerRegistration(1, 0, {}), previous_epoch=known.epoch - 1)
    decision = register(cluster.image, stale, cluster, "cluster", 0)
    assert applied(cluster.image, decision.changes).topics["t"].partitions[0].isr == (0, 2), "an older directory"


def test_the_sole_member_of_an_in_sync_set_stays_even_after_an_unclean_restart() -> None:
    """Nobody else has the records."""
    cluster = Cluster([0, 1])
    cluster.comes(0, 1)
    cluster.in_sync(0)
    cluster.goes(0)
    cluster.comes(0, is_clean=False)
    assert (cluster.leader, cluster.isr) == (0, (0,))


def test_a_new_data_directory_is_rejected_if_nobody_else_has_the_records() -> None:
    cluster = Cluster([0, 1])
    cluster.comes(0, 1)
    cluster.in_sync(0)
    cluster.goes(0)
    with pytest.raises(KafkaError, match=r"only this broker has the records of 1 partitions \(t-0\)"):
        cluster.comes(0, is_clean=False, has_new_directory=True)
    cluster.unclean = True
    cluster.comes(0, is_clean=False, has_new_directory=True)
    assert cluster.leader in (0, 1)


def test_a_new_data_directory_of_one_replica_of_many_is_filled_again() -> None:
    cluster = Cluster([0, 1])
    cluster.comes(0, 1)
    cluster.dies(0)
    cluster.comes(0, is_clean=False, has_new_directory=True)
    assert (cluster.leader, cluster.isr) == (1, (1,))


def test_after_a_power_failure_the_replica_with_the_longest_log_leads() -> None:
    """All members lost their tails: everybody is waited for, and the longest log by (epoch, end) wins. Spec: B10."""
    cluster = Cluster([0, 1, 2])
    cluster.comes(0, 1, 2)
    cluster.dies(0, 1, 2)
    cluster.comes(0, 1, is_clean=False)
    assert (cluster.leader, cluster.isr) == (-1, (0, 1, 2))
    cluster.reports(0, 3, 90)
    cluster.reports(1, 4, 50)
    assert cluster.leader == -1, "the third one may have more"
    cluster.comes(2, is_clean=False)
    assert cluster.leader == -1, "its log is still being read"
    cluster.reports(2, 4, 49)
    assert (cluster.leader, cluster.isr, cluster.partition.recovering) == (1, (1,), ())


def test_after_a_power_failure_one_clean_member_is_enough() -> None:
    cluster = Cluster([0, 1, 2])
    cluster.comes(0, 1, 2)
    cluster.dies(0, 1, 2)
    cluster.comes(0, is_clean=False)
    cluster.reports(0, 9, 999)
    cluster.comes(1)
    assert (cluster.leader, 0 in cluster.isr, cluster.partition.recovering) == (1, False, ())


def test_a_replica_that_lost_its_tail_does_not_regain_it_by_a_clean_restart() -> None:
    cluster = Cluster([0, 1])
    cluster.comes(0, 1)
    cluster.dies(0, 1)
    cluster.comes(0, is_clean=False)
    cluster.reports(0, 1, 5)
    cluster.dies(0)
    cluster.comes(0, is_clean=True)
    assert cluster.leader == -1
    cluster.comes(1)
    assert cluster.leader == 1


# Eligible leader replicas (KIP-966)


def test_members_that_leave_below_min_insync_replicas_stay_eligible() -> None:
    """Nothing is committed without them, so they have everything. Spec: B10."""
    cluster = Cluster([0, 1, 2], min_isr=2)
    cluster.comes(0, 1, 2)
    cluster.goes(2)
    assert (cluster.isr, cluster.elr) == ((0, 1), ()), "enough are in sync: records are committed without broker 2"
    cluster.goes(1)
    assert (cluster.isr, cluster.elr) == ((0,), (1,))
    cluster.goes(0)
    assert (cluster.leader, cluster.isr, cluster.elr) == (-1, (0,), (1,))
    cluster.comes(2)
    assert cluster.leader == -1, "broker 2 is not eligible"
    cluster.comes(1)
    assert (cluster.leader, cluster.isr, cluster.elr) == (1, (1,), (0,))
    cluster.in_sync(1, 2)
    assert cluster.elr == ()


def test_an_eligible_replica_that_restarts_uncleanly_is_no_longer_eligible() -> None:
    cluster = Cluster([0, 1, 2], min_isr=2)
    cluster.comes(0, 1, 2)
    cluster.goes(2)
    cluster.goes(1)
    cluster.comes(1, is_clean=False)
    assert (cluster.leader, cluster.isr, cluster.elr) == (0, (0,), ())
    cluster.goes(0)
    assert cluster.leader == -1


def test_an_unclean_last_member_gives_way_to_an_eligible_replica() -> None:
    cluster = Cluster([0, 1], min_isr=2)
    cluster.comes(0, 1)
    cluster.goes(1)
    cluster.goes(0)
    assert (cluster.isr, cluster.elr) == ((0,), (1,))
    cluster.comes(0, is_clean=False)
    assert cluster.leader == -1, "broker 1 has every committed record; broker 0 may not"
    cluster.comes(1)
    assert (cluster.leader, cluster.isr) == (1, (1,))


def test_a_leaving_follower_leaves_the_in_sync_set_but_stays_eligible() -> None:
    cluster = Cluster([0, 1], min_isr=2)
    cluster.comes(0, 1)
    assert cluster.leaves(1) == 1
    assert (cluster.leader, cluster.isr, cluster.elr) == (0, (0,), (1,))


def test_a_broker_whose_disk_failed_gives_up_and_is_not_eligible() -> None:
    cluster = Cluster([0, 1, 2], min_isr=3)
    cluster.comes(0, 1, 2)
    decision = elections.give_up(cluster.image, cluster, 0, [TopicPartition("t", 0), TopicPartition("gone", 0)])
    cluster.image = applied(cluster.image, decision.changes)
    assert (cluster.leader, cluster.isr, cluster.elr) == (1, (1, 2), ())
    decision = elections.give_up(cluster.image, cluster, 2, [TopicPartition("t", 0)])
    cluster.image = applied(cluster.image, decision.changes)
    assert (cluster.leader, cluster.isr, cluster.elr) == (1, (1,), ()), "a follower leaves the in-sync set"
    assert elections.give_up(cluster.image, cluster, 1, [TopicPartition("t", 0)]).reply == 0, "the last one stays"


def test_a_leaving_broker_is_not_elected() -> None:
    """KIP-841."""
    cluster = Cluster([0, 1, 2])
    cluster.comes(0, 1, 2)
    cluster.image = applied(cluster.image, mark_leaving(cluster.image, 1, 0).changes)
    cluster.goes(0)
    assert cluster.leader == 2


# Cold start


def test_nobody_is_elected_around_a_broker_that_is_expected() -> None:
    """Spec: B10."""
    cluster = Cluster([0, 1, 2])
    cluster.comes(0, 1, 2)
    cluster.dies(0, 1, 2)
    cluster.awaited = (0, 1, 2)
    cluster.comes(1)
    assert (cluster.leader, cluster.isr) == (0, (0, 1, 2))
    cluster.comes(0)
    assert (cluster.leader, cluster.isr) == (0, (0, 1, 2))
    cluster.awaited = ()
    cluster.elects()
    assert (cluster.leader, cluster.isr) == (0, (0, 1)), "broker 2 did not come in time"


def test_an_unclean_election_also_waits_for_an_expected_broker() -> None:
    cluster = Cluster([0, 1], unclean=True)
    cluster.comes(0, 1)
    cluster.in_sync(0)
    cluster.dies(0, 1)
    cluster.awaited = (0,)
    cluster.comes(1)
    assert cluster.leader == 0
    cluster.awaited = ()
    cluster.elects()
    assert cluster.leader == 1


def test_a_directory_of_another_cluster_is_rejected() -> None:
    cluster = Cluster([0])
    with pytest.raises(KafkaError, match="belongs to cluster theirs, but the metadata is new"):
        cluster.comes(0, cluster_id="theirs")
    cluster.comes(0, cluster_id=None)
    with pytest.raises(KafkaError, match="belongs to cluster theirs, but the metadata belongs to cluster cluster"):
        cluster.comes(1, cluster_id="theirs")
    cluster.comes(1, cluster_id="cluster")
