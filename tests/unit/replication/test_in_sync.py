"""A leader proposes changes of in-sync sets: who joins, who leaves, and what an unknown outcome means."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.controller.isr_changes import IsrChange
from ottla.replication.config import ReplicaConfig
from ottla.replication.in_sync import InSyncChanges
from ottla.types import TopicPartition
from tests.support.worlds.data_world import DataWorld

LAG_MAX_MS = 10_000
ORDERS = TopicPartition("orders", 0)


class Cluster:
    """Broker 0 leads. The test is the metadata store, and plays the followers."""

    def __init__(self, world: DataWorld) -> None:
        self.world = world
        self.proposals: list[IsrChange] = []
        self.answers: list[ErrorCode | None] = []
        """The next answers; without one the store commits. None: the store does not answer."""
        world.replicas.in_sync = InSyncChanges(world.replicas, self.alter)
        world.replicas.in_sync.start(world.loop)

    async def alter(self, change: IsrChange) -> ErrorCode:
        self.proposals.append(change)
        answer = self.answers.pop(0) if self.answers else ErrorCode.NONE
        if answer is None:
            await asyncio.Event().wait()
        if answer is ErrorCode.NONE:
            self.commit(tuple(broker_id for broker_id, _ in change.isr))
        assert answer is not None
        return answer

    def commit(self, isr: tuple[int, ...]) -> None:
        topic = self.world.image.topics["orders"]
        partition = topic.partitions[0]
        changed = partition._replace(isr=isr, partition_epoch=partition.partition_epoch + 1)
        topics = {"orders": topic._replace(partitions=(changed,))}
        self.world.image = replace(self.world.image, topics=topics, version=self.world.image.version + 1)
        self.world.replicas.apply(self.world.image)

    def fetches(self, broker_id: int, offset: int, broker_epoch: int = 1) -> None:
        async def fetch() -> None:
            replica = self.world.replica("orders")
            self.world.replicas.follower_fetched(replica, broker_id, offset, 0, broker_epoch)

        self.world.run(fetch())
        self.world.wait()

    @property
    def isr(self) -> set[int]:
        return set(self.world.replica("orders").isr)

    def proposed(self) -> list[list[int]]:
        return [[broker_id for broker_id, _ in change.isr] for change in self.proposals]


@pytest.fixture
def cluster(tmp_path: Any) -> Iterator[Cluster]:
    world = DataWorld(str(tmp_path), config=ReplicaConfig(replica_lag_time_max_ms=LAG_MAX_MS))
    yield Cluster(world)
    world.stop()
    world.close()


def test_a_follower_that_has_caught_up_joins(cluster: Cluster) -> None:
    cluster.world.topic("orders", replicas=(0, 1, 2), isr=(0,))
    cluster.world.append("orders", "a")
    cluster.fetches(1, 0)
    assert cluster.proposals == []
    cluster.fetches(1, 1, broker_epoch=1)
    (change,) = cluster.proposals
    assert change == IsrChange(
        ORDERS, cluster.world.image.topics["orders"].topic_id, 0, 0, ((0, cluster.world.replicas.broker_epoch), (1, 1))
    )
    assert cluster.isr == {0, 1}
    assert cluster.world.replicas.in_sync is not None
    assert (cluster.world.replicas.in_sync.expands, cluster.world.replicas.in_sync.shrinks) == (1, 0)


def test_a_follower_that_lags_leaves_and_an_idle_one_stays(cluster: Cluster) -> None:
    cluster.world.topic("orders", replicas=(0, 1, 2))
    cluster.fetches(1, 0)
    cluster.fetches(2, 0)
    cluster.world.wait(3 * LAG_MAX_MS)
    assert cluster.isr == {0, 1, 2}, "there was nothing to fetch"
    cluster.world.append("orders", "a")
    cluster.fetches(1, 1)
    cluster.world.wait(2 * LAG_MAX_MS)
    assert cluster.isr == {0, 1}
    assert cluster.world.log("orders").high_watermark == 1


def test_a_second_follower_joins_after_the_first_without_another_fetch(cluster: Cluster) -> None:
    """In an idle partition neither of them fetches again."""
    cluster.world.topic("orders", replicas=(0, 1, 2), isr=(0,))
    release = asyncio.Event()
    commit = cluster.alter

    async def slow(change: IsrChange) -> ErrorCode:
        await release.wait()
        return await commit(change)

    assert cluster.world.replicas.in_sync is not None
    cluster.world.replicas.in_sync._alter_partition = slow  # noqa: SLF001
    cluster.fetches(1, 0)
    cluster.fetches(2, 0)
    assert cluster.proposals == []
    release.set()
    cluster.world.wait()
    assert cluster.isr == {0, 1, 2}


def test_a_rejected_proposal_is_repeated_later(cluster: Cluster) -> None:
    cluster.world.topic("orders", replicas=(0, 1), isr=(0,))
    cluster.answers = [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INELIGIBLE_REPLICA]
    cluster.fetches(1, 0)
    assert cluster.proposed() == [[0, 1]]
    assert cluster.world.replica("orders").joining == frozenset()
    cluster.fetches(1, 0)
    assert cluster.proposed() == [[0, 1]], "not with every fetch"
    cluster.world.wait(1_000)
    assert cluster.isr == {0, 1}
    assert len(cluster.proposals) == 3


def test_a_rejected_proposal_is_repeated_however_the_clock_rounds(cluster: Cluster) -> None:
    """The timer may fire a fraction of a millisecond before the back-off ends. An idle follower sets no other."""
    cluster.world.topic("orders", replicas=(0, 1), isr=(0,))
    cluster.answers = [ErrorCode.INELIGIBLE_REPLICA] * 300
    cluster.fetches(1, 0)
    cluster.world.wait(300 * 6_000)
    assert cluster.isr == {0, 1}


@pytest.mark.parametrize("code", [ErrorCode.NOT_CONTROLLER, ErrorCode.KAFKA_STORAGE_ERROR])
def test_after_an_unknown_outcome_the_joiner_counts_and_the_proposal_is_repeated(
    cluster: Cluster, code: ErrorCode
) -> None:
    """KIP-497: it may have been committed. If the high watermark passed the joiner, it could lead without the rest."""
    cluster.world.topic("orders", replicas=(0, 1), isr=(0,))
    cluster.answers = [code] * 3
    cluster.fetches(1, 0)
    cluster.world.append("orders", "a")
    assert cluster.world.replica("orders").joining == {1}
    assert cluster.world.log("orders").high_watermark == 0
    cluster.world.wait(3_000)
    assert cluster.isr == {0, 1}
    assert len(set(cluster.proposals)) == 1, "the same proposal again"
    assert cluster.world.log("orders").high_watermark == 0
    cluster.fetches(1, 1)
    assert cluster.world.log("orders").high_watermark == 1


def test_a_proposal_that_is_not_answered_holds_back_the_high_watermark(cluster: Cluster) -> None:
    cluster.world.topic("orders", replicas=(0, 1), isr=(0,))
    cluster.answers = [None]
    cluster.fetches(1, 0)
    cluster.world.append("orders", "a")
    cluster.world.wait(10 * LAG_MAX_MS)
    assert cluster.world.log("orders").high_watermark == 0
    cluster.commit((0,))
    assert cluster.world.log("orders").high_watermark == 1


def test_a_new_leader_epoch_ends_the_proposals_of_the_old_one(cluster: Cluster) -> None:
    cluster.world.topic("orders", replicas=(0, 1), isr=(0,))
    cluster.answers = [ErrorCode.NOT_CONTROLLER]
    cluster.fetches(1, 0)
    cluster.world.change_partitions(lambda p: p._replace(leader=1, leader_epoch=1, isr=(0, 1)))
    cluster.world.wait(5_000)
    assert len(cluster.proposals) == 1


def test_a_follower_that_is_leaving_or_unknown_is_not_proposed(cluster: Cluster) -> None:
    cluster.world.topic("orders", replicas=(0, 1), isr=(0,))
    brokers = cluster.world.image.brokers
    leaving = {**brokers, 1: brokers[1]._replace(is_leaving=True)}
    cluster.world.publish(replace(cluster.world.image, brokers=leaving))
    cluster.fetches(1, 0)
    assert cluster.proposals == []
    cluster.world.publish(replace(cluster.world.image, brokers=brokers))
    cluster.world.wait()
    assert cluster.isr == {0, 1}, "it came back, and did not have to fetch again"


# -- without contact to the store --


def test_a_broker_that_may_have_been_replaced_commits_nothing(cluster: Cluster) -> None:
    """Its session was not confirmed for its timeout, so another leader may be elected already."""
    world = cluster.world
    world.topic("orders", replicas=(0, 1))
    world.append("orders", "before")
    confirmed = False
    world.replicas._is_session_confirmed = lambda: confirmed  # noqa: SLF001
    cluster.fetches(1, 1)
    assert world.log("orders").high_watermark == 0
    with pytest.raises(KafkaError) as refused:
        world.replicas.append(ORDERS, b"", acks=-1)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    confirmed = True
    world.wait(100)
    assert world.log("orders").high_watermark == 1, "without another fetch"


def test_a_partition_with_one_replica_needs_no_contact_to_the_store(cluster: Cluster) -> None:
    cluster.world.topic("orders")
    cluster.world.replicas._is_session_confirmed = lambda: False  # noqa: SLF001
    cluster.world.append("orders", "a")
    assert cluster.world.log("orders").high_watermark == 1
