"""Limits how fast replicas are copied while they move: sets and removes the throttles of KIP-73."""

from collections.abc import Iterable, Mapping, Sequence

from ottla.client.blocking import Admin
from ottla.types import TopicPartition

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
ALL_BROKERS = ""


def throttled_replicas(
    moves: Iterable[tuple[TopicPartition, Sequence[int]]], before: Mapping[TopicPartition, Sequence[int]]
) -> dict[str, dict[str, str]]:
    """The settings of each topic with replicas to copy: leaders are all existing replicas, followers the new ones.

    >>> orders = TopicPartition("orders", 0)
    >>> throttled_replicas([(orders, (1, 2))], {orders: (0, 1)})["orders"][FOLLOWER_REPLICAS]
    '0:2'
    """
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for partition, replicas in moves:
        new = [broker for broker in replicas if broker not in before[partition]]
        if new:
            index = partition.partition
            leaders.setdefault(partition.topic, []).extend(f"{index}:{broker}" for broker in before[partition])
            followers.setdefault(partition.topic, []).extend(f"{index}:{broker}" for broker in new)
    return {
        topic: {LEADER_REPLICAS: ",".join(each), FOLLOWER_REPLICAS: ",".join(followers[topic])}
        for topic, each in leaders.items()
    }


def set_throttle(admin: Admin, rate: int, replicas: Mapping[str, Mapping[str, str]]) -> None:
    """Limits each broker to `rate` bytes per second, for these replicas. Call it before the move."""
    for topic, settings in replicas.items():
        admin.alter_configs("topic", topic, settings)
    admin.alter_configs("broker", ALL_BROKERS, {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)})


def remove_throttle(admin: Admin, topics: Iterable[str]) -> None:
    admin.alter_configs("broker", ALL_BROKERS, {LEADER_RATE: None, FOLLOWER_RATE: None})
    for topic in topics:
        admin.alter_configs("topic", topic, {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None})


def throttled_topics(admin: Admin, topics: Iterable[str]) -> list[str]:
    """The topics that have throttled replicas."""
    names = [LEADER_REPLICAS, FOLLOWER_REPLICAS]
    return [topic for topic in topics if any(e.value for e in admin.describe_configs("topic", topic, names=names))]
