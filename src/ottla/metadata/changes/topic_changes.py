"""The controller's rules for topics: (request, image) -> changes to commit, and a reply. Pure.

Every rule of CreateTopics, CreatePartitions and DeleteTopics is here. A rule has no side effects: `follower.py`
commits the changes if the image that they are based on is still current, and otherwise applies the rule again.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ottla.checks import topic_name_problem
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.controller.decisions import Decision, Put, Remove
from ottla.metadata.controller.placement import check_replicas, invalid_assignment, place_replicas, position_of
from ottla.metadata.image import ClusterImage, TopicImage
from ottla.types import METADATA_TOPIC, ZERO_UUID

MAX_PARTITIONS_PER_REQUEST = 10_000
"""A larger request is rejected, because it would block all others."""

_RESERVED_TOPICS = frozenset({METADATA_TOPIC})


class Rules(Protocol):
    """What the controller needs from the broker's settings."""

    @property
    def num_partitions(self) -> int: ...

    @property
    def default_replication_factor(self) -> int: ...

    @property
    def delete_topic_enable(self) -> bool: ...

    def check_topic_configs(self, image: ClusterImage, configs: Mapping[str, str]) -> None:
        """Raises KafkaError if these settings are invalid for a topic."""

    def check_broker_configs(self, broker: str, configs: Mapping[str, str]) -> None:
        """Raises KafkaError if these settings are invalid for a running broker ("" for all of them)."""

    def check_listeners(self, image: ClusterImage, broker: str, configs: Mapping[str, str]) -> None:
        """Raises KafkaError if this broker's listeners could not use the changed settings: key stores that cannot
        be opened, for example. `configs` is everything that is set for `broker` at run time."""

    def list_default(self, image: ClusterImage, resource_type: int, name: str) -> Sequence[str] | None:
        """The default of a list setting; None if the setting is not a list."""

    def allows_unclean_election(self, image: ClusterImage, topic: TopicImage) -> bool: ...

    def min_insync_replicas(self, image: ClusterImage, topic: TopicImage) -> int: ...

    def internal_replication_factors(self) -> Mapping[str, int]: ...


class NewTopic(NamedTuple):
    """A topic to create. -1 means the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    """(partition, brokers) pairs, instead of a partition count and a replication factor."""
    configs: Sequence[tuple[str, str | None]] = ()


class TopicResult(NamedTuple):
    """The result for one topic; `message` is None on success."""

    name: str | None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic_id: bytes = ZERO_UUID
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}


class MorePartitions(NamedTuple):
    name: str
    total: int
    """The new total number of partitions."""
    assignments: Sequence[Sequence[int]] | None = None


class TopicReference(NamedTuple):
    """A topic by name or, since v6 of DeleteTopics, by id."""

    name: str | None
    topic_id: bytes = ZERO_UUID


# Names


def check_topic_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION unless `name` is a valid topic name.

    >>> check_topic_name("orders.v2")
    """
    problem = topic_name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def missing_topic_error(name: str) -> ErrorCode:
    """The error for a topic that does not exist: its name is invalid, or it is unknown."""
    is_valid = topic_name_problem(name) is None
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION


def metric_name(topic: str) -> str:
    """Topics whose names differ only in `.` and `_` would have the same metrics."""
    return topic.replace(".", "_")


# CreateTopics


