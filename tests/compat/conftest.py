"""The brokers and clients of the compatibility tests.

Each script runs against Ottla and, if its jars are installed, against a real Apache Kafka: the same assertions
hold for both. One Kafka serves the whole test run, however many workers it has; each worker has its own Ottla.
"""

import contextlib
import fcntl
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import ForeignClient, foreign_clients
from tests.support.processes.oracle import Target
from tests.support.wire.raw import Side, differences

CLIENTS = {client.name: client for client in foreign_clients()}


@pytest.fixture
def alone(run_directory: Path) -> Iterator[None]:
    """Locks out other workers: for tests that change or compare settings of the whole shared Kafka."""
    with open(run_directory / "alone.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.oracle, id="apache")])
def broker(request: pytest.FixtureRequest) -> Target:
    """Each broker in turn. The other one is not started."""
    target = request.getfixturevalue(request.param)
    assert isinstance(target, Target)
    return target


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.java] if name == "java" else []


@pytest.fixture(params=[pytest.param(name, marks=_marks(name)) for name in CLIENTS])
def client(request: pytest.FixtureRequest) -> ForeignClient:
    """Each foreign client in turn."""
    chosen = CLIENTS[request.param]
    reason = chosen.unavailable()
    if reason is not None:
        pytest.skip(reason)
    return chosen


@pytest.fixture(scope="session", autouse=True)
def _close_clients() -> Iterator[None]:
    yield
    for chosen in CLIENTS.values():
        chosen.close()


_numbers = itertools.count(1)


@pytest.fixture
def fresh_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Topic names that no other test, worker or earlier run on the same broker has used."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:80].strip("-")
    return lambda: f"{words}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def topic(fresh_name: Callable[[], str]) -> str:
    return fresh_name()


@pytest.fixture
def await_leaders(broker: Target) -> Callable[..., None]:
    """Waits until a new topic can be used. Apache Kafka answers CreateTopics before every part of it knows the topic,
    and some clients do not retry the request that fails because of it."""

    def wait(name: str, partitions: int = 1) -> None:
        with contextlib.closing(Side(broker.name, broker.bootstrap, name)) as side:
            side.await_leader(name, partitions)

    return wait


@pytest.fixture
def sides(ottla: Target, kafka: Target, topic: str) -> Iterator[list[Side]]:
    """Ottla and Apache Kafka side by side, each with a topic of two partitions."""
    both = [Side(target.name, target.bootstrap, topic) for target in (ottla, kafka)]
    for side in both:
        side.create(topic)
    yield both
    for side in both:
        side.close()


@pytest.fixture
def same(sides: list[Side]) -> Callable[[Callable[[Side], Any]], Any]:
    """Runs a script on both brokers, compares the outcomes and returns the common one."""

    def run(script: Callable[[Side], Any]) -> Any:
        ours, theirs = (script(side) for side in sides)
        found = differences(ours, theirs)
        assert not found, "\n".join(found)
        return theirs

    return run
