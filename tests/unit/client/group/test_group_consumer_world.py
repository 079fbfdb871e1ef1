"""Group consumers and a whole broker in one simulated world: members pause and die, network and broker fail."""

# ruff: noqa: SLF001  (sets up or checks internal state)

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client.group.rebalance_listener import RebalanceListener
from ottla.errors import KafkaError
from ottla.testing.sim_loop import SimHost
from ottla.testing.world import World
from ottla.types import TopicPartition
from tests.support.seeds import each_seed

if TYPE_CHECKING:
    from ottla.client.consumer.consumer import AsyncConsumer

PARTITIONS = 6
STRATEGIES = ["range", "cooperative-sticky", "roundrobin", "sticky"]
# Killed hosts leave coroutines behind that never finish; Python warns when it deletes them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]
QUICK = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000, "max_poll_interval_ms": 12_000}


class Scene:
    """What all members together have processed."""

    def __init__(self, world: World, strategy: str) -> None:
        self.world = world
        self.strategy = strategy
        self.processed: list[tuple[int, int]] = []
        self.owners: dict[tuple[int, TopicPartition], str] = {}
        self.holding: dict[str, set[TopicPartition]] = {}
        self.events: list[tuple[float, str, str, int, list[int]]] = []
        self.members: dict[str, Member] = {}

    def start(self, name: str, **settings: Any) -> "Member":
        member = self.members[name] = Member(self, name, settings)
        member.host.start(member.run())
        return member

    def note(self, name: str, what: str, generation: int, partitions: list[TopicPartition]) -> None:
        self.events.append((self.world.loop.time(), name, what, generation, [p.partition for p in partitions]))


