"""Fixtures for your own tests, there as soon as ottla is installed: a real broker, and a fresh topic for each test.

>>> def test_orders_are_counted(ottla_broker, ottla_topic):
...     with ottla.Producer(bootstrap_servers=ottla_broker.bootstrap) as producer:
...         producer.send(ottla_topic, b"42 apples")

`@pytest.mark.ottla_topic(partitions=3, configs={"cleanup.policy": "compact"})` shapes the topic, and the ini option
`ottla_settings` (one `name=value` a line) the broker. With pytest-xdist each worker has a broker of its own.
"""

import importlib
import itertools
import os
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    # Nothing of ottla is imported before a test asks for a fixture: every run of pytest loads this module.
    from ottla.broker.embedded import EmbeddedBroker

_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("ottla_settings", "settings of the broker behind ottla_broker, as name=value", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "ottla_topic(partitions=1, configs={}): how the topic that ottla_topic makes is shaped"
    )


@pytest.fixture(scope="session")
def ottla_broker(pytestconfig: pytest.Config) -> "Iterator[EmbeddedBroker]":
    """A running broker on a free port, one for each worker, gone with its data at the end. Tests share it."""
    from ottla.broker.embedded import Broker

    # Groups need not wait for company: a test has its consumers together or does not want to.
    settings: dict[str, object] = {"group.initial.rebalance.delay.ms": 0}
    for line in pytestconfig.getini("ottla_settings"):
        name, separator, value = line.partition("=")
        if not separator:
            raise pytest.UsageError(f"ottla_settings: {line!r} is not name=value")
        settings[name.strip()] = value.strip()
    # The client is imported while the broker comes up in its own process.
    importing = threading.Thread(target=importlib.import_module, args=("ottla.client.blocking",))
    importing.start()
    with Broker.embedded(settings=settings) as broker:
        importing.join()
        yield broker


@pytest.fixture
def ottla_topic(request: pytest.FixtureRequest, ottla_broker: "EmbeddedBroker") -> str:
    """The name of a topic that was made for this test and that no other test uses."""
    from ottla.client.blocking import Admin

    marker = request.node.get_closest_marker("ottla_topic")
    shape: dict[str, Any] = {"partitions": 1, **(marker.kwargs if marker is not None else {})}
    words = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:100].strip("-")
    name = f"{words}-{os.getpid()}-{next(_numbers)}"
    with Admin(bootstrap_servers=ottla_broker.bootstrap) as admin:
        admin.create_topic(name, **shape)
    return name
