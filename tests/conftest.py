"""Fixtures that every test may ask for. Nothing heavy is imported before somebody does.

One Apache Kafka (`kafka`) serves the whole test run, however many workers it has; each worker has its own Ottla.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ottla.broker.embedded import EmbeddedBroker
    from ottla.testing.oracle import Target

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker() -> "Iterator[EmbeddedBroker]":
    """A running broker, one for each worker of a test run. Tests share it and keep apart by their topics."""
    from ottla import Broker

    with Broker.embedded() as running:
        yield running


@pytest.fixture
def topic() -> str:
    """A topic name nobody else uses."""
    return f"topic-{os.getpid()}-{next(_numbers)}"


@pytest.fixture(scope="session")
def ottla() -> "Iterator[Target]":
    from ottla import Broker
    from ottla.testing.oracle import Target

    # As the oracle has it: a group's first generation does not wait for company, and records with old timestamps stay.
    settings = {"group.initial.rebalance.delay.ms": 0, "log.retention.check.interval.ms": 3_600_000_000}
    with Broker.embedded(settings=settings) as broker:
        yield Target("ottla", broker.bootstrap, broker.pid)


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all workers of this test run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@pytest.fixture(scope="session")
def kafka(run_directory: Path) -> "Target":
    """The oracle. Shared by all workers; it ends when the process that runs the whole session ends."""
    from ottla.testing.oracle import Target, oracle_available, shared_kafka

    reason = oracle_available()
    if reason is not None:
        pytest.skip(reason)
    # The parent of a worker is the process that runs the session.
    owner_pid = os.getppid() if os.environ.get("PYTEST_XDIST_WORKER") else os.getpid()
    shared = shared_kafka(run_directory, owner_pid)
    return Target("kafka", shared.bootstrap, shared.pid)
