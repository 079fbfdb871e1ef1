"""Brokers that were lost a moment ago."""

from ottla.metadata.controller.lost_brokers import HELD_SECONDS, LISTED_SECONDS, LostBrokers
from ottla.metadata.image import BrokerRegistration, ClusterImage, PartitionImage

BROKERS = {id_: BrokerRegistration(id_, epoch=id_, endpoints={}) for id_ in (1, 2, 3)}
ALL = ClusterImage(brokers=BROKERS)
TWO = ClusterImage(brokers={id_: BROKERS[id_] for id_ in (2, 3)})
LED_BY_1 = PartitionImage(index=0, leader=1, leader_epoch=0, partition_epoch=0, replicas=(1, 2), isr=(1, 2))


def test_a_lost_broker_is_listed_for_a_few_seconds() -> None:
    lost = LostBrokers()
    lost.note(ALL, TWO, 10.0)
    assert lost.listed(10.0 + LISTED_SECONDS - 0.1) == [BROKERS[1]]
    assert lost.listed(10.0 + LISTED_SECONDS) == []
    assert not lost.has_any


def test_a_broker_that_was_stopped_is_listed_as_long_as_one_that_died() -> None:
    lost = LostBrokers()
    leaving = BROKERS[1]._replace(is_leaving=True)
    lost.note(ClusterImage(brokers={**BROKERS, 1: leaving}), TWO, 10.0)
    assert lost.listed(10.0 + LISTED_SECONDS - 0.1) == [leaving]
    assert lost.listed(10.0 + LISTED_SECONDS) == []


def test_a_broker_that_is_back_is_not_lost() -> None:
    lost = LostBrokers()
    lost.note(ALL, TWO, 10.0)
    lost.note(TWO, ALL, 10.1)
    assert lost.listed(10.1) == []


def test_a_partition_awaits_an_election_while_its_leader_is_newly_lost_and_another_replica_can_lead() -> None:
    lost = LostBrokers()
    assert not lost.awaits_election(TWO, LED_BY_1, 10.0), "a leader that has been away for longer"
    lost.note(ALL, TWO, 10.0)
    assert lost.awaits_election(TWO, LED_BY_1, 10.0)
    assert not lost.awaits_election(TWO, LED_BY_1._replace(leader=2), 10.0)
    assert not lost.awaits_election(TWO, LED_BY_1._replace(isr=(1,)), 10.0), "nobody can take over"
    assert not lost.awaits_election(TWO, LED_BY_1, 10.0 + HELD_SECONDS)
