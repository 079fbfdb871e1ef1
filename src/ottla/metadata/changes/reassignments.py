"""Partition reassignments: replicas are added, catch up, and the others are removed (KIP-455). Pure.

During a reassignment a partition has the replicas of both placements. It completes when every added replica is in sync.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.controller.decisions import Decision, Put
from ottla.metadata.controller.elections import (
    CONTROLLER_ONLY,
    MAX_CHANGES,
    Election,
    ElectionRules,
    Roles,
    electable_brokers,
    put_roles,
)
from ottla.metadata.controller.placement import check_replicas, invalid_assignment, place_replicas
from ottla.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla.types import TopicPartition


class Reassignment(NamedTuple):
    """The wanted replicas of a partition, the preferred leader first; None cancels what is in progress."""

    topic_partition: TopicPartition
    replicas: Sequence[int] | None


class ReassignmentResult(NamedTuple):
    topic_partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def alter_reassignments(
    image: ClusterImage,
    rules: ElectionRules,
    requests: Sequence[Reassignment],
    *,
    allow_replication_factor_change: bool = True,
) -> Decision[list[ReassignmentResult]]:
    """Starts, replaces or cancels reassignments; each partition succeeds or fails on its own."""
    results: list[ReassignmentResult] = []
    drafts = _Drafts(image)
    election = Election(image, rules)
    for request in requests:
        try:
            topic, partition = _find(image, request.topic_partition)
            if request.replicas is None:
                changed = _cancelled(topic, partition)
            else:
                changed = _started(image, partition, request.replicas, allow_replication_factor_change)
                changed = _completed(election, changed) or changed
        except KafkaError as error:
            results.append(ReassignmentResult(request.topic_partition, error.code, error.detail))
            continue
        drafts.change(election, topic, partition, changed)
        results.append(ReassignmentResult(request.topic_partition))
    return Decision(results, drafts.changes())


def complete_reassignments(image: ClusterImage, rules: ElectionRules) -> Decision[int]:
    """Removes the old replicas of partitions whose added replicas are all in sync."""
    drafts = _Drafts(image)
    election = Election(image, rules)
    count = 0
    for topic, partition in reassigning(image):
        if count < MAX_CHANGES and (changed := _completed(election, partition)) is not None:
            drafts.change(election, topic, partition, changed)
            count += 1
    return Decision(count, drafts.changes(), CONTROLLER_ONLY)


def reassigning(image: ClusterImage) -> Iterator[tuple[TopicImage, PartitionImage]]:
    for topic in image.topics.values():
        for partition in topic.partitions:
            if partition.adding or partition.removing:
                yield topic, partition


def _find(image: ClusterImage, topic_partition: TopicPartition) -> tuple[TopicImage, PartitionImage]:
    topic = image.topics.get(topic_partition.topic)
    partition = image.find_partition(topic_partition)
    if topic is None:
        detail = f"Unable to find a topic named {topic_partition.topic}."
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
    if partition is None:
        detail = f"Unable to find partition {topic_partition.topic}:{topic_partition.partition}."
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
    return topic, partition


def _original(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas without those that are being added."""
    return tuple(r for r in partition.replicas if r not in partition.adding)


def _started(
    image: ClusterImage, partition: PartitionImage, wanted: Sequence[int], allow_replication_factor_change: bool
) -> PartitionImage:
    check_replicas(wanted, image.brokers, image.known_brokers)
    original = _original(partition)
    if not allow_replication_factor_change and len(wanted) != len(original):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(original)} to {len(wanted)}",
        )
    removing = tuple(r for r in original if r not in wanted)
    replicas = (*wanted, *removing)
    # Replicas that an earlier reassignment was adding, and that are no longer wanted, leave at once.
    isr = tuple(r for r in partition.isr if r in replicas)
    if not isr:
        raise invalid_assignment(
            "None of the replicas that are in sync would be kept: it would require an unclean election."
        )
    adding = tuple(r for r in wanted if r not in original)
    return partition._replace(replicas=replicas, adding=adding, removing=removing, isr=isr)


