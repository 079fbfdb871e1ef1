"""Calls assignors and checks their results, so that an error names the assignor. Pure."""

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ottla.assignors.base import Assignment, Assignor, ClusterMetadata, Subscription
from ottla.errors import OttlaError, error_text_with_type
from ottla.types import TopicPartition


def run_assignor(
    assignor: Assignor, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]
) -> dict[str, Assignment]:
    """Runs the assignor. Raises OttlaError if it fails or its result is invalid."""
    who = _name(assignor)
    with _explaining(who):
        shares: Any = assignor.assign(cluster, subscriptions)
    if not isinstance(shares, Mapping):
        problem = f"{who} returned {type(shares).__name__}, not a dict of member to Assignment"
        raise OttlaError(problem, "Return {member: Assignment([…]), …}.")
    missing = sorted(subscriptions.keys() - shares.keys())
    if missing:
        raise OttlaError(f"{who} left out {', '.join(missing)}", "Members without partitions need Assignment([]).")
    owners: dict[TopicPartition, str] = {}
    checked = {}
    for member, share in shares.items():
        if member not in subscriptions:
            problem = f"{who} assigned partitions to {member!r}, which is not a member of the group"
            raise OttlaError(problem, "The members are the keys of subscriptions.")
        if not isinstance(share, Assignment):
            problem = f"{who} returned {type(share).__name__} for {member}, not an Assignment"
            raise OttlaError(problem, "Return Assignment([…]) for each member.")
        partitions = _partitions(who, member, share.partitions)
        _check_places(who, member, partitions, cluster, subscriptions[member])
        for partition in partitions:
            other = owners.setdefault(partition, member)
            if other is not member and not assignor.shares_partitions:
                raise OttlaError(
                    f"{who} assigned {partition} to both {other} and {member}",
                    "Set `shares_partitions = True` in its class if that is intended.",
                )
        _check_user_data(f"{who}: the user data for {member}", share.user_data)
        checked[member] = Assignment(partitions, share.user_data)
    return checked


def subscription_of(assignor: Assignor, topics: list[str]) -> Subscription:
    """What the assignor sends with JoinGroup. Raises OttlaError if it fails or its result is invalid."""
    who = f"subscription() of {_name(assignor)}"
    with _explaining(who):
        subscription: Any = assignor.subscription(topics)
    if not isinstance(subscription, Subscription):
        raise OttlaError(
            f"{who} returned {type(subscription).__name__}, not a Subscription", "Return Subscription(topics)."
        )
    if isinstance(subscription.topics, str) or not all(isinstance(topic, str) for topic in subscription.topics):
        raise OttlaError(f"{who} returned {subscription.topics!r} as topics", "Return a list of names.")
    _check_user_data(f"{who}: the user data", subscription.user_data)
    return subscription


def announce(assignor: Assignor, assignment: Assignment, generation: int) -> None:
    """Calls on_assignment(), with the generation if it takes it. Raises OttlaError if it fails."""
    method: Any = assignor.on_assignment
    with _explaining(f"on_assignment() of {_name(assignor)}"):
        if _takes_generation(method):
            method(assignment, generation)
        else:
            method(assignment)


@contextlib.contextmanager
def _explaining(who: str) -> Iterator[None]:
    """Errors of the user's code say where they come from."""
    try:
        yield
    except Exception as error:
        raise OttlaError(f"{who} failed: {error_text_with_type(error)}") from error


def _takes_generation(method: Any) -> bool:
    try:
        inspect.signature(method).bind(None, 0)
    except TypeError:
        return False
    except ValueError:  # no signature: written in C
        return True
    return True


def _name(assignor: Assignor) -> str:
    return f"assignor {assignor.name}"


def _partitions(who: str, member: str, partitions: Any) -> list[TopicPartition]:
    """Accepts (topic, partition) pairs as well as TopicPartitions."""
    if isinstance(partitions, str | bytes | Mapping) or not isinstance(partitions, Iterable):
        problem = f"{who} returned {partitions!r} for {member}, not a list of partitions"
        raise OttlaError(problem, 'Return [TopicPartition("orders", 0), …].')
    checked = []
    for partition in partitions:
        is_pair = isinstance(partition, tuple) and len(partition) == 2
        if not is_pair or not isinstance(partition[0], str) or type(partition[1]) is not int:
            raise OttlaError(
                f"{who} assigned {partition!r} to {member}, which is not a partition",
                'Return TopicPartition("orders", 0) or ("orders", 0).',
            )
        checked.append(TopicPartition(*partition))
    return checked


def _check_places(
    who: str, member: str, partitions: list[TopicPartition], cluster: ClusterMetadata, subscription: Subscription
) -> None:
    topics = {topic: cluster.count_of(topic) for topic in subscription.topics}
    for partition in partitions:
        count = topics.get(partition.topic)
        if count is None:
            raise OttlaError(
                f"{who} assigned {partition} to {member}, which is not subscribed to {partition.topic}",
                "Assign partitions of the member's own topics: subscriptions[member].topics.",
            )
        if not 0 <= partition.partition < count:
            there = f"{partition.topic} has {count} partitions" if count else "the topic does not exist"
            raise OttlaError(
                f"{who} assigned {partition} to {member}, but {there}", "Use cluster.partitions_of(topic)."
            )
    if len(set(partitions)) < len(partitions):
        twice = next(partition for partition in partitions if partitions.count(partition) > 1)
        raise OttlaError(f"{who} assigned {twice} twice to {member}", "Assign it once.")


def _check_user_data(what: str, user_data: Any) -> None:
    if user_data is not None and not isinstance(user_data, bytes | bytearray | memoryview):
        raise OttlaError(
            f"{what} is {type(user_data).__name__}, not bytes", "Encode it first, for example with .encode()."
        )
