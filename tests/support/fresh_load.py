"""The log is the source of truth: a fresh load of a coordinator's log must give the state of the live shard.

`watched` checks it wherever a test could otherwise lose a shard: at the end of every `GroupWorld` and
`TransactionWorld`, at the end of every run of a `World` or `ClusterWorld`, and before a broker's coordinators stop or
are killed. The partition logs of a simulated broker are checked with it: a fresh load of their files must give the live
offsets, producers and leader epochs. Directories of tests switch it on with an autouse fixture.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from ottla.coordinator.replaying import replay_batches
from tests.support.worlds.log_reload import is_appending, reload_differences

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.coordinators import Coordinators
    from ottla.coordinator.effects import Shard
    from ottla.coordinator.runtime import CoordinatorRuntime
    from ottla.replication.replica_manager import ReplicaManager

SLICE_BYTES = 1 << 20


class ShardWorld(Protocol):
    """A test world around one pure shard."""

    @property
    def shard(self) -> "Shard": ...

    def fresh_load(self) -> "Shard":
        """A new shard that has replayed the world's log."""


_worlds: list[ShardWorld] | None = None
"""Created since `watched` began; None outside of it."""
_differences: list[str] = []
_exempt: list[object] = []


def watch(world: ShardWorld) -> None:
    """Called by each world when it is created."""
    if _worlds is not None:
        _worlds.append(world)


def differences(live: "Shard", fresh: "Shard") -> list[str]:
    """What differs between a live shard and a fresh load, one line each."""
    here, there = live.hard_state(), fresh.hard_state()
    rebalancing = {f"group {name}" for name in _rebalancing(live)}
    return [
        f"{key}: live {here.get(key, 'nothing')!r}, fresh load {there.get(key, 'nothing')!r}"
        for key in sorted((here.keys() | there.keys()) - rebalancing)
        if here.get(key) != there.get(key)
    ]


def _rebalancing(shard: Any) -> set[str]:
    """Groups in the middle of a rebalance: the log holds their last record, memory is ahead of it."""
    groups = getattr(shard, "groups", {})
    return {name for name, group in groups.items() if group.state in ("PreparingRebalance", "CompletingRebalance")}


def check_world(world: ShardWorld) -> None:
    found = differences(world.shard, world.fresh_load())
    assert not found, "\n".join(["a fresh load differs from the live shard:", *found])


def differences_in(runtime: "CoordinatorRuntime[Any]", replicas: "ReplicaManager") -> list[str]:
    """Loads every active shard of a broker's coordinator again, beside the live one."""
    found = []
    for hosted in runtime.active_shards():
        replica = replicas.find(runtime.topic, hosted.partition)
        # Replicas learn of a new leader first. Until the shard is unloaded, its log may already follow another broker.
        if replica is None or not replica.is_leader or replica.leader_epoch > hosted.epoch + 1:
            continue
        fresh, offset = runtime.make_shard(hosted.partition), replica.log.log_start_offset
        # Not beyond what the live shard has seen: a test may append on its own, or kill the broker inside an append.
        while offset < hosted.end_offset:
            data = replica.log.read(offset, SLICE_BYTES, upper_bound=hosted.end_offset)
            if not data:
                break
            offset, _ = replay_batches(fresh, data, offset)
        found += [f"{hosted.name}: {line}" for line in differences(hosted.shard, fresh)]
    return found


def differences_in_logs(replicas: "ReplicaManager", now: int) -> list[str]:
    """Loads the files of every partition with records again, beside the live log."""
    logs = [replica.log for replica in replicas.replicas() if replica.log.log_end_offset > 0]
    # A test may kill the broker inside an append, or let the disk fail.
    logs = [log for log in logs if not log.store.has_failed and not is_appending(log)]
    return [line for log in logs for line in reload_differences(log, now=now)]


def note_differences(coordinators: "Coordinators | None", name: str = "") -> None:
    """Remembers what differs, for the end of the test: the stopping broker must not fail."""
    if coordinators is not None and _worlds is not None and coordinators not in _exempt:
        for runtime in coordinators.runtimes():
            _differences.extend(f"{name}{line}" for line in differences_in(runtime, coordinators.replicas))


def note_differences_of_broker(broker: "Broker | None", now: int, name: str = "") -> None:
    """The same for a simulated broker, with its partition logs."""
    services = getattr(broker, "services", None)
    if services is not None and _worlds is not None:
        note_differences(services.coordinators, name)
        _differences.extend(f"{name}{line}" for line in differences_in_logs(services.replicas, now))


def _watch_worlds(patch: pytest.MonkeyPatch) -> None:
    """Checks the broker of a simulated world when the story is over, and before each kill."""
    from ottla.testing.world import World

    kill, run = World.kill_broker, World.run
    killed: list[object] = []

    def check_broker(world: World) -> None:
        if world.broker not in killed:
            note_differences_of_broker(world.broker, world.loop.clock())

    def checked_kill(self: World, **options: Any) -> None:
        check_broker(self)
        killed.append(self.broker)
        kill(self, **options)

    def checked_run(self: World, story: Any) -> Any:
        async def then_check(world: World) -> Any:
            result = await story(world)
            check_broker(world)
            return result

        return run(self, then_check)

    patch.setattr(World, "kill_broker", checked_kill)
    patch.setattr(World, "run", checked_run)


def _watch_clusters(patch: pytest.MonkeyPatch) -> None:
    """Checks every broker of a simulated cluster when the story is over, and before it is killed."""
    from ottla.testing.cluster_world import ClusterWorld, SimBroker

    kill, run = SimBroker.kill, ClusterWorld.run

    def check_broker(machine: SimBroker) -> None:
        note_differences_of_broker(machine.broker, machine.clock(), f"{machine} at {machine.world.loop.time():.3f}: ")

    def checked_kill(self: SimBroker, **options: Any) -> None:
        check_broker(self)
        kill(self, **options)

    def checked_run(self: ClusterWorld, story: Any) -> Any:
        async def then_check(world: ClusterWorld) -> Any:
            result = await story(world)
            for machine in world.brokers.values():
                check_broker(machine)
            return result

        return run(self, then_check)

    patch.setattr(SimBroker, "kill", checked_kill)
    patch.setattr(ClusterWorld, "run", checked_run)


@contextmanager
def watched() -> Iterator[None]:
    """Checks every shard that is created inside."""
    global _worlds, _differences
    from ottla.broker.coordinators import Coordinators

    stop = Coordinators.stop

    async def checked_stop(self: Coordinators) -> None:
        note_differences(self)
        await stop(self)

    outer = _worlds, _differences
    _worlds, _differences = [], []
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Coordinators, "stop", checked_stop)
            if "ottla.testing.world" in sys.modules:
                _watch_worlds(patch)
            if "ottla.testing.cluster_world" in sys.modules:
                _watch_clusters(patch)
            yield
        for world in _worlds:
            check_world(world)
        assert not _differences, "\n".join(["a fresh load differs from the live shard:", *_differences])
    finally:
        _worlds, _differences = outer
        _exempt.clear()


@contextmanager
def unwatched() -> Iterator[None]:
    """For tests that break the code on purpose."""
    global _worlds
    worlds, _worlds = _worlds, None
    try:
        yield
    finally:
        _worlds = worlds


def exempt(coordinators: "Coordinators") -> None:
    """Exempts coordinators whose log the test appended to directly."""
    _exempt.append(coordinators)
