"""Free ports for servers that must know them before they start, and find them free again after a restart.

They lie below those that Linux gives to clients: no client gets one as its own, and a client that connects to a port
nobody listens on is not connected with itself. Workers of a test run take them from different ranges, because on a busy
machine it takes long until a server binds them.
"""

import contextlib
import os
import random
import socket
from collections import deque
from collections.abc import Sequence

PORTS = range(15_000, 32_000)
TRIES = 10_000
_given: deque[int] = deque(maxlen=256)
"""The last ports of this process: free until their servers bind them, so a probe alone could return one twice."""


def fixed_ports(count: int) -> list[int]:
    for _ in range(TRIES):
        ports = random.Random().sample(_share(), count)
        if _take(ports):
            return ports
    raise AssertionError(f"no {count} free ports in {_share()}")


def fixed_port() -> int:
    return fixed_ports(1)[0]


def ports_in_a_row(count: int) -> int:
    """The first of `count` consecutive ports."""
    share = _share()
    for _ in range(TRIES):
        first = random.Random().choice(share[: 1 - count or None])
        if _take(range(first, first + count)):
            return first
    raise AssertionError(f"no {count} free ports in a row in {share}")


def _share() -> range:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    size = len(PORTS) // workers
    return PORTS[worker % workers * size :][:size]


def _take(ports: Sequence[int]) -> bool:
    if any(port in _given for port in ports):
        return False
    with contextlib.ExitStack() as stack:
        for port in ports:
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    _given.extend(ports)
    return True
