"""Leader elections when brokers join or leave, and the election of the controller. Pure."""

from collections.abc import Callable, Collection, Iterable

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.decisions import Decision, Put, Remove
from ottla.metadata.image import BrokerRegistration, ClusterImage, PartitionImage, TopicImage
from ottla.metadata.records import NO_LEADER

UncleanElections = Callable[[ClusterImage, TopicImage], bool]
"""Whether a topic allows an out-of-sync leader, and so prefers losing records over being unavailable."""


def register(image: ClusterImage, broker: BrokerRegistration, new_cluster_id: str, now: int) -> Decision[None]:
    """Registers a broker that joins or restarts. Partitions that it still leads get a new leader epoch.

    Clients and followers know the epoch from before the restart. The higher epoch makes them validate their offsets
    against the log again (KIP-320).
    """
    if broker.broker_id in image.brokers:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another running broker is registered with node.id {broker.broker_id}",
        )
    changes: list[Put | Remove] = []
    if not image.cluster_id:
        changes.append(Put(records.CLUSTER_ID, records.write_cluster_id(new_cluster_id)))
    value = records.write_broker(broker.endpoints, broker.rack, now)
    changes.append(Put(records.broker_key(broker.broker_id), value, ephemeral=True))
    for topic in image.topics.values():
        changes += [
            _new_leader(topic, partition, partition.leader, partition.isr)
            for partition in topic.partitions
            if partition.leader == broker.broker_id
        ]
    changes += become_controller(image, broker.broker_id, now).changes
    return Decision(None, changes)


def become_controller(image: ClusterImage, broker_id: int, now: int) -> Decision[None]:
    """Creates the controller key if there is no controller. Losing the race for it is not an error."""
    if image.controller_id != -1:
        return Decision(None)
    return Decision(None, [Put(records.CONTROLLER, records.write_controller(broker_id, now), ephemeral=True)])


def elect_leaders(
    image: ClusterImage, allows_unclean_election: UncleanElections, leaving: Collection[int] = ()
) -> Decision[int]:
    """Elects leaders for partitions without one, where possible, and removes dead brokers from in-sync sets.

    `leaving` are brokers that are about to stop: they transfer leadership if another in-sync replica is alive. The
    reply is the number of changed partitions.
    """
    changes: list[Put] = []
    for topic in image.topics.values():
        for partition in topic.partitions:
            if partition.leader in image.brokers and partition.leader not in leaving:
                isr = tuple(replica for replica in partition.isr if replica in image.brokers)
                if isr != partition.isr:
                    changes.append(_state(topic, partition, partition.leader, partition.leader_epoch, isr))
            else:
                leader, isr = _successor(image, topic, partition, leaving, allows_unclean_election)
                if leader != partition.leader:
                    changes.append(_new_leader(topic, partition, leader, isr))
    return Decision(len(changes), changes)


def _successor(
    image: ClusterImage,
    topic: TopicImage,
    partition: PartitionImage,
    leaving: Collection[int],
    allows_unclean_election: UncleanElections,
) -> tuple[int, tuple[int, ...]]:
    staying = [replica for replica in partition.replicas if replica in image.brokers and replica not in leaving]
    in_sync = tuple(replica for replica in partition.isr if replica in staying)
    for replica in staying:
        if replica in in_sync:
            return replica, in_sync
    if partition.leader in image.brokers:
        # It is leaving, but no other replica has all the records: it stays leader until it stops.
        return partition.leader, partition.isr
    if staying and allows_unclean_election(image, topic):
        return staying[0], (staying[0],)
    # Keep the in-sync set: only these replicas can become leader without losing records.
    return NO_LEADER, partition.isr


def elect_preferred_leaders(image: ClusterImage) -> Decision[int]:
    """Makes the preferred replica the leader of each partition, where it is alive and in sync."""
    changes = [
        _new_leader(topic, partition, partition.replicas[0], partition.isr)
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.leader != partition.replicas[0]
        and partition.replicas[0] in image.brokers
        and partition.replicas[0] in partition.isr
    ]
    return Decision(len(changes), changes)


def _new_leader(topic: TopicImage, partition: PartitionImage, leader: int, isr: Iterable[int]) -> Put:
    return _state(topic, partition, leader, partition.leader_epoch + 1, isr)


def _state(topic: TopicImage, partition: PartitionImage, leader: int, leader_epoch: int, isr: Iterable[int]) -> Put:
    return Put(
        records.partition_state_key(topic.name, partition.index),
        records.write_partition_state(leader, leader_epoch, tuple(isr)),
    )
