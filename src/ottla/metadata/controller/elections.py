"""Who leads each partition, and who is in its in-sync set, when brokers come and go. Pure.

The rules keep every committed record: a leader comes from the in-sync set or from the eligible leader replicas
(KIP-966), unless the topic allows an unclean election. The in-sync set is never empty: its last member stays in it,
even when it is gone, because only that replica has all the records.
"""

import enum
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol

from ottla.errors import ErrorCode
from ottla.metadata import records
from ottla.metadata.controller.decisions import Decision, Put, Unchanged
from ottla.metadata.controller.sweep import Sweep
from ottla.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla.metadata.records import NO_LEADER
from ottla.types import TopicPartition

CONTROLLER_ONLY = (Unchanged(records.CONTROLLER), Unchanged(records.CONTROLLER_EPOCH))
"""What a commit of the controller requires: nobody else became controller meanwhile, and its key still exists."""
MAX_CHANGES = 100
"""The most partitions that one commit changes. An election of thousands of leaders does not hold up everything else,
and a store may limit the size of a commit (etcd: 128 operations)."""


class ElectionRules(Protocol):
    """What elections need from the settings of topics."""

    def allows_unclean_election(self, image: ClusterImage, topic: TopicImage) -> bool:
        """Whether a topic prefers losing records over being unavailable."""

    def min_insync_replicas(self, image: ClusterImage, topic: TopicImage) -> int: ...


class Roles(NamedTuple):
    """The part of a partition's state that elections decide."""

    leader: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    recovering: tuple[records.RecoveringReplica, ...] = ()


def roles_of(partition: PartitionImage) -> Roles:
    return Roles(partition.leader, partition.isr, partition.elr, partition.recovering)


class Election:
    """Decides the roles of partitions for one state of the cluster.

    `alive` are the brokers that can lead. `awaited` ones are not alive yet but expected: nobody is elected in their
    place.
    """

    def __init__(
        self,
        image: ClusterImage,
        rules: ElectionRules,
        *,
        alive: Collection[int] | None = None,
        awaited: Collection[int] = (),
        epoch: int | None = None,
    ) -> None:
        self.image = image
        self.rules = rules
        self.alive = electable_brokers(image) if alive is None else alive
        self.awaited = frozenset(awaited) - image.brokers.keys()
        self.epoch = image.controller_epoch if epoch is None else epoch

    def min_isr(self, topic: TopicImage, partition: PartitionImage) -> int:
        """The effective minimum, at most the number of replicas: a higher one would reject every write. Replicas that
        are being added do not count."""
        settled = len(partition.replicas) - len(partition.adding)
        return min(self.rules.min_insync_replicas(self.image, topic), settled)

    def eligible(self, topic: TopicImage, partition: PartitionImage, isr: Collection[int]) -> tuple[int, ...]:
        """The eligible leader replicas once the in-sync set becomes `isr` (KIP-966).

        While it is smaller than the minimum, nothing is committed, so those who leave it keep every committed record.
        """
        if len(isr) >= self.min_isr(topic, partition):
            return ()
        recovering = {replica.broker_id for replica in partition.recovering}
        known = {*partition.isr, *partition.elr} - recovering
        return tuple(replica for replica in partition.replicas if replica in known and replica not in isr)

    def with_isr(self, topic: TopicImage, partition: PartitionImage, leader: int, isr: Iterable[int]) -> Roles:
        members = tuple(isr)
        return Roles(leader, members, self.eligible(topic, partition, members))

    def without_dead(self, topic: TopicImage, partition: PartitionImage) -> Roles:
        """The leader stays; dead members leave the in-sync set."""
        present = self.image.brokers
        isr = tuple(r for r in partition.isr if r in present or r in self.awaited)
        if isr == partition.isr:
            return roles_of(partition)
        return self.with_isr(topic, partition, partition.leader, isr)

    def successor(self, topic: TopicImage, partition: PartitionImage) -> Roles:
        """The roles after an election. If nobody can be elected, the leader is NO_LEADER and the sets are kept."""
        recovering = {replica.broker_id for replica in partition.recovering}
        electable = [r for r in partition.replicas if r in self.alive and r not in recovering]
        in_sync = [r for r in electable if r in partition.isr]
        if in_sync:
            isr = [r for r in partition.isr if r in in_sync or (r in self.awaited and r not in recovering)]
            return self.with_isr(topic, partition, in_sync[0], isr)
        for replica in electable:
            if replica in partition.elr:
                return self.with_isr(topic, partition, replica, (replica,))
        if (longest := self._longest_log(partition)) is not None:
            return Roles(longest, (longest,))
        members = {*partition.isr, *partition.elr}
        if not members & self.awaited and self.rules.allows_unclean_election(self.image, topic):
            unclean = self.unclean_successor(partition)
            if unclean is not None:
                return unclean
        # Only these replicas can become leader without losing records.
        return Roles(NO_LEADER, partition.isr, partition.elr, partition.recovering)

    def unclean_successor(self, partition: PartitionImage) -> Roles | None:
        """Any replica that is alive, the one with the longest log if that is known: records may be lost."""
        alive = [r for r in partition.replicas if r in self.alive]
        if not alive:
            return None
        ends = {r.broker_id: (r.leader_epoch, r.end_offset) for r in partition.recovering}
        leader = max(alive, key=lambda r: (ends.get(r, (-1, -1)), -partition.replicas.index(r)))
        return Roles(leader, (leader,))

    def _longest_log(self, partition: PartitionImage) -> int | None:
        """The member with the longest log, if all members lost their tails at once (a power failure) and all are back.

        Records that were acknowledged are in the longest log, unless every copy of them was lost.
        """
        ends = {r.broker_id: (r.leader_epoch, r.end_offset) for r in partition.recovering}
        members = [r for r in partition.replicas if r in partition.isr or r in partition.elr]
        if not members or any(r not in self.alive or ends.get(r, (-1, -1))[1] < 0 for r in members):
            return None
        return max(members, key=lambda r: (ends[r], -partition.replicas.index(r)))


