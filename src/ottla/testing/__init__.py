"""A simulated world for tests: an event loop in simulated time, and a network and a disk that fail on demand.

Production code runs in it unchanged, and a run depends on its seed alone: a failure can be replayed. SimLoop and
SimNetwork work for any asyncio code; World runs a whole Ottla broker with its clients, ClusterWorld several brokers.
See docs/testing-your-code.md.

>>> from ottla.testing import SimLoop
>>> SimLoop(seed=1).run(main())
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.testing.cluster_world import ClusterWorld, SimBroker
    from ottla.testing.memory_store import MemoryStore, MemoryTree
    from ottla.testing.sim_disk import SimDisk, SimPlatter
    from ottla.testing.sim_loop import SimClock, SimHost, SimLoop, current_host
    from ottla.testing.sim_network import SimNetwork
    from ottla.testing.sim_store import SimStore, SimStoreHub
    from ottla.testing.world import World

__all__ = [
    "ClusterWorld",
    "MemoryStore",
    "MemoryTree",
    "SimBroker",
    "SimClock",
    "SimDisk",
    "SimHost",
    "SimLoop",
    "SimNetwork",
    "SimPlatter",
    "SimStore",
    "SimStoreHub",
    "World",
    "current_host",
]

# Imported on first use: World and ClusterWorld need the broker and the client, SimLoop only asyncio.
_HOMES = {
    "ClusterWorld": "ottla.testing.cluster_world",
    "SimBroker": "ottla.testing.cluster_world",
    "MemoryStore": "ottla.testing.memory_store",
    "MemoryTree": "ottla.testing.memory_store",
    "SimClock": "ottla.testing.sim_loop",
    "SimDisk": "ottla.testing.sim_disk",
    "SimHost": "ottla.testing.sim_loop",
    "SimLoop": "ottla.testing.sim_loop",
    "SimNetwork": "ottla.testing.sim_network",
    "SimPlatter": "ottla.testing.sim_disk",
    "SimStore": "ottla.testing.sim_store",
    "SimStoreHub": "ottla.testing.sim_store",
    "World": "ottla.testing.world",
    "current_host": "ottla.testing.sim_loop",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