class Member(RebalanceListener):
    """Processes, then commits (at least once), until it is stopped."""

    def __init__(self, scene: Scene, name: str, settings: dict[str, Any]) -> None:
        self.scene = scene
        self.name = name
        self.settings = settings
        self.host = SimHost(scene.world.loop, name)
        self.pause_s = 0.0
        self.stops = False
        self.consumer: AsyncConsumer | None = None
        self.failure: BaseException | None = None
        self.done = asyncio.Event()

    async def run(self) -> None:
        try:
            await self._run()
        except BaseException as error:
            self.failure = error
        self.done.set()

    async def _run(self) -> None:
        settings = {"enable_auto_commit": False, "auto_offset_reset": "earliest", **QUICK, **self.settings}
        consumer = self.scene.world.consumer(
            group_id="g", partition_assignment_strategy=self.scene.strategy, client_id=self.name, **settings
        )
        self.consumer = consumer
        # Not `async with`: the coroutine of a killed member is dropped here, and must not try to close the consumer.
        await consumer.subscribe(["t"], listener=self)
        while not self.stops:
            records = await consumer.poll(200, max_records=7)
            for record in records:
                self.scene.processed.append((record.partition, record.offset))
            pause_s, self.pause_s = self.pause_s, 0.0
            await asyncio.sleep(pause_s)
            if records:
                try:
                    await consumer.commit(timeout_ms=5_000)
                except KafkaError:
                    pass  # fenced, rebalancing or unreachable: the records are read again
        await consumer.close()

    @property
    def generation(self) -> int:
        assert self.consumer is not None
        assert self.consumer._group is not None
        return self.consumer._group.membership.generation

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        scene = self.scene
        scene.note(self.name, "assigned", self.generation, partitions)
        for partition in partitions:
            other = scene.owners.setdefault((self.generation, partition), self.name)
            assert other == self.name, f"{partition} went to {other} and {self.name} in generation {self.generation}"
        scene.holding.setdefault(self.name, set()).update(partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.scene.note(self.name, "revoked", self.generation, partitions)
        self.scene.holding[self.name].difference_update(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        if self.host.alive:  # the tasks of a killed host end with an error that does not matter
            self.scene.note(self.name, "lost", self.generation, partitions)
            self.scene.holding[self.name].difference_update(partitions)


async def fill(world: World, count: int, pause_s: float = 0.0) -> None:
    async with world.producer(delivery_timeout_ms=600_000) as producer:
        for number in range(count):
            await producer.send("t", f"{number}", partition=number % PARTITIONS)
            if pause_s:
                await asyncio.sleep(pause_s)


async def settled(scene: Scene, records: int, patience_s: float = 180) -> None:
    """Everything is processed, and exactly one living member owns each partition."""
    loop = scene.world.loop
    deadline = loop.time() + patience_s
    living = [member for member in scene.members.values() if member.host.alive and not member.stops]
    while True:
        held = sorted(p.partition for m in living for p in scene.holding.get(m.name, ()))
        if len(set(scene.processed)) == records and held == list(range(PARTITIONS)):
            return
        for member in living:
            if member.failure is not None:
                raise member.failure
        assert loop.time() < deadline, (
            f"{len(set(scene.processed))} of {records} processed, held {held}; {scene.events[-12:]}"
        )
        await asyncio.sleep(0.5)


async def close_all(scene: Scene) -> None:
    for member in scene.members.values():
        member.stops = True
    for member in scene.members.values():
        if member.host.alive:
            await asyncio.wait_for(member.done.wait(), 120)
        if member.host.alive and member.failure is not None:
            raise member.failure


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.slow
def test_every_record_is_processed_once_while_members_join_and_leave(strategy: str) -> None:
    """Spec: A9, B6, B7. Without failures nothing is read twice, and no partition has two owners."""
    for seed in range(2):
        world = World(seed)
        scene = Scene(world, strategy)

        async def story(world: World, scene: Scene = scene) -> None:
            async with world.admin() as admin:
                await admin.create_topic("t", partitions=PARTITIONS)
            writing = asyncio.ensure_future(fill(world, 600, 0.05))
            for name in ("a", "b", "c"):
                scene.start(name)
                await asyncio.sleep(world.random.uniform(0, 9))
            scene.members["b"].stops = True
            await asyncio.sleep(world.random.uniform(0, 5))
            scene.start("d")
            await writing
            await settled(scene, 600)
            await close_all(scene)
            async with world.admin() as admin:
                committed = await admin.list_group_offsets("g")
                (group,) = await admin.describe_groups(["g"])
            assert {p.partition: offset.offset for p, offset in committed.items()} == dict.fromkeys(
                range(PARTITIONS), 100
            )
            assert group.state == "Empty", "all members have left"

        world.run(story)
        assert len(scene.processed) == len(set(scene.processed)) == 600
        assert_revoked_before_assigned(scene)
        if strategy != "cooperative-sticky":
            assert_all_revoked_before_any_is_assigned(scene)


def assert_revoked_before_assigned(scene: Scene) -> None:
    """No partition is assigned while another member still owns it."""
    holder: dict[int, str] = {}
    for at, name, what, generation, partitions in scene.events:
        for partition in partitions:
            if what == "assigned":
                held_by = holder.setdefault(partition, name)
                assert held_by == name, f"{at}: {name} got {partition} of {held_by} in generation {generation}"
            else:
                assert holder.pop(partition, name) == name


def assert_all_revoked_before_any_is_assigned(scene: Scene) -> None:
    """Also members whose partitions do not move: with an eager assignor everybody starts a generation with nothing."""
    newest = 0
    for at, name, what, generation, partitions in scene.events:
        if what == "assigned":
            newest = max(newest, generation)
        else:
            assert generation >= newest, f"{at}: {name} revoked {partitions} of {generation} in generation {newest}"
    assert newest > 1, "members have joined and left"


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@each_seed(11)
def test_nothing_is_lost_when_members_network_and_broker_fail(strategy: str, seed: int) -> None:
    """Spec: A9, B6, D1. At most one owner per partition and generation, and all records are processed."""
    world = World(seed)
    scene = Scene(world, strategy)

    async def story(world: World, scene: Scene = scene) -> None:
        rng, names = world.random, iter(range(1_000))
        async with world.admin() as admin:
            await admin.create_topic("t", partitions=PARTITIONS)
        writing = asyncio.ensure_future(fill(world, 400, 0.2))
        for _ in range(3):
            scene.start(f"m{next(names)}")
        for _ in range(12):
            await asyncio.sleep(rng.uniform(0.5, 8))
            living = [m for m in scene.members.values() if m.host.alive and not m.stops]
            victim = rng.choice(living)
            action = rng.choice(["pause", "long pause", "die", "leave", "cut", "part", "broker", "join"])
            if action == "pause":
                victim.pause_s = rng.uniform(1, 10)
            elif action == "long pause":
                victim.pause_s = rng.uniform(13, 30)
            elif action == "die":
                victim.host.kill()
                scene.holding.pop(victim.name, None)
                scene.start(f"m{next(names)}")
            elif action == "leave":
                victim.stops = True
                scene.start(f"m{next(names)}")
            elif action == "cut":
                world.network.cut_all()
            elif action == "part":
                world.network.partition(victim.name, "broker")
                await asyncio.sleep(rng.uniform(1, 12))
                world.network.heal()
            elif action == "broker":
                world.kill_broker()
                await asyncio.sleep(rng.uniform(0, 4))
                await world.start_broker()
            else:
                scene.start(f"m{next(names)}")
        await writing
        await settled(scene, 400)
        await close_all(scene)

    world.run(story)
    assert set(scene.processed) == {(n % PARTITIONS, n // PARTITIONS) for n in range(400)}


def test_a_slow_listener_may_still_seek() -> None:
    """The lookup of the committed offset may finish first, without a result; the listener's seek() still counts."""

    async def story(world: World) -> None:
        async with world.admin() as admin:
            await admin.create_topic("t", partitions=PARTITIONS)
        await fill(world, 2 * PARTITIONS)
        async with world.consumer(group_id="g", auto_offset_reset="none", enable_auto_commit=False) as consumer:

            class Slow(RebalanceListener):
                async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
                    await asyncio.sleep(1)
                    for partition in partitions:
                        await consumer.seek(partition, 1)

            await consumer.subscribe(["t"], listener=Slow())
            found: list[Any] = []
            while len(found) < PARTITIONS:
                found += await consumer.poll(1_000)
        assert {record.offset for record in found} == {1}

    World(1).run(story)
