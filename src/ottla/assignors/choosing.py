"""Creates assignors from `partition.assignment.strategy`. Pure."""

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from ottla.assignors import BUILT_IN
from ottla.assignors.base import COOPERATIVE, Assignment, Assignor, ClusterMetadata, Subscription
from ottla.errors import ConfigError
from ottla.types import TopicPartition

SETTING = "partition.assignment.strategy"

JAVA_NAMES = {f"org.apache.kafka.clients.consumer.{assignor.__name__}": name for name, assignor in BUILT_IN.items()}
"""The class names of the Java client, so that its configuration can be used unchanged."""


def choose_assignors(chosen: Any) -> list[Assignor]:
    """Assignors in order of preference, from names, `module:Class`, classes or instances.

    >>> [assignor.name for assignor in choose_assignors("cooperative-sticky,range")]
    ['cooperative-sticky', 'range']
    """
    if isinstance(chosen, str):
        chosen = [name.strip() for name in chosen.split(",") if name.strip()]
    elif isinstance(chosen, Assignor | type) or not isinstance(chosen, Iterable):
        chosen = [chosen]
    assignors = [_as_assignor(item) for item in chosen]
    if not assignors:
        raise ConfigError(f"{SETTING} is empty", f"Name at least one of {', '.join(BUILT_IN)}.")
    names = [assignor.name for assignor in assignors]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{SETTING} has {name} twice", "Assignors of one group need different names.")
    return assignors


def shared_protocol(assignors: Iterable[Assignor]) -> str:
    """COOPERATIVE only if every assignor supports it: the group may choose any of them."""
    return COOPERATIVE if all(COOPERATIVE in assignor.protocols for assignor in assignors) else "EAGER"


def _as_assignor(item: Any) -> Assignor:
    if isinstance(item, str):
        item = JAVA_NAMES.get(item, item)
        if item in BUILT_IN:
            return BUILT_IN[item]()
        if ":" not in item:
            known = ", ".join(BUILT_IN)
            raise ConfigError(f"unknown assignor {item}", f"Use one of {known}, or module:Class for a custom one.")
        item = _import(item)
    elif not isinstance(item, Assignor) and getattr(item, "name", None) in BUILT_IN and _is_of_kafka_python(item):
        return BUILT_IN[item.name]()
    if isinstance(item, type) and issubclass(item, Assignor):
        try:
            item = item()
        except TypeError as error:
            hint = "Pass an instance, or give its arguments defaults."
            raise ConfigError(f"assignor {item.__name__} cannot be instantiated: {error}", hint) from error
    if not isinstance(item, Assignor):
        raise ConfigError(f"not an assignor: {item!r}", "Pass a name or a subclass of ottla.assignors.Assignor.")
    name = getattr(item, "name", None)
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"assignor {type(item).__name__} has no name", 'Set `name = "…"` in its class.')
    # Members only compare names: two assignors with one name would give conflicting assignments.
    if name in BUILT_IN and not isinstance(item, BUILT_IN[name]):
        raise ConfigError(f"assignor {type(item).__name__} has the name of a built-in one: {name}", "Rename it.")
    return item


def _is_of_kafka_python(item: Any) -> bool:
    """Whether it is an assignor of kafka-python or aiokafka: theirs have the same names and results."""
    return isinstance(item, type) and item.__module__.startswith(("kafka.coordinator.", "aiokafka.coordinator."))


def _import(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"assignor {path} cannot be imported: {error}", "Write module:Class.") from error


def left_over(
    cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription], shares: Mapping[str, Assignment]
) -> list[TopicPartition]:
    """Partitions of subscribed topics that no member was assigned."""
    given = {partition for share in shares.values() for partition in share.partitions}
    topics = {topic for subscription in subscriptions.values() for topic in subscription.topics}
    return [p for topic in sorted(topics) for p in cluster.partitions_of(topic) if p not in given]
