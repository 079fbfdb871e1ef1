"""A hundred brokers, 100,000 partitions and 10,000 groups, simulated: the work of one broker of such a cluster.

One broker is real: its metadata follower, controller, replicas and coordinators run on the simulated loop, with a
simulated disk and store. The others only register, hold their sessions and die. So the numbers are the CPU
seconds of each broker of the cluster; simulated time is not shown.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.process_memory import resident_bytes
from bench.results import Results
from ottla.broker.broker import Broker
from ottla.broker.settings.config import load_config
from ottla.coordinator.group.records import TopicCommit
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.replaying import replay_batches
from ottla.metadata.changes.registration import Joining, register
from ottla.metadata.changes.topic_changes import NewTopic
from ottla.metadata.controller.decisions import Put
from ottla.metadata.image import NO_IMAGE, BrokerRegistration, ClusterImage
from ottla.metadata.records import partition_state_key
from ottla.metadata.store import ANY_VERSION, Change, Create, Set
from ottla.protocol.records.record_batch import build_batch
from ottla.testing.cluster_world import ClusterWorld
from ottla.testing.sim_store import SimStore
from ottla.types import Endpoint

SUITE = "scale"
NAME = "ottla"
BROKERS, TOPICS, PARTITIONS_EACH, GROUPS, OFFSETS_EACH = 100, 1_000, 100, 10_000, 10
QUICK_BROKERS, QUICK_TOPICS, QUICK_GROUPS = 20, 100, 1_000
RACKS = 3
"""All brokers of one rack die at once."""
REPLICAS = 3
CREATED_AT_ONCE = 10
SETTLE_S = 4.0
"""After this many simulated seconds without a commit, an event has been handled completely."""
SESSION_MS = 600_000
REPEATED = 100
PAUSE_S = 0.01


class Watcher:
    """Another broker's session: what the store has to send to it."""

    def __init__(self, store: SimStore) -> None:
        self.changes: list[list[Change]] = []
        store.watch("/", lambda changes: self.changes.append(list(changes)))

    def take(self) -> list[list[Change]]:
        taken, self.changes = self.changes, []
        return taken


class Cluster:
    """A simulated cluster with one real broker."""

    def __init__(self, results: Results, brokers: int, topics: int) -> None:
        self.results = results
        self.brokers, self.topics = brokers, topics
        self.world = ClusterWorld(seed=7, brokers=1, default_replication_factor=str(REPLICAS))
        self.sessions: dict[int, SimStore] = {}

    @property
    def broker(self) -> Broker:
        broker = self.world.brokers[0].broker
        assert broker is not None
        return broker

    @property
    def image(self) -> ClusterImage:
        return self.broker.services.image

    @property
    def partitions(self) -> int:
        return self.topics * PARTITIONS_EACH

    def add(self, name: str, unit: str, value: float) -> None:
        self.results.add(SUITE, name, unit, NAME, value)

    @contextmanager
    def cpu(self, name: str, unit: str = "s", scale: float = 1.0) -> Iterator[None]:
        gc.collect()
        began = time.process_time()
        yield
        self.add(name, unit, (time.process_time() - began) * scale)

    async def join(self, broker_id: int) -> int:
        """Registers a broker that was stopped cleanly; returns the number of keys in its commit."""
        store = self.world.hub.session(f"broker-{broker_id}", session_timeout_ms=SESSION_MS)
        await store.start()
        known = self.image.known_brokers.get(broker_id)
        endpoints = {"PLAINTEXT": Endpoint(f"10.0.1.{broker_id}", 9092)}
        joining = Joining(
            BrokerRegistration(broker_id, 0, endpoints, f"rack-{broker_id % RACKS}"),
            previous_epoch=None if known is None else known.epoch,
            cluster_id=self.image.cluster_id,
        )
        decision = register(self.image, joining, self.broker.services.settings, "", 0)
        tree, operations = self.world.hub.tree, []
        for put in decision.changes:
            assert isinstance(put, Put)
            is_new = put.ephemeral or put.key not in tree.entries
            operations.append(Create(*put) if is_new else Set(put.key, put.value, ANY_VERSION))
        tree.apply(operations, store.session_id)
        self.sessions[broker_id] = store
        return len(operations)

    async def settle(self) -> None:
        """Waits until the last event causes no more commits."""
        tree = self.world.hub.tree
        for _ in range(100):
            commits = tree.commits
            await asyncio.sleep(SETTLE_S)
            if tree.commits == commits:
                return
        raise AssertionError("the cluster does not settle")

    async def die(self, *broker_ids: int) -> int:
        """Ends sessions at the same time, and returns the number of commits that follow."""
        tree = self.world.hub.tree
        for broker_id in broker_ids:
            tree.end_session(self.sessions.pop(broker_id).session_id)
        before = tree.commits
        await self.settle()
        led = [p for topic in self.image.topics.values() for p in topic.partitions if p.leader in broker_ids]
        assert not led, f"{len(led)} partitions are still led by a dead broker"
        return tree.commits - before


