"""What must hold in a simulated cluster when the faults are over."""

import asyncio
from typing import Any

from ottla.errors import KafkaError
from ottla.metadata.image import PartitionImage
from ottla.replication.replica import Replica
from ottla.testing.cluster_world import ClusterWorld
from ottla.verify.checks.checker import check
from ottla.verify.history import UNCOMMITTED, History, partition_name
from tests.support import fresh_load
from tests.support.histories import final_read
from tests.support.worlds.cluster_ledger import Ledger, batches_between
from tests.support.worlds.cluster_load import BOUND, PLAIN, QUICK, Load

PATIENCE_S = 120
"""How long a cluster may take to be in order again after the last fault."""

Contents = dict[str, list[tuple[int, int]]]
"""(offset, value) of every partition."""


async def settle(world: ClusterWorld) -> None:
    """Ends all faults. Every partition gets a leader and a full in-sync set, and every replica has everything."""
    world.heal()
    await world.start_all()
    deadline = world.loop.time() + PATIENCE_S
    while open_points := unsettled(world):
        if world.loop.time() > deadline:
            shown = "\n  ".join(open_points[:10])
            raise AssertionError(f"{PATIENCE_S} s after the last fault the cluster is not in order:\n  {shown}")
        await asyncio.sleep(0.1)
    world.note("the cluster is in order")


def unsettled(world: ClusterWorld) -> list[str]:
    """What is not in order yet, one line each."""
    image = world.image
    found = [f"{broker} is not registered" for broker in world.brokers.values() if broker.id not in image.brokers]
    if image.controller_id not in image.brokers:
        found.append("there is no controller")
    for topic in image.topics.values():
        for partition in topic.partitions:
            found += [f"{topic.name}-{partition.index}: {line}" for line in _unsettled(world, topic.name, partition)]
    return found


def _unsettled(world: ClusterWorld, topic: str, partition: PartitionImage) -> list[str]:
    if partition.leader not in partition.replicas:
        return [f"no leader ({partition})"]
    if set(partition.isr) != set(partition.replicas):
        return [f"in sync are {partition.isr} of {partition.replicas}, leader {partition.leader}"]
    replicas = [find_replica(world, broker_id, topic, partition.index) for broker_id in partition.replicas]
    leader = find_replica(world, partition.leader, topic, partition.index)
    if leader is None or not leader.is_leader:
        return [f"broker {partition.leader} does not lead it"]
    found = []
    for broker_id, replica in zip(partition.replicas, replicas, strict=True):
        if replica is None:
            found.append(f"broker {broker_id} does not host it")
        elif replica.leader_epoch != partition.leader_epoch:
            found.append(f"broker {broker_id} is in epoch {replica.leader_epoch}, not {partition.leader_epoch}")
        else:
            end, watermark = replica.log.log_end_offset, replica.log.high_watermark
            wanted = leader.log.log_end_offset
            if (end, watermark) != (wanted, wanted):
                found.append(
                    f"broker {broker_id} has end {end}, high watermark {watermark}; the leader ends at {wanted}"
                )
    return found


def find_replica(world: ClusterWorld, broker_id: int, topic: str, partition: int) -> Replica | None:
    broker = world.brokers[broker_id].broker
    services = getattr(broker, "services", None)
    return None if services is None else services.replicas.find(topic, partition)


def check_replicas(world: ClusterWorld, ledger: Ledger) -> None:
    """The copies of every partition are equal, byte for byte, up to the high watermark."""
    for topic in world.image.topics.values():
        for partition in topic.partitions:
            copies = {}
            for broker_id in partition.replicas:
                replica = find_replica(world, broker_id, topic.name, partition.index)
                assert replica is not None
                ledger.check_end(replica.log)
                copies[broker_id] = replica.log
            start = max(log.log_start_offset for log in copies.values())
            end = min(log.high_watermark for log in copies.values())
            contents = {broker_id: list(batches_between(log, start, end)) for broker_id, log in copies.items()}
            first = contents[partition.leader]
            for broker_id, content in contents.items():
                if not copies[broker_id].config.compacts:
                    assert content == first, (
                        f"{topic.name}-{partition.index}: brokers {partition.leader} and {broker_id} differ: "
                        f"{[c[:2] for c in first]} and {[c[:2] for c in content]}"
                    )
    assert not ledger.problems, "\n".join(["committed records were lost or changed:", *ledger.problems])