def create_topics(
    image: ClusterImage,
    topics: Sequence[NewTopic],
    rules: Rules,
    new_topic_id: Callable[[], bytes],
    *,
    validate_only: bool = False,
) -> Decision[list[TopicResult]]:
    """Handles each topic independently: an invalid one does not affect the others."""
    results = []
    changes: list[Put | Remove] = []
    known = {metric_name(name): name for name in image.topics}
    budget = MAX_PARTITIONS_PER_REQUEST
    times = Counter(topic.name for topic in topics)
    for topic in {topic.name: topic for topic in topics}.values():
        try:
            if times[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            _check_new_name(topic.name, known)
            configs = _creation_configs(topic)
            rules.check_topic_configs(image, configs)
            topic_id = new_topic_id()
            replicas = _replicas_of_new_topic(image, topic, rules, topic_id, budget)
        except KafkaError as error:
            results.append(TopicResult(topic.name, error.code, error.detail))
            continue
        budget -= len(replicas)
        known[metric_name(topic.name)] = topic.name
        changes.append(Put(records.topic_key(topic.name), records.write_topic(topic_id, replicas)))
        changes.append(Put(records.topic_config_key(topic.name), records.write_config(configs)))
        changes += _first_states(topic.name, 0, replicas)
        results.append(
            TopicResult(
                topic.name,
                topic_id=topic_id,
                partitions=len(replicas),
                replication_factor=len(replicas[0]),
                configs=configs,
            )
        )
    if validate_only or not changes:
        return Decision(results)
    # Rewriting the parent key makes concurrent creations on two brokers conflict: their names may collide.
    return Decision(results, [Put(records.TOPICS, b"{}"), *changes])


def _check_new_name(name: str, known: Mapping[str, str]) -> None:
    """`known` has the existing topics by their metric names."""
    if name in _RESERVED_TOPICS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    check_topic_name(name)
    existing = known.get(metric_name(name))
    if existing == name:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if existing is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {existing}")


def _creation_configs(topic: NewTopic) -> dict[str, str]:
    missing = [name for name, value in topic.configs if value is None]
    if missing:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(missing)}")
    return {name: value for name, value in topic.configs if value is not None}


def _replicas_of_new_topic(
    image: ClusterImage, topic: NewTopic, rules: Rules, topic_id: bytes, budget: int
) -> list[tuple[int, ...]]:
    if topic.assignments:
        return _manual_replicas(image, topic, budget)
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.partitions < -1 or topic.partitions == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    count = rules.num_partitions if topic.partitions == -1 else topic.partitions
    factor = rules.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    _spend(budget, count)
    start = int.from_bytes(topic_id[:4], "big")
    return place_replicas(_racks(image), count, factor, start=start)


def _manual_replicas(image: ClusterImage, topic: NewTopic, budget: int) -> list[tuple[int, ...]]:
    for what, value in (("replication factor", topic.replication_factor), ("numPartitions", topic.partitions)):
        if value != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    _spend(budget, len(topic.assignments))
    found: dict[int, tuple[int, ...]] = {}
    for partition, brokers in topic.assignments:
        if partition in found:
            raise invalid_assignment(f"Found multiple manual partition assignments for partition {partition}")
        first = next(iter(found.values()), None)
        found[partition] = _checked_replicas(image, partition, brokers, None if first is None else len(first))
    if set(found) != set(range(len(found))):
        raise invalid_assignment("partitions should be a consecutive 0-based integer sequence")
    return [found[partition] for partition in range(len(found))]


def _checked_replicas(
    image: ClusterImage, partition: int, brokers: Sequence[int], replication_factor: int | None
) -> tuple[int, ...]:
    check_replicas(brokers, image.brokers)
    if replication_factor is not None and len(brokers) != replication_factor:
        raise invalid_assignment(
            f"The manual partition assignment gives partition {partition} {len(brokers)} replica(s), "
            f"but other partitions have {replication_factor}."
        )
    return tuple(brokers)


def _spend(budget: int, count: int) -> None:
    if count > budget:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"A request can create at most {MAX_PARTITIONS_PER_REQUEST} partitions. Use several requests.",
        )


def _racks(image: ClusterImage) -> dict[int, str | None]:
    return {broker_id: broker.rack for broker_id, broker in image.brokers.items()}


def _first_states(topic: str, first_partition: int, replicas: Sequence[tuple[int, ...]]) -> list[Put]:
    return [
        Put(
            records.partition_state_key(topic, first_partition + index),
            records.write_partition_state(brokers[0], 0, brokers),
        )
        for index, brokers in enumerate(replicas)
    ]


# CreatePartitions


