"""The rule of AlterPartition: a leader changes the in-sync set of a partition that it leads. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from ottla.errors import ErrorCode
from ottla.metadata import records
from ottla.metadata.controller.decisions import Decision, Put, Unchanged
from ottla.metadata.controller.elections import Election, ElectionRules, put_roles
from ottla.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla.types import TopicPartition

ANY_EPOCH = -1


class IsrChange(NamedTuple):
    """The in-sync set that a leader proposes for one of its partitions."""

    topic_partition: TopicPartition
    topic_id: bytes
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    """(broker id, broker epoch) of each member; epoch -1 is not checked."""


def alter_partitions(
    image: ClusterImage, rules: ElectionRules, leader: int, changes: Sequence[IsrChange]
) -> Decision[list[ErrorCode]]:
    """Accepts each change that was proposed for the current state of its partition, and by its leader.

    The commit also requires that every member is still the same registration: a follower that restarted or is leaving
    since the leader saw its fetches must not be added (KIP-841, KIP-903).
    """
    election = Election(image, rules)
    results: list[ErrorCode] = []
    puts: dict[str, Put] = {}
    members: dict[int, Unchanged] = {}
    for change in changes:
        topic = image.find_topic_by_id(change.topic_id)
        found = None if topic is None else image.find_partition(change.topic_partition)
        if topic is None or found is None or topic.name != change.topic_partition.topic:
            results.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        error = _problem(image, found, leader, change)
        put = None if error != ErrorCode.NONE else _put(election, topic, found, change)
        if put is not None and puts.setdefault(put.key, put) is not put:
            error = ErrorCode.INVALID_UPDATE_VERSION  # two proposals of one tick: the first one wins
        results.append(error)
        if error == ErrorCode.NONE:
            for broker_id, _ in change.isr:
                epoch = image.brokers[broker_id].epoch
                members[broker_id] = Unchanged(records.broker_key(broker_id), epoch)
    return Decision(results, tuple(puts.values()), tuple(members.values()))


def _problem(image: ClusterImage, partition: PartitionImage, leader: int, change: IsrChange) -> ErrorCode:
    if partition.leader != leader or partition.leader_epoch != change.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if partition.partition_epoch != change.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = [broker_id for broker_id, _ in change.isr]
    if leader not in members or len(set(members)) != len(members) or not set(members) <= set(partition.replicas):
        return ErrorCode.INVALID_REQUEST
    for broker_id, epoch in change.isr:
        broker = image.brokers.get(broker_id)
        if broker is None or epoch not in (ANY_EPOCH, broker.epoch):
            return ErrorCode.INELIGIBLE_REPLICA
        if broker.is_leaving and broker_id not in partition.isr:
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _put(election: Election, topic: TopicImage, partition: PartitionImage, change: IsrChange) -> Put:
    members = {broker_id for broker_id, _ in change.isr}
    isr = tuple(replica for replica in partition.replicas if replica in members)
    return put_roles(topic, partition, election.with_isr(topic, partition, partition.leader, isr), election.epoch)