def check_fresh_loads(world: ClusterWorld) -> None:
    """What a fresh load of each coordinator partition and of each log knows equals what the live one knows."""
    found = []
    for machine in world.brokers.values():
        assert machine.broker is not None
        services = machine.broker.services
        if services.coordinators is not None:
            for runtime in services.coordinators.runtimes():
                found += fresh_load.differences_in(runtime, services.replicas)
        found += [f"{machine}: {line}" for line in fresh_load.differences_in_logs(services.replicas, machine.clock())]
    assert not found, "\n".join(["a fresh load differs from the live state:", *found])


async def read_all(world: ClusterWorld, topic: str, partitions: int, *, committed: bool) -> list[list[tuple[int, int]]]:
    """(offset, value) of every record, by partition, read by a new consumer from the beginning."""
    isolation = "read_committed" if committed else "read_uncommitted"
    places = [(topic, p) for p in range(partitions)]
    found: list[list[tuple[int, int]]] = [[] for _ in places]
    async with world.consumer(isolation_level=isolation, auto_offset_reset="earliest", **QUICK) as consumer:
        deadline = world.loop.time() + 120
        # With read_committed this is the last stable offset: wait until no transaction is open.
        while True:
            try:
                ends = await consumer.end_offsets(places)
            except KafkaError:
                ends = {}
            highest = {p: world_end(world, topic, p) for p in range(partitions)}
            if ends and all(ends[place] == highest[place.partition] for place in ends):
                break
            assert world.loop.time() < deadline, f"{topic}: ends {ends}, the logs end at {highest}"
            await asyncio.sleep(0.2)
        await consumer.assign(places)
        await consumer.seek_to_beginning(places)
        for _ in range(10_000):
            if all([await consumer.position(place) >= end for place, end in ends.items()]):
                break
            for record in await consumer.poll(1_000):
                found[record.partition].append((record.offset, int(record.value or b"")))
    return found


def world_end(world: ClusterWorld, topic: str, partition: int) -> int:
    replica = find_replica(world, world.leader_of(topic, partition).id, topic, partition)
    assert replica is not None
    return replica.log.log_end_offset


async def check_all(world: ClusterWorld, load: Load, *, loss_allowed: bool = False) -> Contents:
    """The end of a story: faults end, clients finish, the cluster settles, nothing is wrong. What is in the topics."""
    world.heal()
    await world.start_all()
    await load.finish()
    await settle(world)
    final: Contents = {}
    for topic in (PLAIN, BOUND):
        if topic in world.image.topics:
            for partition, records in enumerate(await read_all(world, topic, load.partitions, committed=True)):
                final[partition_name(topic, partition)] = records
    await settle(world)
    check_replicas(world, load.ledger)
    check_fresh_loads(world)
    if not loss_allowed:
        check_acknowledged(load, final)
        # No transaction writes to this topic: every consumer sees the same.
        plain = {name: records for name, records in final.items() if name.startswith(PLAIN)}
        wrong = check(History([*load.history, final_read(final), final_read(plain, UNCOMMITTED)]))
        assert not wrong, "\n".join(["the history has anomalies:", *map(str, wrong[:20])])
    await check_group(world, load)
    return final


def check_acknowledged(load: Load, final: Contents) -> None:
    """Acknowledged records are where they were acknowledged, and those of a sender are in order."""
    there: dict[int, tuple[int, int]] = {}
    for partition in range(load.partitions):
        for offset, value in final.get(partition_name(PLAIN, partition), ()):
            there[value] = (partition, offset)
    wrong = [
        f"{value} was acknowledged at {where} and is at {there.get(value)}"
        for value, where in load.acknowledged.items()
        if there.get(value) != where
    ]
    assert not wrong, "\n".join([f"{len(wrong)} acknowledged records are lost or moved:", *wrong[:10]])
    for (worker, partition), values in load.sent.items():
        found = sorted((value for value in values if value in there), key=lambda value: there[value][1])
        assert found == values, f"sender {worker}, partition {partition}: sent {values}, found {found}"


async def check_group(world: ClusterWorld, load: Load) -> None:
    """Acknowledged commits of the group are stored, and it has seen everything."""
    if not load.committed_offsets:
        return
    async with world.consumer(group_id="g", **QUICK) as consumer:
        stored: Any = await consumer.committed([(PLAIN, p) for p in load.committed_offsets])
    for partition, offset in load.committed_offsets.items():
        kept = next((c.offset for place, c in stored.items() if place.partition == partition and c is not None), None)
        assert kept is not None, f"the commit of {PLAIN}-{partition} at {offset} is lost"
        assert kept >= offset, f"{PLAIN}-{partition}: {offset} was committed, {kept} is stored"
    missed = set(load.acknowledged) - load.seen_by_group
    assert not missed, f"the group has never seen {sorted(missed)[:10]}"