def run(results: Results, rounds: int, quick: bool, step: Any) -> None:
    logging.getLogger("ottla").setLevel(logging.ERROR)
    brokers, topics = (QUICK_BROKERS, QUICK_TOPICS) if quick else (BROKERS, TOPICS)
    groups = QUICK_GROUPS if quick else GROUPS
    step(total=2)
    step(f"{brokers} brokers, {topics * PARTITIONS_EACH:,} partitions")
    cluster = Cluster(results, brokers, topics)
    cluster.world.run(lambda _: measure(cluster))
    step(f"{groups:,} groups")
    measure_groups(results, groups)


async def measure(cluster: Cluster) -> None:
    for broker_id in range(1, cluster.brokers):
        await cluster.join(broker_id)
    await cluster.settle()
    await create(cluster)
    observer = cluster.world.hub.session("observer", session_timeout_ms=SESSION_MS)
    await observer.start()
    watcher = Watcher(observer)
    await measure_start(cluster, observer)
    await measure_metadata(cluster)
    await measure_changes(cluster)
    await measure_deaths(cluster, watcher)


async def create(cluster: Cluster) -> None:
    """The first and the last topics: the cost of one must not grow with the number of topics."""
    metadata = cluster.broker.services.metadata
    chunks = [
        [NewTopic(f"topic-{n:04}", PARTITIONS_EACH, REPLICAS) for n in range(first, first + CREATED_AT_ONCE)]
        for first in range(0, cluster.topics, CREATED_AT_ONCE)
    ]
    per_partition = 1e6 / (CREATED_AT_ONCE * PARTITIONS_EACH)
    before = resident_bytes()
    for number, chunk in enumerate(chunks):
        which = "the first 1,000 partitions" if number == 0 else "the last 1,000 partitions"
        if number in (0, len(chunks) - 1):
            with cluster.cpu(f"create {which}: CPU per partition", "µs", per_partition):
                created = await metadata.changes.create_topics(chunk)
                await metadata.applied()
        else:
            created = await metadata.changes.create_topics(chunk)
        assert all(each.error == 0 for each in created), created[0]
    await cluster.settle()
    mine = sum(1 for _ in cluster.broker.services.replicas.replicas())
    cluster.add("replicas on this broker", "", mine)
    cluster.add(
        "all memory of this process, store included, per partition",
        "kB",
        (resident_bytes() - before) / cluster.partitions / 1e3,
    )


async def measure_start(cluster: Cluster, store: SimStore) -> None:
    """What every broker reads and builds when it starts."""
    entries = await store.scan("/")
    cluster.add("entries in the store", "", len(entries))
    cluster.add("bytes read from the store at a start", "MB", sum(len(e.key) + len(e.value) for e in entries) / 1e6)
    changes = [Change(entry.key, entry, entry.modified) for entry in entries]
    gc.collect()
    before = resident_bytes()
    with cluster.cpu("build the image of a starting broker: CPU"):
        image = NO_IMAGE.apply(changes, 1)
    cluster.add("memory of an image, per partition", "B", (resident_bytes() - before) / cluster.partitions)
    assert image.topics.keys() == cluster.image.topics.keys()