def create_partitions(
    image: ClusterImage, requests: Sequence[MorePartitions], *, validate_only: bool = False
) -> Decision[list[TopicResult]]:
    results = []
    changes: list[Put | Remove] = []
    budget = MAX_PARTITIONS_PER_REQUEST
    times = Counter(request.name for request in requests)
    for request in {request.name: request for request in requests}.values():
        try:
            if times[request.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            topic, added = _added_replicas(image, request, budget)
        except KafkaError as error:
            results.append(TopicResult(request.name, error.code, error.detail))
            continue
        budget -= len(added)
        replicas = [partition.replicas for partition in topic.partitions] + added
        value = records.write_topic(
            topic.topic_id,
            replicas,
            {partition.index: partition.adding for partition in topic.partitions},
            {partition.index: partition.removing for partition in topic.partitions},
        )
        changes.append(Put(records.topic_key(topic.name), value))
        changes += _first_states(topic.name, len(topic.partitions), added)
        results.append(TopicResult(topic.name, topic_id=topic.topic_id, partitions=len(replicas)))
    return Decision(results, () if validate_only else changes)


def _added_replicas(
    image: ClusterImage, request: MorePartitions, budget: int
) -> tuple[TopicImage, list[tuple[int, ...]]]:
    topic = image.topics.get(request.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{request.name}' does not exist.")
    existing = len(topic.partitions)
    if request.total == existing:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {existing} partition(s).")
    if request.total < existing:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {existing} partition(s); {request.total} would not be an increase.",
        )
    additional = request.total - existing
    _spend(budget, additional)
    first = topic.partitions[0].replicas
    if request.assignments is None:
        racks = _racks(image)
        start = position_of(first[0], racks)
        return topic, place_replicas(racks, additional, len(first), start=start, first_partition=existing)
    if len(request.assignments) != additional:
        raise invalid_assignment(
            f"Attempted to add {additional} additional partition(s), "
            f"but {len(request.assignments)} assignment(s) were specified."
        )
    return topic, [
        _checked_replicas(image, existing + index, brokers, len(first))
        for index, brokers in enumerate(request.assignments)
    ]


# DeleteTopics


def delete_topics(
    image: ClusterImage, references: Sequence[TopicReference], rules: Rules
) -> Decision[list[TopicResult]]:
    results = []
    changes: list[Put | Remove] = []
    times = Counter(_referred_topic_id(image, reference) for reference in references)
    for reference in dict.fromkeys(references):
        try:
            topic = _deletable_topic(image, reference, rules, times)
        except KafkaError as error:
            results.append(TopicResult(reference.name, error.code, error.detail, reference.topic_id))
            continue
        # Children first: ZooKeeper does not delete a key that has children.
        changes += [Remove(records.partition_state_key(topic.name, p.index)) for p in topic.partitions]
        changes.append(Remove(records.topic_config_key(topic.name)))
        changes.append(Remove(records.topic_key(topic.name)))
        results.append(TopicResult(topic.name, topic_id=topic.topic_id))
    if not changes:
        return Decision(results)
    return Decision(results, [Put(records.TOPICS, b"{}"), *changes])


def _referred_topic_id(image: ClusterImage, reference: TopicReference) -> Any:
    """Equal for two references to the same topic, whether it exists or not."""
    if reference.name is not None:
        topic = image.topics.get(reference.name)
        return reference.name if topic is None else topic.topic_id
    return reference.topic_id


def _deletable_topic(
    image: ClusterImage, reference: TopicReference, rules: Rules, times: Mapping[Any, int]
) -> TopicImage:
    if not rules.delete_topic_enable:
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
    name, topic_id = reference
    if name is not None and topic_id != ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if name is None and topic_id == ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if times[_referred_topic_id(image, reference)] > 1:
        kind = "topic name" if name is not None else "topic id"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate {kind}.")
    topic = image.find_topic_by_id(topic_id) if name is None else image.topics.get(name)
    if topic is None:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise KafkaError(unknown, "This server does not host this topic.")
    return topic


# Producer ids

PRODUCER_ID_BLOCK_SIZE = 1000


def next_producer_id_block(broker_id: int, stored: bytes | None, count: int) -> Decision[range]:
    """A block of producer ids reserved for this broker, after the last block of any broker."""
    first = 0
    if stored is not None:
        first = records.read_producer_id_block(records.PRODUCER_ID_BLOCK, stored)[1] + 1
    block = range(first, first + max(count, PRODUCER_ID_BLOCK_SIZE))
    value = records.write_producer_id_block(broker_id, block.start, block.stop - 1)
    return Decision(block, [Put(records.PRODUCER_ID_BLOCK, value)])
