"""What is counted from one image of the cluster to the next: in-sync sets, new leaders, failover times."""

from typing import Any

from ottla.broker.monitoring.cluster_metrics import FAILOVER_BOUNDS_S, ClusterCounters
from ottla.metadata.image import BrokerRegistration, ClusterImage, PartitionImage, TopicImage

ME = 1


def image(brokers: tuple[int, ...], *partitions: tuple[int, tuple[int, ...]], topic_id: bytes = b"i") -> ClusterImage:
    """A topic whose partitions have these leaders and in-sync sets."""
    found = tuple(PartitionImage(n, leader, 1, 1, (0, 1, 2), isr) for n, (leader, isr) in enumerate(partitions))
    registrations: dict[int, Any] = {broker: BrokerRegistration(broker, 1, {}) for broker in brokers}
    return ClusterImage(brokers=registrations, topics={"orders": TopicImage("orders", topic_id * 16, found, {})})


def counted(*images: tuple[int, ClusterImage]) -> ClusterCounters:
    counters = ClusterCounters(ME)
    for now_ms, each in images:
        counters.apply(each, now_ms)
    return counters


def test_in_sync_sets_of_my_partitions_are_counted() -> None:
    all_three = (0, 1, 2)
    counters = counted(
        (0, image(all_three, (ME, (1, 2)), (0, (0, 1)))),
        (1, image(all_three, (ME, (0, 1, 2)), (0, (0, 1, 2)))),
        (2, image(all_three, (ME, (0, 1)), (0, (0,)))),
    )
    assert (counters.expands, counters.shrinks) == (1, 1)


def test_a_failover_lasts_from_the_loss_of_the_leader_to_my_election() -> None:
    counters = counted(
        (0, image((0, 1, 2), (0, (0, 1, 2)))),
        (1_000, image((1, 2), (0, (0, 1, 2)))),
        (1_200, image((1, 2), (1, (1, 2)))),
    )
    assert counters.leader_changes == 1
    assert counters.failover_seconds == 0.2
    assert counters.failover_buckets[FAILOVER_BOUNDS_S.index(0.25)] == 1
    assert sum(counters.failover_buckets) == 1


def test_time_without_any_leader_counts() -> None:
    counters = counted(
        (0, image((0, 1, 2), (0, (0, 1)))),
        (1_000, image((1, 2), (0, (0, 1)))),
        (1_100, image((1, 2), (-1, (0, 1)))),
        (9_000, image((1, 2), (1, (1,)))),
    )
    assert counters.failover_seconds == 8.0


def test_leadership_that_was_handed_over_is_no_failover() -> None:
    counters = counted((0, image((0, 1, 2), (0, (0, 1)))), (1_000, image((0, 1, 2), (1, (0, 1)))))
    assert counters.leader_changes == 1
    assert sum(counters.failover_buckets) == 0


def test_a_failover_to_another_broker_is_counted_there() -> None:
    counters = counted(
        (0, image((0, 1, 2), (0, (0, 2)))), (1_000, image((1, 2), (0, (0, 2)))), (1_200, image((1, 2), (2, (2,))))
    )
    assert counters.leader_changes == 0
    assert sum(counters.failover_buckets) == 0


def test_a_topic_that_was_created_again_is_another_one() -> None:
    counters = counted((0, image((0, 1), (0, (0,)))), (1, image((0, 1), (1, (1,)), topic_id=b"j")))
    assert counters.leader_changes == 0