def _cancelled(topic: TopicImage, partition: PartitionImage) -> PartitionImage:
    if not partition.is_reassigning:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    original = _original(partition)
    isr = tuple(r for r in partition.isr if r in original)
    if not isr:
        raise invalid_assignment(
            f"Unable to revert partition assignment for {topic.name}:{partition.index} because it would require an "
            "unclean leader election."
        )
    return partition._replace(replicas=original, adding=(), removing=(), isr=isr)


def _completed(election: Election, partition: PartitionImage) -> PartitionImage | None:
    """The partition with its wanted replicas only; None while added replicas are not in sync, or nobody else could
    lead."""
    wanted = tuple(r for r in partition.replicas if r not in partition.removing)
    isr = tuple(r for r in partition.isr if r in wanted)
    if not isr or not set(partition.adding) <= set(isr):
        return None
    if partition.leader in partition.removing and not any(r in election.alive for r in isr):
        return None
    return partition._replace(replicas=wanted, adding=(), removing=(), isr=isr)


class _Drafts:
    """Collects changed partitions: a topic has one key for the replicas of all its partitions."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._partitions: dict[str, dict[int, PartitionImage]] = {}
        self._states: dict[str, Put] = {}

    def change(self, election: Election, topic: TopicImage, before: PartitionImage, after: PartitionImage) -> None:
        self._partitions.setdefault(topic.name, {})[before.index] = after
        after = after._replace(elr=tuple(r for r in after.elr if r in after.replicas))
        if after.leader in (*after.replicas, records.NO_LEADER):
            roles = Roles(after.leader, after.isr, election.eligible(topic, after, after.isr), after.recovering)
        else:
            roles = election.successor(topic, after)
        # A replica that was removed must notice: its fetches carry the old epoch.
        lost = not set(before.replicas) <= set(after.replicas)
        put = put_roles(topic, before, roles, election.epoch, new_epoch=lost or roles.leader != before.leader)
        self._states[put.key] = put

    def changes(self) -> list[Put]:
        topics = []
        for name, changed in self._partitions.items():
            topic = self._image.topics[name]
            partitions = [changed.get(partition.index, partition) for partition in topic.partitions]
            value = records.write_topic(
                topic.topic_id,
                [partition.replicas for partition in partitions],
                {partition.index: partition.adding for partition in partitions},
                {partition.index: partition.removing for partition in partitions},
            )
            topics.append(Put(records.topic_key(name), value))
        return [*topics, *self._states.values()]


# Internal topics


def grow_internal_topics(image: ClusterImage, rules: ElectionRules, factors: Mapping[str, int]) -> Decision[int]:
    """Adds replicas to internal topics that were created when there were fewer brokers than `factors` require.

    Without this, the first broker of a new cluster would keep the only copy of all committed offsets (KIP-115).
    """
    drafts = _Drafts(image)
    election = Election(image, rules)
    alive = electable_brokers(image)
    racks = {broker_id: image.brokers[broker_id].rack for broker_id in sorted(alive)}
    count = 0
    for name, wanted in factors.items():
        topic = image.topics.get(name)
        factor = min(wanted, len(racks))
        if topic is None or factor < 2:
            continue
        placed = place_replicas(racks, len(topic.partitions), factor)
        for partition, target in zip(topic.partitions, placed, strict=True):
            if partition.is_reassigning or len(partition.replicas) >= factor or count >= MAX_CHANGES:
                continue
            # Existing replicas stay: they have the records.
            missing = [r for r in partition.replicas if r not in target]
            kept = [r for r in target if r in partition.replicas]
            new = [r for r in target if r not in partition.replicas][: factor - len(kept) - len(missing)]
            replicas = [r for r in target if r in kept or r in new] + missing
            changed = _started(image, partition, replicas, allow_replication_factor_change=True)
            drafts.change(election, topic, partition, changed)
            count += 1
    return Decision(count, drafts.changes(), CONTROLLER_ONLY)