async def measure_metadata(cluster: Cluster) -> None:
    server = cluster.broker.server
    assert server is not None
    async with cluster.world.admin() as admin:
        await admin.describe_topics([next(iter(cluster.image.topics))])  # prepares the codecs
        sent = server.bytes_out
        with cluster.cpu("Metadata of all topics: CPU of broker and client", "ms", 1e3):
            found = await admin.list_topics()
        assert len(found) == cluster.topics
        cluster.add("Metadata of all topics: size", "MB", (server.bytes_out - sent) / 1e6)
        with cluster.cpu("Metadata of one topic: CPU of broker and client", "ms", 1e3 / REPEATED):
            for _ in range(REPEATED):
                await admin.describe_topics([found[0].name])


async def measure_changes(cluster: Cluster) -> None:
    """One partition changes at a time, as when a follower leaves or joins an in-sync set."""
    tree = cluster.world.hub.tree
    key = partition_state_key(next(iter(cluster.image.topics)), 0)
    with cluster.cpu("a partition changes: CPU of each broker", "ms", 1e3 / REPEATED):
        for _ in range(REPEATED):
            tree.apply([Set(key, tree.entries[key].value, ANY_VERSION)], 0)
            await asyncio.sleep(PAUSE_S)


async def measure_deaths(cluster: Cluster, watcher: Watcher) -> None:
    watcher.take()
    with cluster.cpu("a broker dies: CPU of the controller"):
        commits = await cluster.die(1)
    cluster.add("a broker dies: commits", "", commits)
    followed = watcher.take()
    size = sum(len(c.key) + len(c.entry.value) for batch in followed for c in batch if c.entry is not None)
    cluster.add("a broker dies: bytes that the store sends to each broker", "kB", size / 1e3)
    image = cluster.image
    with cluster.cpu("a broker dies: CPU of each other broker for its image", "ms", 1e3):
        for batch in followed:
            image = image.apply(batch, image.version + 1)
    with cluster.cpu("the broker returns: CPU of its registration and of the controller"):
        keys = await cluster.join(1)
        await cluster.settle()
    cluster.add("the broker returns: keys in its registration", "", keys)
    rack = [broker_id for broker_id in cluster.sessions if broker_id % RACKS == 1]
    with cluster.cpu(f"a rack of {len(rack)} brokers dies: CPU of the controller"):
        commits = await cluster.die(*rack)
    cluster.add(f"a rack of {len(rack)} brokers dies: commits", "", commits)


def measure_groups(results: Results, groups: int) -> None:
    """All groups on one broker, as if it led every partition of __consumer_offsets."""
    now = 1_700_000_000_000
    data = bytearray()
    for number in range(groups):
        writer = TopicCommit(f"group-{number:05}", "orders", bytes(16), now, -1)
        rows = [(now, *writer.record(partition, 1_000 + number, 0, ""), ()) for partition in range(OFFSETS_EACH)]
        data += build_batch(rows, base_offset=number * OFFSETS_EACH)
    shard = GroupShard(load_config({"log.dirs": "unused"}), lambda: "", lambda: 0)
    gc.collect()
    before, began = resident_bytes(), time.process_time()
    replay_batches(shard, bytes(data), 0)
    shard.on_loaded(now)
    seconds = time.process_time() - began
    name = f"load {groups:,} groups with {OFFSETS_EACH} offsets each"
    results.add(SUITE, f"{name}: CPU", "s", NAME, seconds)
    results.add(SUITE, f"{name}: memory per group", "kB", NAME, (resident_bytes() - before) / groups / 1e3)