def electable_brokers(image: ClusterImage) -> set[int]:
    """The brokers that can become leader: registered, and not about to leave."""
    return {broker_id for broker_id, broker in image.brokers.items() if not broker.is_leaving}


def put_roles(
    topic: TopicImage, partition: PartitionImage, roles: Roles, controller_epoch: int, *, new_epoch: bool | None = None
) -> Put:
    """Writes a partition's state. A new leader, or none, starts a new leader epoch."""
    if new_epoch is None:
        new_epoch = roles.leader != partition.leader
    return Put(
        records.partition_state_key(topic.name, partition.index),
        records.write_partition_state(
            roles.leader,
            partition.leader_epoch + new_epoch,
            roles.isr,
            controller_epoch,
            roles.elr,
            roles.recovering,
        ),
    )


def elect_leaders(
    image: ClusterImage,
    rules: ElectionRules,
    *,
    awaited: Collection[int] = (),
    limit: int = MAX_CHANGES,
    sweep: Sweep | None = None,
) -> Decision[int]:
    """Elects leaders for partitions without one, where possible, and removes dead brokers from in-sync sets.

    Changes at most `limit` partitions; the reply is their number. With `sweep` it continues where the last call ended.
    """
    changes = _elections(Election(image, rules, awaited=awaited), limit, sweep or Sweep())
    return Decision(len(changes), changes, CONTROLLER_ONLY)


def _elections(election: Election, limit: int, sweep: Sweep) -> list[Put]:
    image, awaited = election.image, election.awaited
    present = image.brokers

    def find(topic: TopicImage, partition: PartitionImage) -> Put | None:
        leader = partition.leader
        if leader in present:
            if all(map(present.__contains__, partition.isr)):
                return None
            roles = election.without_dead(topic, partition)
        elif leader in awaited:
            return None
        else:
            roles = election.successor(topic, partition)
        return None if roles == roles_of(partition) else put_roles(topic, partition, roles, election.epoch)

    return sweep.changes(image, (present, awaited, image.broker_configs), find, limit)


def take_over(
    image: ClusterImage,
    rules: ElectionRules,
    controller: Decision[None],
    *,
    awaited: Collection[int] = (),
    limit: int = MAX_CHANGES,
) -> Decision[int]:
    """Becomes controller, and elects the first leaders in the same commit: the previous
    controller may have led partitions too."""
    election = Election(image, rules, awaited=awaited, epoch=image.controller_epoch + 1)
    changes = _elections(election, limit, Sweep())
    return Decision(len(changes), [*controller.changes, *changes])


def hand_over(image: ClusterImage, rules: ElectionRules, broker_id: int, *, limit: int = MAX_CHANGES) -> Decision[int]:
    """A broker that is about to stop gives its leadership to other in-sync replicas and leaves the in-sync sets.

    Where no other replica has all the records, it stays leader until it stops. The reply is the number of changed
    partitions, at most `limit`.
    """
    election = Election(image, rules, alive=electable_brokers(image) - {broker_id})
    partitions = ((topic, partition) for topic in image.topics.values() for partition in topic.partitions)
    changes = [
        put_roles(topic, partition, roles, election.epoch)
        for topic, partition, roles in islice(_handovers(election, broker_id, partitions), limit)
    ]
    return Decision(len(changes), changes)


