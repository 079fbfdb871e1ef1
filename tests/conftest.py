"""Fixtures for every test, and the hooks of the test lanes. Heavy imports happen inside the fixtures that need them.

One Apache Kafka (`kafka`) serves the whole test run; each pytest-xdist worker has its own Ottla broker.
"""

import itertools
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import lanes
from tests.support.lanes import (  # noqa: F401 (hooks)
    pytest_addoption,
    pytest_ignore_collect,
    pytest_report_header,
    pytest_terminal_summary,
)
from tests.support.load import worker_count
from tests.support.one_process import one_process
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from ottla.broker.embedded.broker import EmbeddedBroker
    from tests.support.processes.oracle import Target
    from tests.support.processes.secure_oracle import SecureKafka

_numbers = itertools.count(1)
KEEPS_OLD_RECORDS = {"log.retention.check.interval.ms": 3_600_000_000}
"""Tests write records of 2023. By default, the broker would delete them at the next check, every five minutes."""
TESTS = Path(__file__).parent
SPARK = TESTS / "spark"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    lanes.pytest_configure(config)
    # Child processes are stopped with Ctrl-C in some tests. A shell starts background jobs with SIGINT ignored, and
    # child processes would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return worker_count(config.getoption("--load"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests of the lane, and puts the longest first so that no worker is left with one of them at the end.

    Each worker starts with one contiguous share of the list and later takes tests from the ends of the others' shares.
    Tests that start their own Spark processes therefore open the first share, and tests that use the shared Spark
    session open the second: one worker holds that session, and the others need not start one.
    """
    lanes.select(config, items)
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers < 2:
        return
    own: list[pytest.Item] = []
    shared: list[pytest.Item] = []
    rest: list[pytest.Item] = []
    for item in items:
        if not item.path.is_relative_to(SPARK):
            rest.append(item)
        else:
            (shared if "spark" in getattr(item, "fixturenames", ()) else own).append(item)
    own.sort(key=lambda item: item.get_closest_marker("slow") is None)
    begin = max(0, len(items) // workers - len(own))
    items[:] = [*own, *rest[:begin], *shared, *rest[begin:]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fails tests that start a process outside of the folders for it."""
    if not item.path.is_relative_to(TESTS) or any(map(item.path.is_relative_to, lanes.STARTS_PROCESSES)):
        return (yield)
    with one_process():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _restore_log_format(item.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    _restore_log_format(item.config)


def _restore_log_format(config: pytest.Config) -> None:
    """In every phase, pytest adds `caplog`'s handler to the loggers that do not propagate. PySpark's loggers set the
    format of their handlers to JSON."""
    plugin = config.pluginmanager.get_plugin("logging-plugin")
    if plugin is not None:
        plugin.caplog_handler.setFormatter(plugin.formatter)


@pytest.fixture(scope="session")
def broker() -> "Iterator[EmbeddedBroker]":
    """A running broker, one for each worker of a test run. Tests share it and use different topics."""
    from ottla import Broker

    with Broker.embedded(settings=KEEPS_OLD_RECORDS, timeout=PATIENCE_S) as running:
        yield running


@pytest.fixture(scope="session")
def postgres_of_the_worker() -> Iterator[Path]:
    from tests.support.processes.postgres import NoPostgres, postgres_server

    try:
        with postgres_server() as socket:
            yield socket
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.fixture
def postgres(postgres_of_the_worker: Path) -> Path:
    """The socket of an empty PostgreSQL database."""
    import psycopg

    with psycopg.connect(f"host={postgres_of_the_worker} user=ottla dbname=postgres") as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    return postgres_of_the_worker


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"topic-{os.getpid()}-{next(_numbers)}"


@pytest.fixture(scope="session")
def ottla() -> "Iterator[Target]":
    from ottla import Broker
    from tests.support.processes.oracle import Target

    # As in the oracle: a group's first generation does not wait for more members, compaction and the abort of slow
    # transactions start soon, and old records are not deleted.
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.backoff.ms": 100,
        "replica.high.watermark.checkpoint.interval.ms": 1000,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
        **KEEPS_OLD_RECORDS,
    }
    with Broker.embedded(settings=settings, timeout=PATIENCE_S) as broker:
        yield Target("ottla", broker.bootstrap, broker.pid)


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all workers of this test run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


@pytest.fixture(scope="session")
def kafka(run_directory: Path) -> "Target":
    """The oracle: a real Apache Kafka, shared by all workers. It exits with the process that runs the session."""
    from tests.support.processes.oracle import Target, oracle_available, shared_kafka

    reason = oracle_available()
    if reason is not None:
        pytest.skip(reason)
    # The parent of a worker is the process that runs the session.
    owner_pid = os.getppid() if os.environ.get("PYTEST_XDIST_WORKER") else os.getpid()
    shared = shared_kafka(run_directory, owner_pid)
    return Target("kafka", shared.bootstrap, shared.pid)


@pytest.fixture(scope="session")
def secure_kafka(run_directory: Path) -> "SecureKafka":
    """A real Apache Kafka whose listeners use TLS, SASL or both, shared by all workers."""
    from tests.support.processes.oracle import oracle_available
    from tests.support.processes.secure_oracle import shared_secure_kafka

    reason = oracle_available()
    if reason is not None:
        pytest.skip(reason)
    owner_pid = os.getppid() if os.environ.get("PYTEST_XDIST_WORKER") else os.getpid()
    return shared_secure_kafka(run_directory, owner_pid)
