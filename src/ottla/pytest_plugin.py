"""pytest fixtures, available once ottla is installed: a real broker, a new topic for each test, and a cluster.

>>> def test_orders_are_counted(ottla_broker, ottla_topic):
...     with ottla.Producer(bootstrap_servers=ottla_broker.bootstrap) as producer:
...         producer.send(ottla_topic, b"42 apples")

>>> def test_orders_are_private(ottla_secure_broker):
...     with ottla.Producer(ottla_secure_broker.client_settings) as producer:
...         producer.send("orders", b"42 apples")

`@pytest.mark.ottla_topic(partitions=3, configs={"cleanup.policy": "compact"})` configures the topic, and the ini option
`ottla_settings` (one `name=value` per line) configures the broker. With pytest-xdist each worker has its own broker.

>>> def test_orders_survive_the_death_of_a_broker(ottla_cluster):
...     with ottla.Producer(bootstrap_servers=ottla_cluster.bootstrap) as producer:
...         producer.send("orders", b"42 apples").result()
...         ottla_cluster.kill(0)
...         producer.send("orders", b"43 apples").result()
"""

import itertools
import os
import re
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    # Imports nothing of ottla before a test uses a fixture: every pytest run loads this module.
    from ottla.broker.embedded.broker import EmbeddedBroker
    from ottla.broker.embedded.cluster import EmbeddedCluster

_numbers = itertools.count(1)
CLUSTER_BROKERS = 3
_CREATE_VERSION = 7
"""The version of CreateTopics to send; the broker is from this package and supports it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("ottla_settings", "settings of the brokers, one name=value per line", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "ottla_topic(partitions=1, configs={}): partitions and settings of the topic of the ottla_topic fixture",
    )


@pytest.fixture(scope="session")
def ottla_broker(pytestconfig: pytest.Config) -> "Iterator[EmbeddedBroker]":
    """A broker on a free port, shared by all tests of a worker. It and its data are removed at the end."""
    from ottla.broker.embedded.broker import Broker

    # Import what the ottla_topic fixture needs while the broker process starts.
    importing = threading.Thread(target=_import_messages)
    importing.start()
    with Broker.embedded(settings=_settings(pytestconfig)) as broker:
        importing.join()
        yield broker


@pytest.fixture(scope="session")
def ottla_secure_broker(pytestconfig: pytest.Config) -> "Iterator[EmbeddedBroker]":
    """A broker with TLS and SASL, shared by all tests of a worker: pass `client_settings` to clients.

    Needs `pip install 'ottla[tls]'`.
    """
    from ottla.broker.embedded.broker import Broker

    with Broker.embedded(settings=_settings(pytestconfig), secure=True) as broker:
        yield broker


@pytest.fixture(scope="session")
def _ottla_cluster(pytestconfig: pytest.Config) -> "Iterator[EmbeddedCluster]":
    from ottla.broker.embedded.broker import Broker

    with Broker.embedded(brokers=CLUSTER_BROKERS, settings=_settings(pytestconfig)) as cluster:
        yield cluster


@pytest.fixture
def ottla_cluster(_ottla_cluster: "EmbeddedCluster") -> "EmbeddedCluster":
    """Three brokers that form a cluster, shared by all tests of a worker.

    Brokers that the last test killed, stopped or paused run again before the next test.
    """
    _ottla_cluster.restore()
    return _ottla_cluster


@pytest.fixture
def ottla_topic(request: pytest.FixtureRequest, ottla_broker: "EmbeddedBroker") -> str:
    """The name of a new topic, created for this test only."""
    marker = request.node.get_closest_marker("ottla_topic")
    shape: dict[str, Any] = {"partitions": 1, **(marker.kwargs if marker is not None else {})}
    words = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name)[:100].strip("-")
    name = f"{words}-{os.getpid()}-{next(_numbers)}"
    if not _create(ottla_broker, name, **shape):
        # Admin retries, and raises a clear error.
        from ottla.client.blocking import Admin

        with Admin(bootstrap_servers=ottla_broker.bootstrap) as admin:
            admin.create_topic(name, **shape)
    return name


def _settings(config: pytest.Config) -> dict[str, object]:
    # No initial rebalance delay: tests should not wait for more members to join.
    settings: dict[str, object] = {"group.initial.rebalance.delay.ms": 0}
    for line in config.getini("ottla_settings"):
        name, separator, value = line.partition("=")
        if not separator:
            raise pytest.UsageError(f"ottla_settings: {line!r} is not name=value")
        settings[name.strip()] = value.strip()
    return settings


def _import_messages() -> None:
    from ottla.protocol import framing  # noqa: F401
    from ottla.protocol.messages import create_topics  # noqa: F401


def _create(
    broker: "EmbeddedBroker",
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
) -> bool:
    """Creates a topic with one request over a plain socket; returns whether it succeeded.

    The broker is from this package, so no version negotiation is needed, and tests that use another client do not
    have to wait for the import of this one and its event loop.
    """
    import socket

    from ottla.protocol.framing import decode_response, encode_request
    from ottla.protocol.messages.create_topics import CreateTopicsRequest
    from ottla.protocol.primitives import ProtocolError

    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=n, value=v) for n, v in (configs or {}).items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    try:
        with socket.create_connection((broker.host, broker.port), timeout=30) as connection:
            connection.sendall(encode_request(request.api_key, _CREATE_VERSION, 1, "ottla-pytest", request))
            with connection.makefile("rb") as answers:
                size = int.from_bytes(answers.read(4), "big")
                _, response = decode_response(request.api_key, _CREATE_VERSION, answers.read(size))
    except (OSError, ProtocolError):
        return False
    return all(result.error_code == 0 for result in response.topics) and len(response.topics) == 1
