"""Which replicas go where: when a broker is drained, and when the replication factor of a topic changes. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ottla.cli.output import CommandError, plural
from ottla.client.core.model import TopicDescription
from ottla.errors import OttlaError
from ottla.types import TopicPartition

Plan = dict[TopicPartition, tuple[int, ...]]
Racks = Mapping[int, str | None]
"""The running brokers and their racks."""


def drain(topics: Sequence[TopicDescription], brokers: Racks, leaving: int) -> Plan:
    """Replaces `leaving` in every partition, each time by the broker with the fewest replicas in another rack."""
    loads = _loads(topics)
    plan: Plan = {}
    for topic in topics:
        for p in topic.partitions:
            if leaving not in p.replicas:
                continue
            partition = TopicPartition(topic.name, p.partition)
            staying = [replica for replica in p.replicas if replica != leaving]
            chosen = _choose({b: r for b, r in brokers.items() if b != leaving}, staying, loads)
            if chosen is None:
                others = len([broker for broker in brokers if broker != leaving])
                raise CommandError(
                    f"cannot drain broker {leaving}: {partition} has {plural(len(p.replicas), 'replica')}, and there "
                    f"{'is' if others == 1 else 'are'} only {plural(others, 'other broker')}",
                    f"start another broker first, or reduce the replicas: ottla cluster reassign {topic.name} "
                    f"--replication {max(1, len(p.replicas) - 1)}",
                )
            loads[chosen] += 1
            plan[partition] = tuple(chosen if replica == leaving else replica for replica in p.replicas)
    return plan


def change_replication(topics: Sequence[TopicDescription], brokers: Racks, factor: int) -> Plan:
    """Adds replicas on the brokers that have the fewest, or removes those that are down or last in the list."""
    if factor > len(brokers):
        raise CommandError(
            f"cannot place {plural(factor, 'replica')}: only {plural(len(brokers), 'broker')} "
            f"{'is' if len(brokers) == 1 else 'are'} running",
            "start more brokers, or choose a smaller number",
        )
    loads = _loads(topics)
    plan: Plan = {}
    for topic in topics:
        for p in topic.partitions:
            replicas = list(p.replicas)
            while len(replicas) > factor:
                down = [replica for replica in replicas if replica not in brokers]
                behind = [replica for replica in replicas if replica not in p.in_sync_replicas]
                replicas.remove((down or behind or replicas)[-1])
            while len(replicas) < factor:
                chosen = _choose(brokers, replicas, loads)
                assert chosen is not None, "there are enough brokers, as checked above"
                loads[chosen] += 1
                replicas.append(chosen)
            if tuple(replicas) != p.replicas:
                plan[TopicPartition(topic.name, p.partition)] = tuple(replicas)
    return plan


def check_brokers(plan: Mapping[TopicPartition, Iterable[int]], brokers: Iterable[int]) -> None:
    """Rejects a plan with unknown brokers, or the same one twice for a partition."""
    known = sorted(brokers)
    for partition, replicas in plan.items():
        replicas = list(replicas)
        for broker in replicas:
            if broker not in known:
                raise OttlaError(
                    f"{partition}: there is no broker {broker}", f"the brokers are {', '.join(map(str, known))}"
                )
        if len(set(replicas)) != len(replicas):
            raise OttlaError(f"{partition}: a broker is listed twice", "list each broker once")


def _loads(topics: Sequence[TopicDescription]) -> Counter[int]:
    return Counter(replica for topic in topics for p in topic.partitions for replica in p.replicas)


def _choose(brokers: Racks, taken: Sequence[int], loads: Mapping[int, int]) -> int | None:
    racks = {brokers[broker] for broker in taken if broker in brokers}
    free = [broker for broker in brokers if broker not in taken]
    return min(free, key=lambda broker: (brokers[broker] in racks, loads.get(broker, 0), broker), default=None)
