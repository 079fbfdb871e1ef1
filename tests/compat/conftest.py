"""The brokers and the clients that the compatibility scripts run with.

Each script runs against Ottla and, where its jars are there, against a real Apache Kafka: the same assertions
hold for both. One Kafka serves the whole test run, however many workers it has; each worker has its own Ottla.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ottla.testing.clients import ForeignClient, foreign_clients
from ottla.testing.oracle import oracle_available, shared_kafka

CLIENTS = {client.name: client for client in foreign_clients()}


class Target(NamedTuple):
    """A broker under test."""

    name: str
    bootstrap: str
    pid: int


@pytest.fixture(scope="session")
def ottla() -> Iterator[Target]:
    from ottla import Broker

    with Broker.embedded() as broker:
        yield Target("ottla", broker.bootstrap, broker.pid)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """The oracle. Shared by all workers; it ends when the process that runs the whole session ends."""
    reason = oracle_available()
    if reason is not None:
        pytest.skip(reason)
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        run_directory, owner_pid = base.parent, os.getppid()
    else:
        run_directory, owner_pid = base, os.getpid()
    shared = shared_kafka(Path(run_directory), owner_pid)
    return Target("kafka", shared.bootstrap, shared.pid)


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.oracle, id="apache")])
def broker(request: pytest.FixtureRequest) -> Target:
    """Each broker in turn; the other one is not started for it."""
    return request.getfixturevalue(request.param)


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