def give_up(
    image: ClusterImage,
    rules: ElectionRules,
    broker_id: int,
    partitions: Iterable[TopicPartition],
    *,
    limit: int = MAX_CHANGES,
) -> Decision[int]:
    """A broker whose disk failed hands over single partitions. It may have lost records: it is not eligible either."""
    election = Election(image, rules, alive=electable_brokers(image) - {broker_id})
    found = (
        (image.topics[each.topic], partition)
        for each in partitions
        if (partition := image.find_partition(each)) is not None
    )
    changes = []
    for topic, partition, roles in islice(_handovers(election, broker_id, found), limit):
        elr = tuple(r for r in roles.elr if r != broker_id)
        changes.append(put_roles(topic, partition, roles._replace(elr=elr), election.epoch))
    return Decision(len(changes), changes)


def _handovers(
    election: Election, broker_id: int, partitions: Iterable[tuple[TopicImage, PartitionImage]]
) -> Iterator[tuple[TopicImage, PartitionImage, Roles]]:
    for topic, partition in partitions:
        if broker_id not in partition.isr:
            continue
        if partition.leader != broker_id:
            if partition.leader == NO_LEADER or len(partition.isr) == 1:
                continue
            isr = (r for r in partition.isr if r != broker_id)
            roles = election.with_isr(topic, partition, partition.leader, isr)
        elif not any(r in election.alive for r in partition.isr):
            continue
        else:
            roles = election.successor(topic, partition)
        yield topic, partition, roles


# Elections on request


class ElectionType(enum.IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


class ElectionResult(NamedTuple):
    topic_partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def elect_requested(
    image: ClusterImage, rules: ElectionRules, election_type: ElectionType, partitions: Iterable[TopicPartition]
) -> Decision[list[ElectionResult]]:
    """Makes the preferred replica the leader, or any replica of a partition that has no leader (KIP-460)."""
    election = Election(image, rules)
    results: list[ElectionResult] = []
    changes: list[Put] = []
    for topic_partition in partitions:
        topic, partition = image.topics.get(topic_partition.topic), image.find_partition(topic_partition)
        if topic is None or partition is None:
            what = f"topic as {topic_partition.topic}" if topic is None else f"partition as {topic_partition}"
            results.append(ElectionResult(topic_partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such {what}"))
            continue
        roles, error, message = _requested(election, topic, partition, election_type)
        if roles is not None:
            changes.append(put_roles(topic, partition, roles, election.epoch))
        results.append(ElectionResult(topic_partition, error, message))
    return Decision(results, changes)


def _requested(
    election: Election, topic: TopicImage, partition: PartitionImage, election_type: ElectionType
) -> "tuple[Roles | None, ErrorCode, str | None]":
    preferred = partition.replicas[0]
    if election_type == ElectionType.PREFERRED:
        if partition.leader == preferred:
            return None, ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        if preferred in partition.isr and preferred in election.alive:
            return roles_of(partition)._replace(leader=preferred, recovering=()), ErrorCode.NONE, None
        return (
            None,
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"The preferred leader, broker {preferred}, is not available or not in sync.",
        )
    if partition.leader != NO_LEADER:
        return None, ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    roles = election.successor(topic, partition)
    if roles.leader == NO_LEADER:
        unclean = election.unclean_successor(partition)
        if unclean is None:
            return None, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "No replica of the partition is available."
        roles = unclean
    return roles, ErrorCode.NONE, None


# Preferred leaders


def elect_preferred_leaders(image: ClusterImage, *, sweep: Sweep | None = None) -> Decision[int]:
    """Makes the preferred replica the leader of each partition, where it is alive and in sync."""
    alive = electable_brokers(image)

    def find(topic: TopicImage, partition: PartitionImage) -> Put | None:
        if not _is_imbalanced(partition, alive):
            return None
        roles = roles_of(partition)._replace(leader=partition.replicas[0])
        return put_roles(topic, partition, roles, image.controller_epoch)

    changes = (sweep or Sweep()).changes(image, image.brokers, find, MAX_CHANGES)
    return Decision(len(changes), changes, CONTROLLER_ONLY)


def is_imbalanced(image: ClusterImage) -> bool:
    """Whether a preferred replica could lead its partition, but does not."""
    alive = electable_brokers(image)
    return any(_is_imbalanced(partition, alive) for topic in image.topics.values() for partition in topic.partitions)


def _is_imbalanced(partition: PartitionImage, alive: Collection[int]) -> bool:
    preferred = partition.replicas[0]
    # A reassignment elects its own leader when it completes.
    return (
        partition.leader not in (preferred, NO_LEADER)
        and preferred in partition.isr
        and preferred in alive
        and preferred not in partition.removing
    )
