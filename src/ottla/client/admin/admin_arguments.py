"""What users hand to an admin, made plain or refused by the name of the argument. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ottla.client.consumer.consumer_arguments import ByPartition, PartitionLike, as_partition, check_mapping
from ottla.client.core.arguments import whole_number
from ottla.client.core.model import NewTopic
from ottla.errors import OttlaError
from ottla.types import TopicPartition

T = TypeVar("T")


def as_names(given: Iterable[str], what: str) -> list[str]:
    """A list of names. One name alone is a mistake: its letters would be taken for names, and be deleted, say.

    >>> as_names(("orders", "bills"), "topics")
    ['orders', 'bills']
    """
    if isinstance(given, str):
        raise OttlaError(f"{what} must be a list of names, not the one name {given!r}", f"Write [{given!r}].")
    names = list(given)
    for name in names:
        if not isinstance(name, str):
            raise OttlaError(f"{what} must be a list of names, not of {type(name).__name__}: {name!r}")
    return names


def as_new_topics(given: Iterable[NewTopic]) -> list[NewTopic]:
    if isinstance(given, NewTopic | str):
        raise OttlaError(f"topics must be a list, not {given!r}", 'Write [NewTopic("orders", 3)].')
    topics = list(given)
    for topic in topics:
        if not isinstance(topic, NewTopic):
            raise OttlaError(f"not a topic to create: {topic!r}", 'Write NewTopic("orders", 3).')
        for count, number in (("partitions", topic.partitions), ("replication_factor", topic.replication_factor)):
            if whole_number(number) is None:
                raise OttlaError(f"the {count} of topic {topic.name} must be a whole number, not {number!r}")
    return topics


def as_partitions(given: Iterable[PartitionLike]) -> list[TopicPartition]:
    return [as_partition(partition) for partition in given]


def by_partition(given: ByPartition[T], name: str, example: str) -> dict[TopicPartition, T]:
    """A dict by partition, whose keys may be plain pairs.

    >>> by_partition({("orders", 0): 42}, "offsets", "")
    {TopicPartition(topic='orders', partition=0): 42}
    """
    checked: Mapping[Any, T] = check_mapping(given, name, example)
    return {as_partition(partition): value for partition, value in checked.items()}
