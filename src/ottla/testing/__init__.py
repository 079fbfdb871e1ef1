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
    from ottla.testing.sim_disk import SimDisk, SimPlatter
    from ottla.testing.sim_loop import SimClock, SimHost, SimLoop
    from ottla.testing.sim_network import SimNetwork
    from ottla.testing.world import World

__all__ = [
    "ClusterWorld",
    "SimBroker",
    "SimClock",
    "SimDisk",
    "SimHost",
    "SimLoop",
    "SimNetwork",
    "SimPlatter",
    "World",
]

# Imported on first use: World and ClusterWorld need the broker and the client, SimLoop only asyncio.
_MODULE_OF = {
    "ClusterWorld": "ottla.testing.cluster_world",
    "SimBroker": "ottla.testing.cluster_world",
    "SimClock": "ottla.testing.sim_loop",
    "SimDisk": "ottla.testing.sim_disk",
    "SimHost": "ottla.testing.sim_loop",
    "SimLoop": "ottla.testing.sim_loop",
    "SimNetwork": "ottla.testing.sim_network",
    "SimPlatter": "ottla.testing.sim_disk",
    "World": "ottla.testing.world",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
