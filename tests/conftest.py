"""Fixtures that every test may ask for. Nothing heavy is imported before somebody does.

One Apache Kafka (`kafka`) serves the whole test run, however many workers it has; each worker has its own Ottla.
"""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.processes.oracle import Target

    from ottla.broker.embedded import EmbeddedBroker

_numbers = itertools.count(1)
SPARK = Path(__file__).parent / "spark"


def pytest_configure() -> None:
    """Ctrl-C is tested on child processes. What a shell starts in the background ignores it, and so would they."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait for something most of the time."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests first, so that nobody waits for the last of them at the end.

    Workers begin with a share each, in the order of the list, and later take from the ends of each other's shares. So
    those that start Spark in processes of their own open the first share, and those that share a session the second:
    one worker then has that session, and the others need not start one.
    """
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers < 2:
        return
    own, shared, rest = [], [], []
    for item in items:
        if not item.path.is_relative_to(SPARK):
            rest.append(item)
        else:
            (shared if "spark" in getattr(item, "fixturenames", ()) else own).append(item)
    own.sort(key=lambda item: item.get_closest_marker("slow") is None)
    begin = max(0, len(items) // workers - len(own))
    items[:] = [*own, *rest[:begin], *shared, *rest[begin:]]


@pytest.fixture(scope="session")
def broker() -> "Iterator[EmbeddedBroker]":
    """A running broker, one for each worker of a test run. Tests share it and keep apart by their topics."""
    from ottla import Broker

    with Broker.embedded(timeout=60) as running:
        yield running


@pytest.fixture(scope="session")
def postgres_of_the_worker() -> "Iterator[Path]":
    from tests.support.processes.postgres import NoPostgres, postgres_server

    try:
        with postgres_server() as socket:
            yield socket
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.fixture
def postgres(postgres_of_the_worker: Path) -> Path:
    """The socket of a PostgreSQL with nothing in it."""
    import psycopg

    with psycopg.connect(f"host={postgres_of_the_worker} user=ottla dbname=postgres") as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    return postgres_of_the_worker


@pytest.fixture
def topic() -> str:
    """A topic name nobody else uses."""
    return f"topic-{os.getpid()}-{next(_numbers)}"


@pytest.fixture(scope="session")
def ottla() -> "Iterator[Target]":
    from tests.support.processes.oracle import Target

    from ottla import Broker

    # As the oracle has it: a group's first generation does not wait for company, and records with old timestamps stay.
    settings = {"group.initial.rebalance.delay.ms": 0, "log.retention.check.interval.ms": 3_600_000_000}
    with Broker.embedded(settings=settings, timeout=60) as broker:
        yield Target("ottla", broker.bootstrap, broker.pid)


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all workers of this test run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@pytest.fixture(scope="session")
def kafka(run_directory: Path) -> "Target":
    """The oracle. Shared by all workers; it ends when the process that runs the whole session ends."""
    from tests.support.processes.oracle import Target, oracle_available, shared_kafka

    reason = oracle_available()
    if reason is not None:
        pytest.skip(reason)
    # The parent of a worker is the process that runs the session.
    owner_pid = os.getppid() if os.environ.get("PYTEST_XDIST_WORKER") else os.getpid()
    shared = shared_kafka(run_directory, owner_pid)
    return Target("kafka", shared.bootstrap, shared.pid)
