"""Brokers that join and leave the cluster, and the election of the controller. Pure."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.changes.features import check_supported, default_levels, supported_levels
from ottla.metadata.controller.decisions import Decision, Put, Remove
from ottla.metadata.controller.elections import Election, ElectionRules, Roles, electable_brokers, put_roles, roles_of
from ottla.metadata.image import BrokerRegistration, ClusterImage, PartitionImage, TopicImage
from ottla.metadata.records import NO_CONTROLLER, NO_LEADER, RecoveringReplica
from ottla.types import TopicPartition

SHOWN_PARTITIONS = 3


class Joining(NamedTuple):
    """A broker that joins or restarts, and what it knows about its past."""

    broker: BrokerRegistration
    previous_epoch: int | None = None
    """Its last broker epoch, if it was stopped cleanly since: proof that its logs have everything (KIP-966)."""
    cluster_id: str | None = None
    """The cluster that its data directory belongs to; None if it is new."""
    has_new_directory: bool = False
    """Its data directory was created just now."""


def register(
    image: ClusterImage,
    joining: Joining,
    rules: ElectionRules,
    new_cluster_id: str,
    now: int,
    *,
    awaited: Collection[int] = (),
) -> Decision[None]:
    """Registers a broker. Partitions that it still leads get a new leader epoch.

    Clients and followers know the epoch from before the restart. The higher epoch makes them validate their offsets
    against the log again (KIP-320). A broker that cannot prove its previous epoch may have lost the tails of its
    logs: it gives up leadership and its place in in-sync sets, unless nobody else could have the records.
    """
    broker = joining.broker
    broker_id = broker.broker_id
    if broker_id in image.brokers:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another running broker is registered with node.id {broker_id}",
        )
    if joining.cluster_id is not None and joining.cluster_id != image.cluster_id:
        found = f"belongs to cluster {image.cluster_id}" if image.cluster_id else "is new"
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"the data directory of broker {broker_id} belongs to cluster {joining.cluster_id}, "
            f"but the metadata {found}",
        )
    check_supported(image)
    changes: list[Put | Remove] = []
    if not image.cluster_id:
        changes.append(Put(records.CLUSTER_ID, records.write_cluster_id(new_cluster_id)))
        changes.append(Put(records.FEATURES, records.write_features(default_levels())))
    value = records.write_broker(broker.endpoints, broker.rack, now, features=supported_levels())
    changes.append(Put(records.broker_key(broker_id), value, ephemeral=True))
    changes.append(Put(records.known_broker_key(broker_id), value))
    controller = become_controller(image, broker_id, now)
    changes += controller.changes
    election = Election(
        image,
        rules,
        alive=electable_brokers(image) | {broker_id},
        awaited=awaited,
        epoch=image.controller_epoch + bool(controller.changes),
    )
    changes += _roles_after_restart(election, joining)
    return Decision(None, changes)


def _roles_after_restart(election: Election, joining: Joining) -> list[Put]:
    image, rules = election.image, election.rules
    broker_id = joining.broker.broker_id
    known = image.known_brokers.get(broker_id)
    is_clean = known is not None and joining.previous_epoch == known.epoch
    changes, lost = [], []
    for topic in image.topics.values():
        for partition in topic.partitions:
            if broker_id not in partition.isr and broker_id not in partition.elr:
                continue
            members = {*partition.isr, *partition.elr}
            is_lost = joining.has_new_directory and members == {broker_id}
            if is_lost and not rules.allows_unclean_election(image, topic):
                lost.append(str(TopicPartition(topic.name, partition.index)))
                continue
            roles = _rejoin(election, topic, partition, broker_id, is_clean=is_clean)
            if partition.leader == broker_id or roles != roles_of(partition):
                is_new = partition.leader == broker_id or roles.leader != partition.leader
                changes.append(put_roles(topic, partition, roles, election.epoch, new_epoch=is_new))
    if lost:
        shown = ", ".join(lost[:SHOWN_PARTITIONS]) + (", ..." if len(lost) > SHOWN_PARTITIONS else "")
        raise KafkaError(
            ErrorCode.LOG_DIR_NOT_FOUND,
            f"the data directory of broker {broker_id} is new, but only this broker has the records of {len(lost)} "
            f"partitions ({shown})",
        )
    return changes


def _rejoin(
    election: Election, topic: TopicImage, partition: PartitionImage, broker_id: int, *, is_clean: bool
) -> Roles:
    """The roles after a member of the in-sync set, or an eligible one, restarted."""
    recovering = tuple(r for r in partition.recovering if r.broker_id != broker_id)
    own = next((r for r in partition.recovering if r.broker_id == broker_id and is_clean), None)
    if own is not None:
        is_clean = False  # it lost its tail in an earlier restart; its log is still as long as it reported
    others = {*partition.isr, *partition.elr} - {broker_id}
    if is_clean or not others:
        current = partition._replace(recovering=recovering)
        if current.leader not in (broker_id, NO_LEADER):
            return roles_of(current)
        # It leads again, or nobody else can. Unclean members that waited for it are no longer needed.
        if current.leader == broker_id or broker_id in current.isr:
            unclean = {r.broker_id for r in recovering}
            isr = [r for r in current.isr if r not in unclean] if broker_id in current.isr else [broker_id]
            return election.with_isr(topic, current, broker_id, isr)
        return election.successor(topic, current)
    waiting = {r.broker_id for r in recovering}
    if any(other in election.image.brokers and other not in waiting for other in others):
        rest = partition._replace(
            isr=tuple(r for r in partition.isr if r != broker_id),
            elr=tuple(r for r in partition.elr if r != broker_id),
            recovering=recovering,
        )
        if rest.leader not in (broker_id, NO_LEADER):
            return roles_of(rest)
        roles = election.successor(topic, rest)
        # Only eligible replicas are left: they are the new in-sync set, which is never empty.
        return roles if roles.isr else roles._replace(isr=rest.elr, elr=())
    leader = NO_LEADER if partition.leader == broker_id else partition.leader
    return Roles(leader, partition.isr, partition.elr, (*recovering, own or RecoveringReplica(broker_id)))


def report_logs(
    image: ClusterImage, broker_id: int, ends: Mapping[TopicPartition, tuple[int, int]], *, limit: int
) -> Decision[int]:
    """A broker that restarted uncleanly reports how long its logs are, as (last leader epoch, end offset), where that
    decides who becomes leader. The reply is the number of changed partitions, at most `limit`."""
    changes: list[Put] = []
    for topic, partition, own in _unreported(image, broker_id):
        epoch, end = ends.get(TopicPartition(topic.name, partition.index), (-1, 0))
        others = (r for r in partition.recovering if r is not own)
        roles = roles_of(partition)._replace(recovering=(*others, RecoveringReplica(broker_id, epoch, end)))
        changes.append(put_roles(topic, partition, roles, image.controller_epoch))
        if len(changes) == limit:
            break
    return Decision(len(changes), changes)


def is_report_due(image: ClusterImage, broker_id: int) -> bool:
    return next(iter(_unreported(image, broker_id)), None) is not None


def _unreported(image: ClusterImage, broker_id: int) -> "list[tuple[TopicImage, PartitionImage, RecoveringReplica]]":
    return [
        (topic, partition, replica)
        for topic in image.topics.values()
        for partition in topic.partitions
        for replica in partition.recovering
        if replica.broker_id == broker_id and replica.end_offset < 0
    ]


def become_controller(image: ClusterImage, broker_id: int, now: int) -> Decision[None]:
    """Creates the controller key if there is no controller. Losing the race for it is not an error."""
    if image.controller_id != NO_CONTROLLER:
        return Decision(None)
    return Decision(
        None,
        [
            Put(records.CONTROLLER, records.write_controller(broker_id, now), ephemeral=True),
            Put(records.CONTROLLER_EPOCH, records.write_controller_epoch(image.controller_epoch + 1)),
        ],
    )


def mark_leaving(image: ClusterImage, broker_id: int, now: int) -> Decision[None]:
    """From now on a broker neither becomes leader nor joins in-sync sets."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.is_leaving:
        return Decision(None)
    value = records.write_broker(broker.endpoints, broker.rack, now, is_leaving=True, features=broker.features)
    return Decision(None, [Put(records.broker_key(broker_id), value)])


def unregister(image: ClusterImage, broker_id: int) -> Decision[None]:
    """Removes a broker that was stopped permanently: nobody waits for it at the next start."""
    if broker_id not in image.known_brokers:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
    if broker_id in image.brokers:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is running: stop it before it is unregistered."
        )
    return Decision(None, [Remove(records.known_broker_key(broker_id))])
